//! The formats of traces: how each is detected, and how its records become requests.
//!
//! This module contains the decoders, one file per format, each with its fields, units and source.
//! [`TraceFormat`] names the formats:
//!
//! | format | a record is | time | ids identify | detected by |
//! |---|---|---|---|---|
//! | [`mooncake`] | a line, a request | `timestamp`, ms | prefixes | no other format fits |
//! | [`mooncake_sessions`] | a line, a turn | `timestamp`, `delay`, ms | prefixes | `session_id` or `delay` |
//! | [`bailian`] | a line, a request | `timestamp`, s | contents | `chat_id` |
//! | [`kv_cache_tester`] | a JSON document, a session | `t`, s | contents of a document | `requests` |
//! | [`block_rows`] | a line, a request | `timestamp` or none, ms | contents | `block_size`, `block_tokens` |
//! | [`kv_events`] | a line, events of a cache | `ts`, s | prefixes | `events`, an array, an event's `type` |
//!
//! By default, blocks have 512 tokens in the Mooncake formats and 16 in `bailian`. In the other
//! formats, the trace contains the block size, or the caller passes it.
//!
//! The result of reading is always a [`Trace`](crate::trace::Trace): requests in order of arrival,
//! times in ms, ids that identify prefixes, and one block size. Ids that identify contents are chained
//! here: equal ids after different prefixes become different ids, as in a prefix cache. [`ReadNotes`]
//! contains the number of ids that this changed.
//!
//! All records of a trace have one format. The caller passes it, or it is detected from the keys of the
//! first record. A record that cannot be decoded and looks like a record of another format gives
//! [`TraceError::MixedFormats`].

pub mod bailian;
pub mod block_rows;
pub(crate) mod json;
pub mod kv_cache_tester;
pub mod kv_events;
pub mod mooncake;
pub mod mooncake_sessions;
mod output;
pub(crate) mod scan;
mod sized;
mod write;

use std::{fmt, str::FromStr};

use crate::{error::TraceError, options::ReadOptions};
pub use output::ReadNotes;
pub(crate) use output::{Output, Ready};
use scan::Scanner;
pub use write::{write_jsonl, write_trace};

pub(crate) use crate::format::Assumed;
pub use crate::format::TraceFormat;

impl TraceFormat {
    /// The number of tokens per block id in this format, if neither the trace nor the caller specifies it.
    /// `None` if one of them must specify it.
    #[must_use]
    pub const fn default_block_tokens(self) -> Option<usize> {
        match self {
            Self::Mooncake | Self::MooncakeSessions => Some(crate::request::DEFAULT_BLOCK_TOKENS),
            Self::Bailian => Some(bailian::BLOCK_TOKENS),
            Self::KvCacheTester | Self::BlockRows | Self::KvEvents => None,
        }
    }

    /// Whether [`write_trace`] can write this format.
    #[must_use]
    pub const fn is_written(self) -> bool {
        matches!(self, Self::Mooncake | Self::MooncakeSessions | Self::Bailian)
    }

    /// Whether a record of this format is a JSON document, which may have several lines, instead of one
    /// line.
    pub(crate) const fn has_documents(self) -> bool {
        matches!(self, Self::KvCacheTester)
    }

    /// Whether the reader sorts the requests of this format, because its records are not in order of
    /// arrival.
    pub(crate) const fn is_sorted_by_reader(self) -> bool {
        matches!(self, Self::MooncakeSessions | Self::KvCacheTester | Self::KvEvents)
    }

    /// Whether the reader makes the prefix ids of this format, so that they need no check.
    pub(crate) const fn is_chained_by_reader(self) -> bool {
        !matches!(self, Self::Mooncake | Self::MooncakeSessions)
    }

    pub(crate) fn detect(record: &Scanner) -> Self {
        let event_type = matches!(
            record.kind(),
            b"BlockStored" | b"BlockRemoved" | b"AllBlocksCleared" | b"stored" | b"removed" | b"cleared"
        );
        if record.is_array() || record.has("events") || event_type {
            Self::KvEvents
        } else if record.has("requests") {
            Self::KvCacheTester
        } else if record.has("chat_id") {
            Self::Bailian
        } else if record.has("block_size") || record.has("block_tokens") {
            Self::BlockRows
        } else if record.has("session_id") || record.has("delay") {
            Self::MooncakeSessions
        } else {
            Self::Mooncake
        }
    }
}

impl fmt::Display for TraceFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TraceFormat {
    type Err = TraceError;

    fn from_str(name: &str) -> Result<Self, TraceError> {
        Self::ALL
            .iter()
            .copied()
            .find(|format| format.name() == name)
            .ok_or_else(|| TraceError::UnknownFormat { name: json::shorten(name) })
    }
}

/// Converts the records of a format to requests.
#[derive(Debug)]
pub(crate) enum Decoder {
    Mooncake(mooncake::Decoder),
    MooncakeSessions(mooncake_sessions::Decoder),
    Bailian(bailian::Decoder),
    KvCacheTester(kv_cache_tester::Decoder),
    BlockRows(block_rows::Decoder),
    KvEvents(kv_events::Decoder),
}

impl Decoder {
    pub(crate) fn new(assumed: Assumed, options: &ReadOptions) -> Self {
        match assumed.format {
            TraceFormat::Mooncake => Self::Mooncake(mooncake::Decoder::new(assumed, options)),
            TraceFormat::MooncakeSessions => {
                Self::MooncakeSessions(mooncake_sessions::Decoder::new(assumed, options))
            }
            TraceFormat::Bailian => Self::Bailian(bailian::Decoder::new(assumed, options)),
            TraceFormat::KvCacheTester => {
                Self::KvCacheTester(kv_cache_tester::Decoder::new(assumed, options))
            }
            TraceFormat::BlockRows => Self::BlockRows(block_rows::Decoder::new(assumed, options)),
            TraceFormat::KvEvents => Self::KvEvents(kv_events::Decoder::new(assumed, options)),
        }
    }

    pub(crate) fn record(&mut self, text: &[u8], line: u64, out: &mut Output) -> Result<(), TraceError> {
        out.notes.records += 1;
        match self {
            Self::Mooncake(decoder) => decoder.record(text, line, out),
            Self::MooncakeSessions(decoder) => decoder.record(text, line, out),
            Self::Bailian(decoder) => decoder.record(text, line, out),
            Self::KvCacheTester(decoder) => decoder.record(text, line, out),
            Self::BlockRows(decoder) => decoder.record(text, line, out),
            Self::KvEvents(decoder) => decoder.record(text, line, out),
        }
    }

    /// Returns the requests that are complete only after the last record was read.
    pub(crate) fn finish(&mut self, out: &mut Output) -> Result<(), TraceError> {
        match self {
            Self::Mooncake(_) | Self::MooncakeSessions(_) | Self::Bailian(_) => Ok(()),
            Self::KvCacheTester(decoder) => decoder.finish(out),
            Self::BlockRows(decoder) => decoder.finish(out),
            Self::KvEvents(decoder) => decoder.finish(out),
        }
    }
}
