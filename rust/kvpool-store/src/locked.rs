//! `LockedFile`: a file that only one process, or one part of a process, uses at a time.
//!
//! Owns: the lock. The system releases the lock when the process ends, even if it is killed. Dropping a
//! `LockedFile` releases the lock at once, even if a child process still has the file open.
//!
//! A child process has the file open until it runs another program, or until it ends. If a forked child
//! drops its copy of the `LockedFile`, nothing is released, because the lock belongs to the parent.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::private::{self, For};

#[derive(Debug)]
pub(crate) struct LockedFile {
    file: File,
    /// Id of the process that has locked the file.
    owner: u32,
}

impl LockedFile {
    /// Opens a file for reading and writing. Creates the file if it does not exist.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] if the file is locked; the errors of [`private::open`] and of
    /// the system.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = private::open(path, For::Keeping)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { file, owner: std::process::id() }),
            Err(Errno::WOULDBLOCK) => Err(io::ErrorKind::ResourceBusy.into()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            _ = flock(&self.file, FlockOperation::Unlock); // ignore errors: the file is closed anyway
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `try_clone` shares the open file, as a forked child process does.
    #[test]
    fn a_drop_releases_the_lock_while_a_clone_is_open() {
        let path = std::env::temp_dir().join(format!("kvpool-locked-{}", std::process::id()));
        let is_busy =
            || LockedFile::open(&path).is_err_and(|error| error.kind() == io::ErrorKind::ResourceBusy);
        let locked = LockedFile::open(&path).unwrap();
        assert!(is_busy());
        let of_a_child = locked.try_clone().unwrap();
        drop(LockedFile { file: locked.try_clone().unwrap(), owner: locked.owner + 1 });
        assert!(is_busy(), "a child's is its parent's");
        drop(locked);
        assert!(!is_busy());
        drop(of_a_child);
        std::fs::remove_file(path).unwrap();
    }
}
