//! Reads the records of a journal, which may be truncated or damaged.
//!
//! A reader stops at the first frame that is incomplete or has a wrong checksum, and reports its
//! position. If complete frames have operation numbers that are not consecutive, the reader refuses the
//! journal, because no process writes such frames.

use std::marker::PhantomData;

use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::xxh3_64;

use super::frame::{HEAD, RECORDS};
use super::source::{JournalSource, Stretch};
use crate::{Entry, JournalError, JournalHeader, MAGIC, MAGIC_OF_GROUPS};

/// The state in which a journal ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Tail {
    /// The journal ends with a complete frame.
    Complete,
    /// The bytes after the last complete frame belong to a frame that was truncated or changed.
    Cut {
        /// Position in the journal of the frame that was truncated or changed, in bytes.
        at: usize,
        /// Number of bytes after the last complete frame.
        bytes: usize,
    },
}

/// The numbers at the start of a complete frame. The records follow after the first twelve bytes of the
/// payload.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// Number of the first operation in the frame.
    first: u64,
    operations: u32,
}

impl Frame {
    /// Number of the operation after the last operation of the frame.
    const fn end(&self) -> u64 {
        self.first.saturating_add(self.operations as u64)
    }
}

/// Reads the complete frames of a journal, in order.
#[derive(Clone, Debug)]
struct Frames<'a> {
    source: JournalSource<'a>,
    at: usize,
    /// The payload of the frame that was read last.
    payload: Stretch,
}

impl Frames<'_> {
    /// Describes the bytes after the frames that were read so far.
    const fn tail(&self) -> Tail {
        match self.source.len() - self.at {
            0 => Tail::Complete,
            bytes => Tail::Cut { at: self.at, bytes },
        }
    }

    /// Reads the next complete frame. Returns `None` after the last one.
    fn next(&mut self) -> Result<Option<Frame>, JournalError> {
        let left = self.source.len() - self.at;
        if left < HEAD {
            return Ok(None);
        }
        self.payload.read(self.source, self.at, HEAD)?;
        let Some((length, checksum)) = self.payload().split_first_chunk() else { return Ok(None) };
        let Some(checksum) = checksum.first_chunk() else { return Ok(None) };
        let (length, checksum) = (u32::from_le_bytes(*length) as usize, u64::from_le_bytes(*checksum));
        if length > left - HEAD {
            return Ok(None);
        }
        self.payload.read(self.source, self.at + HEAD, length)?;
        let payload = self.payload();
        if xxh3_64(payload) != checksum {
            return Ok(None);
        }
        let Some((first, operations)) = payload.split_first_chunk() else { return Ok(None) };
        let Some(operations) = operations.first_chunk() else { return Ok(None) };
        let frame = Frame { first: u64::from_le_bytes(*first), operations: u32::from_le_bytes(*operations) };
        self.at += HEAD + length;
        Ok(Some(frame))
    }

    fn payload(&self) -> &[u8] {
        self.payload.from(self.source, 0)
    }

    /// Returns the records of the frame that was read last, beginning at the byte `at` of its payload.
    fn records(&self, at: usize) -> &[u8] {
        self.payload.from(self.source, at)
    }
}

/// Reads a journal, which may be truncated.
///
/// ```
/// use kvpool::{BlockPool, PoolConfig};
/// use kvpool_observe::WatchConfig;
/// use kvpool_journal::{Check, Journal, JournalConfig, JournalHeader, JournalReader, PoolCall};
/// let config = PoolConfig { num_blocks: 8, ..PoolConfig::default() };
/// let mut journal = Journal::ring(1 << 20, JournalConfig::default())?;
/// journal.begin(&JournalHeader::of_pool(&config, &WatchConfig::default(), journal.config()));
/// let answer = BlockPool::new(config)?.allocate(3);
/// journal.record(&PoolCall::Allocate { blocks: 3 }, Check::of(&answer));
///
/// let image = journal.image().unwrap_or_default();
/// let read = JournalReader::new(&image)?;
/// assert_eq!(read.operations(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct JournalReader<'a> {
    header: JournalHeader,
    frames: Frames<'a>,
    first: u64,
    operations: u64,
    tail: Tail,
}

impl<'a> JournalReader<'a> {
    /// Reads the header, and checks every frame of the bytes or of a [`crate::JournalFile`]. Only one
    /// frame of a file is in memory at a time. O(bytes).
    ///
    /// # Errors
    /// [`JournalError::NotAJournal`], [`JournalError::Version`], [`JournalError::NoHeader`],
    /// [`JournalError::OutOfOrder`]; [`JournalError::Io`] for a file.
    pub fn new(source: impl Into<JournalSource<'a>>) -> Result<Self, JournalError> {
        Self::over(source.into())
    }

    fn over(source: JournalSource<'a>) -> Result<Self, JournalError> {
        let mut frames = Frames { source, at: 0, payload: Stretch::default() };
        frames.payload.read(source, 0, source.len().min(MAGIC.len()))?;
        let magic = frames.payload().to_vec();
        if magic != MAGIC && magic != MAGIC_OF_GROUPS {
            let text = |version: &[u8]| String::from_utf8_lossy(version).into_owned();
            if magic.len() == MAGIC.len() && magic[..6] == MAGIC[..6] {
                let [found, least, most] =
                    [&magic[..], &MAGIC, &MAGIC_OF_GROUPS].map(|magic| text(&magic[6..]));
                let expected = format!("{least} and {most}");
                return Err(JournalError::Version { found, expected });
            }
            return Err(JournalError::NotAJournal { found: magic, expected: MAGIC });
        }
        frames.at = MAGIC.len();
        frames.next()?.ok_or(JournalError::NoHeader)?;
        let header = JournalHeader::read(frames.records(RECORDS), magic == MAGIC_OF_GROUPS)?;
        let mut walk = frames.clone();
        let (mut first, mut next) = (None, None);
        let mut at = walk.at;
        while let Some(frame) = walk.next()? {
            // The first frame of a ring may begin with any operation number.
            let expected = next.unwrap_or(frame.first);
            if frame.first != expected {
                return Err(JournalError::OutOfOrder { at, found: frame.first, expected });
            }
            first = first.or(Some(frame.first));
            next = Some(frame.end());
            at = walk.at;
        }
        let (first, operations) = (first.unwrap_or(0), next.unwrap_or(0));
        Ok(Self { header, frames, first, operations, tail: walk.tail() })
    }

    /// Returns the header, which states what was recorded (a pool, a manager or vLLM's pool), and its
    /// settings.
    #[must_use]
    pub const fn header(&self) -> &JournalHeader {
        &self.header
    }

    /// Number of the first operation in the journal. It is 0, unless a ring has dropped earlier
    /// operations.
    #[must_use]
    pub const fn first_operation(&self) -> u64 {
        self.first
    }

    /// Number of the operation after the last one. This is the number of all recorded operations,
    /// except for those that are missing at the end of a truncated journal.
    #[must_use]
    pub const fn operations(&self) -> u64 {
        self.operations
    }

    /// Returns how the journal ends: with a complete frame, or with a truncated or changed one.
    #[must_use]
    pub const fn tail(&self) -> Tail {
        self.tail
    }

    /// Number of bytes in the journal, including those of an incomplete last frame.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.frames.source.len()
    }

    /// Iterates over the operations and digests in order. The type `O` depends on the header:
    /// [`crate::PoolCall`], [`crate::ManagerCall`] or [`crate::VllmCall`].
    #[must_use]
    pub fn records<O: DeserializeOwned>(&self) -> Records<'a, O> {
        let (frames, first) = (self.frames.clone(), self.first);
        Records {
            frames,
            at: usize::MAX,
            number: first,
            end: first,
            last: self.operations,
            kind: PhantomData,
        }
    }
}

/// Iterates over the operations and digests of a journal, with their numbers. The number of a digest is
/// that of the next operation.
#[derive(Clone, Debug)]
pub struct Records<'a, O> {
    frames: Frames<'a>,
    /// Position of the next record in the payload of the present frame.
    at: usize,
    number: u64,
    /// Number of the operation after the last one of the frame, from the head of the frame.
    end: u64,
    /// Number of the operation after the last operation of the journal.
    last: u64,
    kind: PhantomData<O>,
}

impl<O: DeserializeOwned> Iterator for Records<'_, O> {
    type Item = Result<(u64, Entry<O>), JournalError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.read().inspect_err(|_| self.stop()).transpose()
    }
}

impl<O: DeserializeOwned> Records<'_, O> {
    fn read(&mut self) -> Result<Option<(u64, Entry<O>)>, JournalError> {
        while self.frames.records(self.at).is_empty() {
            if self.number != self.end {
                let reason = format!("the head of its frame announces operations up to {}", self.end);
                return Err(JournalError::BadRecord { operation: self.number, reason });
            }
            let Some(frame) = self.frames.next()? else {
                return match self.frames.source {
                    JournalSource::File(file) if self.number != self.last => Err(file.changed()),
                    _ => Ok(None),
                };
            };
            (self.number, self.end, self.at) = (frame.first, frame.end(), RECORDS);
        }
        let (number, records) = (self.number, self.frames.records(self.at));
        match postcard::take_from_bytes::<Entry<O>>(records) {
            Ok((entry, rest)) => {
                self.at += records.len() - rest.len();
                self.number = number.saturating_add(u64::from(matches!(entry, Entry::Operation(..))));
                Ok(Some((number, entry)))
            }
            Err(error) => Err(JournalError::BadRecord { operation: number, reason: error.to_string() }),
        }
    }
}

impl<O> Records<'_, O> {
    /// Ends the iteration, because no record after an unreadable one can be read.
    const fn stop(&mut self) {
        (self.at, self.number, self.end) = (usize::MAX, self.last, self.last);
        self.frames.at = self.frames.source.len();
    }
}
