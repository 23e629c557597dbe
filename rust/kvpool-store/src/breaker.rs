//! `Breaker`: stops calling a back end for a while after repeated failures.
//!
//! Owns: the number of failures in a row, and the end of the pause. After the pause, the store sends
//! one object as a trial. If the trial succeeds, the store may call the back end again. If it fails,
//! another pause begins. The breaker reads no clock: the caller passes the time.

use std::time::Duration;

/// How many failures open the breaker, and for how long. While the breaker is open, the store does not
/// call the back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Number of consecutive failures that opens the breaker; at least 1. A passed deadline is a
    /// failure.
    pub failures: u32,
    /// Time for which the breaker stays open, so that the store does not call the back end.
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
    /// The pause has ended, and one object is in flight as a trial.
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

    /// Returns whether the store may send an object to the back end now.
    pub(crate) fn would_pass(&self, now: Duration) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::Open { until } => now >= until,
            State::Trying => false,
        }
    }

    /// Returns whether the store may send an object to the back end. If the result is true, the store
    /// has to send it. After a pause, only one object may be sent, and the store has to report its
    /// result.
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

    /// An object that was sent before the breaker opened may fail after that. Such a failure does not
    /// extend the pause.
    #[test]
    fn an_open_breaker_ignores_late_failures() {
        let mut breaker = Breaker::new(BreakerConfig { failures: 1, pause: SECOND });
        breaker.failed(Duration::ZERO);
        breaker.failed(SECOND / 2);
        assert!(breaker.pass(SECOND));
    }
}
