//! Reads records from plain or gzip input, as lines or as JSON documents.
//!
//! [`Source`] reads bytes, and detects gzip by the first two bytes. [`Records`] reads one record at a
//! time, with the line in which it begins. A record is a line, or in formats with whole documents, one
//! JSON value, which may span lines. Several documents may be on one line, as in the output of
//! `cat a.json b.json`.
//!
//! Invariants: at most `max_bytes` of one record are in memory. To detect the format, at most the first
//! record, or its first 16 MiB, is read in advance. Lines are counted as in an editor.
//!
//! Costs: lines are found at the speed of `memchr`. Documents are scanned byte by byte, 1 to 2 ns each.

use std::{
    collections::VecDeque,
    io::{self, BufRead, BufReader, Chain, Cursor, Read},
};

use flate2::bufread::MultiGzDecoder;

use crate::{error::TraceError, formats::scan::Scanner};

/// The first two bytes of every gzip stream.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
/// The size of the buffers of files and of decompressed data, in bytes.
pub(crate) const BUFFER_BYTES: usize = 1 << 17;
/// The maximum number of bytes of the first record that are read to detect its format.
const LOOK_AHEAD_BYTES: usize = 16 << 20;

/// The input, preceded by the first bytes, which were already read.
type Whole<R> = Chain<Cursor<Vec<u8>>, R>;

/// The input, decompressed if necessary.
#[derive(Debug)]
enum Source<R> {
    Plain(Whole<R>),
    Gzip(BufReader<MultiGzDecoder<Whole<R>>>),
}

impl<R: BufRead> Source<R> {
    fn open(mut input: R) -> io::Result<Self> {
        // Read both bytes here. The buffer of a pipe may contain only one of them.
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

    /// Appends the input up to and including the next `\n`, or `most` bytes.
    fn read_line(&mut self, most: u64, line: &mut Vec<u8>) -> io::Result<usize> {
        match self {
            Self::Plain(input) => input.take(most).read_until(b'\n', line),
            Self::Gzip(input) => input.take(most).read_until(b'\n', line),
        }
    }

    /// Appends the available bytes of the input, at least 1. Appends nothing at the end of the input.
    fn read_some(&mut self, text: &mut Vec<u8>) -> io::Result<()> {
        loop {
            let input: &mut dyn BufRead = match self {
                Self::Plain(input) => input,
                Self::Gzip(input) => input,
            };
            match input.fill_buf() {
                Ok(bytes) => {
                    let size = bytes.len();
                    text.extend_from_slice(bytes);
                    input.consume(size);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Converts an I/O error that occurred while `line` was read.
    fn explain(&self, source: io::Error, line: u64) -> TraceError {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        match (self, source.kind()) {
            (Self::Gzip(_), UnexpectedEof) => TraceError::TruncatedGzip { line },
            // The gzip decoder reports a damaged header, checksum or content as `InvalidData` or
            // `InvalidInput`.
            (Self::Gzip(_), InvalidData | InvalidInput) => TraceError::CorruptGzip { line, source },
            _ => TraceError::Io { line, source },
        }
    }
}

#[derive(Debug)]
pub(crate) struct Records<R> {
    source: Source<R>,
    /// Lines that were read to detect the format and are not yet returned. The last one may be
    /// incomplete.
    ahead: VecDeque<Vec<u8>>,
    /// The last returned record. For a document, also the bytes after it that were read at the same
    /// time.
    text: Vec<u8>,
    /// The end of the document in `text`.
    rest: usize,
    /// The number of lines returned. If records are lines, it is the number of the last one.
    line: u64,
    max_bytes: usize,
}

impl<R: BufRead> Records<R> {
    /// Opens the records of `input`, and reads its first two bytes.
    pub(crate) fn open(input: R, max_bytes: usize) -> Result<Self, TraceError> {
        Ok(Self {
            source: Source::open(input).map_err(|source| TraceError::Io { line: 1, source })?,
            ahead: VecDeque::new(),
            text: Vec::new(),
            rest: 0,
            line: 0,
            max_bytes,
        })
    }

    /// The number of lines read so far, including blank ones.
    pub(crate) fn lines(&self) -> u64 {
        self.line
    }

    /// Scans the first record without removing it.
    pub(crate) fn look_ahead(&mut self) -> Result<Scanner, TraceError> {
        let mut scanner = Scanner::default();
        let mut left = LOOK_AHEAD_BYTES;
        while !scanner.is_done() && left > 0 {
            let mut piece = Vec::new();
            let number = self.line + self.ahead.len() as u64 + 1;
            // Read and scan whole lines. Stop within a line only at the limit, because the output of
            // `cat` of many documents may be one very long line.
            let read = self.source.read_line(left as u64, &mut piece);
            if read.map_err(|source| self.source.explain(source, number))? == 0 {
                break;
            }
            left = left.saturating_sub(piece.len());
            let text =
                if number == 1 { piece.strip_prefix(&BYTE_ORDER_MARK).unwrap_or(&piece) } else { &piece[..] };
            scanner.feed(text);
            self.ahead.push_back(piece);
        }
        Ok(scanner)
    }

    /// Returns the next line that is not blank, and its number. Surrounding blanks (including `\r`) are
    /// removed.
    pub(crate) fn next_line(&mut self) -> Result<Option<(&[u8], u64)>, TraceError> {
        loop {
            self.text.clear();
            if !self.append_line()? {
                return Ok(None);
            }
            // Trim the text here and again below, because the borrow checker does not accept a loop
            // that returns the trimmed text.
            if !self.text.trim_ascii().is_empty() {
                return Ok(Some((self.text.trim_ascii(), self.line)));
            }
        }
    }

    /// Returns the next JSON document, and the line in which it begins. An incomplete document at the
    /// end of the input is returned as it is.
    pub(crate) fn next_document(&mut self) -> Result<Option<(&[u8], u64)>, TraceError> {
        self.line += count_lines(self.text.get(..self.rest).unwrap_or_default());
        self.text.drain(..self.rest.min(self.text.len()));
        self.rest = 0;
        let mut scanner = Scanner::default();
        loop {
            let fresh = self.text.get(self.rest..).unwrap_or_default();
            self.rest += scanner.feed(fresh);
            if self.rest > self.max_bytes {
                return Err(TraceError::LineTooLong { line: self.line + 1, limit: self.max_bytes });
            }
            if scanner.is_done() {
                break;
            }
            if !scanner.is_begun() {
                // The text contains only blanks and line ends. Count its lines and drop it.
                self.line += count_lines(&self.text);
                self.text.clear();
                self.rest = 0;
            }
            if !self.append_bytes()? {
                break;
            }
        }
        let text = self.text.get(..self.rest).unwrap_or_default();
        let blank = text.len() - text.trim_ascii_start().len();
        let line = self.line + 1 + count_lines(text.get(..blank).unwrap_or_default());
        let text = text.trim_ascii();
        Ok(if text.is_empty() { None } else { Some((text, line)) })
    }

    /// Appends the available bytes of the source, whole lines or not. Returns `false` at its end.
    fn append_bytes(&mut self) -> Result<bool, TraceError> {
        let first = self.line == 0 && self.text.is_empty();
        // At the start, read as many bytes as a byte order mark has. The first read may return fewer.
        let enough = if first { BYTE_ORDER_MARK.len() } else { self.text.len() + 1 };
        let before = self.text.len();
        while self.text.len() < enough {
            let known = self.text.len();
            if let Some(line) = self.ahead.pop_front() {
                self.text.extend_from_slice(&line);
            } else if let Err(source) = self.source.read_some(&mut self.text) {
                return Err(self.source.explain(source, self.line + 1 + count_lines(&self.text)));
            }
            if self.text.len() == known {
                break;
            }
        }
        if self.text.len() == before {
            return Ok(false);
        }
        if first && self.text.starts_with(&BYTE_ORDER_MARK) {
            self.text.drain(..BYTE_ORDER_MARK.len());
        }
        Ok(true)
    }

    /// Appends one line to the text, which is empty. Returns `false` at the end of the input.
    fn append_line(&mut self) -> Result<bool, TraceError> {
        let line = self.line + 1;
        if let Some(piece) = self.ahead.pop_front() {
            self.text.extend_from_slice(&piece);
        }
        if !self.text.ends_with(b"\n") && self.text.len() <= self.max_bytes {
            // Read one byte more than allowed, which shows whether a line is too long.
            let most = (self.max_bytes - self.text.len()).saturating_add(1);
            let read = self.source.read_line(most as u64, &mut self.text);
            read.map_err(|source| self.source.explain(source, line))?;
        }
        if self.text.is_empty() {
            return Ok(false);
        }
        if self.text.strip_suffix(b"\n").unwrap_or(&self.text).len() > self.max_bytes {
            return Err(TraceError::LineTooLong { line, limit: self.max_bytes });
        }
        self.line = line;
        if line == 1 && self.text.starts_with(&BYTE_ORDER_MARK) {
            self.text.drain(..BYTE_ORDER_MARK.len());
        }
        Ok(true)
    }
}

fn count_lines(text: &[u8]) -> u64 {
    text.iter().filter(|&&byte| byte == b'\n').count() as u64
}
