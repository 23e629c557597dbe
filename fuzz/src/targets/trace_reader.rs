//! Tests the readers of traces. In every format, any bytes give requests or an error. A trace that was
//! read can be written and read again.
//!
//! The first two bytes select the options, and the other bytes are the file.

use kvpool_replay::error::TraceError;
use kvpool_replay::formats::{TraceFormat, write_trace};
use kvpool_replay::reader::{ReadOptions, ReadTrace, TraceReader, read_trace};
use kvpool_replay::stats::TraceStats;
use kvpool_replay::trace::Trace;

use kvpool_lab::failure::{Failure, guarded, holds, same};

/// Maximum number of tokens of a request. If a request is longer, the test skips functions whose work
/// grows with the number of tokens.
const MOST_TOKENS: u64 = 1 << 20;

fn options(first: u8, second: u8) -> ReadOptions {
    let formats = TraceFormat::ALL;
    let format = formats.get(usize::from(first & 7)).copied();
    ReadOptions {
        format,
        block_tokens: [None, None, Some(1), Some(512)][usize::from(first >> 3 & 3)],
        limit: (first >> 5 & 1 == 1).then_some(3),
        check_prefixes: first >> 6 & 1 == 0,
        sort: first >> 7 == 1,
        sessions_at_once: (second & 1 == 1).then_some(1),
        event_gap_ms: if second & 2 == 0 { 5000.0 } else { f64::INFINITY },
        max_line_bytes: if second & 4 == 0 { 1 << 16 } else { 64 },
    }
}

/// Reads one request after another. After an error or the end, no more requests may follow.
fn stream(file: &[u8], options: &ReadOptions) -> Result<usize, Failure> {
    let Ok(mut reader) = TraceReader::new(file, options) else { return Ok(0) };
    let requests = reader.by_ref().take_while(Result::is_ok).count();
    let again = reader.next();
    holds("end of a reader", again.is_none(), || format!("it goes on with {again:?}"))?;
    Ok(requests)
}

fn again(trace: &Trace, format: TraceFormat) -> Result<Option<Result<ReadTrace, TraceError>>, Failure> {
    let mut text = Vec::new();
    if write_trace(trace, format, &mut text).is_err() {
        return Ok(None);
    }
    let options = ReadOptions {
        format: Some(format),
        block_tokens: Some(trace.block_tokens()),
        check_prefixes: false,
        ..ReadOptions::default()
    };
    Ok(Some(read_trace(&text[..], &options)))
}

/// Reads the bytes.
///
/// # Errors
/// A panic, a reader that continues after its end, or a trace that differs after it is written and read
/// again.
pub fn run(data: &[u8]) -> Result<(), Failure> {
    let (&[first, second], file) = data.split_first_chunk::<2>().unwrap_or((&[0, 0], data));
    let options = options(first, second);
    guarded(|| {
        let streamed = stream(file, &options)?;
        let Ok(ReadTrace { trace, format, .. }) = read_trace(file, &options) else { return Ok(()) };
        same("requests read at once", &trace.requests().len(), &streamed)?;
        let tokens: u64 = trace.requests().iter().map(|request| u64::from(request.input_length)).sum();
        if tokens <= MOST_TOKENS {
            let stats = TraceStats::new(&trace);
            same("requests counted", &stats.requests, &(trace.requests().len() as u64))?;
        }
        if format == TraceFormat::Mooncake
            && let Some(read) = again(&trace, format)?
        {
            let read = read.map_err(|error| Failure::new("reading what was written", error.to_string()))?;
            same("requests written and read again", &read.trace.requests(), &trace.requests())?;
        }
        Ok(())
    })
}
