//! Reads traces from a file, a folder or any buffered reader, plain or gzip, in any
//! [format](crate::formats).
//!
//! [`TraceReader`] returns checked requests one at a time, and [`Trace::from_path`] and
//! [`Trace::from_reader`] collect them. [`TraceLoader`] reads files in slices, so that a caller can
//! show progress.
//!
//! Gzip is detected by the first two bytes, not by the name of the file. Several gzip members one after
//! another are one stream. A byte order mark, blank lines, `\r\n` and unknown fields are ignored.
//! Anything else that is not a record gives a typed error with the line, field and value. No input
//! makes the reader panic.
//!
//! Invariants: a request is returned only after [`RequestChecker`] has accepted it. Requests are
//! returned in order of arrival. After an error or the end, the iterator always returns `None`. If a
//! format is in order of arrival, only one record is in memory, of at most
//! [`ReadOptions::max_line_bytes`]. Traces in other formats are completely in memory, because the
//! reader has to sort them.
//!
//! Costs per block reference: 30 to 50 ns for decoding (gzip included). The check of prefixes takes 10
//! ns if most ids repeat, and 45 ns if most are new. Chaining ids, in formats that need it, costs the
//! same.

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

/// A stream of requests that are read and checked one at a time.
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
    /// The format and its decoder. `None` until the first record was scanned.
    decoder: Option<(Assumed, Decoder)>,
    out: Output,
    checker: Option<RequestChecker>,
    labels: Labels,
    requests: usize,
    /// Whether the decoder has returned all its requests.
    finished: bool,
    ended: bool,
}

impl<R: BufRead> TraceReader<R> {
    /// Makes a reader over `input`, and reads its first two bytes.
    ///
    /// # Errors
    ///
    /// [`TraceError::BadOption`] for an option that is 0; [`TraceError::Io`] if the first read fails.
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

    /// The number of lines read so far, including blank ones.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.records.lines()
    }

    /// The format; `None` before the first record was read.
    #[must_use]
    pub fn format(&self) -> Option<TraceFormat> {
        self.decoder.as_ref().map(|(assumed, _)| assumed.format)
    }

    /// The reader's notes so far: what it observed and converted. They are complete after the last
    /// request.
    #[must_use]
    pub fn notes(&self) -> ReadNotes {
        self.out.notes
    }

    /// The number of tokens per block id; 0 before the first request.
    #[must_use]
    pub fn block_tokens(&self) -> usize {
        self.out.block_tokens
    }

    /// Returns the labels of the requests returned so far, and removes them from the reader.
    pub fn take_labels(&mut self) -> Labels {
        let labels = std::mem::take(&mut self.labels);
        if labels.are_all_empty() { Labels::default() } else { labels }
    }

    /// Decodes one record. Returns `false` at the end of the input.
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

    /// Continues with the records of another input, in the same format.
    pub(crate) fn continue_with(&mut self, input: R) -> Result<(), TraceError> {
        self.records = Records::open(input, self.options.max_line_bytes)?;
        Ok(())
    }

    /// Completes the requests after the last record, and sorts them if necessary.
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

    /// Whether the reader sorts requests, so that it returns them only after all were read.
    fn is_sorting(&self) -> bool {
        self.options.sort || self.format().is_some_and(TraceFormat::is_sorted_by_reader)
    }

    /// Returns the next request that is ready, after checking it.
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

    pub(crate) fn is_full(&self) -> bool {
        self.options.limit.is_some_and(|limit| self.requests >= limit)
    }

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

/// Adds the name of the format to an error in a record, except for Mooncake's records.
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

/// A trace, with the notes of the reader about it.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadTrace {
    /// The trace.
    pub trace: Trace,
    /// The format of the trace.
    pub format: TraceFormat,
    /// The notes of the reader.
    pub notes: ReadNotes,
}

impl<R: BufRead> TraceReader<R> {
    /// Makes a trace of `requests`, which are all requests that this reader returned.
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
    /// Reads a trace from a file, plain or gzip, or from a folder; see [`TraceLoader::open`].
    ///
    /// # Errors
    ///
    /// [`TraceError::Open`], and the errors of [`Trace::from_reader`].
    pub fn from_path(path: impl AsRef<Path>, options: &ReadOptions) -> Result<Self, TraceError> {
        Ok(TraceLoader::open(path, options)?.finish()?.trace)
    }

    /// Reads a trace from all of `input`, plain or gzip: a locked standard input, a slice, a socket.
    ///
    /// # Errors
    ///
    /// The first error of [`TraceReader`]. No part of the trace is returned then.
    pub fn from_reader(input: impl BufRead, options: &ReadOptions) -> Result<Self, TraceError> {
        Ok(read_trace(input, options)?.trace)
    }
}

/// Reads a trace from all of `input`, and returns it with the notes of the reader.
///
/// # Errors
///
/// The first error of [`TraceReader`]. No part of the trace is returned then.
pub fn read_trace(input: impl BufRead, options: &ReadOptions) -> Result<ReadTrace, TraceError> {
    let mut reader = TraceReader::new(input, options)?;
    // There is at least one request, because a reader without a request returns an error.
    let requests = reader.by_ref().collect::<Result<_, _>>()?;
    Ok(reader.read_trace(requests))
}
