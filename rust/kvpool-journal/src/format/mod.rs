//! The format of journals: the records of calls, a check of each answer, and the frames that contain
//! them.
//!
//! A [`Journal`] writes records either to a bounded ring in memory or to a thread that writes them. A
//! [`JournalReader`] reads them from bytes or from a [`JournalFile`], with one frame at a time in
//! memory. This module only defines the format. It runs no calls.
//!
//! - *No tokens*: for each full block, a journal stores the first eight bytes of its digest, and of its
//!   fingerprint if hits are verified. If the request has a salt, it is part of the digest. A replay
//!   therefore distinguishes the same contents as the recorded run, unless two digests have the same
//!   first eight bytes. A prompt cannot be read from a journal. Request ids are stored unchanged.
//! - *Answers* are compared by a 32-bit check per operation. The state is compared by a 64-bit digest
//!   every [`JournalConfig::digest_every`] operations ([`kvpool_observe::PoolWatch::state_digest`]).
//! - *Format*: a magic number with the version, followed by frames. A frame has a length, an XXH3
//!   checksum and a payload. The payloads contain the header, then records in postcard's encoding
//!   (`frame.rs` describes every byte). If a file is truncated at any byte, all frames before this byte
//!   can be read.
//! - *A journal never fails an operation, and no operation waits for a disk*. If the journal cannot be
//!   written, or not fast enough, it stops and reports the reason ([`Journal::error`]). The part that
//!   was written before is a valid journal.
//! - A *ring* that has dropped its oldest frames can be read but not replayed, because the operations
//!   before its first one are lost.
//!
//! Costs: a few bytes per operation. A decode step of an unchanged batch takes 8 bytes, whatever the
//! size of the batch, and 8 bytes per block that it fills. A new block of a prompt takes 8 bytes, and a
//! block id that a caller passes to a pool takes 4. In large pools, digests cost 24 bytes of memory per
//! block.

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

/// Settings of a journal.
///
/// ```
/// use kvpool_journal::JournalConfig;
/// // A digest of the state every 1,000 operations.
/// let config = JournalConfig { digest_every: 1000, ..JournalConfig::default() };
/// assert!(config.check().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalConfig {
    /// Number of operations between two digests of the state; 0 means no digests.
    pub digest_every: u32,
    /// Number of bytes that are collected before a frame is written, 64 to 2^24. A crash of the process
    /// loses the collected bytes, and the frames that are waiting to be written (at most
    /// [`QUEUE_BYTES`]).
    pub frame_bytes: usize,
}

impl Default for JournalConfig {
    fn default() -> Self {
        Self { digest_every: 65_536, frame_bytes: 32 * 1024 }
    }
}

impl JournalConfig {
    /// Checks that the settings are in range.
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

/// Number of recorded chains whose last block the journal remembers, so that it does not write the
/// blocks of a repeated prompt again.
const KNOWN_ENDS: usize = 1024;

/// Writes a journal.
pub struct Journal {
    config: JournalConfig,
    sink: Sink,
    /// Whether hits are verified. If so, fingerprints are written, too.
    verified: bool,
    /// Whether a block was registered by a link while hits are verified. From then on, each record of a
    /// chain lists all blocks.
    linked: bool,
    /// The payload of the frame that is being filled.
    payload: Vec<u8>,
    /// Number of the first operation in the frame that is being filled.
    first: u64,
    /// Number of operations that were recorded so far.
    operations: u64,
    /// Number of operations since the last digest of the state.
    since_digest: u32,
    /// The key of the last block of each recorded chain, oldest first. `known` maps this key to the
    /// number of blocks in the chain.
    ends: VecDeque<ContentKey>,
    known: HashMap<ContentKey, usize>,
    /// The request slots of the batch that was recorded last.
    rows: Vec<usize>,
    /// The encoded record of the latest steady append, up to the blocks that it filled.
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
    /// Creates a journal in memory, as a ring of whole frames. It keeps approximately the latest
    /// `capacity` bytes.
    ///
    /// # Errors
    /// [`JournalError::InvalidConfig`] if the ring has no room for four frames.
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

    /// Creates a journal that writes each frame to `writer` without further buffering. A separate
    /// thread writes, so that no recorded operation waits. If more than [`QUEUE_BYTES`] are waiting to
    /// be written, the journal stops. In a forked child process the journal stops, too, and
    /// [`Self::error`] reports this.
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
    /// [`JournalError::InvalidConfig`]; [`JournalError::Io`] if the thread cannot be started.
    pub fn to_writer(writer: Box<dyn Write + Send>, config: JournalConfig) -> Result<Self, JournalError> {
        config.check()?;
        Self::over(Sink::Writer(Background::start(writer)?), config)
    }

    /// Creates a journal in a new file ([`create_file`]), which is written as in [`Self::to_writer`].
    /// The file belongs to the process that creates the journal.
    ///
    /// # Errors
    /// Like [`create_file`] and [`Self::to_writer`]. After an error the file does not exist.
    pub fn create(path: &Path, config: JournalConfig) -> Result<Self, JournalError> {
        config.check()?;
        let file = create_file(path)?;
        Self::to_writer(Box::new(file), config).inspect_err(|_| {
            // Ignore an error of the removal, because the caller gets the error that came first.
            let _ = std::fs::remove_file(path);
        })
    }

    /// Makes the journal wait for a slow writer instead of stopping. Use this only if no engine waits
    /// for the recorded operations.
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

    /// Returns the settings of the journal.
    #[must_use]
    pub const fn config(&self) -> JournalConfig {
        self.config
    }

    /// Returns the number of operations that were recorded so far.
    #[must_use]
    pub const fn operations(&self) -> u64 {
        self.operations
    }

    /// Returns the number of bytes that were written, or that the ring contains. Bytes that are
    /// collected or waiting to be written do not count.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.sink.bytes()
    }

    /// Returns the reason why the journal has stopped recording, or `None` if it has not stopped.
    #[must_use]
    pub fn error(&self) -> Option<&str> {
        self.sink.error()
    }

    /// Writes the collected bytes, and waits until everything is written. If writing fails,
    /// [`Self::error`] returns the reason.
    pub fn flush(&mut self) {
        self.start_flush().wait();
    }

    /// Starts to write the collected bytes. The returned object waits until they are written. It does
    /// not need the journal, so the caller may first release a lock that protects the journal.
    pub fn start_flush(&mut self) -> Flush {
        if self.payload.len() > frame::PREFIX {
            self.write_frame();
        }
        self.sink.flush()
    }

    /// Flushes the journal. Returns the content of a ring as the bytes of a file, or `None` for another
    /// kind of journal.
    pub fn image(&mut self) -> Option<Vec<u8>> {
        self.flush();
        self.sink.image()
    }

    /// Writes the header, which is the first frame of a new journal, and waits until it is written.
    /// From then on, the file is a valid journal.
    pub fn begin(&mut self, header: &JournalHeader) {
        self.verified = header.verified();
        frame::open(&mut self.payload, 0);
        header.write(&mut self.payload);
        self.sink.header(header.magic(), frame::seal(&mut self.payload, 0));
        self.sink.flush().wait();
        self.payload.clear();
    }

    /// Records one operation, with the check (a checksum) of its answer. Returns whether a digest of
    /// the state is due.
    pub fn record(&mut self, operation: &impl Serialize, check: u32) -> bool {
        self.record_as(operation, check, None)
    }

    /// Like [`Self::record`]. If `steady` is given, it contains all arguments of the operation, so
    /// [`Self::repeat`] can later copy the bytes of this record.
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

    /// Records an append that differs from the latest steady append only in its filled blocks and its
    /// check. If there is another difference, records nothing and returns `None`.
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

    /// Writes the last part of an append's record: the blocks that it filled, and the check of its
    /// answer.
    #[inline]
    fn push_end(&mut self, Filled { keys, fingerprints }: &Filled, check: u32) {
        self.payload.reserve(32); // enough for most records
        frame::push_bytes(&mut self.payload, keys.as_bytes());
        frame::push_bytes(&mut self.payload, fingerprints.as_bytes());
        frame::push_number(&mut self.payload, check as usize);
    }

    /// Whether these are the slots of the batch that was recorded last.
    #[must_use]
    #[inline]
    pub(crate) fn is_batch(&self, slots: &[usize]) -> bool {
        self.rows == slots
    }

    /// Counts one recorded operation. Returns whether a digest of the state is due.
    #[inline]
    fn count(&mut self) -> bool {
        self.operations += 1;
        self.since_digest = self.since_digest.saturating_add(1);
        self.close();
        self.config.digest_every > 0 && self.since_digest >= self.config.digest_every
    }

    /// Records a digest of the state after all operations so far.
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

    pub(crate) fn link(&mut self, link: &ChainLink) -> LinkRecord {
        self.linked |= self.verified;
        LinkRecord::new(link)
    }

    /// Makes the record of a chain. The pool's index contains the first `indexed` blocks, so earlier
    /// records contain them, and this record omits them.
    #[inline]
    pub(crate) fn chain(&mut self, chain: &HashChain, num_tokens: usize, indexed: usize) -> ChainRecord {
        let end = chain.len().checked_sub(1).and_then(|last| chain::content_key(chain, last, self.verified));
        let whole = end.is_some_and(|end| self.known.get(&end) == Some(&chain.len()));
        // The record of a link lacks the fingerprints of earlier blocks, so these blocks have to be
        // written again.
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

    #[must_use]
    pub(crate) fn part(&self, found: &Match) -> ChainRecord {
        ChainRecord::of_match(found, self.verified)
    }

    /// Makes the record of a batch. If the batch equals the previous one, the record is [`Rows::Same`].
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
