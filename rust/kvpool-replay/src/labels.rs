//! Labels: the session, kind, think time and finish reason of each request of a trace.
//!
//! [`Labels`] are stored separately from the requests, because most traces have none. So replays that
//! do not use labels have no cost, and each name is stored once.
//!
//! Costs: nothing for a trace without labels; 32 bytes per request and one hash-map step per name otherwise.

use std::collections::HashMap;

use kvpool::Finish;

/// The labels of one request of a trace: its session, kind, think time and finish reason.
///
/// ```
/// use kvpool_replay::labels::Label;
/// let label = Label { session: Some("chat 7"), think_ms: Some(1500.0), ..Label::default() };
/// assert_eq!(label.kind, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Label<'a> {
    /// The conversation or agent that the request belongs to; `None` if the request is independent, or
    /// if the session is unknown.
    pub session: Option<&'a str>,
    /// The kind of the request: a type, a model or a tenant, depending on the format.
    pub kind: Option<&'a str>,
    /// The time that the client waited between the previous answer and this request, in ms.
    pub think_ms: Option<f64>,
    /// How the request finished.
    pub finish: Finish,
}

/// The labels of a trace's requests, in the same order; empty if the trace has none.
///
/// ```
/// use kvpool_replay::labels::{Label, Labels};
///
/// let mut labels = Labels::default();
/// labels.push(Label { session: Some("chat 7"), kind: Some("text"), ..Label::default() });
/// labels.push(Label { session: Some("chat 7"), think_ms: Some(1500.0), ..Label::default() });
/// assert_eq!((labels.len(), labels.sessions()), (2, &["chat 7".to_owned()][..]));
/// assert_eq!(labels.get(1).think_ms, Some(1500.0));
/// assert_eq!(labels.get(9), Label::default());
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Labels {
    entries: Vec<Entry>,
    sessions: Names,
    kinds: Names,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Entry {
    session: Option<u32>,
    kind: Option<u32>,
    think_ms: Option<f64>,
    finish: Finish,
}

/// Distinct names, numbered in the order of first use.
#[derive(Clone, Debug, Default, PartialEq)]
struct Names {
    names: Vec<String>,
    numbers: HashMap<String, u32>,
}

impl Names {
    fn number(&mut self, name: &str) -> Option<u32> {
        if let Some(&number) = self.numbers.get(name) {
            return Some(number);
        }
        // With more names than a 32-bit number can count, this request gets no name. So many names
        // would not fit into memory.
        let number = u32::try_from(self.names.len()).ok()?;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        Some(number)
    }

    fn get(&self, number: Option<u32>) -> Option<&str> {
        self.names.get(number? as usize).map(String::as_str)
    }
}

impl Labels {
    /// Appends the label of the next request.
    pub fn push(&mut self, label: Label<'_>) {
        let session = label.session.and_then(|name| self.sessions.number(name));
        let kind = label.kind.and_then(|name| self.kinds.number(name));
        self.entries.push(Entry { session, kind, think_ms: label.think_ms, finish: label.finish });
    }

    /// Returns the label of request `index` (from 0); an empty label after the last one.
    #[must_use]
    pub fn get(&self, index: usize) -> Label<'_> {
        self.entries.get(index).map_or_else(Label::default, |entry| Label {
            session: self.sessions.get(entry.session),
            kind: self.kinds.get(entry.kind),
            think_ms: entry.think_ms,
            finish: entry.finish,
        })
    }

    /// Returns the number of the session of request `index`: an index into
    /// [`sessions`](Self::sessions).
    #[must_use]
    pub fn session_number(&self, index: usize) -> Option<u32> {
        self.entries.get(index)?.session
    }

    /// Returns the number of the kind of request `index`: an index into [`kinds`](Self::kinds).
    #[must_use]
    pub fn kind_number(&self, index: usize) -> Option<u32> {
        self.entries.get(index)?.kind
    }

    /// The names of the sessions, in the order in which they begin.
    #[must_use]
    pub fn sessions(&self) -> &[String] {
        &self.sessions.names
    }

    /// The names of the kinds, in the order of first use.
    #[must_use]
    pub fn kinds(&self) -> &[String] {
        &self.kinds.names
    }

    /// The number of requests with a label; 0 for a trace without labels.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the trace has no labels.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether all labels are empty, so that they can be dropped.
    pub(crate) fn are_all_empty(&self) -> bool {
        self.entries.iter().all(|entry| *entry == Entry::default())
    }
}
