//! Traces: a recorded or synthetic workload in memory.
//!
//! [`TraceRequest`] is one request, and [`Trace`] contains requests in order of arrival, with the block
//! size of their ids. [`crate::reader`] reads traces, [`crate::validate`] contains the rules, and
//! [`crate::generate`] makes traces.
//!
//! Traces of every [format](crate::formats) are stored in the representation of Mooncake: `timestamp`
//! (ms from the start of the recording), `input_length` and `output_length` (tokens), and `hash_ids`,
//! one id per block of the prompt. Ids are *chained*: an id identifies a block together with everything
//! before it. So equal ids at equal positions mean an equal prefix, and a prefix cache needs no other
//! information about a prompt.
//!
//! Invariants of a [`Trace`] (its constructors check them, and nothing changes it afterwards):
//!
//! 1. There is at least one request.
//! 2. `input_length >= 1`, and the ids cover the prompt. Only the last block of a prompt may be
//!    partial. Either all requests list their partial block, as in Mooncake's traces, and have
//!    `ceil(input_length / block_tokens)` ids. Or all omit it, because an engine cannot reuse it, and
//!    have `floor(...)` ids.
//! 3. Timestamps are finite, not negative, and never go backward.
//! 4. An id has one parent in the whole trace and occurs at most once in a request (unless the check
//!    was disabled in [`ReadOptions`](crate::reader::ReadOptions)).
//!
//! Other data of a request (its session, its kind) are stored separately, in [`Labels`].
//!
//! Costs: 40 bytes and one allocation per request, and 8 bytes per block reference. Labels take 32
//! bytes per request.

use std::collections::HashSet;

use crate::{
    blocks::{Chains, MOST_REFERENCES, can_regroup, regroup},
    error::TraceError,
    id_hash::IdHasherBuilder,
    labels::Labels,
    validate::RequestChecker,
};

pub use crate::formats::write_jsonl;
pub use crate::request::{DEFAULT_BLOCK_TOKENS, TraceRequest};

/// A workload: requests in order of arrival.
///
/// ```
/// use kvpool_replay::trace::{Trace, TraceRequest};
///
/// let turn = |timestamp_ms, input_length, ids: &[u64]| TraceRequest {
///     timestamp_ms,
///     input_length,
///     output_length: 10,
///     hash_ids: ids.into(),
/// };
/// // Two turns of a chat: the second repeats block 0, and has filled the partial block 1 differently.
/// let trace = Trace::new(vec![turn(0.0, 700, &[0, 1]), turn(2500.0, 1300, &[0, 2, 3])], 512).unwrap();
/// let summary = trace.summary();
/// assert_eq!((summary.requests, summary.input_tokens, summary.span_ms), (2, 2000, 2500.0));
/// assert_eq!((summary.block_references, summary.partial_blocks, summary.unique_blocks), (5, 2, 4));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    requests: Vec<TraceRequest>,
    block_tokens: usize,
    labels: Labels,
}

impl Trace {
    /// Makes a trace of `requests`, whose ids are for blocks of `block_tokens` tokens.
    ///
    /// Takes one hash-map step per block reference: 10 to 50 ns, depending on how many are new.
    ///
    /// # Errors
    ///
    /// The first violation of the four rules above, as the reader would report it, with the number of
    /// the request (from 1) as its line; [`TraceError::BadOption`] if `block_tokens` is 0.
    pub fn new(requests: Vec<TraceRequest>, block_tokens: usize) -> Result<Self, TraceError> {
        let mut checker = RequestChecker::new(block_tokens, true)?;
        if requests.is_empty() {
            return Err(TraceError::Empty { lines: 0 });
        }
        for (line, request) in (1..).zip(&requests) {
            checker.check(request, line)?;
        }
        Ok(Self { requests, block_tokens, labels: Labels::default() })
    }

    /// Makes a trace of one or more requests without checking them. The caller ensures that a
    /// [`RequestChecker`] has accepted them in this order, or would accept them.
    pub(crate) fn from_checked(requests: Vec<TraceRequest>, block_tokens: usize, labels: Labels) -> Self {
        Self { requests, block_tokens, labels }
    }

    /// Returns the trace with labels: one per request, or none.
    ///
    /// # Errors
    ///
    /// [`TraceError::LabelCount`] for any other number of labels.
    pub fn with_labels(self, labels: Labels) -> Result<Self, TraceError> {
        if !labels.is_empty() && labels.len() != self.requests.len() {
            return Err(TraceError::LabelCount { labels: labels.len(), requests: self.requests.len() });
        }
        Ok(Self { labels, ..self })
    }

    /// Returns the same workload in blocks of another size, which must be a multiple or a divisor of
    /// this one.
    ///
    /// With larger blocks, the same tokens or fewer hit, because a block hits as a whole. With smaller
    /// blocks, the same tokens hit, because the trace does not show where within a block two prompts
    /// diverge. The ids are new; equal ids still mean equal prefixes. The text of a partial block
    /// without an id is unknown, so the smaller blocks made from it match nothing.
    ///
    /// Takes one or two hash-map steps per old block reference, and 8 bytes per new one.
    ///
    /// ```
    /// use kvpool_replay::trace::{Trace, TraceRequest};
    ///
    /// let turn = |input_length, ids: &[u64]| TraceRequest {
    ///     timestamp_ms: 0.0,
    ///     input_length,
    ///     output_length: 1,
    ///     hash_ids: ids.into(),
    /// };
    /// let trace = Trace::new(vec![turn(48, &[7, 8, 9]), turn(64, &[7, 8, 9, 5])], 16)?;
    /// let larger = trace.with_block_tokens(32)?;
    /// assert_eq!(larger.requests()[0].hash_ids[..], [0, 1]);
    /// assert_eq!(larger.requests()[1].hash_ids[..], [0, 2]);
    /// # Ok::<(), kvpool_replay::error::TraceError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`TraceError::BadOption`] for 0; [`TraceError::BlockSizes`] if neither size divides the other;
    /// [`TraceError::TooManyBlocks`] beyond 2^30 references; [`TraceError::NoMemory`] if there is not
    /// enough memory for 8 bytes a reference.
    pub fn with_block_tokens(&self, block_tokens: usize) -> Result<Self, TraceError> {
        if block_tokens == 0 {
            let (option, allowed) = ("block_tokens", "1 or more tokens");
            return Err(TraceError::BadOption { option, value: 0, allowed });
        }
        if block_tokens == self.block_tokens {
            return Ok(self.clone());
        }
        if !can_regroup(self.block_tokens, block_tokens) {
            return Err(TraceError::BlockSizes { line: None, from: self.block_tokens, to: block_tokens });
        }
        let blocks = |request: &TraceRequest| u64::from(request.input_length).div_ceil(block_tokens as u64);
        if self.requests.iter().map(blocks).sum::<u64>() > MOST_REFERENCES {
            return Err(TraceError::TooManyBlocks { to: block_tokens, limit: MOST_REFERENCES });
        }
        let (mut chains, listed) = (Chains::default(), self.lists_partial_blocks());
        let requests = self.requests.iter().map(|request| {
            let (ids, tokens) = (&request.hash_ids, request.input_length);
            let hash_ids = regroup(&mut chains, ids, tokens, self.block_tokens, block_tokens, listed)?;
            Ok(TraceRequest { hash_ids, ..*request })
        });
        let requests = requests.collect::<Result<_, TraceError>>()?;
        Ok(Self { requests, block_tokens, labels: self.labels.clone() })
    }

    /// Whether partial last blocks have ids; true if no prompt has a partial block.
    #[must_use]
    pub fn lists_partial_blocks(&self) -> bool {
        let shows = self
            .requests
            .iter()
            .find(|request| !(request.input_length as usize).is_multiple_of(self.block_tokens.max(1)));
        shows.is_none_or(|request| request.full_blocks(self.block_tokens).len() < request.hash_ids.len())
    }

    /// The labels of the requests; empty for formats without labels.
    #[must_use]
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// The requests, in order of arrival; never empty.
    #[must_use]
    pub fn requests(&self) -> &[TraceRequest] {
        &self.requests
    }

    /// Returns the requests without a copy.
    #[must_use]
    pub fn into_requests(self) -> Vec<TraceRequest> {
        self.requests
    }

    /// The number of tokens per block id.
    #[must_use]
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Totals over the whole trace.
    ///
    /// Takes two passes, and one hash-set step per block reference: 10 to 20 ms per million references.
    /// In generated traces, and in those converted to another block size, ids are counted from 0. A bit
    /// set then replaces the hash set. The result is not cached.
    #[must_use]
    pub fn summary(&self) -> TraceSummary {
        let mut summary = TraceSummary { requests: self.requests.len(), ..TraceSummary::default() };
        for request in &self.requests {
            summary.input_tokens += u64::from(request.input_length);
            summary.output_tokens += u64::from(request.output_length);
            summary.block_references += request.hash_ids.len() as u64;
            summary.longest_input = summary.longest_input.max(request.input_length);
            let full = request.full_blocks(self.block_tokens).len();
            summary.partial_blocks += (request.hash_ids.len() - full) as u64;
        }
        if let (Some(first), Some(last)) = (self.requests.first(), self.requests.last()) {
            summary.span_ms = last.timestamp_ms - first.timestamp_ms;
        }
        summary.unique_blocks = self.unique_ids(summary.block_references);
        summary
    }

    fn unique_ids(&self, references: u64) -> u64 {
        let ids = || self.requests.iter().flat_map(|request| request.hash_ids.iter().copied());
        let words = ids().max().map_or(0, |most| most / 64 + 1);
        // Use a bit set if one bit per possible id takes at most a byte per reference. A hash set would
        // take up to 18 bytes per distinct id.
        if words > references / 8 + 1 {
            return ids().collect::<HashSet<u64, IdHasherBuilder>>().len() as u64;
        }
        let mut seen = vec![0_u64; words as usize];
        for id in ids() {
            if let Some(word) = seen.get_mut((id / 64) as usize) {
                *word |= 1 << (id % 64);
            }
        }
        seen.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

/// The totals of a [`Trace`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TraceSummary {
    /// The number of requests of the trace.
    pub requests: usize,
    /// The time from the first arrival to the last, in ms.
    pub span_ms: f64,
    /// The number of prompt tokens of all requests.
    pub input_tokens: u64,
    /// The number of output tokens of all requests.
    pub output_tokens: u64,
    /// The number of tokens of the longest prompt.
    pub longest_input: u32,
    /// The number of block ids of all requests, including repeated ones. It is the number of blocks to
    /// compute without a cache.
    pub block_references: u64,
    /// The number of block ids that identify a partial last block; 0 if the trace omits partial blocks.
    pub partial_blocks: u64,
    /// The number of distinct block ids. It is the number of blocks to compute with a cache that never
    /// evicts.
    pub unique_blocks: u64,
}
