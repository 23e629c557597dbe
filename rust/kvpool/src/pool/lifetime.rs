//! Implements the operations of [`BlockPool`] that change the states of blocks: allocation, references,
//! fences, eviction, reset, epochs and growth.

use super::observe::{ClearCause, RemovalCause};
use super::order::Order;
use super::{BlockPool, DuplicatePolicy};
use crate::allocator::Allocator;
use crate::block::{BlockId, MAX_BLOCKS};
use crate::error::{PoolError, Refusal};
use crate::evictor::Candidate;
use crate::fence::{Ticket, Until};
use crate::free_list::check_id;
use crate::list::{END, try_reserve};
use crate::prefix_index::Visibility;
use crate::record::{ByBlock, Name, grow};
use crate::retention::EvictionCause;

/// Number of blocks that are evicted together. The records of this number of blocks fit into the
/// nearest CPU cache until all work on them is done. The records of a whole request may not fit.
const VICTIMS: usize = 64;

const FEW_VICTIMS: &str = "B2: the evictor has fewer blocks than it reports";
const BROKEN_ORDER: &str =
    "B2, L1: the order has a block that is in use, or links that do not match each other";

/// # Allocation
impl BlockPool {
    /// Allocates `n` blocks, each with one reference. Takes free blocks first, then blocks that the
    /// eviction policy chooses. O(n).
    ///
    /// # Errors
    /// [`PoolError::OutOfBlocks`] if fewer than `n` blocks are free or evictable.
    pub fn allocate(&mut self, n: usize) -> Result<Vec<BlockId>, PoolError> {
        let mut out = Vec::new();
        self.allocate_into(n, &mut out)?;
        Ok(out)
    }

    /// Like [`Self::allocate`], but appends to a list that the caller reuses.
    ///
    /// # Errors
    /// [`PoolError::OutOfBlocks`]; `out` is then unchanged.
    pub fn allocate_into(&mut self, n: usize, out: &mut Vec<BlockId>) -> Result<(), PoolError> {
        self.allocate_with(n, out, |pool, more, out| pool.evict_into(more, out, |_, _, _| {}))
    }

    /// Allocates `n` blocks. If too few blocks are free, calls `evict` with the number of blocks to
    /// evict. It appends these to `out`, with one reference each.
    #[inline]
    pub(super) fn allocate_with(
        &mut self,
        n: usize,
        out: &mut Vec<BlockId>,
        evict: impl FnOnce(&mut Self, usize, &mut Vec<BlockId>) -> Result<(), PoolError>,
    ) -> Result<(), PoolError> {
        self.check_poison()?;
        self.check_available(n)?;
        let first = out.len();
        let free = n.min(self.allocator.num_free());
        // There are enough free and cached-free blocks. From here on, the call can only fail because of
        // a broken invariant.
        let taken = self.allocator.allocate_into(&mut self.records, free, out);
        self.poison_if_broken(taken)?;
        if n > free {
            evict(self, n - free, out)?;
        }
        self.counters.allocated += n as u64;
        self.notify_changed(&out[first..]);
        Ok(())
    }

    /// Returns an error if `n` is above the number of free and evictable blocks. Poisons the pool if
    /// its counts of blocks do not add up.
    #[inline]
    pub(super) fn check_available(&self, n: usize) -> Result<(), PoolError> {
        let available = self.num_available();
        if n > available {
            let can_ever_fit = n <= self.num_usable();
            return Err(PoolError::OutOfBlocks(Refusal::new(n, available, self.num_fenced(), can_ever_fit)));
        }
        if available.saturating_add(self.allocator.num_held()) == self.num_usable() {
            return Ok(());
        }
        self.check_sums().map_err(|broken| self.broken(broken.to_string()))
    }

    /// Evicts the next `n` blocks of the eviction order that are not pinned. The caller has checked
    /// that they exist. They lose their contents and get one reference each. Pinned blocks that come
    /// before them are only removed from the order.
    #[inline]
    pub(super) fn evict_into(
        &mut self,
        n: usize,
        out: &mut Vec<BlockId>,
        mut gone: impl FnMut(BlockId, Name<'_>, Visibility),
    ) -> Result<(), PoolError> {
        self.counters.evicted += n as u64;
        let end = out.len() + n;
        let watched = self.is_watched();
        while out.len() < end {
            let first = out.len();
            let most = VICTIMS.min(end - first);
            match &mut self.order {
                Order::Lru(lru) if self.pinned_in_order == 0 => {
                    if !lru.evict_run(&mut self.records, most, out, Allocator::hold) {
                        return Err(self.broken(BROKEN_ORDER.into()));
                    }
                    self.allocator.note_held(out.len() - first);
                }
                // No observer needs the cause of each eviction, so one call takes all victims.
                Order::Other(evictor) if self.pinned_in_order == 0 && !watched => {
                    evictor.with_mut(|evictor| evictor.evict_run(most, out));
                    self.hold_victims(&out[first..], most)?;
                }
                _ => {
                    let victim = self.evict_one()?;
                    let visibility = self.unregister(victim, RemovalCause::Evicted(self.order.cause()));
                    gone(victim, self.records.at(victim.get()).name(), visibility);
                    self.allocator.hold_parked(&mut self.records, victim);
                    out.push(victim);
                    continue;
                }
            }
            self.unregister_run(&out[first..], &mut gone);
        }
        Ok(())
    }

    /// Gives each victim its first reference. Poisons the pool if a victim is in use, or if there are
    /// not exactly `n` victims.
    fn hold_victims(&mut self, victims: &[BlockId], n: usize) -> Result<(), PoolError> {
        for &victim in victims {
            match self.records.of_mut(victim).filter(|record| record.references == 0 && record.is_computed())
            {
                Some(record) => Allocator::hold(record),
                None => {
                    self.check_victim(victim)?;
                    return Err(self.broken(BROKEN_ORDER.into()));
                }
            }
        }
        self.allocator.note_held(victims.len());
        if victims.len() == n { Ok(()) } else { Err(self.broken(FEW_VICTIMS.into())) }
    }

    /// Removes blocks from the eviction order up to the first that is not pinned, and returns that
    /// block. Such a block must exist. It is still registered.
    pub(super) fn evict_one(&mut self) -> Result<BlockId, PoolError> {
        while let Some(victim) = self.order.evict(&mut self.records) {
            if !self.check_victim(victim)? {
                return Ok(victim);
            }
        }
        Err(self.broken(FEW_VICTIMS.into()))
    }

    /// Poisons the pool if the evictor returned a block that is in use. Returns whether the block is
    /// pinned.
    #[inline]
    pub(super) fn check_victim(&mut self, victim: BlockId) -> Result<bool, PoolError> {
        let record = self.records.at(victim.get());
        if !record.is_released() || !record.is_computed() {
            return Err(self.broken(format!("B2: the evictor gave up block {victim}, which is in use")));
        }
        let pinned = record.references > 0;
        if pinned {
            self.pinned_in_order = self.pinned_in_order.saturating_sub(1);
        }
        Ok(pinned)
    }
}

/// # References
///
/// A block that has references cannot be allocated.
impl BlockPool {
    /// Adds one reference per id to blocks that already have a reference, for instance for a second
    /// holder of a block table. O(n). A reference of a fence is enough: the KV of a fenced block is
    /// still valid, and the new reference keeps it valid after the fence ends.
    ///
    /// # Errors
    /// [`PoolError::NotHeld`] for a block without references, because cached-free blocks can only be
    /// acquired by a lookup; unknown ids.
    pub fn acquire(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        self.add_references(blocks, true)
    }

    /// Adds one reference to each of these blocks, which already have one. The new references belong to
    /// holders or to pins.
    pub(super) fn add_references(&mut self, blocks: &[BlockId], for_holders: bool) -> Result<(), PoolError> {
        self.check_poison()?;
        self.allocator.acquire(&mut self.records, blocks)?;
        self.notify_changed(blocks);
        if self.fences.num_references() == 0 {
            return Ok(());
        }
        // Removes the new references from the counts and adds them again, block by block. The reason: a
        // block may appear twice in the call. Before its first new reference it may be only fenced or
        // pinned; before the second it has a holder.
        self.allocator.uncount(&mut self.records, blocks);
        for &block in blocks {
            let record = self.records.at(block.get());
            if record.is_fenced() {
                self.fences.unfence();
            }
            let pinned_alone = record.is_released();
            self.allocator.count(&mut self.records, block);
            if pinned_alone && for_holders {
                self.take_back(block);
            }
        }
        Ok(())
    }

    /// Drops one reference per id. Blocks without further references become cached-free if they are
    /// registered and computed, else free. The eviction policy treats the release as their most recent
    /// use. Within one chain the deepest block is evicted first. A block that appears twice loses two
    /// references. O(n).
    ///
    /// # Errors
    /// [`PoolError::NotHeld`] if a block appears more often than it has references outside of fences;
    /// unknown ids.
    pub fn release(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        self.release_each(&blocks.iter())?;
        self.settle_idle(false, self.history)?;
        self.notify_changed(blocks);
        Ok(())
    }

    /// Releases the blocks of a block table, the last block first. Blocks that become free are
    /// allocated again in the order of the table.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub fn release_table(&mut self, table: &[BlockId]) -> Result<(), PoolError> {
        self.release_table_until(table, Until::Now)
    }

    /// Like [`Self::release_table`], for blocks that a running step or transfer may still touch: see
    /// [`Self::release_until`].
    ///
    /// # Errors
    /// As [`Self::release_until`].
    pub fn release_table_until(&mut self, table: &[BlockId], until: Until) -> Result<(), PoolError> {
        self.check_until(until)?;
        if self.holds_back(until) {
            return self.hand_to_fence(&table.iter().rev().copied().collect::<Vec<_>>(), until);
        }
        self.release_each(&table.iter().rev())?;
        self.settle_idle(false, self.history)?;
        self.notify_changed(table);
        Ok(())
    }

    /// Removes references, like [`Self::drop_references`]. In an LRU pool, also adds the leading blocks
    /// that are already sorted to the eviction order, in the same pass. The caller then calls
    /// [`Self::settle_idle`].
    #[inline]
    pub(super) fn release_each<'a>(
        &mut self,
        blocks: &(impl ExactSizeIterator<Item = &'a BlockId> + Clone),
    ) -> Result<(), PoolError> {
        self.check_poison()?;
        let (first, run) = self.release_run(blocks);
        let plain = self.has_plain_releases();
        if run == 0 {
            return self.drop_references(blocks, plain);
        }
        let others = blocks.clone().take(first).chain(blocks.clone().skip(first + run));
        if self.drop_references(&others, plain).is_err() {
            // Undoes the release of the run. The error is found again, with its position among all
            // blocks.
            for Candidate { block, .. } in self.remove_run(run) {
                self.allocator.hold_parked(&mut self.records, block);
            }
            return self.drop_references(blocks, plain);
        }
        if !self.idle.is_empty() || !self.candidates.is_empty() {
            self.merge_run(run);
        }
        Ok(())
    }

    /// Releases computed blocks that lose their only reference, and adds them to the LRU order. Begins
    /// at the first computed block, and stops at the first block that is shared, or that has a higher
    /// depth than the block before it. Returns the number of blocks before this run, and its length.
    #[inline]
    fn release_run<'a>(
        &mut self,
        blocks: &(impl ExactSizeIterator<Item = &'a BlockId> + Clone),
    ) -> (usize, usize) {
        let Self { allocator, records, order: Order::Lru(lru), duplicates, .. } = self else {
            return (0, 0);
        };
        let is_new = |block: &&BlockId| !records.at(block.get()).is_computed();
        let first = blocks.clone().take_while(is_new).count();
        let mut run = blocks.clone();
        if first > 0 {
            run.nth(first - 1);
        }
        let deepest = run.clone().next().map_or(0, |block| records.at(block.get()).depth());
        // If the release has more blocks than the chain of the deepest block, it contains several
        // chains, whose blocks have to be sorted.
        let several = deepest > 0 && run.len() > deepest as usize + 1;
        if several || *duplicates != DuplicatePolicy::Keep {
            return (0, 0);
        }
        let (len, mut most) = (run.len(), u32::MAX);
        let ids = |_| run.next().map_or(END, |block| block.get());
        let len = lru.insert_run(records, len, ids, |record| {
            let depth = record.depth();
            let next = record.is_computed() && depth <= most && Allocator::park(record);
            most = depth;
            next
        });
        allocator.note_parked(len);
        (first, len)
    }

    /// Called when some blocks of a release are in the LRU order, the last `run` blocks of it, and
    /// others are not yet. If one of the others has a higher depth, moves the run to
    /// `self.candidates`, so that [`Self::settle_idle`] sorts all blocks.
    fn merge_run(&mut self, run: usize) {
        let Self { records, order: Order::Lru(lru), idle, candidates, .. } = self else { return };
        let least = lru.last().map_or(0, |block| records.at(block.get()).depth());
        let is_deeper = |block: BlockId| {
            let record = records.at(block.get());
            record.is_computed() && record.depth() > least
        };
        let others = candidates.iter().map(|candidate| candidate.block).chain(idle.iter().copied());
        if others.into_iter().any(is_deeper) {
            let run = self.remove_run(run);
            self.candidates.splice(0..0, run);
        }
    }

    /// Removes the last `run` blocks from the LRU order, and returns them in this order.
    #[cold]
    fn remove_run(&mut self, run: usize) -> Vec<Candidate> {
        let Self { records, order: Order::Lru(lru), .. } = self else { return Vec::new() };
        let mut removed = Vec::with_capacity(run);
        while removed.len() < run
            && let Some(block) = lru.last()
            && lru.remove(records, block)
        {
            removed.push(Candidate { block, depth: records.at(block.get()).depth() });
        }
        removed.reverse();
        removed
    }

    /// Whether each released block becomes cached-free or free independently of other blocks. This is
    /// so if no references of fences or pins exist and duplicates are kept.
    #[inline]
    pub(super) fn has_plain_releases(&self) -> bool {
        self.duplicates == DuplicatePolicy::Keep && self.fences.num_references() == 0
    }

    /// Removes references, and collects the blocks that no longer have a holder for
    /// [`Self::settle_idle`]. With `plain`, computed blocks are added to `self.candidates` and the
    /// others to `self.idle`. Otherwise all of them are added to `self.idle`.
    #[inline]
    pub(super) fn drop_references<'a>(
        &mut self,
        blocks: &(impl Iterator<Item = &'a BlockId> + Clone),
        plain: bool,
    ) -> Result<(), PoolError> {
        self.check_poison()?;
        self.idle.clear();
        self.candidates.clear();
        let Self { allocator, records, idle, candidates, .. } = self;
        let released = allocator.release(records, blocks, |block, record| {
            if plain && record.is_computed() {
                candidates.push(Candidate { block, depth: record.depth() });
            } else {
                idle.push(block);
            }
        });
        let fenced = self.poison_if_broken(released)?;
        self.fences.fence(fenced);
        Ok(())
    }

    /// Checks that the references in `blocks` belong to holders, and not to fences.
    pub(super) fn check_releasable(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        // Releases the references, which returns an error at the first missing one, and then adds them
        // again.
        let released = self.allocator.release(&mut self.records, &blocks.iter(), |_, _| {});
        self.poison_if_broken(released)?;
        self.allocator.recount(&mut self.records, blocks);
        Ok(())
    }

    /// Moves the blocks of `self.idle`, which have no references except pins, to the evictor or to the
    /// free list. Also moves the blocks of `self.candidates` to the evictor. `unpinned` means that pins
    /// have just ended, so the blocks may already be in the eviction order. With `relink`, a block that
    /// has lost its parent gets another block with the parent's content as its new parent.
    #[inline]
    pub(super) fn settle_idle(&mut self, unpinned: bool, relink: bool) -> Result<(), PoolError> {
        let idle = std::mem::take(&mut self.idle);
        let keep = !unpinned && self.duplicates == DuplicatePolicy::Keep;
        for &block in &idle {
            let record = self.records.at(block.get());
            let (references, registered) = (record.references, record.is_registered());
            let plain = keep && references == 0;
            if plain && record.is_computed() {
                self.candidates.push(Candidate { block, depth: record.depth() });
                continue;
            }
            let kept = if plain { false } else { self.settle_rare(block, unpinned) };
            if kept {
                continue;
            }
            if registered {
                // If the policy chose the block for eviction while it was pinned, the observer gets an
                // eviction by the policy as the reason.
                let evicted = RemovalCause::Evicted(EvictionCause::Policy);
                self.unregister(block, if unpinned { evicted } else { RemovalCause::Dropped });
            }
            self.order.forget(block);
            if references == 0 {
                let freed = self.allocator.free(&mut self.records, block);
                self.poison_if_broken(freed)?;
            }
        }
        if relink {
            self.relink_candidates();
        }
        let held = self.order.len();
        match &mut self.order {
            Order::Lru(lru) => lru.insert(&mut self.records, &mut self.candidates),
            Order::Other(evictor) => evictor.with_mut(|evictor| evictor.insert(&mut self.candidates)),
        }
        if self.order.len() != held + self.candidates.len() {
            return Err(self.broken("B2: the evictor did not insert all blocks of a release".into()));
        }
        self.idle = idle;
        Ok(())
    }

    /// Decides whether a released block keeps its content. Used if pins or duplicates may matter.
    /// Returns true if it does. The caller adds the blocks in `self.candidates` to the eviction order.
    #[inline(never)]
    fn settle_rare(&mut self, block: BlockId, unpinned: bool) -> bool {
        let record = *self.records.at(block.get());
        let pinned = record.references > 0;
        if unpinned {
            if self.order.contains(&self.records, block) {
                self.pinned_in_order = self.pinned_in_order.saturating_sub(1);
                return true;
            }
            return false; // the policy has chosen it for eviction, or it has no content
        }
        if pinned && self.candidates.iter().any(|candidate| candidate.block == block) {
            return true; // it was added when another copy was dropped
        }
        if !record.is_registered() {
            return false;
        }
        let may_drop = self.duplicates == DuplicatePolicy::DropOnRelease && !self.order.has_dependents(block);
        let copy = if may_drop { self.index.other_computed_copy(&self.records, block) } else { None };
        let Some(copy) = copy else {
            if record.is_computed() {
                self.candidates.push(Candidate { block, depth: record.depth() });
                self.pinned_in_order += usize::from(pinned);
            }
            return record.is_computed();
        };
        self.counters.duplicates_dropped += 1;
        // The remaining copy is inserted into the eviction order again, so that it is not evicted
        // before the blocks that follow it in a prompt. No computed block follows an uncomputed one.
        if record.is_computed() {
            if self.order.renew(&mut self.records, copy) {
                self.candidates.push(Candidate { block: copy, depth: record.depth() });
            } else {
                self.place_again(copy);
            }
        }
        false
    }

    /// Gives a new parent to each candidate whose parent was removed or is not computed. The new parent
    /// is another block with the parent's content. An uncomputed parent is replaced because lookups do
    /// not use it, and its holder may release it without computing it.
    fn relink_candidates(&mut self) {
        let mut at = 0;
        while let Some(orphan) = self.order.find_orphan(&self.records, &self.candidates[at..]) {
            at += orphan;
            let block = self.candidates[at].block;
            if let Some(hash) = self.index.parent_of(&self.records, block)
                && let group = self.records.at(block.get()).group
                && let Some(parent) = self.index.head_of_name(&self.records, Name { hash: &hash, group })
                // A parent must have a lower position in the chain than its child. Wrong hashes in an
                // image could violate this.
                && self.records.at(parent.get()).depth() < self.records.at(block.get()).depth()
            {
                self.place_again(parent);
                self.order.relink(block, parent);
            }
            at += 1;
        }
    }
}

/// # Fences: blocks that a running step still uses
impl BlockPool {
    /// Releases blocks that a running step may still touch. They remain fenced until
    /// [`Self::complete_step`] is called for that step or for a later one: see [`Self::release_until`].
    /// O(n).
    ///
    /// # Errors
    /// As [`Self::release`].
    pub fn release_after(&mut self, blocks: &[BlockId], step: u64) -> Result<(), PoolError> {
        self.release_until(blocks, Until::Step(step))
    }

    /// Starts a fence, and returns the ticket that names it. Blocks that are released with this ticket
    /// ([`Until::Ticket`]) cannot be allocated before [`Self::end_fence`] is called with it. O(1).
    ///
    /// # Errors
    /// Only if the pool is poisoned.
    pub fn fence(&mut self) -> Result<Ticket, PoolError> {
        self.check_poison()?;
        Ok(self.fences.open())
    }

    /// Releases blocks that may still be read or written until a ticket ends or a step completes. Only
    /// then do they become free or cached-free. Until then, lookups can still hit them. Fences may end
    /// in any order. If the step has already completed, the blocks are released at once. O(n).
    ///
    /// ```
    /// use kvpool::{BlockPool, PoolConfig};
    /// let mut pool = BlockPool::new(PoolConfig { num_blocks: 4, ..PoolConfig::default() })?;
    /// let blocks = pool.allocate(3)?;
    /// let (first, second) = (pool.fence()?, pool.fence()?);
    /// pool.release_until(&blocks[..1], first)?;
    /// pool.release_until(&blocks[1..], second)?;
    /// assert_eq!((pool.num_available(), pool.num_fenced()), (0, 3));
    /// pool.end_fence(second)?;
    /// assert_eq!((pool.num_available(), pool.num_fenced()), (2, 1));
    /// # Ok::<(), kvpool::PoolError>(())
    /// ```
    ///
    /// # Errors
    /// [`PoolError::UnknownTicket`]; as [`Self::release`].
    pub fn release_until(&mut self, blocks: &[BlockId], until: impl Into<Until>) -> Result<(), PoolError> {
        let until = until.into();
        self.check_until(until)?;
        if self.holds_back(until) { self.hand_to_fence(blocks, until) } else { self.release(blocks) }
    }

    fn hand_to_fence(&mut self, blocks: &[BlockId], until: Until) -> Result<(), PoolError> {
        self.check_releasable(blocks)?;
        self.fences.add(&mut self.records, until, blocks);
        self.notify_changed(blocks);
        Ok(())
    }

    /// Ends a fence: removes the references that it holds. Returns their number. O(references removed).
    ///
    /// # Errors
    /// [`PoolError::UnknownTicket`] if the fence has already ended, or belongs to another pool.
    pub fn end_fence(&mut self, ticket: Ticket) -> Result<usize, PoolError> {
        self.check_until(ticket.into())?;
        let ended = self.fences.close(ticket).unwrap_or_default();
        self.end_fences(ended, false)
    }

    /// Whether blocks that are released with this `until` have to be fenced, because the step or the
    /// ticket has not ended yet.
    pub(crate) fn holds_back(&self, until: Until) -> bool {
        match until {
            Until::Now => false,
            Until::Step(step) => !self.fences.is_completed(step),
            Until::Ticket(ticket) => self.fences.is_open(ticket),
        }
    }

    /// Returns an error if `until` is a ticket whose fence has ended or that belongs to another pool.
    pub(crate) fn check_until(&self, until: Until) -> Result<(), PoolError> {
        self.check_poison()?;
        match until {
            Until::Ticket(ticket) if !self.fences.is_open(ticket) => {
                Err(PoolError::UnknownTicket { ticket: ticket.get(), open: self.fences.num_open() })
            }
            _ => Ok(()),
        }
    }

    /// Records that `step` and all earlier steps have finished, and ends their fences. Returns the
    /// number of references that these fences held. O(references removed).
    ///
    /// # Errors
    /// Only if the pool is poisoned. It is not an error to complete a step twice, or a step without
    /// fences.
    pub fn complete_step(&mut self, step: u64) -> Result<usize, PoolError> {
        self.check_poison()?;
        let ended = self.fences.complete(step);
        self.end_fences(ended, false)
    }

    pub(super) fn end_fences(&mut self, ended: Vec<BlockId>, pins: bool) -> Result<usize, PoolError> {
        self.idle.clear();
        self.candidates.clear();
        for &block in &ended {
            if !self.fences.end_one(&mut self.records, block, pins) {
                let references = self.records.at(block.get()).references;
                let reason =
                    format!("F1: a fence of block {block} ends, but the block has {references} references");
                return Err(self.broken(reason));
            }
            if self.allocator.end_fence(&mut self.records, block, pins) {
                self.idle.push(block);
            }
        }
        self.notify_changed(&ended);
        self.settle_idle(pins, self.history)?;
        let count = ended.len();
        self.fences.recycle(ended, pins);
        Ok(count)
    }
}

/// # Accesses, removal of content, and growth
impl BlockPool {
    /// Records that held or cached-free blocks were accessed at `time`, a number on a clock of the
    /// caller. Only eviction policies that order blocks by access time use this call (`last-accessed`
    /// of the crate `kvpool-policies`). A time before the block's latest access has no effect. O(n log
    /// blocks).
    ///
    /// # Errors
    /// [`PoolError::NotHeld`] for a free block, unknown ids; [`PoolError::InvalidConfig`] for a time
    /// that is not a number.
    pub fn mark_accessed(&mut self, blocks: &[BlockId], time: f64) -> Result<(), PoolError> {
        self.check_poison()?;
        if time.is_nan() {
            return Err(PoolError::config("time", time, "a number"));
        }
        for (position, &block) in blocks.iter().enumerate() {
            check_id(block, self.num_blocks(), "accessed")?;
            let held = self.records.at(block.get()).references > 0;
            if !held && !self.order.contains(&self.records, block) {
                let operation = "mark it as accessed";
                return Err(PoolError::NotHeld { block, held: 0, operation, position });
            }
        }
        for &block in blocks {
            self.order.mark_accessed(block, time);
        }
        Ok(())
    }

    /// Removes the cached content of these blocks, so that no lookup finds it. Cached-free blocks
    /// become free. Blocks in use keep their holders, and become free when they are released. Returns
    /// the number of blocks that were registered. O(n).
    ///
    /// # Errors
    /// If an id is unknown.
    pub fn drop_cached(&mut self, blocks: &[BlockId]) -> Result<usize, PoolError> {
        self.check_named(blocks, "evicted")?;
        let mut dropped = 0;
        for &block in blocks {
            let record = self.records.at(block.get());
            if !record.is_registered() {
                continue;
            }
            let idle = record.references == 0;
            let in_order = self.is_pinned_in_order(block);
            if self.order.remove(&mut self.records, block) != (idle || in_order) {
                let reason =
                    format!("B2: the evictor returned a wrong result for the removal of block {block}");
                return Err(self.broken(reason));
            }
            self.pinned_in_order = self.pinned_in_order.saturating_sub(usize::from(in_order));
            self.unregister(block, RemovalCause::Dropped);
            dropped += 1;
            if idle {
                self.free(block)?;
            }
        }
        self.notify_changed(blocks);
        Ok(dropped)
    }

    /// Removes all cached content of this pool. Returns the number of blocks that were registered.
    /// O(usable blocks). If there are several tiers, reset them together (`reset` of `kvpool::Tiers`),
    /// because a swap may bring cached content back from another tier.
    ///
    /// # Errors
    /// [`PoolError::InUse`] while blocks are held. Nothing has changed then. [`Self::bump_epoch`] also
    /// works while blocks are held.
    pub fn reset(&mut self) -> Result<usize, PoolError> {
        self.check_poison()?;
        self.check_idle()?;
        self.forget(ClearCause::Reset, false)
    }

    pub(crate) fn check_idle(&self) -> Result<(), PoolError> {
        let fenced = self.num_fenced();
        match self.allocator.num_held() {
            0 => Ok(()),
            held => Err(PoolError::InUse { active: held.saturating_sub(fenced), fenced }),
        }
    }

    /// Starts a new epoch, for instance after a change of weights. Contents that were registered in
    /// earlier epochs are never matched again. Chains of earlier epochs can no longer be registered, so
    /// running requests keep their blocks but do not add them to the cache. Returns the new epoch.
    /// O(usable blocks).
    ///
    /// # Errors
    /// Only if the pool is poisoned.
    pub fn bump_epoch(&mut self) -> Result<u64, PoolError> {
        self.check_poison()?;
        let ended = ClearCause::Epoch(self.epoch);
        self.epoch += 1;
        self.forget(ended, false)?;
        Ok(self.epoch)
    }

    /// Removes all cached content. If `behind` is false, the blocks that become free are allocated
    /// next. If it is true, they are allocated after all blocks that were already free, in the order of
    /// eviction.
    pub(super) fn forget(&mut self, cause: ClearCause, behind: bool) -> Result<usize, PoolError> {
        let registered = self.index.num_registered();
        while let Some(block) = self.order.evict(&mut self.records) {
            let pinned = self.check_victim(block)?;
            self.index.remove(&mut self.records, block);
            if !pinned && behind {
                self.free_behind(block)?;
            } else if !pinned {
                self.free(block)?;
            }
        }
        if self.order.len() > 0 {
            return Err(self.broken("B2: the evictor has fewer blocks than it reports".into()));
        }
        self.order.clear();
        self.index.clear(&mut self.records);
        self.notify_cleared(cause);
        Ok(registered)
    }

    /// Adds a block to the front of the free list. The block must not be on a list.
    pub(super) fn free(&mut self, block: BlockId) -> Result<(), PoolError> {
        let freed = self.allocator.free(&mut self.records, block);
        self.poison_if_broken(freed)
    }

    /// Grows the pool to `num_blocks` blocks, including the null block. The new blocks are allocated
    /// last. O(blocks), because the index is rebuilt; all other parts take O(new blocks).
    ///
    /// # Errors
    /// [`PoolError::Shrink`] for fewer blocks than the pool has, or for more than a pool can have.
    pub fn resize(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.check_poison()?;
        let from = self.num_blocks();
        if num_blocks < from || num_blocks > MAX_BLOCKS {
            return Err(PoolError::Shrink { from, to: num_blocks, max: MAX_BLOCKS });
        }
        // Reserves all memory first, so that nothing can fail later. The records grow last, because the
        // pool's size is their number.
        try_reserve(&mut self.records, num_blocks)?;
        self.order.grow(num_blocks)?;
        self.index.grow(&self.records, num_blocks)?;
        self.observer.as_mut().map_or(Ok(()), |observer| observer.grow(num_blocks))?;
        grow(&mut self.records, num_blocks)?;
        self.allocator.grow(&mut self.records, from);
        Ok(())
    }
}
