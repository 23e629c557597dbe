//! `bailian`: the anonymised usage traces of Alibaba's Qwen serving
//! (alibaba-edu/qwen-bailian-usagetraces-anon, ATC'25).
//!
//! The file has one JSON object per line, in order of arrival:
//!
//! | field | unit | |
//! |---|---|---|
//! | `chat_id` | number | identifies this request |
//! | `parent_chat_id` | number | the request that it continues; -1 or missing: none |
//! | `timestamp` | s from the start of the recording | |
//! | `input_length`, `output_length` | tokens | |
//! | `type` | string | text, search, image, file, ...: kept as the kind |
//! | `turn` | number from 1 | only checked; the order determines the turn |
//! | `hash_ids` | one id per block | also for the partial last block |
//!
//! Blocks have 16 tokens, unless the caller passes another size.
//!
//! Ids are salted hashes of the *tokens of a block*, renumbered. For a cache, equal ids after different
//! prefixes are different blocks, so the reader converts them to prefix ids.
//!
//! A session consists of all requests for which the chain of `parent_chat_id` leads to the same first
//! request. Its name is the `chat_id` of that request. If the first request is older than the
//! recording, the name is the `chat_id` of the oldest known one.

use std::collections::HashMap;

use serde::Deserialize;

use super::{
    Assumed, Output, Ready,
    json::{self, Field},
};
use crate::{blocks::Chains, error::TraceError, options::ReadOptions, request::TraceRequest};

/// The block size of the published traces, in tokens.
pub(crate) const BLOCK_TOKENS: usize = 16;

const FIELDS: &[Field] = &[
    Field::needed("chat_id", json::check_whole),
    Field::optional("parent_chat_id", json::check_whole),
    Field::needed("timestamp", json::check_seconds),
    Field::needed("input_length", json::check_u32),
    Field::needed("output_length", json::check_u32),
    Field::optional("type", json::check_string),
    Field::optional("turn", json::check_u32),
    Field::needed("hash_ids", json::check_ids),
];

#[derive(Deserialize)]
struct Line {
    chat_id: i64,
    parent_chat_id: Option<i64>,
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    #[serde(rename = "type")]
    kind: Option<Box<str>>,
    #[expect(dead_code, reason = "decoded so that a wrong type is an error")]
    turn: Option<u32>,
    hash_ids: Vec<u64>,
}

#[derive(Debug)]
pub(crate) struct Decoder {
    assumed: Assumed,
    block_tokens: usize,
    chains: Chains,
    /// For the `chat_id` of each request, the `chat_id` of the first request of its session.
    roots: HashMap<i64, i64>,
}

impl Decoder {
    pub(crate) fn new(assumed: Assumed, options: &ReadOptions) -> Self {
        let block_tokens = options.block_tokens.unwrap_or(BLOCK_TOKENS);
        Self { assumed, block_tokens, chains: Chains::default(), roots: HashMap::new() }
    }

    pub(crate) fn record(&mut self, text: &[u8], line: u64, out: &mut Output) -> Result<(), TraceError> {
        let decoded: Line = json::decode(text, line, self.assumed, FIELDS)?;
        let root = match decoded.parent_chat_id {
            Some(parent) if parent >= 0 => *self.roots.entry(parent).or_insert(parent),
            _ => decoded.chat_id,
        };
        self.roots.insert(decoded.chat_id, root);
        out.block_tokens = self.block_tokens;
        let request = TraceRequest {
            timestamp_ms: json::ms_of(decoded.timestamp, "timestamp", line)?,
            input_length: decoded.input_length,
            output_length: decoded.output_length,
            hash_ids: self.chains.chain(0, &decoded.hash_ids),
        };
        // Set this note after every record, because a reader with a limit of requests may not call
        // `finish`.
        out.notes.unchained = self.chains.unchained();
        let session = Some(root.to_string().into());
        out.ready.push_back(Ready { session, kind: decoded.kind, ..Ready::new(line, request) });
        Ok(())
    }
}
