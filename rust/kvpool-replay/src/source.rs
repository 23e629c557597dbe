//! Where records come from: plain or gzip bytes, cut into lines or into JSON documents.
//!
//! Owns [`Source`] (bytes, gzip told by its first two bytes) and [`Records`] (one record at a time,
//! with the line it begins in). A record is a line, or, for formats of whole documents, one JSON value,
//! which may span lines; several documents may share a line, as `cat a.json b.json` makes them.
//!
//! Invariants: no more than `max_bytes` of one record are held, and no more than the first record, or
//! its first 16 MiB, is looked at ahead; lines are counted as an editor shows them.
//!
//! Costs: lines are found at the speed of `memchr`; documents are walked byte by byte, 1 to 2 ns each.

use std::{
    collections::VecDeque,
    io::{self, BufRead, BufReader, Chain, Cursor, Read},
};

use flate2::bufread::MultiGzDecoder;

use crate::{error::TraceError, formats::scan::Scanner};

/// What every gzip stream starts with.
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BYTE_ORDER_MARK: [u8; 3] = [0xef, 0xbb, 0xbf];
/// Of files and of decompressed data, in bytes.
pub(crate) const BUFFER_BYTES: usize = 1 << 17;
/// Of the first record, at most this many bytes are looked at to tell its format.
const LOOK_AHEAD_BYTES: usize = 16 << 20;

/// The input with its first bytes put back.
type Whole<R> = Chain<Cursor<Vec<u8>>, R>;

/// Where bytes come from.
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

    /// Appends what is at hand, 1 byte or more; nothing at the end.
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

/// The records of an input.
#[derive(Debug)]
pub(crate) struct Records<R> {
    source: Source<R>,
    /// Lines that were looked at to tell the format, and not yet handed out; the last one may be the
    /// beginning of a line.
    ahead: VecDeque<Vec<u8>>,
    /// The record handed out last, and, behind a document, what was read with it.
    text: Vec<u8>,
    /// Where the document ends in `text`.
    rest: usize,
    /// Lines handed out: where records are lines, the number of the last one.
    line: u64,
    max_bytes: usize,
}

impl<R: BufRead> Records<R> {
    /// The records of `input`, whose first two bytes are read here.
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

    /// Lines read so far, blank ones included.
    pub(crate) fn lines(&self) -> u64 {
        self.line
    }

    /// Looks at the first record without taking it.
    pub(crate) fn look_ahead(&mut self) -> Result<Scanner, TraceError> {
        let mut scanner = Scanner::default();
        let mut left = LOOK_AHEAD_BYTES;
        while !scanner.is_done() && left > 0 {
            let mut piece = Vec::new();
            let number = self.line + self.ahead.len() as u64 + 1;
            // Lines are looked at whole, but for one that is longer than this: `cat` of many documents
            // may be one.
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

    /// The next line that is not blank, and its number; without the blanks around it (`\r` is one).
    pub(crate) fn next_line(&mut self) -> Result<Option<(&[u8], u64)>, TraceError> {
        loop {
            self.text.clear();
            if !self.append_line()? {
                return Ok(None);
            }
            // Trimmed twice: the borrow checker does not see that a blank line is not returned.
            if !self.text.trim_ascii().is_empty() {
                return Ok(Some((self.text.trim_ascii(), self.line)));
            }
        }
    }

    /// The next JSON document, and the line that it begins in. One that never ends is given as far as
    /// it goes.
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
                // Nothing but blanks so far.
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

    /// Appends what the source has at hand, whole lines or not; `false` at its end.
    fn append_bytes(&mut self) -> Result<bool, TraceError> {
        let first = self.line == 0 && self.text.is_empty();
        // A byte order mark has three bytes, and what is at hand at first may be less.
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

    /// Appends one line to the text, which is empty; `false` at the end of the input.
    fn append_line(&mut self) -> Result<bool, TraceError> {
        let line = self.line + 1;
        if let Some(piece) = self.ahead.pop_front() {
            self.text.extend_from_slice(&piece);
        }
        if !self.text.ends_with(b"\n") && self.text.len() <= self.max_bytes {
            // One byte more than allowed tells a line that is too long from one that just fits.
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
