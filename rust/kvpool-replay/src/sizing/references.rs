//! A trace as block references: the form that every estimator works on.
//!
//! Owns [`References`]: dense block numbers in the order of requests, request boundaries, prompt
//! lengths and times; and, found in the same pass, the [`Run`]s in which blocks are used again (see
//! [`runs`](super::runs) for what they are and why they make everything else cheap).
//!
//! Definitions, the same as in [lookup mode](crate::replay): requests one after the other, no time; a
//! block counts as a hit only if all blocks before it in its prompt are hits; a reference weighs the
//! prompt tokens in it, so the partial last block weighs less. [`Blocks::Full`] leaves partial blocks
//! out, as an engine does, which can find full blocks only.
//!
//! Invariants: blocks are numbered in the order of first use; an id has one parent, so what two
//! requests share is a prefix of both; the counts fit 32 bits.
//!
//! Costs: one hash-map step per reference (10 to 45 ns). Held: 4 bytes per reference, 36 per request,
//! 20 per run, of which there are 1.0 per request on agents and 1.4 on chats. While it is made: 4 bytes
//! per unique block and the map, 20 to 40 more.

use std::collections::{HashMap, hash_map::Entry};
use std::str::FromStr;
use std::sync::Arc;

use kvpool::{Finish, Signal};

use super::error::{SizingError, setting};
use super::runs::{Run, Runs};
use crate::id_hash::IdHasherBuilder;
use crate::trace::Trace;

/// Which blocks of a prompt are references.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Blocks {
    /// All that the trace names, the partial last one too where it has an id: the definition of
    /// published hit rates.
    #[default]
    All,
    /// Full blocks only: what an engine can find again.
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
    /// Shared with copies that differ in what is known at the end of requests.
    blocks: Arc<Vec<u32>>,
    /// Where each request ends in `blocks`.
    ends: Vec<u32>,
    input_tokens: Vec<u32>,
    times_ms: Vec<f64>,
    signals: Vec<Signal>,
    runs: Arc<Runs>,
    unique_blocks: u32,
    prompt_tokens: u64,
    block_tokens: usize,
}

/// One less than the largest `u32`, which marks "none".
const MOST: usize = u32::MAX as usize - 1;

impl References {
    /// The references of a trace, at the trace's own block size.
    ///
    /// # Errors
    ///
    /// [`SizingError::TooMany`] beyond 2^32 - 2 requests or references; [`SizingError::BrokenPrefix`]
    /// for a trace that was read without the check of prefixes and would not have passed it.
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
        // Of each block, the block before it in its prompts; `u32::MAX` for a first one.
        let mut parents: Vec<u32> = Vec::new();
        for index in 0..requests.len() {
            let mut parent = u32::MAX;
            for (position, &id) in ids_of(index).iter().enumerate() {
                let next = parents.len() as u32; // fits: at most one per reference
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

    /// Requests.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.ends.len()
    }

    /// The blocks of request `index` (from 0), root first; empty beyond the last request.
    #[must_use]
    pub fn request(&self, index: usize) -> &[u32] {
        let Some(&end) = self.ends.get(index) else { return &[] };
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.blocks[start as usize..end as usize]
    }

    /// Blocks of request `index`; 0 beyond the last request.
    #[must_use]
    pub fn request_len(&self, index: usize) -> u32 {
        self.request(index).len() as u32
    }

    /// Block references.
    #[must_use]
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether there is none: all prompts are shorter than a block, and only full blocks were asked for.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Different blocks.
    #[must_use]
    pub fn unique_blocks(&self) -> usize {
        self.unique_blocks as usize
    }

    /// References to blocks that were there before: the hits of a cache that never evicts.
    #[must_use]
    pub fn reused(&self) -> usize {
        self.len() - self.unique_blocks()
    }

    /// Tokens of all prompts, in blocks or not: what token hit rates are a share of.
    #[must_use]
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    /// Prompt tokens of request `index`; 0 beyond the last request.
    #[must_use]
    pub fn input_tokens(&self, index: usize) -> u32 {
        self.input_tokens.get(index).copied().unwrap_or(0)
    }

    /// Prompt tokens in the first `blocks` blocks of request `index`; 0 beyond the last request.
    #[must_use]
    pub fn tokens_of(&self, index: usize, blocks: u32) -> u64 {
        let covered = u64::from(blocks.min(self.request_len(index))).saturating_mul(self.block_tokens as u64);
        covered.min(u64::from(self.input_tokens(index)))
    }

    /// Arrival of each request, in ms.
    #[must_use]
    pub fn times_ms(&self) -> &[f64] {
        &self.times_ms
    }

    /// What is known of request `index` when it ends: nothing beyond the last request.
    #[must_use]
    pub fn signal(&self, index: usize) -> Signal {
        self.signals.get(index).copied().unwrap_or_default()
    }

    /// Changes what is known of each request when it ends: to ask what it is worth.
    pub fn change_signals(&mut self, change: impl Fn(usize, Signal) -> Signal) {
        for (index, signal) in self.signals.iter_mut().enumerate() {
            *signal = change(index, *signal);
        }
    }

    /// Requests of which it is known how they ended.
    #[must_use]
    pub fn finish_reasons(&self) -> usize {
        self.signals.iter().filter(|signal| signal.finish != Finish::Unknown).count()
    }

    /// The same references, and nobody knows how requests ended: to ask what knowing it is worth.
    /// Shares what is large: 40 bytes per request.
    #[must_use]
    pub fn without_finish_reasons(&self) -> Self {
        let mut without = self.clone();
        without.change_signals(|_, signal| Signal { finish: Finish::Unknown, ..signal });
        without
    }

    /// Tokens of a full block.
    #[must_use]
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// The runs in which blocks are used again.
    #[must_use]
    pub fn runs(&self) -> &Runs {
        &self.runs
    }

    /// The runs that end in request `index`, root first.
    pub(super) fn runs_to(&self, index: usize) -> &[Run] {
        self.runs.to(index)
    }

    /// Bytes held.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        4 * (self.blocks.capacity() + self.ends.capacity() + self.input_tokens.capacity())
            + 8 * self.times_ms.capacity()
            + size_of::<Signal>() * self.signals.capacity()
            + self.runs.heap_bytes()
    }
}
