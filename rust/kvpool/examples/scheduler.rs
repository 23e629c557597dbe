//! Shows a scheduler's loop that uses `CacheManager`: continuous batching, chunked prefill and drafts,
//! with one call per step.
//!
//! Each request has one row per step: the tokens that the last step produced, the number of computed
//! tokens, and the number of tokens that need blocks. Run it with
//! `cargo run -p kvpool --example scheduler`. `examples/ports/native.py` is a Python version of this
//! program.

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use std::collections::VecDeque;

use kvpool::{
    Admission, AdmitOptions, CacheManager, Computed, Covered, ExtraKeys, HashCursor, ManagerConfig,
    ManagerError, Part, Rows, Until,
};

/// The largest number of tokens that a step computes.
const BUDGET: usize = 32;
/// Number of slots for drafts after the last token of each request that samples.
const DRAFTS: usize = 3;

/// A request in the scheduler. At all times, `computed <= known <= tokens.len()`.
struct Request {
    id: u32,
    tokens: Vec<u32>,
    length: usize,
    /// The hashed prompt. `None` after the request was admitted.
    prompt: Option<HashCursor>,
    /// Number of tokens that the manager knows.
    known: usize,
    computed: usize,
    /// The next step computes the tokens `computed..end`.
    end: usize,
}

struct Scheduler {
    manager: CacheManager,
    /// The running requests, oldest first.
    running: Vec<Request>,
    waiting: VecDeque<Request>,
}

impl Scheduler {
    fn submit(&mut self, id: u32, tokens: Vec<u32>) -> Result<(), ManagerError> {
        let (known, length) = (tokens.len(), tokens.len() + 20);
        let prompt = Some(self.manager.prepare(&tokens, ExtraKeys::default())?);
        self.waiting.push_back(Request { id, tokens, length, prompt, known, computed: 0, end: 0 });
        Ok(())
    }

    /// Distributes the token budget among the running requests, the oldest first. Returns the rest of
    /// the budget.
    fn share(&mut self) -> usize {
        let mut left = BUDGET;
        for request in &mut self.running {
            let more = left.min(request.tokens.len() - request.computed);
            (request.end, left) = (request.computed + more, left - more);
        }
        left
    }

    /// Makes the only call of a step, which passes the new tokens of all running requests. If blocks
    /// run out, the youngest request is preempted. Its row remains in the call, because it still gets
    /// its tokens.
    fn grow(&mut self) -> Result<(), ManagerError> {
        let (mut requests, mut tokens, mut offsets) = (Vec::new(), Vec::new(), vec![0]);
        let (mut computed, mut covered) = (Vec::new(), Vec::new());
        for request in &mut self.running {
            requests.push(request.id.into());
            tokens.extend_from_slice(request.tokens.get(request.known..).unwrap_or_default());
            offsets.push(tokens.len());
            computed.push(request.computed);
            covered.push(request.end + if request.end == request.tokens.len() { DRAFTS } else { 0 });
            request.known = request.tokens.len();
        }
        let mut rows = Rows { requests: &requests, tokens: &tokens, offsets: &offsets, ..Rows::default() };
        (rows.computed, rows.covered) = (Computed::Counts(&computed), Covered::Each(&covered));
        // An engine applies the returned changes to the block tables on its device.
        while let Err(error) = self.manager.append_ragged(&rows) {
            let short = matches!(error, ManagerError::OutOfBlocks(_));
            let Some(mut victim) = self.running.pop().filter(|_| short) else { return Err(error) };
            self.manager.preempt(victim.id, Until::Now)?;
            (victim.computed, victim.end) = (0, 0);
            self.waiting.push_front(victim);
        }
        Ok(())
    }

    /// Admits waiting requests, with blocks for their first chunk.
    fn admit(&mut self, mut left: usize) -> Result<(), ManagerError> {
        while let Some(mut request) = (left > 0).then(|| self.waiting.pop_front()).flatten() {
            match self.enter(&mut request, Part { allocate_tokens: Some(left), ..Part::WHOLE }) {
                Ok(admission) => request.computed = admission.cached_tokens,
                Err(error) => {
                    self.waiting.push_front(request);
                    return if matches!(error, ManagerError::OutOfBlocks(_)) { Ok(()) } else { Err(error) };
                }
            }
            let more = left.min(request.tokens.len() - request.computed);
            (request.end, left) = (request.computed + more, left - more);
            self.running.push(request);
        }
        Ok(())
    }

    /// Admits a new request, or resumes a preempted one. A refusal returns the prompt.
    fn enter(&mut self, request: &mut Request, part: Part) -> Result<Admission, ManagerError> {
        let (id, options) = (request.id, AdmitOptions { part, ..AdmitOptions::default() });
        match request.prompt.take() {
            None => self.manager.resume_with(id, part),
            Some(prompt) => self.manager.admit_with(id, prompt, &options).map_err(|refused| {
                request.prompt = Some(*refused.cursor);
                refused.error
            }),
        }
    }

    /// Simulates the sampling of a step: each request whose tokens are all computed gets some accepted
    /// drafts and one more token.
    fn sample(&mut self) -> Result<(), ManagerError> {
        for mut request in std::mem::take(&mut self.running) {
            request.computed = request.end;
            if request.end == request.tokens.len() {
                let accepted = request.tokens.len() % (DRAFTS + 1);
                request.computed += accepted;
                request.tokens.resize(request.tokens.len() + accepted + 1, 7);
            }
            if request.tokens.len() < request.length {
                self.running.push(request);
            } else {
                self.manager.release(request.id, Until::Now)?;
            }
        }
        Ok(())
    }
}

fn main() -> Result<(), ManagerError> {
    let config = ManagerConfig { num_blocks: 60, block_size: 4, ..ManagerConfig::default() };
    let manager = CacheManager::new(config)?;
    let mut scheduler = Scheduler { manager, running: Vec::new(), waiting: VecDeque::new() };
    for id in 0..20 {
        scheduler.submit(id, (0..24).chain([id; 3]).collect())?;
    }
    let mut steps = 0;
    while !(scheduler.waiting.is_empty() && scheduler.running.is_empty()) {
        let left = scheduler.share();
        scheduler.grow()?;
        scheduler.admit(left)?;
        // Here the engine computes tokens `computed..end` of each request, into the blocks of its
        // `block_table`.
        scheduler.sample()?;
        steps += 1;
    }
    println!("{steps} steps: {:#?}", scheduler.manager.stats().pool);
    Ok(())
}
