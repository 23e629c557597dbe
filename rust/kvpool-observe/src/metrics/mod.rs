//! Metrics of a pool: the ages of contents at hits and removals, the causes of removals, and hits by
//! tenant.
//!
//! The metrics consist of counts and histograms, and of the times of the blocks that they are computed
//! from. Each tier's pool has its own metrics. They do not repeat the counters of a pool and of a
//! manager ([`PoolStats`](kvpool::PoolStats), [`ManagerStats`](kvpool::ManagerStats)), of the
//! explainer, or of the advisor.
//!
//! **Time** is passed in by the caller ([`PoolWatch::observe_time`](crate::PoolWatch::observe_time),
//! [`BlockPool::advance_time`](kvpool::BlockPool::advance_time)); no code here reads a clock. An event
//! gets the latest time that the caller passed before it. Until the caller has passed a time once,
//! events are counted, but have no ages. A block that was computed before that, or before the pool was
//! watched, has no age.
//!
//! | histogram | from | to |
//! |---|---|---|
//! | age at a hit | a block's content became computed | each hit of the block |
//! | gap between uses | it became computed, or its previous hit | the next hit |
//! | lifetime | it became computed | its eviction |
//! | idle before eviction | it became computed, or its last hit | its eviction |
//! | hits before eviction | | the number of hits, without a unit |
//!
//! A hit is a block that a lookup acquired. If a caller shares a block by its id, that is not a hit. A
//! block is evicted to make room for others, or because its retention has ended. Blocks that were
//! dropped by id, or cleared together with all others, are counted separately, and are in no histogram.
//!
//! Invariants: N1: the number of contents that were stored and not removed equals the number of
//! computed contents of the pool. N2: each histogram has at most as many values as events were counted.
//!
//! Costs: 24 bytes per block, all allocated at construction. A hit, a computed content and a removed
//! content each take one cache line, and one bucket update per run of blocks with the same times.

mod histogram;
mod tenants;

use kvpool::observe::{Blocks, Computed, Lookup, RemovalCause, Removed};
use kvpool::parts::{ensure, try_reserve};
use kvpool::retention::EvictionCause;
use kvpool::{BlockId, BlockPool, InvariantViolation, PoolError};

pub use histogram::Histogram;
pub use tenants::{MAX_TENANTS, TenantCounts, TenantHits};

/// The upper bounds of the buckets for ages, in seconds: from ten milliseconds to a week.
pub const AGE_BOUNDS: [f64; 18] = [
    0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1_800.0, 3_600.0, 10_800.0, 21_600.0,
    86_400.0, 259_200.0, 604_800.0,
];

/// The upper bounds of the buckets for numbers of hits.
pub const HIT_BOUNDS: [f64; 9] = [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 64.0, 256.0, 1_024.0];

/// The metrics of one pool since the start of the watch. All values except for ages are in blocks.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct PoolMetrics {
    /// The latest time that the caller passed; `None` before the first.
    pub time: Option<f64>,
    /// Blocks with a content that became computed, including blocks that were already computed when the
    /// watch began.
    pub stored: u64,
    /// Computed blocks that were evicted, by cause: see [`Self::evictions`].
    evicted: [u64; EVICTION_CAUSES.len()],
    /// Computed blocks that were dropped by id, or as duplicates.
    pub dropped: u64,
    /// Computed blocks that were removed by resets and ended epochs.
    pub cleared: u64,
    /// Seconds between the time at which a block's content became computed and each hit of the block.
    pub age_at_hit: Histogram,
    /// Seconds between the previous hit of a block and each hit. For the first hit, seconds since its
    /// content became computed.
    pub reuse_gap: Histogram,
    /// Seconds between the time at which a block's content became computed and its eviction.
    pub lifetime: Histogram,
    /// Seconds between the last hit of a block and its eviction. Without a hit, seconds since its
    /// content became computed.
    pub idle_before_eviction: Histogram,
    /// The number of hits of each block before its eviction.
    pub hits_before_eviction: Histogram,
    /// Blocks that lookups requested, as hits and misses by tenant.
    pub tenants: TenantCounts,
}

const EVICTION_CAUSES: [&str; 5] = ["policy", "priority", "end-of-life", "expired", "tenant-ceiling"];

impl PoolMetrics {
    fn new(stored: u64) -> Self {
        let ages = || Histogram::new(&AGE_BOUNDS);
        Self {
            time: None,
            stored,
            evicted: [0; EVICTION_CAUSES.len()],
            dropped: 0,
            cleared: 0,
            age_at_hit: ages(),
            reuse_gap: ages(),
            lifetime: ages(),
            idle_before_eviction: ages(),
            hits_before_eviction: Histogram::new(&HIT_BOUNDS),
            tenants: TenantCounts::default(),
        }
    }

    /// Iterates over all causes of evictions: the name and the number of blocks.
    pub fn evictions(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        EVICTION_CAUSES.into_iter().zip(self.evicted)
    }

    /// Returns the number of blocks that were evicted for any cause.
    #[must_use]
    pub fn evicted(&self) -> u64 {
        self.evicted.iter().sum()
    }
}

/// The time at which a block's content became computed, the time of its last hit, and its number of
/// hits.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The time at which the block's content became computed; NaN if unknown.
    born: f64,
    /// The time of the last hit, or without a hit, the time at which the content became computed; NaN
    /// if unknown.
    used: f64,
    hits: u32,
    is_known: bool,
}

impl Seen {
    const NOTHING: Self = Self { born: f64::NAN, used: f64::NAN, hits: 0, is_known: false };
}

/// Collects the metrics of one pool.
#[derive(Debug)]
pub(crate) struct Meter {
    /// The latest time that the caller passed; NaN before the first.
    now: f64,
    /// For each block, the times and the number of its hits.
    seen: Vec<Seen>,
    metrics: PoolMetrics,
}

impl Meter {
    /// Starts to collect the metrics of a pool. O(blocks).
    pub(crate) fn new(pool: &BlockPool) -> Result<Self, PoolError> {
        let blocks = pool.num_blocks();
        let computed = (0..blocks as u32).filter(|&block| pool.is_computed(BlockId::new(block))).count();
        let mut meter = Self { now: f64::NAN, seen: Vec::new(), metrics: PoolMetrics::new(computed as u64) };
        meter.grow(blocks)?;
        Ok(meter)
    }

    /// Makes room for a pool of `num_blocks` blocks. An error changes nothing.
    pub(crate) fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let more = num_blocks.saturating_sub(self.seen.len());
        try_reserve(&mut self.seen, more)?;
        self.seen.resize(self.seen.len() + more, Seen::NOTHING);
        Ok(())
    }

    /// Sets the time. An earlier time than the current one is ignored, because it comes from another
    /// clock.
    pub(crate) fn time_passed(&mut self, now: f64) {
        if now.is_finite() && (self.now.is_nan() || now > self.now) {
            self.now = now;
        }
    }

    /// Checks that the time can be set to `now`.
    ///
    /// # Errors
    /// [`PoolError::TimeBackwards`]; [`PoolError::InvalidConfig`] if `now` is not finite.
    pub(crate) fn check_time(&self, now: f64) -> Result<(), PoolError> {
        if !now.is_finite() {
            return Err(PoolError::config("now", now, "a number of seconds"));
        }
        if now < self.now {
            let text = |time: f64| time.to_string().into_boxed_str();
            return Err(PoolError::TimeBackwards { now: text(now), before: text(self.now) });
        }
        Ok(())
    }

    pub(crate) fn looked_up(&mut self, lookup: &Lookup<'_>) {
        let asked = lookup.hashes.len();
        self.metrics.tenants.count(lookup.tenant, lookup.hits, asked.saturating_sub(lookup.hits));
        let Self { now, seen, metrics } = self;
        // Most consecutive blocks have the same times, so add each run of such blocks to the histograms
        // in one step.
        let (mut born, mut used, mut run) = (f64::NAN, f64::NAN, 0);
        let mut count = |born: f64, used: f64, run: u64| {
            metrics.age_at_hit.add(*now - born, run);
            metrics.reuse_gap.add(*now - used, run);
        };
        for block in lookup.blocks {
            let Some(at) = seen.get_mut(block.get() as usize) else { continue };
            at.hits = at.hits.saturating_add(1);
            if at.born.to_bits() != born.to_bits() || at.used.to_bits() != used.to_bits() {
                count(born, used, run);
                (born, used, run) = (at.born, at.used, 0);
            }
            run += 1;
            if !at.born.is_nan() {
                at.used = *now;
            }
        }
        count(born, used, run);
    }

    pub(crate) fn computed(&mut self, computed: &Computed) {
        self.metrics.stored += 1;
        if let Some(seen) = self.seen.get_mut(computed.block.get() as usize) {
            *seen = Seen { born: self.now, used: self.now, hits: 0, is_known: true };
        }
    }

    pub(crate) fn removed(&mut self, removed: &Removed) {
        let seen = self.seen.get_mut(removed.block.get() as usize);
        let seen = seen.map_or(Seen::NOTHING, |seen| std::mem::replace(seen, Seen::NOTHING));
        if !removed.content.computed {
            return;
        }
        let metrics = &mut self.metrics;
        let RemovalCause::Evicted(cause) = removed.cause else {
            metrics.dropped += 1;
            return;
        };
        metrics.evicted[match cause {
            EvictionCause::Priority => 1,
            EvictionCause::EndOfLife => 2,
            EvictionCause::Expired => 3,
            EvictionCause::TenantCeiling => 4,
            _ => 0,
        }] += 1;
        metrics.lifetime.add(self.now - seen.born, 1);
        metrics.idle_before_eviction.add(self.now - seen.used, 1);
        if seen.is_known {
            metrics.hits_before_eviction.add(f64::from(seen.hits), 1);
        }
    }

    /// Counts all contents as cleared. Leaves the times of the blocks, which are overwritten when the
    /// blocks become computed again.
    pub(crate) fn cleared(&mut self) {
        self.metrics.cleared += self.cached();
    }

    fn cached(&self) -> u64 {
        let PoolMetrics { stored, dropped, cleared, .. } = self.metrics;
        stored.saturating_sub(dropped + cleared + self.metrics.evicted())
    }

    /// Returns the metrics so far. O(buckets and tenants).
    pub(crate) fn metrics(&self) -> PoolMetrics {
        PoolMetrics { time: (!self.now.is_nan()).then_some(self.now), ..self.metrics.clone() }
    }

    /// Checks N1 and N2. O(blocks).
    pub(crate) fn check(&self, blocks: Blocks<'_>) -> Result<(), InvariantViolation> {
        const STORED: &str = "N1 (contents stored and not removed are the computed ones)";
        const COUNTED: &str = "N2 (histograms have at most as many values as events)";
        let computed =
            |block: &u32| blocks.get(BlockId::new(*block)).content.is_some_and(|content| content.computed);
        let found = (0..blocks.len() as u32).filter(computed).count() as u64;
        ensure(self.cached() == found, STORED, || format!("{} counted, {found} found", self.cached()))?;
        let PoolMetrics { age_at_hit, reuse_gap, lifetime, idle_before_eviction: idle, .. } = &self.metrics;
        let evicted = self.metrics.evicted();
        let right = age_at_hit.count() == reuse_gap.count()
            && lifetime.count() == idle.count()
            && lifetime.count() <= self.metrics.hits_before_eviction.count()
            && self.metrics.hits_before_eviction.count() <= evicted
            && reuse_gap.sum() <= age_at_hit.sum()
            && idle.sum() <= lifetime.sum();
        ensure(right, COUNTED, || format!("{:?}", self.metrics))
    }
}
