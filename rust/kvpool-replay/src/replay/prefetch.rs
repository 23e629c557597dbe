//! Worker threads that expand and hash prompts ahead of the replay.
//!
//! Hashes depend only on tokens, never on the pool, so prompts can be hashed in advance. Worker
//! `i mod n` hashes request `i`. Each worker has its own bounded channel, and the channels are read
//! round robin. So the replay gets the prompts in trace order, for any number of workers, and the
//! channels bound the memory.

use std::sync::Arc;
use std::thread::available_parallelism;

use kvpool::{BlockHasher, ExtraKeys, HashCursor};

use super::ReplayError;
use crate::expand::{TokenExpander, output_token};
use crate::sync::mpsc::{Receiver, sync_channel};
use crate::sync::thread;
use crate::trace::{Trace, TraceRequest};

/// The maximum number of threads. A higher number is certainly a mistake.
pub(super) const MAX_THREADS: usize = 1024;

/// The maximum number of prompts that a worker may hash in advance.
const AHEAD: usize = 16;

/// Determines which tokens of a request form its prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The tokens of every block with an id. A partial last block is filled up with the tokens that its
    /// id gives, so that it becomes a full block.
    Filled,
    /// All tokens of the prompt, also those in blocks without an id.
    Whole,
    /// The tokens of the full blocks with an id. If the prompt has more tokens, one token is added that
    /// no other request has. A trace does not show which part of a partial block the next turn has in
    /// common with it. Without that part, a prompt ends exactly where the hit of the next turn ends.
    Named,
}

/// The number of prompt tokens in blocks with an id. If a trace has ids only for full blocks, the
/// tokens after the last full block are not counted, and never hit.
pub(super) fn indexed_tokens(request: &TraceRequest, trace_block_tokens: usize) -> u64 {
    u64::from(request.input_length).min(request.hash_ids.len() as u64 * trace_block_tokens as u64)
}

type Prompt = Result<HashCursor, ReplayError>;

/// Returns the hashed prompts of the worker threads, in trace order.
#[derive(Debug)]
pub(super) struct Prefetch {
    workers: Vec<Worker>,
    next: usize,
}

#[derive(Debug)]
struct Worker {
    prompts: Receiver<Prompt>,
    thread: thread::JoinHandle<()>,
}

impl Prefetch {
    /// Starts the workers. They end at the end of the trace, or when this object is dropped.
    ///
    /// # Errors
    /// [`ReplayError::Threads`] if the system refuses a thread. The threads started before it then end.
    pub(super) fn start(
        trace: &Arc<Trace>,
        hasher: &Arc<BlockHasher>,
        form: Form,
        threads: usize,
    ) -> Result<Self, ReplayError> {
        let cores = || available_parallelism().map_or(1, Into::into);
        let threads = if threads == 0 { cores() } else { threads }.min(trace.requests().len());
        let mut prefetch = Self { workers: Vec::new(), next: 0 };
        for first in 0..threads {
            let name = format!("kvpool-hash-{first}");
            let (sender, prompts) = sync_channel(AHEAD);
            let (trace, hasher) = (trace.clone(), hasher.clone());
            let work = move || {
                for request in (first..trace.requests().len()).step_by(threads) {
                    if sender.send(prompt(&trace, &hasher, form, request)).is_err() {
                        return; // the replay was dropped
                    }
                }
            };
            let started = thread::Builder::new().name(name).spawn(work);
            let thread =
                started.map_err(|error| ReplayError::Threads { threads, reason: error.to_string() })?;
            prefetch.workers.push(Worker { prompts, thread });
        }
        Ok(prefetch)
    }

    /// Returns the prompt of the next request of the trace. Call it once per request.
    pub(super) fn next(&mut self) -> Prompt {
        let threads = self.workers.len();
        let worker = self.next % threads.max(1);
        self.next += 1;
        let received = self.workers.get(worker).and_then(|worker| worker.prompts.recv().ok());
        received.unwrap_or_else(|| {
            Err(ReplayError::Threads { threads, reason: "one of them ended early".into() })
        })
    }
}

impl Drop for Prefetch {
    /// Ends the workers, and waits until each has hashed its current prompt. So no thread, and none of
    /// its memory, outlives its replay.
    fn drop(&mut self) {
        let threads: Vec<_> = self.workers.drain(..).map(|worker| worker.thread).collect();
        for thread in threads {
            let _panicked = thread.join();
        }
    }
}

fn prompt(trace: &Trace, hasher: &Arc<BlockHasher>, form: Form, index: usize) -> Prompt {
    let expand_error = |error| ReplayError::Expand { request: index + 1, error };
    let expander = TokenExpander::new(trace.block_tokens()).map_err(expand_error)?;
    let request = &trace.requests()[index];
    let mut tokens = Vec::new();
    let block_tokens = trace.block_tokens();
    match form {
        Form::Whole => expander.expand_request(request, index as u32, &mut tokens).map_err(expand_error)?,
        Form::Filled => {
            let indexed = indexed_tokens(request, block_tokens);
            let whole = indexed.next_multiple_of(hasher.block_size() as u64);
            let whole = u32::try_from(whole).unwrap_or(u32::MAX);
            expander.expand(&request.hash_ids, whole, &mut tokens).map_err(expand_error)?;
        }
        Form::Named => {
            let named = request.hash_ids.len().min(request.input_length as usize / block_tokens);
            let whole = (named * block_tokens) as u32; // at most the request's length
            expander.expand(&request.hash_ids[..named], whole, &mut tokens).map_err(expand_error)?;
            if whole < request.input_length {
                tokens.push(output_token(index as u32, 0));
            }
        }
    }
    let mut cursor =
        HashCursor::new(hasher.clone(), ExtraKeys::default()).map_err(kvpool::ManagerError::from)?;
    cursor.append(&tokens);
    Ok(cursor)
}
