//! `Inspector`: lists, verifies and removes the objects in a folder, for people and tools.
//!
//! It needs neither a namespace nor an arena. Headers can be read while a store uses the folder. An
//! object that is being written then appears damaged or absent. Operations that change the folder take
//! its lock.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::copy::HeaderCopy;
use super::lock::Lock;
use super::slab::{Slab, file_name};
use crate::arena::Arena;
use crate::error::{BackendError, StoreError};
use crate::header::{Header, HeaderError, Mismatch};
use crate::namespace::{Namespace, NamespaceDigest};
use crate::object::{PAGE, Page, Place};
use crate::private;

/// A folder that a [`DiskBackend`](super::DiskBackend) created.
///
/// ```
/// use kvpool_store::{StoreError, disk::Inspector};
/// let missing = std::env::temp_dir().join("kvpool-no-such-folder");
/// assert!(matches!(Inspector::look(&missing), Err(StoreError::NoStore { .. })));
/// ```
#[derive(Debug)]
pub struct Inspector {
    folder: PathBuf,
    slab: Slab,
    /// The file with copies of the headers. `None` if it does not exist, or if this inspector must not
    /// change the folder.
    copy: Option<HeaderCopy>,
    /// The lock of the folder, if this inspector may change it.
    lock: Option<Lock>,
}

impl Inspector {
    /// Opens a folder for reading only.
    ///
    /// # Errors
    /// [`StoreError::NoStore`] if the folder contains no store; [`StoreError::Backend`].
    pub fn look(folder: &Path) -> Result<Self, StoreError> {
        Self::open(folder, None)
    }

    /// Opens a folder that no store uses, in order to verify objects or to clear places.
    ///
    /// # Errors
    /// [`StoreError::FolderInUse`]; otherwise like [`Self::look`].
    pub fn exclusive(folder: &Path) -> Result<Self, StoreError> {
        // Call `look` first. It fails if the folder contains no store, whereas taking the lock would
        // create a file there.
        Self::look(folder)?;
        Self::open(folder, Some(Lock::take(folder)?))
    }

    fn open(folder: &Path, lock: Option<Lock>) -> Result<Self, StoreError> {
        match Slab::of(folder, lock.is_some()) {
            Ok(Some(slab)) => {
                let path = folder.join(file_name(slab.slot_bytes(), "headers"));
                let copy = lock.as_ref().and_then(|_| HeaderCopy::of(&path).transpose()).transpose();
                let copy = copy.map_err(BackendError::io("opening the copy of the headers"))?;
                Ok(Self { folder: folder.to_owned(), slab, copy, lock })
            }
            Ok(None) => Err(StoreError::NoStore { path: folder.to_owned() }),
            Err(_) if !folder.is_dir() => Err(StoreError::NoStore { path: folder.to_owned() }),
            Err(error) => Err(error.into()),
        }
    }

    /// Largest number of objects that the folder can hold.
    #[must_use]
    pub const fn places(&self) -> u32 {
        self.slab.places()
    }

    /// Number of bytes of the disk per object.
    #[must_use]
    pub const fn object_bytes(&self) -> u64 {
        self.slab.slot_bytes()
    }

    /// Returns the header at a place. Returns `None` if there is no object.
    ///
    /// # Errors
    /// [`HeaderError`] in the inner result if the place contains no intact header. [`BackendError`] if
    /// the place cannot be read.
    pub fn header(&self, place: Place) -> Result<Result<Option<Header>, HeaderError>, BackendError> {
        let mut page = Page::zeroed();
        self.slab.read_header(place, &mut page)?;
        Ok(match Header::decode(&page.0) {
            Ok(header) => Ok(Some(header)),
            Err(HeaderError::Absent) => Ok(None),
            Err(error) => Err(error),
        })
    }

    /// Reads the object at a place, and compares its checksums. Returns `None` if there is no object.
    ///
    /// # Errors
    /// [`Mismatch`] in the inner result if the object is damaged. [`StoreError`] if the place cannot be
    /// read.
    pub fn verify(&self, place: Place) -> Result<Result<Option<Header>, Mismatch>, StoreError> {
        let header = match self.header(place)? {
            Ok(Some(header)) => header,
            Ok(None) => return Ok(Ok(None)),
            Err(error) => return Ok(Err(error.into())),
        };
        let most = self.object_bytes() - PAGE as u64;
        if header.len == 0 || u64::from(header.len) > most {
            let wanted = u32::try_from(most).unwrap_or(u32::MAX);
            return Ok(Err(Mismatch::Length { found: header.len, wanted }));
        }
        let mut payload = Arena::new(1, header.len)?.write(0)?;
        self.slab.read(place, &mut Page::zeroed(), payload.pages(header.len).unwrap_or_default())?;
        Ok(header.verify(&payload).map(|()| Some(header)))
    }

    /// Removes the object at a place, so that the place is free.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] unless [`Self::exclusive`] opened the folder; [`StoreError::Backend`].
    pub fn clear(&self, place: Place) -> Result<(), StoreError> {
        self.may_write()?;
        let forgotten = self.copy.as_ref().map_or(Ok(()), |copy| copy.forget(place));
        forgotten.map_err(BackendError::io("writing the copy of the headers"))?;
        Ok(self.slab.write_header(place, &super::BLANK)?)
    }

    /// Returns all namespaces that have ever been used in this folder. The value is `None` if the text
    /// of a namespace is missing or damaged.
    ///
    /// # Errors
    /// [`BackendError`] if the folder cannot be read.
    pub fn namespaces(&self) -> Result<BTreeMap<NamespaceDigest, Option<Namespace>>, BackendError> {
        let reading = BackendError::io("reading the folder");
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(&self.folder).map_err(&reading)? {
            let path = entry.map_err(&reading)?.path();
            let Some(digest) = digest_of(&path) else { continue };
            let text = private::read_text(&path);
            let namespace = text.and_then(|text| Namespace::from_json(&text).ok());
            found.insert(digest, namespace.filter(|namespace| namespace.digest() == digest));
        }
        Ok(found)
    }

    /// Removes the text of a namespace.
    ///
    /// # Errors
    /// Like [`Self::clear`].
    pub fn forget(&self, namespace: NamespaceDigest) -> Result<(), StoreError> {
        self.may_write()?;
        match fs::remove_file(self.folder.join(format!("{namespace}.json"))) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(BackendError::io("removing the text of a namespace")(error).into())
            }
            _ => Ok(()),
        }
    }

    fn may_write(&self) -> Result<(), StoreError> {
        if self.lock.is_some() { Ok(()) } else { Err(StoreError::ReadOnly { path: self.folder.clone() }) }
    }
}

fn digest_of(path: &Path) -> Option<NamespaceDigest> {
    path.file_name()?.to_str()?.strip_suffix(".json")?.parse().ok()
}
