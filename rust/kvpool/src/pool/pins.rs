//! Pins: references that planned copies hold until the plan is handed out.
//!
//! A pin keeps a block from being handed out, and its content where lookups find it. It is no holder of a prefix, so it has no
//! say about the order of eviction: a block that its last holder released takes its place then, pinned or not. A place that it
//! took when the pin ends would be behind what its content depends on, and that would be evicted first. A pinned block whose
//! turn comes only leaves the order; it can be hit as long as it is pinned, and is free when the pin ends.
//!
//! Costs: O(1) per block; nothing while no copy is planned.

use super::BlockPool;
use crate::block::BlockId;
use crate::error::PoolError;
use crate::evictor::Candidate;
use crate::hash::LinkRef;

impl BlockPool {
    /// Adds one reference to each of some held blocks, which a fence holds until [`Self::unpin`]: a planned copy will read
    /// or write them. O(n).
    ///
    /// # Errors
    /// As [`Self::acquire`].
    pub(crate) fn pin(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        self.add_references(blocks, false)?;
        let allocator = &self.allocator;
        self.fences.add(None, blocks, allocator.num_blocks(), |b| allocator.ref_count(b).unwrap_or(0));
        Ok(())
    }

    /// Ends all pins. O(pins).
    pub(crate) fn unpin(&mut self) -> Result<(), PoolError> {
        let ended = self.fences.end_pins();
        self.end_fences(&ended, true)
    }

    /// Blocks of the evictor's that an allocation can take: all but pinned ones.
    pub(super) fn num_cached_free(&self) -> usize {
        self.evictor.len().saturating_sub(self.pinned_in_order) // found by the sums, if it is wrong
    }

    /// Whether nobody but pins holds `block`: nobody at all, of most blocks.
    pub(super) fn is_released(&self, block: BlockId) -> bool {
        self.allocator.ref_count(block).unwrap_or(0) == self.fences.pins(block)
    }

    /// Whether `block` has a place in the order of eviction though pins hold it.
    pub(super) fn is_pinned_in_order(&self, block: BlockId) -> bool {
        self.pinned_in_order > 0 && self.fences.pins(block) > 0 && self.evictor.contains(block)
    }

    /// The order of eviction with the pinned blocks that have a place in it. O(cached blocks).
    #[cfg(feature = "fault-injection")]
    #[must_use]
    pub fn order_with_pinned(&self) -> Vec<BlockId> {
        self.evictor.order()
    }

    /// Somebody takes `block`, which had `before` references: if they were pins alone, it is in the order no more. Returns
    /// whether they were.
    pub(super) fn take_back(&mut self, block: BlockId, before: u32) -> bool {
        if before == 0 || before != self.fences.pins(block) {
            return false;
        }
        if self.evictor.hit(block) {
            self.pinned_in_order = self.pinned_in_order.saturating_sub(1);
        } else {
            self.note_again(block); // its turn had come
        }
        true
    }

    /// What is released now depends on the content of `block`: if that is pinned, and its turn has come, it gets a place with
    /// what is released.
    pub(super) fn place_again(&mut self, block: BlockId) {
        let overtaken = self.fences.pins(block) > 0
            && self.is_released(block)
            && self.index.is_computed(block)
            && !self.evictor.contains(block)
            && self.candidates.iter().all(|candidate| candidate.block != block);
        if let Some(depth) = self.index.depth_of(block).filter(|_| overtaken) {
            self.note_again(block);
            self.candidates.push(Candidate { block, depth });
            self.pinned_in_order += 1;
        }
    }

    /// Tells the evictor what `block` holds, which has forgotten it.
    fn note_again(&mut self, block: BlockId) {
        if let Some(LinkRef { algorithm, hash, depth, parent, .. }) = self.index.link_of(block) {
            let link = LinkRef { algorithm, hash, fingerprint: None, tokens: None, depth, parent };
            self.note_registered(block, &link, None);
        }
    }
}
