//! `block-rows`: one request per line with its block size, as read by KVCache.AI's kvcache-simulator.
//!
//! The file has one JSON object per line, in order of arrival:
//!
//! | field | unit | |
//! |---|---|---|
//! | `hash_ids` | one id per block, in order | also for the partial last block |
//! | `input_length` | tokens | |
//! | `block_size` | tokens | optional if `block_tokens` or the caller supplies it |
//! | `block_tokens` | tokens: one number, or one per block | optional; only the last block may be smaller |
//! | `timestamp` | ms | optional; default: the time of the previous row |
//! | `output_length` | tokens | optional; default: 0 |
//!
//! Rows of different block sizes are converted to one size: the largest in the trace, or the size that
//! the caller passes. Of two sizes, one must divide the other. Ids of different sizes never match.

use serde::Deserialize;
use serde_json::Value;

use super::{
    Assumed, Output, Ready,
    json::{self, Field},
    sized::SizedRequests,
};
use crate::{blocks::Chains, error::TraceError, options::ReadOptions, request::TraceRequest};

const FIELDS: &[Field] = &[
    Field::needed("hash_ids", json::check_ids),
    Field::needed("input_length", json::check_u32),
    Field::optional("block_size", json::check_size),
    Field::optional("block_tokens", check_block_tokens),
    Field::optional("timestamp", json::check_ms),
    Field::optional("output_length", json::check_u32),
];

#[derive(Deserialize)]
struct Line {
    hash_ids: Vec<u64>,
    input_length: u32,
    block_size: Option<u32>,
    block_tokens: Option<BlockTokens>,
    timestamp: Option<f64>,
    output_length: Option<u32>,
}

/// The field `block_tokens`: the number of tokens of every block, or of each block.
#[derive(Deserialize)]
#[serde(untagged)]
enum BlockTokens {
    All(u32),
    Each(Vec<u32>),
}

fn check_block_tokens(value: &Value, field: String, line: u64) -> Option<TraceError> {
    match value {
        Value::Array(sizes) => sizes
            .iter()
            .enumerate()
            .find_map(|(place, size)| json::check_size(size, format!("{field}[{place}]"), line)),
        _ => json::check_size(value, field, line),
    }
}

#[derive(Debug)]
pub(crate) struct Decoder {
    assumed: Assumed,
    wanted: Option<usize>,
    chains: Chains,
    requests: SizedRequests,
    /// The line and the arrival time of the previous row.
    previous: Option<(u64, f64)>,
    may_go_back: bool,
}

impl Decoder {
    pub(crate) fn new(assumed: Assumed, options: &ReadOptions) -> Self {
        Self {
            assumed,
            wanted: options.block_tokens,
            chains: Chains::default(),
            requests: SizedRequests::default(),
            previous: None,
            may_go_back: options.sort,
        }
    }

    pub(crate) fn record(&mut self, text: &[u8], line: u64, out: &mut Output) -> Result<(), TraceError> {
        let row: Line = json::decode(text, line, self.assumed, FIELDS)?;
        let before_zero = row.timestamp.is_some_and(|ms| ms < 0.0);
        if before_zero || row.block_size == Some(0) || matches!(row.block_tokens, Some(BlockTokens::All(0))) {
            return Err(json::diagnose(text, line, self.assumed, FIELDS, None));
        }
        let size = self.block_size(&row, line)?;
        let timestamp_ms = row.timestamp.or(self.previous.map(|(_, ms)| ms)).unwrap_or(0.0);
        out.notes.untimed += u64::from(row.timestamp.is_none());
        // Check the order of arrival here. The other rules are checked only at the end, when the rows
        // may be sorted.
        if let Some((previous_line, previous_ms)) = self.previous
            && timestamp_ms < previous_ms
            && !self.may_go_back
        {
            return Err(TraceError::TimeBackwards { line, timestamp_ms, previous_line, previous_ms });
        }
        self.previous = Some((line, timestamp_ms));
        // Pass the block size as the id space, because equal ids in rows of different block sizes are
        // different blocks.
        let hash_ids = self.chains.chain(size as u64, &row.hash_ids);
        let output_length = row.output_length.unwrap_or(0);
        let request = TraceRequest { timestamp_ms, input_length: row.input_length, output_length, hash_ids };
        self.requests.push(Ready::new(line, request), size);
        Ok(())
    }

    /// Returns the block size of a row: from its field `block_size`, from its `block_tokens`, or from
    /// the caller.
    fn block_size(&self, row: &Line, line: u64) -> Result<usize, TraceError> {
        let shown = match &row.block_tokens {
            Some(BlockTokens::All(size)) => Some(*size),
            Some(BlockTokens::Each(sizes)) if sizes.len() >= 2 => sizes.first().copied(),
            _ => None,
        };
        let Some(size) = row.block_size.or(shown) else {
            return self.wanted.ok_or_else(|| TraceError::MissingField {
                line,
                field: "block_size".to_owned(),
                needed: "hash_ids, input_length, block_size (or --trace-block-size)".to_owned(),
            });
        };
        let uneven = |field: String, value: String, allowed| {
            Err(TraceError::BadNumber { line, field, value, allowed })
        };
        match &row.block_tokens {
            Some(BlockTokens::All(tokens)) if *tokens != size => {
                return uneven("block_tokens".to_owned(), tokens.to_string(), "the block_size of the row");
            }
            Some(BlockTokens::Each(sizes)) if sizes.len() != row.hash_ids.len() => {
                let value = format!("{} long", sizes.len());
                return uneven("block_tokens".to_owned(), value, "one number per entry of hash_ids");
            }
            Some(BlockTokens::Each(sizes)) => {
                let last = sizes.len().saturating_sub(1);
                let uneven_at = sizes.iter().enumerate().find(|&(place, &tokens)| {
                    tokens == 0 || tokens > size || (place < last && tokens != size)
                });
                if let Some((place, tokens)) = uneven_at {
                    let allowed = "the block size of the row, and for the last block at most that";
                    return uneven(format!("block_tokens[{place}]"), tokens.to_string(), allowed);
                }
            }
            _ => {}
        }
        Ok(size as usize)
    }

    pub(crate) fn finish(&mut self, out: &mut Output) -> Result<(), TraceError> {
        out.notes.unchained = self.chains.unchained();
        self.requests.finish(self.wanted, out)
    }
}
