//! Allocation, references, fences, eviction, reset, epochs and growth: the lifetime half of [`BlockPool`].

use super::observe::{ClearCause, RemovalCause};
use super::order::Order;
use super::{BlockPool, DuplicatePolicy};
use crate::allocator::Allocator;
use crate::block::{BlockId, MAX_BLOCKS};
use crate::error::{PoolError, Refusal};
use crate::evictor::Candidate;
use crate::fence::{Ticket, Until};
use crate::free_list::check_id;
use crate::list::try_reserve;
use crate::prefix_index::Visibility;
use crate::record::{ByBlock, Name, grow};
use crate::retention::EvictionCause;

/// Victims of one turn. What is done with each is done while its line is near: a request's blocks may
/// not fit the nearest cache.
const VICTIMS: usize = 64;

const FEW_VICTIMS: &str = "B2: the evictor has fewer blocks than it says";
const BROKEN_ORDER: &str =
    "B2, L1: the order has a block that is in use, or links that do not mirror each other";

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
        self.allocate_with(n, out, |pool, more, out| pool.evict_into(more, out, |_, _, _| {}))
    }

    /// The same; `evict` appends so many victims, of which there are as many, each with one reference.
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
        // Enough are free and cached: whatever fails from here on is an invariant that broke.
        let taken = self.allocator.allocate_into(&mut self.records, free, out);
        self.sound(taken)?;
        if n > free {
            evict(self, n - free, out)?;
        }
        self.counters.allocated += n as u64;
        self.tell_changed(&out[first..]);
        Ok(())
    }

    /// Refuses to hand out more blocks than are free or evictable, or any where those do not add up.
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

    /// The next `n` victims, of which there are as many, without their contents, each with one
    /// reference. Pinned blocks whose turn comes before only leave the order.
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
                // Nobody asks of each why it goes.
                Order::Other(evictor) if self.pinned_in_order == 0 && !watched => {
                    evictor.tell(|evictor| evictor.evict_run(most, out));
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

    /// The first reference of victims that no pin holds, of which there have to be `n`.
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

    /// The next victim that no pin holds, of which there is one. It is registered still.
    pub(super) fn evict_one(&mut self) -> Result<BlockId, PoolError> {
        while let Some(victim) = self.order.evict(&mut self.records) {
            if !self.check_victim(victim)? {
                return Ok(victim);
            }
        }
        Err(self.broken(FEW_VICTIMS.into()))
    }

    /// Poisons the pool if the evictor gave up what it cannot have held. Returns whether pins hold it.
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

    /// Adds one reference per id to blocks that somebody holds: a second holder of a block table. O(n).
    /// A fence counts as a holder: the KV of a fenced block is whole until its step completes, and then
    /// it is the new holder's.
    ///
    /// # Errors
    /// [`PoolError::NotHeld`] for a block without references (only a lookup takes cached-free blocks);
    /// unknown ids.
    pub fn acquire(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        self.add_references(blocks, true)
    }

    /// One reference more to each of some held blocks, for holders or for pins.
    pub(super) fn add_references(&mut self, blocks: &[BlockId], for_holders: bool) -> Result<(), PoolError> {
        self.check_poison()?;
        self.allocator.acquire(&mut self.records, blocks)?;
        self.tell_changed(blocks);
        if self.fences.num_references() == 0 {
            return Ok(());
        }
        // Once more, one by one: a block that is named twice is fenced, or pinned alone, only before
        // the first of them.
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
    /// registered and computed, else free; for eviction they count as used last at this moment, of one
    /// chain the deepest as the longest unused. A block named twice loses two references. O(n).
    ///
    /// # Errors
    /// [`PoolError::NotHeld`] if the call names a block more often than it has references outside of
    /// fences; unknown ids.
    pub fn release(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        self.drop_references(&blocks.iter(), self.has_plain_releases())?;
        self.settle_idle(false, self.history)?;
        self.tell_changed(blocks);
        Ok(())
    }

    /// Releases a block table, tail first: blocks that become free are handed out again in the table's order.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub fn release_table(&mut self, table: &[BlockId]) -> Result<(), PoolError> {
        self.release_table_until(table, Until::Now)
    }

    /// [`Self::release_table`] of blocks that a running step or transfer may still touch: see
    /// [`Self::release_until`].
    ///
    /// # Errors
    /// As this.
    pub fn release_table_until(&mut self, table: &[BlockId], until: Until) -> Result<(), PoolError> {
        self.check_until(until)?;
        if self.holds_back(until) {
            return self.hand_to_fence(&table.iter().rev().copied().collect::<Vec<_>>(), until);
        }
        self.drop_references(&table.iter().rev(), self.has_plain_releases())?;
        self.settle_idle(false, self.history)?;
        self.tell_changed(table);
        Ok(())
    }

    /// Whether what a released block becomes depends on nothing but the block. With pins, what gets a
    /// place in the order depends on what got one before.
    #[inline]
    pub(super) fn has_plain_releases(&self) -> bool {
        self.duplicates == DuplicatePolicy::Keep && self.fences.num_references() == 0
    }

    /// Drops references. Of the blocks that nobody holds any more those that are computed are in
    /// `self.candidates` then, if the release is `plain`, and the others, or all, in `self.idle`: for
    /// [`Self::settle_idle`].
    #[inline]
    pub(super) fn drop_references<'a>(
        &mut self,
        blocks: &(impl ExactSizeIterator<Item = &'a BlockId> + Clone),
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
        let fenced = self.sound(released)?;
        self.fences.fence(fenced);
        Ok(())
    }

    /// Checks that holders, as opposed to fences, have the references that `blocks` names.
    pub(super) fn check_releasable(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        // A release that is taken back at once counts them, and finds the first that is not there.
        let released = self.allocator.release(&mut self.records, &blocks.iter(), |_, _| {});
        self.sound(released)?;
        self.allocator.recount(&mut self.records, blocks);
        Ok(())
    }

    /// Sends the blocks of `self.idle`, which only pins hold, or nobody, where they belong: to the
    /// evictor, with those that are in `self.candidates` already, or to the free list. Whose last pin
    /// has just ended has been there. With `relink`, what hangs on a content that is gone is given
    /// another copy of it.
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
                // Whose pins end loses what it was kept for to the policy: its turn had come.
                let evicted = RemovalCause::Evicted(EvictionCause::Policy);
                self.unregister(block, if unpinned { evicted } else { RemovalCause::Dropped });
            }
            self.order.forget(block);
            if references == 0 {
                // It is on no list: a list that has it is broken.
                let freed = self.allocator.free(&mut self.records, block);
                self.sound(freed)?;
            }
        }
        if relink {
            self.relink_candidates();
        }
        let held = self.order.len();
        match &mut self.order {
            Order::Lru(lru) => lru.insert(&mut self.records, &mut self.candidates),
            Order::Other(evictor) => evictor.tell(|evictor| evictor.insert(&mut self.candidates)),
        }
        if self.order.len() != held + self.candidates.len() {
            return Err(self.broken("B2: the evictor has not taken the blocks that it was given".into()));
        }
        self.idle = idle;
        Ok(())
    }

    /// What becomes of a released block where pins or duplicates matter. Returns whether its content
    /// stays; what was put in `self.candidates` gets a place in the order.
    #[inline(never)]
    fn settle_rare(&mut self, block: BlockId, unpinned: bool) -> bool {
        let record = *self.records.at(block.get());
        let pinned = record.references > 0;
        if unpinned {
            if self.order.contains(&self.records, block) {
                self.pinned_in_order = self.pinned_in_order.saturating_sub(1);
                return true;
            }
            return false; // its turn has come, or it has nothing to be kept for
        }
        if pinned && self.candidates.iter().any(|candidate| candidate.block == block) {
            return true; // placed with a copy that was dropped
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
        // What was never computed had nothing computed behind it.
        if record.is_computed() {
            if self.order.renew(&mut self.records, copy) {
                self.candidates.push(Candidate { block: copy, depth: record.depth() });
            } else {
                self.place_again(copy);
            }
        }
        false
    }

    /// Names another copy of a parent's content to blocks whose own parent is gone, or was never
    /// computed: its holder may give it up uncomputed, and until then it protects nothing that a lookup
    /// needs.
    fn relink_candidates(&mut self) {
        let mut at = 0;
        while let Some(orphan) = self.order.find_orphan(&self.records, &self.candidates[at..]) {
            at += orphan;
            let block = self.candidates[at].block;
            if let Some(hash) = self.index.parent_of(&self.records, block)
                && let group = self.records.at(block.get()).group
                && let Some(parent) = self.index.head_of_name(&self.records, Name { hash: &hash, group })
                // No block waits for one that is not before it, whatever hashes an image has brought.
                && self.records.at(parent.get()).depth() < self.records.at(block.get()).depth()
            {
                self.place_again(parent);
                self.order.relink(block, parent);
            }
            at += 1;
        }
    }

    /// Releases blocks that a running step may still touch: [`Self::release_until`]
    /// [`Self::complete_step`] is called for that step, or for a later one. O(n).
    ///
    /// # Errors
    /// As [`Self::release`].
    pub fn release_after(&mut self, blocks: &[BlockId], step: u64) -> Result<(), PoolError> {
        self.release_until(blocks, Until::Step(step))
    }

    /// Opens a fence: what is released until its ticket stays out of reach until [`Self::end_fence`]. O(1).
    ///
    /// # Errors
    /// Only if the pool is poisoned.
    pub fn fence(&mut self) -> Result<Ticket, PoolError> {
        self.check_poison()?;
        Ok(self.fences.open())
    }

    /// Releases blocks that may still be read or written until a ticket ends, or a step completes: then
    /// they become free or cached-free, and not before; until then a hit on them still succeeds.
    /// Tickets end in any order; of a step that has completed they are released at once. O(n).
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

    /// Hands one reference of each block to a fence.
    fn hand_to_fence(&mut self, blocks: &[BlockId], until: Until) -> Result<(), PoolError> {
        self.check_releasable(blocks)?;
        self.fences.add(&mut self.records, until, blocks);
        self.tell_changed(blocks);
        Ok(())
    }

    /// Ends a fence. Returns how many references it held. O(those references).
    ///
    /// # Errors
    /// [`PoolError::UnknownTicket`] for a ticket that is not open: it has ended already, or is of
    /// another pool.
    pub fn end_fence(&mut self, ticket: Ticket) -> Result<usize, PoolError> {
        self.check_until(ticket.into())?;
        let ended = self.fences.close(ticket).unwrap_or_default();
        self.end_fences(ended, false)
    }

    /// Whether what is released until then is held back.
    pub(crate) fn holds_back(&self, until: Until) -> bool {
        match until {
            Until::Now => false,
            Until::Step(step) => !self.fences.is_completed(step),
            Until::Ticket(ticket) => self.fences.is_open(ticket),
        }
    }

    /// Refuses a ticket that is not open.
    pub(crate) fn check_until(&self, until: Until) -> Result<(), PoolError> {
        self.check_poison()?;
        match until {
            Until::Ticket(ticket) if !self.fences.is_open(ticket) => {
                Err(PoolError::UnknownTicket { ticket: ticket.get(), open: self.fences.num_open() })
            }
            _ => Ok(()),
        }
    }

    /// Ends the fences of `step` and of all earlier steps. Returns how many references they held.
    /// O(those references).
    ///
    /// # Errors
    /// Only if the pool is poisoned. Completing a step twice, or one that fenced nothing, is fine.
    pub fn complete_step(&mut self, step: u64) -> Result<usize, PoolError> {
        self.check_poison()?;
        let ended = self.fences.complete(step);
        self.end_fences(ended, false)
    }

    /// Drops the references of a fence that has ended, or of all pins. Returns how many there were.
    pub(super) fn end_fences(&mut self, ended: Vec<BlockId>, pins: bool) -> Result<usize, PoolError> {
        self.idle.clear();
        self.candidates.clear();
        for &block in &ended {
            if !self.fences.end_one(&mut self.records, block, pins) {
                let references = self.records.at(block.get()).references;
                let reason = format!("F1: a fence of block {block} ends, which has {references} references");
                return Err(self.broken(reason));
            }
            if self.allocator.end_fence(&mut self.records, block, pins) {
                self.idle.push(block);
            }
        }
        self.tell_changed(&ended);
        self.settle_idle(pins, self.history)?;
        let count = ended.len();
        self.fences.recycle(ended, pins);
        Ok(count)
    }

    /// Says that held or cached-free blocks were accessed at `time`, on a clock of the caller's; only
    /// policies that order by such times listen (`last-accessed`, of the crate `kvpool-policies`). An
    /// access is never moved back in time. O(n log blocks).
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

    /// Drops blocks from the index by id: no lookup finds them any more. Cached-free ones become free;
    /// held ones stay with their holders and become free when released. Returns how many were
    /// registered. O(n).
    ///
    /// # Errors
    /// Unknown ids.
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
                let reason = format!("B2: the evictor is wrong about whether it held block {block}");
                return Err(self.broken(reason));
            }
            self.pinned_in_order = self.pinned_in_order.saturating_sub(usize::from(in_order));
            self.unregister(block, RemovalCause::Dropped);
            dropped += 1;
            if idle {
                self.free(block)?;
            }
        }
        self.tell_changed(blocks);
        Ok(dropped)
    }

    /// Forgets all cached content of this pool. Returns how many blocks were registered. O(usable
    /// blocks). A pool of several tiers is reset with the others (`reset` of `kvpool::Tiers`): what one
    /// of them keeps may be swapped in again.
    ///
    /// # Errors
    /// [`PoolError::InUse`] while blocks are held; then nothing has changed. [`Self::bump_epoch`]
    /// always succeeds.
    pub fn reset(&mut self) -> Result<usize, PoolError> {
        self.check_poison()?;
        self.check_idle()?;
        self.forget(ClearCause::Reset, false)
    }

    /// Refuses while blocks are held.
    pub(crate) fn check_idle(&self) -> Result<(), PoolError> {
        let fenced = self.num_fenced();
        match self.allocator.num_held() {
            0 => Ok(()),
            held => Err(PoolError::InUse { active: held.saturating_sub(fenced), fenced }),
        }
    }

    /// Starts a new epoch, for instance after a change of weights: nothing registered before is ever
    /// matched again, and chains of earlier epochs can no longer be registered, so running requests
    /// keep their blocks but never publish them. Returns the new epoch. O(usable blocks).
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

    /// Forgets all contents. What is free by it is handed out next, or, with `behind`, after all that
    /// was free before, in the order of eviction.
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
            return Err(self.broken("B2: the evictor has fewer blocks than it says".into()));
        }
        self.order.clear();
        self.index.clear(&mut self.records);
        self.tell_cleared(cause);
        Ok(registered)
    }

    /// Puts a block that no part has any more on the free list, to be handed out next.
    pub(super) fn free(&mut self, block: BlockId) -> Result<(), PoolError> {
        let freed = self.allocator.free(&mut self.records, block);
        self.sound(freed)
    }

    /// Grows the pool to `num_blocks` blocks, null block included; the new ones are handed out last.
    /// O(new blocks), and O(blocks) for the index.
    ///
    /// # Errors
    /// [`PoolError::Shrink`] for fewer blocks than there are, or more than a pool can have.
    pub fn resize(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.check_poison()?;
        let from = self.num_blocks();
        if num_blocks < from || num_blocks > MAX_BLOCKS {
            return Err(PoolError::Shrink { from, to: num_blocks, max: MAX_BLOCKS });
        }
        // Memory for everything first: the blocks, which are handed out then, come last.
        try_reserve(&mut self.records, num_blocks)?;
        self.order.grow(num_blocks)?;
        self.index.grow(&self.records, num_blocks)?;
        self.observer.as_mut().map_or(Ok(()), |observer| observer.grow(num_blocks))?;
        grow(&mut self.records, num_blocks)?;
        self.allocator.grow(&mut self.records, from);
        Ok(())
    }
}
