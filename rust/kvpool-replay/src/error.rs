//! The errors of the trace side: what was found, where, and what is allowed.
//!
//! Owns three enums, one per kind of work: [`TraceError`] (reading and checking), [`ExpandError`] (making
//! tokens), [`GeneratorError`] (making traces). Every variant carries its figures as fields, so that a caller
//! need not parse the text, and its text is one line that a person can act on without opening the source.
//!
//! Line numbers are 1-based and count every line of the (decompressed) input, blank ones included: they are
//! what an editor shows. For a trace built in memory they are request numbers, the first being 1.
//!
//! Costs: errors are made once, on the way out; none is made on the path of a good line. Offending values are
//! cut to 80 characters, so that no error holds a line of the input.

use std::{io, path::PathBuf};

use thiserror::Error;

use crate::format::TraceFormat;

/// Why a trace could not be read, or is not a valid trace.
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
        /// What the operating system said.
        source: io::Error,
    },
    /// Reading failed.
    #[error("line {line}: reading failed: {source}")]
    Io {
        /// The line that was being read.
        line: u64,
        /// What the operating system said.
        source: io::Error,
    },
    /// A gzip stream ended in its middle: a download or copy that was cut.
    #[error("line {line}: the gzip stream ends too early; the file is truncated")]
    TruncatedGzip {
        /// The line that was being read.
        line: u64,
    },
    /// A gzip stream is damaged: bad header, bad data, or a checksum that does not match.
    #[error("line {line}: the gzip stream is damaged: {source}")]
    CorruptGzip {
        /// The line that was being read.
        line: u64,
        /// What the decoder said.
        source: io::Error,
    },
    /// An option of the reader or of a trace is out of range.
    #[error("{option} is {value}; allowed: {allowed}")]
    BadOption {
        /// The option's name.
        option: &'static str,
        /// What it was.
        value: usize,
        /// What it may be.
        allowed: &'static str,
    },
    /// No request in the input: it is empty, or all its lines are blank.
    #[error("the trace is empty: no request in {lines} lines; expected one JSON object a line")]
    Empty {
        /// Lines read.
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
    /// A line is not JSON.
    #[error("line {line}, column {column}: not valid JSON: {reason}")]
    NotJson {
        /// The line.
        line: u64,
        /// The byte in the line, from 1 (0 where the parser names none).
        column: usize,
        /// What the parser said.
        reason: String,
    },
    /// A line is JSON, but not an object.
    #[error("line {line}: {found} instead of an object with {needed}")]
    NotAnObject {
        /// The line.
        line: u64,
        /// What it is, such as "an array".
        found: &'static str,
        /// The fields that a record of the format must have.
        needed: String,
    },
    /// A field is missing.
    #[error("line {line}: \"{field}\" is missing; needed: {needed}")]
    MissingField {
        /// The line.
        line: u64,
        /// The field, with its place in the record: `requests[3].in`.
        field: String,
        /// The fields that a record of the format must have.
        needed: String,
    },
    /// A field holds something other than a number (or, for `hash_ids`, an array of numbers).
    #[error("line {line}: \"{field}\" is {found}; allowed: {allowed}")]
    WrongType {
        /// The line.
        line: u64,
        /// The field, with the index for an entry: `hash_ids[3]`.
        field: String,
        /// What it is, such as "a string".
        found: &'static str,
        /// What it may be.
        allowed: &'static str,
    },
    /// A number is negative, fractional, not finite, zero where it must not be, or too large.
    #[error("line {line}: \"{field}\" is {value}; allowed: {allowed}")]
    BadNumber {
        /// The line.
        line: u64,
        /// The field, with the index for an entry: `hash_ids[3]`.
        field: String,
        /// The number, as read.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// The number of `hash_ids` is not `ceil(input_length / block_tokens)`; or, in a trace whose earlier
    /// lines give no id to a partial last block, not `floor(input_length / block_tokens)`.
    #[error(
        "line {line}: {found} hash_ids for input_length {input_length}; expected {expected} at \
         {block_tokens} tokens a block{}",
        hint(*found, *expected, *convention_line, *likely_block_tokens)
    )]
    BlockCount {
        /// The line.
        line: u64,
        /// Prompt tokens.
        input_length: u32,
        /// Ids in the line.
        found: usize,
        /// Ids that the length asks for.
        expected: usize,
        /// Block size assumed, in tokens.
        block_tokens: usize,
        /// The first line that shows whether a partial last block has an id; `None` where none did before.
        convention_line: Option<u64>,
        /// The usual block size that would fit this line, if one does.
        likely_block_tokens: Option<usize>,
    },
    /// A request arrives before the one ahead of it.
    #[error(
        "line {line}: timestamp {} ms is before {} ms of line {previous_line}; sort the trace by timestamp",
        time(*timestamp_ms), time(*previous_ms)
    )]
    TimeBackwards {
        /// The line.
        line: u64,
        /// Its time, in ms.
        timestamp_ms: f64,
        /// The request before.
        previous_line: u64,
        /// Its time, in ms.
        previous_ms: f64,
    },
    /// The same id twice in one request: a chained id names a whole prefix, so it cannot repeat.
    #[error(
        "line {line}: id {id} stands at hash_ids[{first}] and hash_ids[{second}]; an id names a \
         whole prefix and cannot repeat"
    )]
    DuplicateId {
        /// The line.
        line: u64,
        /// The id.
        id: u64,
        /// Where it stands first, from 0.
        first: usize,
        /// Where it stands again, from 0.
        second: usize,
    },
    /// The same id after two different ids: equal ids would not mean equal prefixes.
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
        /// The id before it in this line; `None` where it stands first.
        parent: Option<u64>,
        /// The line where the id was first seen.
        first_line: u64,
        /// The id before it there; `None` where it stood first.
        first_parent: Option<u64>,
    },
    /// The same block hash behind two different blocks, in recorded events.
    #[error(
        "line {line}: block {hash} was stored behind another block before; a block hash names a whole prefix"
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
    /// A record of another format: a trace has one.
    #[error("line {line}: a record of {found} in a trace that begins as {assumed}; a trace has one format")]
    MixedFormats {
        /// The line.
        line: u64,
        /// The format that the record looks like.
        found: TraceFormat,
        /// The format of the first record.
        assumed: TraceFormat,
    },
    /// What is wrong with a record, and what it was read as; for formats other than Mooncake's.
    #[error("{error} (read as {format})")]
    Format {
        /// The format.
        format: TraceFormat,
        /// What is wrong.
        error: Box<TraceError>,
    },
    /// What is wrong with a file of a folder.
    #[error("{}: {error}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        error: Box<TraceError>,
    },
    /// Blocks cannot be made into blocks of this size: neither size divides the other.
    #[error(
        "{}blocks of {from} tokens cannot be made into blocks of {to}: one must divide the other",
        line.map_or_else(String::new, |line| format!("line {line}: "))
    )]
    BlockSizes {
        /// The line of the first request with such blocks; `None` for a trace in memory.
        line: Option<u64>,
        /// Tokens of its blocks.
        from: usize,
        /// Tokens of the blocks to make: what was asked for, or the largest of the trace.
        to: usize,
    },
    /// More block references than a trace may get by regrouping or reconstruction.
    #[error("more than {limit} block references in blocks of {to} tokens; larger blocks take less")]
    TooManyBlocks {
        /// Tokens of the blocks.
        to: usize,
        /// The limit, in references.
        limit: u64,
    },
    /// No memory for the block references of a request: a short line can stand for many.
    #[error("no memory for {references} block references in blocks of {to} tokens; larger blocks take less")]
    NoMemory {
        /// References of the request.
        references: u64,
        /// Tokens of the blocks.
        to: usize,
    },
    /// As many labels as requests, or none.
    #[error("{labels} labels for {requests} requests; allowed: one per request, or none")]
    LabelCount {
        /// Labels.
        labels: usize,
        /// Requests.
        requests: usize,
    },
    /// A folder without a file that could be part of a trace.
    #[error("{}: no .json or .jsonl file, plain or .gz, in this folder", path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A format that is read and not written.
    #[error("{format} is not written; written are: mooncake, mooncake-sessions, bailian")]
    NotWritten {
        /// The format.
        format: TraceFormat,
    },
    /// Writing failed.
    #[error("writing failed: {source}")]
    Write {
        /// What the operating system said.
        source: io::Error,
    },
}

impl TraceError {
    /// The line (or request number, for a trace in memory) that the error is about, from 1.
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

    /// What is wrong, without the format and the file that it was found in.
    #[must_use]
    pub fn root(&self) -> &Self {
        match self {
            Self::Format { error, .. } | Self::InFile { error, .. } => error.root(),
            other => other,
        }
    }
}

/// Why the tokens of a request could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ExpandError {
    /// A block of 0 tokens.
    #[error("block_tokens is 0; allowed: 1 or more")]
    ZeroBlockTokens,
    /// The ids do not cover the prompt, or go beyond it.
    #[error(
        "{found} ids for {input_length} tokens; expected {expected} at {block_tokens} tokens a \
         block (or one less, without the partial block)"
    )]
    BlockCount {
        /// Prompt tokens.
        input_length: u32,
        /// Ids given.
        found: usize,
        /// Ids that the length asks for.
        expected: usize,
        /// Block size, in tokens.
        block_tokens: usize,
    },
    /// One token of 32 bits cannot tell all 64-bit ids apart.
    #[error("id {id} does not fit one token; with 1 token a block, allowed: ids up to 4294967295")]
    IdTooLarge {
        /// The id.
        id: u64,
    },
    /// The buffer could not grow.
    #[error("no memory for {tokens} more tokens")]
    OutOfMemory {
        /// Tokens asked for.
        tokens: usize,
    },
}

/// Why a generator could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GeneratorError {
    /// A parameter is out of range.
    #[error("{name} is {value}; allowed: {allowed}")]
    Parameter {
        /// The parameter, as the field of the configuration is called.
        name: &'static str,
        /// What it was.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
}

/// The end of a block-count message: the line that set the rule where that is the question, or a block size
/// that would fit.
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

/// A time as a file holds it, and not with all of its up to 309 digits.
fn time(ms: f64) -> String {
    if ms < 1e15 { ms.to_string() } else { format!("{ms:e}") }
}

/// All names of formats.
fn known_formats() -> String {
    let names: Vec<_> = TraceFormat::ALL.iter().map(|format| format.name()).collect();
    names.join(", ")
}

/// A parent in words.
fn parent_name(parent: Option<u64>) -> String {
    parent.map_or_else(|| "nothing (it stands first)".to_owned(), |id| format!("id {id}"))
}
