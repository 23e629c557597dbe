//! The results of decoders: requests, their block size, and notes.

use std::collections::VecDeque;

use kvpool::Finish;
use serde::Serialize;

use crate::{labels::Label, request::TraceRequest};

/// Notes of the reader: what it observed and converted in a trace. None of them is an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadNotes {
    /// The number of records: lines that are not blank, or documents.
    pub records: u64,
    /// The number of requests that were out of order and had to be sorted.
    pub reordered: u64,
    /// The number of prefix ids that the reader assigned to an id that had already been seen after
    /// another prefix. If it is above 0, the ids of the trace identify contents. It is 0 if they
    /// already identify prefixes, or were not converted.
    pub unchained: u64,
    /// The number of requests whose blocks were converted to another size.
    pub regrouped: u64,
    /// The number of requests without a time. They got a time from their delay or from the previous
    /// request.
    pub untimed: u64,
    /// The number of recorded events that do not store blocks in the first tier: removals, other tiers,
    /// other kinds.
    pub skipped_events: u64,
    /// The number of stored runs of blocks whose parent block was not recorded. The reader assumes that
    /// the parent is the only block before such a run.
    pub unknown_parents: u64,
}

/// A decoded request with its line and labels, which the checker has not seen yet.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) line: u64,
    pub(crate) request: TraceRequest,
    pub(crate) session: Option<Box<str>>,
    pub(crate) kind: Option<Box<str>>,
    pub(crate) think_ms: Option<f64>,
    pub(crate) finish: Finish,
}

impl Ready {
    pub(crate) fn new(line: u64, request: TraceRequest) -> Self {
        Self { line, request, session: None, kind: None, think_ms: None, finish: Finish::Unknown }
    }

    pub(crate) fn label(&self) -> Label<'_> {
        Label {
            session: self.session.as_deref(),
            kind: self.kind.as_deref(),
            think_ms: self.think_ms,
            finish: self.finish,
        }
    }
}

/// The results of a decoder: requests, their block size, and notes.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) ready: VecDeque<Ready>,
    /// The number of tokens per block. The decoder sets it before it returns the first request.
    pub(crate) block_tokens: usize,
    pub(crate) notes: ReadNotes,
}
