//! `TraceRequest`: one request of a trace.

/// The block size of the published Mooncake traces, in tokens.
pub const DEFAULT_BLOCK_TOKENS: usize = 512;

/// One request of a trace.
///
/// ```
/// use kvpool_replay::trace::{Trace, TraceRequest};
/// let request =
///     TraceRequest { timestamp_ms: 0.0, input_length: 600, output_length: 50, hash_ids: [0, 1].into() };
/// let trace = Trace::new(vec![request], 512)?;
/// assert_eq!(trace.requests()[0].full_blocks(512), [0]);
/// # Ok::<(), kvpool_replay::error::TraceError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TraceRequest {
    /// The arrival time in ms from the start of the recording; finite, 0 or more. Files usually contain
    /// whole milliseconds, but fractions are preserved.
    pub timestamp_ms: f64,
    /// The number of prompt tokens, 1 or more.
    pub input_length: u32,
    /// The number of tokens of the answer; may be 0.
    pub output_length: u32,
    /// One prefix id per block of the prompt. A partial last block may or may not have an id.
    pub hash_ids: Box<[u64]>,
}

impl TraceRequest {
    /// Returns the ids of the full blocks. An engine indexes only full blocks, so only these can hit.
    #[must_use]
    pub fn full_blocks(&self, block_tokens: usize) -> &[u64] {
        let full = (self.input_length as usize).checked_div(block_tokens).unwrap_or(0);
        self.hash_ids.get(..full).unwrap_or(&self.hash_ids)
    }
}
