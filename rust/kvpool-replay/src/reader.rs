//! Reading traces: Mooncake JSONL, plain or gzip, from a file or any buffered reader.
//!
//! Owns the way from bytes to checked requests: [`TraceReader`] streams, [`Trace::from_path`] and
//! [`Trace::from_reader`] collect. Gzip is told by its first two bytes and not by a file's name; several gzip
//! members one after another are one stream. A byte order mark, blank lines, `\r\n` and unknown fields are
//! passed over. Anything else that is not a request is a typed error naming line, field and value; no input
//! makes the reader panic.
//!
//! Two passes, one of them rare: a good line is decoded straight into its struct. When that fails, the line
//! is parsed again as a JSON value, only to say exactly what is wrong with it. So good lines pay nothing for
//! the quality of the messages.
//!
//! Invariants: a request comes out only after [`RequestChecker`] has passed it; after an error or the end the
//! iterator gives `None` for good; at most one line is held, of at most [`ReadOptions::max_line_bytes`].
//!
//! Costs, per block reference: decoding 30 to 50 ns (gzip included), the check of prefixes 10 ns where most
//! ids repeat and 45 ns where most are new.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Chain, Cursor, Read},
    path::Path,
};

use flate2::bufread::MultiGzDecoder;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::TraceError,
    trace::{DEFAULT_BLOCK_TOKENS, Trace, TraceRequest},
    validate::RequestChecker,
};

/// What every gzip stream starts with.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
/// Of files and of decompressed data, in bytes.
const BUFFER_BYTES: usize = 1 << 17;

const WHOLE_U32: &str = "a whole number from 0 to 4294967295";
const WHOLE_U64: &str = "a whole number from 0 to 18446744073709551615";
const TIME: &str = "ms, 0 or more";

/// How to read a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// Tokens that one id stands for, 1 or more. Default 512, Mooncake's.
    pub block_tokens: usize,
    /// Stop after this many requests, 1 or more; the rest of the input is not read. Default: no limit.
    pub limit: Option<usize>,
    /// Check that every id has one parent. Default on; off saves 40 to 80 bytes per different id.
    pub check_prefixes: bool,
    /// The longest line allowed, in bytes, 1 or more. Bounds memory on inputs that are no traces at all.
    /// Default 64 MiB, about 7 million ids.
    pub max_line_bytes: usize,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            block_tokens: DEFAULT_BLOCK_TOKENS,
            limit: None,
            check_prefixes: true,
            max_line_bytes: 64 << 20,
        }
    }
}

/// A stream of requests, read and checked one at a time.
///
/// ```
/// use kvpool_replay::reader::{ReadOptions, TraceReader};
///
/// let file = br#"{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}
/// {"timestamp": 40, "input_length": 512, "output_length": 7, "hash_ids": [0], "session": "ignored"}
/// "#;
/// let requests: Result<Vec<_>, _> =
///     TraceReader::new(&file[..], &ReadOptions::default()).unwrap().collect();
/// let requests = requests.unwrap();
/// assert_eq!(requests[0].hash_ids[..], [0, 1]);
/// assert_eq!(requests[1].timestamp_ms, 40.0);
/// ```
#[derive(Debug)]
pub struct TraceReader<R> {
    source: Source<R>,
    checker: RequestChecker,
    line: Vec<u8>,
    line_number: u64,
    requests: usize,
    limit: usize,
    max_line_bytes: usize,
    ended: bool,
}

impl<R: BufRead> TraceReader<R> {
    /// A reader over `input`, whose first two bytes are read here.
    ///
    /// # Errors
    ///
    /// [`TraceError::BadOption`] for an option that is 0; [`TraceError::Io`] when the first read fails.
    pub fn new(input: R, options: &ReadOptions) -> Result<Self, TraceError> {
        let limit = options.limit.unwrap_or(usize::MAX);
        for (option, value, allowed) in [
            ("limit", limit, "1 or more requests"),
            ("max_line_bytes", options.max_line_bytes, "1 or more bytes"),
        ] {
            if value == 0 {
                return Err(TraceError::BadOption { option, value, allowed });
            }
        }
        Ok(Self {
            checker: RequestChecker::new(options.block_tokens, options.check_prefixes)?,
            source: Source::open(input).map_err(|source| TraceError::Io { line: 1, source })?,
            line: Vec::new(),
            line_number: 0,
            requests: 0,
            limit,
            max_line_bytes: options.max_line_bytes,
            ended: false,
        })
    }

    /// Lines read so far, blank ones included.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.line_number
    }

    /// The next request; `None` at the end of the input.
    fn read_request(&mut self) -> Result<Option<TraceRequest>, TraceError> {
        while self.read_line()? {
            let mut text = self.line.as_slice();
            if self.line_number == 1 {
                text = text.strip_prefix(&BYTE_ORDER_MARK).unwrap_or(text);
            }
            // `\r` goes here as well.
            let text = text.trim_ascii();
            if text.is_empty() {
                continue;
            }
            let request = decode(text, self.line_number)?;
            self.checker.check(&request, self.line_number)?;
            self.requests += 1;
            return Ok(Some(request));
        }
        if self.requests == 0 { Err(TraceError::Empty { lines: self.line_number }) } else { Ok(None) }
    }

    /// Reads one line into the buffer; `false` at the end of the input.
    fn read_line(&mut self) -> Result<bool, TraceError> {
        self.line.clear();
        let line = self.line_number + 1;
        // One byte more than allowed tells a line that is too long from one that just fits.
        let most = (self.max_line_bytes as u64).saturating_add(1);
        match self.source.read_line(most, &mut self.line) {
            Ok(0) => return Ok(false),
            Ok(_) => {}
            Err(source) => return Err(self.source.explain(source, line)),
        }
        self.line_number = line;
        let text = self.line.strip_suffix(b"\n").unwrap_or(&self.line);
        if text.len() > self.max_line_bytes {
            return Err(TraceError::LineTooLong { line, limit: self.max_line_bytes });
        }
        Ok(true)
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<TraceRequest, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended || self.requests >= self.limit {
            return None;
        }
        let next = self.read_request().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

impl<R: BufRead> std::iter::FusedIterator for TraceReader<R> {}

impl Trace {
    /// Reads the file at `path`, plain or gzip.
    ///
    /// # Errors
    ///
    /// [`TraceError::Open`], and what [`Trace::from_reader`] gives.
    pub fn from_path(path: impl AsRef<Path>, options: &ReadOptions) -> Result<Self, TraceError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|source| TraceError::Open { path: path.to_owned(), source })?;
        Self::from_reader(BufReader::with_capacity(BUFFER_BYTES, file), options)
    }

    /// Reads all of `input`, plain or gzip: a locked standard input, a slice, a socket.
    ///
    /// # Errors
    ///
    /// The first error of [`TraceReader`]; no part of the trace is given.
    pub fn from_reader(input: impl BufRead, options: &ReadOptions) -> Result<Self, TraceError> {
        // Not empty: a reader that ends without a request ends with an error.
        let requests = TraceReader::new(input, options)?.collect::<Result<_, _>>()?;
        Ok(Self::from_checked(requests, options.block_tokens))
    }
}

/// The input with its first bytes put back.
type Whole<R> = Chain<Cursor<Vec<u8>>, R>;

/// Where lines come from.
#[derive(Debug)]
enum Source<R> {
    Plain(Whole<R>),
    Gzip(BufReader<MultiGzDecoder<Whole<R>>>),
}

impl<R: BufRead> Source<R> {
    fn open(mut input: R) -> io::Result<Self> {
        // A pipe may give one byte at a time, so its buffer cannot be relied on to hold both.
        let mut start = Vec::with_capacity(GZIP_MAGIC.len());
        input.by_ref().take(GZIP_MAGIC.len() as u64).read_to_end(&mut start)?;
        let gzip = start == GZIP_MAGIC;
        let whole = Cursor::new(start).chain(input);
        Ok(if gzip {
            Self::Gzip(BufReader::with_capacity(BUFFER_BYTES, MultiGzDecoder::new(whole)))
        } else {
            Self::Plain(whole)
        })
    }

    /// Appends up to and including the next `\n`, or `most` bytes.
    fn read_line(&mut self, most: u64, line: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Plain(input) => input.take(most).read_until(b'\n', line),
            Self::Gzip(input) => input.take(most).read_until(b'\n', line),
        }
    }

    /// What a failed read of `line` means.
    fn explain(&self, source: io::Error, line: u64) -> TraceError {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        match (self, source.kind()) {
            (Self::Gzip(_), UnexpectedEof) => TraceError::TruncatedGzip { line },
            // The decoder reports bad headers and bad checksums as the one, bad data as the other.
            (Self::Gzip(_), InvalidData | InvalidInput) => TraceError::CorruptGzip { line, source },
            _ => TraceError::Io { line, source },
        }
    }
}

/// A line as the decoder sees it. Other fields are skipped without being stored.
#[derive(Deserialize)]
struct RawRequest {
    timestamp: f64,
    input_length: u32,
    output_length: u32,
    hash_ids: Vec<u64>,
}

/// Decodes one line, without the blanks around it.
fn decode(text: &[u8], line: u64) -> Result<TraceRequest, TraceError> {
    // A struct also decodes from an array of its fields; only an object is a request.
    if text.first() != Some(&b'{') {
        return Err(diagnose(text, line, None));
    }
    match serde_json::from_slice::<RawRequest>(text) {
        Ok(raw) => Ok(TraceRequest {
            timestamp_ms: raw.timestamp,
            input_length: raw.input_length,
            output_length: raw.output_length,
            hash_ids: raw.hash_ids.into_boxed_slice(),
        }),
        Err(error) => Err(diagnose(text, line, Some(&error))),
    }
}

/// Says what is wrong with a line that did not decode.
#[cold]
fn diagnose(text: &[u8], line: u64, decoding: Option<&serde_json::Error>) -> TraceError {
    let value = match serde_json::from_slice::<Value>(text) {
        Ok(value) => value,
        Err(error) => return not_json(line, &error),
    };
    let Value::Object(fields) = &value else {
        return TraceError::NotAnObject { line, found: kind(&value) };
    };
    for (field, check) in [
        ("timestamp", check_time as fn(&Value, String, u64) -> Option<TraceError>),
        ("input_length", check_u32),
        ("output_length", check_u32),
        ("hash_ids", check_ids),
    ] {
        let Some(value) = fields.get(field) else {
            return TraceError::MissingField { line, field };
        };
        if let Some(error) = check(value, field.to_owned(), line) {
            return error;
        }
    }
    // What is left is a field that stands twice: as a value the later one wins, as a request it is refused.
    decoding.map_or_else(
        || TraceError::NotJson { line, column: 0, reason: "not a request".to_owned() },
        |error| not_json(line, error),
    )
}

fn not_json(line: u64, error: &serde_json::Error) -> TraceError {
    // The parser ends its message with its own line number, which is always 1 here.
    let reason = error.to_string();
    let reason = reason.split_once(" at line ").map_or(reason.as_str(), |(before, _)| before);
    TraceError::NotJson { line, column: error.column(), reason: shorten(reason) }
}

fn check_time(value: &Value, field: String, line: u64) -> Option<TraceError> {
    match value.as_f64() {
        Some(ms) if ms.is_finite() && ms >= 0.0 => None,
        _ => Some(bad_value(value, field, line, TIME)),
    }
}

fn check_u32(value: &Value, field: String, line: u64) -> Option<TraceError> {
    let fits = value.as_u64().is_some_and(|number| u32::try_from(number).is_ok());
    (!fits).then(|| bad_value(value, field, line, WHOLE_U32))
}

fn check_ids(value: &Value, field: String, line: u64) -> Option<TraceError> {
    let Value::Array(ids) = value else {
        let allowed = "an array of whole numbers, one per block";
        return Some(TraceError::WrongType { line, field, found: kind(value), allowed });
    };
    let (position, id) = ids.iter().enumerate().find(|(_, id)| id.as_u64().is_none())?;
    Some(bad_value(id, format!("{field}[{position}]"), line, WHOLE_U64))
}

/// The error for a value that is no number, or a number out of range.
fn bad_value(value: &Value, field: String, line: u64, allowed: &'static str) -> TraceError {
    match value {
        Value::Number(number) => {
            TraceError::BadNumber { line, field, value: shorten(&number.to_string()), allowed }
        }
        _ => TraceError::WrongType { line, field, found: kind(value), allowed },
    }
}

/// A JSON value's type in words.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The first 80 characters.
fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}
