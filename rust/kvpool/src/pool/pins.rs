//! Implements pins. A pin is a reference that a planned copy holds to a block until
//! [`crate::Tiers::take_plan`] returns the plan.
//!
//! A pinned block cannot be allocated, but lookups can still find its content. A pin is not a use of
//! the content, so it does not change the order of eviction.
//!
//! When the last holder releases a block, the block is added to the eviction order at once, even if it
//! is pinned. If it were added only when the pin ends, it would come after the blocks before it in the
//! prompt, and these would be evicted first. If the policy chooses a pinned block for eviction, the
//! block is only removed from the order. It can be hit as long as it is pinned, and becomes free when
//! the pin ends.
//!
//! Costs: O(1) per pinned block.

use super::BlockPool;
use crate::block::BlockId;
use crate::error::PoolError;
use crate::evictor::Candidate;
use crate::hash::LinkRef;
use crate::record::ByBlock;

impl BlockPool {
    /// Pins a held block, because a planned copy will read or write it: adds one reference, which lasts
    /// until [`Self::unpin`]. Does nothing if the block is already pinned. O(1).
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

    pub(crate) fn unpin(&mut self) -> Result<(), PoolError> {
        let ended = self.fences.end_pins();
        self.end_fences(ended, true).map(|_| ())
    }

    /// Number of blocks in the eviction order that an allocation can take. These are all blocks of the
    /// order that are not pinned.
    pub(super) fn num_cached_free(&self) -> usize {
        self.order.len().saturating_sub(self.pinned_in_order) // `check_sums` finds a wrong count
    }

    pub(crate) fn is_pinned(&self, block: BlockId) -> bool {
        self.records.at(block.get()).pins > 0
    }

    pub(super) fn is_pinned_in_order(&self, block: BlockId) -> bool {
        self.pinned_in_order > 0 && self.is_pinned(block) && self.order.contains(&self.records, block)
    }

    /// Whether `block` has only references of pins, and the policy has already chosen it for eviction.
    /// The blocks before it in its chain may already be evicted.
    pub(crate) fn is_overtaken(&self, block: BlockId) -> bool {
        let record = self.records.at(block.get());
        record.pins > 0
            && record.is_released()
            && record.is_computed()
            && !self.order.contains(&self.records, block)
    }

    /// Returns the blocks in the order of eviction, including pinned blocks. O(cached blocks).
    #[cfg(feature = "fault-injection")]
    #[must_use]
    pub fn order_with_pinned(&self) -> Vec<BlockId> {
        self.order.order(&self.records)
    }

    /// Removes `block` from the eviction order, because a request acquires it. Until now, `block` only
    /// had references of pins.
    pub(super) fn take_back(&mut self, block: BlockId) {
        if self.order.hit(&mut self.records, block) {
            self.pinned_in_order = self.pinned_in_order.saturating_sub(1);
        } else {
            self.note_again(block); // the policy had chosen it for eviction
        }
    }

    /// Adds `block` to the eviction order again if it is pinned and the policy has chosen it for
    /// eviction. The blocks of the current release follow it in their prompt, so they are useless
    /// without its content.
    pub(super) fn place_again(&mut self, block: BlockId) {
        if self.is_overtaken(block) && self.candidates.iter().all(|candidate| candidate.block != block) {
            let record = *self.records.at(block.get());
            self.note_again(block);
            self.candidates.push(Candidate { block, depth: record.depth() });
            self.pinned_in_order += 1;
        }
    }

    /// Notifies the evictor again of the content of `block`, because the evictor forgot the block when
    /// it chose it for eviction.
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
