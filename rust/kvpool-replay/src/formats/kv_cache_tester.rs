//! `kv-cache-tester`: sessions of coding agents as recorded by callanjfox/kv-cache-tester
//! (`traces/trace_NNNN.json`).
//!
//! There is one JSON document per session. Each document may be in a file of its own. A file may also
//! contain several documents, on one line, on separate lines, or across lines. The files of a folder
//! are read in the order of their names.
//!
//! | field of a document | unit | |
//! |---|---|---|
//! | `id` | string or number | the name of the session; by default its position in the input |
//! | `block_size` | tokens | mostly 64 |
//! | `hash_id_scope` | `local` (default) or `global` | `global`: ids mean the same in all documents |
//! | `requests` | array | requests and sub-agents, in order |
//!
//! | field of a request | unit | |
//! |---|---|---|
//! | `t` | s from the start of the session | |
//! | `in`, `out` | tokens | |
//! | `hash_ids` | one id per *full* block | chained here, per document unless the scope is global |
//! | `think_time` | s | optional: the client's delay after the previous answer |
//! | `model` | string | optional: kept as the kind |
//!
//! An entry of type `subagent` has its own `requests`, which may contain further sub-agents. Sub-agents
//! run concurrently with the other requests. Their session is named `session/agent_id`, and they share
//! the ids of the document. Their `t` normally counts from the start of the session. But if any request
//! of a sub-agent has an earlier `t` than the entry itself, all times of that sub-agent count from the
//! `t` of the entry.
//!
//! All sessions begin at time 0, unless [`ReadOptions::sessions_at_once`] limits how many run at a
//! time. With a limit, each further session begins at the last arrival of the running session that ends
//! first.
//!
//! In reality, different models share no KV, but the trace is read as if all requests were sent to one
//! engine.

use serde::Deserialize;
use serde_json::Value;

use super::{
    Assumed, Output, Ready,
    json::{self, Field, Name},
    sized::SizedRequests,
};
use crate::{blocks::Chains, error::TraceError, options::ReadOptions, request::TraceRequest};

const FIELDS: &[Field] = &[
    Field::optional("id", json::check_name),
    Field::needed("block_size", json::check_size),
    Field::optional("hash_id_scope", check_scope),
    Field::needed("requests", check_requests),
];
const REQUEST: &[Field] = &[
    Field::optional("type", json::check_string),
    Field::needed("t", json::check_seconds),
    Field::needed("in", json::check_u32),
    Field::needed("out", json::check_u32),
    Field::needed("hash_ids", json::check_ids),
    Field::optional("think_time", json::check_seconds),
    Field::optional("model", json::check_string),
];
const SUB_AGENT: &[Field] = &[
    Field::needed("type", json::check_string),
    Field::optional("t", json::check_seconds),
    Field::optional("agent_id", json::check_name),
    Field::needed("requests", check_requests),
];

#[derive(Deserialize)]
struct Document {
    id: Option<Name>,
    block_size: u32,
    hash_id_scope: Option<Box<str>>,
    requests: Vec<Entry>,
}

/// An entry of `requests`: a request or a sub-agent.
#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: Option<Box<str>>,
    t: Option<f64>,
    #[serde(rename = "in")]
    input: Option<u32>,
    #[serde(rename = "out")]
    output: Option<u32>,
    hash_ids: Option<Vec<u64>>,
    think_time: Option<f64>,
    model: Option<Box<str>>,
    agent_id: Option<Name>,
    requests: Option<Vec<Entry>>,
}

fn check_scope(value: &Value, field: String, line: u64) -> Option<TraceError> {
    let known = matches!(value.as_str(), Some("local" | "global"));
    (!known).then(|| json::bad_value(value, field, line, "local or global"))
}

fn check_requests(value: &Value, field: String, line: u64) -> Option<TraceError> {
    let Value::Array(entries) = value else {
        return Some(json::bad_value(value, field, line, "an array of requests"));
    };
    entries.iter().enumerate().find_map(|(index, entry)| {
        let path = format!("{field}[{index}]");
        let Value::Object(object) = entry else {
            return Some(json::bad_value(entry, path, line, "an object"));
        };
        let sub_agent = object.get("type").and_then(Value::as_str) == Some("subagent");
        let fields = if sub_agent { SUB_AGENT } else { REQUEST };
        json::check_fields(object, &format!("{path}."), line, fields)
    })
}

#[derive(Debug)]
pub(crate) struct Decoder {
    assumed: Assumed,
    wanted: Option<usize>,
    chains: Chains,
    requests: SizedRequests,
    documents: u64,
    /// For each running session, the time of its last arrival in ms. Empty if the number of running
    /// sessions is not limited.
    lanes: Vec<f64>,
    lanes_at_once: Option<usize>,
}

/// The values that are the same for all requests of a document.
struct Session {
    line: u64,
    begin_ms: f64,
    end_ms: f64,
    block_tokens: usize,
    space: u64,
}

impl Decoder {
    pub(crate) fn new(assumed: Assumed, options: &ReadOptions) -> Self {
        Self {
            assumed,
            wanted: options.block_tokens,
            chains: Chains::default(),
            requests: SizedRequests::default(),
            documents: 0,
            lanes: Vec::new(),
            lanes_at_once: options.sessions_at_once,
        }
    }

    pub(crate) fn record(&mut self, text: &[u8], line: u64, _: &mut Output) -> Result<(), TraceError> {
        let document: Document = json::decode(text, line, self.assumed, FIELDS)?;
        self.documents += 1;
        let global = match document.hash_id_scope.as_deref() {
            None | Some("local") => false,
            Some("global") => true,
            Some(_) => return Err(self.explain(text, line)),
        };
        let name = document.id.map_or_else(|| format!("session {}", self.documents).into(), |id| id.0);
        let lane = self.free_lane();
        let begin_ms = lane.and_then(|lane| self.lanes.get(lane)).copied().unwrap_or(0.0);
        let mut session = Session {
            line,
            begin_ms,
            end_ms: begin_ms,
            block_tokens: document.block_size as usize,
            // The id space. Local ids have one per document, which is its number from 1. Global ids
            // have one per block size, with the top bit set.
            space: if global { (1 << 63) | u64::from(document.block_size) } else { self.documents },
        };
        if document.block_size == 0 || !self.flatten(document.requests, &name, 0.0, &mut session)? {
            return Err(self.explain(text, line));
        }
        match (lane.and_then(|lane| self.lanes.get_mut(lane)), self.lanes_at_once) {
            (Some(end), _) => *end = session.end_ms,
            (None, Some(_)) => self.lanes.push(session.end_ms),
            (None, None) => {}
        }
        Ok(())
    }

    /// Returns the index in `lanes` of the running session that ends first. The next session replaces
    /// it. Returns `None` if another session may still run.
    fn free_lane(&self) -> Option<usize> {
        if self.lanes.len() < self.lanes_at_once? {
            return None;
        }
        let first = self.lanes.iter().enumerate().min_by(|left, right| left.1.total_cmp(right.1));
        first.map(|(lane, _)| lane)
    }

    /// Builds the error for a document that was decoded, but lacks a required field.
    #[cold]
    fn explain(&self, text: &[u8], line: u64) -> TraceError {
        json::diagnose(text, line, self.assumed, FIELDS, None)
    }

    /// Adds the requests of a session or a sub-agent. Returns `false` if a request lacks a field.
    fn flatten(
        &mut self,
        entries: Vec<Entry>,
        name: &str,
        offset: f64,
        session: &mut Session,
    ) -> Result<bool, TraceError> {
        for entry in entries {
            if entry.kind.as_deref() == Some("subagent") {
                let Some(inner) = entry.requests else { return Ok(false) };
                let agent = entry.agent_id.map_or_else(|| "agent".into(), |id| id.0);
                let spawned = entry.t.unwrap_or(0.0);
                let relative = inner.iter().filter_map(|one| one.t).any(|t| t < spawned);
                let offset = if relative { offset + spawned } else { offset };
                if !self.flatten(inner, &format!("{name}/{agent}"), offset, session)? {
                    return Ok(false);
                }
                continue;
            }
            let (Some(t), Some(input_length), Some(output_length), Some(ids)) =
                (entry.t, entry.input, entry.output, entry.hash_ids)
            else {
                return Ok(false);
            };
            let think_ms = match entry.think_time {
                Some(seconds) => Some(json::ms_of(seconds, "think_time", session.line)?),
                None => None,
            };
            if t < 0.0 {
                return Ok(false);
            }
            let timestamp_ms = session.begin_ms + json::ms_of(offset + t, "t", session.line)?;
            session.end_ms = session.end_ms.max(timestamp_ms);
            let hash_ids = self.chains.chain(session.space, &ids);
            let request = TraceRequest { timestamp_ms, input_length, output_length, hash_ids };
            let ready = Ready {
                session: Some(name.into()),
                kind: entry.model,
                think_ms,
                ..Ready::new(session.line, request)
            };
            self.requests.push(ready, session.block_tokens);
        }
        Ok(true)
    }

    pub(crate) fn finish(&mut self, out: &mut Output) -> Result<(), TraceError> {
        out.notes.unchained = self.chains.unchained();
        self.requests.finish(self.wanted, out)
    }
}
