//! Writes traces in formats that other tools read.
//!
//! The bytes depend only on the trace. A time that is a whole number is written without a fraction, and
//! any other time with the fewest digits that identify it. If the file is read with the same block
//! size, the requests are the same, except for data that the format cannot represent. [`write_trace`]
//! lists these data.

use std::{
    collections::{HashMap, HashSet},
    io::{self, BufWriter, Write},
};

use crate::{error::TraceError, format::TraceFormat, trace::Trace};

/// Writes a trace, one request per line.
///
/// Depending on the format, some data are lost. No format contains the block size.
///
/// | format | lost |
/// |---|---|
/// | `mooncake` | sessions, kinds, think times, finish reasons |
/// | `mooncake-sessions` | kinds; the think time of a session's first request |
/// | `bailian` | think times; finish reasons; names of sessions (numbers instead); parts of a microsecond |
///
/// ```
/// use kvpool_replay::{formats::{TraceFormat, write_trace}, trace::{Trace, TraceRequest}};
///
/// let request =
///     TraceRequest { timestamp_ms: 1500.0, input_length: 20, output_length: 9, hash_ids: [4, 5].into() };
/// let trace = Trace::new(vec![request], 16).unwrap();
/// let mut file = Vec::new();
/// write_trace(&trace, TraceFormat::Bailian, &mut file).unwrap();
/// let line = concat!(
///     r#"{"chat_id": 0, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 20, "#,
///     r#""output_length": 9, "type": "text", "turn": 1, "hash_ids": [4, 5]}"#
/// );
/// assert_eq!(file, [line.as_bytes(), b"\n"].concat());
/// ```
///
/// # Errors
///
/// [`TraceError::NotWritten`] for a format that can only be read; [`TraceError::Write`] with the error
/// of `out`. Part of the trace may have been written then.
pub fn write_trace(trace: &Trace, format: TraceFormat, out: impl Write) -> Result<(), TraceError> {
    let mut out = BufWriter::with_capacity(1 << 16, out);
    let written = match format {
        TraceFormat::Mooncake => mooncake(trace, &mut out),
        TraceFormat::MooncakeSessions => sessions(trace, &mut out),
        TraceFormat::Bailian => bailian(trace, &mut out),
        TraceFormat::KvCacheTester | TraceFormat::BlockRows | TraceFormat::KvEvents => {
            return Err(TraceError::NotWritten { format });
        }
    };
    written.and_then(|()| out.flush()).map_err(|source| TraceError::Write { source })
}

/// Writes a trace as Mooncake JSONL: one request per line, `\n` after each, and all ids.
///
/// This is [`write_trace`] with the format `mooncake`. The bytes depend only on the trace, and reading
/// them back gives the same requests (times of more than 15 digits may change in the last bit). The
/// output is buffered, and flushed at the end.
///
/// ```
/// use kvpool_replay::trace::{Trace, TraceRequest, write_jsonl};
///
/// let request =
///     TraceRequest { timestamp_ms: 27.0, input_length: 600, output_length: 9, hash_ids: [4, 5].into() };
/// let mut file = Vec::new();
/// write_jsonl(&Trace::new(vec![request], 512).unwrap(), &mut file).unwrap();
/// let line = r#"{"timestamp": 27, "input_length": 600, "output_length": 9, "hash_ids": [4, 5]}"#;
/// assert_eq!(file, [line.as_bytes(), b"\n"].concat());
/// ```
///
/// # Errors
///
/// The error of `out`. Part of the trace may have been written then.
pub fn write_jsonl(trace: &Trace, out: impl Write) -> io::Result<()> {
    write_trace(trace, TraceFormat::Mooncake, out).map_err(|error| match error {
        TraceError::Write { source } => source,
        other => io::Error::other(other),
    })
}

/// Fields that a format writes in addition to Mooncake's, as JSON text.
struct Extra {
    /// The fields that are written before `timestamp`.
    start: String,
    /// The fields that are written before `hash_ids`.
    middle: String,
}

/// Writes one line per request. Times are divided by `unit_ms`, and `extra` returns the additional
/// fields of a request.
fn lines(
    trace: &Trace,
    out: &mut impl Write,
    unit_ms: f64,
    mut extra: impl FnMut(usize) -> Extra,
) -> io::Result<()> {
    for (index, request) in trace.requests().iter().enumerate() {
        let Extra { start, middle } = extra(index);
        // `Display` of an f64 writes whole numbers without a fraction, and never uses an exponent.
        write!(
            out,
            "{{{start}\"timestamp\": {}, \"input_length\": {}, \"output_length\": {}, \
             {middle}\"hash_ids\": [",
            request.timestamp_ms / unit_ms,
            request.input_length,
            request.output_length,
        )?;
        for (position, id) in request.hash_ids.iter().enumerate() {
            let comma = if position == 0 { "" } else { ", " };
            write!(out, "{comma}{id}")?;
        }
        out.write_all(b"]}\n")?;
    }
    Ok(())
}

fn mooncake(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    lines(trace, out, 1.0, |_| Extra { start: String::new(), middle: String::new() })
}

fn sessions(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    let labels = trace.labels();
    let mut begun = HashSet::new();
    lines(trace, out, 1.0, |index| {
        let label = labels.get(index);
        let start =
            label.session.map_or_else(String::new, |name| format!("\"session_id\": {}, ", quoted(name)));
        // The first turn of a session has no previous turn from which a delay could count.
        let first = label.session.is_none_or(|name| begun.insert(name));
        let delay = label.think_ms.filter(|_| !first);
        let delay = delay.map_or_else(String::new, |ms| format!("\"delay\": {ms}, "));
        let finish = label.finish.reason();
        let finish = finish.map_or_else(String::new, |reason| format!("\"finish_reason\": \"{reason}\", "));
        let middle = delay + &finish;
        Extra { start, middle }
    })
}

fn bailian(trace: &Trace, out: &mut impl Write) -> io::Result<()> {
    let labels = trace.labels();
    // For each session, the index of its last request, and its number of turns so far.
    let mut last: HashMap<u32, (usize, u32)> = HashMap::new();
    lines(trace, out, 1e3, |index| {
        let session = labels.session_number(index);
        let previous = session.and_then(|session| last.get(&session)).copied();
        let parent = previous.map_or_else(|| "-1".to_owned(), |(request, _)| request.to_string());
        let turn = previous.map_or(1, |(_, turns)| turns.saturating_add(1));
        if let Some(session) = session {
            last.insert(session, (index, turn));
        }
        let kind = quoted(labels.get(index).kind.unwrap_or("text"));
        Extra {
            start: format!("\"chat_id\": {index}, \"parent_chat_id\": {parent}, "),
            middle: format!("\"type\": {kind}, \"turn\": {turn}, "),
        }
    })
}

/// Returns `text` as a JSON string with quotes and escapes.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
