//! Allocation, references, fences, eviction, reset, epochs and growth: the lifetime half of [`BlockPool`].

use std::collections::BTreeMap;

use super::{BlockPool, Cause, DuplicatePolicy};
use crate::block::{BlockId, MAX_BLOCKS};
use crate::error::{PoolError, Refusal};
use crate::events::BlockEvent;
use crate::evictor::Candidate;
use crate::free_list::check_id;
use crate::journal::{Check, Ids, PoolOperation};
use crate::retention::EvictionCause;

impl BlockPool {
    /// Takes `n` blocks, each with one reference: free ones first, then the evictor's victims. O(n).
    ///
    /// # Errors
    /// [`PoolError::OutOfBlocks`] if fewer are free or evictable.
    pub fn allocate(&mut self, n: usize) -> Result<Vec<BlockId>, PoolError> {
        let mut out = Vec::new();
        self.allocate_into(n, &mut out)?;
        Ok(out)
    }

    /// [`Self::allocate`] into a list that the caller reuses.
    ///
    /// # Errors
    /// [`PoolError::OutOfBlocks`]; `out` is then unchanged.
    pub fn allocate_into(&mut self, n: usize, out: &mut Vec<BlockId>) -> Result<(), PoolError> {
        let (journal, before) = (self.journal.take(), out.len());
        let result = self.allocate_unrecorded(n, out);
        if let Some(journal) = journal {
            let answer = result.as_ref().map(|()| &out[before..]);
            self.note(journal, &PoolOperation::Allocate { blocks: n }, Check::of(&answer));
        }
        result
    }

    fn allocate_unrecorded(&mut self, n: usize, out: &mut Vec<BlockId>) -> Result<(), PoolError> {
        self.check_poison()?;
        if n > self.num_available() {
            let can_ever_fit = n <= self.num_usable();
            let refusal = Refusal::new(n, self.num_available(), self.num_fenced(), can_ever_fit);
            return Err(PoolError::OutOfBlocks(refusal));
        }
        self.check_sums_of_lists()?;
        let free = n.min(self.allocator.num_free());
        let first = out.len();
        // Enough are free and cached: whatever fails from here on is an invariant that broke.
        if let Err(error) = self.allocator.allocate_into(free, out) {
            return Err(self.broken(error.to_string()));
        }
        self.touch_new(&out[first..])?;
        for _ in free..n {
            let victim = self.evict_one()?;
            self.allocator.hold_parked(victim);
            out.push(victim);
            self.counters.evicted += 1;
        }
        self.counters.allocated += n as u64;
        Ok(())
    }

    /// The next victim, without its content. Pinned blocks whose turn comes before it only leave the order.
    fn evict_one(&mut self) -> Result<BlockId, PoolError> {
        loop {
            let Some(victim) = self.evictor.evict() else {
                return Err(self.broken("B2: the evictor has fewer blocks than it says".into()));
            };
            if !self.check_victim(victim)? {
                self.note_evicted(self.evictor.cause());
                self.unregister(victim);
                return Ok(victim);
            }
        }
    }

    /// Poisons the pool if the evictor gave up what it cannot have held. Returns whether pins hold it.
    fn check_victim(&mut self, victim: BlockId) -> Result<bool, PoolError> {
        if !self.is_released(victim) || !self.index.is_computed(victim) {
            return Err(self.broken(format!("B2: the evictor gave up block {victim}, which is in use")));
        }
        self.touch(&[victim])?;
        let pinned = self.allocator.ref_count(victim) != Some(0);
        self.pinned_in_order = self.pinned_in_order.saturating_sub(usize::from(pinned));
        Ok(pinned)
    }

    /// Adds one reference per id to blocks that somebody holds: a second holder of a block table. O(n). A fence counts as a
    /// holder: the KV of a fenced block is whole until its step completes, and then it is the new holder's.
    ///
    /// # Errors
    /// [`PoolError::NotHeld`] for a block without references (only a lookup takes cached-free blocks); unknown ids.
    pub fn acquire(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        self.recorded(
            |_, _, _| PoolOperation::Acquire { blocks: Ids::pack(blocks) },
            |inner| inner.acquire_unrecorded(blocks),
        )
    }

    fn acquire_unrecorded(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        self.add_references(blocks, true)
    }

    /// One reference more to each of some held blocks, for holders or for pins.
    pub(super) fn add_references(&mut self, blocks: &[BlockId], for_holders: bool) -> Result<(), PoolError> {
        self.check_poison()?;
        self.touch(blocks)?;
        if self.fences.is_idle() {
            return self.allocator.acquire(blocks);
        }
        let mut added = BTreeMap::<BlockId, u32>::new();
        for &block in blocks {
            *added.entry(block).or_default() += 1;
        }
        self.allocator.acquire(blocks)?;
        for (block, added) in added {
            let before = self.allocator.ref_count(block).unwrap_or(added).saturating_sub(added);
            if for_holders {
                self.take_back(block, before);
            }
            self.fences.on_acquire(block, before);
        }
        Ok(())
    }

    /// Drops one reference per id. Blocks without further references become cached-free if they are registered and
    /// computed, else free; for eviction they count as used last at this moment, of one chain the deepest as the
    /// longest unused. A block named twice loses two references. O(n).
    ///
    /// # Errors
    /// [`PoolError::NotHeld`] if the call names a block more often than it has references outside of fences; unknown
    /// ids.
    pub fn release(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        self.recorded(
            |_, _, _| PoolOperation::Release { blocks: Ids::pack(blocks) },
            |inner| inner.release_unrecorded(blocks),
        )
    }

    fn release_unrecorded(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        self.check_poison()?;
        self.touch(blocks)?;
        let mut shared = BTreeMap::<BlockId, u32>::new();
        if !self.fences.is_idle() {
            self.check_releasable(blocks, &mut shared)?;
        }
        self.idle.clear();
        self.allocator.drop_references(blocks, &mut self.idle)?;
        if shared.is_empty() {
            return self.settle_idle(false);
        }
        // What only pins hold from now on is released, too; in the order in which holders gave it up.
        self.idle.clear();
        for block in blocks {
            let Some(named) = shared.get_mut(block) else { continue };
            *named -= 1;
            if *named == 0 {
                let left = self.allocator.ref_count(*block).unwrap_or(0);
                self.fences.on_release(*block, left);
                if self.is_released(*block) {
                    self.idle.push(*block);
                }
            }
        }
        self.settle_idle(false)
    }

    /// Releases a block table, tail first: blocks that become free are handed out again in the table's order.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub fn release_table(&mut self, table: &[BlockId]) -> Result<(), PoolError> {
        self.recorded(
            |_, _, _| PoolOperation::ReleaseTable { blocks: Ids::pack(table) },
            |inner| inner.release_table_unrecorded(table),
        )
    }

    fn release_table_unrecorded(&mut self, table: &[BlockId]) -> Result<(), PoolError> {
        let tail_first: Vec<_> = table.iter().rev().copied().collect();
        self.release(&tail_first)
    }

    /// Checks that callers, as opposed to fences, hold the references that `blocks` names, and counts them.
    fn check_releasable(
        &self,
        blocks: &[BlockId],
        named: &mut BTreeMap<BlockId, u32>,
    ) -> Result<(), PoolError> {
        for (position, &block) in blocks.iter().enumerate() {
            check_id(block, self.num_blocks(), "released")?;
            let count = named.entry(block).or_default();
            *count += 1;
            let references = self.allocator.ref_count(block).unwrap_or(0);
            let Some(held) = references.checked_sub(self.fences.references(block)) else {
                return Err(self
                    .condemn(|| format!("F1: fences have more references of block {block} than there are")));
            };
            if *count > held {
                return Err(PoolError::NotHeld { block, held, operation: "release it", position });
            }
        }
        Ok(())
    }

    /// Sends the blocks of `self.idle`, which only pins hold, or nobody, where they belong: to the evictor or to the free list.
    /// Whose last pin has just ended has been there.
    fn settle_idle(&mut self, unpinned: bool) -> Result<(), PoolError> {
        let idle = std::mem::take(&mut self.idle);
        self.candidates.clear();
        for &block in &idle {
            let pinned = self.allocator.ref_count(block) != Some(0);
            if unpinned {
                if self.evictor.contains(block) {
                    self.pinned_in_order = self.pinned_in_order.saturating_sub(1);
                    continue;
                }
                // Its turn has come, or it has nothing to be kept for.
                self.note_evicted(EvictionCause::Policy);
                self.unregister(block);
            } else if pinned && self.candidates.iter().any(|candidate| candidate.block == block) {
                continue; // placed with a copy that was dropped
            } else if let Some(depth) = self.index.depth_of(block) {
                let may_drop = self.duplicates == DuplicatePolicy::DropOnRelease;
                let copy = if may_drop { self.index.other_computed_copy(block) } else { None };
                let copy = copy.filter(|_| !self.evictor.has_dependents(block));
                if self.index.is_computed(block) && copy.is_none() {
                    self.candidates.push(Candidate { block, depth });
                    self.pinned_in_order += usize::from(pinned);
                    continue;
                }
                if let Some(copy) = copy {
                    self.counters.duplicates_dropped += 1;
                    // What was never computed had nothing computed behind it.
                    if self.index.is_computed(block) {
                        if self.evictor.renew(copy) {
                            self.candidates.push(Candidate { block: copy, depth });
                        } else {
                            self.place_again(copy);
                        }
                    }
                }
                self.unregister(block);
            }
            self.evictor.remove(block);
            if !pinned {
                self.free_parked(block)?;
            }
        }
        self.relink_candidates();
        let held = self.evictor.len();
        self.evictor.insert(&mut self.candidates);
        if self.evictor.len() != held + self.candidates.len() {
            return Err(self.broken("B2: the evictor has not taken the blocks that it was given".into()));
        }
        self.idle = idle;
        Ok(())
    }

    /// Puts a parked block on the free list.
    fn free_parked(&mut self, block: BlockId) -> Result<(), PoolError> {
        // It is on no list: a list that has it is broken.
        self.allocator.free_parked(block).map_err(|error| self.broken(error.to_string()))
    }

    /// Refuses to hand blocks out if the lists of those that are available, and what is held, do not add up to all.
    #[inline]
    fn check_sums_of_lists(&mut self) -> Result<(), PoolError> {
        let sum = self.num_available().saturating_add(self.allocator.num_held());
        if sum == self.num_usable() {
            Ok(())
        } else {
            self.check_sums().map_err(|broken| self.broken(broken.to_string()))
        }
    }

    /// Names another copy of a parent's content to blocks whose own parent is gone, or was never computed: its holder may give
    /// it up uncomputed, and until then it protects nothing that a lookup needs.
    fn relink_candidates(&mut self) {
        if !self.history {
            return;
        }
        let mut at = 0;
        while let Some(&Candidate { block, .. }) = self.candidates.get(at) {
            let parent = self.evictor.parent(block);
            if parent.is_none_or(|parent| !self.index.is_computed(parent))
                && let Some(hash) = self.index.parent_of(block)
                && let Some(parent) = self.index.head_of_hash(&hash)
            {
                self.place_again(parent);
                self.evictor.relink(block, parent);
            }
            at += 1;
        }
    }

    /// Releases blocks that a running step may still touch: they become allocatable when `complete_step(step)`, or that
    /// of a later step, is called; until then a hit on them still succeeds. If that step has completed already they are
    /// released at once. O(n).
    ///
    /// # Errors
    /// As [`Self::release`].
    pub fn release_after(&mut self, blocks: &[BlockId], step: u64) -> Result<(), PoolError> {
        self.recorded(
            |_, _, _| PoolOperation::ReleaseAfter { blocks: Ids::pack(blocks), step },
            |inner| inner.release_after_unrecorded(blocks, step),
        )
    }

    fn release_after_unrecorded(&mut self, blocks: &[BlockId], step: u64) -> Result<(), PoolError> {
        if self.fences.is_completed(step) {
            return self.release(blocks);
        }
        self.check_poison()?;
        self.touch(blocks)?;
        self.check_releasable(blocks, &mut BTreeMap::new())?;
        let allocator = &self.allocator;
        self.fences.add(Some(step), blocks, allocator.num_blocks(), |b| allocator.ref_count(b).unwrap_or(0));
        Ok(())
    }

    /// Ends the fences of `step` and of all earlier steps. Returns how many references they held. O(those references).
    ///
    /// # Errors
    /// Only if the pool is poisoned. Completing a step twice, or one that fenced nothing, is fine.
    pub fn complete_step(&mut self, step: u64) -> Result<usize, PoolError> {
        self.recorded(
            |_, _, _| PoolOperation::CompleteStep { step },
            |inner| inner.complete_step_unrecorded(step),
        )
    }

    fn complete_step_unrecorded(&mut self, step: u64) -> Result<usize, PoolError> {
        self.check_poison()?;
        let ended = self.fences.complete(step);
        self.end_fences(&ended, false)?;
        Ok(ended.len())
    }

    pub(super) fn end_fences(&mut self, ended: &[BlockId], pins: bool) -> Result<(), PoolError> {
        self.idle.clear();
        self.touch(ended)?;
        for &block in ended {
            let references = self.allocator.ref_count(block).unwrap_or(0);
            if !self.fences.end_one(block, references) {
                let reason = format!("F1: a fence of block {block} ends, which has {references} references");
                return Err(self.broken(reason));
            }
            self.allocator.drop_references(&[block], &mut self.idle)?;
            if references > 1 && self.is_released(block) {
                self.idle.push(block); // of its references pins are left
            }
        }
        self.settle_idle(pins)
    }

    /// Says that held or cached-free blocks were accessed at `time`, on a clock of the caller's; only policies that order by
    /// such times listen ([`crate::EvictionPolicy::LastAccess`]). An access is never moved back in time. O(n log blocks).
    ///
    /// # Errors
    /// [`PoolError::NotHeld`] for a free block, unknown ids; [`PoolError::InvalidConfig`] for a time that is not a number.
    pub fn mark_accessed(&mut self, blocks: &[BlockId], time: f64) -> Result<(), PoolError> {
        self.recorded(
            |_, _, _| PoolOperation::MarkAccessed { blocks: Ids::pack(blocks), time },
            |inner| inner.mark_accessed_unrecorded(blocks, time),
        )
    }

    fn mark_accessed_unrecorded(&mut self, blocks: &[BlockId], time: f64) -> Result<(), PoolError> {
        self.check_poison()?;
        if time.is_nan() {
            return Err(PoolError::InvalidConfig {
                field: "time",
                value: time.to_string(),
                expected: "a number".into(),
            });
        }
        for (position, &block) in blocks.iter().enumerate() {
            check_id(block, self.num_blocks(), "accessed")?;
            self.check_untampered(block)?;
            if self.allocator.ref_count(block) == Some(0) && !self.evictor.contains(block) {
                let operation = "mark it as accessed";
                return Err(PoolError::NotHeld { block, held: 0, operation, position });
            }
        }
        for &block in blocks {
            self.evictor.mark_accessed(block, time);
        }
        Ok(())
    }

    /// Drops blocks from the index by id: no lookup finds them any more. Cached-free ones become free; held ones stay
    /// with their holders and become free when released. Returns how many were registered. O(n).
    ///
    /// # Errors
    /// Unknown ids.
    pub fn drop_cached(&mut self, blocks: &[BlockId]) -> Result<usize, PoolError> {
        self.recorded(
            |_, _, _| PoolOperation::Evict { blocks: Ids::pack(blocks) },
            |inner| inner.evict_unrecorded(blocks),
        )
    }

    fn evict_unrecorded(&mut self, blocks: &[BlockId]) -> Result<usize, PoolError> {
        self.check_poison()?;
        for &block in blocks {
            check_id(block, self.num_blocks(), "evicted")?;
        }
        self.touch(blocks)?;
        let mut dropped = 0;
        for &block in blocks {
            if !self.index.contains(block) {
                continue;
            }
            let idle = self.allocator.ref_count(block) == Some(0);
            let in_order = self.is_pinned_in_order(block);
            if self.evictor.remove(block) != (idle || in_order) {
                let reason = format!("B2: the evictor is wrong about whether it held block {block}");
                return Err(self.broken(reason));
            }
            self.pinned_in_order = self.pinned_in_order.saturating_sub(usize::from(in_order));
            self.unregister(block);
            dropped += 1;
            if idle {
                self.free_parked(block)?;
            }
        }
        Ok(dropped)
    }

    /// Forgets all cached content of this pool. Returns how many blocks were registered. O(usable blocks). A pool of several
    /// tiers is reset with the others ([`crate::Tiers::reset`]): what one of them keeps may be swapped in again.
    ///
    /// # Errors
    /// [`PoolError::InUse`] while blocks are held; then nothing has changed. [`Self::bump_epoch`] always succeeds.
    pub fn reset(&mut self) -> Result<usize, PoolError> {
        self.recorded(|_, _, _| PoolOperation::Reset, Self::reset_unrecorded)
    }

    fn reset_unrecorded(&mut self) -> Result<usize, PoolError> {
        self.check_poison()?;
        self.check_idle()?;
        self.note_cleared(Cause::Reset);
        self.forget()
    }

    /// Refuses while blocks are held.
    pub(crate) fn check_idle(&self) -> Result<(), PoolError> {
        let fenced = self.num_fenced();
        match self.allocator.num_held() {
            0 => Ok(()),
            held => Err(PoolError::InUse { active: held.saturating_sub(fenced), fenced }),
        }
    }

    /// Starts a new epoch, for instance after a change of weights: nothing registered before is ever matched again, and
    /// chains of earlier epochs can no longer be registered, so running requests keep their blocks but never publish
    /// them. Returns the new epoch. O(usable blocks).
    ///
    /// # Errors
    /// Only if the pool is poisoned.
    pub fn bump_epoch(&mut self) -> Result<u64, PoolError> {
        self.recorded(|_, _, _| PoolOperation::BumpEpoch, Self::bump_epoch_unrecorded)
    }

    fn bump_epoch_unrecorded(&mut self) -> Result<u64, PoolError> {
        self.check_poison()?;
        self.note_cleared(Cause::Epoch(self.epoch));
        self.epoch += 1;
        self.forget()?;
        Ok(self.epoch)
    }

    fn forget(&mut self) -> Result<usize, PoolError> {
        let registered = self.index.num_registered();
        self.touch_all()?;
        while let Some(block) = self.evictor.evict() {
            let pinned = self.check_victim(block)?;
            self.index.remove(block);
            if !pinned {
                self.free_parked(block)?;
            }
        }
        if !self.evictor.is_empty() {
            return Err(self.broken("B2: the evictor has fewer blocks than it says".into()));
        }
        self.evictor.clear();
        self.index.clear();
        if let Some(advisor) = &mut self.advisor {
            advisor.forget();
        }
        self.events.push(BlockEvent::Cleared { epoch: self.epoch }, None);
        Ok(registered)
    }

    /// Grows the pool to `num_blocks` blocks, null block included; the new ones are handed out last. O(new blocks), and
    /// O(blocks) for the index.
    ///
    /// # Errors
    /// [`PoolError::Shrink`] for fewer blocks than there are, or more than a pool can have.
    pub fn resize(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.recorded(
            |_, _, _| PoolOperation::Resize { num_blocks },
            |inner| inner.resize_unrecorded(num_blocks),
        )
    }

    fn resize_unrecorded(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.check_poison()?;
        let from = self.num_blocks();
        if num_blocks < from || num_blocks > MAX_BLOCKS {
            return Err(PoolError::Shrink { from, to: num_blocks, max: MAX_BLOCKS });
        }
        // Memory for everything first: the allocator, whose size is the pool's, comes last and hands the blocks out.
        let advisor =
            self.advisor.as_ref().map(|advisor| advisor.prepare_resize(num_blocks - 1)).transpose()?;
        self.index.grow(num_blocks)?;
        self.evictor.grow(num_blocks)?;
        self.digest.as_mut().map_or(Ok(()), |digest| digest.grow(num_blocks))?;
        self.allocator.grow(num_blocks)?;
        if let (Some(advisor), Some(resized)) = (&mut self.advisor, advisor) {
            advisor.resize(resized);
        }
        Ok(())
    }
}
