//! `ManagerWatch`: the calls of a manager that is watched, and the observer that contains all parts.
//!
//! A watched manager has these parts: the observers of each tier's pool ([`Watch`]), the explainer of
//! misses, and the scrubber.
//!
//! The digest of a manager starts at 0. The function `take_in` of the `digest` module combines it with
//! the digest of every tier in order, and then with the values of `scalars` in order. The digest does
//! not cover which request holds a block. If a block table differs, its request later releases
//! different references, and then the digests differ.

use std::ops::Range;

use kvpool::groups::Groups;
use kvpool::observe::{Admitted, ManagerObserver, PoolObserver};
use kvpool::{CacheManager, InvariantViolation, ManagerError, ManagerStats, PoolError, RequestRef};

use crate::advisor::{Advice, AdvisorConfig};
use crate::changes::ChangeLog;
use crate::digest::{self, take_in};
use crate::events::EventBatch;
use crate::explain::{ExplainConfig, ExplainError, Explainer, Explanation, MissStats};
use crate::feed::{Feed, FeedBatch, LearnedLog, held};
use crate::metrics::PoolMetrics;
use crate::scrub::{ManagerScrubber, ScrubReport};
use crate::watch::{PoolWatch, Watch, WatchConfig, insert_feed};

/// Selects the observers of a manager.
///
/// ```
/// use kvpool::{CacheManager, ManagerConfig};
/// use kvpool_observe::{ManagerWatch, ManagerWatchConfig};
/// let watch = ManagerWatchConfig { event_capacity: 10_000, metrics: true, ..Default::default() };
/// let mut manager = CacheManager::new(ManagerConfig::default())?.watched(&watch)?;
/// assert!(manager.take_events().events.is_empty());
/// assert_eq!(manager.metrics().len(), 1); // one tier: the device
/// # Ok::<(), kvpool::ManagerError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagerWatchConfig {
    /// The number of device events that are stored until [`ManagerWatch::take_events`] is called; 0
    /// records no events. See [`WatchConfig::event_capacity`].
    pub event_capacity: usize,
    /// Whether the manager has a digest of its state: see [`ManagerWatch::state_digest`]. A digest
    /// takes 24 bytes per block of each tier.
    pub digest: bool,
    /// Settings of an advisor, which uses the lookups on the device: see [`crate::advisor`]. `None`: no
    /// advisor.
    pub advisor: Option<AdvisorConfig>,
    /// Settings of the explainer of misses: see [`ManagerWatch::explain`]. `None`: no explanations.
    pub explain: Option<ExplainConfig>,
    /// The number of blocks of each tier, and of entries of block tables, that the scrubber checks at
    /// every [`CacheManager::complete_step`]: see [`ManagerScrubber`]. 0 disables it.
    pub scrub_blocks: usize,
    /// Whether every tier has metrics: see [`crate::metrics`]. Metrics take 24 bytes per block of each
    /// tier.
    pub metrics: bool,
    /// Later versions may add fields, so end struct literals with `..Default::default()`.
    #[doc(hidden)]
    pub more: (),
}

/// The observer of a manager. The observers of its pools are separate objects.
#[derive(Debug, Default)]
struct Requests {
    explainer: Option<Box<Explainer>>,
    scrubber: ManagerScrubber,
    /// The number of blocks that the scrubber checks when a step completes.
    scrub_blocks: usize,
    /// The log of tokens and extra keys, which the feeds need and the pools do not store.
    learning: Option<Box<LearnedLog>>,
    /// Whether the tiers below the device (such as the host) have metrics, so that the time must be
    /// passed to them.
    metered: bool,
}

impl ManagerObserver for Requests {
    fn wants_reach(&self) -> bool {
        self.explainer.is_some()
    }

    fn admitted(&mut self, admitted: &Admitted<'_>, manager: &CacheManager) {
        if let Some(explainer) = &mut self.explainer {
            explainer.admitted(admitted, manager);
        }
    }

    fn published(&mut self, slot: usize, positions: Range<usize>, manager: &CacheManager) {
        if let Some(explainer) = &mut self.explainer {
            explainer.published(slot, positions.clone(), manager);
        }
        if let Some(learning) = &mut self.learning {
            learning.published(slot, positions, manager);
        }
    }

    fn changed(&mut self, slot: Option<usize>, manager: &CacheManager) {
        if let Some(explainer) = &mut self.explainer {
            explainer.take_in(slot, manager);
        }
    }

    fn forked(&mut self, parent: usize, slot: usize, manager: &CacheManager) {
        if let Some(explainer) = &mut self.explainer {
            explainer.forked(parent, slot, manager);
        }
    }

    fn released(&mut self, slot: usize, _manager: &CacheManager) {
        if let Some(explainer) = &mut self.explainer {
            explainer.released(slot);
        }
    }

    fn step_completed(&mut self, manager: &mut CacheManager) {
        if self.scrub_blocks > 0 {
            // If the scrubber finds a fault, it poisons the manager, which reports it.
            let _poisoned = self.scrubber.scrub(manager, self.scrub_blocks);
        }
    }

    fn time_passed(&mut self, now: f64, manager: &mut CacheManager) {
        if self.metered {
            set_tier_times(manager, now, 1);
        }
    }

    fn check(&self, manager: &CacheManager) -> Result<(), InvariantViolation> {
        self.explainer.as_ref().map_or(Ok(()), |explainer| explainer.check(manager))
    }
}

/// Passes the time to the observers of the tiers, beginning with tier `first`.
fn set_tier_times(manager: &mut CacheManager, now: f64, first: usize) {
    for tier in first..manager.tiers().len() {
        if let Some((watch, _)) = manager.tier_observer_mut::<Watch>(tier) {
            watch.time_passed(now);
        }
    }
}

/// The methods of a manager for its observers.
///
/// ```
/// use kvpool::{CacheManager, ExtraKeys, ManagerConfig};
/// use kvpool_observe::{ManagerWatch, ManagerWatchConfig};
/// let mut manager = CacheManager::new(ManagerConfig { num_blocks: 64, ..Default::default() })?
///     .watched(&ManagerWatchConfig { digest: true, ..Default::default() })?;
/// let empty = manager.state_digest();
/// manager.admit("a", manager.prepare(&[1, 2, 3], ExtraKeys::default())?)?;
/// assert_ne!(manager.state_digest(), empty);
/// assert_eq!(manager.state_digest(), Some(manager.state_digest_from_scratch()));
/// # Ok::<(), kvpool::ManagerError>(())
/// ```
pub trait ManagerWatch: Sized {
    /// Watches the manager and its pools from now on. Replaces earlier observers. If the configuration
    /// enables nothing, nothing changes.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`](kvpool::PoolError::InvalidConfig) names the setting and the allowed
    /// values. Nothing has changed then.
    fn watch(&mut self, config: &ManagerWatchConfig) -> Result<(), ManagerError>;

    /// Like [`Self::watch`], but takes the manager and returns it, so that the call can follow the
    /// constructor.
    ///
    /// # Errors
    /// As [`Self::watch`].
    fn watched(mut self, config: &ManagerWatchConfig) -> Result<Self, ManagerError> {
        self.watch(config)?;
        Ok(self)
    }

    /// Adds a digest that is updated from now on, in addition to the other observers: in every tier,
    /// like [`PoolWatch::keep_digest`](crate::PoolWatch::keep_digest). O(blocks).
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`](kvpool::PoolError::InvalidConfig) if there is no memory.
    fn keep_digest(&mut self) -> Result<(), ManagerError>;

    /// Returns the events of the device since the last call. The batch is empty if
    /// [`ManagerWatchConfig::event_capacity`] is 0.
    fn take_events(&mut self) -> EventBatch;

    /// Adds a feed (a log of changes with their tokens) to every tier from now on, in addition to the
    /// other observers: see [`PoolWatch::keep_feed`](crate::PoolWatch::keep_feed). The feed includes
    /// the extra keys of requests and the tokens of every KV-cache group.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`](kvpool::PoolError::InvalidConfig) for a capacity of 0 or above
    /// 2^32, and if there is no memory.
    fn keep_feed(&mut self, capacity: usize) -> Result<(), ManagerError>;

    /// Replaces the contents of `batch` by the changes of a tier since the last call. The batch is
    /// empty without [`Self::keep_feed`], and for a tier that does not exist: see
    /// [`PoolWatch::take_feed`](crate::PoolWatch::take_feed). O(1), O(blocks) after a loss.
    fn take_feed(&mut self, tier: usize, batch: &mut FeedBatch);

    /// Returns a digest of the state of the manager; `None` without [`ManagerWatchConfig::digest`]. It
    /// may be called after any operation. Equal sequences of calls give equal digests, on any host.
    /// O(blocks that changed since the last call).
    fn state_digest(&mut self) -> Option<u64>;

    /// Computes the value of [`Self::state_digest`] from scratch, from every block of every tier. The
    /// manager need not keep a digest for this. O(blocks).
    fn state_digest_from_scratch(&self) -> u64;

    /// Checks the next `blocks` blocks of each tier, and the same number of entries of block tables.
    /// Continues at the block where the scrubbing at completed steps stopped: see [`ManagerScrubber`].
    /// O(`blocks`).
    ///
    /// # Errors
    /// As [`ManagerScrubber::scrub`].
    fn scrub(&mut self, blocks: usize) -> Result<ScrubReport, ManagerError>;

    /// Returns the advisor's estimates for other sizes, other policies, and tenants, from the device's
    /// traffic; `None` without an advisor. The call takes about 50 us.
    fn advice(&self) -> Option<Advice>;

    /// The number of tokens that were computed, by reason; `None` without
    /// [`ManagerWatchConfig::explain`].
    fn misses(&self) -> Option<MissStats>;

    /// Returns the metrics of each tier since the start of the watch, the device first. The list is
    /// empty without [`ManagerWatchConfig::metrics`]. O(buckets): a microsecond per tier.
    fn metrics(&self) -> Vec<PoolMetrics>;

    /// Sets the time for [`Self::metrics`], in seconds on the caller's clock. Does nothing without
    /// metrics. A manager with retention does not need this call: [`CacheManager::advance_time`] is
    /// enough, on the same clock. O(tiers).
    ///
    /// # Errors
    /// [`PoolError::TimeBackwards`]; [`PoolError::InvalidConfig`] if `now` is not finite.
    fn observe_time(&mut self, now: f64) -> Result<(), PoolError>;

    /// Explains which blocks a request had to compute at its last admission or resumption, and why the
    /// cache did not have them. The request may be running, waiting, or one of the last that were
    /// released. A fork has the explanation of its parent. O(spans), and O([`ExplainConfig::requests`])
    /// for a released request.
    ///
    /// An explanation reveals what other requests requested. Read the security notes in
    /// `docs/explain.md` before you show it to anyone except the operator of the engine.
    ///
    /// ```
    /// use kvpool::{CacheManager, ExtraKeys, ManagerConfig};
    /// use kvpool_observe::{ExplainConfig, ManagerWatch, ManagerWatchConfig};
    /// let explain = Some(ExplainConfig::default());
    /// let config = ManagerConfig { num_blocks: 64, block_size: 4, ..Default::default() };
    /// let mut manager = CacheManager::new(config)?
    ///     .watched(&ManagerWatchConfig { explain, ..Default::default() })?;
    /// let prompt: Vec<u32> = (0..10).collect();
    /// manager.admit("a", manager.prepare(&prompt, ExtraKeys::default())?)?;
    /// manager.commit("a", 10)?;
    ///
    /// let mut other = prompt.clone();
    /// other[6] = 99;
    /// manager.admit("b", manager.prepare(&other, ExtraKeys::default())?)?;
    /// assert_eq!(
    ///     manager.explain("b").unwrap().to_string(),
    ///     "request \"b\", admitted at 2: 4 of 10 tokens cached\n  \
    ///      block 1 (tokens 4-7): differs from token 6 on from what was seen before\n  \
    ///      block 2 (tokens 8-9): too few tokens to fill a block"
    /// );
    /// # Ok::<(), kvpool::ManagerError>(())
    /// ```
    ///
    /// # Errors
    /// [`ExplainError::NotExplaining`]; [`ExplainError::UnknownRequest`], also for a request that was
    /// released too long ago.
    fn explain<'a>(&self, id: impl Into<RequestRef<'a>>) -> Result<Explanation, ExplainError>;
}

impl ManagerWatch for CacheManager {
    fn watch(&mut self, config: &ManagerWatchConfig) -> Result<(), ManagerError> {
        let ManagerWatchConfig { event_capacity, digest, advisor, explain, scrub_blocks, metrics, more } =
            config.clone();
        // The slower tiers get only a digest and metrics, because a manager returns only the events of
        // the device.
        let below = WatchConfig { event_capacity: 0, digest, advisor: None, payloads: false, metrics, more };
        let device = WatchConfig { event_capacity, advisor, ..below.clone() };
        let units_per_block = self.groups().map_or(1, Groups::units_per_block);
        let mut watches = Vec::new();
        for tier in 0..self.tiers().len() {
            let config = if tier == 0 { &device } else { &below };
            watches.push(Watch::with_units(config, self.tiers().pool(tier)?, units_per_block)?);
        }
        let explainer = match explain {
            None => None,
            Some(explain) => {
                let log = ChangeLog::default();
                if let Some(device) = watches.first_mut() {
                    device.changes = Some(log.clone());
                }
                Some(Box::new(Explainer::new(&explain, self.pool(), units_per_block, log)?))
            }
        };
        for (tier, watch) in watches.into_iter().enumerate() {
            let idle = if tier == 0 { device.is_idle() && explainer.is_none() } else { below.is_idle() };
            if !idle || self.tier_observer_mut::<Watch>(tier).is_some() {
                self.observe_tier(tier, Box::new(watch))?;
            }
        }
        let metered = metrics && self.tiers().len() > 1;
        let needed = explainer.is_some() || scrub_blocks > 0 || metered;
        if needed || self.observer::<Requests>().is_some() {
            self.observe(Box::new(Requests {
                explainer,
                scrubber: ManagerScrubber::default(),
                scrub_blocks,
                learning: None,
                metered,
            }));
        }
        Ok(())
    }

    fn keep_digest(&mut self) -> Result<(), ManagerError> {
        for tier in 0..self.tiers().len() {
            if let Some((watch, blocks)) = self.tier_observer_mut::<Watch>(tier) {
                watch.keep_digest(blocks)?;
            } else {
                self.observe_tier(tier, Watch::of_digest(self.tiers().pool(tier)?)?)?;
            }
        }
        Ok(())
    }

    fn take_events(&mut self) -> EventBatch {
        self.tier_observer_mut::<Watch>(0).map_or_else(EventBatch::default, |(watch, _)| watch.take_events())
    }

    fn keep_feed(&mut self, capacity: usize) -> Result<(), ManagerError> {
        for tier in 0..self.tiers().len() {
            let feed = Feed::new(capacity, self.tiers().pool(tier)?)?;
            let take = |manager: &mut Self| {
                manager.tier_observer_mut::<Watch>(tier).map(|(watch, _)| std::mem::take(watch))
            };
            let put = |manager: &mut Self, watch| {
                if let Some((place, _)) = manager.tier_observer_mut::<Watch>(tier) {
                    *place = watch;
                }
            };
            insert_feed(self, feed, take, put, |manager, observer| manager.observe_tier(tier, observer))?;
        }
        if self.observer::<Requests>().is_none() {
            self.observe(Box::new(Requests::default()));
        }
        if let Some(requests) = self.observer_mut::<Requests>() {
            requests.learning = Some(Box::new(LearnedLog::new(capacity)));
        }
        Ok(())
    }

    fn take_feed(&mut self, tier: usize, batch: &mut FeedBatch) {
        let learning = self.observer_mut::<Requests>().and_then(|requests| requests.learning.as_mut());
        // The log of tokens and extra keys covers only contents of the device.
        let learned = learning.filter(|_| tier == 0).map(|learning| learning.take());
        if matches!(learned, Some(None))
            && let Some(feed) = self.tier_observer_mut::<Watch>(0).and_then(|(watch, _)| watch.feed_mut())
        {
            feed.forget();
        }
        let Ok(pool) = self.tiers().pool(tier) else {
            *batch = FeedBatch::default();
            return;
        };
        let lost = pool.observer::<Watch>().is_some_and(Watch::is_feed_lost);
        let (held, algorithm) = (if lost { held(pool) } else { Vec::new() }, pool.algorithm());
        let feed = self.tier_observer_mut::<Watch>(tier).and_then(|(watch, _)| watch.feed_mut());
        match feed {
            Some(feed) => feed.take(held, algorithm, batch),
            None => *batch = FeedBatch::default(),
        }
        if let Some(Some(learned)) = learned {
            batch.absorb(learned);
        }
    }

    fn state_digest(&mut self) -> Option<u64> {
        let mut sum = 0;
        for tier in 0..self.tiers().len() {
            let (watch, blocks) = self.tier_observer_mut::<Watch>(tier)?;
            watch.settle(blocks);
            let pool = self.tiers().pool(tier).ok()?;
            sum = take_in(sum, [pool.observer::<Watch>()?.digest()?.value(pool)]);
        }
        Some(take_in(sum, scalars(self)))
    }

    fn state_digest_from_scratch(&self) -> u64 {
        let pools = (0..self.tiers().len()).filter_map(|tier| self.tiers().pool(tier).ok());
        take_in(take_in(0, pools.map(digest::from_scratch)), scalars(self))
    }

    fn scrub(&mut self, blocks: usize) -> Result<ScrubReport, ManagerError> {
        if self.observer::<Requests>().is_none() {
            self.observe(Box::new(Requests::default()));
        }
        let requests = self.observer_mut::<Requests>();
        let mut scrubber =
            requests.map(|requests| std::mem::take(&mut requests.scrubber)).unwrap_or_default();
        let report = scrubber.scrub(self, blocks);
        if let Some(requests) = self.observer_mut::<Requests>() {
            requests.scrubber = scrubber;
        }
        report
    }

    fn advice(&self) -> Option<Advice> {
        self.pool().observer::<Watch>()?.advice()
    }

    fn misses(&self) -> Option<MissStats> {
        Some(self.observer::<Requests>()?.explainer.as_ref()?.misses())
    }

    fn metrics(&self) -> Vec<PoolMetrics> {
        let pools = (0..self.tiers().len()).filter_map(|tier| self.tiers().pool(tier).ok());
        pools.filter_map(PoolWatch::metrics).collect()
    }

    fn observe_time(&mut self, now: f64) -> Result<(), PoolError> {
        let device = self.pool().observer::<Watch>();
        device.map_or(Ok(()), |watch| watch.check_time(now))?;
        set_tier_times(self, now, 0);
        Ok(())
    }

    fn explain<'a>(&self, id: impl Into<RequestRef<'a>>) -> Result<Explanation, ExplainError> {
        let explainer = self.observer::<Requests>().and_then(|requests| requests.explainer.as_ref());
        explainer.ok_or(ExplainError::NotExplaining)?.explanation(id.into(), self)
    }
}

/// The values of the manager, besides its pools, that the digest covers. Their order is part of the
/// specification, so it must never change.
fn scalars(manager: &CacheManager) -> [u64; 25] {
    let stats = manager.stats();
    let ManagerStats { running, preempted, swapped, moving, hints, .. } = stats;
    [
        running as u64,
        preempted as u64,
        swapped as u64,
        moving as u64,
        stats.admissions,
        stats.prompt_tokens,
        stats.hit_tokens,
        stats.computed_tokens,
        stats.refusals,
        stats.appended_tokens,
        stats.preemptions,
        stats.preempted_tokens,
        stats.resumptions,
        stats.resumed_tokens,
        stats.resumed_hit_tokens,
        stats.forks,
        stats.swapped_out,
        stats.swapped_in,
        stats.copied_blocks,
        hints.accepted as u64,
        hints.clipped as u64,
        hints.ignored as u64,
        manager.num_requests() as u64,
        manager.num_swaps() as u64,
        manager.tiers().num_planned() as u64,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A manager returns only the events of the device. Regression test: the host tier once recorded
    /// events too.
    #[test]
    fn the_host_tier_records_no_events() {
        let config =
            kvpool::ManagerConfig { num_blocks: 9, host_blocks: 9, ..kvpool::ManagerConfig::default() };
        let watch = ManagerWatchConfig { event_capacity: 100, ..ManagerWatchConfig::default() };
        let manager = CacheManager::new(config).unwrap().watched(&watch).unwrap();
        let is_watched = |tier| manager.tiers().pool(tier).unwrap().observer::<Watch>().is_some();
        assert_eq!((is_watched(0), is_watched(1)), (true, false));
    }
}
