//! Latencies by operation, in a fixed amount of memory.
//!
//! What is timed is one call of the manager, from outside, with a clock read before and after (some 20 ns each time, included).

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Names the kinds of calls that are told apart, and makes the table of all.
macro_rules! operations {
    ($($name:ident => $text:literal,)*) => {
        /// A kind of call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Operation { $($name,)* }

        impl Operation {
            /// Every kind, in the order of the table.
            pub(crate) const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The name in the table.
            pub(crate) const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

operations! {
    Prepare => "prepare (hash a prompt)",
    Probe => "probe",
    Admit => "admit",
    AdmitWith => "admit_with hints",
    AdmitRefused => "admit, out of blocks",
    Append => "append (batch)",
    AppendTokens => "append_tokens (drafts)",
    AppendRefused => "append, out of blocks",
    Commit => "commit",
    CommitBatch => "commit_batch",
    Fork => "fork",
    Truncate => "truncate",
    Trim => "trim_window",
    Release => "release",
    ReleaseFenced => "release after a step",
    ReleaseEnding => "release, end of life",
    ReleaseMoving => "release while a swap moves it",
    Preempt => "preempt",
    Resume => "resume",
    ResumeRefused => "resume, out of blocks",
    FitSwap => "fit_swap_out, fit_swap_in",
    SwapOutBegin => "swap out: begin",
    SwapInBegin => "swap in: begin",
    SwapRefused => "swap, out of blocks",
    SwapOutComplete => "swap out: complete",
    SwapInComplete => "swap in: complete",
    SwapAbort => "swap: abort",
    TakePlan => "take_plan",
    PlanStep => "plan_step and plan",
    CommitStep => "commit_step",
    CompleteStep => "complete_step",
    Retain => "retain, end_of_life, set_tenant",
    RetainPrefix => "retain_prefix, end_of_life_of",
    AdvanceTime => "advance_time",
    TakeEvents => "take_events",
    Advice => "advice",
    Look => "stats, request, block_table",
    Evict => "drop_cached",
    BumpEpoch => "bump_epoch",
    Resize => "resize",
    Reset => "reset",
    Invalid => "invalid calls",
}

/// A minute; what takes longer counts as that.
const LONGEST: u64 = 60_000_000_000;

/// A histogram of nanoseconds to three digits.
fn histogram() -> Histogram<u64> {
    // The bounds are constants that the library accepts.
    #[expect(clippy::expect_used, reason = "fails for other constants alone")]
    Histogram::new_with_bounds(1, LONGEST, 3).expect("bounds")
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(LONGEST).clamp(1, LONGEST)
}

/// Percentiles of one kind of call, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Latencies {
    /// Calls.
    pub count: u64,
    /// The median.
    pub p50: u64,
    /// 99 of 100 calls took no longer.
    pub p99: u64,
    /// 999 of 1,000 calls took no longer.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

impl Latencies {
    fn of(histogram: &Histogram<u64>) -> Self {
        Self {
            count: histogram.len(),
            p50: histogram.value_at_quantile(0.5),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        }
    }
}

/// What was measured so far.
#[derive(Debug)]
pub(crate) struct Meter {
    by_operation: Vec<Histogram<u64>>,
    all: Histogram<u64>,
    lately: Histogram<u64>,
    checks: Histogram<u64>,
    calls: u64,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self {
            by_operation: Operation::ALL.iter().map(|_| histogram()).collect(),
            all: histogram(),
            lately: histogram(),
            checks: histogram(),
            calls: 0,
        }
    }

    /// Calls so far.
    pub(crate) const fn calls(&self) -> u64 {
        self.calls
    }

    /// Makes a call, and says how long it took.
    pub(crate) fn clock<T>(call: impl FnOnce() -> T) -> (T, Duration) {
        let start = Instant::now();
        let value = call();
        (value, start.elapsed())
    }

    /// Counts a call.
    pub(crate) fn count(&mut self, operation: Operation, time: Duration) {
        let time = nanoseconds(time);
        self.calls += 1;
        self.by_operation[operation as usize].saturating_record(time);
        self.lately.saturating_record(time);
    }

    /// Makes and counts a call.
    pub(crate) fn time<T>(&mut self, operation: Operation, call: impl FnOnce() -> T) -> T {
        let (value, time) = Self::clock(call);
        self.count(operation, time);
        value
    }

    /// Makes a recount, which is no operation.
    pub(crate) fn time_check<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let (value, time) = Self::clock(call);
        self.checks.saturating_record(nanoseconds(time));
        value
    }

    /// Percentiles over all calls since the last time.
    pub(crate) fn lately(&mut self) -> Latencies {
        let latencies = Latencies::of(&self.lately);
        // Bounds are equal, so nothing can be out of range.
        let _same_bounds = self.all.add(&self.lately);
        self.lately.reset();
        latencies
    }

    /// Every kind of call that was made, then all of them, then the recounts.
    pub(crate) fn table(&mut self) -> Vec<(&'static str, Latencies)> {
        self.lately();
        let kinds = Operation::ALL.iter().zip(&self.by_operation).map(|(kind, times)| (kind.name(), times));
        let more = [("all", &self.all), ("check_invariants (not counted)", &self.checks)];
        kinds.chain(more).filter(|(_, times)| !times.is_empty()).map(|(n, t)| (n, Latencies::of(t))).collect()
    }
}
