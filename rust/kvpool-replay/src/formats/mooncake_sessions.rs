//! `mooncake-sessions`: Mooncake's lines with sessions, as used by NVIDIA's `AIPerf` and Dynamo.
//!
//! There is one JSON object per line. Each is one turn of a session. The turns of a session are in
//! order; turns of different sessions may alternate.
//!
//! | field | unit | |
//! |---|---|---|
//! | `session_id` | string or number | the conversation; a line without one is a request of its own |
//! | `timestamp` | ms from the start of the recording | optional |
//! | `delay` | ms from the end of the previous turn | optional; kept as the think time |
//! | `input_length`, `output_length` | tokens | `output_length` is optional; default: 0 |
//! | `finish_reason` | how it ended: `stop`, `tool_calls`, `length`, `abort` or a synonym | optional |
//! | `hash_ids` | one prefix id per block | covers the *whole* prompt |
//!
//! Blocks have 512 tokens, unless the caller passes another size.
//!
//! The arrival of a turn is its `timestamp`, if there is one. Otherwise it is the arrival of the
//! previous turn plus `delay`. That is too early by the duration of the answer, which is not recorded.
//! A first turn without a time arrives at 0. Requests are sorted by arrival.
//!
//! The `hash_ids` of each turn are read as those of the whole prompt, as in Dynamo's `mooncake`. In
//! some traces, later turns contain only the ids of the added part (Dynamo's `mooncake-delta`, and
//! synthetic traces of `AIPerf`). Such traces look the same and cannot be distinguished, so their
//! prompts would be too short. Request graphs (`wait_for`, `branches`) and contents (`messages`,
//! `text_input`) are ignored.

use std::collections::HashMap;

use kvpool::Finish;

use serde::{Deserialize, de::IgnoredAny};

use super::{
    Assumed, Output, Ready,
    json::{self, Field, Name},
};
use crate::{
    error::TraceError,
    options::ReadOptions,
    request::{DEFAULT_BLOCK_TOKENS, TraceRequest},
};

const FIELDS: &[Field] = &[
    Field::optional("session_id", json::check_name),
    Field::optional("timestamp", json::check_ms),
    Field::optional("delay", json::check_ms),
    Field::needed("input_length", json::check_u32),
    Field::optional("output_length", json::check_u32),
    Field::optional("finish_reason", json::check_string),
    Field::needed("hash_ids", json::check_ids),
];

#[derive(Deserialize)]
struct Line {
    session_id: Option<Name>,
    timestamp: Option<f64>,
    delay: Option<f64>,
    input_length: u32,
    output_length: Option<u32>,
    finish_reason: Option<Box<str>>,
    hash_ids: Vec<u64>,
    // If this field is present, the line has another format.
    chat_id: Option<IgnoredAny>,
}

#[derive(Debug)]
pub(crate) struct Decoder {
    assumed: Assumed,
    block_tokens: usize,
    /// The line and the arrival time of the last turn of each session.
    last: HashMap<Box<str>, (u64, f64)>,
}

impl Decoder {
    pub(crate) fn new(assumed: Assumed, options: &ReadOptions) -> Self {
        let block_tokens = options.block_tokens.unwrap_or(DEFAULT_BLOCK_TOKENS);
        Self { assumed, block_tokens, last: HashMap::new() }
    }

    pub(crate) fn record(&mut self, text: &[u8], line: u64, out: &mut Output) -> Result<(), TraceError> {
        let decoded: Line = json::decode(text, line, self.assumed, FIELDS)?;
        if decoded.chat_id.is_some()
            && let Some(error) = json::mixed(text, line, self.assumed)
        {
            return Err(error);
        }
        for (field, time) in [("timestamp", decoded.timestamp), ("delay", decoded.delay)] {
            if let Some(ms) = time
                && ms < 0.0
            {
                let (field, value) = (field.to_owned(), json::shorten(&ms.to_string()));
                return Err(TraceError::BadNumber { line, field, value, allowed: json::MILLISECONDS });
            }
        }
        let session = decoded.session_id.map(|name| name.0);
        let previous = session.as_ref().and_then(|name| self.last.get(name)).copied();
        let timestamp_ms = match (decoded.timestamp, previous) {
            (Some(ms), _) => ms,
            (None, Some((_, before))) => before + decoded.delay.unwrap_or(0.0),
            (None, None) => decoded.delay.unwrap_or(0.0),
        };
        out.notes.untimed += u64::from(decoded.timestamp.is_none());
        if let Some((previous_line, previous_ms)) = previous
            && timestamp_ms < previous_ms
        {
            return Err(TraceError::TimeBackwards { line, timestamp_ms, previous_line, previous_ms });
        }
        if let Some(name) = &session {
            self.last.insert(name.clone(), (line, timestamp_ms));
        }
        out.block_tokens = self.block_tokens;
        let request = TraceRequest {
            timestamp_ms,
            input_length: decoded.input_length,
            output_length: decoded.output_length.unwrap_or(0),
            hash_ids: decoded.hash_ids.into_boxed_slice(),
        };
        let think_ms = previous.and(decoded.delay);
        let finish = decoded.finish_reason.as_deref().map_or(Finish::Unknown, Finish::of_reason);
        out.ready.push_back(Ready { session, think_ms, finish, ..Ready::new(line, request) });
        Ok(())
    }
}
