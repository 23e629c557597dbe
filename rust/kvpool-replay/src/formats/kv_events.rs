//! `kv-events`: recorded KV events of an engine's prefix cache, from which the requests are
//! reconstructed.
//!
//! Each line is one of these:
//!
//! - a batch, as vLLM publishes them (ZMQ, msgpack), written as JSON:
//!   `{"ts": s, "events": [...], "data_parallel_rank": n}`, or the same as an array, `[s, [...], n]`;
//! - a single event with an optional `ts`, for instance one of kvpool's `take_events`.
//!
//! | field of an event | | |
//! |---|---|---|
//! | `type` | `BlockStored`, `BlockRemoved`, `AllBlocksCleared` | kvpool's: `stored`, `removed`, `cleared` |
//! | `block_hashes` | numbers or strings, a run of consecutive blocks | kvpool's: `hash` |
//! | `parent_block_hash` | the block before the run, or null | kvpool's: `parent` |
//! | `block_size` | tokens | kvpool's events have none: the caller supplies it |
//! | `medium` | `GPU` or null: the first tier | others are skipped |
//! | `group_idx` | 0 or null: the first group of layers | others are skipped |
//!
//! Events are objects, or arrays with these fields in vLLM's older order. Token ids are not needed and
//! are not stored.
//!
//! # What is reconstructed
//!
//! Each stored run was computed by some request. The prompt of that request, with its answer so far,
//! consists of the run and all blocks before it. So each stored run shows one use of its whole chain:
//!
//! - **One request** is a run together with the later runs that continue it, such as further chunks of
//!   its prefill and the blocks of its answer. Each run must follow the previous one within
//!   [`ReadOptions::event_gap_ms`], on the same rank. In between, the end of the chain must not be
//!   removed or cleared.
//! - The request **arrives** when its first run is stored. Its ids are the chain up to the end of its
//!   last run, which has only full blocks.
//! - If a block is stored **again**, it had been evicted, and another request computed it again.
//!
//! # What cannot be reconstructed
//!
//! - A request that found every full block leaves no event. So the trace has fewer requests than there
//!   were, and its hit rate is a **lower bound**, if the events are split into requests correctly. With
//!   an infinite gap, the number of requests is a lower bound in any case: a turn that continues its
//!   session directly after its last answer is then counted as the same request.
//! - With a finite gap, the events of a slow prefill or answer may be split into two requests. The
//!   second request then counts the blocks of the first as hits.
//! - Partial blocks, and the boundary between prompt and answer, are unknown. So all tokens are treated
//!   as the prompt, and outputs have 0 tokens.
//! - Blocks stored before the recording began are unknown. If the parent of a run was never stored, the
//!   reader assumes that the parent is the only block before the run.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{
    Assumed, Output, Ready,
    json::{self, Field},
    sized::SizedRequests,
};
use crate::{
    blocks::{MOST_REFERENCES, reserve_ids},
    error::TraceError,
    id_hash::IdHasherBuilder,
    options::ReadOptions,
    request::TraceRequest,
};

const BATCH: &[Field] = &[Field::needed("ts", json::check_seconds), Field::needed("events", check_events)];
const HASH: &str = "a whole number or a string";
const EVENT: &str = "an event: an object with a type, or an array that begins with one";

fn check_events(value: &Value, field: String, line: u64) -> Option<TraceError> {
    (!value.is_array()).then(|| json::bad_value(value, field, line, "an array of events"))
}

/// For each field, its index in an event that is an array, as in older versions of vLLM.
const POSITIONS: [(&str, usize); 5] =
    [("block_hashes", 1), ("parent_block_hash", 2), ("block_size", 4), ("medium", 6), ("group_idx", 9)];

/// A block's hash, as recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Hash {
    /// A hash that was recorded as a number. A signed number is converted to the unsigned number with the
    /// same 64 bits.
    Number(u64),
    Text(Box<str>),
}

/// A block that an event stored, or that an event names as a parent.
#[derive(Clone, Copy, Debug)]
struct Block {
    parent: Option<u32>,
    /// The number of blocks from the first block of the prompt to this one, both included.
    depth: u32,
    tokens: u32,
    /// Whether the block was never stored, so that it is known only as the parent of another.
    is_placeholder: bool,
}

/// A request that is being reconstructed.
#[derive(Clone, Copy, Debug)]
struct Found {
    line: u64,
    first_ms: f64,
    last_ms: f64,
    end: u32,
}

#[derive(Debug)]
pub(crate) struct Decoder {
    assumed: Assumed,
    wanted: Option<usize>,
    gap_ms: f64,
    numbers: HashMap<Hash, u32>,
    blocks: Vec<Block>,
    found: Vec<Found>,
    /// The requests that a further run may continue, as indices into `found`. The key is the rank, and
    /// the last block of the request so far.
    open: HashMap<(u64, u64), usize, IdHasherBuilder>,
    /// The time of the first event, in s.
    origin: Option<f64>,
    now_ms: f64,
}

/// An event, as a JSON object or as an array of fields.
enum Event<'a> {
    Object(&'a Map<String, Value>),
    Array(&'a [Value]),
}

impl Event<'_> {
    fn get(&self, name: &str, ours: &str) -> Option<&Value> {
        match self {
            Self::Object(object) => object.get(name).or_else(|| object.get(ours)),
            Self::Array(fields) => {
                let place = POSITIONS.iter().find(|(field, _)| *field == name)?.1;
                fields.get(place)
            }
        }
        .filter(|value| !value.is_null())
    }

    fn kind(&self) -> Option<&str> {
        match self {
            Self::Object(object) => object.get("type")?.as_str(),
            Self::Array(fields) => fields.first()?.as_str(),
        }
    }
}

/// The position of an event in the input, for errors, and the rank of its batch.
struct At<'a> {
    line: u64,
    path: &'a str,
    rank: u64,
}

impl At<'_> {
    fn bad(&self, value: &Value, name: &str, allowed: &'static str) -> TraceError {
        json::bad_value(value, format!("{}{name}", self.path), self.line, allowed)
    }
}

impl Decoder {
    pub(crate) fn new(assumed: Assumed, options: &ReadOptions) -> Self {
        Self {
            assumed,
            wanted: options.block_tokens,
            gap_ms: options.event_gap_ms,
            numbers: HashMap::new(),
            blocks: Vec::new(),
            found: Vec::new(),
            open: HashMap::default(),
            origin: None,
            now_ms: 0.0,
        }
    }

    pub(crate) fn record(&mut self, text: &[u8], line: u64, out: &mut Output) -> Result<(), TraceError> {
        let value: Value = serde_json::from_slice(text).map_err(|error| json::not_json(line, &error))?;
        match &value {
            Value::Object(object) if object.contains_key("events") => {
                if let Some(error) = json::check_fields(object, "", line, BATCH) {
                    return Err(error);
                }
                let rank = object.get("data_parallel_rank").and_then(Value::as_u64).unwrap_or(0);
                let events = object.get("events").and_then(Value::as_array);
                self.set_time(object.get("ts"), "ts", line, out)?;
                self.events(events.map_or(&[], Vec::as_slice), "events", rank, line, out)
            }
            Value::Array(batch) => {
                let [ts, Value::Array(events), rest @ ..] = batch.as_slice() else {
                    let needed = "ts, events".to_owned();
                    return Err(TraceError::NotAnObject { line, found: "an array", needed });
                };
                if let Some(error) = json::check_seconds(ts, "[0]".to_owned(), line) {
                    return Err(error);
                }
                let rank = rest.first().and_then(Value::as_u64).unwrap_or(0);
                self.set_time(Some(ts), "[0]", line, out)?;
                self.events(events, "[1]", rank, line, out)
            }
            Value::Object(object) if object.get("type").is_some_and(Value::is_string) => {
                if let Some(ts) = object.get("ts")
                    && let Some(error) = json::check_seconds(ts, "ts".to_owned(), line)
                {
                    return Err(error);
                }
                self.set_time(object.get("ts"), "ts", line, out)?;
                self.event(&Event::Object(object), &At { line, path: "", rank: 0 }, out)
            }
            _ => Err(json::mixed(text, line, self.assumed).unwrap_or(match value {
                Value::Object(_) => TraceError::MissingField {
                    line,
                    field: "events".to_owned(),
                    needed: "ts, events; or an event with its type".to_owned(),
                },
                other => {
                    let needed = "ts, events".to_owned();
                    TraceError::NotAnObject { line, found: json::kind(&other), needed }
                }
            })),
        }
    }

    /// Sets the time of the following events. Without a time in the record, they keep the time of the
    /// previous event.
    fn set_time(
        &mut self,
        ts: Option<&Value>,
        field: &str,
        line: u64,
        out: &mut Output,
    ) -> Result<(), TraceError> {
        match ts.and_then(Value::as_f64) {
            Some(seconds) => {
                let origin = *self.origin.get_or_insert(seconds);
                // The clocks of publishers differ, so an event may be older than the first one. Such an
                // event gets the time of the first one.
                self.now_ms = json::ms_of((seconds - origin).max(0.0), field, line)?;
            }
            None => out.notes.untimed += 1,
        }
        Ok(())
    }

    fn events(
        &mut self,
        events: &[Value],
        field: &str,
        rank: u64,
        line: u64,
        out: &mut Output,
    ) -> Result<(), TraceError> {
        for (index, event) in events.iter().enumerate() {
            let path = format!("{field}[{index}]");
            let event = match event {
                Value::Object(object) => Event::Object(object),
                Value::Array(fields) => Event::Array(fields),
                other => return Err(json::bad_value(other, path, line, EVENT)),
            };
            self.event(&event, &At { line, path: &format!("{path}."), rank }, out)?;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event<'_>, at: &At<'_>, out: &mut Output) -> Result<(), TraceError> {
        let Some(kind) = event.kind() else {
            let needed = EVENT.to_owned();
            return Err(TraceError::MissingField {
                line: at.line,
                field: format!("{}type", at.path),
                needed,
            });
        };
        let first_tier = match event.get("medium", "medium") {
            None => true,
            Some(Value::String(medium)) => medium.eq_ignore_ascii_case("gpu"),
            Some(other) => return Err(at.bad(other, "medium", "a string")),
        };
        let first_group = event.get("group_idx", "group_idx").is_none_or(|group| group.as_u64() == Some(0));
        match kind {
            "BlockStored" | "stored" if first_tier && first_group => self.stored(event, at, out),
            "BlockRemoved" | "removed" if first_tier && first_group => {
                out.notes.skipped_events += 1;
                for hash in hashes(event, at)? {
                    if let Some(&number) = self.numbers.get(&hash) {
                        self.open.remove(&(at.rank, u64::from(number)));
                    }
                }
                Ok(())
            }
            "AllBlocksCleared" | "cleared" => {
                out.notes.skipped_events += 1;
                self.open.retain(|(rank, _), _| *rank != at.rank);
                Ok(())
            }
            _ => {
                out.notes.skipped_events += 1;
                Ok(())
            }
        }
    }

    /// Processes an event that stores a run of consecutive blocks.
    fn stored(&mut self, event: &Event<'_>, at: &At<'_>, out: &mut Output) -> Result<(), TraceError> {
        let tokens = match event.get("block_size", "block_size") {
            Some(size) => match size.as_u64().and_then(|size| u32::try_from(size).ok()) {
                Some(size) if size > 0 => size,
                _ => return Err(at.bad(size, "block_size", json::POSITIVE_U32)),
            },
            None => {
                let size = self.wanted.and_then(|size| u32::try_from(size).ok());
                size.ok_or_else(|| TraceError::MissingField {
                    line: at.line,
                    field: format!("{}block_size", at.path),
                    needed: "block_hashes, block_size (or --trace-block-size)".to_owned(),
                })?
            }
        };
        let parent = match event.get("parent_block_hash", "parent") {
            None => None,
            Some(value) => {
                let hash = hash_of(value).ok_or_else(|| at.bad(value, "parent_block_hash", HASH))?;
                Some(self.parent(hash, tokens, out))
            }
        };
        let mut end = parent;
        for hash in hashes(event, at)? {
            end = Some(self.store(hash, end, tokens, at)?);
        }
        let Some(end) = end else { return Ok(()) };
        if Some(end) == parent {
            // The event stores no block.
            out.notes.skipped_events += 1;
            return Ok(());
        }
        let going_on = parent.and_then(|parent| self.open.remove(&(at.rank, u64::from(parent))));
        let request = match going_on.and_then(|index| Some((index, self.found.get_mut(index)?))) {
            Some((index, found)) if self.now_ms - found.last_ms <= self.gap_ms => {
                (found.end, found.last_ms) = (end, self.now_ms);
                index
            }
            _ => {
                let (line, first_ms) = (at.line, self.now_ms);
                self.found.push(Found { line, first_ms, last_ms: first_ms, end });
                self.found.len() - 1
            }
        };
        self.open.insert((at.rank, u64::from(end)), request);
        Ok(())
    }

    /// Returns the index of a parent block in `blocks`. Adds the block if it was never stored.
    fn parent(&mut self, hash: Hash, tokens: u32, out: &mut Output) -> u32 {
        let next = self.blocks.len() as u32;
        let number = *self.numbers.entry(hash).or_insert(next);
        if number == next {
            out.notes.unknown_parents += 1;
            self.blocks.push(Block { parent: None, depth: 1, tokens, is_placeholder: true });
        }
        number
    }

    /// Returns the index in `blocks` of a block that is stored after `parent`. Adds the block if it is
    /// new.
    fn store(
        &mut self,
        hash: Hash,
        parent: Option<u32>,
        tokens: u32,
        at: &At<'_>,
    ) -> Result<u32, TraceError> {
        let before = parent.and_then(|number| self.blocks.get(number as usize));
        let depth = before.map_or(1, |block| block.depth.saturating_add(1));
        if let Some(block) = before
            && block.tokens != tokens
        {
            let allowed = "the block_size of the block before it";
            let (field, value) = (format!("{}block_size", at.path), tokens.to_string());
            return Err(TraceError::BadNumber { line: at.line, field, value, allowed });
        }
        if u64::from(depth) * u64::from(tokens) > u64::from(u32::MAX) {
            let allowed = "so much that a chain has at most 4294967295 tokens";
            let (field, value) = (format!("{}block_size", at.path), tokens.to_string());
            return Err(TraceError::BadNumber { line: at.line, field, value, allowed });
        }
        let next = self.blocks.len() as u32;
        if let Some(&number) = self.numbers.get(&hash) {
            let known = self.blocks.get(number as usize);
            return match known {
                Some(block) if block.is_placeholder || (block.parent == parent && block.tokens == tokens) => {
                    Ok(number)
                }
                _ => Err(TraceError::HashConflict { line: at.line, hash: hash.shown() }),
            };
        }
        self.numbers.insert(hash, next);
        self.blocks.push(Block { parent, depth, tokens, is_placeholder: false });
        Ok(next)
    }

    pub(crate) fn finish(&mut self, out: &mut Output) -> Result<(), TraceError> {
        let depth = |end: u32| self.blocks.get(end as usize).map_or(0, |block| u64::from(block.depth));
        let references: u64 = self.found.iter().map(|found| depth(found.end)).sum();
        if references > MOST_REFERENCES {
            return Err(TraceError::TooManyBlocks { to: self.wanted.unwrap_or(1), limit: MOST_REFERENCES });
        }
        let mut requests = SizedRequests::default();
        for found in &self.found {
            let Some(last) = self.blocks.get(found.end as usize) else { continue };
            let mut ids = reserve_ids(last.depth as usize, last.tokens as usize)?;
            let mut next = Some(found.end);
            // A parent has a lower index than its children, so this loop over the parents ends.
            while let Some(number) = next {
                ids.push(u64::from(number));
                next = self.blocks.get(number as usize).and_then(|block| block.parent);
            }
            ids.reverse();
            let request = TraceRequest {
                timestamp_ms: found.first_ms,
                input_length: last.depth * last.tokens,
                output_length: 0,
                hash_ids: ids.into_boxed_slice(),
            };
            requests.push(Ready::new(found.line, request), last.tokens as usize);
        }
        requests.finish(self.wanted, out)
    }
}

impl Hash {
    fn shown(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => json::shorten(text),
        }
    }
}

fn hash_of(value: &Value) -> Option<Hash> {
    match value {
        Value::Number(number) => {
            number.as_u64().or_else(|| number.as_i64().map(i64::cast_unsigned)).map(Hash::Number)
        }
        Value::String(text) => Some(Hash::Text(text.as_str().into())),
        _ => None,
    }
}

/// The hashes of an event: an array, or the single hash of a kvpool event.
fn hashes(event: &Event<'_>, at: &At<'_>) -> Result<Vec<Hash>, TraceError> {
    match event.get("block_hashes", "hash") {
        Some(Value::Array(values)) => values
            .iter()
            .enumerate()
            .map(|(place, value)| {
                hash_of(value).ok_or_else(|| at.bad(value, &format!("block_hashes[{place}]"), HASH))
            })
            .collect(),
        Some(value) => {
            let hash = hash_of(value).ok_or_else(|| at.bad(value, "hash", HASH))?;
            Ok(vec![hash])
        }
        None => Err(TraceError::MissingField {
            line: at.line,
            field: format!("{}block_hashes", at.path),
            needed: "block_hashes".to_owned(),
        }),
    }
}
