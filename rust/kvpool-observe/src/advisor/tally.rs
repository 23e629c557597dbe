//! What is counted of one stream of references: everybody's, or a tenant's.

use super::config::{AdvisorConfig, DEEPEST, Scale};
use super::histogram::DistanceHistogram;
use super::stack::{Bound, SampledStack};
use kvpool::PoolError;
use kvpool::retention::TenantId;

/// Distances are kept to 3 %.
const FINE_BITS: u32 = 6;
/// The deepest that is looked in the largest pool.
const LARGEST: u64 = 1 << 35;

/// Counts of references, halved from time to time.
#[derive(Debug)]
pub(super) struct Tally {
    references: f64,
    /// Of those, what the pool hit.
    hits: f64,
    /// References that were sampled.
    sampled: f64,
    /// References that these stand for.
    counted: f64,
    /// Of those, the ones with a distance in everybody's stack.
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

    /// What the pool hit.
    pub(super) fn hit_rate(&self) -> f64 {
        if self.references > 0.0 { self.hits / self.references } else { 0.0 }
    }

    /// The hit rate of an estimator that found `found` hits.
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

/// A hit rate from a sample: what was not counted of the references, or too much, was hit (see [`super`]).
pub(super) fn rate(found: f64, references: f64, counted: f64) -> f64 {
    if references > 0.0 && counted > 0.0 {
        ((found + references - counted) / references).clamp(0.0, 1.0)
    } else {
        0.0
    }
}

/// A tenant's counts, and the stack of its own blocks.
#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) id: TenantId,
    pub(super) tally: Tally,
    pub(super) stack: SampledStack,
    /// Distances in it.
    pub(super) alone: DistanceHistogram,
}

impl Tenant {
    /// A place for a tenant, with all its memory taken: its stack is as deep as the pool.
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

    /// Somebody else's from now on.
    pub(super) fn clear(&mut self) {
        self.tally.clear();
        self.stack.clear();
        self.alone.clear();
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.tally.distances.heap_bytes() + self.stack.heap_bytes() + self.alone.heap_bytes()
    }
}
