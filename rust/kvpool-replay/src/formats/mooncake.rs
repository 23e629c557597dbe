//! `mooncake`: the format of kvcache-ai/Mooncake's traces for its FAST'25 paper, and kvpool's default
//! for writing.
//!
//! The file has one JSON object per line, in order of arrival:
//!
//! | field | unit | |
//! |---|---|---|
//! | `timestamp` | ms from the start of the recording | |
//! | `input_length`, `output_length` | tokens | |
//! | `hash_ids` | one prefix id per block | also for the partial last block |
//!
//! Blocks have 512 tokens, unless the caller passes another size.
//!
//! The file does not contain the block size. Traces without ids for partial blocks can also be read, if
//! no line has such an id. Other fields are ignored, except for those that indicate another format.

use serde::{Deserialize, de::IgnoredAny};

use super::{
    Assumed, Output, Ready,
    json::{self, Field},
};
use crate::{
    error::TraceError,
    options::ReadOptions,
    request::{DEFAULT_BLOCK_TOKENS, TraceRequest},
};

const FIELDS: &[Field] = &[
    Field::needed("timestamp", json::check_ms),
    Field::needed("input_length", json::check_u32),
    Field::needed("output_length", json::check_u32),
    Field::needed("hash_ids", json::check_ids),
];

/// The fields of a line that the decoder needs. Other fields are skipped without being stored.
#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
    // If this field or one of the next is present, the line has another format.
    chat_id: Option<IgnoredAny>,
    session_id: Option<IgnoredAny>,
    block_size: Option<IgnoredAny>,
}

#[derive(Debug)]
pub(crate) struct Decoder {
    assumed: Assumed,
    block_tokens: usize,
}

impl Decoder {
    pub(crate) fn new(assumed: Assumed, options: &ReadOptions) -> Self {
        Self { assumed, block_tokens: options.block_tokens.unwrap_or(DEFAULT_BLOCK_TOKENS) }
    }

    pub(crate) fn record(&mut self, text: &[u8], line: u64, out: &mut Output) -> Result<(), TraceError> {
        let decoded: Line = json::decode(text, line, self.assumed, FIELDS)?;
        let foreign =
            decoded.chat_id.is_some() || decoded.session_id.is_some() || decoded.block_size.is_some();
        if foreign && let Some(error) = json::mixed(text, line, self.assumed) {
            return Err(error);
        }
        out.block_tokens = self.block_tokens;
        out.ready.push_back(Ready::new(
            line,
            TraceRequest {
                timestamp_ms: decoded.timestamp,
                input_length: decoded.input_length,
                output_length: decoded.output_length,
                hash_ids: decoded.hash_ids.into_boxed_slice(),
            },
        ));
        Ok(())
    }
}
