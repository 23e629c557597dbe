//! `Clock`: the time of the `hazard` policy. It is the caller's time if the caller passes one, and
//! otherwise a count of admitted blocks.
//!
//! Once the caller has passed a time, the clock uses the caller's times. If the caller's time then does
//! not change while [`MAX_STILL`] times as many blocks as the pool has are admitted, the clock ignores
//! the caller's times until the policy is reset. Otherwise ages would never grow, and blocks that were
//! used once would be kept for ever.
//!
//! Invariant: time never goes backward.

use super::age;
use kvpool::CacheTime;

/// The clock ignores the caller's time if it does not change while this number of capacities is
/// admitted. A capacity is the pool's number of blocks.
const MAX_STILL: u64 = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Source {
    /// The clock counts admitted blocks, because the caller has passed no time.
    #[default]
    Own,
    /// The clock uses the caller's times. This is the latest one, in ticks.
    Caller(u64),
    /// The clock counts admitted blocks, because the caller's time did not change for too long.
    OwnPermanently,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    now: u32,
    source: Source,
    /// The number of blocks that were admitted since the last tick (unit of time). With the caller's
    /// clock: since the caller's time changed.
    admitted: u64,
}

impl Clock {
    #[inline]
    pub(super) const fn now(self) -> u32 {
        self.now
    }

    #[inline]
    pub(super) const fn age(self, stamp: u32) -> u32 {
        self.now.wrapping_sub(stamp)
    }

    pub(super) const fn uses_callers_clock(self) -> bool {
        matches!(self.source, Source::Caller(_))
    }

    /// Converts ticks to the unit that explanations show: seconds, or admitted blocks divided by the
    /// pool's number of blocks.
    pub(super) fn kept(self, ticks: f64) -> CacheTime {
        if self.uses_callers_clock() {
            CacheTime::Seconds((ticks / f64::from(age::SECOND)) as f32)
        } else {
            CacheTime::Capacities((ticks / age::CAPACITY as f64) as f32)
        }
    }

    /// Counts an admitted block, in a pool of `capacity` blocks. Returns whether the meaning of a tick
    /// changes, because the clock no longer uses the caller's times.
    #[inline]
    pub(super) fn admit(&mut self, capacity: usize) -> bool {
        let capacity = (capacity as u64).max(1);
        if let Source::Caller(_) = self.source {
            self.admitted += 1;
            if self.admitted <= capacity.saturating_mul(MAX_STILL) {
                return false;
            }
            self.admitted = 0;
            self.source = Source::OwnPermanently;
            return true;
        }
        self.admitted += age::CAPACITY;
        if self.admitted >= capacity {
            self.now = self.now.wrapping_add((self.admitted / capacity) as u32);
            self.admitted %= capacity;
        }
        false
    }

    /// Sets the caller's time, in seconds. Returns whether the meaning of a tick changes, because the
    /// clock counted admitted blocks before.
    pub(super) fn set_callers_time(&mut self, seconds: f64) -> bool {
        if !seconds.is_finite() || self.source == Source::OwnPermanently {
            return false;
        }
        let ticks = (seconds * f64::from(age::SECOND)) as u64; // rounds down; negative times become 0
        let begins = match self.source {
            Source::Caller(before) if ticks <= before => return false,
            Source::Caller(before) => {
                self.now = self.now.wrapping_add((ticks - before) as u32);
                false
            }
            Source::Own | Source::OwnPermanently => true,
        };
        self.source = Source::Caller(ticks);
        self.admitted = 0;
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_clock_admitted_blocks_are_counted() {
        let mut clock = Clock::default();
        assert!((0..1000).all(|_| !clock.admit(1000)));
        assert_eq!(clock.now(), age::CAPACITY as u32);
    }

    #[test]
    fn the_callers_clock_counts_from_its_first_time() {
        let mut clock = Clock::default();
        assert!(clock.set_callers_time(1e9), "ticks are seconds from now on");
        assert!(
            !clock.set_callers_time(1e9 + 2.5)
                && !clock.set_callers_time(1e9 + 1.0)
                && !clock.set_callers_time(f64::NAN)
        );
        assert_eq!(clock.age(0), 40, "2.5 s, and never back");
        clock.admit(1);
        assert_eq!(clock.now(), 40);
    }

    #[test]
    fn a_clock_that_stops_is_ignored() {
        let mut clock = Clock::default();
        clock.set_callers_time(5.0);
        assert!((0..80).all(|_| !clock.admit(10)));
        assert!(clock.admit(10));
        assert!(!clock.set_callers_time(6.0));
        let before = clock.now();
        (0..10).for_each(|_| assert!(!clock.admit(10)));
        assert_eq!(clock.age(before), age::CAPACITY as u32);
    }
}
