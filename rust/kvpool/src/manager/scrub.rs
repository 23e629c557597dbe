//! The scrubber of a manager: the pools of all tiers ([`crate::BlockPool::scrub`]), the block tables of the requests, and
//! whether these and the swaps account for every reference.
//!
//! Owns: which request is checked next, and from which position of its table on. What it checks of a request: that its table is
//! as long as its tokens need, null where it is trimmed and nowhere else, of blocks that are held, in the tier that its state
//! says (S1 to S3, M2); and that published blocks carry the hashes of its tokens (M3). When it has been through all requests it
//! adds up their tables, fences, pins and swaps, tier by tier, and compares that with the references that the pool counts (M1):
//! a leak shows here, without a walk over the blocks.
//!
//! A broken invariant poisons the device's pool, and a manager with a poisoned pool in any tier refuses every operation.
//!
//! Costs: O(blocks asked for), in table entries as in blocks; O(requests) when it has been through all of them.

use super::{CacheManager, ManagerError};
use crate::error::{InvariantViolation, ensure};
use crate::pool::ScrubReport;

use super::request::{Request, RequestState};

/// Where the scrubber is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TableScrubber {
    slot: usize,
    position: usize,
    passes: u64,
}

impl CacheManager {
    /// Checks the next `blocks` blocks of each tier, and as many entries of block tables: see the list above. A broken invariant
    /// poisons the manager. Call it once a step with what a step can spare, or let
    /// [`ManagerConfig::scrub_blocks`](super::ManagerConfig::scrub_blocks) do it. O(`blocks`).
    ///
    /// ```
    /// use kvpool::{CacheManager, ExtraKeys, ManagerConfig};
    /// let mut manager = CacheManager::new(ManagerConfig { num_blocks: 64, digest: true, ..Default::default() })?;
    /// manager.admit("a", manager.prepare(&[1, 2, 3], ExtraKeys::default())?)?;
    /// let report = manager.scrub(64)?;
    /// assert_eq!((report.blocks, report.requests, report.passes), (64, 1, 1));
    /// # Ok::<(), kvpool::ManagerError>(())
    /// ```
    ///
    /// # Errors
    /// [`crate::PoolError::Poisoned`] with the invariant and what was found, now and from now on.
    pub fn scrub(&mut self, blocks: usize) -> Result<ScrubReport, ManagerError> {
        self.check_poison()?;
        let mut report = ScrubReport { passes: u64::MAX, ..ScrubReport::default() };
        for (tier, pool) in self.tiers.pools_mut().iter_mut().enumerate() {
            let scrubbed = pool.scrub(blocks)?;
            report.blocks += scrubbed.blocks;
            report.passes = report.passes.min(scrubbed.passes);
            if tier == 0 {
                report.position = scrubbed.position;
            }
        }
        match self.scrub_tables(blocks) {
            Ok(requests) => report.requests = requests,
            Err(violation) => return Err(self.tiers.device().condemn(|| violation.to_string()).into()),
        }
        report.passes = report.passes.min(self.scrubber.passes);
        Ok(report)
    }

    /// Why the manager refuses work, if it does.
    #[must_use]
    pub fn poison_reason(&self) -> Option<&str> {
        self.tiers.poison_reason()
    }

    /// Refuses work if the pool of any tier does.
    #[inline]
    pub(super) fn check_poison(&self) -> Result<(), ManagerError> {
        Ok(self.tiers.check_poison()?)
    }

    /// Checks `entries` entries of block tables, each at most once. Returns how many tables it came to the end of.
    fn scrub_tables(&mut self, entries: usize) -> Result<usize, InvariantViolation> {
        let (mut left, mut finished) = (entries, 0);
        // One more than the slots: a table that was begun in the middle is looked at once more from its start.
        for _ in 0..=self.requests.len() {
            let TableScrubber { slot, position, .. } = self.scrubber;
            if slot >= self.requests.len() {
                self.check_references()?;
                self.scrubber =
                    TableScrubber { passes: self.scrubber.passes + 1, ..TableScrubber::default() };
                break;
            }
            if left == 0 {
                break;
            }
            let Some(request) = self.requests.get(slot).and_then(Option::as_ref) else {
                self.scrubber = TableScrubber { slot: slot + 1, position: 0, ..self.scrubber };
                continue;
            };
            self.check_request_briefly(slot, request)?;
            let until = request.sequence.blocks.len().min(position.saturating_add(left));
            for at in position..until {
                self.check_entry(request, at)?;
            }
            left -= until.saturating_sub(position).max(1).min(left);
            if until == request.sequence.blocks.len() {
                finished += 1;
                self.scrubber = TableScrubber { slot: slot + 1, position: 0, ..self.scrubber };
            } else {
                self.scrubber.position = until;
            }
        }
        Ok(finished)
    }

    /// What can be said of a request in O(1).
    fn check_request_briefly(&self, slot: usize, request: &Request) -> Result<(), InvariantViolation> {
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

    /// M2 and S2 of one entry of a table, and M3 if it is published.
    fn check_entry(&self, request: &Request, at: usize) -> Result<(), InvariantViolation> {
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

    /// M1, summed over all blocks of each tier. O(requests + blocks of swaps).
    fn check_references(&self) -> Result<(), InvariantViolation> {
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
