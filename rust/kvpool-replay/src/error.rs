//! The errors of reading and making traces. Each describes what was found, where it was found, and what
//! is allowed.
//!
//! There are three enums: [`TraceError`] (reading and checking), [`ExpandError`] (making tokens), and
//! [`GeneratorError`] (making traces). Every variant has its values as fields, so that a caller need
//! not parse the text. The text is one line, which a user can understand without reading the source.
//!
//! Line numbers start at 1 and count every line of the decompressed input, including blank lines, as an
//! editor does. For a trace built in memory, the number of a request, starting at 1, is used instead.
//!
//! Costs: an error is built only when it is returned. Invalid values are cut to 80 characters, so that
//! no error contains a whole line of the input.

use std::{io, path::PathBuf};

use thiserror::Error;

use crate::format::TraceFormat;

/// The reason why a trace could not be read, or is not a valid trace.
///
/// ```
/// use kvpool_replay::{error::TraceError, reader::{ReadOptions, TraceReader}};
///
/// let line = &br#"{"timestamp": 0, "input_length": 600, "output_length": -3, "hash_ids": [0, 1]}"#[..];
/// let error = TraceReader::new(line, &ReadOptions::default()).unwrap().next().unwrap().unwrap_err();
/// assert_eq!(error.line(), Some(1));
/// assert_eq!(
///     error.to_string(),
///     "line 1: \"output_length\" is -3; allowed: a whole number from 0 to 4294967295"
/// );
/// assert!(matches!(error, TraceError::BadNumber { .. }));
/// ```
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file could not be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// Reading failed.
    #[error("line {line}: reading failed: {source}")]
    Io {
        /// The line that was being read.
        line: u64,
        /// The error of the operating system.
        source: io::Error,
    },
    /// A gzip stream ended early: the download or copy was cut off.
    #[error("line {line}: the gzip stream ends too early; the file is truncated")]
    TruncatedGzip {
        /// The line that was being read.
        line: u64,
    },
    /// A gzip stream is damaged: its header or data are invalid, or its checksum does not match.
    #[error("line {line}: the gzip stream is damaged: {source}")]
    CorruptGzip {
        /// The line that was being read.
        line: u64,
        /// The error of the decoder.
        source: io::Error,
    },
    /// An option of the reader or of a trace is out of range.
    #[error("{option} is {value}; allowed: {allowed}")]
    BadOption {
        /// The option's name.
        option: &'static str,
        /// The value.
        value: usize,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The input has no request: it is empty, or all its lines are blank.
    #[error("the trace is empty: no request in {lines} lines; expected one JSON object a line")]
    Empty {
        /// The number of lines read.
        lines: u64,
    },
    /// A line is longer than the reader allows.
    #[error("line {line}: longer than {limit} bytes; expected one JSON object a line")]
    LineTooLong {
        /// The line.
        line: u64,
        /// The limit, in bytes.
        limit: usize,
    },
    /// A line of the trace is not JSON.
    #[error("line {line}, column {column}: not valid JSON: {reason}")]
    NotJson {
        /// The line.
        line: u64,
        /// The position of the byte in the line, from 1; 0 if the parser does not report one.
        column: usize,
        /// The error of the parser.
        reason: String,
    },
    /// A line is JSON, but not an object.
    #[error("line {line}: {found} instead of an object with {needed}")]
    NotAnObject {
        /// The line.
        line: u64,
        /// The type of the value, such as "an array".
        found: &'static str,
        /// The fields that a record of the format must have.
        needed: String,
    },
    /// A record of the trace lacks a required field.
    #[error("line {line}: \"{field}\" is missing; needed: {needed}")]
    MissingField {
        /// The line.
        line: u64,
        /// The field, with its path in the record: `requests[3].in`.
        field: String,
        /// The fields that a record of the format must have.
        needed: String,
    },
    /// A field has a value that is not a number (or, for `hash_ids`, not an array of numbers).
    #[error("line {line}: \"{field}\" is {found}; allowed: {allowed}")]
    WrongType {
        /// The line.
        line: u64,
        /// The name of the field. For an entry of an array, it includes the index: `hash_ids[3]`.
        field: String,
        /// The type of the value, such as "a string".
        found: &'static str,
        /// The allowed values.
        allowed: &'static str,
    },
    /// A number is negative, fractional, not finite, zero where it must not be, or too large.
    #[error("line {line}: \"{field}\" is {value}; allowed: {allowed}")]
    BadNumber {
        /// The line.
        line: u64,
        /// The name of the field. For an entry of an array, it includes the index: `hash_ids[3]`.
        field: String,
        /// The refused number, as the reader has read it.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// The number of block ids in `hash_ids` is not `ceil(input_length / block_tokens)`. If earlier lines of
    /// the trace have no id for a partial last block, the expected number is `floor(input_length /
    /// block_tokens)`.
    #[error(
        "line {line}: {found} hash_ids for input_length {input_length}; expected {expected} at \
         {block_tokens} tokens a block{}",
        hint(*found, *expected, *convention_line, *likely_block_tokens)
    )]
    BlockCount {
        /// The line.
        line: u64,
        /// The number of prompt tokens.
        input_length: u32,
        /// The number of block ids in the line.
        found: usize,
        /// The number of ids that the length requires.
        expected: usize,
        /// The block size that was assumed, in tokens.
        block_tokens: usize,
        /// The first line that shows whether a partial last block has an id; `None` if no earlier line
        /// shows it.
        convention_line: Option<u64>,
        /// A common block size that would fit this line, if there is one.
        likely_block_tokens: Option<usize>,
    },
    /// A request arrives earlier than the request before it in the trace.
    #[error(
        "line {line}: timestamp {} ms is before {} ms of line {previous_line}; sort the trace by timestamp",
        time(*timestamp_ms), time(*previous_ms)
    )]
    TimeBackwards {
        /// The line.
        line: u64,
        /// The arrival time of this request, in ms.
        timestamp_ms: f64,
        /// The line of the previous request.
        previous_line: u64,
        /// The arrival time of the previous request, in ms.
        previous_ms: f64,
    },
    /// An id occurs twice in one request. A prefix id identifies a whole prefix, so it cannot repeat.
    #[error(
        "line {line}: id {id} occurs at hash_ids[{first}] and hash_ids[{second}]; an id names a \
         whole prefix and cannot repeat"
    )]
    DuplicateId {
        /// The line.
        line: u64,
        /// The id.
        id: u64,
        /// The first position of the id, from 0.
        first: usize,
        /// The second position of the id, from 0.
        second: usize,
    },
    /// An id follows two different ids. Then equal ids would not mean equal prefixes.
    #[error(
        "line {line}: id {id} follows {}, but in line {first_line} it follows {}; an id names a \
         whole prefix and has one parent",
        parent_name(*parent), parent_name(*first_parent)
    )]
    ParentConflict {
        /// The line.
        line: u64,
        /// The id.
        id: u64,
        /// The id before it in this line; `None` if it is the first.
        parent: Option<u64>,
        /// The line where the id was first seen.
        first_line: u64,
        /// The id before it in that line; `None` if it was the first.
        first_parent: Option<u64>,
    },
    /// In recorded events, a block hash follows two different blocks.
    #[error(
        "line {line}: block {hash} was stored after another block before; a block hash names a whole prefix"
    )]
    HashConflict {
        /// The line.
        line: u64,
        /// The hash, as recorded.
        hash: String,
    },
    /// No format has this name.
    #[error("unknown format {name:?}, known: {}", known_formats())]
    UnknownFormat {
        /// The name.
        name: String,
    },
    /// A record has another format than the first record.
    #[error("line {line}: a record of {found} in a trace that begins as {assumed}; a trace has one format")]
    MixedFormats {
        /// The line.
        line: u64,
        /// The format that the record looks like.
        found: TraceFormat,
        /// The format of the first record.
        assumed: TraceFormat,
    },
    /// An error in a record of a format other than Mooncake's. It includes the name of that format.
    #[error("{error} (read as {format})")]
    Format {
        /// The format.
        format: TraceFormat,
        /// The error.
        error: Box<TraceError>,
    },
    /// An error in one file of a folder that is read as a trace.
    #[error("{}: {error}", path.display())]
    InFile {
        /// The path of the file.
        path: PathBuf,
        /// The error.
        error: Box<TraceError>,
    },
    /// Blocks cannot be converted to this size, because neither size divides the other.
    #[error(
        "{}blocks of {from} tokens cannot be made into blocks of {to}: one must divide the other",
        line.map_or_else(String::new, |line| format!("line {line}: "))
    )]
    BlockSizes {
        /// The line of the first request with such blocks; `None` for a trace in memory.
        line: Option<u64>,
        /// The size of the blocks of the trace or request, in tokens.
        from: usize,
        /// The size of the blocks to make, in tokens: the requested size, or the largest size in the
        /// trace.
        to: usize,
    },
    /// Regrouping or reconstruction would make more block references than a trace may have.
    #[error("more than {limit} block references in blocks of {to} tokens; larger blocks take less")]
    TooManyBlocks {
        /// The size of the blocks, in tokens.
        to: usize,
        /// The limit, in references.
        limit: u64,
    },
    /// There is not enough memory for the block references of a request. A short line can represent
    /// many references.
    #[error("no memory for {references} block references in blocks of {to} tokens; larger blocks take less")]
    NoMemory {
        /// The number of references of the request.
        references: u64,
        /// The size of the blocks, in tokens.
        to: usize,
    },
    /// The number of labels is neither 0 nor the number of requests.
    #[error("{labels} labels for {requests} requests; allowed: one per request, or none")]
    LabelCount {
        /// The number of labels that the caller passed.
        labels: usize,
        /// The number of requests of the trace.
        requests: usize,
    },
    /// The folder has no file that could be part of a trace.
    #[error("{}: no .json or .jsonl file, plain or .gz, in this folder", path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// The format can be read, but not written.
    #[error("{format} is not written; written are: mooncake, mooncake-sessions, bailian")]
    NotWritten {
        /// The format.
        format: TraceFormat,
    },
    /// Writing failed.
    #[error("writing failed: {source}")]
    Write {
        /// The error of the operating system.
        source: io::Error,
    },
}

impl TraceError {
    /// Returns the line that the error refers to, from 1. For a trace in memory, it is the number of
    /// the request.
    #[must_use]
    pub fn line(&self) -> Option<u64> {
        match *self {
            Self::Open { .. }
            | Self::BadOption { .. }
            | Self::Empty { .. }
            | Self::UnknownFormat { .. }
            | Self::TooManyBlocks { .. }
            | Self::NoMemory { .. }
            | Self::LabelCount { .. }
            | Self::EmptyFolder { .. }
            | Self::NotWritten { .. }
            | Self::Write { .. } => None,
            Self::BlockSizes { line, .. } => line,
            Self::Format { ref error, .. } | Self::InFile { ref error, .. } => error.line(),
            Self::Io { line, .. }
            | Self::TruncatedGzip { line }
            | Self::CorruptGzip { line, .. }
            | Self::LineTooLong { line, .. }
            | Self::NotJson { line, .. }
            | Self::NotAnObject { line, .. }
            | Self::MissingField { line, .. }
            | Self::WrongType { line, .. }
            | Self::BadNumber { line, .. }
            | Self::BlockCount { line, .. }
            | Self::TimeBackwards { line, .. }
            | Self::DuplicateId { line, .. }
            | Self::ParentConflict { line, .. }
            | Self::HashConflict { line, .. }
            | Self::MixedFormats { line, .. } => Some(line),
        }
    }

    /// Returns the underlying error, without the format and the file that it was found in.
    #[must_use]
    pub fn root(&self) -> &Self {
        match self {
            Self::Format { error, .. } | Self::InFile { error, .. } => error.root(),
            other => other,
        }
    }
}

/// The reason why the tokens of a request could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExpandError {
    /// The block size is 0 tokens.
    #[error("block_tokens is 0; allowed: 1 or more")]
    ZeroBlockTokens,
    /// The ids do not cover the prompt, or exceed it.
    #[error(
        "{found} ids for {input_length} tokens; expected {expected} at {block_tokens} tokens a \
         block (or one less, without the partial block)"
    )]
    BlockCount {
        /// The number of prompt tokens.
        input_length: u32,
        /// The number of ids.
        found: usize,
        /// The number of ids that the length requires.
        expected: usize,
        /// The block size, in tokens.
        block_tokens: usize,
    },
    /// With blocks of one token, an id of more than 32 bits does not fit into the token.
    #[error("id {id} does not fit one token; with 1 token a block, allowed: ids up to 4294967295")]
    IdTooLarge {
        /// The id.
        id: u64,
    },
    /// There is not enough memory for the tokens of a request.
    #[error("no memory for {tokens} more tokens")]
    OutOfMemory {
        /// The number of tokens for which there was no memory.
        tokens: usize,
    },
}

/// The reason why a trace could not be generated.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GeneratorError {
    /// A parameter of the generator is out of range.
    #[error("{name} is {value}; allowed: {allowed}")]
    Parameter {
        /// The name of the parameter, as in the configuration.
        name: &'static str,
        /// The value.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
}

/// Returns the last part of the message about a wrong number of ids. It names the line that shows
/// whether partial blocks have ids, if that may be the cause, or a block size that would fit.
fn hint(found: usize, expected: usize, convention_line: Option<u64>, likely: Option<usize>) -> String {
    match (convention_line, likely) {
        (Some(line), _) if found == expected + 1 => {
            format!(", as line {line} gives no id to its partial last block")
        }
        (Some(line), _) if found + 1 == expected => {
            format!(", as line {line} gives an id to its partial last block")
        }
        (_, Some(tokens)) => {
            format!("; the count fits {tokens}-token blocks: try --trace-block-size {tokens}")
        }
        _ => String::new(),
    }
}

/// Formats a time in ms. From 1e15 on it uses an exponent, because such a number could otherwise have
/// up to 309 digits.
fn time(ms: f64) -> String {
    if ms < 1e15 { ms.to_string() } else { format!("{ms:e}") }
}

fn known_formats() -> String {
    let names: Vec<_> = TraceFormat::ALL.iter().map(|format| format.name()).collect();
    names.join(", ")
}

/// Describes the id before an id, or that the id is the first.
fn parent_name(parent: Option<u64>) -> String {
    parent.map_or_else(|| "nothing (it is the first id)".to_owned(), |id| format!("id {id}"))
}
