//! `ReadOptions`: the options for reading a trace.

use crate::{error::TraceError, format::TraceFormat};

/// Options for reading a trace.
///
/// ```
/// use kvpool_replay::reader::ReadOptions;
/// use kvpool_replay::trace::Trace;
/// let options = ReadOptions { block_tokens: Some(16), ..ReadOptions::default() };
/// let line = br#"{"timestamp": 0, "input_length": 20, "output_length": 5, "hash_ids": [0, 1]}"#;
/// let trace = Trace::from_reader(&line[..], &options)?;
/// assert_eq!(trace.block_tokens(), 16);
/// # Ok::<(), kvpool_replay::error::TraceError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ReadOptions {
    /// The format. Default `None`: detected from the first record.
    pub format: Option<TraceFormat>,
    /// The number of tokens per block id, 1 or more. Default `None`: the size in the trace, or else the
    /// default of its format, for example Mooncake's 512. If the trace contains another size, its blocks are
    /// converted to this size.
    pub block_tokens: Option<usize>,
    /// The maximum number of requests to read, 1 or more. If the format is in order of arrival, the
    /// rest of the input is not read. Default: no limit.
    pub limit: Option<usize>,
    /// Whether to check that every id always follows the same id. Default on. Without the check, a
    /// trace takes 40 to 80 bytes less per distinct id. In formats with ids that the reader itself
    /// makes, no check is needed.
    pub check_prefixes: bool,
    /// Whether to sort requests by arrival, instead of refusing a trace that is out of order. Default
    /// off. Formats without an order of arrival are always sorted.
    pub sort: bool,
    /// For `kv-cache-tester`: the number of sessions that run at a time, 1 or more. Default `None`: all
    /// begin at once.
    pub sessions_at_once: Option<usize>,
    /// For `kv-events`: the maximum time in ms after which the same request may continue a chain. It
    /// starts when the end of the chain was stored. Default 5 s. Infinity gives the fewest requests
    /// that explain the events.
    pub event_gap_ms: f64,
    /// The maximum size of a record in bytes, 1 or more. It bounds memory on inputs that are not
    /// traces. Default 64 MiB, about 7 million ids.
    pub max_line_bytes: usize,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            format: None,
            block_tokens: None,
            limit: None,
            check_prefixes: true,
            sort: false,
            sessions_at_once: None,
            event_gap_ms: 5000.0,
            max_line_bytes: 64 << 20,
        }
    }
}

impl ReadOptions {
    pub(crate) fn check(&self) -> Result<(), TraceError> {
        for (option, value, allowed) in [
            ("block_tokens", self.block_tokens.unwrap_or(1), "1 or more tokens"),
            ("limit", self.limit.unwrap_or(1), "1 or more requests"),
            ("sessions_at_once", self.sessions_at_once.unwrap_or(1), "1 or more sessions"),
            ("max_line_bytes", self.max_line_bytes, "1 or more bytes"),
        ] {
            if value == 0 {
                return Err(TraceError::BadOption { option, value, allowed });
            }
        }
        Ok(())
    }
}
