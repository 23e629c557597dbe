//! Frames: units of a journal's file. Each has a header with a checksum, and contains records.
//!
//! ```text
//! file    = magic frame(header) frame(records)*
//! header  = JournalHeader, followed by the KV-cache groups if the magic number is that of groups
//! frame   = length of payload: u32 LE, XXH3-64 of payload: u64 LE, payload
//! payload = number of its first operation: u64 LE, operations: u32 LE,
//!           then the header or records in postcard's encoding
//! ```

use postcard::ser_flavors::Flavor;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// The first bytes of a journal. The last two digits are the version of the format.
pub const MAGIC: [u8; 8] = *b"KVPJRN04";

/// The first bytes of a journal of a manager with KV-cache groups. Its version differs, so that readers
/// without support for groups refuse the journal. The groups follow the header.
pub const MAGIC_OF_GROUPS: [u8; 8] = *b"KVPJRN05";

/// One entry of a journal, which is an operation or a digest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Entry<O> {
    /// An operation, and the check of its answer.
    Operation(O, u32),
    /// The digest of the state after all operations before this entry.
    Digest(u64),
}

/// Number of bytes of a frame before its payload: the length and the checksum.
pub(super) const HEAD: usize = 12;
/// Number of bytes of a frame before its records: those before the payload, and those of the payload
/// before its records.
pub(crate) const PREFIX: usize = HEAD + RECORDS;
/// Number of bytes of a payload before its records: the number of its first operation, and its number
/// of operations.
pub(super) const RECORDS: usize = 12;

/// A destination for postcard's encoder, which appends the bytes to a list.
struct Push<'a>(&'a mut Vec<u8>);

impl Flavor for Push<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        // Most numbers take one byte. A push of one byte is faster than a call of `memcpy`.
        match bytes {
            &[byte] => self.0.push(byte),
            bytes => self.0.extend_from_slice(bytes),
        }
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Begins a frame in an empty buffer. Its first operation has the number `first`.
pub(crate) fn open(frame: &mut Vec<u8>, first: u64) {
    frame.extend_from_slice(&[0; HEAD]);
    frame.extend_from_slice(&first.to_le_bytes());
    frame.extend_from_slice(&[0; 4]);
}

/// Appends a value to a frame, in postcard's encoding.
pub(crate) fn push(frame: &mut Vec<u8>, value: &impl Serialize) {
    let before = frame.len();
    if postcard::serialize_with_flavor(value, Push(frame)).is_err() {
        // No type of this crate fails to serialize. If one did fail, its incomplete record would have
        // to be removed from the frame.
        frame.truncate(before);
    }
}

/// Appends a number in the same encoding as [`push`]: seven bits per byte, the lowest bits first.
#[inline]
pub(crate) fn push_number(frame: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        frame.push(number as u8 | 0x80);
        number >>= 7;
    }
    frame.push(number as u8);
}

/// Appends a byte string in the same encoding as [`push`].
#[inline]
pub(crate) fn push_bytes(frame: &mut Vec<u8>, bytes: &[u8]) {
    push_number(frame, bytes.len());
    // Most strings are empty, so avoid the call of `memcpy`.
    if !bytes.is_empty() {
        frame.extend_from_slice(bytes);
    }
}

/// Completes a frame: writes its length, its checksum, and its number of operations.
pub(crate) fn seal(frame: &mut [u8], operations: u32) -> &[u8] {
    frame[PREFIX - 4..PREFIX].copy_from_slice(&operations.to_le_bytes());
    let (head, payload) = frame.split_at_mut(HEAD);
    let (length, checksum) = head.split_at_mut(4);
    length.copy_from_slice(&(payload.len() as u32).to_le_bytes());
    checksum.copy_from_slice(&xxh3_64(payload).to_le_bytes());
    frame
}

#[cfg(test)]
mod tests {
    use super::{push, push_bytes, push_number};
    use crate::Keys;

    #[test]
    fn numbers_and_byte_strings_are_those_of_postcard() {
        let numbers =
            (0..64).flat_map(|bit| [(1_usize << bit) - 1, 1 << bit, (1 << bit) + 1]).chain([usize::MAX]);
        for number in numbers {
            let (mut mine, mut theirs) = (Vec::new(), Vec::new());
            push_number(&mut mine, number);
            push(&mut theirs, &number);
            assert_eq!(mine, theirs, "{number}");
        }
        for blocks in [0, 1, 15, 16, 17, 3000] {
            let keys = Keys::pack(&(0..blocks).map(|key| key * key).collect::<Vec<_>>());
            let (mut mine, mut theirs) = (Vec::new(), Vec::new());
            push_bytes(&mut mine, keys.as_bytes());
            push(&mut theirs, &keys);
            assert_eq!(mine, theirs, "{blocks}");
        }
    }
}
