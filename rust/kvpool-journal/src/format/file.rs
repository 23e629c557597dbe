//! Creates the file of a journal. Only its owner can read it.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use crate::JournalError;

/// Creates a file for a journal. Only its owner can read it, because it contains request ids. An
/// existing file is not overwritten.
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
