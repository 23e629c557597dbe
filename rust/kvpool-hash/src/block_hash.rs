//! The digest of a prefix, as a value of 32 bytes.
//!
//! All algorithms use the same size, because 32 bytes are cheap to copy, are compared with one wide
//! compare, and can be a key in a flat array. A shorter digest is padded with zeros at its end. So two
//! digests of one algorithm are equal exactly if their padded forms are equal. Digests of different
//! algorithms are never compared, because a pool has one algorithm.

use std::fmt;

use super::{HashAlgorithm, HashError};

/// A second digest of a prefix, with 128 bits. It depends on a secret key, and is independent of the
/// [`BlockHash`]; see [`Verify`](super::Verify).
///
/// In test vectors and over a network it is 16 bytes, little endian.
pub type Fingerprint = u128;

/// The digest of a block and everything before it. It has 32 bytes. Shorter digests are padded with
/// zeros.
///
/// ```
/// use kvpool_hash::{BlockHash, HashAlgorithm};
/// let hash = BlockHash::from_digest(HashAlgorithm::Xxh3, &[0xab; 16])?;
/// assert_eq!(hash.digest(HashAlgorithm::Xxh3), [0xab; 16]);
/// assert_eq!(hash.as_bytes()[16..], [0; 16]);
/// assert!(format!("{hash:?}").starts_with("abab"));
/// # Ok::<(), kvpool_hash::HashError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockHash([u8; 32]);

impl BlockHash {
    /// Makes a hash from 32 bytes, which include the padding.
    #[inline]
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Makes a hash from a digest of `algorithm`, which it pads. [`Self::digest`] is the inverse.
    ///
    /// # Errors
    /// [`HashError::DigestLength`] if the digest has another length than [`HashAlgorithm::digest_len`].
    pub fn from_digest(algorithm: HashAlgorithm, digest: &[u8]) -> Result<Self, HashError> {
        let expected = algorithm.digest_len();
        if digest.len() != expected {
            return Err(HashError::DigestLength { len: digest.len(), expected, algorithm });
        }
        let mut bytes = [0; 32];
        bytes[..expected].copy_from_slice(digest);
        Ok(Self(bytes))
    }

    /// Makes a hash from a digest of 16 bytes, passed as the big-endian number that is the canonical
    /// form of XXH3-128.
    #[cfg(feature = "xxh3")]
    pub(crate) fn from_u128_be(value: u128) -> Self {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&value.to_be_bytes());
        Self(bytes)
    }

    /// All 32 bytes, including the padding of a shorter digest.
    #[inline]
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first 8 bytes of the digest as a number. Equal prefixes have equal keys, and different
    /// prefixes almost certainly have different keys.
    #[inline]
    #[must_use]
    pub fn key(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// Makes a hash from the number that [`Self::key`] returned, followed by zeros. The replay of a
    /// journal uses such hashes, because a journal contains only the keys of hashes.
    #[cfg(feature = "recorded")]
    #[must_use]
    pub fn from_key(key: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&key.to_le_bytes());
        Self(bytes)
    }

    /// The digest without its padding: the first [`HashAlgorithm::digest_len`] bytes.
    #[inline]
    #[must_use]
    pub fn digest(&self, algorithm: HashAlgorithm) -> &[u8] {
        &self.0[..algorithm.digest_len()]
    }
}

impl fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl From<[u8; 32]> for BlockHash {
    #[inline]
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl AsRef<[u8]> for BlockHash {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
