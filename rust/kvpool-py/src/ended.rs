//! Converts the arguments that describe how requests ended.

use kvpool::{Finish, Signal};

use crate::argument::take;
use crate::convert::Int;
use crate::errors::raise;
use crate::gather::gather;
use crate::python::prelude::*;

/// Returns the signal for the policy that a finish reason and a number of output tokens give.
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

/// Returns a signal for each of `requests` requests, or `None` if neither argument is given. If one of the
/// arguments is missing, no signal contains a value for it.
pub(crate) fn signals(
    py: Python<'_>,
    requests: usize,
    finish_reason: Option<&Bound<'_, PyAny>>,
    output_tokens: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Vec<Signal>>> {
    if finish_reason.is_none() && output_tokens.is_none() {
        return Ok(None);
    }
    // Each reason is converted at once and not kept as text. So an endless list is refused before it uses up
    // the memory.
    let reason = |_, item: Bound<'_, PyAny>| {
        let reason = take::<Option<&str>>("an item of finish_reason", &item)?;
        Ok(reason.map_or(Finish::Unknown, Finish::of_reason))
    };
    let finish_reason = finish_reason.map(|list| gather("finish_reason", list, reason)).transpose()?;
    let tokens = |_, item: Bound<'_, PyAny>| take::<Option<Int>>("an item of output_tokens", &item);
    let output_tokens = output_tokens.map(|list| gather("output_tokens", list, tokens)).transpose()?;
    let lengths = [
        ("finish_reason", finish_reason.as_ref().map(Vec::len)),
        ("output_tokens", output_tokens.as_ref().map(Vec::len)),
    ];
    for (name, length) in lengths {
        if let Some(length) = length.filter(|&length| length != requests) {
            let message = format!("{name} has {length} entries: must be {requests}, one for each request");
            return Err(raise(py, "InvalidArgumentError", message));
        }
    }
    let mut reasons = finish_reason.unwrap_or_default().into_iter();
    let mut tokens = output_tokens.unwrap_or_default().into_iter();
    let mut next = || {
        let output_tokens = tokens.next().flatten().map(|tokens| tokens_of(py, tokens)).transpose()?;
        Ok(Signal { finish: reasons.next().unwrap_or(Finish::Unknown), output_tokens })
    };
    (0..requests).map(|_| next()).collect::<PyResult<_>>().map(Some)
}
