//! Hints by request, token range and hash chain: the retention half of [`CacheManager`]. What a hint is worth, and in which
//! order blocks are evicted, is stated in [`crate::retention`]; what a range means for blocks, in [`super::hints`].
//!
//! Owns: when what was said of a request reaches its blocks. A hint is kept with its request. It takes effect on the blocks that
//! are registered now, and on every later one when [`CacheManager::commit`] registers it; so it survives preemption, swaps and
//! truncation (ranges stay where they are, by token), and a fork starts with its parent's.
//!
//! The rules:
//! - Ranges reach all blocks of a request, hits included. Tenant and `no_cache` reach only what the request registered itself
//!   (or a fork of it): what it hit is somebody else's, and stays as it is.
//! - An end of life reaches blocks that nobody else holds, when it is said, when they are registered, and when the request is
//!   released. A later hit ends it: the hint was wrong.
//!
//! Hints never fail a request: behind the checks of the call that gives them, only a poisoned pool refuses.
//!
//! Costs: one branch for requests without hints. O(blocks concerned + ranges) otherwise.

use std::ops::Range;

use super::error::{ManagerError, Refused};
use super::hints::{Hints, RequestHints, RetentionRange, Scope};
use super::request::{RequestId, RequestRef, RequestState};
use super::{Admission, CacheManager};
use crate::error::PoolError;
use crate::hash::HashCursor;
use crate::retention::{HintReport, RetentionStats, TenantId};

impl CacheManager {
    /// [`Self::admit`], with what is known of the request.
    ///
    /// ```
    /// use kvpool::retention::{Keep, Priority, Retention, RetentionConfig};
    /// use kvpool::{CacheManager, ExtraKeys, ManagerConfig, RequestHints, RetentionRange};
    /// let retention = Some(RetentionConfig::default());
    /// let mut manager =
    ///     CacheManager::new(ManagerConfig { num_blocks: 64, block_size: 4, retention, ..Default::default() })?;
    /// let prompt = |first: u32| (first..first + 12).collect::<Vec<_>>();
    ///
    /// // The system prompt, 8 tokens, is worth more than the rest.
    /// let system = Retention::of(Keep::Priority(Priority::new(80)?));
    /// let hints = RequestHints {
    ///     ranges: vec![RetentionRange { start: 0, end: Some(8), retention: system }],
    ///     ..RequestHints::default()
    /// };
    /// manager.admit_with("chat", manager.prepare(&prompt(0), ExtraKeys::default())?, &hints)?;
    /// // A batch job reads documents once.
    /// let scan = RequestHints { no_cache: true, ..RequestHints::default() };
    /// manager.admit_with("scan", manager.prepare(&prompt(100), ExtraKeys::default())?, &scan)?;
    /// manager.commit("chat", 12)?;
    /// manager.commit("scan", 12)?;
    ///
    /// let stats = manager.retention_stats().unwrap_or_default();
    /// assert_eq!((stats.above_normal, stats.demoted), (2, 3));
    /// # Ok::<(), kvpool::ManagerError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::admit`]; [`PoolError::NoRetention`] if there are hints and no retention; [`PoolError::InvalidConfig`] for a
    /// range that ends before it begins, and for a time to live that is no number, or before any [`Self::advance_time`].
    pub fn admit_with(
        &mut self,
        id: impl Into<RequestId>,
        cursor: HashCursor,
        hints: &RequestHints,
    ) -> Result<Admission, Refused> {
        let hints = match self.check_hints(hints) {
            Ok(hints) => hints,
            Err(error) => return Err(Refused { error, cursor: Box::new(cursor) }),
        };
        self.admit_hinted(id.into(), cursor, hints)
    }

    /// What is kept of hints that are sound.
    pub(super) fn check_hints(&self, hints: &RequestHints) -> Result<Option<Box<Hints>>, ManagerError> {
        if hints.is_empty() {
            return Ok(None);
        }
        self.check_retention("take hints")?;
        self.check_ranges(&hints.ranges)?;
        Ok(Some(Box::new(Hints::new(hints, self.now()))))
    }

    /// What absolute times to live count from.
    fn now(&self) -> Option<f64> {
        self.tiers.device().retention_time()
    }

    fn check_retention(&self, operation: &'static str) -> Result<(), ManagerError> {
        self.check_poison()?;
        if !self.tiers.device().has_retention() {
            return Err(ManagerError::Pool(PoolError::NoRetention { operation }));
        }
        Ok(())
    }

    fn check_ranges(&self, ranges: &[RetentionRange]) -> Result<(), ManagerError> {
        let invalid = |field, value: String, expected: &str| {
            Err(ManagerError::Pool(PoolError::config(field, value, expected)))
        };
        for range in ranges {
            if let Some(end) = range.end.filter(|&end| end <= range.start) {
                return invalid("range", format!("{}..{end}", range.start), "a start before its end");
            }
            range.retention.check()?;
            if range.retention.ttl.is_some() && self.now().is_none() {
                return invalid("ttl", "a time to live".into(), "a clock: call advance_time(now) first");
            }
        }
        Ok(())
    }

    /// Hints of the request in `slot` take effect on positions of its table.
    pub(super) fn apply_hints(&mut self, slot: usize, positions: Range<usize>) -> Result<(), ManagerError> {
        self.apply_scope(slot, positions, Scope::All)
    }

    /// Ends of life that were said of a request, once more: others may have let go of its blocks.
    pub(super) fn apply_ends(&mut self, slot: usize) -> Result<(), ManagerError> {
        self.apply_scope(slot, 0..usize::MAX, Scope::Ends)
    }

    fn apply_scope(
        &mut self,
        slot: usize,
        positions: Range<usize>,
        scope: Scope,
    ) -> Result<(), ManagerError> {
        let Some(request) = self.requests.get(slot).and_then(Option::as_ref) else {
            return Err(super::lost_slot());
        };
        if let Some(hints) = &request.hints {
            let report = hints.apply(request, self.tiers.device_mut(), positions, scope)?;
            self.stats.hints.add(report);
        }
        Ok(())
    }

    /// Says how long ranges of a request's tokens are worth keeping: of its registered blocks now, and of the others when they
    /// are registered. Later ranges of a call, and later calls, win where they overlap. The report counts the registered blocks
    /// that the request holds on the device now. O(blocks of the ranges).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`], and what [`Self::admit_with`] says of hints.
    pub fn retain<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        ranges: &[RetentionRange],
    ) -> Result<HintReport, ManagerError> {
        self.check_retention("retain blocks")?;
        let slot = self.slot(id.into())?;
        self.check_ranges(ranges)?;
        let new = Hints::of(ranges, self.now());
        let Some(request) = self.requests.get_mut(slot).and_then(Option::as_mut) else {
            return Err(super::lost_slot());
        };
        let report = new.apply(request, self.tiers.device_mut(), 0..usize::MAX, Scope::All)?;
        request.hints.get_or_insert_default().extend(&new);
        self.stats.hints.add(report);
        Ok(report)
    }

    /// Says whose a request is: the blocks that it registered and registers itself count towards the tenant's limits, unless
    /// they are somebody's already. O(blocks).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`], [`PoolError::NoRetention`].
    pub fn set_tenant<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        tenant: TenantId,
    ) -> Result<(), ManagerError> {
        self.check_retention("assign tenants")?;
        let slot = self.slot(id.into())?;
        let Some(request) = self.requests.get_mut(slot).and_then(Option::as_mut) else {
            return Err(super::lost_slot());
        };
        let only = Hints::of_tenant(tenant);
        request.hints.get_or_insert_default().extend(&only);
        only.apply(request, self.tiers.device_mut(), 0..usize::MAX, Scope::All)?;
        Ok(())
    }

    /// Says that a request's tokens from `start_token` on will not be used again: a branch that was dropped, reasoning that the
    /// next turn leaves out. Blocks that nobody else holds are first in line as soon as they are released; the others, if nobody
    /// else holds them when the request is released. The request goes on as before. O(blocks from there).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`], [`PoolError::NoRetention`].
    pub fn end_of_life<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        start_token: usize,
    ) -> Result<HintReport, ManagerError> {
        self.retain(id, &[RetentionRange::end_of_life(start_token)])
    }

    /// [`Self::release`]; with `end_of_life`, its session has ended: its registered blocks that nobody else holds are demoted
    /// at once. What other cached blocks hang on waits for them, so a shared system prompt goes last, and a hit brings it back.
    /// Of a request that is preempted or swapped out it is the cached content that is demoted. O(blocks).
    ///
    /// # Errors
    /// As [`Self::release`]; [`PoolError::NoRetention`] with `end_of_life`.
    pub fn release_with<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        after_step: Option<u64>,
        end_of_life: bool,
    ) -> Result<HintReport, ManagerError> {
        let id = id.into();
        let slot = self.slot(id)?;
        let mut report = HintReport::default();
        if end_of_life {
            self.check_retention("end a session")?;
            self.releasable(id)?;
            let end = Hints::of(&[RetentionRange::end_of_life(0)], self.now());
            let Some(request) = self.requests.get(slot).and_then(Option::as_ref) else {
                return Err(super::lost_slot());
            };
            let pool = self.tiers.device_mut();
            if request.state == RequestState::Running {
                report = end.apply(request, pool, 0..usize::MAX, Scope::All)?;
            } else if request.sequence.cursor.epoch() == pool.epoch() {
                report = end.apply_to_chain(pool, &request.sequence.cursor)?;
            }
            self.stats.hints.add(report);
        }
        self.release(id, after_step)?;
        Ok(report)
    }

    /// [`Self::retain`] by hash chain: for content whose request is gone, or was never here. Only what is cached now is
    /// reached; positions of the chain that are not count as ignored, and so does an end of life of blocks in use.
    /// O(blocks of the chain).
    ///
    /// # Errors
    /// [`ManagerError::ForeignCursor`], [`PoolError::StaleEpoch`], and what [`Self::admit_with`] says of hints.
    pub fn retain_prefix(
        &mut self,
        cursor: &HashCursor,
        ranges: &[RetentionRange],
    ) -> Result<HintReport, ManagerError> {
        self.check_retention("retain blocks")?;
        self.check_cursor(cursor)?;
        self.check_ranges(ranges)?;
        let hints = Hints::of(ranges, self.now());
        let report = hints.apply_to_chain(self.tiers.device_mut(), cursor)?;
        self.stats.hints.add(report);
        Ok(report)
    }

    /// [`Self::end_of_life`] by hash chain: cached blocks of these tokens, from `start_token` on, that nobody holds are demoted,
    /// every copy of them. O(blocks of the chain).
    ///
    /// # Errors
    /// As [`Self::retain_prefix`].
    pub fn end_of_life_of(
        &mut self,
        cursor: &HashCursor,
        start_token: usize,
    ) -> Result<HintReport, ManagerError> {
        self.retain_prefix(cursor, &[RetentionRange::end_of_life(start_token)])
    }

    /// Lets time pass: see [`crate::BlockPool::advance_time`].
    ///
    /// # Errors
    /// [`PoolError::NoRetention`]; [`PoolError::TimeBackwards`]; [`PoolError::InvalidConfig`] for what is no number.
    pub fn advance_time(&mut self, now: f64) -> Result<usize, ManagerError> {
        self.check_poison()?;
        Ok(self.tiers.device_mut().advance_time(now)?)
    }

    /// Blocks of `tenant` that are cached or in use; 0 for tenants without limits.
    ///
    /// # Errors
    /// [`PoolError::NoRetention`].
    pub fn tenant_blocks(&self, tenant: TenantId) -> Result<usize, ManagerError> {
        self.check_poison()?;
        Ok(self.tiers.device().tenant_blocks(tenant)?)
    }

    /// How many blocks are retained how; `None` without retention. O(1).
    #[must_use]
    pub fn retention_stats(&self) -> Option<RetentionStats> {
        self.tiers.device().retention_stats()
    }
}
