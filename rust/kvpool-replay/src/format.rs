//! `TraceFormat`: the names of the formats. [`crate::formats`] describes each of them.

/// The format of a trace.
///
/// ```
/// use kvpool_replay::formats::TraceFormat;
/// let format: TraceFormat = "bailian".parse()?;
/// assert_eq!((format, format.default_block_tokens()), (TraceFormat::Bailian, Some(16)));
/// # Ok::<(), kvpool_replay::error::TraceError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TraceFormat {
    /// Mooncake JSONL: one request per line.
    #[default]
    Mooncake,
    /// Mooncake JSONL with sessions and delays, as used by `AIPerf` and Dynamo.
    MooncakeSessions,
    /// Qwen-Bailian usage traces.
    Bailian,
    /// kv-cache-tester: one JSON document per coding session, with nested sub-agents.
    KvCacheTester,
    /// One request per line, each with its block size, as read by kvcache-simulator.
    BlockRows,
    /// Recorded KV events of an engine's cache.
    KvEvents,
}

impl TraceFormat {
    /// Every format.
    pub const ALL: &'static [Self] = &[
        Self::Mooncake,
        Self::MooncakeSessions,
        Self::Bailian,
        Self::KvCacheTester,
        Self::BlockRows,
        Self::KvEvents,
    ];

    /// The name of the format, as in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mooncake => "mooncake",
            Self::MooncakeSessions => "mooncake-sessions",
            Self::Bailian => "bailian",
            Self::KvCacheTester => "kv-cache-tester",
            Self::BlockRows => "block-rows",
            Self::KvEvents => "kv-events",
        }
    }
}

/// The format with which a trace is being read, and how it was chosen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assumed {
    pub(crate) format: TraceFormat,
    /// Whether the format was detected from the first record. Otherwise the caller chose it.
    pub(crate) detected: bool,
}
