//! Measures how long calls take. The measurements need a fixed amount of memory.
//!
//! The time of a call includes the creation of its arguments from the call's record.

use std::time::Duration;

use hdrhistogram::Histogram;
use kvpool_journal::calls::Slots;
use kvpool_journal::{ManagerCall, Words};

/// A minute in nanoseconds. Longer times are recorded as a minute.
const LONGEST: u64 = 60_000_000_000;

fn histogram() -> Histogram<u64> {
    // The histogram's constructor cannot fail, because the library accepts these bounds.
    #[expect(clippy::expect_used, reason = "fails for other constants only")]
    Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds")
}

/// Percentiles of the times of calls, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Times {
    /// Number of calls.
    pub count: u64,
    /// The median.
    pub p50: u64,
    /// The 99th percentile.
    pub p99: u64,
    /// The 99.9th percentile.
    pub p999: u64,
    /// The longest time.
    pub max: u64,
}

impl Times {
    fn of(histogram: &Histogram<u64>) -> Self {
        let at = |share| histogram.value_at_quantile(share);
        let (p50, p99, p999) = (at(0.5), at(0.99), at(0.999));
        Self { count: histogram.len(), p50, p99, p999, max: histogram.max() }
    }
}

/// Measures the times of calls, and stores them as histograms.
#[derive(Debug)]
pub(crate) struct Meter {
    /// For each call, the times of accepted and of refused calls.
    calls: Vec<[Histogram<u64>; 2]>,
    all: Histogram<u64>,
    lately: Histogram<u64>,
}

impl Meter {
    pub(crate) fn new() -> Self {
        let calls = ManagerCall::NAMES.iter().map(|_| [histogram(), histogram()]).collect();
        Self { calls, all: histogram(), lately: histogram() }
    }

    pub(crate) fn count(&self) -> u64 {
        self.all.len()
    }

    /// Records a call.
    pub(crate) fn note(&mut self, call: &ManagerCall, refused: bool, time: Duration) {
        let time = u64::try_from(time.as_nanos()).unwrap_or(LONGEST).clamp(1, LONGEST);
        let name = call.call();
        let position = ManagerCall::NAMES.iter().position(|&other| other == name);
        if let Some(both) = position.and_then(|position| self.calls.get_mut(position)) {
            both[usize::from(refused)].saturating_record(time);
        }
        self.all.saturating_record(time);
        self.lately.saturating_record(time);
    }

    /// Returns the times of the calls since this method was last called.
    pub(crate) fn lately(&mut self) -> Times {
        let times = Times::of(&self.lately);
        self.lately.reset();
        times
    }

    /// Returns the times by the name of the call, and the times of all calls together.
    pub(crate) fn table(&self) -> Vec<(String, Times)> {
        let names = ManagerCall::NAMES.iter().zip(&self.calls);
        let each = names.flat_map(|(name, [answered, refused])| {
            [((*name).to_owned(), answered), (format!("{name}, refused"), refused)]
        });
        let all = each.chain([("all".to_owned(), &self.all)]);
        all.filter(|(_, times)| !times.is_empty()).map(|(name, times)| (name, Times::of(times))).collect()
    }
}
