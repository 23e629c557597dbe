//! Copies between pageable host memory and a device through page-locked buffers, which the processor
//! fills and empties.

use std::sync::Arc;

use super::cuda::SLOTS;
use super::job::{Job, Shape};
use crate::cpu;
use crate::driver::{Context, PinnedMemory};
use crate::error::CudaError;
use crate::store::{Claim, Store};
use crate::words::Pair;

/// Page-locked buffers through which pageable memory is copied.
pub(super) struct Bounce {
    slots: Vec<PinnedMemory>,
    nbytes: u64,
}

impl Bounce {
    /// Returns the bounce buffers. Creates larger ones if they have fewer than `nbytes` bytes each.
    pub(super) fn of<'a>(
        bounce: &'a mut Option<Self>,
        context: &Arc<Context>,
        nbytes: u64,
    ) -> Result<&'a Self, CudaError> {
        if bounce.as_ref().is_none_or(|bounce| bounce.nbytes < nbytes) {
            *bounce = None;
            let slots = (0..SLOTS).map(|_| PinnedMemory::new(context, nbytes)).collect::<Result<_, _>>()?;
            return Ok(bounce.insert(Self { slots, nbytes }));
        }
        Ok(bounce.get_or_insert_with(|| Self { slots: Vec::new(), nbytes: 0 }))
    }

    pub(super) fn slot(&self, index: usize) -> &PinnedMemory {
        &self.slots[index % SLOTS]
    }
}

/// Copies blocks between a host store and a bounce buffer. This is the processor's part of a copy to or
/// from pageable memory. In the buffer, the blocks have the layout `shape`.
pub(super) fn bounce_copy(
    claim: &Claim,
    job: &Job,
    buffer: u64,
    shape: &Shape,
    part: &[Pair],
    to_host: bool,
    threads: usize,
) {
    let host = job.host();
    let view = Store::view(shape.regions(host, buffer), part.len() as u64);
    let place = |(place, pair): (usize, &Pair)| {
        let place = place as u32;
        if to_host { Pair { src: place, dst: pair.dst } } else { Pair { src: pair.src, dst: place } }
    };
    let pairs: Vec<_> = part.iter().enumerate().map(place).collect();
    let (src, dst) = if to_host { (&view, &**host) } else { (&**host, &view) };
    cpu::copy(claim, src, dst, &pairs, job.range.clone(), threads);
}
