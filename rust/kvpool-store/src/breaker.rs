//! `Breaker`: stops calling a back end for a while after repeated failures.
//!
//! Owns: the number of failures in a row, and the end of the pause. After the pause, the store sends
//! one object as a trial. The result of the trial decides whether the breaker closes or opens again.
//! The caller passes the time.

use std::time::Duration;

/// The conditions under which the breaker opens.
///
/// ```
/// use kvpool_store::{BreakerConfig, StoreConfig};
/// use std::time::Duration;
/// let breaker = BreakerConfig { failures: 3, pause: Duration::from_secs(30) };
/// let config = StoreConfig { breaker, ..StoreConfig::default() };
/// # assert_eq!(config.breaker.failures, 3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Number of consecutive failures that opens the breaker; at least 1. A passed deadline is a
    /// failure.
    pub failures: u32,
    /// Time for which the breaker remains open.
    pub pause: Duration,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        Self { failures: 8, pause: Duration::from_secs(5) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed {
        failed: u32,
    },
    Open {
        until: Duration,
    },
    /// After the pause, one object is in flight as a trial.
    Trying,
}

#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    config: BreakerConfig,
    state: State,
    opened: u64,
}

impl Breaker {
    pub(crate) const fn new(config: BreakerConfig) -> Self {
        Self { config, state: State::Closed { failed: 0 }, opened: 0 }
    }

    /// Whether the store may send an object now.
    pub(crate) fn would_pass(&self, now: Duration) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::Open { until } => now >= until,
            State::Trying => false,
        }
    }

    /// Returns whether the store may send an object. If true, the store has to send it. After a pause,
    /// only one object may be sent, and the store has to report its result.
    pub(crate) fn pass(&mut self, now: Duration) -> bool {
        let passes = self.would_pass(now);
        if passes && !matches!(self.state, State::Closed { .. }) {
            self.state = State::Trying;
        }
        passes
    }

    pub(crate) const fn succeeded(&mut self) {
        self.state = State::Closed { failed: 0 };
    }

    pub(crate) fn failed(&mut self, now: Duration) {
        let failed = match self.state {
            State::Closed { failed } => failed.saturating_add(1),
            State::Trying => u32::MAX,
            State::Open { .. } => return,
        };
        self.state = State::Closed { failed };
        if failed >= self.config.failures {
            self.state = State::Open { until: now.saturating_add(self.config.pause) };
            self.opened += 1;
        }
    }

    /// Number of times that the breaker has opened.
    pub(crate) const fn opened(&self) -> u64 {
        self.opened
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn failures_in_a_row_open_the_breaker() {
        let mut breaker = Breaker::new(BreakerConfig { failures: 2, pause: SECOND });
        breaker.failed(Duration::ZERO);
        breaker.succeeded();
        breaker.failed(Duration::ZERO);
        assert!(breaker.pass(Duration::ZERO));
        breaker.failed(SECOND);
        assert!(!breaker.pass(SECOND) && !breaker.pass(SECOND * 2 - Duration::from_nanos(1)));
        assert!(breaker.pass(SECOND * 2));
        assert!(!breaker.pass(SECOND * 9), "one is tried, and its end is not known");
        breaker.failed(SECOND * 9);
        assert!(!breaker.would_pass(SECOND * 9) && breaker.pass(SECOND * 10));
        breaker.succeeded();
        assert!(breaker.pass(SECOND * 10) && breaker.pass(SECOND * 10));
        assert_eq!(breaker.opened(), 2);
    }

    /// An object that was sent before the breaker opened may fail later. This failure does not extend
    /// the pause.
    #[test]
    fn an_open_breaker_ignores_late_failures() {
        let mut breaker = Breaker::new(BreakerConfig { failures: 1, pause: SECOND });
        breaker.failed(Duration::ZERO);
        breaker.failed(SECOND / 2);
        assert!(breaker.pass(SECOND));
    }
}
