//! What decoders return: requests, their block size, and notes.

use std::collections::VecDeque;

use kvpool::Finish;
use serde::Serialize;

use crate::{labels::Label, request::TraceRequest};

/// What was noticed, and what was done to the records, while a trace was read. None of it is an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadNotes {
    /// Records: lines that are not blank, or documents.
    pub records: u64,
    /// Requests that stood behind a later one, and were put in order.
    pub reordered: u64,
    /// Prefixes behind which an id stood that stood behind another prefix before: ids that name
    /// contents. They were made into ids that name prefixes. 0 where ids name prefixes already, or were
    /// not chained.
    pub unchained: u64,
    /// Requests whose blocks were made into blocks of another size.
    pub regrouped: u64,
    /// Requests without a time of their own, placed by their delay or behind the request before.
    pub untimed: u64,
    /// Recorded events that are no stored blocks of the first tier: removals, other tiers, other kinds.
    pub skipped_events: u64,
    /// Stored runs whose parent block was not recorded: the prompt before it is taken to be that one block.
    pub unknown_parents: u64,
}

/// A request that is ready to be checked.
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

/// What decoders give: requests, their block size, and what they noticed.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) ready: VecDeque<Ready>,
    /// Set before the first request is given.
    pub(crate) block_tokens: usize,
    pub(crate) notes: ReadNotes,
}
