//! Traces: what a recorded or generated workload is, in memory.
//!
//! Owns [`TraceRequest`] (one request), and [`Trace`] (requests in order of arrival, with the block size that
//! their ids are made for). Reading is in [`crate::reader`], the rules are in
//! [`crate::validate`], and [`crate::generate`] makes traces.
//!
//! The form is Mooncake's, whatever [format](crate::formats) the trace was read from: `timestamp` (ms
//! from the start of the recording), `input_length` and `output_length` (tokens), and `hash_ids`, one
//! id per block of the prompt. Ids are *chained*: an id names a block together with everything before
//! it, so equal ids at equal positions mean an equal prefix, which is all that a prefix cache can see
//! of a prompt.
//!
//! Invariants of a [`Trace`] (its constructors check them, and nothing changes it afterwards):
//!
//! 1. it holds at least one request;
//! 2. `input_length >= 1`, and the ids cover the prompt: only its last block may be partial, and mostly it
//!    is. Either all requests list their partial block, `ceil(input_length / block_tokens)` ids as Mooncake
//!    does, or all leave it out, since an engine cannot reuse it: `floor(...)` ids;
//! 3. timestamps are finite, not negative, and never go backwards;
//! 4. an id has one parent in the whole trace and stands at most once in a request (unless the check was
//!    switched off in [`ReadOptions`](crate::reader::ReadOptions)).
//!
//! What else a format knows of a request (its session, its kind) lies beside the requests, in [`Labels`].
//!
//! Costs: 40 bytes and one allocation per request, 8 bytes per block reference; labels 32 bytes per request.

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
    /// A trace of `requests`, whose ids are made for blocks of `block_tokens` tokens.
    ///
    /// Costs one hash-map step per block reference, 10 to 50 ns by how many are new.
    ///
    /// # Errors
    ///
    /// The first broken rule of the four above, as the reader would report it, with the request's number
    /// (from 1) as its line; [`TraceError::BadOption`] for `block_tokens` 0.
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

    /// A trace of one or more requests that a [`RequestChecker`] has passed in this order, or would pass.
    pub(crate) fn from_checked(requests: Vec<TraceRequest>, block_tokens: usize, labels: Labels) -> Self {
        Self { requests, block_tokens, labels }
    }

    /// The same trace with labels, one per request or none.
    ///
    /// # Errors
    ///
    /// [`TraceError::LabelCount`].
    pub fn with_labels(self, labels: Labels) -> Result<Self, TraceError> {
        if !labels.is_empty() && labels.len() != self.requests.len() {
            return Err(TraceError::LabelCount { labels: labels.len(), requests: self.requests.len() });
        }
        Ok(Self { labels, ..self })
    }

    /// The same workload in blocks of another size, which must be a multiple or a divisor of this one.
    ///
    /// Larger blocks can only hit less: a block hits as a whole. Smaller ones hit the same tokens: the
    /// trace does not say where within a block two prompts part. Ids are new; equal ids still mean
    /// equal prefixes. Of a partial block without an id the text is unknown, so smaller blocks in it
    /// match nothing.
    ///
    /// One or two hash-map steps per old block reference, and 8 bytes per new one.
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
    /// [`TraceError::TooManyBlocks`] beyond 2^30 references; [`TraceError::NoMemory`] if there is none
    /// for 8 bytes a reference.
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

    /// Whether partial last blocks have ids; true where no prompt has one.
    #[must_use]
    pub fn lists_partial_blocks(&self) -> bool {
        let shows = self
            .requests
            .iter()
            .find(|request| !(request.input_length as usize).is_multiple_of(self.block_tokens.max(1)));
        shows.is_none_or(|request| request.full_blocks(self.block_tokens).len() < request.hash_ids.len())
    }

    /// What is known of the requests besides tokens and blocks; empty for formats that know nothing.
    #[must_use]
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// The requests, in order of arrival; never empty.
    #[must_use]
    pub fn requests(&self) -> &[TraceRequest] {
        &self.requests
    }

    /// The requests, given up.
    #[must_use]
    pub fn into_requests(self) -> Vec<TraceRequest> {
        self.requests
    }

    /// Tokens that one id stands for.
    #[must_use]
    pub fn block_tokens(&self) -> usize {
        self.block_tokens
    }

    /// Totals over the whole trace.
    ///
    /// Two passes, and one hash-set step per block reference: 10 to 20 ms per million; a bit instead
    /// where ids are counted from 0, as made-up and regrouped ones are. Not stored; keep the answer.
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

    /// Different ids among so many.
    fn unique_ids(&self, references: u64) -> u64 {
        let ids = || self.requests.iter().flat_map(|request| request.hash_ids.iter().copied());
        let words = ids().max().map_or(0, |most| most / 64 + 1);
        // A bit per possible id takes at most a byte per reference here; a set takes up to 18 per
        // different id.
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

/// Totals of a [`Trace`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TraceSummary {
    /// Requests.
    pub requests: usize,
    /// From the first arrival to the last, in ms.
    pub span_ms: f64,
    /// Prompt tokens of all requests.
    pub input_tokens: u64,
    /// Answered tokens of all requests.
    pub output_tokens: u64,
    /// Prompt tokens of the longest prompt.
    pub longest_input: u32,
    /// Ids of all requests, repeated ones included: what an empty cache of no size would have to compute.
    pub block_references: u64,
    /// Those of them that stand for a partial last block; 0 for a trace that leaves partial blocks out.
    pub partial_blocks: u64,
    /// Different ids: what a cache that never evicts would have to compute.
    pub unique_blocks: u64,
}
