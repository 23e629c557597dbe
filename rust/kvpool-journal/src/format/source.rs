//! The source of a journal: bytes in memory, or a file. Only one frame of a file is in memory at a
//! time.
//!
//! Owns: the length of the journal, which is fixed when the source is opened. Bytes that are appended
//! to a file later are not read. If a file is truncated or changed while it is read, the reader returns
//! an error. It never returns the content of another journal.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::JournalError;

/// A journal in a file, which is read piece by piece. The memory use does not depend on its length.
///
/// ```
/// use kvpool_journal::{Journal, JournalConfig, JournalFile, JournalHeader, JournalReader};
/// # let path = std::env::temp_dir().join(format!("kvpool-doc-{}.kvj", std::process::id()));
/// # let header = JournalHeader::of_pool(&Default::default(), &Default::default(), JournalConfig::default());
/// Journal::create(&path, JournalConfig::default())?.begin(&header);
/// let file = JournalFile::open(&path)?;
/// assert_eq!(JournalReader::new(&file)?.operations(), 0);
/// # std::fs::remove_file(&path).ok();
/// # Ok::<(), kvpool_journal::JournalError>(())
/// ```
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
    bytes: usize,
    /// All readers share the position in the file, so each of them locks the file before it seeks.
    file: Mutex<File>,
}

impl JournalFile {
    /// Opens a regular file. An input that cannot be read twice, such as a pipe, is not supported; read
    /// all of its bytes instead.
    ///
    /// # Errors
    /// [`JournalError::Io`].
    pub fn open(path: &Path) -> Result<Self, JournalError> {
        let to_error = |error: std::io::Error| JournalError::Io(format!("{}: {error}", path.display()));
        let file = File::open(path).map_err(to_error)?;
        let about = file.metadata().map_err(to_error)?;
        if !about.is_file() {
            return Err(JournalError::Io(format!("{}: is not a regular file", path.display())));
        }
        let bytes = usize::try_from(about.len()).unwrap_or(usize::MAX);
        Ok(Self { path: path.into(), bytes, file: Mutex::new(file) })
    }

    /// Returns the number of bytes that the file had when it was opened.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Fills `buffer` with the bytes of the file from the position `at` on.
    fn read(&self, at: usize, buffer: &mut [u8]) -> Result<(), JournalError> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let read = file.seek(SeekFrom::Start(at as u64)).and_then(|_| file.read_exact(buffer));
        read.map_err(|error| JournalError::Io(format!("{}: at byte {at}: {error}", self.path.display())))
    }

    /// Returns the error for a file that has changed while it was read.
    pub(crate) fn changed(&self) -> JournalError {
        JournalError::Io(format!("{}: has changed while it was read", self.path.display()))
    }
}

/// The place from which a reader takes the bytes of a journal.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum JournalSource<'a> {
    /// All bytes of the journal are in memory.
    Bytes(&'a [u8]),
    /// The bytes of the journal are in a file.
    File(&'a JournalFile),
}

impl JournalSource<'_> {
    /// Returns the number of bytes, including those of an incomplete last frame.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::File(file) => file.bytes,
        }
    }

    /// Returns whether the journal has no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> From<&'a [u8]> for JournalSource<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for JournalSource<'a> {
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for JournalSource<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::Bytes(bytes)
    }
}

impl<'a> From<&'a JournalFile> for JournalSource<'a> {
    fn from(file: &'a JournalFile) -> Self {
        Self::File(file)
    }
}

/// A range of bytes of a journal. If the journal is in memory, the range borrows them. If it is a file,
/// the range reads them into a buffer, which is reused.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stretch {
    start: usize,
    length: usize,
    buffer: Vec<u8>,
}

impl Stretch {
    /// Moves the range to `length` bytes at the position `at`. The caller has checked that the journal
    /// is long enough.
    pub(crate) fn read(
        &mut self,
        source: JournalSource<'_>,
        at: usize,
        length: usize,
    ) -> Result<(), JournalError> {
        (self.start, self.length) = (at, 0);
        if let JournalSource::File(file) = source {
            self.buffer.clear();
            // The file specifies the length, so it may be very large, and the allocation may fail.
            if self.buffer.try_reserve(length).is_err() {
                let reason = format!("{}: no memory for a frame of {length} bytes", file.path.display());
                return Err(JournalError::Io(reason));
            }
            self.buffer.resize(length, 0);
            file.read(at, &mut self.buffer)?;
        }
        self.length = length;
        Ok(())
    }

    /// Returns the bytes of the range, beginning at the byte `at`.
    pub(crate) fn from<'s>(&'s self, source: JournalSource<'s>, at: usize) -> &'s [u8] {
        let whole = match source {
            JournalSource::Bytes(bytes) => bytes.get(self.start..self.start + self.length),
            JournalSource::File(_) => self.buffer.get(..self.length),
        };
        whole.and_then(|whole| whole.get(at..)).unwrap_or_default()
    }
}
