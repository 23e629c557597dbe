//! How requests ended, from what Python says of them.

use kvpool::{Finish, Signal};
use pyo3::prelude::*;

use crate::convert::Int;
use crate::errors::raise;

/// A signal from a finish reason and a count of tokens.
pub(crate) fn signal(
    py: Python<'_>,
    finish_reason: Option<&str>,
    output_tokens: Option<Int>,
) -> PyResult<Signal> {
    let finish = finish_reason.map_or(Finish::Unknown, Finish::of_reason);
    let output_tokens = output_tokens.map(|tokens| tokens_of(py, tokens)).transpose()?;
    Ok(Signal { finish, output_tokens })
}

fn tokens_of(py: Python<'_>, tokens: Int) -> PyResult<u32> {
    let tokens = i128::from(tokens);
    u32::try_from(tokens).map_err(|_| {
        let limit = if tokens < 0 { "not be negative".into() } else { format!("be at most {}", u32::MAX) };
        raise(py, "InvalidArgumentError", format!("output_tokens is {tokens}: must {limit}"))
    })
}

/// A signal for each of `requests` requests; nothing is known where a list is not given. `None` if neither is.
pub(crate) fn signals(
    py: Python<'_>,
    requests: usize,
    finish_reasons: Option<Vec<Option<String>>>,
    output_tokens: Option<Vec<Option<Int>>>,
) -> PyResult<Option<Vec<Signal>>> {
    if finish_reasons.is_none() && output_tokens.is_none() {
        return Ok(None);
    }
    let lengths = [
        ("finish_reasons", finish_reasons.as_ref().map(Vec::len)),
        ("output_tokens", output_tokens.as_ref().map(Vec::len)),
    ];
    for (name, length) in lengths {
        if let Some(length) = length.filter(|&length| length != requests) {
            let message = format!("{name} has {length} entries: must be {requests}, one for each request");
            return Err(raise(py, "InvalidArgumentError", message));
        }
    }
    let mut reasons = finish_reasons.unwrap_or_default().into_iter();
    let mut tokens = output_tokens.unwrap_or_default().into_iter();
    let mut next = || signal(py, reasons.next().flatten().as_deref(), tokens.next().flatten());
    (0..requests).map(|_| next()).collect::<PyResult<_>>().map(Some)
}
