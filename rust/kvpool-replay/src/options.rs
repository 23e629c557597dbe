//! `ReadOptions`: how a trace is read.

use crate::{error::TraceError, format::TraceFormat};

/// How to read a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadOptions {
    /// The format. Default `None`: told from the first record.
    pub format: Option<TraceFormat>,
    /// Tokens that one id stands for, 1 or more. Default `None`: what the trace says, else what its
    /// format has by default, Mooncake's 512 for instance. Where the trace says another size, its
    /// blocks are made into blocks of this one.
    pub block_tokens: Option<usize>,
    /// Stop after this many requests, 1 or more. Of a format in order of arrival the rest of the input
    /// is not read. Default: no limit.
    pub limit: Option<usize>,
    /// Check that every id has one parent. Default on; off saves 40 to 80 bytes per different id.
    /// Formats whose ids are chained by the reader need no check.
    pub check_prefixes: bool,
    /// Put requests in order of arrival, instead of refusing those that are not. Default off. Formats
    /// that have no order of arrival are always put in order.
    pub sort: bool,
    /// Of `kv-cache-tester`: sessions that run at a time, 1 or more. Default `None`: all begin at once.
    pub sessions_at_once: Option<usize>,
    /// Of `kv-events`: up to this many ms after it was stored, the end of a chain may be continued by
    /// the same request. Default 5 s; infinite for the fewest requests that explain the events.
    pub event_gap_ms: f64,
    /// The longest record allowed, in bytes, 1 or more. Bounds memory on inputs that are no traces at all.
    /// Default 64 MiB, about 7 million ids.
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
