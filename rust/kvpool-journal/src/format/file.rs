//! The file of a journal: new, and its owner's alone to read.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use crate::JournalError;

/// A new file for a journal, which only its owner reads: request ids are in it. One that exists is not
/// overwritten.
///
/// # Errors
/// [`JournalError::Exists`], [`JournalError::Io`].
pub fn create_file(path: &Path) -> Result<File, JournalError> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => JournalError::Exists { path: path.display().to_string() },
        _ => JournalError::Io(format!("{}: {error}", path.display())),
    })
}
