//! `LockedFile`: a file that one at a time has, a process or a part of one.
//!
//! Owns: the lock. The system releases it however a process ends. Dropped, it is released at once,
//! whoever has the file open still: a child process has it until it runs another program, and one that
//! was forked to work on for as long as it lives. What such a child drops releases nothing: the lock is
//! its parent's.

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
    /// The process that has locked it.
    owner: u32,
}

impl LockedFile {
    /// A file to be read and written, which is made if there is none.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] if somebody else has it; as [`private::open`]; what the system says.
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
            _ = flock(&self.file, FlockOperation::Unlock); // closed in any case
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a child process has open is the same open file, as a clone is.
    #[test]
    fn it_is_released_with_its_owner_whoever_has_the_file_open_still() {
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
