//! `Lock`: lets only one store use a folder at a time.
//!
//! Owns: the file `lock` in the folder. The file contains a process id, which is only used in messages.

use std::io::{self, Write};
use std::path::Path;

use crate::error::{BackendError, StoreError};
use crate::locked::LockedFile;
use crate::private;

#[derive(Debug)]
pub(super) struct Lock {
    _file: LockedFile,
}

impl Lock {
    pub(super) fn take(folder: &Path) -> Result<Self, StoreError> {
        let failed = BackendError::io("locking the folder");
        let path = folder.join("lock");
        let file = match LockedFile::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                let owner = private::read(&path, 32)
                    .ok()
                    .and_then(|content| String::from_utf8(content).ok()?.trim().parse().ok());
                return Err(StoreError::FolderInUse { path: folder.to_owned(), owner: owner.unwrap_or(0) });
            }
            Err(error) => return Err(failed(error).into()),
        };
        file.set_len(0).map_err(&failed)?;
        writeln!(&mut &*file, "{}", std::process::id()).map_err(&failed)?;
        Ok(Self { _file: file })
    }
}
