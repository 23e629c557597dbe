//! `TraceRequest`: one request of a trace.

/// Tokens of a block in the published Mooncake traces.
pub const DEFAULT_BLOCK_TOKENS: usize = 512;

/// One request of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceRequest {
    /// When the request arrives, in ms from the start of the recording; finite, 0 or more. Files hold whole
    /// milliseconds as a rule; a fraction is kept.
    pub timestamp_ms: f64,
    /// Prompt tokens, 1 or more.
    pub input_length: u32,
    /// Tokens that the model answered with; may be 0.
    pub output_length: u32,
    /// One chained id per block of the prompt; a partial last block may have one or not.
    pub hash_ids: Box<[u64]>,
}

impl TraceRequest {
    /// The ids of the full blocks: all that an engine, which indexes full blocks only, can find again.
    ///
    /// ```
    /// use kvpool_replay::trace::TraceRequest;
    ///
    /// let request =
    ///     TraceRequest { timestamp_ms: 0.0, input_length: 600, output_length: 1, hash_ids: [8, 9].into() };
    /// assert_eq!(request.full_blocks(512), [8]);
    /// ```
    #[must_use]
    pub fn full_blocks(&self, block_tokens: usize) -> &[u64] {
        let full = (self.input_length as usize).checked_div(block_tokens).unwrap_or(0);
        self.hash_ids.get(..full).unwrap_or(&self.hash_ids)
    }
}
