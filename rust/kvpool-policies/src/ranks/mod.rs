//! `Ranks`: the order of a policy, with retention around it.
//!
//! This module stores the rank of every block. The policy orders the blocks of normal rank, and this
//! module has a list for each other rank. [`crate::Closed`] documents the order of the ranks, and
//! decides whether a victim may be evicted.
//!
//! Without retention the arrays are empty, and the policy orders all blocks.
//!
//! Invariants, which [`Ranks::check_invariants`] checks, and [`Ranks::check_block`] for each block:
//! - R1: a block of normal rank is in the policy's order, or set aside for its tenant. A block of any
//!   other rank is on the list of that rank, unless it is in use, or was returned by [`Ranks::pop`] and
//!   not put back.
//! - R2: the counts of tenants' blocks are correct.
//! - R3: the deadlines are a heap.
//! - R4: at most `pin_budget` blocks are pinned.
//!
//! Costs: one branch per call without retention. With retention, O(1), and O(log blocks) to change a
//! deadline. Each time that a block is put into the order, it can be set aside at most once because of
//! its tenant's floor.

mod deadlines;
mod tenants;

use std::ops::Range;

use deadlines::Deadlines;
use tenants::{NO_TENANT, Tenants};

use crate::block_lists::BlockLists;
use kvpool::parts::{ensure, no_clock, try_reserve};
use kvpool::retention::{
    EvictionCause, Hint, Keep, Priority, Retention, RetentionConfig, RetentionStats, SavedRetention,
    TenantId, TenantLimits, Then, Ttl,
};
use kvpool::{BlockId, Candidate, Content, InvariantViolation, Policy, PoolError, Release};

/// The rank of demoted blocks. Above it are priorities 0 to 100, and then pinned blocks. Ranks are also
/// numbers of lists. The list of [`NORMAL`] is always empty, because the policy orders those blocks.
const DEMOTED: u8 = 0;
const NORMAL: u8 = Priority::NORMAL.get() + 1;
const HIGHEST: u8 = Priority::MAX.get() + 1;
const PINNED: u8 = HIGHEST + 1;
const NUM_RANKS: usize = PINNED as usize + 1;

/// The retention of a block: its rank, its tenant and its time to live.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The idle time to live in seconds. It is negative if the block has none.
    idle_ttl: f64,
    rank: u8,
    tenant: u8,
    then: Then,
    /// Whether the block's time to live has ended, and since then the block was not used and got no
    /// other retention.
    expired: bool,
}

const NO_RETENTION: Entry =
    Entry { idle_ttl: -1.0, rank: NORMAL, tenant: NO_TENANT, then: Then::Normal, expired: false };

impl Entry {
    /// Returns the cause that is reported if the block is evicted now.
    const fn cause(self) -> EvictionCause {
        match self.rank {
            _ if self.expired => EvictionCause::Expired,
            DEMOTED => EvictionCause::EndOfLife,
            NORMAL => EvictionCause::Policy,
            _ => EvictionCause::Priority,
        }
    }
}

/// Checks that all pins and floors together fit into a pool of `usable` blocks, and that no tenant has
/// two limits.
fn check(config: &RetentionConfig, usable: usize) -> Result<(), PoolError> {
    let mut tenants: Vec<_> = config.tenants.iter().map(|limits| limits.tenant).collect();
    tenants.sort_unstable();
    if let Some(twice) = tenants.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(PoolError::config("tenants", format!("tenant {} twice", twice[0].0), "each tenant once"));
    }
    if tenants.len() > RetentionConfig::MAX_TENANTS {
        let most = format!("at most {} tenants with limits", RetentionConfig::MAX_TENANTS);
        return Err(PoolError::config("tenants", tenants.len(), most));
    }
    let mut reserved = config.pin_budget;
    for &TenantLimits { tenant, floor, ceiling } in &config.tenants {
        reserved = reserved.saturating_add(floor);
        if let Some(ceiling) = ceiling.filter(|&ceiling| ceiling < floor) {
            let at_least = format!("at least the floor of tenant {}, {floor}", tenant.0);
            return Err(PoolError::config("ceiling", ceiling, at_least));
        }
    }
    if reserved > usable {
        let most = format!("at most the pool's {usable} usable blocks");
        return Err(PoolError::config("pin_budget + floors", reserved, most));
    }
    Ok(())
}

/// The order of a policy, with the ranks of retention around it if the pool has retention.
#[derive(Clone, Debug)]
pub(super) struct Ranks<P> {
    pub(super) policy: P,
    pub(super) has_retention: bool,
    entries: Vec<Entry>,
    lists: BlockLists,
    /// One bit per rank, which is set if blocks are on its list.
    filled: u128,
    deadlines: Deadlines,
    tenants: Tenants,
    pin_budget: usize,
    /// The number of blocks of each rank, including blocks in use.
    counts: [u32; NUM_RANKS],
    /// The latest time that the caller passed, in seconds.
    pub(super) now: Option<f64>,
    expired: u64,
    /// The cause that is reported for the block that was removed last.
    pub(super) cause: EvictionCause,
}

impl<P: Policy> Ranks<P> {
    pub(super) fn new(
        policy: P,
        num_blocks: usize,
        config: Option<&RetentionConfig>,
    ) -> Result<Self, PoolError> {
        let (has_retention, none) = (config.is_some(), RetentionConfig::default());
        let config = config.unwrap_or(&none);
        check(config, num_blocks.saturating_sub(1))?;
        let mut ranks = Self {
            policy,
            has_retention,
            entries: Vec::new(),
            lists: BlockLists::new(if has_retention { NUM_RANKS } else { 0 }, 0)?,
            filled: 0,
            deadlines: Deadlines::default(),
            tenants: Tenants::new(config.tenants.clone())?,
            pin_budget: config.pin_budget,
            counts: [0; NUM_RANKS],
            now: None,
            expired: 0,
            cause: EvictionCause::Policy,
        };
        ranks.grow(num_blocks)?;
        Ok(ranks)
    }

    pub(super) fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        if self.has_retention {
            try_reserve(&mut self.entries, num_blocks)?;
            self.lists.grow(num_blocks)?;
            self.deadlines.grow(num_blocks)?;
            self.tenants.grow(num_blocks)?;
            self.entries.resize(num_blocks.max(self.entries.len()), NO_RETENTION);
        }
        self.policy.grow(num_blocks)
    }

    fn entry(&self, block: BlockId) -> Entry {
        self.entries.get(block.index()).copied().unwrap_or(NO_RETENTION)
    }

    pub(super) fn set_expired(&mut self, block: BlockId, expired: bool) {
        if let Some(entry) = self.entries.get_mut(block.index()) {
            entry.expired = expired;
        }
    }

    fn set_rank(&mut self, block: BlockId, rank: u8) {
        if let Some(entry) = self.entries.get_mut(block.index()) {
            let before = std::mem::replace(&mut entry.rank, rank);
            self.count_less(before);
            self.counts[usize::from(rank)] += 1;
        }
    }

    fn count_less(&mut self, rank: u8) {
        let count = &mut self.counts[usize::from(rank)];
        *count = count.saturating_sub(1);
    }

    fn mark_filled(&mut self, list: usize) {
        let rest = self.filled & !(1 << list);
        self.filled = rest | u128::from(!self.lists.is_empty(list)) << list;
    }

    /// Adds `block` to the order of its rank, and to the idle blocks of its tenant. If `next` is true,
    /// the block becomes the next victim of its rank, otherwise the last.
    fn put(&mut self, block: BlockId, next: bool) {
        let Entry { rank, tenant, .. } = self.entry(block);
        if rank != NORMAL {
            self.lists.push(rank.into(), block, next);
            self.mark_filled(rank.into());
        } else if next {
            self.policy.unpop(block);
        } else {
            self.policy.release(block);
        }
        if rank != PINNED {
            self.tenants.list(tenant, block, next);
        }
    }

    /// Removes `block` from the list of its rank, or from the blocks that are set aside.
    fn unlist(&mut self, block: BlockId) {
        if let Some(list) = self.lists.remove(block) {
            self.mark_filled(list);
        }
        self.tenants.sheltered.remove(block);
    }

    /// Registers the contents of consecutive blocks of one chain.
    pub(super) fn admit_all(&mut self, run: &[(BlockId, Content)]) {
        if self.has_retention {
            self.counts[usize::from(NORMAL)] += run.len() as u32;
        }
        self.policy.admit_all(run);
    }

    pub(super) fn hit(&mut self, block: BlockId, content: Content) {
        if !self.has_retention {
            return self.policy.hit(block);
        }
        let Entry { rank, tenant, idle_ttl, .. } = self.entry(block);
        self.set_expired(block, false);
        let was_idle = self.tenants.idle.remove(block).is_some();
        let was_sheltered = self.tenants.sheltered.remove(block).is_some();
        if was_sheltered && rank == NORMAL {
            self.policy.unpop(block);
        }
        if idle_ttl >= 0.0 {
            self.deadlines.end(block);
        }
        if rank != NORMAL {
            self.unlist(block);
        }
        if rank == DEMOTED {
            self.set_rank(block, NORMAL);
            self.policy.admit(block, content);
        }
        if was_idle
            && !was_sheltered
            && let Some(spared) = self.tenants.spare_another(tenant)
        {
            self.unpop(spared);
        }
        if matches!(rank, NORMAL | DEMOTED) {
            self.policy.hit(block);
        }
    }

    pub(super) fn hit_all(&mut self, blocks: &[BlockId], content: impl Fn(BlockId) -> Content) {
        if !self.has_retention {
            return self.policy.hit_all(blocks);
        }
        blocks.iter().for_each(|&block| self.hit(block, content(block)));
    }

    pub(super) fn release_all(&mut self, blocks: &[Candidate]) {
        if !self.has_retention {
            return self.policy.release_all(blocks);
        }
        blocks.iter().for_each(|candidate| self.release(candidate.block));
    }

    pub(super) fn release(&mut self, block: BlockId) {
        if !self.has_retention {
            return self.policy.release(block);
        }
        let idle_ttl = self.entry(block).idle_ttl;
        if let Some(now) = self.now.filter(|_| idle_ttl >= 0.0) {
            self.deadlines.set(block, now + idle_ttl);
        }
        self.unlist(block);
        self.put(block, false);
    }

    /// Removes and returns the next victim. `idle` returns whether a block has no references. It is
    /// needed because a policy may have blocks in use in its order, and floors do not apply to those.
    pub(super) fn pop(&mut self, idle: impl Fn(BlockId) -> bool) -> Option<BlockId> {
        if !self.has_retention {
            return self.policy.pop();
        }
        let demoted = self.pop_first(DEMOTED..DEMOTED + 1);
        if demoted.is_none()
            && let Some(block) = self.tenants.above_ceiling()
        {
            self.cause = EvictionCause::TenantCeiling;
            self.take(block);
            return self.tenants.idle.list_of(block).is_none().then_some(block);
        }
        let next = demoted
            .or_else(|| self.pop_ranked(idle))
            .or_else(|| self.tenants.pop_sheltered())
            .or_else(|| self.pop_first(PINNED..PINNED + 1))?;
        self.tenants.idle.remove(next);
        self.cause = self.entry(next).cause();
        Some(next)
    }

    /// Removes and returns the next victim among the blocks with a priority. For normal priority, the
    /// policy decides. Blocks whose tenant is not above its floor are set aside.
    fn pop_ranked(&mut self, idle: impl Fn(BlockId) -> bool) -> Option<BlockId> {
        loop {
            let next = self
                .pop_first(DEMOTED + 1..NORMAL)
                .or_else(|| self.policy.pop())
                .or_else(|| self.pop_first(NORMAL + 1..PINNED))?;
            if !(idle(next) && self.tenants.shelter(self.entry(next).tenant, next)) {
                return Some(next);
            }
        }
    }

    /// Removes and returns the front block of the lowest rank in `ranks` that has blocks.
    fn pop_first(&mut self, ranks: Range<u8>) -> Option<BlockId> {
        let within = self.filled & ((1 << ranks.end) - (1 << ranks.start));
        if within == 0 {
            return None;
        }
        let block = self.lists.front(within.trailing_zeros() as usize)?;
        self.unlist(block);
        // If links are damaged, the pop may leave the block on its list. Such a block is not evicted.
        self.lists.list_of(block).is_none().then_some(block)
    }

    /// Removes `block` from the order, wherever it is, with the same effects as [`Self::pop`].
    fn take(&mut self, block: BlockId) {
        self.tenants.idle.remove(block);
        // A block that is set aside was already removed from the policy's order.
        if self.entry(block).rank == NORMAL && self.tenants.sheltered.list_of(block).is_none() {
            self.policy.take(block);
        }
        self.unlist(block);
    }

    pub(super) fn unpop(&mut self, block: BlockId) {
        if !self.has_retention {
            return self.policy.unpop(block);
        }
        self.put(block, true);
    }

    #[inline]
    pub(super) fn evicted(&mut self, block: BlockId, content: Content) {
        if !self.has_retention || self.end(block) == NORMAL {
            self.policy.evicted(block, content);
        }
    }

    pub(super) fn forget(&mut self, block: BlockId) {
        self.unlist(block);
        self.end(block);
        self.policy.forget(block);
    }

    /// Resets the retention of `block`, because it has lost its content. Returns the rank that the
    /// block had.
    fn end(&mut self, block: BlockId) -> u8 {
        if !self.has_retention {
            return NORMAL;
        }
        self.tenants.idle.remove(block);
        self.deadlines.end(block);
        let Entry { rank, tenant, .. } = self.entry(block);
        if let Some(entry) = self.entries.get_mut(block.index()) {
            *entry = NO_RETENTION;
        }
        self.count_less(rank);
        self.tenants.lose(tenant);
        rank
    }

    pub(super) fn clear(&mut self) {
        self.entries.fill(NO_RETENTION);
        self.lists.clear();
        self.filled = 0;
        self.deadlines.clear();
        self.counts = [0; NUM_RANKS];
        self.tenants.clear();
        self.policy.clear();
    }

    /// Sets the retention of `block` and moves it to its new rank. `idle` is whether the block has no
    /// references, so that it is in the order.
    pub(super) fn retain(
        &mut self,
        block: BlockId,
        content: Content,
        idle: bool,
        retention: Retention,
    ) -> Result<Hint, PoolError> {
        let deadline = match (retention.ttl, self.now) {
            (None, _) => None,
            (Some(Ttl::Idle(_)), Some(_)) if !idle => None, // its release will start the time to live
            (Some(Ttl::Idle(seconds) | Ttl::Absolute(seconds)), Some(now)) => Some(now + seconds),
            (Some(_), None) => return Err(no_clock()),
        };
        let before = self.entry(block).rank;
        let full = self.counts[usize::from(PINNED)] as usize >= self.pin_budget && before != PINNED;
        let (rank, hint) = match retention.keep {
            Keep::Demoted => (DEMOTED, Hint::Accepted),
            Keep::Priority(priority) => (priority.get() + 1, Hint::Accepted),
            Keep::Pinned if full => (HIGHEST, Hint::Clipped),
            Keep::Pinned => (PINNED, Hint::Accepted),
        };
        match deadline {
            Some(deadline) => self.deadlines.set(block, deadline),
            None => {
                self.deadlines.end(block);
            }
        }
        if let Some(entry) = self.entries.get_mut(block.index()) {
            entry.then = retention.then;
            // A demoted block whose time to live has ended still counts as expired if it is demoted
            // again.
            entry.expired &= before == DEMOTED && rank == DEMOTED;
            entry.idle_ttl = match retention.ttl {
                Some(Ttl::Idle(seconds)) => seconds,
                _ => NO_RETENTION.idle_ttl,
            };
        }
        if before != rank {
            self.move_to(rank, block, content, idle);
        }
        Ok(hint)
    }

    /// Moves a block to the back of the rank `rank`.
    fn move_to(&mut self, rank: u8, block: BlockId, content: Content, idle: bool) {
        self.tenants.idle.remove(block);
        self.unlist(block);
        if self.entry(block).rank == NORMAL {
            self.policy.forget(block);
        }
        self.set_rank(block, rank);
        if rank == NORMAL {
            self.policy.admit(block, content);
        }
        if idle {
            if rank == NORMAL {
                self.policy.begin_release(&Release::default());
            }
            self.put(block, false);
        }
    }

    /// Removes a deadline that has passed. Returns its block, and the retention that the block gets
    /// next.
    pub(super) fn pop_expired(&mut self) -> Option<(BlockId, Retention)> {
        let block = self.deadlines.pop_due(self.now?)?;
        self.expired += 1;
        Some(match self.entry(block).then {
            Then::Normal => (block, Retention::NORMAL),
            Then::Demote => (block, Retention::END_OF_LIFE),
        })
    }

    pub(super) fn set_time(&mut self, now: f64) -> Result<(), PoolError> {
        if !now.is_finite() {
            return Err(PoolError::config("now", now, "a number of seconds"));
        }
        if let Some(before) = self.now.filter(|&before| now < before) {
            return Err(PoolError::TimeBackwards {
                now: now.to_string().into(),
                before: before.to_string().into(),
            });
        }
        self.now = Some(now);
        Ok(())
    }

    /// Assigns `block` to a tenant, if it has none. `idle` is whether the block has no references, so
    /// that it is in the order.
    pub(super) fn assign(&mut self, block: BlockId, tenant: TenantId, idle: bool) {
        let tenant = self.tenants.find(tenant);
        let Some(entry) = self.entries.get_mut(block.index()).filter(|entry| entry.tenant == NO_TENANT)
        else {
            return;
        };
        entry.tenant = tenant;
        let rank = entry.rank;
        let spared = self.tenants.gain(tenant);
        if idle && rank != PINNED {
            self.tenants.list(tenant, block, false);
        }
        if let Some(spared) = spared {
            self.unpop(spared);
        }
    }

    pub(super) fn said(&self, block: BlockId) -> Option<SavedRetention> {
        let Entry { idle_ttl, rank, tenant, then, .. } = self.entry(block);
        let remaining = self.deadlines.of(block).and_then(|deadline| Some(deadline - self.now?));
        let keep = match rank {
            DEMOTED => Keep::Demoted,
            PINNED => Keep::Pinned,
            rank => Keep::Priority(Priority::new(rank - 1).ok()?),
        };
        let ttl = if idle_ttl >= 0.0 { Some(Ttl::Idle(idle_ttl)) } else { remaining.map(Ttl::Absolute) };
        let said = SavedRetention {
            retention: Retention { keep, ttl, then },
            remaining,
            tenant: self.tenants.id(tenant),
        };
        (said.retention != Retention::NORMAL || said.tenant.is_some()).then_some(said)
    }

    pub(super) fn set_remaining(&mut self, block: BlockId, seconds: f64) {
        if let (Some(now), true) = (self.now, self.deadlines.contains(block)) {
            self.deadlines.set(block, now + seconds);
        }
    }

    pub(super) fn tenant_blocks(&self, tenant: TenantId) -> usize {
        self.tenants.count(self.tenants.find(tenant))
    }

    pub(super) fn stats(&self) -> RetentionStats {
        let sum = |ranks: Range<u8>| {
            let counts = &self.counts[usize::from(ranks.start)..usize::from(ranks.end)];
            counts.iter().sum::<u32>() as usize
        };
        RetentionStats {
            demoted: sum(DEMOTED..DEMOTED + 1),
            below_normal: sum(DEMOTED + 1..NORMAL),
            above_normal: sum(NORMAL + 1..PINNED),
            pinned: sum(PINNED..PINNED + 1),
            with_ttl: self.deadlines.len(),
            expired: self.expired,
        }
    }

    /// Checks R1 to R4 for one block in O(1). For the null block, checks the totals in O(ranks).
    pub(super) fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.policy.check_block(block)?;
        self.lists.check_block(block)?;
        self.deadlines.check_block(block)?;
        self.tenants.check_block(block)?;
        let (list, rank) = (self.lists.list_of(block), self.entry(block).rank);
        ensure(
            list.is_none_or(|list| list == usize::from(rank) && rank != NORMAL),
            "R1 (a block is on the list of its rank)",
            || format!("{block:?} of rank {rank} is on list {list:?}"),
        )?;
        let pinned = self.counts[usize::from(PINNED)] as usize;
        ensure(pinned <= self.pin_budget, "R4 (the number of pinned blocks is within the budget)", || {
            format!("{pinned} pinned, {} allowed", self.pin_budget)
        })
    }

    /// Injects a fault for tests into a link of the policy, or of the lists of ranks and tenants.
    #[cfg(feature = "fault-injection")]
    pub(super) fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        match what.checked_sub(16) {
            None => self.policy.corrupt(block, what, to),
            Some(0) => self.deadlines.corrupt(block, to),
            Some(what) => {
                let lists = [&mut self.lists, &mut self.tenants.idle, &mut self.tenants.sheltered];
                let (which, what) = ((what - 1) / BlockLists::FAULTS, (what - 1) % BlockLists::FAULTS);
                lists.into_iter().nth(which).is_some_and(|lists| lists.corrupt(block, what, to))
            }
        }
    }

    /// Checks the invariants that do not belong to a single block. `known` returns whether a block has
    /// a content.
    pub(super) fn check_invariants(&self, known: impl Fn(BlockId) -> bool) -> Result<(), InvariantViolation> {
        self.policy.check_invariants()?;
        self.lists.check_invariants()?;
        self.tenants.check_counts(self.entries.iter().map(|entry| entry.tenant))?;
        let filled: u128 = (0..NUM_RANKS).map(|rank| u128::from(!self.lists.is_empty(rank)) << rank).sum();
        ensure(self.filled == filled, "R1 (filled ranks are marked)", || {
            format!("ranks marked as filled: {:x}, found: {filled:x}", self.filled)
        })?;
        let mut counts = [0; NUM_RANKS];
        for (block, entry) in (0..).map(BlockId::new).zip(&self.entries) {
            if known(block) {
                counts[usize::from(entry.rank)] += 1;
            } else {
                let said =
                    entry.rank != NORMAL || entry.tenant != NO_TENANT || self.deadlines.contains(block);
                ensure(!said, "R1 (a block without a content has no retention)", || {
                    format!("{block:?}: {entry:?}")
                })?;
            }
        }
        ensure(counts == self.counts, "R1 (the number of blocks of each rank is correct)", || {
            format!("counted {:?}, found {counts:?}", self.counts)
        })
    }
}
