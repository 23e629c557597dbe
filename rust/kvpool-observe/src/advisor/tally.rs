//! The reference counts of all tenants together, or of one tenant.

use super::config::{AdvisorConfig, DEEPEST, Scale};
use super::histogram::DistanceHistogram;
use super::stack::{Bound, SampledStack};
use kvpool::PoolError;
use kvpool::retention::TenantId;

/// The setting `fine_bits` of the histograms, which determines their resolution. Distances are stored
/// with an error of at most 3 %.
const FINE_BITS: u32 = 6;
/// The largest distance that the histograms store, in hash units (usually blocks).
const LARGEST: u64 = 1 << 35;

/// Counts of references. All of them are halved periodically, so that old traffic loses weight.
#[derive(Debug)]
pub(super) struct Tally {
    references: f64,
    /// The number of references that were hits in the pool itself.
    hits: f64,
    /// The number of references to blocks that are in the sample.
    sampled: f64,
    /// The number of references that the sampled references represent: `sampled` divided by the
    /// sampling rate.
    counted: f64,
    /// Stack distances of the sampled references, in the LRU stack of all tenants.
    pub(super) distances: DistanceHistogram,
}

impl Tally {
    pub(super) fn new() -> Result<Self, PoolError> {
        let distances = DistanceHistogram::new(FINE_BITS, LARGEST)?;
        Ok(Self { references: 0.0, hits: 0.0, sampled: 0.0, counted: 0.0, distances })
    }

    pub(super) fn count(&mut self, references: u64, hits: usize) {
        self.references += references as f64;
        self.hits += hits as f64;
    }

    pub(super) fn count_sampled(&mut self, sampled: usize, weight: f64) {
        self.sampled += sampled as f64;
        self.counted += sampled as f64 * weight;
    }

    pub(super) fn halve(&mut self) {
        for count in [&mut self.references, &mut self.hits, &mut self.sampled, &mut self.counted] {
            *count *= 0.5;
        }
        self.distances.halve();
    }

    fn clear(&mut self) {
        (self.references, self.hits, self.sampled, self.counted) = (0.0, 0.0, 0.0, 0.0);
        self.distances.clear();
    }

    pub(super) fn references(&self) -> f64 {
        self.references
    }

    pub(super) fn sampled(&self) -> f64 {
        self.sampled
    }

    pub(super) fn hit_rate(&self) -> f64 {
        if self.references > 0.0 { self.hits / self.references } else { 0.0 }
    }

    /// Converts a number of estimated hits to a hit rate.
    pub(super) fn rate(&self, found: f64) -> f64 {
        rate(found, self.references, self.counted)
    }

    pub(super) fn is_sound(&self) -> bool {
        let with_distance = self.distances.at_most(u64::MAX);
        let slack = 1e-9 * (1.0 + self.counted);
        self.hits <= self.references
            && with_distance <= self.counted + slack
            && self.sampled <= self.references
    }
}

/// Computes a hit rate from `found` estimated hits. The sample represents `counted` references. Their
/// difference to the number of all references, which may be negative, is added to the hits; [`super`]
/// explains why.
pub(super) fn rate(found: f64, references: f64, counted: f64) -> f64 {
    if references > 0.0 && counted > 0.0 {
        ((found + references - counted) / references).clamp(0.0, 1.0)
    } else {
        0.0
    }
}

/// The counts of a tenant, and the LRU stack of the blocks that it requested.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) id: TenantId,
    pub(super) tally: Tally,
    pub(super) stack: SampledStack,
    /// Stack distances of the tenant's references, in its own LRU stack.
    pub(super) alone: DistanceHistogram,
}

impl Tenant {
    /// Allocates all memory for the counts of one tenant. Its LRU stack can contain as many blocks as
    /// the pool.
    pub(super) fn new(config: &AdvisorConfig, scale: Scale) -> Result<Self, PoolError> {
        let depth = Bound::Depth(config.max_sampled_blocks / DEEPEST);
        Ok(Self {
            id: TenantId(0),
            tally: Tally::new()?,
            stack: SampledStack::new(scale.rate, config.seed, depth)?,
            alone: DistanceHistogram::new(FINE_BITS, LARGEST)?,
        })
    }

    pub(super) fn halve(&mut self) {
        self.tally.halve();
        self.alone.halve();
    }

    pub(super) fn clear(&mut self) {
        self.tally.clear();
        self.stack.clear();
        self.alone.clear();
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.tally.distances.heap_bytes() + self.stack.heap_bytes() + self.alone.heap_bytes()
    }
}
