//! The formats of traces: their names, how each is told from the others, and how its records become requests.
//!
//! Owns [`TraceFormat`] and the decoders, one file per format, each with its fields, units and source:
//!
//! | format | a record is | time | ids stand for | told by |
//! |---|---|---|---|---|
//! | [`mooncake`] | a line, one request | `timestamp`, ms | prefixes, 512 tokens | nothing else fits |
//! | [`mooncake_sessions`] | a line, one turn | `timestamp` or `delay`, ms | prefixes, 512 tokens | `session_id` or `delay` |
//! | [`bailian`] | a line, one request | `timestamp`, s | contents, 16 tokens | `chat_id` |
//! | [`kv_cache_tester`] | a JSON document, one session | `t`, s | contents of one document | `requests` |
//! | [`block_rows`] | a line, one request | `timestamp`, ms, or none | contents, size in the line | `block_size` or `block_tokens` |
//! | [`kv_events`] | a line, events of a cache | `ts`, s | prefixes | `events`, an array, or an event's `type` |
//!
//! Whatever the format, what comes out is a [`Trace`](crate::trace::Trace): requests in order of
//! arrival, times in ms, ids that name prefixes, one block size. Where ids name contents, they are
//! chained here: an id behind another prefix becomes another id, which is what a prefix cache makes of
//! it. And the number of ids for which this made a difference is in [`ReadNotes`].
//!
//! A trace has one format. It is told from the keys of the first record, or named; a record that does
//! not fit and looks like another format's is [`TraceError::MixedFormats`].

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
    /// Tokens that an id stands for, where neither the trace nor the caller says; `None` where the
    /// trace must say.
    #[must_use]
    pub const fn default_block_tokens(self) -> Option<usize> {
        match self {
            Self::Mooncake | Self::MooncakeSessions => Some(crate::request::DEFAULT_BLOCK_TOKENS),
            Self::Bailian => Some(bailian::BLOCK_TOKENS),
            Self::KvCacheTester | Self::BlockRows | Self::KvEvents => None,
        }
    }

    /// Whether [`write_trace`] writes it.
    #[must_use]
    pub const fn is_written(self) -> bool {
        matches!(self, Self::Mooncake | Self::MooncakeSessions | Self::Bailian)
    }

    /// Whether a record is a JSON document and not a line.
    pub(crate) const fn has_documents(self) -> bool {
        matches!(self, Self::KvCacheTester)
    }

    /// Whether requests are put in order of arrival by the reader, since the records are not.
    pub(crate) const fn is_sorted_by_reader(self) -> bool {
        matches!(self, Self::MooncakeSessions | Self::KvCacheTester | Self::KvEvents)
    }

    /// Whether the ids are chained by the decoder, so that they need no check.
    pub(crate) const fn is_chained_by_reader(self) -> bool {
        !matches!(self, Self::Mooncake | Self::MooncakeSessions)
    }

    /// The format of a first record with these keys.
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

/// A format's way from records to requests.
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

    /// Takes in one record, which begins in `line`.
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

    /// Gives what could not be given before the last record was seen.
    pub(crate) fn finish(&mut self, out: &mut Output) -> Result<(), TraceError> {
        match self {
            Self::Mooncake(_) | Self::MooncakeSessions(_) | Self::Bailian(_) => Ok(()),
            Self::KvCacheTester(decoder) => decoder.finish(out),
            Self::BlockRows(decoder) => decoder.finish(out),
            Self::KvEvents(decoder) => decoder.finish(out),
        }
    }
}
