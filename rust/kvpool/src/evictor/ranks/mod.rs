//! `Ranks`: a policy's order with retention around it.
//!
//! Owns: the rank of every block, and the lists of those that are not left to the policy. Which rank goes first is stated in
//! [`crate::retention`]; whether a victim may go at all is [`crate::evictor::Closed`]'s to say.
//!
//! Invariants, recounted by [`Ranks::check_invariants`]:
//! - R1: a block of normal rank is with the policy, or set aside for its tenant; of any other rank on that rank's list or on
//!   none (in use, or given up by [`Ranks::pop`] and not yet back).
//! - R2: tenants' blocks are counted; R3: deadlines are a heap.
//! - R4: at most `pin_budget` blocks are pinned.
//!
//! Costs: without retention one branch per call. With it O(1); a block under its tenant's floor is set aside once for each
//! time that it was put in the order, so that is O(1) amortized.

mod deadlines;
mod tenants;

use deadlines::Deadlines;
use tenants::{NOBODY, Tenants};

use super::policy::{Content, Policy};
use crate::block::BlockId;
use crate::block_lists::BlockLists;
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::list::try_reserve;
use crate::retention::{
    EvictionCause, Hint, Keep, Priority, Retention, RetentionConfig, RetentionStats, TenantId, Then, Ttl,
};

/// Ranks, as numbers of lists: demoted, priorities 0 to 100, pinned. [`NORMAL`]'s list is always empty: the policy has it.
const DEMOTED: u8 = 0;
const NORMAL: u8 = Priority::NORMAL.get() + 1;
const HIGHEST: u8 = Priority::MAX.get() + 1;
const PINNED: u8 = HIGHEST + 1;
const NUM_RANKS: usize = PINNED as usize + 1;

/// What was said of a block.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Seconds of an idle time to live; negative without one.
    idle_ttl: f64,
    rank: u8,
    tenant: u8,
    then: Then,
    /// Its time to live ran out, and it was neither used nor told anything since.
    expired: bool,
}

const UNSAID: Entry =
    Entry { idle_ttl: -1.0, rank: NORMAL, tenant: NOBODY, then: Then::Normal, expired: false };

impl Entry {
    /// Why it is evicted when its turn comes.
    const fn cause(self) -> EvictionCause {
        match self.rank {
            _ if self.expired => EvictionCause::Expired,
            DEMOTED => EvictionCause::EndOfLife,
            NORMAL => EvictionCause::Policy,
            _ => EvictionCause::Priority,
        }
    }
}

#[derive(Clone, Debug)]
struct Retained {
    entries: Vec<Entry>,
    lists: BlockLists,
    /// Bit by rank: its list has blocks.
    filled: u128,
    deadlines: Deadlines,
    tenants: Option<Tenants>,
    pin_budget: usize,
    /// Blocks by rank, held ones included.
    counts: [u32; NUM_RANKS],
    now: Option<f64>,
    expired: u64,
    /// Of the block popped last.
    cause: EvictionCause,
}

/// The order of a policy, with retention if it was asked for.
#[derive(Clone, Debug)]
pub(crate) struct Ranks<P> {
    policy: P,
    retained: Option<Box<Retained>>,
}

impl<P: Policy> Ranks<P> {
    /// The order of `policy`, for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for limits that do not fit into the pool, or if there is no memory.
    pub(crate) fn new(
        policy: P,
        num_blocks: usize,
        config: Option<&RetentionConfig>,
    ) -> Result<Self, PoolError> {
        let retained = match config {
            None => None,
            Some(config) => {
                config.check(num_blocks.saturating_sub(1))?;
                Some(Box::new(Retained {
                    entries: Vec::new(),
                    lists: BlockLists::new(NUM_RANKS, num_blocks)?,
                    filled: 0,
                    deadlines: Deadlines::default(),
                    tenants: Tenants::new(config, num_blocks)?,
                    pin_budget: config.pin_budget,
                    counts: [0; NUM_RANKS],
                    now: None,
                    expired: 0,
                    cause: EvictionCause::Policy,
                }))
            }
        };
        let mut ranks = Self { policy, retained };
        ranks.grow(num_blocks)?;
        Ok(ranks)
    }

    /// The policy.
    pub(crate) const fn policy(&self) -> &P {
        &self.policy
    }

    /// Whether retention was asked for.
    pub(crate) const fn has_retention(&self) -> bool {
        self.retained.is_some()
    }

    pub(crate) fn admit(&mut self, block: BlockId, content: Content) {
        if let Some(retained) = &mut self.retained {
            retained.count_rank(NORMAL, true);
        }
        self.policy.admit(block, content);
    }

    pub(crate) fn hit(&mut self, block: BlockId, content: Content) {
        if let Some(retained) = &mut self.retained {
            let entry = retained.entry(block);
            retained.set_expired(block, false);
            let mut spared = None;
            if let Some(tenants) = &mut retained.tenants {
                let was_idle = tenants.idle.remove(block).is_some();
                if tenants.unshelter(block) {
                    if entry.rank == NORMAL {
                        self.policy.unpop(block);
                    }
                } else if was_idle {
                    spared = tenants.spare_another(entry.tenant);
                }
            }
            if entry.idle_ttl >= 0.0 {
                retained.deadlines.end(block);
            }
            match entry.rank {
                NORMAL => {}
                DEMOTED => {
                    retained.take(block);
                    retained.set_rank(block, NORMAL);
                    self.policy.admit(block, content);
                }
                _ => retained.take(block),
            }
            if let Some(spared) = spared {
                self.unpop(spared);
            }
            if entry.rank != NORMAL && entry.rank != DEMOTED {
                return;
            }
        }
        self.policy.hit(block);
    }

    pub(crate) fn begin_release(&mut self) {
        self.policy.begin_release();
    }

    pub(crate) fn release(&mut self, block: BlockId) {
        let Some(retained) = &mut self.retained else { return self.policy.release(block) };
        let entry = retained.entry(block);
        if let Some(now) = retained.now.filter(|_| entry.idle_ttl >= 0.0) {
            retained.deadlines.set(block, now + entry.idle_ttl);
        }
        match entry.rank {
            NORMAL => self.policy.release(block),
            rank => {
                retained.take(block);
                retained.push(block, rank, false);
            }
        }
        retained.list_idle(block, false);
    }

    /// Takes the next victim out of the order. `idle` says of a block whether it has no holder: policies may have others in
    /// the order, and a floor is not for them.
    pub(crate) fn pop(&mut self, idle: impl Fn(BlockId) -> bool) -> Option<BlockId> {
        let Some(retained) = &mut self.retained else { return self.policy.pop() };
        if let Some(block) = retained.pop_rank(DEMOTED) {
            retained.unlist_idle(block);
            retained.cause = retained.entry(block).cause();
            return Some(block);
        }
        if let Some(block) = retained.tenants.as_ref().and_then(Tenants::above_ceiling) {
            retained.cause = EvictionCause::TenantCeiling;
            self.take(block);
            let taken = |tenants: &Tenants| tenants.idle.list_of(block).is_none();
            return self.retained.as_ref()?.tenants.as_ref().is_some_and(taken).then_some(block);
        }
        loop {
            let below = retained.pop_first(DEMOTED + 1..NORMAL);
            let next = below.or_else(|| self.policy.pop()).or_else(|| retained.pop_first(NORMAL + 1..PINNED));
            match next {
                Some(block) if idle(block) && retained.shelter(block) => {}
                Some(block) => {
                    retained.unlist_idle(block);
                    retained.cause = retained.entry(block).cause();
                    return Some(block);
                }
                None => break,
            }
        }
        let sheltered = retained.tenants.as_mut().and_then(Tenants::pop_sheltered);
        let last = sheltered.or_else(|| retained.pop_rank(PINNED))?;
        retained.unlist_idle(last);
        retained.cause = retained.entry(last).cause();
        Some(last)
    }

    /// Why the block popped last was next.
    pub(crate) fn cause(&self) -> EvictionCause {
        self.retained.as_ref().map_or(EvictionCause::Policy, |retained| retained.cause)
    }

    /// Takes `block` out of the order wherever it is, as [`Self::pop`] would.
    pub(crate) fn take(&mut self, block: BlockId) {
        let Some(retained) = &mut self.retained else { return self.policy.take(block) };
        retained.unlist_idle(block);
        if retained.entry(block).rank == NORMAL {
            self.policy.take(block);
        }
        retained.take(block);
    }

    pub(crate) fn unpop(&mut self, block: BlockId) {
        let Some(retained) = &mut self.retained else { return self.policy.unpop(block) };
        match retained.entry(block).rank {
            NORMAL => self.policy.unpop(block),
            rank => retained.push(block, rank, true),
        }
        retained.list_idle(block, true);
    }

    pub(crate) fn evicted(&mut self, block: BlockId, content: Content) {
        let rank = self.retained.as_mut().map_or(NORMAL, |retained| retained.end(block));
        if rank == NORMAL {
            self.policy.evicted(block, content);
        }
    }

    pub(crate) fn forget(&mut self, block: BlockId) {
        if let Some(retained) = &mut self.retained {
            retained.take(block);
            retained.end(block);
        }
        self.policy.forget(block);
    }

    pub(crate) fn clear(&mut self) {
        if let Some(retained) = &mut self.retained {
            retained.clear();
        }
        self.policy.clear();
    }

    pub(crate) fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        if let Some(retained) = &mut self.retained {
            retained.grow(num_blocks)?;
        }
        self.policy.grow(num_blocks)
    }

    /// Moves `block`, which is in the order if it is `idle`, to where `retention` says.
    pub(crate) fn retain(
        &mut self,
        block: BlockId,
        content: Content,
        idle: bool,
        retention: Retention,
    ) -> Result<Hint, PoolError> {
        let Some(retained) = &mut self.retained else { return Ok(Hint::Ignored) };
        let deadline = match (retention.ttl, retained.now) {
            (None, _) => None,
            (Some(Ttl::Idle(_)), Some(_)) if !idle => None, // its release will start it
            (Some(Ttl::Idle(seconds) | Ttl::Absolute(seconds)), Some(now)) => Some(now + seconds),
            (Some(_), None) => {
                return Err(PoolError::config(
                    "ttl",
                    "a time to live",
                    "a clock: call advance_time(now) first",
                ));
            }
        };
        let was_pinned = retained.entry(block).rank == PINNED;
        let full = retained.counts[usize::from(PINNED)] as usize >= retained.pin_budget && !was_pinned;
        let (rank, hint) = match retention.keep {
            Keep::Demoted => (DEMOTED, Hint::Accepted),
            Keep::Priority(priority) => (priority.get() + 1, Hint::Accepted),
            Keep::Pinned if full => (HIGHEST, Hint::Clipped),
            Keep::Pinned => (PINNED, Hint::Accepted),
        };
        match deadline {
            Some(deadline) => retained.deadlines.set(block, deadline),
            None => {
                retained.deadlines.end(block);
            }
        }
        if let Some(entry) = retained.entries.get_mut(block.index()) {
            entry.then = retention.then;
            // An end of life that is said of what is demoted already, because its time ran out, changes nothing.
            entry.expired &= entry.rank == DEMOTED && rank == DEMOTED;
            entry.idle_ttl = match retention.ttl {
                Some(Ttl::Idle(seconds)) => seconds,
                _ => UNSAID.idle_ttl,
            };
        }
        self.move_to(block, content, idle, rank);
        Ok(hint)
    }

    /// A block whose time to live has run out by now, and where it goes.
    pub(crate) fn pop_expired(&mut self) -> Option<(BlockId, Retention)> {
        let retained = self.retained.as_mut()?;
        let block = retained.deadlines.pop_due(retained.now?)?;
        retained.expired += 1;
        Some(match retained.entry(block).then {
            Then::Normal => (block, Retention::NORMAL),
            Then::Demote => (block, Retention::END_OF_LIFE),
        })
    }

    /// What [`Self::pop_expired`] said of `block` has been done.
    pub(crate) fn mark_expired(&mut self, block: BlockId) {
        if let Some(retained) = &mut self.retained {
            retained.set_expired(block, true);
        }
    }

    pub(crate) fn set_time(&mut self, now: f64) -> Result<(), PoolError> {
        if !now.is_finite() {
            return Err(PoolError::config("now", now, "a number of seconds"));
        }
        let Some(retained) = &mut self.retained else { return Ok(()) };
        if let Some(before) = retained.now.filter(|&before| now < before) {
            return Err(PoolError::TimeBackwards {
                now: now.to_string().into(),
                before: before.to_string().into(),
            });
        }
        retained.now = Some(now);
        Ok(())
    }

    pub(crate) fn assign(&mut self, block: BlockId, tenant: TenantId, idle: bool) {
        let Some(retained) = &mut self.retained else { return };
        let Some(tenants) = &mut retained.tenants else { return };
        let Some(entry) = retained.entries.get_mut(block.index()).filter(|entry| entry.tenant == NOBODY)
        else {
            return;
        };
        entry.tenant = tenants.find(tenant);
        let tenant = entry.tenant;
        let spared = tenants.gain(tenant);
        if idle {
            retained.list_idle(block, false);
        }
        if let Some(spared) = spared {
            self.unpop(spared);
        }
    }

    pub(crate) fn now(&self) -> Option<f64> {
        self.retained.as_ref().and_then(|retained| retained.now)
    }

    pub(crate) fn tenant_blocks(&self, tenant: TenantId) -> usize {
        let tenants = self.retained.as_ref().and_then(|retained| retained.tenants.as_ref());
        tenants.map_or(0, |tenants| tenants.count(tenants.find(tenant)))
    }

    pub(crate) fn stats(&self) -> RetentionStats {
        let Some(retained) = &self.retained else { return RetentionStats::default() };
        let sum = |ranks: std::ops::Range<u8>| {
            ranks.map(|rank| retained.counts[usize::from(rank)] as usize).sum::<usize>()
        };
        RetentionStats {
            demoted: sum(DEMOTED..DEMOTED + 1),
            below_normal: sum(DEMOTED + 1..NORMAL),
            above_normal: sum(NORMAL + 1..PINNED),
            pinned: sum(PINNED..PINNED + 1),
            with_ttl: retained.deadlines.len(),
            expired: retained.expired,
        }
    }

    /// From the rank that it has to `rank`: of all other ranks' lists it goes to the back.
    fn move_to(&mut self, block: BlockId, content: Content, idle: bool, rank: u8) {
        let Some(retained) = &mut self.retained else { return };
        let before = retained.entry(block).rank;
        if before == rank {
            return;
        }
        retained.unlist_idle(block);
        retained.take(block);
        if before == NORMAL {
            self.policy.forget(block);
        }
        retained.set_rank(block, rank);
        if rank == NORMAL {
            self.policy.admit(block, content);
            if idle {
                self.policy.begin_release();
                self.policy.release(block);
            }
        } else if idle {
            retained.push(block, rank, false);
        }
        if idle {
            retained.list_idle(block, false);
        }
    }

    /// R1 to R4 as far as they concern one block, and for the null block what is counted. O(1), O(ranks) for the null block.
    ///
    /// # Errors
    /// The broken invariant.
    pub(crate) fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.policy.check_block(block)?;
        let Some(retained) = &self.retained else { return Ok(()) };
        retained.lists.check_block(block)?;
        retained.deadlines.check_block(block)?;
        let (list, rank) = (retained.lists.list_of(block), retained.entry(block).rank);
        ensure(
            list.is_none_or(|list| list == usize::from(rank) && rank != NORMAL),
            "R1 (a block is on the list of its rank)",
            || format!("{block:?} of rank {rank} is on list {list:?}"),
        )?;
        let pinned = retained.counts[usize::from(PINNED)] as usize;
        ensure(pinned <= retained.pin_budget, "R4 (pins are within their budget)", || {
            format!("{pinned} pinned, {} allowed", retained.pin_budget)
        })?;
        retained.tenants.as_ref().map_or(Ok(()), |tenants| tenants.check_block(block))
    }

    /// Changes a link of the policy's, or of the lists of ranks and tenants, behind their back.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        const LISTS: usize = BlockLists::FAULTS;
        let Some(retained) = self.retained.as_mut().filter(|_| what >= 16) else {
            return self.policy.corrupt(block, what, to);
        };
        match (what - 16, &mut retained.tenants) {
            (0, _) => retained.deadlines.corrupt(block, to),
            (what, _) if what <= LISTS => retained.lists.corrupt(block, what - 1, to),
            (what, Some(tenants)) if what <= 2 * LISTS => tenants.idle.corrupt(block, what - 1 - LISTS, to),
            (what, Some(tenants)) => tenants.sheltered.corrupt(block, what - 1 - 2 * LISTS, to),
            _ => false,
        }
    }

    /// Recounts ranks, tenants and deadlines from scratch. `known` says of a block whether it has a content.
    ///
    /// # Errors
    /// The first broken invariant.
    pub(crate) fn check_invariants(&self, known: impl Fn(BlockId) -> bool) -> Result<(), InvariantViolation> {
        self.policy.check_invariants()?;
        let Some(retained) = &self.retained else { return Ok(()) };
        retained.lists.check_invariants()?;
        retained.deadlines.check_invariants()?;
        let mut counts = [0; NUM_RANKS];
        for (index, entry) in retained.entries.iter().enumerate() {
            let block = BlockId::new(index as u32);
            let list = retained.lists.list_of(block);
            ensure(
                list.is_none_or(|list| list == usize::from(entry.rank) && entry.rank != NORMAL),
                "R1 (a block is on the list of its rank)",
                || format!("{block:?} of rank {} is on list {list:?}", entry.rank),
            )?;
            if known(block) {
                counts[usize::from(entry.rank)] += 1;
            } else {
                let said =
                    entry.rank != NORMAL || entry.tenant != NOBODY || retained.deadlines.contains(block);
                ensure(!said, "R1 (retention ends with the content)", || format!("{block:?}: {entry:?}"))?;
            }
        }
        ensure(counts == retained.counts, "R1 (ranks are counted)", || {
            format!("counted {:?}, found {counts:?}", retained.counts)
        })?;
        let filled =
            (0..NUM_RANKS).filter(|&rank| !retained.lists.is_empty(rank)).map(|rank| 1 << rank).sum();
        ensure(retained.filled == filled, "R1 (filled ranks are marked)", || {
            format!("marked {:x}, found {filled:x}", retained.filled)
        })?;
        let pinned = retained.counts[usize::from(PINNED)] as usize;
        ensure(pinned <= retained.pin_budget, "R4 (pins are within their budget)", || {
            format!("{pinned} pinned, {} allowed", retained.pin_budget)
        })?;
        match &retained.tenants {
            None => Ok(()),
            Some(tenants) => tenants.check_invariants(retained.entries.iter().map(|entry| entry.tenant)),
        }
    }
}

impl Retained {
    fn entry(&self, block: BlockId) -> Entry {
        self.entries.get(block.index()).copied().unwrap_or(UNSAID)
    }

    fn set_expired(&mut self, block: BlockId, expired: bool) {
        if let Some(entry) = self.entries.get_mut(block.index()) {
            entry.expired = expired;
        }
    }

    fn count_rank(&mut self, rank: u8, more: bool) {
        let count = &mut self.counts[usize::from(rank)];
        *count = if more { *count + 1 } else { count.saturating_sub(1) };
    }

    fn set_rank(&mut self, block: BlockId, rank: u8) {
        if let Some(entry) = self.entries.get_mut(block.index()) {
            let before = std::mem::replace(&mut entry.rank, rank);
            self.count_rank(before, false);
            self.count_rank(rank, true);
        }
    }

    fn push(&mut self, block: BlockId, rank: u8, in_front: bool) {
        let list = usize::from(rank);
        let pushed =
            if in_front { self.lists.push_front(list, block) } else { self.lists.push_back(list, block) };
        if pushed {
            self.filled |= 1 << rank;
        }
    }

    /// Off the list of its rank, and out of what is set aside.
    fn take(&mut self, block: BlockId) {
        if let Some(list) = self.lists.remove(block)
            && self.lists.is_empty(list)
        {
            self.filled &= !(1_u128 << list);
        }
        if let Some(tenants) = &mut self.tenants {
            tenants.unshelter(block);
        }
    }

    fn pop_rank(&mut self, rank: u8) -> Option<BlockId> {
        let block = self.lists.front(usize::from(rank))?;
        self.take(block);
        // Still there if its links are broken: then nothing can be given up.
        self.lists.list_of(block).is_none().then_some(block)
    }

    /// The front of the lowest filled rank of a range.
    fn pop_first(&mut self, ranks: std::ops::Range<u8>) -> Option<BlockId> {
        let within = self.filled & ((1 << ranks.end) - (1 << ranks.start));
        if within == 0 { None } else { self.pop_rank(within.trailing_zeros() as u8) }
    }

    /// Sets `block`, just popped, aside if its tenant is not above its floor.
    fn shelter(&mut self, block: BlockId) -> bool {
        let tenant = self.entry(block).tenant;
        let Some(tenants) = self.tenants.as_mut().filter(|tenants| tenants.is_under_floor(tenant)) else {
            return false;
        };
        tenants.shelter(tenant, block);
        true
    }

    /// Lists an idle block with its tenant, unless it is pinned.
    fn list_idle(&mut self, block: BlockId, in_front: bool) {
        let entry = self.entry(block);
        let Some(tenants) = self.tenants.as_mut().filter(|_| entry.rank != PINNED) else { return };
        let tenant = usize::from(entry.tenant);
        if in_front {
            tenants.idle.push_front(tenant, block);
        } else {
            tenants.idle.remove(block);
            tenants.idle.push_back(tenant, block);
        }
    }

    fn unlist_idle(&mut self, block: BlockId) {
        if let Some(tenants) = &mut self.tenants {
            tenants.idle.remove(block);
        }
    }

    /// The content of `block` is gone, and with it all that was said. Returns the rank that it had.
    fn end(&mut self, block: BlockId) -> u8 {
        self.unlist_idle(block);
        self.deadlines.end(block);
        let Some(entry) = self.entries.get_mut(block.index()) else { return NORMAL };
        let entry = std::mem::replace(entry, UNSAID);
        self.count_rank(entry.rank, false);
        if let Some(tenants) = &mut self.tenants {
            tenants.lose(entry.tenant);
        }
        entry.rank
    }

    fn clear(&mut self) {
        self.entries.fill(UNSAID);
        self.lists.clear();
        self.filled = 0;
        self.deadlines.clear();
        self.counts = [0; NUM_RANKS];
        if let Some(tenants) = &mut self.tenants {
            tenants.clear();
        }
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.entries, num_blocks)?;
        self.lists.grow(num_blocks)?;
        self.deadlines.grow(num_blocks)?;
        if let Some(tenants) = &mut self.tenants {
            tenants.grow(num_blocks)?;
        }
        let num_blocks = num_blocks.max(self.entries.len());
        self.entries.resize(num_blocks, UNSAID);
        Ok(())
    }
}
