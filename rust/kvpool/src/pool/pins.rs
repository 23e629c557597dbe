//! Pins: references that planned copies hold until the plan is handed out.
//!
//! A pin keeps a block from being handed out, and its content where lookups find it. It is no holder of
//! a prefix, so it has no say about the order of eviction: a block that its last holder released takes
//! its place then, pinned or not. A place that it took when the pin ends would be behind what its
//! content depends on, and that would be evicted first. A pinned block whose turn comes only leaves the
//! order; it can be hit as long as it is pinned, and is free when the pin ends.
//!
//! Costs: O(1) per block; nothing while no copy is planned.

use super::BlockPool;
use crate::block::BlockId;
use crate::error::PoolError;
use crate::evictor::Candidate;
use crate::hash::LinkRef;
use crate::record::ByBlock;

impl BlockPool {
    /// Adds one reference to a held block, which a fence holds until [`Self::unpin`]: a planned copy
    /// will read or write it. A block that is pinned already stays so. O(1).
    ///
    /// # Errors
    /// As [`Self::acquire`].
    pub(crate) fn pin(&mut self, block: BlockId) -> Result<(), PoolError> {
        if !self.is_pinned(block) {
            self.add_references(&[block], false)?;
            self.fences.pin(&mut self.records, block);
        }
        Ok(())
    }

    /// Ends all pins. O(pinned blocks).
    pub(crate) fn unpin(&mut self) -> Result<(), PoolError> {
        let ended = self.fences.end_pins();
        self.end_fences(ended, true).map(|_| ())
    }

    /// Blocks of the evictor's that an allocation can take: all but pinned ones.
    pub(super) fn num_cached_free(&self) -> usize {
        self.order.len().saturating_sub(self.pinned_in_order) // found by the sums, if it is wrong
    }

    /// Whether a planned copy reads or writes `block`.
    pub(crate) fn is_pinned(&self, block: BlockId) -> bool {
        self.records.at(block.get()).pins > 0
    }

    /// Whether `block` has a place in the order of eviction though pins hold it.
    pub(super) fn is_pinned_in_order(&self, block: BlockId) -> bool {
        self.pinned_in_order > 0 && self.is_pinned(block) && self.order.contains(&self.records, block)
    }

    /// Whether pins alone hold `block`, and its turn has come: what it depends on may be gone.
    pub(crate) fn is_overtaken(&self, block: BlockId) -> bool {
        let record = self.records.at(block.get());
        record.pins > 0
            && record.is_released()
            && record.is_computed()
            && !self.order.contains(&self.records, block)
    }

    /// The order of eviction with the pinned blocks that have a place in it. O(cached blocks).
    #[cfg(feature = "fault-injection")]
    #[must_use]
    pub fn order_with_pinned(&self) -> Vec<BlockId> {
        self.order.order(&self.records)
    }

    /// Somebody takes `block`, which pins alone held: it is in the order no more.
    pub(super) fn take_back(&mut self, block: BlockId) {
        if self.order.hit(&mut self.records, block) {
            self.pinned_in_order = self.pinned_in_order.saturating_sub(1);
        } else {
            self.note_again(block); // its turn had come
        }
    }

    /// What is released now depends on the content of `block`: if that is pinned, and its turn has
    /// come, it gets a place with what is released.
    pub(super) fn place_again(&mut self, block: BlockId) {
        if self.is_overtaken(block) && self.candidates.iter().all(|candidate| candidate.block != block) {
            let record = *self.records.at(block.get());
            self.note_again(block);
            self.candidates.push(Candidate { block, depth: record.depth() });
            self.pinned_in_order += 1;
        }
    }

    /// Tells the evictor what `block` holds, which has forgotten it.
    fn note_again(&mut self, block: BlockId) {
        if !self.history {
            return;
        }
        if let Some(LinkRef { algorithm, hash, depth, parent, .. }) = self.index.link_of(&self.records, block)
        {
            let link = LinkRef { algorithm, hash, fingerprint: None, tokens: None, depth, parent };
            self.note_registered(block, &link, None);
        }
    }
}
