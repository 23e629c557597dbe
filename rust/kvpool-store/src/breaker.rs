//! `Breaker`: a back end that keeps failing is left alone for a while.
//!
//! Owns: how often it failed in a row, and until when it is not asked. After the pause one object is
//! tried; its end decides. Time is the caller's.

use std::time::Duration;

/// When a back end is left alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerConfig {
    /// Failures and passed deadlines in a row that open it; at least 1.
    pub failures: u32,
    /// For how long it stays open.
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
    /// One object is on its way.
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

    /// Whether an object would be let through.
    pub(crate) fn would_pass(&self, now: Duration) -> bool {
        match self.state {
            State::Closed { .. } => true,
            State::Open { until } => now >= until,
            State::Trying => false,
        }
    }

    /// Lets an object through, or not. After a pause only one, whose end has to be told.
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

    /// How often it opened.
    pub(crate) const fn opened(&self) -> u64 {
        self.opened
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn it_opens_after_failures_in_a_row_and_tries_one() {
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

    /// What was sent before it opened, and fails later, does not make the pause longer.
    #[test]
    fn an_open_one_ignores_ends() {
        let mut breaker = Breaker::new(BreakerConfig { failures: 1, pause: SECOND });
        breaker.failed(Duration::ZERO);
        breaker.failed(SECOND / 2);
        assert!(breaker.pass(SECOND));
    }
}
