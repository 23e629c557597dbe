//! `TraceFormat`: the formats that there are, by name. What each of them means is in [`crate::formats`].

/// How a trace is written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TraceFormat {
    /// Mooncake JSONL: one request a line.
    #[default]
    Mooncake,
    /// Mooncake JSONL with sessions and delays, as `AIPerf` and Dynamo use it.
    MooncakeSessions,
    /// Qwen-Bailian usage traces.
    Bailian,
    /// kv-cache-tester: one JSON document per coding session, with nested sub-agents.
    KvCacheTester,
    /// One request a line, each with its block size, as kvcache-simulator reads them.
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

    /// The name, as users write it.
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

/// What is read as which format, and since when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assumed {
    pub(crate) format: TraceFormat,
    /// Whether it was told from the first record; otherwise the caller named it.
    pub(crate) detected: bool,
}
