//! `DistanceHistogram`: weights of stack distances, in buckets of bounded relative width.
//!
//! With `fine_bits` bits, each distance up to 2^`fine_bits` has a bucket of its own. A larger distance
//! shares a bucket, which is at most 2^(1 - `fine_bits`) of the distance wide. So memory grows with the
//! logarithm of the largest distance.
//!
//! Costs: `add` is O(1), a sum O(buckets). 8 bytes per bucket, all allocated at construction.

use kvpool::PoolError;
use kvpool::parts::try_reserve;

/// A weighted histogram of stack distances. Distances start at 1.
///
/// ```
/// use kvpool_observe::advisor::DistanceHistogram;
/// let mut distances = DistanceHistogram::new(9, 1 << 20)?;
/// distances.add(3, 2.0);
/// distances.add(400, 1.0);
/// distances.add(1 << 21, 1.0); // above the largest distance: ignored
/// assert_eq!((distances.at_most(2), distances.at_most(3), distances.at_most(1 << 20)), (0.0, 2.0, 3.0));
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct DistanceHistogram {
    fine_bits: u32,
    weights: Vec<f64>,
}

impl DistanceHistogram {
    /// Makes an empty histogram for distances up to at least `largest`. A value of `fine_bits` outside
    /// of 2 to 16 is replaced by the nearest bound.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is not enough memory.
    pub fn new(fine_bits: u32, largest: u64) -> Result<Self, PoolError> {
        let mut histogram = Self { fine_bits: fine_bits.clamp(2, 16), weights: Vec::new() };
        let buckets = histogram.bucket_of(largest) + 1;
        try_reserve(&mut histogram.weights, buckets)?;
        histogram.weights.resize(buckets, 0.0);
        Ok(histogram)
    }

    /// Adds a weight, which may be negative, to a distance. Ignores a distance above the largest,
    /// because a cache would have to be irrelevantly large to hit it.
    pub fn add(&mut self, distance: u64, weight: f64) {
        let bucket = self.bucket_of(distance);
        if let Some(sum) = self.weights.get_mut(bucket) {
            *sum += weight;
        }
    }

    /// Returns the total weight of distances up to `distance`. Counts only a share of the bucket that
    /// contains `distance`, as if the weight of this bucket were evenly distributed.
    #[must_use]
    pub fn at_most(&self, distance: u64) -> f64 {
        if distance == 0 {
            return 0.0;
        }
        let last = self.bucket_of(distance);
        let whole: f64 = self.weights.iter().take(last).sum();
        let before = last.checked_sub(1).map_or(0, |bucket| self.upper_end(bucket));
        let share = (distance - before) as f64 / (self.upper_end(last) - before) as f64;
        whole + share * self.weights.get(last).copied().unwrap_or(0.0)
    }

    /// Iterates over the buckets: the largest distance and the weight of each, in ascending order.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        self.weights.iter().enumerate().map(|(bucket, &weight)| (self.upper_end(bucket), weight))
    }

    /// Halves all weights.
    pub fn halve(&mut self) {
        self.weights.iter_mut().for_each(|weight| *weight *= 0.5);
    }

    /// Removes all weights.
    pub fn clear(&mut self) {
        self.weights.fill(0.0);
    }

    /// Returns the size of the histogram's heap memory, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        8 * self.weights.capacity()
    }

    /// Returns the index of the bucket for a distance of 1 or more.
    fn bucket_of(&self, distance: u64) -> usize {
        let index = distance.saturating_sub(1);
        if index >> self.fine_bits == 0 {
            return index as usize;
        }
        let octave = u64::from(index.ilog2() - self.fine_bits) + 1;
        (octave * self.per_octave() + (index >> octave)) as usize
    }

    fn upper_end(&self, bucket: usize) -> u64 {
        let bucket = bucket as u64;
        if bucket >> self.fine_bits == 0 {
            return bucket + 1;
        }
        let octave = (bucket - self.per_octave()) / self.per_octave();
        let step = bucket - octave * self.per_octave();
        (step + 1).checked_shl(octave as u32).filter(|end| end >> octave == step + 1).unwrap_or(u64::MAX)
    }

    const fn per_octave(&self) -> u64 {
        1 << (self.fine_bits - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_cover_all_distances() {
        for fine_bits in [2, 6, 9] {
            let histogram = DistanceHistogram::new(fine_bits, 1).unwrap();
            let mut before = (0, 0);
            for distance in (1..4_095).chain((12..63).flat_map(|bits| {
                let power = 1_u64 << bits;
                [power - 1, power, power + 1, power + power / 3]
            })) {
                let bucket = histogram.bucket_of(distance);
                let end = histogram.upper_end(bucket);
                let width = distance as f64 / histogram.per_octave() as f64;
                assert!(distance <= end && (end - distance) as f64 <= width, "{distance} {end}");
                assert_eq!(histogram.bucket_of(end), bucket, "{distance}");
                assert_eq!(histogram.bucket_of(end + 1), bucket + 1, "{distance}");
                assert!(bucket >= before.0 && end >= before.1);
                before = (bucket, end);
            }
            assert_eq!(histogram.upper_end(histogram.bucket_of(u64::MAX)), u64::MAX);
        }
    }

    #[test]
    fn sums_rise_evenly_within_a_bucket() {
        let mut histogram = DistanceHistogram::new(3, 1000).unwrap();
        histogram.add(65, 8.0); // its bucket is 65 to 80
        let sums = [64, 65, 72, 80, 81, 5000].map(|distance| histogram.at_most(distance));
        assert_eq!(sums, [0.0, 0.5, 4.0, 8.0, 8.0, 8.0]);
        histogram.halve();
        assert_eq!(histogram.at_most(1000), 4.0);
    }
}
