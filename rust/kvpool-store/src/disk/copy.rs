//! `HeaderCopy`: one file with copies of the headers of all places of a disk. When a store opens, it
//! reads this file of a few megabytes instead of one page at every place.
//!
//! Owns: that file. The file is only a hint, because every load compares the header and the payload at
//! the place. A wrong entry leads to a miss. If an entry is damaged or marked as unknown, the store
//! reads the header from the place.
//!
//! | bytes | content |
//! |---|---|
//! | 0..32 | `kvpoolhc`, version, bytes of a slot, the slab's inode, XXH3-64 of these |
//! | 32..4096 | zeros |
//! | 4096 + 128 n | entry of place n |
//!
//! An entry has the 112 bytes of the header, or zeros if the place is free. A checksum follows, which
//! is the *seal* of the entry: the XXH3-64 of these bytes, seeded with n + 1. The entry ends with 8
//! zeros.
//!
//! An entry whose seal is wrong is unknown. Before a place is written, the seal of its entry is
//! overwritten. After the write, the entry gets a new seal. Therefore a process that is killed in
//! between leaves an unknown entry, never a wrong one.
//!
//! After a power loss, entries may be older than their places. A store therefore compares
//! [`SAMPLED_ENTRIES`] entries with their places when it opens. If one of them differs, it ignores all
//! entries.
//!
//! Cost: 128 bytes per place in addition to the slab, and two small writes into the page cache per
//! object. Neither write waits for the disk.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::header::HEADER_BYTES;
use crate::object::{PAGE, Place};
use crate::private::{self, For};

/// The first bytes of a place in the slab. They are the header of the object there, zeros if the place is
/// free, or damaged bytes.
pub(super) type Bytes = [u8; HEADER_BYTES];

/// Number of places that a store reads when it opens, to check this file before it uses it.
pub(super) const SAMPLED_ENTRIES: u32 = 64;

const MAGIC: [u8; 8] = *b"kvpoolhc";
const VERSION: u32 = 1;
/// Number of bytes of the file's own header that are covered by its checksum.
const CHECKED: usize = 28;
/// Number of bytes in an entry. Only the first `SEALED` bytes (header and seal) are used.
pub(super) const ENTRY: usize = 128;
const SEALED: usize = HEADER_BYTES + 8;

#[derive(Debug)]
pub(super) struct HeaderCopy {
    file: File,
}

impl HeaderCopy {
    /// Opens or creates the file of header copies for a slab (the file with all objects), with disk
    /// space for every place. If the copies belong to another slab, removes them.
    pub(super) fn open(path: &Path, slab: &File, slot_bytes: u64, places: u32) -> io::Result<Self> {
        let file = private::open(path, For::Keeping)?;
        let own = identity(slab.metadata()?.ino(), slot_bytes);
        let mut found = [0; CHECKED + 8];
        // A file that is too short is treated like the file of another slab.
        if file.read_exact_at(&mut found, 0).is_err() || found != own {
            file.set_len(0)?;
            file.write_all_at(&own, 0)?;
        }
        // Truncate a file that is too long. Otherwise its last entries would be used if the slab grows
        // again.
        let bytes = begin(places);
        file.set_len(bytes)?;
        match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) | Err(Errno::OPNOTSUPP) => Ok(Self { file }),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the file of header copies without checking to which slab it belongs, so that the caller
    /// can mark entries as unknown.
    pub(super) fn of(path: &Path) -> io::Result<Option<Self>> {
        match private::open(path, For::Writing) {
            Ok(file) => Ok(Some(Self { file })),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Marks the entry of a place as unknown. Callers do this before they write the place.
    pub(super) fn forget(&self, place: Place) -> io::Result<()> {
        self.file.write_all_at(&[0; 8], begin(place) + HEADER_BYTES as u64)
    }

    /// Stores the header of a place and seals the entry. Callers do this after they have written the
    /// place.
    pub(super) fn note(&self, place: Place, header: &Bytes) -> io::Result<()> {
        self.file.write_all_at(&sealed(place, header)[..SEALED], begin(place))
    }

    /// Stores the headers of consecutive places, beginning at `first`. The entry of a place with `None`
    /// becomes unknown.
    pub(super) fn note_all(&self, first: Place, headers: &[Option<Bytes>]) -> io::Result<()> {
        let sealed = |(place, header): (Place, &Option<Bytes>)| {
            header.as_ref().map_or([0; ENTRY], |header| sealed(place, header))
        };
        let entries: Vec<u8> = (first..).zip(headers).flat_map(sealed).collect();
        self.file.write_all_at(&entries, begin(first))
    }

    /// Reads the entries of `count` places, beginning at `first`. `None` for an unknown entry, and for
    /// entries after the end of the file.
    pub(super) fn read(&self, first: Place, count: usize) -> io::Result<Vec<Option<Bytes>>> {
        let mut bytes = vec![0; count * ENTRY];
        let mut done = 0;
        while done < bytes.len() {
            match self.file.read_at(&mut bytes[done..], begin(first) + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let entries = (first..).zip(bytes.chunks_exact(ENTRY));
        Ok(entries.map(|(place, entry)| unsealed(place, entry)).collect())
    }
}

const fn begin(place: Place) -> u64 {
    PAGE as u64 + place as u64 * ENTRY as u64
}

fn identity(inode: u64, slot_bytes: u64) -> [u8; CHECKED + 8] {
    let mut bytes = [0; CHECKED + 8];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..20].copy_from_slice(&slot_bytes.to_le_bytes());
    bytes[20..CHECKED].copy_from_slice(&inode.to_le_bytes());
    let checksum = xxh3_64(&bytes[..CHECKED]);
    bytes[CHECKED..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// Computes the seal of an entry. The seed depends on the place, so an entry that was copied to another
/// place is unknown.
fn seal(place: Place, header: &[u8]) -> [u8; 8] {
    xxh3_64_with_seed(header, u64::from(place) + 1).to_le_bytes()
}

fn sealed(place: Place, header: &Bytes) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    entry[..HEADER_BYTES].copy_from_slice(header);
    entry[HEADER_BYTES..SEALED].copy_from_slice(&seal(place, header));
    entry
}

fn unsealed(place: Place, entry: &[u8]) -> Option<Bytes> {
    let (header, rest) = entry.split_first_chunk::<HEADER_BYTES>()?;
    (rest.first_chunk() == Some(&seal(place, header))).then_some(*header)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If any used bit of an entry changes, the entry becomes unknown. An entry is also unknown if it
    /// was copied to another place.
    #[test]
    fn a_changed_entry_is_unknown() {
        let header: Bytes = std::array::from_fn(|at| at as u8);
        let entry = sealed(7, &header);
        assert_eq!(unsealed(7, &entry), Some(header));
        assert_eq!(unsealed(8, &entry), None);
        for bit in 0..SEALED * 8 {
            let mut other = entry;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(unsealed(7, &other), None, "bit {bit}");
        }
        assert_eq!(unsealed(7, &[0; ENTRY]), None, "what was never written is not free");
        assert_eq!(
            unsealed(7, &sealed(7, &[0; HEADER_BYTES])),
            Some([0; HEADER_BYTES]),
            "what is free is known"
        );
    }
}
