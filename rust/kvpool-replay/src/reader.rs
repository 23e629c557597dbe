//! Reading traces: from a file, a folder or any buffered reader, plain or gzip, in any
//! [format](crate::formats).
//!
//! Owns the way from records to checked requests: [`TraceReader`] streams, and [`Trace::from_path`] and
//! [`Trace::from_reader`] collect; [`TraceLoader`] reads files in slices, so that a caller can show
//! progress. Gzip is told by its first two bytes and not by a file's name; several gzip members one
//! after another are one stream. A byte order mark, blank lines, `\r\n` and unknown fields are passed
//! over. Anything else that is not a record is a typed error naming line, field and value; no input
//! makes the reader panic.
//!
//! Invariants: a request comes out only after [`RequestChecker`] has passed it; requests come in order
//! of arrival; after an error or the end the iterator gives `None` for good. Formats in order of
//! arrival are streamed: one record is held, of at most [`ReadOptions::max_line_bytes`]. The others are
//! put in order here, and held whole.
//!
//! Costs, per block reference: decoding 30 to 50 ns (gzip included), the check of prefixes 10 ns where most
//! ids repeat and 45 ns where most are new; chaining ids instead, where a format asks for it, the same.

use std::{io::BufRead, path::Path};

pub use crate::loader::TraceLoader;
pub use crate::options::ReadOptions;
use crate::{
    error::TraceError,
    formats::{Assumed, Decoder, Output, ReadNotes, Ready, TraceFormat},
    labels::Labels,
    request::TraceRequest,
    source::Records,
    trace::Trace,
    validate::RequestChecker,
};

/// A stream of requests, read and checked one at a time.
///
/// ```
/// use kvpool_replay::{formats::TraceFormat, reader::{ReadOptions, TraceReader}};
///
/// let file = br#"{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}
/// {"timestamp": 40, "input_length": 512, "output_length": 7, "hash_ids": [0], "note": "ignored"}
/// "#;
/// let mut reader = TraceReader::new(&file[..], &ReadOptions::default()).unwrap();
/// let requests: Result<Vec<_>, _> = reader.by_ref().collect();
/// let requests = requests.unwrap();
/// assert_eq!(requests[0].hash_ids[..], [0, 1]);
/// assert_eq!(requests[1].timestamp_ms, 40.0);
/// assert_eq!(reader.format(), Some(TraceFormat::Mooncake));
/// ```
#[derive(Debug)]
pub struct TraceReader<R> {
    records: Records<R>,
    options: ReadOptions,
    /// Known once the first record was looked at.
    decoder: Option<(Assumed, Decoder)>,
    out: Output,
    checker: Option<RequestChecker>,
    labels: Labels,
    requests: usize,
    /// The decoder has given everything.
    finished: bool,
    ended: bool,
}

impl<R: BufRead> TraceReader<R> {
    /// A reader over `input`, whose first two bytes are read here.
    ///
    /// # Errors
    ///
    /// [`TraceError::BadOption`] for an option that is 0; [`TraceError::Io`] when the first read fails.
    pub fn new(input: R, options: &ReadOptions) -> Result<Self, TraceError> {
        options.check()?;
        Ok(Self {
            records: Records::open(input, options.max_line_bytes)?,
            options: options.clone(),
            decoder: None,
            out: Output::default(),
            checker: None,
            labels: Labels::default(),
            requests: 0,
            finished: false,
            ended: false,
        })
    }

    /// Lines read so far, blank ones included.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.records.lines()
    }

    /// The format, once the first record was read.
    #[must_use]
    pub fn format(&self) -> Option<TraceFormat> {
        self.decoder.as_ref().map(|(assumed, _)| assumed.format)
    }

    /// What was noticed so far; complete after the last request.
    #[must_use]
    pub fn notes(&self) -> ReadNotes {
        self.out.notes
    }

    /// Tokens that one id stands for; 0 before the first request.
    #[must_use]
    pub fn block_tokens(&self) -> usize {
        self.out.block_tokens
    }

    /// What is known of the requests so far, and forgets it.
    pub fn take_labels(&mut self) -> Labels {
        let labels = std::mem::take(&mut self.labels);
        if labels.say_nothing() { Labels::default() } else { labels }
    }

    /// Takes in one record; `false` at the end of the input.
    pub(crate) fn take_record(&mut self) -> Result<bool, TraceError> {
        let (assumed, decoder) = match &mut self.decoder {
            Some(known) => known,
            None => {
                let detected = self.options.format.is_none();
                let format = match self.options.format {
                    Some(format) => format,
                    None => TraceFormat::detect(&self.records.look_ahead()?),
                };
                let assumed = Assumed { format, detected };
                self.decoder.insert((assumed, Decoder::new(assumed, &self.options)))
            }
        };
        let documents = assumed.format.has_documents();
        let record = if documents { self.records.next_document()? } else { self.records.next_line()? };
        let Some((text, line)) = record else { return Ok(false) };
        decoder.record(text, line, &mut self.out).map_err(|error| read_as(assumed.format, error))?;
        Ok(true)
    }

    /// Goes on with the records of a further input, in the same format.
    pub(crate) fn go_on_with(&mut self, input: R) -> Result<(), TraceError> {
        self.records = Records::open(input, self.options.max_line_bytes)?;
        Ok(())
    }

    /// Gives what is left, after the last record.
    pub(crate) fn finish(&mut self) -> Result<(), TraceError> {
        self.finished = true;
        let Some((assumed, decoder)) = &mut self.decoder else { return Ok(()) };
        decoder.finish(&mut self.out).map_err(|error| read_as(assumed.format, error))?;
        if self.is_sorting() {
            let (mut latest, mut reordered) = (0.0_f64, 0);
            let ready = self.out.ready.make_contiguous();
            for one in &*ready {
                reordered += u64::from(one.request.timestamp_ms < latest);
                latest = latest.max(one.request.timestamp_ms);
            }
            ready.sort_by(|left, right| left.request.timestamp_ms.total_cmp(&right.request.timestamp_ms));
            self.out.notes.reordered = reordered;
        }
        Ok(())
    }

    /// Whether requests are handed out only when all are there.
    fn is_sorting(&self) -> bool {
        self.options.sort || self.format().is_some_and(TraceFormat::is_sorted_by_reader)
    }

    /// The next request that is ready, checked.
    pub(crate) fn take_request(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        if !self.finished && self.is_sorting() || self.is_full() {
            return Ok(None);
        }
        let Some(ready) = self.out.ready.pop_front() else { return Ok(None) };
        let format = self.format().unwrap_or_default();
        let checker = match &mut self.checker {
            Some(checker) => checker,
            None => {
                let check = self.options.check_prefixes && !format.is_chained_by_reader();
                self.checker.insert(RequestChecker::new(self.out.block_tokens, check)?)
            }
        };
        checker.check(&ready.request, ready.line).map_err(|error| read_as(format, error))?;
        self.labels.push(ready.label());
        self.requests += 1;
        let Ready { request, .. } = ready;
        Ok(Some(request))
    }

    /// Whether as many requests were given as were asked for.
    pub(crate) fn is_full(&self) -> bool {
        self.options.limit.is_some_and(|limit| self.requests >= limit)
    }

    /// The next request; `None` at the end of the input.
    fn read_request(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        loop {
            if let Some(request) = self.take_request()? {
                return Ok(Some(request));
            }
            if self.finished || self.is_full() {
                break;
            }
            if !self.take_record()? {
                self.finish()?;
            }
        }
        if self.requests == 0 { Err(TraceError::Empty { lines: self.lines() }) } else { Ok(None) }
    }
}

/// An error about what a record says, with the format that it was read as; Mooncake's need no such remark.
fn read_as(format: TraceFormat, error: TraceError) -> TraceError {
    match error {
        TraceError::MixedFormats { .. } => error,
        error if format == TraceFormat::Mooncake => error,
        error => TraceError::Format { format, error: Box::new(error) },
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<TraceRequest, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended || self.is_full() {
            return None;
        }
        let next = self.read_request().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

impl<R: BufRead> std::iter::FusedIterator for TraceReader<R> {}

/// A trace, and what was noticed while it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadTrace {
    /// The trace.
    pub trace: Trace,
    /// Its format.
    pub format: TraceFormat,
    /// What was noticed.
    pub notes: ReadNotes,
}

impl<R: BufRead> TraceReader<R> {
    /// A trace of all requests that this reader gave.
    pub(crate) fn read_trace(&mut self, requests: Vec<TraceRequest>) -> ReadTrace {
        let labels = self.take_labels();
        ReadTrace {
            trace: Trace::from_checked(requests, self.out.block_tokens, labels),
            format: self.format().unwrap_or_default(),
            notes: self.out.notes,
        }
    }
}

impl Trace {
    /// Reads the file at `path`, plain or gzip, or the folder; see [`TraceLoader::open`].
    ///
    /// # Errors
    ///
    /// [`TraceError::Open`], and what [`Trace::from_reader`] gives.
    pub fn from_path(path: impl AsRef<Path>, options: &ReadOptions) -> Result<Self, TraceError> {
        Ok(TraceLoader::open(path, options)?.finish()?.trace)
    }

    /// Reads all of `input`, plain or gzip: a locked standard input, a slice, a socket.
    ///
    /// # Errors
    ///
    /// The first error of [`TraceReader`]; no part of the trace is given.
    pub fn from_reader(input: impl BufRead, options: &ReadOptions) -> Result<Self, TraceError> {
        Ok(read_trace(input, options)?.trace)
    }
}

/// Reads all of `input`, and says what was noticed.
///
/// # Errors
///
/// The first error of [`TraceReader`]; no part of the trace is given.
pub fn read_trace(input: impl BufRead, options: &ReadOptions) -> Result<ReadTrace, TraceError> {
    let mut reader = TraceReader::new(input, options)?;
    // Not empty: a reader that ends without a request ends with an error.
    let requests = reader.by_ref().collect::<Result<_, _>>()?;
    Ok(reader.read_trace(requests))
}
