//! `Header`: what stands before every object, and is compared on every load.
//!
//! Owns: the byte layout, its checksums, and the decision whether bytes are the object that was asked
//! for. An object is a header and a payload; nothing else is trusted, no file name, no index, no length
//! that a back end tells.
//!
//! | bytes | field, little endian |
//! |---|---|
//! | 0..8 | `kvpoolob` |
//! | 8..12 | [`FORMAT_VERSION`] |
//! | 12..16 | KV-cache group |
//! | 16..48 | digest of the [`Namespace`](crate::Namespace) |
//! | 48..80 | full digest of the block's prefix |
//! | 80..88, 88..92 | first token, number of tokens |
//! | 92..96 | length of the payload |
//! | 96..104 | XXH3-64 of the payload |
//! | 104..112 | XXH3-64 of the 104 bytes before |
//!
//! The header's checksum covers the payload's, so the two are one: a header with another payload, or a
//! payload with another header, is found. Both find accidents, not forgeries: whoever can write to a
//! store can write anything.
//!
//! Why XXH3-64: of 1 MiB it takes 57 µs (18 GB/s: at 3 GB/s from a disk a sixth of a core), CRC32C
//! (crate `crc32c`) 48 µs and CRC32 (`crc32fast`, with this processor's widest carry-less
//! multiplication) 17 µs; all of them the best of 400 on one busy core of a Xeon, compiled for any
//! x86-64. A CRC finds every short burst, but of other damage one case in 2^32 passes; here it is one
//! in 2^64, and a store reads millions of objects. It is a dependency already, and its result is the
//! same on every host.

use kvpool::BlockHash;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::namespace::{FORMAT_VERSION, NamespaceDigest};
use crate::object::{ObjectKey, ObjectName};

/// Bytes of an encoded header.
pub const HEADER_BYTES: usize = CHECKED + 8;

const MAGIC: [u8; 8] = *b"kvpoolob";
/// Bytes that the header's checksum covers.
const CHECKED: usize = 104;
/// Bytes that are checked and copied at a time: they stay in a core's cache in between.
const PIECE: usize = 128 << 10;

/// The tokens whose keys and values an object holds. For who looks at a store: an object is found by its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TokenRange {
    /// Position of the first in its prompt.
    pub first: u64,
    /// How many.
    pub count: u32,
}

impl TokenRange {
    /// Position of the object in its hash chain.
    pub(crate) fn depth(self) -> u32 {
        u32::try_from(self.first / u64::from(self.count.max(1))).unwrap_or(u32::MAX)
    }
}

/// A decoded header, or one that is to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The namespace that the object was written in.
    pub namespace: NamespaceDigest,
    /// What it is found by.
    pub key: ObjectKey,
    /// The tokens that it holds.
    pub tokens: TokenRange,
    /// Bytes of the payload.
    pub len: u32,
    /// Checksum of the payload.
    pub checksum: u64,
}

/// Why bytes are no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// Fewer bytes than a header has.
    #[error("{len} bytes are too few for a header of {HEADER_BYTES}")]
    Short {
        /// Bytes that there are.
        len: usize,
    },
    /// Something else, or nothing: a place that was never written, or was cleared.
    #[error("no object begins here")]
    Absent,
    /// The checksum is of other bytes.
    #[error("the header's checksum is {found:#018x}, its bytes have {computed:#018x}")]
    Damaged {
        /// As it stands there.
        found: u64,
        /// As it should.
        computed: u64,
    },
    /// Intact, but of another format.
    #[error("an object of format version {found}: this is version {FORMAT_VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
}

/// Why an intact header, or the payload behind it, is not what was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// No header.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// Bytes of another model, layout or weights.
    #[error("an object of namespace {found}, not of {wanted}")]
    Namespace {
        /// Its namespace.
        found: NamespaceDigest,
        /// The store's.
        wanted: NamespaceDigest,
    },
    /// Another object.
    #[error("object {found:?} where {wanted:?} was expected")]
    Key {
        /// What it is.
        found: ObjectKey,
        /// What was asked for.
        wanted: ObjectKey,
    },
    /// Another length.
    #[error("a payload of {found} bytes where {wanted} were expected")]
    Length {
        /// Its length.
        found: u32,
        /// The length asked for.
        wanted: u32,
    },
    /// Fewer bytes than the header says, or other ones.
    #[error("the payload's checksum is not {wanted:#018x}")]
    Payload {
        /// The checksum in the header.
        wanted: u64,
    },
}

impl Header {
    /// The header of a payload. Reads it all, for its checksum. `None` if it has 4 GiB or more.
    #[must_use]
    pub fn of(
        namespace: NamespaceDigest,
        key: ObjectKey,
        tokens: TokenRange,
        payload: &[u8],
    ) -> Option<Self> {
        let len = u32::try_from(payload.len()).ok()?;
        Some(Self { namespace, key, tokens, len, checksum: xxh3_64(payload) })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut at = 0;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&MAGIC);
        put(&FORMAT_VERSION.to_le_bytes());
        put(&self.key.group.to_le_bytes());
        put(self.namespace.as_bytes());
        put(self.key.hash.as_bytes());
        put(&self.tokens.first.to_le_bytes());
        put(&self.tokens.count.to_le_bytes());
        put(&self.len.to_le_bytes());
        put(&self.checksum.to_le_bytes());
        let checksum = xxh3_64(&bytes[..CHECKED]);
        bytes[CHECKED..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// What the first bytes say. Any bytes are answered; what stands behind the header is not looked at.
    ///
    /// # Errors
    /// [`HeaderError`]: they are no header of this format, or a damaged one.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(HeaderError::Short { len: bytes.len() });
        };
        let mut fields = Fields(bytes);
        if fields.take() != MAGIC {
            return Err(HeaderError::Absent);
        }
        let version = u32::from_le_bytes(fields.take());
        let group = u32::from_le_bytes(fields.take());
        let namespace = NamespaceDigest::from_bytes(fields.take());
        let hash = BlockHash::from_bytes(fields.take());
        let tokens =
            TokenRange { first: u64::from_le_bytes(fields.take()), count: u32::from_le_bytes(fields.take()) };
        let len = u32::from_le_bytes(fields.take());
        let checksum = u64::from_le_bytes(fields.take());
        let found = u64::from_le_bytes(fields.take());
        let computed = xxh3_64(&bytes[..CHECKED]);
        if found != computed {
            return Err(HeaderError::Damaged { found, computed });
        }
        if version != FORMAT_VERSION {
            return Err(HeaderError::Version { found: version });
        }
        Ok(Self { namespace, key: ObjectKey { hash, group }, tokens, len, checksum })
    }

    /// Whether this header is of the object that was asked for.
    ///
    /// # Errors
    /// [`Mismatch`], of the first field that differs.
    pub fn expect(&self, namespace: NamespaceDigest, key: ObjectKey, len: u32) -> Result<(), Mismatch> {
        if self.namespace != namespace {
            return Err(Mismatch::Namespace { found: self.namespace, wanted: namespace });
        }
        if self.key != key {
            return Err(Mismatch::Key { found: self.key, wanted: key });
        }
        if self.len != len {
            return Err(Mismatch::Length { found: self.len, wanted: len });
        }
        Ok(())
    }

    /// What the first bytes of an object say that is called `name` and has `bytes` in all, header included.
    ///
    /// # Errors
    /// [`Mismatch`]: no engine would take it.
    pub fn seen(front: &[u8], name: &ObjectName, bytes: u64) -> Result<Self, Mismatch> {
        let header = Self::decode(front)?;
        header.expect(name.namespace, name.key, header.len)?;
        let found = u32::try_from(bytes.saturating_sub(HEADER_BYTES as u64)).unwrap_or(u32::MAX);
        if found == header.len { Ok(header) } else { Err(Mismatch::Length { found, wanted: header.len }) }
    }

    /// Whether a payload is the one that this header was written for.
    ///
    /// # Errors
    /// [`Mismatch::Length`] or [`Mismatch::Payload`].
    pub fn verify(&self, payload: &[u8]) -> Result<(), Mismatch> {
        self.expect_len(payload)?;
        self.expect_checksum(xxh3_64(payload))
    }

    /// Copies a payload and verifies it on the way, a piece at a time, which is read from memory once
    /// for both. Of one that is not intact there are bytes in `to`, too; of another length there are
    /// none.
    ///
    /// # Errors
    /// As [`Self::verify`].
    pub(crate) fn copy_verified(&self, payload: &[u8], to: &mut [u8]) -> Result<(), Mismatch> {
        self.expect_len(payload)?;
        let mut checksum = Xxh3::new();
        for (piece, to) in payload.chunks(PIECE).zip(to[..payload.len()].chunks_mut(PIECE)) {
            checksum.update(piece);
            to.copy_from_slice(piece);
        }
        self.expect_checksum(checksum.digest())
    }

    fn expect_len(&self, payload: &[u8]) -> Result<(), Mismatch> {
        match u32::try_from(payload.len()) {
            Ok(len) if len == self.len => Ok(()),
            found => Err(Mismatch::Length { found: found.unwrap_or(u32::MAX), wanted: self.len }),
        }
    }

    fn expect_checksum(&self, found: u64) -> Result<(), Mismatch> {
        if found == self.checksum { Ok(()) } else { Err(Mismatch::Payload { wanted: self.checksum }) }
    }
}

/// Reads fields one behind the other; zeros behind the end.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) =
            self.0.split_first_chunk().map_or(([0; N], &[][..]), |(field, rest)| (*field, rest));
        self.0 = rest;
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the number of pieces, and the last one's length.
    #[test]
    fn what_is_copied_is_verified_as_what_is_read() {
        let key = ObjectKey { hash: BlockHash::from_bytes([7; 32]), group: 0 };
        let tokens = TokenRange { first: 0, count: 16 };
        for len in [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE, 3 * PIECE + 4097] {
            let mut payload: Vec<u8> = (0..len).map(|at| ((at * at) >> 3) as u8).collect();
            let header = Header::of(NamespaceDigest::from_bytes([1; 32]), key, tokens, &payload).unwrap();
            let mut to = vec![0xAA; len + 10];
            assert_eq!(header.copy_verified(&payload, &mut to), Ok(()));
            assert!(to[..len] == payload && to[len..].iter().all(|&byte| byte == 0xAA), "{len}");
            for at in [0, len / 2, len.saturating_sub(1)] {
                let Some(byte) = payload.get_mut(at) else { continue };
                *byte ^= 4;
                let wrong = header.verify(&payload);
                assert!(wrong.is_err());
                assert_eq!(header.copy_verified(&payload, &mut to), wrong, "{len}, {at}");
                payload[at] ^= 4;
            }
            payload.push(0);
            to.fill(0xAA);
            assert_eq!(header.copy_verified(&payload, &mut to), header.verify(&payload));
            assert!(to.iter().all(|&byte| byte == 0xAA), "of another length nothing is copied");
        }
    }
}
