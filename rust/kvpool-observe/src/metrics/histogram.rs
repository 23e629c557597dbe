//! `Histogram`: counts in fixed buckets, and their sum.
//!
//! Owns: the counts. Buckets never change, so that histograms of several pools, and of one at several
//! times, can be added and subtracted bucket by bucket. Costs: adding is a search in some twenty
//! numbers, whatever the count.

/// Counts by value, in buckets of fixed upper ends.
///
/// ```
/// use kvpool_observe::metrics::Histogram;
/// let mut hits = Histogram::new(&[0.0, 1.0, 10.0]);
/// hits.add(1.0, 3);
/// hits.add(50.0, 1);
/// hits.add(f64::NAN, 9); // unknown: counted nowhere
/// assert_eq!(hits.counts(), [0, 3, 0, 1]);
/// assert_eq!((hits.count(), hits.sum()), (4, 53.0));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One more than bounds: the last is what is beyond them.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// Nothing counted. Upper ends of buckets rise, and belong to them.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Counts a value so many times; below nothing as nothing, and what is no number not at all.
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

    /// Upper ends of all buckets but the last, which has none.
    #[must_use]
    pub const fn bounds(&self) -> &'static [f64] {
        self.bounds
    }

    /// Counts of each bucket alone.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Values counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Their sum.
    #[must_use]
    pub const fn sum(&self) -> f64 {
        self.sum
    }
}
