//! The file of a journal: new, its owner's alone to read, and written by the process that made it alone.
//!
//! A fork inherits the open file and what was collected for it. If it wrote that, the parent would write the same operations
//! again behind it: so a fork writes nothing. Asking for the process costs a system call per frame.

use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::path::Path;

use super::JournalError;

/// A new file for a journal, which only its owner reads: request ids are in it. One that exists is not overwritten.
///
/// # Errors
/// [`JournalError::Exists`], [`JournalError::Io`].
pub fn create_file(path: &Path) -> std::result::Result<File, JournalError> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => JournalError::Exists { path: path.display().to_string() },
        _ => JournalError::Io(format!("{}: {error}", path.display())),
    })
}

/// A file with the process that made it.
pub(super) struct OwnFile {
    file: File,
    process: u32,
}

impl OwnFile {
    /// As [`create_file`].
    pub(super) fn create(path: &Path) -> std::result::Result<Self, JournalError> {
        Ok(Self { file: create_file(path)?, process: std::process::id() })
    }

    /// The file, for its own process.
    fn own(&mut self) -> Result<&mut File> {
        let (owner, this) = (self.process, std::process::id());
        if owner == this {
            return Ok(&mut self.file);
        }
        Err(Error::other(format!(
            "process {this} is a fork of process {owner}, whose file this is: make a pool with a journal of its own"
        )))
    }
}

impl Write for OwnFile {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.own()?.write(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        self.own()?.flush()
    }
}
