//! Engine mode: continuous batching in virtual time, through the manager.
//!
//! In each step, requests that have arrived are admitted in the order of arrival, as long as the limit
//! of running requests and the available blocks allow. Every decoding request computes its last token
//! and samples the next. The rest of the token budget is used for prefill in chunks, oldest request
//! first.
//!
//! If the pool has no blocks for the next tokens of a request, the request admitted last is preempted:
//! it loses its blocks, waits at the head of the queue, and later computes them again. A step takes
//! `step_ms`, plus the time of its prefill tokens at `prefill_tokens_per_s`.
//!
//! With a hybrid model, blocks for a prompt are allocated chunk by chunk, because blocks that leave a
//! window are released after each chunk. A chunk also ends where a state has to be kept.
//!
//! If [tiers beneath the device](super::TierConfig) have the blocks of a prompt that follow its hit on
//! the device, these blocks are loaded at the admission. Until they have arrived, the request has its
//! blocks and counts as running, but is not computed. If no other request runs, time advances to the
//! end of the first load.
//!
//! **Overload.** While requests wait, the server works at full capacity. Its service rate is the number
//! of requests that finish in those steps, divided by the time of the steps. The server is overloaded
//! if requests arrive faster than that, and requests still wait when the last one arrives.
//!
//! With an overload, the queue has grown over the whole trace, and the times to the first token depend
//! on the length of the trace instead of the speed of the server. A burst of requests that was
//! processed before the end is not an overload.

use std::collections::VecDeque;

use kvpool::{
    AdmitOptions, CacheManager, Computed, Fit, HashCursor, InvariantViolation, Loaded, ManagerError, Part,
    PoolStats, RequestRef, Rows, Until,
};
use kvpool_journal::{Journaled, ManagerCalls};

use super::beneath::Beneath;
use super::grouped::Reach;
use super::prefetch::Prefetch;
use super::report::{EngineReport, HitCounts};
use super::{ReplayConfig, ReplayError};
use crate::expand::output_token;
use crate::trace::Trace;

/// A waiting request. A new one has its hashed prompt. A preempted one is still known to the manager.
#[derive(Debug)]
enum Waiting {
    New { index: usize, cursor: Box<HashCursor> },
    Preempted(Running),
}

/// A running request.
#[derive(Clone, Copy, Debug)]
struct Running {
    /// The number of the request in the trace, which is also its id in the manager.
    index: usize,
    /// The number of tokens of the prompt and of the output so far.
    tokens: usize,
    /// The number of tokens whose KV is computed.
    computed: usize,
    /// Whether blocks are allocated for all known tokens. With a hybrid model, blocks for a prompt are
    /// allocated chunk by chunk.
    is_covered: bool,
    output: u32,
    /// The time at which all blocks loaded from tiers have arrived. `None` if there is no load, or
    /// after it.
    loads_until_ms: Option<f64>,
}

/// The simulated server: its manager, its queues and its counters.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) manager: Journaled<CacheManager>,
    max_running: usize,
    step_tokens: usize,
    /// The part of a prompt that must fit into the pool at the admission.
    part: Part,
    step_ms: f64,
    prefill_ms_per_token: f64,
    now_ms: f64,
    first_ms: f64,
    arrived: usize,
    finished: usize,
    waiting: VecDeque<Waiting>,
    running: Vec<Running>,
    /// Whether the first waiting request did not fit, and no blocks have been released since then.
    /// Another attempt would fail, too.
    blocked: bool,
    time_to_first_token_ms: f64,
    /// The total time of the steps in which requests waited. `finished_in_queue` is the number of
    /// requests that finished in these steps.
    queued_ms: f64,
    finished_in_queue: u64,
    /// The number of waiting requests when the last request had arrived; `None` before that.
    waiting_at_last_arrival: Option<usize>,
    pub(super) hits: HitCounts,
    pub(super) last_half: HitCounts,
    pub(super) reach: Reach,
    pub(super) beneath: Beneath,
    report: EngineReport,
}

impl Engine {
    pub(super) fn new(manager: Journaled<CacheManager>, config: &ReplayConfig) -> Self {
        Self {
            manager,
            max_running: config.max_running,
            step_tokens: config.step_tokens,
            part: Part {
                allocate_tokens: config.groups.is_some().then_some(config.step_tokens),
                ..Part::WHOLE
            },
            step_ms: config.step_ms,
            prefill_ms_per_token: 1000.0 / config.prefill_tokens_per_s,
            now_ms: 0.0,
            first_ms: 0.0,
            arrived: 0,
            finished: 0,
            waiting: VecDeque::new(),
            running: Vec::new(),
            blocked: false,
            time_to_first_token_ms: 0.0,
            queued_ms: 0.0,
            finished_in_queue: 0,
            waiting_at_last_arrival: None,
            hits: HitCounts::default(),
            last_half: HitCounts::default(),
            reach: Reach::default(),
            beneath: Beneath::new(&config.tiers),
            report: EngineReport::default(),
        }
    }

    pub(super) fn advance(
        &mut self,
        trace: &Trace,
        prompts: &mut Prefetch,
        requests: usize,
    ) -> Result<usize, ReplayError> {
        let target = trace.requests().len().min(self.finished.saturating_add(requests));
        while self.finished < target {
            self.arrive(trace, prompts)?;
            self.admit(trace)?;
            if self.arrived == trace.requests().len() {
                self.waiting_at_last_arrival.get_or_insert(self.waiting.len());
            }
            if self.running.is_empty() {
                continue; // no request runs: time moves to the next arrival
            }
            if self.running.iter().all(|request| request.loads_until_ms.is_some()) {
                let arrival = trace.requests().get(self.arrived).map(|next| next.timestamp_ms);
                let loads = self.running.iter().filter_map(|request| request.loads_until_ms);
                let next = loads.chain(arrival).fold(f64::INFINITY, f64::min);
                self.now_ms = self.now_ms.max(next);
            }
            self.finish_loads()?;
            if self.running.iter().all(|request| request.loads_until_ms.is_some()) {
                continue; // another request arrived first
            }
            self.step(trace)?;
        }
        Ok(self.finished)
    }

    /// Queues the requests that have arrived by now. If no request runs or waits, advances time to the
    /// next arrival.
    fn arrive(&mut self, trace: &Trace, prompts: &mut Prefetch) -> Result<(), ReplayError> {
        let requests = trace.requests();
        if self.arrived == 0 {
            self.first_ms = requests.first().map_or(0.0, |request| request.timestamp_ms);
            self.now_ms = self.first_ms;
        }
        if self.running.is_empty()
            && self.waiting.is_empty()
            && let Some(next) = requests.get(self.arrived)
        {
            self.now_ms = self.now_ms.max(next.timestamp_ms);
        }
        while requests.get(self.arrived).is_some_and(|next| next.timestamp_ms <= self.now_ms) {
            let cursor = Box::new(prompts.next()?);
            self.waiting.push_back(Waiting::New { index: self.arrived, cursor });
            self.arrived += 1;
        }
        Ok(())
    }

    fn admit(&mut self, trace: &Trace) -> Result<(), ReplayError> {
        while !self.blocked && self.running.len() < self.max_running {
            match self.waiting.pop_front() {
                None => break,
                Some(Waiting::New { index, cursor }) => self.admit_new(trace, index, *cursor)?,
                Some(Waiting::Preempted(request)) => self.resume(request)?,
            }
        }
        Ok(())
    }

    fn admit_new(&mut self, trace: &Trace, index: usize, cursor: HashCursor) -> Result<(), ReplayError> {
        let tokens = cursor.num_tokens();
        let found = Reach::of(&self.manager, &cursor)?;
        let mut options = AdmitOptions::default();
        if self.manager.groups().is_some() {
            match self.manager.fit(&cursor, self.part)?.fit {
                // Allocate no blocks at the admission, only for each chunk. A state can be kept only at
                // a position after which the request's block tables have no blocks.
                Fit::Ok => options.part.allocate_tokens = Some(0),
                // The prompt does not fit. The admission below then fails with the reason.
                Fit::Later | Fit::InChunks | Fit::Never => options.part = self.part,
            }
        }
        let (mut blocks, mut served) = (Box::default(), Vec::new());
        if !self.beneath.is_empty() {
            let (block_size, hashes) = (self.manager.pool().block_size(), cursor.chain().hashes());
            let cached = self.manager.fit(&cursor, Part::WHOLE)?.cached_tokens / block_size;
            // The last token of a prompt is always computed, so the last block of a prompt whose blocks
            // are all full cannot hit.
            let most = tokens.saturating_sub(1) / block_size;
            served = self.beneath.served(&hashes[cached..most.max(cached)]);
            let there: usize = served.iter().sum();
            if there > 0 {
                options.part.external_tokens = (cached + there) * block_size;
            }
            blocks = hashes.into();
        }
        match self.manager.admit((index as i64).into(), cursor, &options) {
            Ok(admission) => {
                let mut loads_until_ms = None;
                if !self.beneath.is_empty() {
                    let there_ms = self.beneath.admitted(index, blocks, &served, self.now_ms);
                    loads_until_ms = (admission.external_tokens > 0).then_some(there_ms);
                }
                self.reach.add(&found);
                let block_size = self.manager.pool().block_size() as u64;
                let hit = admission.cached_tokens as u64 / block_size;
                // With a hybrid model, the replayed prompt is shorter than the prompt in the trace (see
                // `Form::Named`).
                let all = u64::from(trace.requests()[index].input_length);
                self.hits.add(all, all, hit, block_size);
                if index >= trace.requests().len() / 2 {
                    self.last_half.add(all, all, hit, block_size);
                }
                let computed = admission.cached_tokens + admission.external_tokens;
                let is_covered = self.manager.groups().is_none();
                let request = Running { index, tokens, computed, is_covered, output: 0, loads_until_ms };
                self.running.push(request);
                self.report.peak_running = self.report.peak_running.max(self.running.len());
            }
            Err(refused) => match refused.error {
                ManagerError::OutOfBlocks(refusal) if refusal.can_ever_fit => {
                    self.blocked = true;
                    self.waiting.push_front(Waiting::New { index, cursor: refused.cursor });
                }
                ManagerError::OutOfBlocks(_) => {
                    self.report.rejected += 1;
                    self.finished += 1;
                }
                error => return Err(error.into()),
            },
        }
        Ok(())
    }

    fn resume(&mut self, request: Running) -> Result<(), ReplayError> {
        match self.manager.resume(RequestRef::Int(request.index as i64), self.part) {
            Ok(admission) => {
                let (computed, is_covered) = (admission.cached_tokens, self.manager.groups().is_none());
                self.running.push(Running { computed, is_covered, ..request });
            }
            Err(ManagerError::OutOfBlocks(refusal)) if refusal.can_ever_fit => {
                self.blocked = true;
                self.waiting.push_front(Waiting::Preempted(request));
            }
            // With a hybrid model, a resumed request needs blocks for its whole text at once. The pool
            // can never have them.
            Err(ManagerError::OutOfBlocks(_)) => self.reject(request.index)?,
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Ends the loads whose blocks have arrived by now, so that their requests can run.
    fn finish_loads(&mut self) -> Result<(), ReplayError> {
        let now_ms = self.now_ms;
        for request in &mut self.running {
            if request.loads_until_ms.is_some_and(|until| until <= now_ms) {
                request.loads_until_ms = None;
                let request = RequestRef::Int(request.index as i64);
                self.manager.external_done(request, Loaded::All)?;
            }
        }
        Ok(())
    }

    /// Advances time until all loads have ended, because a request cannot be preempted during its load.
    fn finish_all_loads(&mut self) -> Result<(), ReplayError> {
        let loads = self.running.iter().filter_map(|request| request.loads_until_ms);
        self.now_ms = loads.fold(self.now_ms, f64::max);
        self.finish_loads()
    }

    fn step(&mut self, trace: &Trace) -> Result<(), ReplayError> {
        let decodes =
            |request: &&Running| request.loads_until_ms.is_none() && request.computed + 1 == request.tokens;
        let decoding = self.running.iter().filter(decodes).count();
        let mut budget = self.step_tokens.saturating_sub(decoding);
        let mut prefilled = 0;
        // Prefill in chunks, oldest request first. A request whose prompt is complete samples its first
        // token in the same step.
        let mut sampling = Vec::with_capacity(self.running.len());
        let mut place = 0;
        while let Some(&request) = self.running.get(place) {
            let Running { index, tokens, computed, is_covered, loads_until_ms, .. } = request;
            if loads_until_ms.is_some() {
                place += 1;
                continue;
            }
            let left = tokens - computed;
            if left > 1 || !is_covered {
                // The last token of a prompt is computed in the step that samples the first output
                // token. It does not count towards the budget.
                let most = if left > 1 { left.min(budget) } else { 1 };
                let Some(chunk) = self.extend_chunk(place, most)? else { continue };
                if left > 1 {
                    budget -= chunk;
                    prefilled += chunk;
                }
                self.running[place].computed += chunk;
                if chunk < left {
                    let request = RequestRef::Int(index as i64);
                    self.manager.commit(request, computed + chunk)?;
                    place += 1;
                    continue;
                }
            }
            sampling.push(place);
            place += 1;
        }
        let (took_ms, queued) =
            (self.step_ms + prefilled as f64 * self.prefill_ms_per_token, self.waiting.len());
        self.now_ms += took_ms;
        self.report.steps += 1;
        self.report.peak_waiting = self.report.peak_waiting.max(queued);
        self.sample(trace, &mut sampling)?;
        if self.manager.groups().is_some() {
            // Take and drop the plan for the copies of states. An engine would execute it, but a replay
            // has no bytes to copy.
            self.manager.take_plan()?;
        }
        let before = self.finished;
        self.finish(trace)?;
        if queued > 0 {
            self.queued_ms += took_ms;
            self.finished_in_queue += (self.finished - before) as u64;
        }
        Ok(())
    }

    /// Allocates blocks for the next `chunk` tokens of a prompt of a hybrid model. (With one group,
    /// these blocks already exist.) Returns the number of tokens of the chunk, which is smaller than
    /// `chunk` if a state has to be kept before its end. Returns `None` if the request was preempted or
    /// rejected.
    fn extend_chunk(&mut self, place: usize, chunk: usize) -> Result<Option<usize>, ReplayError> {
        let Running { index, computed, .. } = self.running[place];
        if self.manager.groups().is_none() || chunk == 0 {
            return Ok(Some(chunk));
        }
        let request = RequestRef::Int(index as i64);
        let checkpoint = self.manager.next_checkpoint(request)?.unwrap_or(usize::MAX);
        let mut end = (computed + chunk).min(checkpoint);
        while place < self.running.len() {
            match self.manager.extend(request, end) {
                Ok(_) => return Ok(Some(end - computed)),
                // No other request runs that could release blocks. Try a chunk of half the size.
                Err(ManagerError::OutOfBlocks(_)) if self.running.len() == 1 => match (end - computed) / 2 {
                    0 => self.reject_last(&mut Vec::new())?,
                    half => end = computed + half,
                },
                Err(ManagerError::OutOfBlocks(_)) => self.preempt_last(&mut Vec::new())?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// Commits the tokens of the sampling requests, and appends a sampled token to each. If the pool
    /// has too few blocks, preempts requests and tries again.
    fn sample(&mut self, trace: &Trace, sampling: &mut Vec<usize>) -> Result<(), ReplayError> {
        loop {
            // A request whose output is complete needs no further token, because `finish` releases it.
            let wants = |request: &Running| request.output < trace.requests()[request.index].output_length;
            let rows: Vec<_> = sampling.iter().map(|&place| self.running[place]).collect();
            let growing: Vec<_> = rows.iter().filter(|request| wants(request)).collect();
            let ids: Vec<_> = growing.iter().map(|request| RequestRef::Int(request.index as i64)).collect();
            let tokens: Vec<_> =
                growing.iter().map(|request| output_token(request.index as u32, request.output)).collect();
            let (requests, computed) = (&ids[..], Computed::AllButLast);
            let rows = Rows { requests, tokens: &tokens, computed, ..Rows::default() };
            match self.manager.append(&rows) {
                Ok(_) => break,
                // No other request runs, and the next token needs more blocks than the pool has. Reject
                // the request, because it can never continue.
                Err(ManagerError::OutOfBlocks(refusal))
                    if self.running.len() == 1 && !refusal.can_ever_fit =>
                {
                    self.reject_last(sampling)?;
                }
                Err(ManagerError::OutOfBlocks(_)) => self.preempt_last(sampling)?,
                Err(error) => return Err(error.into()),
            }
        }
        for &place in &*sampling {
            let request = &mut self.running[place];
            let TraceRequestEnd { arrival_ms, output_length } = TraceRequestEnd::of(trace, request.index);
            (request.computed, request.is_covered) = (request.tokens, true);
            if request.output == 0 {
                self.time_to_first_token_ms += self.now_ms - arrival_ms;
                self.beneath.computed(request.index);
            }
            if request.output < output_length {
                request.output += 1;
                request.tokens += 1;
                self.report.decode_appends += 1;
            }
        }
        Ok(())
    }

    fn preempt_last(&mut self, sampling: &mut Vec<usize>) -> Result<(), ReplayError> {
        self.finish_all_loads()?;
        let Some(victim) = self.running.pop() else { return Ok(()) };
        sampling.retain(|&place| place < self.running.len());
        self.manager.preempt(RequestRef::Int(victim.index as i64), Until::Now)?;
        self.waiting.push_front(Waiting::Preempted(Running { computed: 0, ..victim }));
        self.blocked = false;
        Ok(())
    }

    fn reject_last(&mut self, sampling: &mut Vec<usize>) -> Result<(), ReplayError> {
        self.finish_all_loads()?;
        let Some(victim) = self.running.pop() else { return Ok(()) };
        sampling.retain(|&place| place < self.running.len());
        self.reject(victim.index)
    }

    /// Rejects a request that the manager has admitted: releases its blocks, and counts it as rejected.
    fn reject(&mut self, index: usize) -> Result<(), ReplayError> {
        self.manager.release(RequestRef::Int(index as i64), Until::Now)?;
        self.beneath.forget(index);
        self.report.rejected += 1;
        self.finished += 1;
        self.blocked = false;
        Ok(())
    }

    fn finish(&mut self, trace: &Trace) -> Result<(), ReplayError> {
        let mut place = 0;
        while place < self.running.len() {
            let request = self.running[place];
            let done = request.output >= TraceRequestEnd::of(trace, request.index).output_length;
            // A request with an output length of 0 is complete when its prompt is computed.
            if done && request.computed + usize::from(request.output > 0) >= request.tokens {
                self.manager.commit(RequestRef::Int(request.index as i64), request.computed)?;
                self.manager.release(RequestRef::Int(request.index as i64), Until::Now)?;
                self.running.remove(place);
                self.finished += 1;
                self.blocked = false;
            } else {
                place += 1;
            }
        }
        Ok(())
    }

    pub(super) fn report(&self, trace: &Trace) -> EngineReport {
        let stats = self.manager.stats();
        let requests = trace.requests();
        let last_ms = requests.last().map_or(0.0, |request| request.timestamp_ms);
        // Do not count rejected requests as arrivals, because they take no server time.
        let wanted = (requests.len() as u64).saturating_sub(self.report.rejected);
        let arrivals_per_s = (self.waiting_at_last_arrival.is_some() && last_ms > self.first_ms)
            .then(|| wanted as f64 * 1000.0 / (last_ms - self.first_ms));
        let served_per_s =
            (self.queued_ms > 0.0).then(|| self.finished_in_queue as f64 * 1000.0 / self.queued_ms);
        EngineReport {
            arrivals_per_s,
            served_per_s,
            waiting_at_last_arrival: self.waiting_at_last_arrival.unwrap_or(0),
            overloaded: self.waiting_at_last_arrival.is_some_and(|waiting| waiting > 0)
                && arrivals_per_s.zip(served_per_s).is_some_and(|(arrivals, served)| arrivals > served),
            virtual_seconds: (self.now_ms - self.first_ms) / 1000.0,
            preemptions: stats.preemptions,
            resumed_tokens: stats.resumed_tokens,
            resumed_token_hits: stats.resumed_hit_tokens,
            mean_time_to_first_token_ms: self.time_to_first_token_ms / self.hits.requests.max(1) as f64,
            ..self.report
        }
    }

    pub(super) fn pool_stats(&self) -> PoolStats {
        self.manager.stats().pool
    }

    pub(super) fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.manager.check_invariants()
    }
}

/// The fields of a trace's request that the engine needs after the admission.
struct TraceRequestEnd {
    arrival_ms: f64,
    output_length: u32,
}

impl TraceRequestEnd {
    fn of(trace: &Trace, index: usize) -> Self {
        let request = &trace.requests()[index];
        Self { arrival_ms: request.timestamp_ms, output_length: request.output_length }
    }
}
