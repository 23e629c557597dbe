//! Hints by request, token range and hash chain: the retention half of [`CacheManager`].
//! [`crate::retention`] says what a hint is worth, [`super::hints`] which blocks a range is of.
//!
//! Owns: when what was said of a request reaches its blocks. It takes effect on the blocks that are
//! registered now, and on every later one when [`CacheManager::commit`] registers it. It is kept with
//! the request: it survives preemption, swaps and truncation (ranges stay where they are, by token),
//! and a fork starts with its parent's.
//!
//! The rules:
//! - Ranges reach all blocks of a request, hits included. Tenant and `no_cache` reach only what the
//!   request registered itself (or a fork of it): what it hit is somebody else's.
//! - An end of life reaches blocks that nobody else holds: when it is said, when they are registered,
//!   and when the request is released.
//!
//! Hints never fail a request: behind the checks of the call that gives them, only a poisoned pool refuses.
//!
//! Costs: one branch for requests without hints. O(blocks concerned + ranges) otherwise.

use std::ops::Range;

use super::error::{ManagerError, Refused};
use super::hints::{AdmitOptions, Hints, RetentionRange, Scope};
use super::id::{RequestId, RequestRef};
use super::request::{Leaving, RELEASABLE, RELEASE};
use super::{Admission, CacheManager};
use crate::hash::HashCursor;
use crate::retention::no_clock;
use crate::retention::{HintReport, RetentionStats, TenantId};
use crate::sequence::Sequence;
use crate::{PoolError, Until};

impl CacheManager {
    /// [`Self::admit`] of a part, or with what is known of the request.
    ///
    /// ```
    /// use kvpool::retention::{Keep, Priority, Retention, RetentionConfig};
    /// use kvpool::{AdmitOptions, CacheManager, ExtraKeys, ManagerConfig, RetentionRange};
    /// let retention = Some(RetentionConfig::default());
    /// let config = ManagerConfig { num_blocks: 64, block_size: 4, ..ManagerConfig::default() };
    /// let mut manager = CacheManager::new(ManagerConfig { eviction: kvpool_policies::LRU, retention, ..config })?;
    /// let prompt = |first: u32| (first..first + 12).collect::<Vec<_>>();
    ///
    /// // The system prompt, 8 tokens, is worth more than the rest.
    /// let system = Retention::of(Keep::Priority(Priority::new(80)?));
    /// let options = AdmitOptions {
    ///     ranges: vec![RetentionRange { start: 0, end: Some(8), retention: system }],
    ///     ..AdmitOptions::default()
    /// };
    /// manager.admit_with("chat", manager.prepare(&prompt(0), ExtraKeys::default())?, &options)?;
    /// // A batch job reads documents once.
    /// let scan = AdmitOptions { no_cache: true, ..AdmitOptions::default() };
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
    /// As [`Self::admit`]; [`ManagerError::BadExternalCount`]; [`PoolError::NoRetention`] if there are
    /// hints and no retention; [`PoolError::InvalidConfig`] for a range that ends before it begins, and
    /// for a time to live that is no number, or before any [`Self::advance_time`].
    pub fn admit_with(
        &mut self,
        id: impl Into<RequestId>,
        cursor: HashCursor,
        options: &AdmitOptions,
    ) -> Result<Admission, Refused> {
        let id = id.into();
        match self.take_admission(&id, &cursor, options) {
            Ok((staged, hints)) => Ok(self.install(id, cursor, staged, hints)),
            Err(error) => {
                self.count_refusal(&error);
                Err(Refused { error, cursor: Box::new(cursor) })
            }
        }
    }

    /// What is kept of hints that are sound.
    pub(super) fn check_hints(&self, options: &AdmitOptions) -> Result<Option<Box<Hints>>, ManagerError> {
        if !options.has_hints() {
            return Ok(None);
        }
        self.check_retention("take hints")?;
        self.check_ranges(&options.ranges)?;
        Ok(Some(Box::new(Hints::new(options, self.now()))))
    }

    /// What absolute times to live count from.
    fn now(&self) -> Option<f64> {
        self.tiers.device().retention_time()
    }

    fn check_retention(&self, operation: &'static str) -> Result<(), ManagerError> {
        self.check_poison()?;
        if !self.tiers.device().has_retention() {
            return Err(PoolError::NoRetention { operation }.into());
        }
        Ok(())
    }

    fn check_ranges(&self, ranges: &[RetentionRange]) -> Result<(), ManagerError> {
        for range in ranges {
            if let Some(end) = range.end.filter(|&end| end <= range.start) {
                let found = format!("{}..{end}", range.start);
                return Err(PoolError::config("range", found, "a start before its end").into());
            }
            range.retention.check()?;
            if range.retention.ttl.is_some() && self.now().is_none() {
                return Err(no_clock().into());
            }
        }
        Ok(())
    }

    /// Hints, `said` or those of the request in `slot`, take effect on positions of its table.
    pub(super) fn apply_hints(
        &mut self,
        slot: usize,
        said: Option<&Hints>,
        positions: Range<usize>,
        scope: Scope,
    ) -> Result<HintReport, ManagerError> {
        let request = self.requests.at(slot)?;
        let Some(hints) = said.or(request.hints.as_deref()) else { return Ok(HintReport::default()) };
        let report =
            hints.apply(&request.sequence, request.own_from, self.tiers.device_mut(), positions, scope)?;
        self.stats.hints.add(report);
        Ok(report)
    }

    /// More is said of the request in `slot`: it takes effect now, and on what is registered later.
    fn say(&mut self, slot: usize, said: &Hints) -> Result<HintReport, ManagerError> {
        let report = self.apply_hints(slot, Some(said), 0..usize::MAX, Scope::All)?;
        let request = self.requests.at_mut(slot)?;
        request.hints.get_or_insert_default().extend(said);
        Ok(report)
    }

    /// Says how long ranges of a request's tokens are worth keeping: of its registered blocks now, and
    /// of the others when they are registered. Later ranges of a call, and later calls, win where they
    /// overlap. The report counts the registered blocks that the request holds on the device now.
    /// O(blocks of the ranges).
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
        self.say(slot, &Hints::of(ranges, self.now()))
    }

    /// Says whose a request is: the blocks that it registered and registers itself count towards the
    /// tenant's limits, unless they are somebody's already. O(blocks).
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
        let said = AdmitOptions { tenant: Some(tenant), ..AdmitOptions::default() };
        self.say(slot, &Hints::new(&said, None)).map(drop)
    }

    /// Says that a request's tokens from `start_token` on will not be used again: a branch that was
    /// dropped, reasoning that the next turn leaves out. Blocks that nobody else holds then, or when
    /// the request is released, are first in line as soon as they are released. The request goes on as
    /// before. O(blocks from there).
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

    /// [`Self::release`] of a request whose session has ended: its registered blocks that nobody else
    /// holds are demoted at once, but for one that a truncation cut into; of a request that is
    /// preempted or swapped out, its cached content. What other cached blocks hang on waits for them,
    /// so a shared system prompt goes last, and a hit brings it back. Of one that is moving or loading
    /// that happens when it gives its blocks up, and the report is empty. O(blocks).
    ///
    /// # Errors
    /// As [`Self::release`]; [`PoolError::NoRetention`].
    pub fn end_session<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        until: impl Into<Until>,
    ) -> Result<HintReport, ManagerError> {
        let id = id.into();
        self.slot(id)?;
        self.check_retention("end a session")?;
        let leaving = Leaving { until: until.into(), end_of_life: true, ..Leaving::default() };
        let slot = self.slot_in(id, RELEASABLE, RELEASE)?;
        self.tiers.device().check_until(leaving.until)?;
        self.release_slot(slot, leaving)
    }

    /// All that a request holds, or has cached if it holds nothing on the device, is of no use to it
    /// any more.
    pub(super) fn end_life(&mut self, slot: usize) -> Result<HintReport, ManagerError> {
        let end = Hints::of(&[RetentionRange::end_of_life(0)], self.now());
        let Self { requests, tiers, stats, groups, .. } = self;
        let request = requests.at(slot)?;
        let Sequence { cursor, tier, .. } = &request.sequence;
        if *tier == 0 && request.sequence.num_entries() > 0 {
            return self.apply_hints(slot, Some(&end), 0..usize::MAX, Scope::All);
        }
        if cursor.epoch() != tiers.device().epoch() {
            return Ok(HintReport::default());
        }
        let report = end.apply_to_chain(tiers.device_mut(), cursor, groups.as_deref())?;
        stats.hints.add(report);
        Ok(report)
    }

    /// [`Self::retain`] by hash chain: for content whose request is gone, or was never here. Only what
    /// is cached now is reached; positions of the chain that are not count as ignored, and so does an
    /// end of life of blocks in use. With KV-cache groups the blocks of all of them are reached; only
    /// those of full attention that are not there count as ignored, for the others keep what hits need.
    /// O(blocks of the chain, of every group).
    ///
    /// # Errors
    /// [`ManagerError::ForeignCursor`], [`PoolError::StaleEpoch`], and what [`Self::admit_with`] says
    /// of hints.
    pub fn retain_prefix(
        &mut self,
        cursor: &HashCursor,
        ranges: &[RetentionRange],
    ) -> Result<HintReport, ManagerError> {
        self.check_retention("retain blocks")?;
        self.check_cursor(cursor)?;
        self.check_ranges(ranges)?;
        let hints = Hints::of(ranges, self.now());
        let report = hints.apply_to_chain(self.tiers.device_mut(), cursor, self.groups.as_deref())?;
        self.stats.hints.add(report);
        Ok(report)
    }

    /// [`Self::end_of_life`] by hash chain: cached blocks of these tokens, from `start_token` on, that
    /// nobody holds are demoted, every copy of them. O(blocks of the chain).
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
    /// [`PoolError::NoRetention`]; [`PoolError::TimeBackwards`]; [`PoolError::InvalidConfig`] for what
    /// is no number.
    pub fn advance_time(&mut self, now: f64) -> Result<usize, ManagerError> {
        self.check_poison()?;
        let ran_out = self.tiers.device_mut().advance_time(now)?;
        self.tell(|observer, manager| observer.time_passed(now, manager));
        Ok(ran_out)
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
