//! `Histogram`: counts in fixed buckets, and their sum.
//!
//! The buckets of a histogram never change. So histograms of several pools, or of one pool at several
//! times, can be added and subtracted bucket by bucket. Cost: `add` compares the value with about
//! twenty bounds, once for all `times`.

/// Counts of values, in buckets with fixed upper bounds.
///
/// ```
/// use kvpool_observe::metrics::Histogram;
/// let mut hits = Histogram::new(&[0.0, 1.0, 10.0]);
/// hits.add(1.0, 3);
/// hits.add(50.0, 1);
/// hits.add(f64::NAN, 9); // not counted
/// assert_eq!(hits.counts(), [0, 3, 0, 1]);
/// assert_eq!((hits.count(), hits.sum()), (4, 53.0));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// The number of values in each bucket. The last bucket is for values above all bounds.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// Makes an empty histogram. `bounds` are the upper bounds of the buckets, ascending and inclusive.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Counts a value `times` times. A negative value is counted as 0. NaN is not counted.
    #[inline]
    pub fn add(&mut self, value: f64, times: u64) {
        if value.is_nan() || times == 0 {
            return;
        }
        let value = value.max(0.0);
        let bucket = self.bounds.partition_point(|&end| end < value);
        if let Some(count) = self.counts.get_mut(bucket) {
            *count += times;
        }
        self.sum += value * times as f64;
    }

    /// Returns the upper bounds of the buckets. The last bucket has none, so it is left out.
    #[must_use]
    pub const fn bounds(&self) -> &'static [f64] {
        self.bounds
    }

    /// The count of each bucket. The counts are not cumulative.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Returns the number of values that were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all values that were counted.
    #[must_use]
    pub const fn sum(&self) -> f64 {
        self.sum
    }
}
