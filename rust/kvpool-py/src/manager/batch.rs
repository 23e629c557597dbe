//! Converts arguments that the manager's methods and the planned steps have in common: rows of a batch, parts
//! of a prompt, and ranges of tokens.

use std::ops::Range;

use kvpool::{Covered, Part, RequestRef, Rows};

use crate::convert::{Int, both, count, counts, tokens};
use crate::errors::raise;
use crate::gather::{extract, gather};
use crate::python::prelude::*;
use crate::request::RequestIds;

/// The arguments of a batch of appends. Each row is a request with its new tokens.
pub(super) struct Batch<'py> {
    pub(super) requests: RequestIds<'py>,
    tokens: Vec<u32>,
    offsets: Vec<usize>,
    lookahead: usize,
    covered: Option<Vec<usize>>,
}

impl<'py> Batch<'py> {
    pub(super) fn new(
        request_ids: &Bound<'py, PyAny>,
        token_ids: &Bound<'py, PyAny>,
        offsets: Option<&Bound<'py, PyAny>>,
        lookahead: Option<Int>,
        covered: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Self> {
        let py = request_ids.py();
        if lookahead.is_some() && covered.is_some() {
            return Err(both(py, "lookahead", "covered"));
        }
        Ok(Self {
            requests: RequestIds::new(request_ids)?,
            tokens: tokens(token_ids)?,
            offsets: offsets.map(|offsets| some_offsets(py, offsets)).transpose()?.unwrap_or_default(),
            lookahead: lookahead.map_or(Ok(0), |slots| count(py, "lookahead", slots))?,
            covered: covered.map(counts).transpose()?,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns the rows for requests that [`RequestIds::refs`] returned.
    pub(super) fn rows<'a>(&'a self, requests: &'a [RequestRef<'a>]) -> Rows<'a> {
        let ahead = if self.lookahead == 0 { Covered::All } else { Covered::Lookahead(self.lookahead) };
        let covered = self.covered.as_deref().map_or(ahead, Covered::Each);
        Rows { requests, tokens: &self.tokens, offsets: &self.offsets, covered, ..Rows::default() }
    }
}

/// Converts the argument `offsets`. An empty sequence is refused, because empty offsets mean one token per
/// row in the core.
fn some_offsets(py: Python<'_>, offsets: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    let offsets = counts(offsets)?;
    if offsets.is_empty() {
        let message = "offsets is empty: must have one item more than requests";
        return Err(raise(py, "InvalidArgumentError", message));
    }
    Ok(offsets)
}

/// Converts the arguments that determine which part of a prompt is allocated, loaded and computed.
pub(super) fn part(
    py: Python<'_>,
    allocate_tokens: Option<Int>,
    external_tokens: Option<Int>,
    reuse: bool,
) -> PyResult<Part> {
    Ok(Part {
        allocate_tokens: allocate_tokens.map(|n| count(py, "allocate_tokens", n)).transpose()?,
        external_tokens: external_tokens.map_or(Ok(0), |n| count(py, "external_tokens", n))?,
        compute_all: !reuse,
    })
}

/// Converts the argument `failed`: ranges of tokens, as pairs of the first token and the token after the
/// last.
pub(super) fn token_ranges(object: &Bound<'_, PyAny>) -> PyResult<Vec<Range<usize>>> {
    gather("failed", object, |position, item| {
        let (start, end): (Int, Int) = extract("failed", position, &item, "a pair (start, end)")?;
        Ok(count(item.py(), "start", start)?..count(item.py(), "end", end)?)
    })
}
