//! `Lock`: one store has a folder.
//!
//! Owns: the file `lock`, locked for as long as it is open. The system releases it however a process ends, so nothing is left to be
//! cleaned up; the process id in it is for messages alone.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::{BackendError, StoreError};

#[derive(Debug)]
pub(super) struct Lock {
    /// Open as long as the lock is held.
    _file: File,
}

impl Lock {
    pub(super) fn take(folder: &Path) -> Result<Self, StoreError> {
        let failed = BackendError::io("locking the folder");
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(folder.join("lock"))
            .map_err(&failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut told = String::new();
                let owner = file.read_to_string(&mut told).ok().and_then(|_| told.trim().parse().ok());
                return Err(StoreError::FolderInUse { path: folder.to_owned(), owner: owner.unwrap_or(0) });
            }
            Err(error) => return Err(failed(io::Error::from(error)).into()),
        }
        file.set_len(0).map_err(&failed)?;
        writeln!(file, "{}", std::process::id()).map_err(&failed)?;
        Ok(Self { _file: file })
    }
}
