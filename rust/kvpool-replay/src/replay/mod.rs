//! Replay: runs a request trace through the real pool and manager.
//!
//! There are two modes:
//!
//! - **lookup** has no time. Each request is looked up, stored and released at once, one after the
//!   other. Every block of the prompt is treated as a whole block, even a partial last one, and all
//!   blocks of a prompt may hit. The weight of a block is its number of prompt tokens. Published hit
//!   rates of traces use this definition.
//! - **engine** simulates a server in virtual time. Requests arrive at their timestamps, wait, and are
//!   admitted when blocks and the limit of running requests allow. They prefill in chunks under a token
//!   budget per step, and decode one token per step. They are preempted by recompute when blocks run
//!   out, and release their blocks when they finish. Only full blocks can hit, and the last prompt
//!   token is always computed, as in a server.
//!
//! A [`Replay`] advances in slices, so that a caller can show progress. Worker threads expand and hash
//! prompts in advance, in trace order. The result does not depend on the number of threads.

mod beneath;
mod config;
mod engine;
mod grouped;
mod lookup;
mod prefetch;
mod report;

use std::sync::Arc;

use kvpool::{BlockHasher, BlockPool, CacheManager, HasherConfig, ManagerConfig, ManagerError, PoolConfig};
use kvpool_journal::{Journal, Journaled};
use kvpool_observe::{ExplainConfig, ManagerWatch, ManagerWatchConfig, MissStats};

use crate::trace::{Trace, TraceRequest};
use config::check;
pub use config::{Mode, ReplayConfig, ReplayError, TierConfig};
use engine::Engine;
use grouped::Grouped;
use lookup::Lookup;
use prefetch::{Form, MAX_THREADS, Prefetch};
pub use report::{EngineReport, GroupReport, HitCounts, Report, TierReport};

#[derive(Debug)]
enum Runner {
    Lookup(Box<Lookup>),
    Grouped(Box<Grouped>),
    Engine(Box<Engine>),
}

/// A replay in progress.
///
/// ```
/// use std::sync::Arc;
/// use kvpool_replay::generate::{GeneratorConfig, generate};
/// use kvpool_replay::replay::{Replay, ReplayConfig};
/// let trace = generate(&GeneratorConfig { requests: 50, ..Default::default() }).unwrap();
/// let config = ReplayConfig { capacity_blocks: 50_000, ..Default::default() };
/// let mut replay = Replay::new(Arc::new(trace), config)?;
/// while replay.advance(10)? < replay.total() {}
/// let report = replay.report();
/// assert!(report.hits.block_hits > 0 && report.hits.block_hits < report.hits.blocks);
/// # Ok::<(), kvpool_replay::replay::ReplayError>(())
/// ```
#[derive(Debug)]
pub struct Replay {
    config: ReplayConfig,
    trace: Arc<Trace>,
    prompts: Prefetch,
    runner: Runner,
}

impl Replay {
    /// Makes the pool or manager, and starts hashing.
    ///
    /// # Errors
    /// [`ReplayError::InvalidConfig`], and the errors of the pool, manager and hasher for their
    /// settings.
    pub fn new(trace: Arc<Trace>, config: ReplayConfig) -> Result<Self, ReplayError> {
        Self::start(trace, config, None)
    }

    /// Like [`Self::new`], with a journal that records the calls of the pool (lookup mode) or the
    /// manager (engine mode). It records all calls: if the journal's writer is slower, the replay waits
    /// for it ([`Journal::waiting`]).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use kvpool_journal::{Journal, JournalConfig, JournalReader};
    /// use kvpool_replay::generate::{GeneratorConfig, generate};
    /// use kvpool_replay::replay::{Replay, ReplayConfig};
    /// let trace = generate(&GeneratorConfig { requests: 20, ..Default::default() })?;
    /// let journal = Journal::ring(1 << 24, JournalConfig::default())?;
    /// let mut replay = Replay::with_journal(Arc::new(trace), ReplayConfig::default(), journal)?;
    /// replay.advance(usize::MAX)?;
    /// let image = replay.take_journal().and_then(|mut journal| journal.image()).unwrap_or_default();
    /// assert!(JournalReader::new(&image)?.operations() >= 4 * 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Self::new`].
    pub fn with_journal(
        trace: Arc<Trace>,
        config: ReplayConfig,
        journal: Journal,
    ) -> Result<Self, ReplayError> {
        Self::start(trace, config, Some(journal))
    }

    fn start(trace: Arc<Trace>, config: ReplayConfig, journal: Option<Journal>) -> Result<Self, ReplayError> {
        check(config.capacity_blocks >= 1, "capacity_blocks", config.capacity_blocks, "at least 1")?;
        check(config.max_running >= 1, "max_running", config.max_running, "at least 1")?;
        check(config.step_tokens >= 1, "step_tokens", config.step_tokens, "at least 1")?;
        let (step, rate) = (config.step_ms, config.prefill_tokens_per_s);
        check(step > 0.0 && step.is_finite(), "step_ms", step, "above 0 and finite")?;
        check(rate > 0.0 && !rate.is_nan(), "prefill_tokens_per_s", rate, "above 0")?;
        check(
            config.threads <= MAX_THREADS,
            "threads",
            config.threads,
            "at most 1024, or 0 for one per core",
        )?;
        let tiers = config.tiers.len();
        let known = tiers == 0 || (config.mode == Mode::Engine && config.groups.is_none());
        check(known, "tiers", tiers, "none, except in engine mode with a single KV-cache group")?;
        for tier in &config.tiers {
            let (blocks, load) = (tier.blocks, tier.load_ms_per_block);
            check(blocks >= 1, "blocks of a tier", blocks, "at least 1")?;
            check(load >= 0.0 && load.is_finite(), "load_ms_per_block", load, "0 or more, and finite")?;
        }
        let explained = !config.explain || config.mode == Mode::Engine || config.groups.is_some();
        check(
            explained,
            "explain",
            config.explain,
            "false in lookup mode: the manager explains, not the pool",
        )?;
        let trace_block = trace.block_tokens();
        if config.mode == Mode::Lookup && config.groups.is_none() && config.block_size > 0 {
            // Small blocks must divide a trace block: a partial last block is filled up with the tokens
            // of its trace block, and must not contain tokens of the next one.
            let divides = trace_block.is_multiple_of(config.block_size);
            let expected =
                format!("a divisor of the trace's {trace_block} in lookup mode; engine mode takes any");
            check(divides, "block_size", config.block_size, &expected)?;
        }
        let num_blocks = config.capacity_blocks.saturating_add(1);
        let (hasher, runner) = match config.mode {
            Mode::Lookup if config.groups.is_none() => Self::lookup(&config, num_blocks, journal)?,
            mode => {
                let manager = Self::manager(&config, num_blocks, &trace, journal)?;
                let hasher = manager.hasher().clone();
                let runner = match mode {
                    Mode::Lookup => Runner::Grouped(Box::new(Grouped::new(manager, config.step_tokens))),
                    Mode::Engine => Runner::Engine(Box::new(Engine::new(manager, &config))),
                };
                (hasher, runner)
            }
        };
        let form = match config.mode {
            _ if config.groups.is_some() => Form::Named,
            Mode::Lookup => Form::Filled,
            Mode::Engine => Form::Whole,
        };
        let prompts = Prefetch::start(&trace, &hasher, form, config.threads)?;
        Ok(Self { config, trace, prompts, runner })
    }

    fn lookup(
        config: &ReplayConfig,
        num_blocks: usize,
        journal: Option<Journal>,
    ) -> Result<(Arc<BlockHasher>, Runner), ReplayError> {
        let settings = PoolConfig {
            num_blocks,
            block_size: config.block_size,
            verify: config.verify,
            eviction: config.eviction,
            ..PoolConfig::default()
        };
        let pool = match journal {
            None => BlockPool::new(settings)?.into(),
            Some(journal) => Journaled::with_journal(settings, journal.waiting())?,
        };
        let hasher = BlockHasher::new(HasherConfig {
            algorithm: config.algorithm,
            block_size: config.block_size,
            verify: config.verify,
            key: None,
            seed: config.seed.clone(),
        });
        let hasher = hasher.map_err(ManagerError::from)?;
        Ok((Arc::new(hasher), Runner::Lookup(Box::new(Lookup::new(pool)))))
    }

    fn manager_config(config: &ReplayConfig, num_blocks: usize) -> ManagerConfig {
        ManagerConfig {
            num_blocks,
            block_size: config.block_size,
            groups: config.groups.clone(),
            algorithm: config.algorithm,
            verify: config.verify,
            seed: config.seed.clone(),
            eviction: config.eviction,
            watermark: config.watermark,
            keep_tokens: false, // prompts are hashed on other threads
            ..ManagerConfig::default()
        }
    }

    fn manager(
        config: &ReplayConfig,
        num_blocks: usize,
        trace: &Trace,
        journal: Option<Journal>,
    ) -> Result<Journaled<CacheManager>, ReplayError> {
        // If explanations are enabled, reserve enough records for the whole trace, within limits: one
        // per block of each prompt and output, and one more for each KV-cache group.
        let blocks = |request: &TraceRequest| {
            let tokens = u64::from(request.input_length) + u64::from(request.output_length);
            usize::try_from(tokens).unwrap_or(usize::MAX) / config.block_size.max(1)
        };
        let records = trace.requests().iter().map(blocks).fold(0, usize::saturating_add);
        let contents = config.groups.as_ref().map_or(1, |groups| 1 + groups.specs().len());
        let records = Some(records.saturating_mul(contents).clamp(1 << 10, 1 << 22));
        let explain = config.explain.then_some(ExplainConfig { records, requests: 0 });
        let settings = Self::manager_config(config, num_blocks);
        let watch = ManagerWatchConfig { explain, ..ManagerWatchConfig::default() };
        Ok(match journal {
            None => CacheManager::new(settings)?.watched(&watch)?.into(),
            Some(journal) => Journaled::with_watch(settings, &watch, journal.waiting())?,
        })
    }

    /// The number of requests of the trace.
    #[must_use]
    pub fn total(&self) -> usize {
        self.trace.requests().len()
    }

    /// Runs until `requests` more requests, or all remaining ones, are finished. Returns the total
    /// number of finished requests.
    ///
    /// # Errors
    /// [`ReplayError::Expand`] for ids that cannot be expanded to tokens; the errors of the manager.
    pub fn advance(&mut self, requests: usize) -> Result<usize, ReplayError> {
        match &mut self.runner {
            Runner::Lookup(lookup) => lookup.advance(&self.trace, &mut self.prompts, requests),
            Runner::Grouped(grouped) => grouped.advance(&self.trace, &mut self.prompts, requests),
            Runner::Engine(engine) => engine.advance(&self.trace, &mut self.prompts, requests),
        }
    }

    /// Returns the measurements so far.
    #[must_use]
    pub fn report(&self) -> Report {
        let (hits, last_half, pool, engine, misses) = match &self.runner {
            Runner::Lookup(lookup) => (lookup.hits, lookup.last_half, lookup.pool_stats(), None, None),
            Runner::Grouped(grouped) => {
                let misses = grouped.manager.misses();
                (grouped.hits, grouped.last_half, grouped.pool_stats(), None, misses)
            }
            Runner::Engine(engine) => {
                let report = Some(engine.report(&self.trace));
                (engine.hits, engine.last_half, engine.pool_stats(), report, engine.manager.misses())
            }
        };
        let (reach, checkpoints, cut_short) = match &self.runner {
            Runner::Lookup(_) => (None, 0, None),
            Runner::Grouped(grouped) => {
                (Some(&grouped.reach), grouped.manager.stats().checkpoints, Some(grouped.cut_short))
            }
            Runner::Engine(engine) => (Some(&engine.reach), engine.manager.stats().checkpoints, None),
        };
        let report = Report::new(&self.config, self.trace.block_tokens(), hits, last_half, pool, engine);
        let unserved = misses.as_ref().map(|misses| &misses.unserved[..]);
        let by_reason =
            |misses: &MissStats| misses.admitted.iter().filter(|&(_, tokens)| tokens > 0).collect();
        let groups = match (&self.config.groups, reach) {
            (Some(groups), Some(reach)) => reach.report(groups, hits.tokens, unserved),
            _ => Vec::new(),
        };
        let misses = misses.as_ref().map(by_reason);
        let tiers = match &self.runner {
            Runner::Engine(engine) => engine.beneath.report(self.config.block_size as u64, hits.tokens),
            Runner::Lookup(_) | Runner::Grouped(_) => Vec::new(),
        };
        let report = Report { tiers, ..report };
        match (&self.config.groups, reach) {
            (Some(_), Some(_)) => {
                Report { misses, groups, checkpoints: Some(checkpoints), cut_short, ..report }
            }
            _ => Report { misses, ..report },
        }
    }

    /// Returns the journal that records this replay, if there is one. Use it to query its length, or
    /// whether it has stopped.
    #[must_use]
    pub fn journal(&self) -> Option<&Journal> {
        match &self.runner {
            Runner::Lookup(lookup) => lookup.pool.journal(),
            Runner::Grouped(grouped) => grouped.manager.journal(),
            Runner::Engine(engine) => engine.manager.journal(),
        }
    }

    /// Writes everything that the journal has collected, and waits until it is written.
    pub fn flush_journal(&mut self) {
        match &mut self.runner {
            Runner::Lookup(lookup) => lookup.pool.flush_journal(),
            Runner::Grouped(grouped) => grouped.manager.flush_journal(),
            Runner::Engine(engine) => engine.manager.flush_journal(),
        }
    }

    /// Ends the journal and returns it. Its last frame is written when it is flushed or dropped.
    pub fn take_journal(&mut self) -> Option<Journal> {
        match &mut self.runner {
            Runner::Lookup(lookup) => lookup.pool.take_journal(),
            Runner::Grouped(grouped) => grouped.manager.take_journal(),
            Runner::Engine(engine) => engine.manager.take_journal(),
        }
    }

    /// Checks the invariants of the replayed pool or manager.
    ///
    /// # Errors
    /// The first violated invariant.
    pub fn check_invariants(&self) -> Result<(), kvpool::InvariantViolation> {
        match &self.runner {
            Runner::Lookup(lookup) => lookup.check_invariants(),
            Runner::Grouped(grouped) => grouped.check_invariants(),
            Runner::Engine(engine) => engine.check_invariants(),
        }
    }
}
