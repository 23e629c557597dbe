//! A soak is a long run that keeps large managers under load.
//!
//! Each configuration ([`PRESETS`]) has one manager for the whole run. The managers take turns. A turn
//! is a *round*: thousands of random calls, after which every request is ended and a reset removes the
//! cached content. The laboratory draws the calls. After every [`Settings::check_every`] calls, its
//! oracles check the state, without the model.
//!
//! Two checks are made only here. After a round, no block may be held or cached. The bytes of heap in
//! use may not grow from one round to the next. The soak reports the times of calls and the number of
//! calls per second.
//!
//! Equal seeds give equal calls and answers. The digest at the end depends on all answers.

mod heap;
mod meter;
mod presets;
mod report;

use std::time::{Duration, Instant};

use kvpool::{BlockPool, ManagerStats, RequestState};
use kvpool_journal::{Answer, LoadedRecord, ManagerCall, Name, Observers, Subject, UntilRecord, Words};
use kvpool_observe::{AdvisorConfig, PoolWatch};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

pub use heap::Heap;
pub use meter::Times;
pub use presets::{PRESETS, Preset};
pub use report::Report;

use super::random::Until;
use crate::bytes::Bytes;
use crate::draw::draw;
use crate::failure::{Failure, guarded, holds, same};
use crate::oracle::memory::Memory;
use crate::oracle::plans;
use crate::world::World;
use crate::world::manager::ManagerWorld;
use crate::world::prompts::Prompts;
use crate::world::requests::id;
use meter::Meter;

/// Number of random bytes from which one call is drawn. No call needs as many.
const BYTES: usize = 512;

/// A defect that a test plants in the runner, to show that the soak detects it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// Each call to the manager leaks 64 bytes.
    Leak,
    /// One request is not released at the end of its round.
    Reference,
    /// The weights of the engine change, but the manager is not reset.
    StaleHit,
}

/// The settings of a soak.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The seed that determines all random choices.
    pub seed: u64,
    /// When the soak stops. It always completes the current round.
    pub until: Until,
    /// Number of blocks of each manager's device pool.
    pub blocks: usize,
    /// Number of tokens of each block.
    pub block_size: usize,
    /// The configurations.
    pub presets: Vec<Preset>,
    /// Number of calls that a manager makes in one round.
    pub round: u64,
    /// Number of calls after which all oracles check the state.
    pub check_every: u64,
    /// The time between two lines of output, which report the progress.
    pub line_every: Duration,
    /// A function that returns the bytes of heap in use, or `None` if they are not counted.
    pub heap: Option<fn() -> usize>,
    /// A planted defect.
    pub planted: Option<Planted>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 1,
            until: Until::Time(Duration::from_secs(600)),
            blocks: 1024,
            block_size: 4,
            presets: PRESETS.to_vec(),
            round: 20_000,
            check_every: 200,
            line_every: Duration::from_secs(60),
            heap: None,
            planted: None,
        }
    }
}

/// One line of output, which reports the time since the previous line.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Line {
    /// Seconds since the start of the soak.
    pub seconds: f64,
    /// Number of calls since the start of the soak.
    pub calls: u64,
    /// Calls per second. The time in which the oracles check the state is included.
    pub rate: f64,
    /// Times of calls.
    pub times: Times,
    /// Bytes of heap in use.
    pub heap: i64,
}

/// The manager of one configuration, with its statistics over the run.
#[derive(Debug)]
struct Driver {
    preset: Preset,
    world: ManagerWorld,
    random: ChaCha8Rng,
    calls: u64,
    /// Number of checks. `held` and `cached` are sums over these checks, from which the averages of the
    /// report are computed.
    checks: u64,
    held: f64,
    cached: f64,
    /// Number of cached blocks that the resets at the end of rounds removed.
    forgotten: u64,
    /// A digest of all answers that the manager has given.
    digest: u64,
    /// Memory that is never freed, if the test plants a leak.
    leaked: Vec<[u64; 8]>,
}

impl Driver {
    fn new(preset: Preset, nth: u64, settings: &Settings) -> Result<Self, Failure> {
        let setting = preset.setting(settings.blocks, settings.block_size, settings.check_every);
        let mut world = ManagerWorld::new(&setting, None)?;
        world.model = None;
        let advisor = preset.advisor.then(AdvisorConfig::default);
        let observers = Observers { advisor, ..Observers::default() };
        let header = ManagerWorld::header(&setting)?;
        let watched = world.subject.watch(&header, &observers);
        watched.map_err(|error| Failure::new("setting", error.to_string()))?;
        let random = ChaCha8Rng::seed_from_u64(settings.seed.wrapping_mul(97).wrapping_add(nth));
        Ok(Self {
            preset,
            world,
            random,
            calls: 0,
            checks: 0,
            held: 0.0,
            cached: 0.0,
            forgotten: 0,
            digest: 0,
            leaked: Vec::new(),
        })
    }

    fn stats(&self) -> ManagerStats {
        self.world.manager().stats()
    }

    /// Makes a call. After one call in `check_every`, runs all oracles.
    fn make(&mut self, call: &ManagerCall, meter: &mut Meter, check_every: u64) -> Result<Answer, Failure> {
        self.calls += 1;
        let answer = if self.calls.is_multiple_of(check_every) {
            self.sample()?;
            self.world.make(call)?
        } else {
            let step = plans::plan(&mut self.world, call)?;
            self.world.run(call, step.as_ref())?
        };
        meter.note(call, answer.refused, self.world.took);
        self.digest = self.digest.rotate_left(5) ^ u64::from(answer.check);
        Ok(answer)
    }

    fn sample(&mut self) -> Result<(), Failure> {
        let pool = self.world.manager().pool();
        let (stats, advice) = (pool.stats(), pool.advice());
        let usable = stats.usable as f64;
        self.checks += 1;
        self.held += (stats.active + stats.fenced) as f64 / usable;
        self.cached += stats.cached_free as f64 / usable;
        same("whether there is advice", &advice.is_some(), &self.preset.advisor)
    }

    /// Returns a running request that is longer than the maximum length of a prompt. The soak then ends
    /// it.
    fn longest(&self) -> Option<i64> {
        let setting = &self.world.setting;
        let most = 2 * setting.scale.prompt * setting.block_size;
        let requests = &self.world.requests.tokens;
        requests.iter().find(|(_, tokens)| tokens.len() > most).map(|(&number, _)| number)
    }

    fn round(&mut self, settings: &Settings, meter: &mut Meter) -> Result<(), Failure> {
        let mut buffer = [0; BYTES];
        for nth in 0..settings.round {
            self.random.fill_bytes(&mut buffer);
            let drawn = match self.longest() {
                Some(number) if nth % 2 == 0 => Some(release(number)),
                _ => draw(&mut Bytes::new(&buffer), &mut self.world),
            };
            // A new epoch removes all cached content. New epochs are drawn too often for a large pool,
            // which would never fill, so skip most of them.
            let is_early = matches!(drawn, Some(ManagerCall::BumpEpoch {})) && nth % 16 > 0;
            if let Some(call) = drawn.filter(|_| !is_early) {
                // Take the plan first, because an engine must not write KV to a block before a planned
                // copy to that block is made.
                if writes(&call) && self.world.manager().tiers().num_planned() > 0 {
                    self.make(&ManagerCall::TakePlan {}, meter, settings.check_every)?;
                }
                let made = self.make(&call, meter, settings.check_every);
                made.map_err(|failure| Failure {
                    what: format!("{}: {}", call.words(), failure.what),
                    ..failure
                })?;
            }
            match settings.planted {
                Some(Planted::Leak) => self.leaked.push([self.calls; 8]),
                Some(Planted::StaleHit) if nth == settings.round / 2 => self.world.memory.change_weights(),
                _ => {}
            }
        }
        self.drain(settings, meter)
    }

    /// Ends all requests, steps and fences. Afterwards no block is held, and a reset removes the cached
    /// content.
    fn drain(&mut self, settings: &Settings, meter: &mut Meter) -> Result<(), Failure> {
        let mut calls = vec![ManagerCall::TakePlan {}];
        calls.extend(self.world.swaps.iter().map(|&swap| ManagerCall::CompleteSwap { swap }));
        let numbers: Vec<i64> = self.world.requests.tokens.keys().copied().collect();
        let skipped = usize::from(settings.planted == Some(Planted::Reference));
        for &number in numbers.iter().skip(skipped) {
            let state = self.world.info(number).map(|info| info.state);
            let request = Name::Id(id(number));
            // If a load delays the release of a request, end the load.
            if matches!(state, Some(RequestState::Loading | RequestState::Releasing)) {
                calls.push(ManagerCall::ExternalDone { request, loaded: LoadedRecord::All });
            }
        }
        calls.extend(numbers.iter().skip(skipped).map(|&number| release(number)));
        calls.push(ManagerCall::TakePlan {});
        calls.extend(self.world.tickets.iter().map(|&ticket| ManagerCall::EndFence { ticket }));
        // A release waits at most for the second step after the latest completed one.
        calls.push(ManagerCall::CompleteStep { step: self.world.step() + 2 });
        for call in &calls {
            self.make(call, meter, u64::MAX)?;
        }
        let tiers = self.world.manager().tiers();
        for tier in 0..tiers.len() {
            let stats = tiers.pool(tier).map(BlockPool::stats);
            let stats = stats.map_err(|error| Failure::new("tiers", error.to_string()))?;
            holds("held blocks", stats.active + stats.fenced == 0, || {
                format!("every request has ended, and tier {tier} still has blocks in use: {stats:?}")
            })?;
            self.forgotten += stats.registered as u64;
        }
        self.world.check()?;
        let reset = ManagerCall::Reset {};
        let answer = self.make(&reset, meter, u64::MAX)?;
        same("reset refused", &answer.refused, &false)?;
        let stats = self.stats().pool;
        same("free blocks after a reset", &stats.free, &stats.usable)?;
        // Check twice, because the oracle of events reads new events only at every second check.
        (0..2).try_for_each(|_| self.world.check())?;
        let Prompts { block_size, .. } = self.world.prompts;
        self.world.prompts = Prompts::new(block_size, self.world.setting.verify, None)?;
        self.world.memory = Memory::new(block_size, self.world.setting.scribbles);
        self.world.subject.forget();
        Ok(())
    }
}

/// Returns whether the engine or a connector writes KV before or during a call.
const fn writes(call: &ManagerCall) -> bool {
    use ManagerCall::{Append, Commit, CommitBatch, ExternalDone};
    matches!(call, Append { .. } | Commit { .. } | CommitBatch { .. } | ExternalDone { .. })
}

fn release(number: i64) -> ManagerCall {
    ManagerCall::Release { request: Name::Id(id(number)), until: UntilRecord::Now }
}

/// Runs a soak. Calls `show` with each line.
///
/// # Errors
/// The first failure. Its text contains the configuration and the number of the failed call.
pub fn soak(settings: &Settings, mut show: impl FnMut(&Line)) -> Result<Report, Failure> {
    let drivers = settings.presets.iter().zip(0..);
    let drivers = drivers.map(|(&preset, nth)| Driver::new(preset, nth, settings));
    let mut drivers = drivers.collect::<Result<Vec<_>, Failure>>()?;
    let heap = || settings.heap.map_or(0, |heap| i64::try_from(heap()).unwrap_or(i64::MAX));
    let (mut meter, mut samples, mut lines) = (Meter::new(), Vec::new(), Vec::new());
    let (begun, mut line_at, mut calls) = (Instant::now(), Instant::now(), 0);
    loop {
        for driver in &mut drivers {
            guarded(|| driver.round(settings, &mut meter)).map_err(|failure| {
                let (name, call, seed) = (driver.preset.name(), driver.calls, settings.seed);
                let what = format!("{}\n  seed {seed}, configuration {name}, call {call}", failure.what);
                Failure { what, ..failure }
            })?;
        }
        samples.push(heap());
        let is_over = match settings.until {
            Until::Time(time) => begun.elapsed() >= time,
            Until::Calls(most) => meter.count() >= most,
        };
        if is_over || line_at.elapsed() >= settings.line_every {
            let rate = (meter.count() - calls) as f64 / line_at.elapsed().as_secs_f64().max(1e-9);
            (line_at, calls) = (Instant::now(), meter.count());
            let (seconds, times) = (begun.elapsed().as_secs_f64(), meter.lately());
            let line = Line { seconds, calls, rate, times, heap: heap() };
            show(&line);
            lines.push(line);
        }
        if is_over {
            break;
        }
    }
    let heap = Heap::of(&samples);
    holds("heap", !heap.has_grown(), || {
        format!("heap in use grew from {} to {} bytes; {} are allowed", heap.start, heap.end, heap.bound)
    })?;
    Ok(Report::new(settings, &drivers, &meter, lines, heap))
}
