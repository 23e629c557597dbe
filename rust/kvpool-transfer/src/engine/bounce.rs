//! Page-locked buffers between pageable memory and the device. The processor fills and empties them.

use std::sync::Arc;

use super::cuda::SLOTS;
use super::job::{Job, Shape};
use crate::cpu;
use crate::driver::{Context, PinnedMemory};
use crate::error::CudaError;
use crate::store::{Claim, Store};
use crate::words::Pair;

/// Page-locked buffers between pageable memory and the device.
pub(super) struct Bounce {
    slots: Vec<PinnedMemory>,
    nbytes: u64,
}

impl Bounce {
    /// Returns bounce buffers of at least `nbytes` bytes each.
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

/// Does the processor's part of a copy to or from pageable memory. Copies between a host store and a
/// bounce buffer that holds blocks of the same shape.
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
