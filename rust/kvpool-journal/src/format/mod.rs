//! The format of journals: the records of calls, a check of each answer, and the frames that they are
//! written in.
//!
//! Owns: the header, the checks of answers ([`Check`]), and where both go: a bounded ring in memory, or
//! a thread that writes ([`Journal`]); and how they are read back ([`JournalReader`]), from bytes or
//! from a [`JournalFile`], of which one frame at a time is in memory. This module is the format: it
//! runs nothing.
//!
//! - *No tokens*: of a full block a journal holds the first eight bytes of its digest (salted as the
//!   request was), and of its fingerprint where hits are verified. So a replay tells contents apart as
//!   the run did, short of two digests with the same first eight bytes, and nobody reads a prompt out
//!   of it. Request ids are in it as they are.
//! - *Results* are compared by a 32-bit check per operation, the state by a 64-bit digest every
//!   [`JournalConfig::digest_every`] operations ([`kvpool_observe::PoolWatch::state_digest`]).
//! - *Format*: a magic number with the version, then frames of a length, an XXH3 checksum and a
//!   payload: the header, then records in postcard's encoding (`frame.rs` says it byte by byte). A file
//!   that was cut at any byte holds all frames before the cut.
//! - *A journal never fails an operation, and no operation waits for a disk*: if it cannot be written,
//!   or not fast enough, it stops, and says so ([`Journal::error`]). What it holds until then is a
//!   journal.
//! - A *ring* that has dropped its oldest frames can be read, and no longer be replayed: what led to
//!   its first operation is gone.
//!
//! Costs: a few bytes per operation (a steady decode step of any batch: 8 bytes, and 8 per block that
//! it fills), 8 bytes per new block of a prompt, 4 per block id that a caller of a pool names; digests
//! cost large pools 24 bytes of memory per block.

mod chain;
mod error;
mod file;
mod frame;
mod header;
mod outcome;
mod packed;
mod reader;
mod records;
mod settings;
mod sink;
mod source;
mod steady;
mod writer;

pub use chain::{ChainRecord, ContentKey, LinkRecord};
pub use error::JournalError;
pub use file::create_file;
pub use frame::{Entry, MAGIC, MAGIC_OF_GROUPS};
pub use header::{JournalHeader, Kind};
pub use outcome::{Check, Outcome};
pub use packed::{Ids, Keys, Packed};
pub use reader::{JournalReader, Records, Tail};
pub use records::{
    AppendRecord, ComputedRecord, CoveredRecord, EndedRecord, ForksRecord, IdRecord, LoadedRecord,
    MatchRecord, Name, OptionsRecord, PartRecord, PlanRecord, Planned, PromptRecord, RangeRecord,
    RetentionRecord, Rows, SignalRecord, StartRecord, TurnRecord, UntilRecord,
};
pub use source::{JournalFile, JournalSource};
pub use steady::Filled;
pub(crate) use steady::SteadyAppend;
pub use writer::{Flush, QUEUE_BYTES};

use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::path::Path;

use hashbrown::HashMap;
use kvpool::Match;
use kvpool::hash::{ChainLink, HashChain};
use serde::Serialize;

use sink::Sink;
use steady::Encoded;
use writer::Background;

/// How a journal is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalConfig {
    /// Operations from one digest of the state to the next; 0 for none.
    pub digest_every: u32,
    /// Bytes that are collected before they are handed over as one frame, 64 to 2^24: what a crash of
    /// the process loses, with the frames that wait to be written ([`QUEUE_BYTES`] at most).
    pub frame_bytes: usize,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self { digest_every: 65_536, frame_bytes: 32 * 1024 }
    }
}

impl JournalConfig {
    /// Refuses settings out of range.
    ///
    /// # Errors
    /// [`JournalError::InvalidConfig`].
    pub fn check(&self) -> Result<(), JournalError> {
        if (64..=1 << 24).contains(&self.frame_bytes) {
            return Ok(());
        }
        Err(JournalError::InvalidConfig {
            field: "frame_bytes",
            value: self.frame_bytes,
            expected: "64 to 2^24".into(),
        })
    }
}

/// Chain ends that are remembered, so that a prompt which comes again is not written again.
const KNOWN_ENDS: usize = 1024;

/// A journal that is being written.
pub struct Journal {
    config: JournalConfig,
    sink: Sink,
    /// Whether hits are verified: then fingerprints are written, too.
    verified: bool,
    /// Whether blocks with fingerprints were registered by a link.
    linked: bool,
    /// The payload of the frame that is being filled.
    payload: Vec<u8>,
    /// The number of its first operation.
    first: u64,
    /// Operations recorded.
    operations: u64,
    /// Operations since the last digest.
    since_digest: u32,
    /// Ends of recorded chains and their lengths, the oldest first.
    ends: VecDeque<ContentKey>,
    known: HashMap<ContentKey, usize>,
    /// The slots of the batch that was recorded last.
    rows: Vec<usize>,
    /// What the last steady append began with.
    steady: Encoded,
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal")
            .field("operations", &self.operations)
            .field("bytes", &self.bytes())
            .field("error", &self.error())
            .finish_non_exhaustive()
    }
}

impl Journal {
    /// A journal in memory that keeps the latest `capacity` bytes or so, whole frames of them.
    ///
    /// # Errors
    /// [`JournalError::InvalidConfig`] for a ring of less than four frames.
    pub fn ring(capacity: usize, config: JournalConfig) -> Result<Self, JournalError> {
        if capacity < 4 * config.frame_bytes {
            return Err(JournalError::InvalidConfig {
                field: "capacity",
                value: capacity,
                expected: format!("four frames at least: {}", 4usize.saturating_mul(config.frame_bytes)),
            });
        }
        Self::over(Sink::ring(capacity), config)
    }

    /// A journal that goes to `writer`, a frame at a time, unbuffered behind that. A thread of its own
    /// writes: nobody who records waits for it, and a journal of which more than [`QUEUE_BYTES`] wait
    /// to be written stops. The process that makes it writes it: in a fork the journal stops, and says
    /// so.
    ///
    /// ```
    /// use kvpool_journal::{Journal, JournalConfig};
    /// let mut journal = Journal::to_writer(Box::new(std::io::sink()), JournalConfig::default())?;
    /// journal.flush(); // waits until everything is written
    /// assert_eq!((journal.error(), journal.bytes()), (None, 0));
    /// # Ok::<(), kvpool_journal::JournalError>(())
    /// ```
    ///
    /// # Errors
    /// [`JournalError::InvalidConfig`]; [`JournalError::Io`] if there is no thread.
    pub fn to_writer(writer: Box<dyn Write + Send>, config: JournalConfig) -> Result<Self, JournalError> {
        config.check()?;
        Self::over(Sink::Writer(Background::start(writer)?), config)
    }

    /// A journal in a new file ([`create_file`]), as [`Self::to_writer`]. The file stays that of the
    /// process that makes it.
    ///
    /// # Errors
    /// As [`create_file`] and [`Self::to_writer`]; there is no file then.
    pub fn create(path: &Path, config: JournalConfig) -> Result<Self, JournalError> {
        config.check()?;
        let file = create_file(path)?;
        Self::to_writer(Box::new(file), config).inspect_err(|_| {
            // The error that is told is the first one.
            let _ = std::fs::remove_file(path);
        })
    }

    /// The same journal, which waits for a writer that is behind instead of stopping: for runs that no
    /// step waits for.
    #[must_use]
    pub fn waiting(mut self) -> Self {
        self.sink.wait();
        self
    }

    fn over(sink: Sink, config: JournalConfig) -> Result<Self, JournalError> {
        config.check()?;
        Ok(Self {
            config,
            sink,
            verified: false,
            linked: false,
            payload: Vec::new(),
            first: 0,
            operations: 0,
            since_digest: 0,
            ends: VecDeque::new(),
            known: HashMap::new(),
            rows: Vec::new(),
            steady: Encoded::default(),
        })
    }

    /// How it is kept.
    #[must_use]
    pub const fn config(&self) -> JournalConfig {
        self.config
    }

    /// Operations recorded.
    #[must_use]
    pub const fn operations(&self) -> u64 {
        self.operations
    }

    /// Bytes written, or kept in the ring; what is collected or waits to be written is not counted.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sink.bytes()
    }

    /// Why it stopped recording, if it did.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.sink.error()
    }

    /// Writes what has been collected, and waits until all of it is written. Failures are told by
    /// [`Self::error`].
    pub fn flush(&mut self) {
        self.start_flush().wait();
    }

    /// Has what was collected written. Whoever waits for it needs the journal no more: a lock may be
    /// given back before.
    pub fn start_flush(&mut self) -> Flush {
        if self.payload.len() > frame::PREFIX {
            self.write_frame();
        }
        self.sink.flush()
    }

    /// What a ring holds, flushed, as the bytes of a file; `None` for a journal that goes elsewhere.
    pub fn image(&mut self) -> Option<Vec<u8>> {
        self.flush();
        self.sink.image()
    }

    /// Writes the header, the first frame of a new journal, and waits until it is written: what has
    /// begun is a journal.
    pub fn begin(&mut self, header: &JournalHeader) {
        self.verified = header.verified();
        frame::open(&mut self.payload, 0);
        header.write(&mut self.payload);
        self.sink.header(header.magic(), frame::seal(&mut self.payload, 0));
        self.sink.flush().wait();
        self.payload.clear();
    }

    /// Writes one operation. Returns whether a digest of the state is due.
    pub fn record(&mut self, operation: &impl Serialize, check: u32) -> bool {
        self.record_as(operation, check, None)
    }

    /// [`Self::record`] of an operation of which `steady`, if it is given, says everything: then
    /// [`Self::repeat`] copies it.
    pub(crate) fn record_as(
        &mut self,
        operation: &impl Serialize,
        check: u32,
        steady: Option<(SteadyAppend, &Filled)>,
    ) -> bool {
        if self.sink.error().is_some() {
            return false;
        }
        self.open();
        let before = self.payload.len();
        frame::push(&mut self.payload, &Entry::Operation(operation, check));
        if let Some((append, filled)) = steady {
            let end = self.payload.len();
            self.push_end(filled, check);
            let length = self.payload.len() - end;
            self.payload.truncate(end);
            self.steady.note(append, &self.payload[before..end.saturating_sub(length).max(before)]);
        }
        self.count()
    }

    /// Records an append that is as the last one of its kind, but for what it filled and its check.
    /// `None` if there is none like it: nothing is recorded.
    #[inline]
    pub(crate) fn repeat(&mut self, append: SteadyAppend, filled: &Filled, check: u32) -> Option<bool> {
        if self.sink.error().is_some() {
            return Some(false);
        }
        if !self.steady.is(append) {
            return None;
        }
        self.open();
        self.payload.extend_from_slice(self.steady.bytes());
        self.push_end(filled, check);
        Some(self.count())
    }

    /// What the record of an append ends with.
    #[inline]
    fn push_end(&mut self, Filled { keys, fingerprints }: &Filled, check: u32) {
        self.payload.reserve(32); // of most of them all
        frame::push_bytes(&mut self.payload, keys.as_bytes());
        frame::push_bytes(&mut self.payload, fingerprints.as_bytes());
        frame::push_number(&mut self.payload, check as usize);
    }

    /// Whether a batch is the one that was recorded last.
    #[must_use]
    #[inline]
    pub(crate) fn is_batch(&self, slots: &[usize]) -> bool {
        self.rows == slots
    }

    /// One operation more. Whether a digest is due.
    #[inline]
    fn count(&mut self) -> bool {
        self.operations += 1;
        self.since_digest = self.since_digest.saturating_add(1);
        self.close();
        self.config.digest_every > 0 && self.since_digest >= self.config.digest_every
    }

    /// Writes a digest of the state as it is after the operations so far.
    pub fn digest(&mut self, digest: u64) {
        self.since_digest = 0;
        self.open();
        frame::push(&mut self.payload, &Entry::<()>::Digest(digest));
        self.close();
    }

    #[inline]
    fn open(&mut self) {
        if self.payload.is_empty() {
            self.first = self.operations;
            frame::open(&mut self.payload, self.first);
        }
    }

    #[inline]
    fn close(&mut self) {
        if self.payload.len() >= self.config.frame_bytes {
            self.write_frame();
        }
    }

    fn write_frame(&mut self) {
        frame::seal(&mut self.payload, (self.operations - self.first) as u32);
        self.sink.frame(&mut self.payload);
    }

    /// What is written of a link that a block is registered by.
    pub(crate) fn link(&mut self, link: &ChainLink) -> LinkRecord {
        self.linked |= self.verified;
        LinkRecord::new(link)
    }

    /// What is written of a chain. Its first `indexed` blocks are in the index, so they were recorded before.
    #[inline]
    pub(crate) fn chain(&mut self, chain: &HashChain, num_tokens: usize, indexed: usize) -> ChainRecord {
        let end = chain.len().checked_sub(1).and_then(|last| chain::content_key(chain, last, self.verified));
        let whole = end.is_some_and(|end| self.known.get(&end) == Some(&chain.len()));
        // A link does not say the fingerprints of what is before it: blocks that came so are written again.
        let indexed = if self.linked { 0 } else { indexed.min(chain.len()) };
        let known = if whole { chain.len() } else { indexed };
        if let Some(end) = end.filter(|_| !whole) {
            if self.ends.len() == KNOWN_ENDS
                && let Some(oldest) = self.ends.pop_front()
            {
                self.known.remove(&oldest);
            }
            if self.known.insert(end, chain.len()).is_none() {
                self.ends.push_back(end);
            }
        }
        ChainRecord::new(chain, num_tokens, known, self.verified)
    }

    /// What is written of a match: its part of the chain.
    #[must_use]
    pub(crate) fn part(&self, found: &Match) -> ChainRecord {
        ChainRecord::of_match(found, self.verified)
    }

    /// What is written of a batch: nothing but that it is the one before, if it is.
    #[inline]
    pub(crate) fn rows(&mut self, slots: &[usize]) -> Rows {
        if self.rows == slots {
            return Rows::Same;
        }
        self.rows.clear();
        self.rows.extend_from_slice(slots);
        Rows::Slots(slots.iter().map(|&slot| slot as u32).collect())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.flush();
    }
}
