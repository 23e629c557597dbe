//! `SlotHeaders`: whose bytes lie in each slot of a memory that outlives the process.
//!
//! Owns: a file with a [`Header`] for each slot, 128 bytes apart. It lies beside the memory, in the
//! same kind of place: what a process has written to a file is there for the next one, however it
//! ended.
//!
//! The order of writes is the caller's part: [`SlotHeaders::clear`] before the first byte of a slot
//! changes, [`SlotHeaders::seal`] when the last one is written. Between the two the slot is nobody's.
//!
//! One at a time has the file, and so the memory: a process that is still dying would write to blocks
//! behind the back of the one that comes after it. The system releases the lock however a process ends.
//!
//! Costs: a `pwrite` of 128 bytes each; a seal reads the payload once, for its checksum.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::header::{HEADER_BYTES, Header, Mismatch, TokenRange};
use crate::locked::LockedFile;
use crate::namespace::NamespaceDigest;
use crate::object::ObjectKey;

/// Bytes from one header to the next.
const STRIDE: usize = 128;

/// Headers of slots.
#[derive(Debug)]
pub struct SlotHeaders {
    file: LockedFile,
    namespace: Mutex<NamespaceDigest>,
    slots: u32,
}

impl SlotHeaders {
    /// The headers in a file, which is made if there is none. Of another length it is made anew:
    /// nothing is in any slot.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] if somebody else has it, a process or another one of these; what
    /// the system says.
    pub fn open(path: &Path, namespace: NamespaceDigest, slots: u32) -> io::Result<Self> {
        let file = LockedFile::open(path).map_err(|error| match error.kind() {
            kind @ io::ErrorKind::ResourceBusy => {
                let message = format!("{} is in use: its memory has one engine at a time", path.display());
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

    /// The namespace that slots are sealed in.
    #[must_use]
    pub fn namespace(&self) -> NamespaceDigest {
        *self.namespace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seals slots in another namespace from now on, when weights change under a running engine. Headers that
    /// were sealed before belong to the old namespace.
    pub fn renew(&self, namespace: NamespaceDigest) {
        *self.namespace.lock().unwrap_or_else(PoisonError::into_inner) = namespace;
    }

    /// Slots.
    #[must_use]
    pub const fn slots(&self) -> u32 {
        self.slots
    }

    fn place(&self, slot: u32) -> io::Result<u64> {
        if slot < self.slots {
            return Ok(u64::from(slot) * STRIDE as u64);
        }
        let message = format!("slot {slot} is none of {}", self.slots);
        Err(io::Error::new(io::ErrorKind::InvalidInput, message))
    }

    /// The slots are nobody's from now on.
    ///
    /// # Errors
    /// What the system says; a slot that there is not. Then nobody may write to the slots.
    pub fn clear(&self, slots: &[u32]) -> io::Result<()> {
        let places: Vec<_> = slots.iter().map(|&slot| self.place(slot)).collect::<io::Result<_>>()?;
        places.into_iter().try_for_each(|place| self.file.write_all_at(&[0; STRIDE], place))
    }

    /// A slot has these bytes, which are the KV of a key. They must not change until it is cleared.
    ///
    /// # Errors
    /// What the system says; a slot that there is not; a payload of 4 GiB or more. Then the slot is nobody's.
    pub fn seal(&self, slot: u32, key: ObjectKey, payload: &[u8]) -> io::Result<()> {
        let place = self.place(slot)?;
        let header = Header::of(self.namespace(), key, TokenRange::default(), payload)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a slot of 4 GiB or more"))?;
        let mut bytes = [0; STRIDE];
        bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
        self.file.write_all_at(&bytes, place)
    }

    /// All headers as they are now.
    ///
    /// # Errors
    /// What the system says.
    pub fn read(&self) -> io::Result<Headers> {
        let len = self.slots as usize * STRIDE;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        bytes.resize(len, 0);
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(Headers { bytes, namespace: self.namespace() })
    }
}

/// Headers of slots at a moment.
#[derive(Debug)]
pub struct Headers {
    bytes: Vec<u8>,
    namespace: NamespaceDigest,
}

impl Headers {
    /// What a slot holds, if it is this key's, in the namespace.
    ///
    /// # Errors
    /// Why it is not.
    pub fn expect(&self, slot: u32, key: ObjectKey) -> Result<Header, Mismatch> {
        let start = slot as usize * STRIDE;
        let header = Header::decode(self.bytes.get(start..start + HEADER_BYTES).unwrap_or(&[]))?;
        header.expect(self.namespace, key, header.len)?;
        Ok(header)
    }
}
