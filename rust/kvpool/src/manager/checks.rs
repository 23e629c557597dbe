//! What can be checked of a manager in small pieces: one request, one entry of a block table, and the references of all; and what becomes
//! of it once an invariant is broken.
//!
//! [`CacheManager::check_invariants`] recounts everything at once, and is for tests; a scrubber checks a few entries per call. A
//! broken invariant poisons the device's pool, and a manager with a poisoned pool in any tier refuses every operation.

use super::request::RequestState;
use super::{CacheManager, ManagerError};
use crate::error::{InvariantViolation, ensure};

impl CacheManager {
    /// Why the manager refuses work, if it does.
    #[must_use]
    pub fn poison_reason(&self) -> Option<&str> {
        self.tiers.poison_reason()
    }

    /// Refuses work if the pool of any tier does.
    ///
    /// # Errors
    /// [`crate::PoolError::Poisoned`].
    #[inline]
    pub fn check_poison(&self) -> Result<(), ManagerError> {
        Ok(self.tiers.check_poison()?)
    }

    /// What can be said of the request in a slot in O(1): that it is found by its id (M5), and that its table is as long as its tokens
    /// need, in the tier that its state says (S1, S3, M2). Of an empty slot there is nothing to say.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_request_at(&self, slot: usize) -> Result<(), InvariantViolation> {
        let Some(request) = self.requests.get(slot).and_then(Option::as_ref) else { return Ok(()) };
        let (id, sequence) = (&request.id, &request.sequence);
        ensure(self.slots.get(&id.as_ref()) == Some(&slot), "M5 (requests are found by their ids)", || {
            format!("request {id} is in slot {slot}")
        })?;
        if request.state == RequestState::Preempted {
            return ensure(sequence.blocks.is_empty(), "M2 (a preempted request holds nothing)", || {
                format!("request {id} has {} blocks", sequence.blocks.len())
            });
        }
        self.check_place(request)?;
        sequence.check_counts(&id.as_ref())
    }

    /// One entry of the table of the request in a slot: null where it is trimmed and nowhere else (S2), else held (M1), and with the hash
    /// of its tokens if it is published (M3). O(1).
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_entry(&self, slot: usize, at: usize) -> Result<(), InvariantViolation> {
        let Some(request) = self.requests.get(slot).and_then(Option::as_ref) else { return Ok(()) };
        let (id, sequence) = (&request.id, &request.sequence);
        let (Some(&block), Ok(pool)) = (sequence.blocks.get(at), self.tiers.pool(sequence.tier)) else {
            return Ok(());
        };
        let trimmed = at < sequence.trimmed;
        ensure(trimmed == block.is_null(), "S2 (trimmed blocks are null)", || {
            format!("{block:?} at {at} of request {id}, {} trimmed", sequence.trimmed)
        })?;
        if trimmed {
            return Ok(());
        }
        ensure(pool.num_holders(block) > 0, "M1 (references are block tables, fences and swaps)", || {
            format!("{block:?} at {at} of request {id} is held by nobody")
        })?;
        let hash = sequence.cursor.chain().hashes().get(at);
        let published = at < sequence.published && sequence.cursor.epoch() == pool.epoch();
        let registered = pool.hash_of(block);
        let wrong = published && registered.is_some() && registered.as_ref() != hash;
        ensure(!wrong, "M3 (a published block carries the hash of its tokens)", || {
            format!("{block:?} at {at} of request {id}")
        })
    }

    /// M1, summed over all blocks of each tier: tables, fences, pins and swaps account for every reference. A leak shows here, without a
    /// walk over the blocks. O(requests + blocks of swaps).
    ///
    /// # Errors
    /// The first tier where they do not.
    pub fn check_references(&self) -> Result<(), InvariantViolation> {
        for (tier, pool) in self.tiers.pools().iter().enumerate() {
            let requests = self.requests.iter().flatten().filter(|request| request.sequence.tier == tier);
            let tables: u64 = requests.map(|request| request.sequence.held().len() as u64).sum();
            let (fences, swaps) = (pool.num_fence_references(), self.tiers.num_swap_references(tier));
            let known = tables + fences + swaps;
            let counted = pool.num_references();
            ensure(known == counted, "M1 (references are block tables, fences and swaps)", || {
                format!(
                    "tier {tier}: {counted} references, {tables} of tables, {fences} of fences, {swaps} of swaps"
                )
            })?;
        }
        Ok(())
    }
}

/// For tests: what only a bug, or memory that went bad, can do to a block table.
#[cfg(feature = "fault-injection")]
impl CacheManager {
    /// Puts another block into a request's table behind the manager's back. False if there is no such position, or if it is there
    /// already.
    pub fn corrupt_table<'a>(
        &mut self,
        id: impl Into<super::RequestRef<'a>>,
        position: usize,
        block: crate::BlockId,
    ) -> bool {
        let slot = self.slots.get(&id.into()).copied();
        let request = slot.and_then(|slot| self.requests.get_mut(slot)).and_then(Option::as_mut);
        let entry = request.and_then(|request| request.sequence.blocks.get_mut(position));
        entry.is_some_and(|entry| std::mem::replace(entry, block) != block)
    }

    /// The pools of all tiers, to change them behind the manager's back.
    pub fn pools_to_corrupt(&mut self) -> &mut [crate::BlockPool] {
        self.tiers.pools_mut()
    }
}
