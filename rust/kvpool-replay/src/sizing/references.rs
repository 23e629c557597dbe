//! Converts a trace to block references, the input of every estimator.
//!
//! [`References`] contains dense block numbers in the order of requests, request boundaries, prompt
//! lengths and times. One pass also finds the [`Run`]s in which blocks are used again.
//! [`runs`](super::runs) explains what runs are, and why they make the estimators fast.
//!
//! The definitions are those of [lookup mode](crate::replay). Requests run one after the other, without
//! time. A block is a hit only if all blocks before it in its prompt are hits. The weight of a
//! reference is its number of prompt tokens, so a partial last block has a lower weight.
//! [`Blocks::Full`] excludes partial blocks, because an engine can find only full blocks.
//!
//! Invariants: blocks are numbered in the order of first use. An id has one parent, so the common
//! blocks of two requests are a prefix of both. The counts fit 32 bits.
//!
//! Costs: one hash-map step per reference (10 to 45 ns). Memory: 4 bytes per reference, 36 per request,
//! and 20 per run. There are 1.0 runs per request in agent traces and 1.4 in chat traces. Construction
//! takes 4 more bytes per unique block, and 20 to 40 for an entry of the map.

use std::collections::{HashMap, hash_map::Entry};
use std::str::FromStr;
use std::sync::Arc;

use kvpool::{Finish, Signal};

use super::error::{SizingError, setting};
use super::runs::{Run, Runs};
use crate::id_hash::IdHasherBuilder;
use crate::trace::Trace;

/// Determines which blocks of a prompt are references.
///
/// ```
/// use kvpool_replay::sizing::Blocks;
/// assert_eq!("full".parse(), Ok(Blocks::Full));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blocks {
    /// All blocks with an id, including a partial last block with an id. Published hit rates use this
    /// definition.
    #[default]
    All,
    /// Full blocks only, because an engine can find only full blocks again.
    Full,
}

impl FromStr for Blocks {
    type Err = SizingError;

    fn from_str(name: &str) -> Result<Self, SizingError> {
        match name {
            "all" => Ok(Self::All),
            "full" => Ok(Self::Full),
            _ => Err(setting("blocks", name, "all or full")),
        }
    }
}

/// A trace as block references.
///
/// ```
/// use kvpool_replay::{sizing::{Blocks, References}, trace::{Trace, TraceRequest}};
///
/// let turn = |input_length, ids: &[u64]| TraceRequest {
///     timestamp_ms: 0.0,
///     input_length,
///     output_length: 1,
///     hash_ids: ids.into(),
/// };
/// let trace = Trace::new(vec![turn(700, &[70, 71]), turn(1300, &[70, 72, 73])], 512).unwrap();
/// let references = References::new(&trace, Blocks::All)?;
/// assert_eq!((references.request(0), references.request(1)), (&[0, 1][..], &[0, 2, 3][..]));
/// assert_eq!((references.len(), references.unique_blocks(), references.reused()), (5, 4, 1));
/// assert_eq!((references.tokens_of(1, 2), references.tokens_of(1, 3)), (1024, 1300));
///
/// let full = References::new(&trace, Blocks::Full)?;
/// assert_eq!((full.len(), full.prompt_tokens()), (3, 2000));
/// # Ok::<(), kvpool_replay::sizing::SizingError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct References {
    /// The block numbers of all requests, one request after the other. Copies of the references with
    /// other signals share this list.
    blocks: Arc<Vec<u32>>,
    /// For each request, the index in `blocks` after its last block.
    ends: Vec<u32>,
    input_tokens: Vec<u32>,
    times_ms: Vec<f64>,
    signals: Vec<Signal>,
    runs: Arc<Runs>,
    unique_blocks: u32,
    prompt_tokens: u64,
    block_tokens: usize,
}

/// Largest number of requests or references. It is one less than the largest `u32`, because that value
/// means "none".
const MOST: usize = u32::MAX as usize - 1;

impl References {
    /// Makes the references of a trace, at the trace's own block size.
    ///
    /// # Errors
    ///
    /// [`SizingError::TooMany`] for more than 2^32 - 2 requests or references;
    /// [`SizingError::BrokenPrefix`] for a trace that was read without the check of prefixes and
    /// violates it.
    pub fn new(trace: &Trace, which: Blocks) -> Result<Self, SizingError> {
        let (requests, block_tokens) = (trace.requests(), trace.block_tokens());
        let ids_of = |index: usize| match which {
            Blocks::All => &*requests[index].hash_ids,
            Blocks::Full => requests[index].full_blocks(block_tokens),
        };
        let total = (0..requests.len()).map(|index| ids_of(index).len()).sum();
        for (what, value) in [("requests", requests.len()), ("block references", total)] {
            if value > MOST {
                return Err(SizingError::TooMany { what, value, limit: MOST });
            }
        }
        let mut references = Self {
            blocks: Arc::default(),
            ends: Vec::with_capacity(requests.len()),
            input_tokens: requests.iter().map(|request| request.input_length).collect(),
            times_ms: requests.iter().map(|request| request.timestamp_ms).collect(),
            signals: (0..requests.len())
                .map(|index| Signal {
                    finish: trace.labels().get(index).finish,
                    output_tokens: Some(requests[index].output_length),
                })
                .collect(),
            runs: Arc::default(),
            unique_blocks: 0,
            prompt_tokens: requests.iter().map(|request| u64::from(request.input_length)).sum(),
            block_tokens,
        };
        let mut blocks = Vec::with_capacity(total);
        let mut numbers: HashMap<u64, u32, IdHasherBuilder> = HashMap::default();
        // The parent of each block. `u32::MAX` for the first block of a prompt.
        let mut parents: Vec<u32> = Vec::new();
        for index in 0..requests.len() {
            let mut parent = u32::MAX;
            for (position, &id) in ids_of(index).iter().enumerate() {
                let next = parents.len() as u32; // fits, because there is at most one per reference
                let block = match numbers.entry(id) {
                    Entry::Vacant(entry) => {
                        parents.push(parent);
                        *entry.insert(next)
                    }
                    Entry::Occupied(entry) => *entry.get(),
                };
                if parents[block as usize] != parent {
                    return Err(SizingError::BrokenPrefix { request: index + 1, id, position });
                }
                blocks.push(block);
                parent = block;
            }
            references.ends.push(blocks.len() as u32);
        }
        references.unique_blocks = parents.len() as u32;
        drop((numbers, parents));
        references.blocks = Arc::new(blocks);
        let blocks_of = (0..references.requests()).map(|index| references.request(index));
        references.runs = Arc::new(Runs::find(blocks_of, references.unique_blocks()));
        Ok(references)
    }

    /// The number of requests of the trace.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.ends.len()
    }

    /// The blocks of request `index` (from 0), in the order of the prompt; empty after the last
    /// request.
    #[must_use]
    pub fn request(&self, index: usize) -> &[u32] {
        let Some(&end) = self.ends.get(index) else { return &[] };
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.blocks[start as usize..end as usize]
    }

    /// The number of blocks of request `index`; 0 after the last request.
    #[must_use]
    pub fn request_len(&self, index: usize) -> u32 {
        self.request(index).len() as u32
    }

    /// The number of block references of the trace.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there are no references. That is the case if only full blocks were selected and all
    /// prompts are shorter than a block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The number of distinct blocks of the trace.
    #[must_use]
    pub fn unique_blocks(&self) -> usize {
        self.unique_blocks as usize
    }

    /// The number of references to blocks that were used before. It is the number of hits of a cache
    /// that never evicts.
    #[must_use]
    pub fn reused(&self) -> usize {
        self.len() - self.unique_blocks()
    }

    /// The number of tokens of all prompts, including tokens that are in no block. Token hit rates are
    /// shares of it.
    #[must_use]
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    /// The number of prompt tokens of request `index`; 0 after the last request.
    #[must_use]
    pub fn input_tokens(&self, index: usize) -> u32 {
        self.input_tokens.get(index).copied().unwrap_or(0)
    }

    /// The number of prompt tokens in the first `blocks` blocks of request `index`; 0 after the last
    /// request.
    #[must_use]
    pub fn tokens_of(&self, index: usize, blocks: u32) -> u64 {
        let covered = u64::from(blocks.min(self.request_len(index))).saturating_mul(self.block_tokens as u64);
        covered.min(u64::from(self.input_tokens(index)))
    }

    /// The arrival time of each request, in ms.
    #[must_use]
    pub fn times_ms(&self) -> &[f64] {
        &self.times_ms
    }

    /// Returns the signal that the policy gets when request `index` ends. It is the default signal
    /// after the last request.
    #[must_use]
    pub fn signal(&self, index: usize) -> Signal {
        self.signals.get(index).copied().unwrap_or_default()
    }

    /// Changes the signal of each request, for example to measure the value of signals.
    pub fn change_signals(&mut self, change: impl Fn(usize, Signal) -> Signal) {
        for (index, signal) in self.signals.iter_mut().enumerate() {
            *signal = change(index, *signal);
        }
    }

    /// The number of requests with a known finish reason.
    #[must_use]
    pub fn finish_reasons(&self) -> usize {
        self.signals.iter().filter(|signal| signal.finish != Finish::Unknown).count()
    }

    /// Returns the same references without finish reasons, for example to measure the value of these
    /// reasons. The copy shares the large arrays, and takes 40 bytes per request.
    #[must_use]
    pub fn without_finish_reasons(&self) -> Self {
        let mut without = self.clone();
        without.change_signals(|_, signal| Signal { finish: Finish::Unknown, ..signal });
        without
    }

    /// The size of a full block, in tokens.
    #[must_use]
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// The runs in which blocks are used again.
    #[must_use]
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// Returns the runs that end in request `index`, in the order of the prompt.
    pub(super) fn runs_to(&self, index: usize) -> &[Run] {
        self.runs.to(index)
    }

    /// Number of bytes that this object has on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        4 * (self.blocks.capacity() + self.ends.capacity() + self.input_tokens.capacity())
            + 8 * self.times_ms.capacity()
            + size_of::<Signal>() * self.signals.capacity()
            + self.runs.heap_bytes()
    }
}
