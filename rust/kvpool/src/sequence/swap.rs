//! Swaps of groups of sequences: the two phases of [`crate::Tiers`]' swaps, with the block tables that they move.

use hashbrown::{HashMap, HashSet};

use super::{Sequence, SequenceError, SequenceId, Sequences};
use crate::block::BlockId;
use crate::tiers::{Fit, SwapId};

impl Sequences {
    /// The references of a group, one entry each, and its tier.
    fn references_of(&self, group: &[SequenceId]) -> Result<(Vec<BlockId>, usize), SequenceError> {
        let mut named = HashSet::new();
        let mut references = Vec::new();
        let mut tier = None;
        for &id in group {
            let sequence = self.settled(id)?;
            if !named.insert(id) {
                return Err(SequenceError::NamedTwice { handle: id });
            }
            if tier.replace(sequence.tier).is_some_and(|other| other != sequence.tier) {
                return Err(SequenceError::NotOneTier);
            }
            references.extend_from_slice(sequence.held());
        }
        Ok((references, tier.ok_or(SequenceError::NotOneTier)?))
    }

    /// Changes every sequence of a group that was looked up before.
    fn each_of(&mut self, group: &[SequenceId], mut change: impl FnMut(&mut Sequence)) {
        for id in group {
            if let Some(slot) = self.slots.get_mut(id.slot as usize) {
                slot.sequence.iter_mut().for_each(&mut change);
            }
        }
    }

    /// Whether [`Self::begin_swap`] would find its blocks in tier `to`, leaving `reserve` available there. O(blocks).
    ///
    /// # Errors
    /// As [`Self::begin_swap`], but for blocks that are lacking.
    pub fn fit_swap(&self, group: &[SequenceId], to: usize, reserve: usize) -> Result<Fit, SequenceError> {
        let (references, from) = self.references_of(group)?;
        Ok(self.tiers.fit_swap(&references, from, to, reserve)?)
    }

    /// Begins to move a group of sequences to another tier. What they share moves once and stays shared; what tier `to` caches
    /// already is not copied. The copies are planned ([`Self::take_plan`]); until [`Self::complete_swap`] or
    /// [`Self::abort_swap`] the sequences can only be looked at. Atomic. O(blocks).
    ///
    /// # Errors
    /// [`SequenceError::OutOfBlocks`], [`SequenceError::Stale`], [`SequenceError::Moving`], [`SequenceError::NamedTwice`],
    /// [`SequenceError::NotOneTier`], [`crate::TierError::SameTier`], [`crate::TierError::UnknownTier`].
    pub fn begin_swap(&mut self, group: &[SequenceId], to: usize) -> Result<SwapId, SequenceError> {
        let (references, from) = self.references_of(group)?;
        let swap = self.tiers.begin_swap(&references, from, to)?;
        self.each_of(group, |sequence| sequence.swap = Some(swap));
        self.moving.insert(swap, (to, group.to_vec()));
        Ok(swap)
    }

    /// Ends a swap whose copies are done: the tables name blocks of the new tier. Returns the pairs of blocks, old and new.
    /// O(blocks).
    ///
    /// # Errors
    /// [`crate::TierError::CopiesNotTaken`], [`crate::TierError::UnknownSwap`].
    pub fn complete_swap(&mut self, swap: SwapId) -> Result<Vec<(BlockId, BlockId)>, SequenceError> {
        let pairs = self.tiers.complete_swap(swap)?;
        let mapping: HashMap<BlockId, BlockId> = pairs.iter().copied().collect();
        let (to, group) = self.moving.remove(&swap).unwrap_or_default();
        self.each_of(&group, |sequence| sequence.moved(&mapping, to));
        Ok(pairs)
    }

    /// Takes a swap back: everything is as before it was begun.
    ///
    /// # Errors
    /// [`crate::TierError::UnknownSwap`].
    pub fn abort_swap(&mut self, swap: SwapId) -> Result<(), SequenceError> {
        self.tiers.abort_swap(swap)?;
        let (_, group) = self.moving.remove(&swap).unwrap_or_default();
        self.each_of(&group, |sequence| sequence.swap = None);
        Ok(())
    }
}
