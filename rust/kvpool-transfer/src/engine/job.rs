//! `Job`: a checked copy between two stores. `Shape`: the layout of host blocks in a staging buffer.

use std::ops::Range;
use std::sync::Arc;

use crate::memory::Span;
use crate::region::Region;
use crate::runs::{cut, runs, spans};
use crate::store::{Accessor, Claim, Packed, Pinning, Store};
use crate::words::Device;
use crate::words::Pair;

/// A checked copy.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) src: Arc<Store>,
    pub(super) dst: Arc<Store>,
    pub(super) pairs: Arc<Vec<Pair>>,
    pub(super) range: Range<usize>,
}

impl Job {
    pub(super) fn nbytes(&self) -> u64 {
        let each: u64 = self.src.regions()[self.range.clone()].iter().map(|region| region.nbytes).sum();
        each * self.pairs.len() as u64
    }

    /// Acquires the guards of the job's blocks. Waits until no other access conflicts.
    pub(super) fn claim(&self, accessor: Accessor) -> Claim {
        Claim::take([&self.src, &self.dst], Some(&self.pairs), &self.range, accessor)
    }

    /// Like [`Self::claim`], but returns `None` instead of waiting.
    pub(super) fn try_claim(&self, accessor: Accessor) -> Option<Claim> {
        Claim::try_take([&self.src, &self.dst], &self.pairs, &self.range, accessor)
    }

    /// Returns the store that is not on the device.
    pub(super) fn host(&self) -> &Arc<Store> {
        if self.src.device() == Device::Cpu { &self.src } else { &self.dst }
    }

    /// Returns the pieces to copy. Adjacent pieces are merged, but no piece crosses the border between
    /// two registrations of host memory.
    pub(super) fn spans(&self) -> Vec<Span> {
        let (src, dst) = (&self.src.regions()[self.range.clone()], &self.dst.regions()[self.range.clone()]);
        spans(src, dst, &self.pairs, |all| match (self.src.pinning(), self.dst.pinning()) {
            (Pinning::Registered { blocks }, _) => cut(&all, blocks, |run| run.src),
            (_, Pinning::Registered { blocks }) => cut(&all, blocks, |run| run.dst),
            _ => all,
        })
    }

    /// Returns the number of pieces (descriptors) that `spans` returns if no piece has to be split at a
    /// border between registrations.
    pub(super) fn num_spans(&self) -> u64 {
        let regions =
            self.src.regions()[self.range.clone()].iter().zip(&self.dst.regions()[self.range.clone()]);
        let dense = regions.filter(|(src, dst)| src.is_dense() && dst.is_dense()).count() as u64;
        let merged = if dense > 0 { runs(&self.pairs).len() as u64 } else { 0 };
        dense * merged + (self.range.len() as u64 - dense) * self.pairs.len() as u64
    }
}

/// The layout that the blocks of a host store have in a staging buffer. It is the layout that they have
/// on the host, if each block is contiguous there.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) stride: u64,
    /// Number of bytes in a block. The gap between this block and the next does not count.
    nbytes: u64,
    offsets: Vec<u64>,
    /// Whether adjacent blocks may be moved as one piece, together with the gaps between them.
    pub(super) whole: bool,
}

impl Shape {
    pub(super) fn of(host: &Store) -> Self {
        // Blocks of pageable memory pass through buffers of the engine, in which there are no gaps
        // between them.
        if let (true, Some(Packed { stride, nbytes, offsets, owned, .. })) = (host.is_pinned(), host.packed())
        {
            let whole = *owned || stride == nbytes;
            return Self { stride: *stride, nbytes: *nbytes, offsets: offsets.clone(), whole };
        }
        let mut end = 0_u64;
        let mut offsets = Vec::with_capacity(host.regions().len());
        for region in host.regions() {
            offsets.push(end);
            end = (end + region.nbytes).next_multiple_of(16);
        }
        Self { stride: end, nbytes: end, offsets, whole: true }
    }

    /// Returns the regions of blocks with this shape in a buffer at the address `base`.
    pub(super) fn regions(&self, host: &Store, base: u64) -> Vec<Region> {
        let stride = self.stride;
        let pieces = host.regions().iter().zip(&self.offsets);
        pieces.map(|(region, offset)| Region { base: base + offset, stride, nbytes: region.nbytes }).collect()
    }

    /// Returns the offset of the regions `range` within a block, and the number of bytes from their
    /// start to their end. The regions must be adjacent.
    pub(super) fn part(&self, host: &Store, range: &Range<usize>) -> (u64, u64) {
        if range.len() == self.offsets.len() {
            return (0, self.nbytes);
        }
        let start = self.offsets[range.start];
        let last = range.end - 1;
        (start, self.offsets[last] + host.regions()[last].nbytes - start)
    }
}
