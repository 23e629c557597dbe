//! `mooncake-sessions`: Mooncake's lines with sessions, as NVIDIA's `AIPerf` and Dynamo replay them.
//!
//! One JSON object a line, one turn of a session; the turns of a session stand in order, sessions in any:
//!
//! | field | unit | |
//! |---|---|---|
//! | `session_id` | string or number | the conversation; a line without one stands alone |
//! | `timestamp` | ms from the start of the recording | optional |
//! | `delay` | ms from the end of the turn before | optional; kept as the think time |
//! | `input_length`, `output_length` | tokens | `output_length` may be missing: 0 |
//! | `finish_reason` | how the request ended: `stop`, `tool_calls`, `length`, `abort` and what engines call these | optional |
//! | `hash_ids` | one id per block, of 512 tokens unless the caller says otherwise | prefix ids of the *whole* prompt |
//!
//! Arrival: `timestamp` where there is one. Otherwise the arrival of the turn before plus `delay`,
//! which is early by the time that the answer took: nobody recorded it. A first turn without a time
//! arrives at 0. Requests are put in order of arrival.
//!
//! Read as whole prompts, as Dynamo's `mooncake` does. Traces whose later turns hold only what was
//! added (Dynamo's `mooncake-delta`, what `AIPerf` makes up) look the same and are not told apart:
//! their prompts would read too short. Request graphs (`wait_for`, `branches`) and contents
//! (`messages`, `text_input`) are passed over.

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
    // What a line of this format has not.
    chat_id: Option<IgnoredAny>,
}

#[derive(Debug)]
pub(crate) struct Decoder {
    assumed: Assumed,
    block_tokens: usize,
    /// Line and arrival of the last turn of each session.
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
