//! `SlotHeaders`: identifies the bytes in each slot of a memory that outlives the process.
//!
//! Owns: a file with a [`Header`] for each slot. The headers are 128 bytes apart. The file is next to
//! the memory, on the same kind of file system. Bytes that a process has written to the file are there
//! for the next process, even if the first process was killed.
//!
//! The caller orders the writes. It calls [`SlotHeaders::clear`] before the first byte of a slot
//! changes, and [`SlotHeaders::seal`] after the last byte is written. Between the two calls, the slot
//! has no header.
//!
//! Only one process at a time can use the file, and therefore the memory. Otherwise a process that is
//! still shutting down could write to blocks of its successor. The system releases the lock even if the
//! process is killed.
//!
//! Costs: one `pwrite` of 128 bytes per call. A seal also reads the payload once, for its checksum.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::header::{HEADER_BYTES, Header, Mismatch, TokenRange};
use crate::locked::LockedFile;
use crate::namespace::NamespaceDigest;
use crate::object::ObjectKey;

/// Number of bytes from one header to the next.
const STRIDE: usize = 128;

/// The headers of all slots of a memory.
///
/// ```
/// use kvpool_store::{NamespaceDigest, ObjectKey, warm::SlotHeaders};
/// # let path = std::env::temp_dir().join(format!("kvpool-slots-doc-{}", std::process::id()));
/// let headers = SlotHeaders::open(&path, NamespaceDigest::from_bytes([7; 32]), 2)?;
/// let key = ObjectKey { hash: [1; 32].into(), group: 0 };
/// headers.seal(1, key, b"payload")?;
/// assert!(headers.read()?.expect(1, key).is_ok());
/// headers.clear(&[1])?; // before the slot is overwritten
/// assert!(headers.read()?.expect(1, key).is_err());
/// # drop(headers);
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct SlotHeaders {
    file: LockedFile,
    namespace: Mutex<NamespaceDigest>,
    slots: u32,
}

impl SlotHeaders {
    /// Opens the file of headers, and creates it if it does not exist. A file of another length is
    /// emptied, so that no slot has a header.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] if another process, or another `SlotHeaders`, uses the file.
    /// Other errors of the system.
    pub fn open(path: &Path, namespace: NamespaceDigest, slots: u32) -> io::Result<Self> {
        let file = LockedFile::open(path).map_err(|error| match error.kind() {
            kind @ io::ErrorKind::ResourceBusy => {
                let message =
                    format!("{} is in use: only one engine at a time can use its memory", path.display());
                io::Error::new(kind, message)
            }
            _ => error,
        })?;
        let length = u64::from(slots) * STRIDE as u64;
        if file.metadata()?.len() != length {
            file.set_len(0)?;
            file.set_len(length)?;
        }
        Ok(Self { file, namespace: Mutex::new(namespace), slots })
    }

    /// Returns the namespace of the headers that [`Self::seal`] writes.
    #[must_use]
    pub fn namespace(&self) -> NamespaceDigest {
        *self.namespace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses another namespace for headers from now on, for example when the weights change in a running
    /// engine. Headers that were written before still belong to the old namespace.
    pub fn renew(&self, namespace: NamespaceDigest) {
        *self.namespace.lock().unwrap_or_else(PoisonError::into_inner) = namespace;
    }

    /// Number of slots.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    fn place(&self, slot: u32) -> io::Result<u64> {
        if slot < self.slots {
            return Ok(u64::from(slot) * STRIDE as u64);
        }
        let message = format!("slot {slot} is out of range: there are {} slots", self.slots);
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    }

    /// Removes the headers of slots. The bytes of these slots are undefined from now on.
    ///
    /// # Errors
    /// The error of the system, or a slot out of range. The caller must then not write to the slots.
    pub fn clear(&self, slots: &[u32]) -> io::Result<()> {
        let places: Vec<_> = slots.iter().map(|&slot| self.place(slot)).collect::<io::Result<_>>()?;
        places.into_iter().try_for_each(|place| self.file.write_all_at(&[0; STRIDE], place))
    }

    /// Writes the header of a slot after its bytes were written. `payload` is these bytes: the KV of
    /// `key`. The bytes must not change until the slot is cleared.
    ///
    /// # Errors
    /// The error of the system, a slot out of range, or a payload of 4 GiB or more. The slot then has
    /// no header.
    pub fn seal(&self, slot: u32, key: ObjectKey, payload: &[u8]) -> io::Result<()> {
        let place = self.place(slot)?;
        let header = Header::of(self.namespace(), key, TokenRange::default(), payload)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a slot of 4 GiB or more"))?;
        let mut bytes = [0; STRIDE];
        bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
        self.file.write_all_at(&bytes, place)
    }

    /// Returns all headers as they are now.
    ///
    /// # Errors
    /// The error of the system.
    pub fn read(&self) -> io::Result<Headers> {
        let len = self.slots as usize * STRIDE;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        bytes.resize(len, 0);
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(Headers { bytes, namespace: self.namespace() })
    }
}

/// A copy of the headers of all slots.
#[derive(Debug)]
pub struct Headers {
    bytes: Vec<u8>,
    namespace: NamespaceDigest,
}

impl Headers {
    /// Returns the header of a slot if it has this key and the current namespace.
    ///
    /// # Errors
    /// The first difference.
    pub fn expect(&self, slot: u32, key: ObjectKey) -> Result<Header, Mismatch> {
        let start = slot as usize * STRIDE;
        let header = Header::decode(self.bytes.get(start..start + HEADER_BYTES).unwrap_or(&[]))?;
        header.expect(self.namespace, key, header.len)?;
        Ok(header)
    }
}
