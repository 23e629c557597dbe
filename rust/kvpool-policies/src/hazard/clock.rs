//! `Clock`: what time it is, whoever says it.
//!
//! Owns: the choice between the caller's clock and one of our own, which counts admitted blocks. The
//! caller's counts from the first time that it is told on. One that stands still for [`STILL`]
//! capacities of admitted blocks is believed no more, until everything is forgotten: ages that never
//! grow would keep what was used once for ever.
//!
//! Invariant: time never goes back.

use super::age;
use kvpool::Kept;

/// Capacities of admitted blocks during which a clock must move.
const STILL: u64 = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Source {
    /// Admitted blocks.
    #[default]
    Own,
    /// Times that the caller tells: the latest, in ticks.
    Told(u64),
    /// The caller's stood still.
    OwnForGood,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    now: u32,
    source: Source,
    /// Of our own: parts of a tick. Of the caller's: blocks admitted since it moved.
    admitted: u64,
}

impl Clock {
    /// The time, in ticks.
    #[inline]
    pub(super) const fn now(self) -> u32 {
        self.now
    }

    /// How long ago a time was.
    #[inline]
    pub(super) const fn age(self, stamp: u32) -> u32 {
        self.now.wrapping_sub(stamp)
    }

    /// Whether ticks are the caller's time.
    pub(super) const fn is_told(self) -> bool {
        matches!(self.source, Source::Told(_))
    }

    /// So many ticks, as users count them.
    pub(super) fn kept(self, ticks: f64) -> Kept {
        if self.is_told() {
            Kept::Seconds((ticks / f64::from(age::SECOND)) as f32)
        } else {
            Kept::Capacities((ticks / age::CAPACITY as f64) as f32)
        }
    }

    /// A block is admitted to a pool of `capacity`. Returns whether ticks are of another length from now on.
    #[inline]
    pub(super) fn admit(&mut self, capacity: usize) -> bool {
        let capacity = (capacity as u64).max(1);
        if let Source::Told(_) = self.source {
            self.admitted += 1;
            if self.admitted <= capacity.saturating_mul(STILL) {
                return false;
            }
            self.admitted = 0;
            self.source = Source::OwnForGood;
            return true;
        }
        self.admitted += age::CAPACITY;
        if self.admitted >= capacity {
            self.now = self.now.wrapping_add((self.admitted / capacity) as u32);
            self.admitted %= capacity;
        }
        false
    }

    /// The caller says what time it is, in seconds. Returns whether ticks are of another length from now on.
    pub(super) fn tell(&mut self, seconds: f64) -> bool {
        if !seconds.is_finite() || self.source == Source::OwnForGood {
            return false;
        }
        let ticks = (seconds * f64::from(age::SECOND)) as u64; // rounds down, 0 below 0
        let begins = match self.source {
            Source::Told(before) if ticks <= before => return false,
            Source::Told(before) => {
                self.now = self.now.wrapping_add((ticks - before) as u32);
                false
            }
            Source::Own | Source::OwnForGood => true,
        };
        self.source = Source::Told(ticks);
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
        assert!(clock.tell(1e9), "ticks are seconds from now on");
        assert!(!clock.tell(1e9 + 2.5) && !clock.tell(1e9 + 1.0) && !clock.tell(f64::NAN));
        assert_eq!(clock.age(0), 40, "2.5 s, and never back");
        clock.admit(1);
        assert_eq!(clock.now(), 40);
    }

    #[test]
    fn a_clock_that_stands_still_is_believed_no_more() {
        let mut clock = Clock::default();
        clock.tell(5.0);
        assert!((0..80).all(|_| !clock.admit(10)));
        assert!(clock.admit(10));
        assert!(!clock.tell(6.0));
        let before = clock.now();
        (0..10).for_each(|_| assert!(!clock.admit(10)));
        assert_eq!(clock.age(before), age::CAPACITY as u32);
    }
}
