//! The digest of a prefix, as a value.
//!
//! There is one fixed size for all algorithms: 32 bytes, which are cheap to copy, are compared with one
//! wide compare, and can be a key in a flat array. Shorter digests are padded with zeros at the end, so
//! two digests of one algorithm are equal if and only if their padded forms are. Digests of different
//! algorithms are never compared, because a pool has one algorithm.

use std::fmt;

use super::{HashAlgorithm, HashError};

/// A second, independent, keyed 128-bit digest of the same prefix; see [`Verify`](super::Verify).
///
/// Its byte form (in vectors and over a network) is 16 bytes, little endian.
pub type Fingerprint = u128;

/// The digest of a block and everything before it. 32 bytes; shorter digests are padded with zeros.
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
    /// Makes a hash from its padded form.
    #[inline]
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Pads a digest of `algorithm`; the inverse of [`Self::digest`].
    ///
    /// # Errors
    /// [`HashError::DigestLength`] for any other length than [`HashAlgorithm::digest_len`].
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

    /// All 32 bytes, including the padding.
    #[inline]
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first 8 bytes. Equal contents have equal keys, and different contents almost certainly have
    /// different keys.
    #[inline]
    #[must_use]
    pub fn key(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// Makes a hash with this key, followed by zeros. The replay of a journal uses such hashes, because
    /// a journal contains only the keys of digests.
    #[cfg(feature = "recorded")]
    #[must_use]
    pub fn from_key(key: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&key.to_le_bytes());
        Self(bytes)
    }

    /// The bytes that `algorithm` produced: the first [`HashAlgorithm::digest_len`].
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
