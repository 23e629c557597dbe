//! Implements the retention calls of [`CacheManager`], which take hints by request, token range and
//! hash chain. [`crate::retention`] defines the hints, and [`super::hints`] the blocks that a range
//! contains.
//!
//! This module decides when a hint about a request is applied to its blocks: at once to registered
//! blocks, and to other blocks when [`CacheManager::commit`] registers them. Hints are stored with the
//! request as ranges of token numbers, so they remain after preemption, swaps and truncation. A fork
//! starts with the hints of its parent.
//!
//! The rules:
//! - Ranges apply to all blocks of a request, including blocks that it hit. A tenant and `no_cache`
//!   apply only to blocks that the request or a fork of it registered, because blocks that it hit
//!   belong to other requests.
//! - The hint that tokens will not be used again (end of life) applies only to blocks that no other
//!   request holds. It takes effect when it is given, when blocks are registered, and when the request
//!   is released.
//!
//! Hints never make a request fail. The call that gives a hint checks it. Later, only a poisoned pool
//! can refuse it.
//!
//! Costs: one branch for a request without hints. O(blocks of the ranges + ranges) for a request with
//! hints.

use std::ops::Range;

use super::error::{ManagerError, Refused};
use super::hints::{AdmitOptions, Hints, RetentionRange, Scope};
use super::id::{RequestId, RequestRef};
use super::request::{RELEASABLE, RELEASE, ReleaseOptions};
use super::{Admission, CacheManager};
use crate::hash::HashCursor;
use crate::retention::no_clock;
use crate::retention::{HintReport, RetentionStats, TenantId};
use crate::sequence::Sequence;
use crate::{PoolError, Until};

/// # Admission with options
impl CacheManager {
    /// Like [`Self::admit`], with options: blocks for only a part of the prompt, tokens that a
    /// connector loads, or hints about the request.
    ///
    /// ```
    /// use kvpool::retention::{Keep, Priority, Retention, RetentionConfig};
    /// use kvpool::{AdmitOptions, CacheManager, ExtraKeys, ManagerConfig, RetentionRange};
    /// let retention = Some(RetentionConfig::default());
    /// let config = ManagerConfig { num_blocks: 64, block_size: 4, ..ManagerConfig::default() };
    /// let config = ManagerConfig { eviction: kvpool_policies::LRU, retention, ..config };
    /// let mut manager = CacheManager::new(config)?;
    /// let prompt = |first: u32| (first..first + 12).collect::<Vec<_>>();
    ///
    /// // The system prompt has 8 tokens, and is kept longer than the rest.
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
    /// hints and the manager has no retention; [`PoolError::InvalidConfig`] for a range that ends
    /// before it begins, and for a time to live that is not a number, or is given before the first
    /// [`Self::advance_time`].
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
}

/// # Hints about future use
///
/// Hints move blocks within the order of eviction: see [`crate::retention`].
impl CacheManager {
    /// Checks the hints of an admission, and converts them to their stored form. `None` if the options
    /// contain no hints.
    pub(super) fn check_hints(&self, options: &AdmitOptions) -> Result<Option<Box<Hints>>, ManagerError> {
        if !options.has_hints() {
            return Ok(None);
        }
        self.check_retention("take hints")?;
        self.check_ranges(&options.ranges)?;
        Ok(Some(Box::new(Hints::new(options, self.now()))))
    }

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

    /// Applies hints to the blocks at some positions of a request's table. Applies `given` if it is
    /// `Some`, or else the stored hints of the request.
    pub(super) fn apply_hints(
        &mut self,
        slot: usize,
        given: Option<&Hints>,
        positions: Range<usize>,
        scope: Scope,
    ) -> Result<HintReport, ManagerError> {
        let request = self.requests.at(slot)?;
        let Some(hints) = given.or(request.hints.as_deref()) else { return Ok(HintReport::default()) };
        let report =
            hints.apply(&request.sequence, request.own_from, self.tiers.device_mut(), positions, scope)?;
        self.stats.hints.add(report);
        Ok(report)
    }

    /// Adds hints to the request in `slot`. They take effect on its registered blocks now, and on other
    /// blocks when they are registered.
    fn add_hints(&mut self, slot: usize, given: &Hints) -> Result<HintReport, ManagerError> {
        let report = self.apply_hints(slot, Some(given), 0..usize::MAX, Scope::All)?;
        let request = self.requests.at_mut(slot)?;
        request.hints.get_or_insert_default().extend(given);
        Ok(report)
    }

    /// Gives hints about how long ranges of a request's tokens are worth keeping. They take effect on
    /// its registered blocks now, and on other blocks when they are registered. Where ranges overlap,
    /// later ranges and later calls win. The returned report counts only registered blocks that the
    /// request holds on the device now. O(blocks of the ranges).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`], and the errors of [`Self::admit_with`] about hints.
    pub fn retain<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        ranges: &[RetentionRange],
    ) -> Result<HintReport, ManagerError> {
        self.check_retention("retain blocks")?;
        let slot = self.slot(id.into())?;
        self.check_ranges(ranges)?;
        self.add_hints(slot, &Hints::of(ranges, self.now()))
    }

    /// Assigns a request to a tenant. The blocks that the request registers itself, before and after
    /// the call, count towards the tenant's limits. A block that already has a tenant keeps it.
    /// O(blocks).
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
        let given = AdmitOptions { tenant: Some(tenant), ..AdmitOptions::default() };
        self.add_hints(slot, &Hints::new(&given, None)).map(drop)
    }

    /// Gives the hint that a request's tokens from `start_token` on will not be used again, for example
    /// a dropped branch, or reasoning that the next turn omits. After their release, these blocks are
    /// evicted before other blocks, unless another request holds them both now and when this request is
    /// released. The request continues as before. O(blocks from `start_token` on).
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

    /// Releases a request whose session has ended, and demotes its registered blocks that no other
    /// request holds. A block is not demoted if a truncation has removed only a part of its tokens. If
    /// the request is preempted or swapped out, this call demotes the content that it has cached on the
    /// device.
    ///
    /// A demoted block is evicted after the cached blocks that follow it in a prompt, so a shared
    /// system prompt is evicted last. A hit ends the demotion of a block. If a swap is moving the
    /// request, or a connector is loading into it, its blocks are demoted when it releases them, and
    /// the report is empty. O(blocks).
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
        let leaving = ReleaseOptions { until: until.into(), end_of_life: true, ..ReleaseOptions::default() };
        let slot = self.slot_in(id, RELEASABLE, RELEASE)?;
        self.tiers.device().check_until(leaving.until)?;
        self.release_slot(slot, leaving)
    }

    /// Demotes all blocks that a request holds on the device, so that they are evicted before other
    /// blocks. If it holds none there, demotes the content that it has cached.
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

    /// Like [`Self::retain`], but identifies the blocks by a hash chain. Use this call for content
    /// whose request has been released, or that another instance computed. The hints apply only to
    /// blocks that are cached now. The returned report counts as ignored: positions of the chain that
    /// are not cached, and blocks in use that a hint would demote.
    ///
    /// With KV-cache groups, the hints apply to the blocks of every group. Missing blocks then count as
    /// ignored only in groups of full attention, because the other groups keep only the blocks that
    /// hits need. O(blocks of the chain, in every group).
    ///
    /// # Errors
    /// [`ManagerError::ForeignCursor`], [`PoolError::StaleEpoch`], and the errors of
    /// [`Self::admit_with`] about hints.
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

    /// Like [`Self::end_of_life`], but identifies the blocks by a hash chain. Demotes every cached copy
    /// of the blocks of these tokens, from `start_token` on, that no request holds. O(blocks of the
    /// chain).
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

    /// Sets the time: see [`crate::BlockPool::advance_time`].
    ///
    /// # Errors
    /// [`PoolError::NoRetention`]; [`PoolError::TimeBackwards`]; [`PoolError::InvalidConfig`] if `now`
    /// is not a number.
    pub fn advance_time(&mut self, now: f64) -> Result<usize, ManagerError> {
        self.check_poison()?;
        let ran_out = self.tiers.device_mut().advance_time(now)?;
        self.notify(|observer, manager| observer.time_passed(now, manager));
        Ok(ran_out)
    }

    /// Number of blocks of `tenant` that are cached or in use. 0 for tenants without limits.
    ///
    /// # Errors
    /// [`PoolError::NoRetention`].
    pub fn tenant_blocks(&self, tenant: TenantId) -> Result<usize, ManagerError> {
        self.check_poison()?;
        Ok(self.tiers.device().tenant_blocks(tenant)?)
    }

    /// Number of the device's blocks per kind of retention hint. `None` without retention. O(1).
    #[must_use]
    pub fn retention_stats(&self) -> Option<RetentionStats> {
        self.tiers.device().retention_stats()
    }
}
