//! Checks the invariants of a manager: all at once, or in small parts, such as one request, one entry
//! of a block table, or the sum of all references.
//!
//! [`CacheManager::check_invariants`] is for tests. A scrubber, which runs in production, checks a few
//! entries per call. A broken invariant poisons the device's pool. A manager with a poisoned pool in
//! any tier refuses every operation.

use super::id::RequestState;
use super::request::Request;
use super::{CacheManager, ManagerError, ManagerStats};
use crate::InvariantViolation;
use crate::error::ensure;

/// The name of invariant M1 in error messages. M1: every reference belongs to a block table, a fence, a
/// pin or a swap.
const REFERENCES: &str = "M1 (references are block tables, fences and swaps)";

/// # Invariants
///
/// A broken invariant poisons the manager, which then refuses every operation.
impl CacheManager {
    /// Returns the reason why the manager is poisoned, or `None` if it is not.
    #[must_use]
    pub fn poison_reason(&self) -> Option<&str> {
        self.tiers.poison_reason()
    }

    /// Returns an error if the pool of any tier is poisoned.
    ///
    /// # Errors
    /// [`crate::PoolError::Poisoned`].
    #[inline]
    pub fn check_poison(&self) -> Result<(), ManagerError> {
        Ok(self.tiers.check_poison()?)
    }

    /// Checks all invariants: recounts the pools and every request from scratch. O(blocks + tokens),
    /// for tests.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.tiers.check_invariants()?;
        for (slot, request) in self.requests.slots().iter().enumerate() {
            let entries = request.as_ref().map_or(0, |request| request.sequence.num_entries());
            self.check_request_at(slot)?;
            (0..entries).try_for_each(|at| self.check_entry(slot, at))?;
        }
        let requests = || self.requests.slots().iter().flatten();
        let held = requests()
            .flat_map(|Request { sequence, .. }| sequence.held().map(|block| (sequence.tier, block)));
        self.tiers.check_holders(held, REFERENCES)?;
        let ManagerStats { running, preempted, swapped, moving, loading, releasing, .. } = self.stats;
        let counted = running + preempted + swapped + moving + loading + releasing;
        let (live, by_id) = (requests().count(), self.requests.num_found());
        ensure(live == by_id && live == counted, "M5 (requests are counted)", || {
            format!("{live} live, {by_id} by id, {counted} counted")
        })?;
        let ManagerStats { prompt_tokens, hit_tokens, external_tokens, computed_tokens, .. } = self.stats;
        let add_up = hit_tokens + external_tokens + computed_tokens == prompt_tokens;
        ensure(add_up, "M4 (hits + external + computed == prompt tokens)", || {
            format!("{hit_tokens} + {external_tokens} + {computed_tokens} != {prompt_tokens}")
        })?;
        self.observer.as_ref().map_or(Ok(()), |observer| observer.check(self))
    }

    /// Checks one request: it can be found by its id (M5), its tables are long enough for its tokens
    /// (S1, S3), and its blocks are in the tier that its state requires (M2). O(1). For an empty slot,
    /// checks nothing.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_request_at(&self, slot: usize) -> Result<(), InvariantViolation> {
        let Ok(Request { id, state, sequence, external, leaving, .. }) = self.requests.at(slot) else {
            return Ok(());
        };
        ensure(
            self.requests.look_up(id.as_ref()) == Some(slot),
            "M5 (a request can be found by its id)",
            || format!("request {id} is in slot {slot}"),
        )?;
        if *state == RequestState::Preempted {
            return ensure(sequence.num_entries() == 0, "M2 (a preempted request holds nothing)", || {
                format!("request {id} has {} blocks", sequence.num_entries())
            });
        }
        let moving = sequence.swap.is_some();
        let known = match (*state, leaving) {
            (RequestState::Releasing, Some(_)) => moving != external.is_some(),
            (RequestState::Moving, None) => moving && external.is_none(),
            (RequestState::Loading, None) => !moving && external.is_some(),
            (_, leaving) => !moving && external.is_none() && leaving.is_none(),
        };
        ensure(known, "M2 (a request has a swap or a load exactly if its state requires one)", || {
            format!("request {id} is {}", state.name())
        })?;
        ensure(sequence.tier < self.tiers.len(), "M2 (tiers exist)", || {
            format!("request {id}: {}", sequence.tier)
        })?;
        let placed = sequence.tier == usize::from(*state == RequestState::Swapped);
        ensure(moving || placed, "M2 (a request's blocks are in the tier of its state)", || {
            format!("request {id} is {} in tier {}", state.name(), sequence.tier)
        })?;
        sequence.check_counts(&format_args!("request {id}"))
    }

    /// Checks one entry of the tables of the request in a slot. `at` counts the entries of all groups'
    /// tables, one table after the other. An entry whose block was released because no later token
    /// reads it has to be the null block; no other entry may be (S2). Any other block needs a reference
    /// (M1). If it is registered, it needs the hash of its tokens (M3). O(1).
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_entry(&self, slot: usize, at: usize) -> Result<(), InvariantViolation> {
        let Ok(Request { id, sequence, .. }) = self.requests.at(slot) else { return Ok(()) };
        let Ok(pool) = self.tiers.pool(sequence.tier) else { return Ok(()) };
        sequence.check_entry(pool, at, &format_args!("request {id}"))?;
        let block = sequence.entry(at).map(|(table, at)| table.blocks[at]);
        let held = block.is_none_or(|block| block.is_null() || pool.num_holders(block) > 0);
        ensure(held, REFERENCES, || format!("the block in entry {at} of request {id} has no holder"))
    }

    /// Checks M1 for each tier as a whole: the number of references equals the number that block
    /// tables, fences, pins and swaps hold. This check finds leaked references without reading every
    /// block. O(requests + blocks of swaps).
    ///
    /// # Errors
    /// The first tier whose sums differ.
    pub fn check_references(&self) -> Result<(), InvariantViolation> {
        let of_swaps = self.tiers.swap_references();
        for (tier, pool) in self.tiers.pools().iter().enumerate() {
            let requests =
                self.requests.slots().iter().flatten().filter(|request| request.sequence.tier == tier);
            let tables: u64 = requests.map(|request| request.sequence.num_held() as u64).sum();
            let swaps = of_swaps.iter().filter(|(place, _)| place.tier == tier);
            let swaps: u64 = swaps.map(|(_, &references)| u64::from(references)).sum();
            let (fences, counted) = (pool.num_fence_references(), pool.num_references());
            ensure(tables + fences + swaps == counted, REFERENCES, || {
                format!(
                    "tier {tier}: {counted} references, {tables} of tables, {fences} of fences, \
                     {swaps} of swaps"
                )
            })?;
        }
        Ok(())
    }
}

#[cfg(feature = "fault-injection")]
impl CacheManager {
    /// Overwrites an entry of a request's tables with another block, without any bookkeeping. `at`
    /// counts the entries of all groups' tables, one table after the other. Returns false if there is
    /// no such entry, or if it already has this block.
    pub fn corrupt_table<'a>(
        &mut self,
        id: impl Into<super::RequestRef<'a>>,
        position: usize,
        block: crate::BlockId,
    ) -> bool {
        let request = self.slot_of(id).and_then(|slot| self.requests.at_mut(slot).ok());
        let entry = request.and_then(|request| request.sequence.entry_mut(position));
        entry.is_some_and(|entry| std::mem::replace(entry, block) != block)
    }

    /// Returns mutable references to the pools of all tiers, so that a test can damage them.
    pub fn pools_to_corrupt(&mut self) -> &mut [crate::BlockPool] {
        self.tiers.pools_mut()
    }
}
