//! LRU at every capacity in one pass: stack distances.
//!
//! Owns [`lru_distances`] and what it gives, [`ReuseDistances`].
//!
//! **Why one pass is enough** (Mattson, Gecsei, Slutz and Traiger, "Evaluation techniques for storage
//! hierarchies", 1970). Order all blocks by last use, latest first, and within a request root first,
//! since a request's blocks are released tail first. An LRU cache of C blocks then holds the first C of
//! this stack, for every C at once: hits are pinned while the rest of the prompt is stored, so a
//! request's own blocks never push each other out, but for those of a prompt that is larger than the
//! cache, of which the first C stay. So a reference is a hit in a cache of C blocks exactly if the
//! block's position in the stack, its *distance*, is at most C. A block stands behind its parent, so
//! its distance is the larger one: the hits of a request are a prefix at every capacity, and nothing is
//! lost by counting references one by one.
//!
//! **Why it is fast.** Blocks come in [`Run`](super::Run)s, and all that a run asks for is the number
//! of blocks last used after its request `from`: a sum over requests, from a tree (Fenwick 1994) with
//! one entry per request that fits the cache, where the usual ones have one entry per reference. The
//! blocks of a run are neighbours in the stack, so their distances are consecutive, and count as two
//! marks in an array of differences.
//!
//! Costs, once [`References`] are made: O(runs * log(requests) + unique blocks). 8 bytes per unique
//! block while it works; 24 bytes held per distance that occurs.

use kvpool_observe::advisor::Fenwick;

use super::curve::{CurvePoint, HitCurve};
use super::references::References;

/// Stack distances of all references, exact.
///
/// ```
/// use kvpool_replay::{generate::{GeneratorConfig, generate}, sizing::{Blocks, References, lru_distances}};
///
/// let trace = generate(&GeneratorConfig { requests: 500, ..GeneratorConfig::default() }).unwrap();
/// let references = References::new(&trace, Blocks::All)?;
/// let distances = lru_distances(&references);
/// let curve = distances.curve();
/// assert!(curve.at(100).block_hits < curve.at(1000).block_hits);
/// // A cache as large as the largest distance loses nothing.
/// assert_eq!(curve.ceiling().block_hits, references.reused() as u64);
/// assert_eq!(distances.quantile(1.0), Some(curve.ceiling().capacity_blocks));
/// # Ok::<(), kvpool_replay::sizing::SizingError>(())
/// ```
#[must_use]
pub fn lru_distances(references: &References) -> ReuseDistances {
    let mut used_last = Fenwick::new(references.requests());
    // Differences of the number of full blocks at each distance.
    let mut full = vec![0_i64; references.unique_blocks() + 2];
    // Partial last blocks that are used again are few: distance and tokens of each.
    let mut partial: Vec<(u32, u64)> = Vec::new();
    let block_tokens = references.block_tokens() as u64;
    for index in 0..references.requests() {
        let (filled, rest) = (
            u64::from(references.input_tokens(index)) / block_tokens,
            u64::from(references.input_tokens(index)) % block_tokens,
        );
        for run in references.runs_to(index) {
            // Behind its own ancestors, which the runs before this one have taken out, and all that was
            // used later.
            let first = run.start + used_last.after(run.from) + 1;
            // Only the last block of a prompt can be partial.
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

/// Sums up the hits at each distance.
fn points(full: &[i64], partial: &[(u32, u64)], block_tokens: u64) -> Vec<CurvePoint> {
    let mut points = Vec::new();
    let mut partial = partial.iter().peekable();
    let mut sum = CurvePoint::default();
    let mut here = 0;
    for (distance, difference) in (0..).zip(full) {
        here += difference;
        let (mut blocks, mut tokens) = (here as u64, here as u64 * block_tokens); // never below 0, see `lru_distances`
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

/// How far apart uses of the same block are, in different blocks used in between, the block itself
/// counted: 1 is a block at the top of the stack. Hence also what an LRU cache of any size finds.
#[derive(Clone, Debug, PartialEq)]
pub struct ReuseDistances {
    curve: HitCurve,
}

/// References in one range of distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DistanceBucket {
    /// The smallest distance of the range.
    pub from: u64,
    /// The largest.
    pub to: u64,
    /// References in it.
    pub references: u64,
}

impl ReuseDistances {
    pub(super) fn new(curve: HitCurve) -> Self {
        Self { curve }
    }

    /// Hits of an LRU cache of every capacity.
    #[must_use]
    pub fn curve(&self) -> &HitCurve {
        &self.curve
    }

    /// The curve, given up.
    #[must_use]
    pub fn into_curve(self) -> HitCurve {
        self.curve
    }

    /// References to blocks that were there before: those that have a distance.
    #[must_use]
    pub fn reused(&self) -> u64 {
        self.curve.ceiling().block_hits
    }

    /// References that have none, as their block is new: no cache can hit them.
    #[must_use]
    pub fn cold(&self) -> u64 {
        self.curve.references() - self.reused()
    }

    /// The smallest distance that a `fraction` (0 to 1) of the reused references does not exceed;
    /// `None` if no block is ever used again, or for a fraction out of range.
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

    /// References by distance, in powers of two: 1, 2, 3 to 4, 5 to 8, ... up to the largest that
    /// occurs. Empty if no block is ever used again.
    ///
    /// ```
    /// # use kvpool_replay::{generate::{GeneratorConfig, generate}, sizing::{Blocks, References, lru_distances}};
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
