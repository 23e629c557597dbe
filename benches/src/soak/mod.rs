//! The soak: full pools for as long as you like, everything that can happen to them, and books that must agree.
//!
//! `make soak MINUTES=10`. One [`CacheManager`](kvpool::CacheManager) per configuration ([`PRESETS`]), all in one thread, taking
//! turns of 256 operations. Each has a host tier (but one), prompts with shared prefixes drawn with skew, and a demand that
//! swings between half of the pool and more than all of it, so that it evicts, refuses and preempts all the time. Requests are
//! ended in every state, swaps aborted at every point; epochs begin, resets empty both tiers, pools grow, and calls that must be refused are
//! made.
//!
//! What is checked:
//!
//! | when | what |
//! |---|---|
//! | every call | its result: the right error with nothing changed, or what it should give; blocks handed out are nobody else's |
//! | hits, swaps, releases | the KV: every computed block reads back as what its request wrote, with the weights and the keys of its own |
//! | every 256 turns | free + cached-free + active + fenced == usable in both tiers; hits + computed == prompt tokens; each counter and each live request as in the books |
//! | every minute | `check_invariants`, and the KV of every slot |
//! | the end | everything is released, then nobody holds a block; heap in use has not grown since the warm-up |
//!
//! The same seed gives the same operations; how many there are in a minute differs. With a limit of operations instead of time, the
//! digest at the end is the same on every run.
//!
//! A failure is a [`Failure`]: it names seed, configuration and turn. All pass through `Soak::failure`, which is where a journal of
//! the operations is to be written once there is one.
//!
//! Costs: the driver's own work (KV, books) is not in the latencies, but shares the processor's caches with the manager, as an
//! engine would. Counting the heap adds some 5 ns to an allocation.

mod books;
mod checks;
mod content;
mod driver;
mod endings;
mod hints;
mod memory;
mod meter;
mod presets;
mod refused;
mod report;
mod requests;
mod steps;
mod store;
mod swaps;
mod weights;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

pub use memory::{Memory, resident};
pub use meter::Latencies;
pub use presets::{PRESETS, Preset};
pub use report::{Machine, Report};

use driver::Driver;
use memory::Watch;
use meter::Meter;

/// Turns that a configuration makes before the next one's are due.
const SLICE: u64 = 256;

/// How long a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Until so much time has passed.
    Time(Duration),
    /// Until so many calls were made, over all configurations.
    Operations(u64),
}

/// A defect planted in the driver, to see that a soak notices what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// The books forget a request that was never released.
    ForgottenRelease,
    /// Planned copies are not made.
    LostCopies,
    /// Steps are said to be complete while they still write.
    EarlyStep,
    /// Weights change, and nobody resets the manager.
    ForgottenReset,
    /// 64 bytes are lost in every turn.
    Leak,
}

/// What to run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// All choices follow from it.
    pub seed: u64,
    /// How long.
    pub limit: Limit,
    /// Blocks of each device pool at the start, at least 128; it grows by half.
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// The configurations.
    pub presets: Vec<Preset>,
    /// Turns of a configuration between two steps of growth.
    pub resize_every: u64,
    /// Turns of a configuration between two epochs.
    pub epoch_every: u64,
    /// Turns of a configuration between two resets for which everybody gives up his blocks.
    pub reset_every: u64,
    /// Calls, over all configurations, between two recounts from scratch beside those of each line; `None` for those alone.
    pub check_every: Option<u64>,
    /// Time between two lines.
    pub line_every: Duration,
    /// Of so many invalid calls one is followed by a comparison of whole free lists and eviction orders.
    pub orders_every: usize,
    /// Bytes of heap in use; `None` where nobody counts them.
    pub heap: Option<fn() -> usize>,
    /// A planted defect.
    pub sabotage: Option<Sabotage>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 1,
            limit: Limit::Time(Duration::from_secs(600)),
            blocks: 1 << 13,
            block_size: 16,
            presets: PRESETS.to_vec(),
            resize_every: 1500,
            epoch_every: 30_000,
            reset_every: 7_000,
            check_every: None,
            line_every: Duration::from_secs(60),
            orders_every: 2000,
            heap: None,
            sabotage: None,
        }
    }
}

/// Something that must not be.
#[derive(Debug)]
pub(crate) struct Wrong(pub(crate) String);

/// An error that nothing was expected to give.
impl<E: std::error::Error> From<E> for Wrong {
    fn from(error: E) -> Self {
        Self(format!("an error that was not expected: {error}"))
    }
}

/// `Ok` if `holds`, else what is wrong.
pub(crate) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Result<(), Wrong> {
    if holds { Ok(()) } else { Err(Wrong(what())) }
}

/// A run that found something.
#[derive(Clone, Debug, thiserror::Error)]
#[error(
    "{what}\n  seed {seed}, configuration {configuration}, its turn {turn}, operation {operation} of all"
)]
pub struct Failure {
    /// What is wrong.
    pub what: String,
    /// The seed.
    pub seed: u64,
    /// The configuration, by its policy.
    pub configuration: &'static str,
    /// Turns that it had made.
    pub turn: u64,
    /// Calls made until then, over all configurations.
    pub operation: u64,
}

/// One line of a run: what happened since the line before.
#[derive(Clone, Copy, Debug, Default)]
pub struct Line {
    /// Since the beginning.
    pub elapsed: Duration,
    /// Calls since the beginning.
    pub operations: u64,
    /// Calls per second.
    pub rate: f64,
    /// Share of the prompts' tokens that was cached, 0 to 1.
    pub hit_rate: f64,
    /// Admissions and resumptions refused.
    pub refusals: u64,
    /// Requests preempted.
    pub preemptions: u64,
    /// Cached blocks evicted.
    pub evictions: u64,
    /// Of all calls.
    pub latencies: Latencies,
    /// Bytes of heap in use.
    pub heap: i64,
    /// Bytes resident.
    pub resident: Option<u64>,
}

/// Counters at one moment, over all configurations.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    prompt_tokens: u64,
    hit_tokens: u64,
    refusals: u64,
    preemptions: u64,
    evictions: u64,
}

/// A run.
#[derive(Debug)]
pub struct Soak {
    settings: Settings,
    drivers: Vec<Driver>,
    meter: Meter,
    watch: Watch,
    began: Instant,
    before: (Instant, u64, Totals),
}

impl Soak {
    /// Empty pools.
    ///
    /// # Errors
    /// A configuration that cannot be, as a failure before any turn.
    pub fn new(settings: &Settings) -> Result<Self, Failure> {
        let drivers = settings.presets.iter().zip(0..).map(|(&preset, nth)| {
            Driver::new(preset, nth, settings).map_err(|Wrong(what)| Failure {
                what,
                seed: settings.seed,
                configuration: preset.name(),
                turn: 0,
                operation: 0,
            })
        });
        let now = Instant::now();
        Ok(Self {
            drivers: drivers.collect::<Result<_, _>>()?,
            settings: settings.clone(),
            meter: Meter::new(),
            watch: Watch::default(),
            began: now,
            before: (now, 0, Totals::default()),
        })
    }

    /// Runs to the limit, hands each line to `line`, ends every request, and reports.
    ///
    /// # Errors
    /// The first thing that is wrong; memory that grew is one, too.
    pub fn run(mut self, mut line: impl FnMut(Line)) -> Result<Report, Failure> {
        let mut checked = 0;
        while self.progress() < 1.0 {
            for nth in 0..self.drivers.len() {
                self.attempt(nth, |driver, meter, limit| {
                    for _ in 0..SLICE {
                        if limit.is_some_and(|limit| meter.calls() >= limit) {
                            break;
                        }
                        driver.turn(meter)?;
                    }
                    driver.check_sums()
                })?;
            }
            let resized = self.drivers.iter().map(|driver| driver.resized_bytes).sum();
            let turns = self.drivers.iter().map(|driver| driver.turns).min().unwrap_or(0);
            self.watch.sample(self.progress(), turns, self.heap(), resized);
            let calls = self.meter.calls();
            let line_is_due = self.before.0.elapsed() >= self.settings.line_every;
            if line_is_due || self.settings.check_every.is_some_and(|every| calls >= checked + every) {
                checked = calls;
                self.check_all()?;
            }
            if line_is_due {
                line(self.line());
            }
        }
        self.check_all()?;
        line(self.line());
        let filled: Vec<_> = self.drivers.iter().map(|driver| driver.manager.stats()).collect();
        for nth in 0..self.drivers.len() {
            self.attempt(nth, |driver, meter, _| driver.drain(meter))?;
        }
        let memory = self.watch.result();
        if memory.judged && memory.growth > memory.bound {
            let what = format!(
                "heap in use grew by {} bytes since the warm-up, {} of {} are allowed",
                memory.growth, memory.bound, memory.heap_start
            );
            return Err(self.failure(0, what));
        }
        Ok(Report::new(&self.settings, &self.drivers, &filled, &mut self.meter, memory, self.began.elapsed()))
    }

    /// The share of the run that is over.
    fn progress(&self) -> f64 {
        match self.settings.limit {
            Limit::Time(time) => self.began.elapsed().as_secs_f64() / time.as_secs_f64(),
            Limit::Operations(operations) => self.meter.calls() as f64 / operations.max(1) as f64,
        }
    }

    fn heap(&self) -> i64 {
        self.settings.heap.map_or(0, |heap| i64::try_from(heap()).unwrap_or(i64::MAX))
    }

    /// Lets a configuration do something; what it finds, and a panic, becomes a failure.
    fn attempt(
        &mut self,
        nth: usize,
        work: impl FnOnce(&mut Driver, &mut Meter, Option<u64>) -> Result<(), Wrong>,
    ) -> Result<(), Failure> {
        let limit = match self.settings.limit {
            Limit::Time(_) => None,
            Limit::Operations(operations) => Some(operations),
        };
        let (driver, meter) = (&mut self.drivers[nth], &mut self.meter);
        let outcome = catch_unwind(AssertUnwindSafe(|| work(driver, meter, limit)));
        match outcome {
            Ok(Ok(())) => Ok(()),
            Ok(Err(Wrong(what))) => Err(self.failure(nth, what)),
            Err(_) => Err(self.failure(nth, "a panic, see above".into())),
        }
    }

    /// Recounts everything.
    fn check_all(&mut self) -> Result<(), Failure> {
        (0..self.drivers.len())
            .try_for_each(|nth| self.attempt(nth, |driver, meter, _| driver.check_all(meter)))
    }

    /// Every failure is made here, with the managers as they were: the place to write a journal of the operations.
    fn failure(&self, nth: usize, what: String) -> Failure {
        let driver = &self.drivers[nth];
        Failure {
            what,
            seed: self.settings.seed,
            configuration: driver.preset.name(),
            turn: driver.turns,
            operation: self.meter.calls(),
        }
    }

    fn totals(&self) -> Totals {
        self.drivers.iter().fold(Totals::default(), |sum, driver| {
            let stats = driver.manager.stats();
            Totals {
                prompt_tokens: sum.prompt_tokens + stats.prompt_tokens,
                hit_tokens: sum.hit_tokens + stats.hit_tokens,
                refusals: sum.refusals + stats.refusals,
                preemptions: sum.preemptions + stats.preemptions,
                evictions: sum.evictions + stats.pool.evicted,
            }
        })
    }

    /// What happened since the last line.
    fn line(&mut self) -> Line {
        let (now, calls, totals) = (Instant::now(), self.meter.calls(), self.totals());
        let (then, calls_then, before) = std::mem::replace(&mut self.before, (now, calls, totals));
        let prompt_tokens = totals.prompt_tokens - before.prompt_tokens;
        Line {
            elapsed: self.began.elapsed(),
            operations: calls,
            rate: (calls - calls_then) as f64 / now.duration_since(then).as_secs_f64().max(1e-9),
            hit_rate: (totals.hit_tokens - before.hit_tokens) as f64 / prompt_tokens.max(1) as f64,
            refusals: totals.refusals - before.refusals,
            preemptions: totals.preemptions - before.preemptions,
            evictions: totals.evictions - before.evictions,
            latencies: self.meter.lately(),
            heap: self.heap(),
            resident: resident(),
        }
    }
}
