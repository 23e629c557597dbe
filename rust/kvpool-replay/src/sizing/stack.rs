//! LRU at every capacity in one pass, by stack distances.
//!
//! [`lru_distances`] computes the result, [`ReuseDistances`].
//!
//! **Why one pass is enough** (Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage
//! hierarchies", 1970). Order all blocks by last use, latest first. Within a request, the first block
//! of the prompt comes first, because the blocks of a request are released last block first. An LRU
//! cache of C blocks then contains the first C blocks of this stack, for every C at once. Blocks that
//! hit are held while the rest of the prompt is stored, so a request never evicts its own blocks. The
//! exception is a prompt larger than the cache, of which the first C blocks remain.
//!
//! So a reference hits in a cache of C blocks if and only if the block's position in the stack, its
//! *distance*, is at most C. A block comes after its parent in the stack, so its distance is larger. So
//! the hits of a request are a prefix at every capacity, and references can be counted one by one.
//!
//! **Why it is fast.** References are processed in [`Run`](super::Run)s. For a run, only the number of
//! blocks that were last used after its request `from` is needed. That is a sum over requests, from a
//! tree (Fenwick 1994) with one entry per request, which fits into the CPU cache. (Other
//! implementations have one entry per reference.) The blocks of a run are neighbours in the stack, so
//! their distances are consecutive, and two entries in an array of differences represent them.
//!
//! Costs, without those of [`References`]: O(runs * log(requests) + unique blocks). 8 bytes per unique
//! block during the computation, and 24 bytes in the result per distance that occurs.

use kvpool_observe::advisor::Fenwick;

use super::curve::{CurvePoint, HitCurve};
use super::references::References;

/// Returns the exact stack distances of all references.
///
/// ```
/// use kvpool_replay::{generate::{GeneratorConfig, generate}, sizing::{Blocks, References, lru_distances}};
///
/// let trace = generate(&GeneratorConfig { requests: 500, ..GeneratorConfig::default() }).unwrap();
/// let references = References::new(&trace, Blocks::All)?;
/// let distances = lru_distances(&references);
/// let curve = distances.curve();
/// assert!(curve.at(100).block_hits < curve.at(1000).block_hits);
/// // A cache as large as the largest distance evicts no block before its last use.
/// assert_eq!(curve.ceiling().block_hits, references.reused() as u64);
/// assert_eq!(distances.quantile(1.0), Some(curve.ceiling().capacity_blocks));
/// # Ok::<(), kvpool_replay::sizing::SizingError>(())
/// ```
#[must_use]
pub fn lru_distances(references: &References) -> ReuseDistances {
    let mut used_last = Fenwick::new(references.requests());
    // For each distance, the number of reused full blocks at this distance, minus the number at the
    // previous distance.
    let mut full = vec![0_i64; references.unique_blocks() + 2];
    // The distance and the number of tokens of each reused partial last block. There are few such
    // blocks.
    let mut partial: Vec<(u32, u64)> = Vec::new();
    let block_tokens = references.block_tokens() as u64;
    for index in 0..references.requests() {
        let (filled, rest) = (
            u64::from(references.input_tokens(index)) / block_tokens,
            u64::from(references.input_tokens(index)) % block_tokens,
        );
        for run in references.runs_to(index) {
            // Distance of the run's first block. Before it in the stack are its `run.start` ancestors,
            // and all blocks that were used after request `run.from`. `used_last` does not contain the
            // ancestors any more, because the runs before this one have subtracted them.
            let first = run.start + used_last.after(run.from) + 1;
            // Only the last block of a prompt can be partial. Count it separately.
            let whole = if u64::from(run.end()) > filled { run.count - 1 } else { run.count };
            full[first as usize] += 1;
            full[(first + whole) as usize] -= 1;
            if whole < run.count {
                partial.push((first + whole, rest));
            }
            used_last.subtract(run.from, run.count);
        }
        used_last.add(index as u32, references.request_len(index));
    }
    partial.sort_unstable();
    ReuseDistances::new(HitCurve::of(points(&full, &partial, block_tokens), references))
}

/// Makes the points of the curve: at each distance, adds the hits of a cache that has just this size.
fn points(full: &[i64], partial: &[(u32, u64)], block_tokens: u64) -> Vec<CurvePoint> {
    let mut points = Vec::new();
    let mut partial = partial.iter().peekable();
    let mut sum = CurvePoint::default();
    let mut here = 0;
    for (distance, difference) in (0..).zip(full) {
        here += difference;
        // The sum of the differences is a number of blocks, so it is never negative.
        let (mut blocks, mut tokens) = (here as u64, here as u64 * block_tokens);
        while let Some((_, rest)) = partial.next_if(|&&(at, _)| u64::from(at) == distance) {
            blocks += 1;
            tokens += rest;
        }
        if blocks > 0 {
            sum.capacity_blocks = distance;
            sum.block_hits += blocks;
            sum.token_hits += tokens;
            points.push(sum);
        }
    }
    points.shrink_to_fit();
    points
}

/// The distances between uses of the same block. A distance is the number of distinct blocks used in
/// between, plus one for the block itself. The distances determine the hits of an LRU cache of any
/// size.
#[derive(Clone, Debug, PartialEq)]
pub struct ReuseDistances {
    curve: HitCurve,
}

/// The references in one range of distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DistanceBucket {
    /// The smallest distance of the range.
    pub from: u64,
    /// The largest distance of the range.
    pub to: u64,
    /// The number of block references whose distance is in the range.
    pub references: u64,
}

impl ReuseDistances {
    pub(super) fn new(curve: HitCurve) -> Self {
        Self { curve }
    }

    /// The hits of an LRU cache at every capacity.
    #[must_use]
    pub fn curve(&self) -> &HitCurve {
        &self.curve
    }

    /// Returns the curve without a copy.
    #[must_use]
    pub fn into_curve(self) -> HitCurve {
        self.curve
    }

    /// The number of block references to blocks that were used before. Each of them has a distance.
    #[must_use]
    pub fn reused(&self) -> u64 {
        self.curve.ceiling().block_hits
    }

    /// The number of block references to new blocks. They have no distance, because no cache can hit
    /// them.
    #[must_use]
    pub fn cold(&self) -> u64 {
        self.curve.references() - self.reused()
    }

    /// Returns the smallest distance D for which a `fraction` (0 to 1) of the references with a
    /// distance have at most D. `None` if no block is ever used again, or for a fraction out of range.
    #[must_use]
    pub fn quantile(&self, fraction: f64) -> Option<u64> {
        if !(0.0..=1.0).contains(&fraction) {
            return None;
        }
        let least = (fraction * self.reused() as f64).ceil() as u64;
        let points = self.curve.points();
        points
            .get(points.partition_point(|point| point.block_hits < least))
            .map(|point| point.capacity_blocks)
    }

    /// Returns the number of references by distance, in ranges that end at powers of two: 1, 2, 3 to 4,
    /// 5 to 8, ... up to the largest distance that occurs. Empty if no block is ever used again.
    ///
    /// ```
    /// # use kvpool_replay::generate::{GeneratorConfig, generate};
    /// # use kvpool_replay::sizing::{Blocks, References, lru_distances};
    /// # let trace = generate(&GeneratorConfig { requests: 500, ..GeneratorConfig::default() }).unwrap();
    /// let distances = lru_distances(&References::new(&trace, Blocks::All)?);
    /// let histogram = distances.histogram();
    /// assert_eq!((histogram[2].from, histogram[2].to), (3, 4));
    /// assert_eq!(histogram.iter().map(|bucket| bucket.references).sum::<u64>(), distances.reused());
    /// # Ok::<(), kvpool_replay::sizing::SizingError>(())
    /// ```
    #[must_use]
    pub fn histogram(&self) -> Vec<DistanceBucket> {
        let mut buckets = Vec::new();
        let (mut from, mut to, mut below) = (1, 1, 0);
        while below < self.reused() {
            let hits = self.curve.at(to).block_hits;
            buckets.push(DistanceBucket { from, to, references: hits - below });
            (from, to, below) = (to + 1, to.saturating_mul(2), hits);
        }
        buckets
    }
}
