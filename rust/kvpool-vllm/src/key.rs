//! `Key`: a block hash and the number of its KV-cache group, in vLLM's format: the bytes of the digest,
//! then the group as four bytes, big endian.

use std::fmt;

use kvpool::{BlockHash, Name};
use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};

use crate::error::VllmError;

const GROUP: usize = 4;
/// Largest number of bytes in a key. Digests of vLLM's hash functions have 16 or 32 bytes.
const MAX: usize = 39;

/// A block hash and the KV-cache group in which the block was cached. A key takes 40 bytes of memory.
///
/// ```
/// use kvpool_vllm::Key;
/// let key = Key::new(&[7; 32], 2)?;
/// assert_eq!((key.digest(), key.group()), (&[7; 32][..], 2));
/// assert_eq!(Key::from_bytes(key.as_bytes())?, key);
/// # Ok::<(), kvpool_vllm::VllmError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Key {
    len: u8,
    bytes: [u8; MAX],
}

impl Key {
    /// Makes the key for `digest` in `group`.
    ///
    /// # Errors
    /// [`VllmError::KeyTooLong`] for a digest of more than 35 bytes.
    #[inline]
    pub fn new(digest: &[u8], group: u32) -> Result<Self, VllmError> {
        Self::check_digest(digest)?;
        let len = digest.len() + GROUP;
        let mut bytes = [0; MAX];
        bytes[..digest.len()].copy_from_slice(digest);
        bytes[digest.len()..len].copy_from_slice(&group.to_be_bytes());
        Ok(Self { len: len as u8, bytes })
    }

    /// Checks that the digest is short enough for a key.
    ///
    /// # Errors
    /// Like [`Self::new`].
    #[inline]
    pub const fn check_digest(digest: &[u8]) -> Result<(), VllmError> {
        if digest.len() > MAX - GROUP {
            return Err(VllmError::KeyTooLong { len: digest.len(), max: MAX - GROUP });
        }
        Ok(())
    }

    /// Makes a key from its bytes.
    ///
    /// # Errors
    /// [`VllmError::KeyTooLong`] for more than 39 bytes.
    pub fn from_bytes(key: &[u8]) -> Result<Self, VllmError> {
        if key.len() > MAX {
            return Err(VllmError::KeyTooLong { len: key.len(), max: MAX });
        }
        let mut bytes = [0; MAX];
        bytes[..key.len()].copy_from_slice(key);
        Ok(Self { len: key.len() as u8, bytes })
    }

    /// Makes a key from the core's name of a content, which is a padded hash and a group. The digest is
    /// the first `digest_len` bytes of the hash.
    #[inline]
    pub(crate) fn of_name(name: Name<'_>, digest_len: usize) -> Self {
        let digest_len = digest_len.min(32);
        let mut bytes = [0; MAX];
        bytes[..32].copy_from_slice(name.hash.as_bytes());
        bytes[digest_len..digest_len + GROUP].copy_from_slice(&u32::from(name.group).to_be_bytes());
        bytes[digest_len + GROUP..].fill(0);
        Self { len: (digest_len + GROUP) as u8, bytes }
    }

    /// Returns the name of the key's content in the core: a padded hash and a group. `None` if the
    /// digest does not have exactly `digest_len` bytes (at most 32), or if the group is too large.
    /// Because digests of one length have the same padding, different keys have different names.
    #[inline]
    pub(crate) fn name(&self, digest_len: usize) -> Option<(BlockHash, u16)> {
        if usize::from(self.len).checked_sub(GROUP) != Some(digest_len) {
            return None;
        }
        let group = self.bytes.get(digest_len..digest_len + GROUP)?;
        let group = u32::from_be_bytes(group.try_into().ok()?);
        let group = u16::try_from(group).ok().filter(|&group| group <= Name::MAX_GROUP)?;
        Some((padded(self.bytes.get(..digest_len)?)?, group))
    }

    /// Returns the hash under which the core stores a content that its lookups must not find. Its first
    /// eight bytes are [`Self::content`], by which policies identify contents.
    pub(crate) fn hidden_hash(&self) -> BlockHash {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(&self.bytes[..32]);
        bytes[..8].copy_from_slice(&self.content().to_le_bytes());
        BlockHash::from_bytes(bytes)
    }

    /// Returns the digest and the group as vLLM stores them.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Returns the digest of the block, without the group.
    #[must_use]
    pub fn digest(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).saturating_sub(GROUP)]
    }

    /// Returns a number that identifies the key's content in every process: the first eight bytes of
    /// the digest, as in kvpool's own pools, combined with the group.
    #[must_use]
    pub fn content(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.bytes;
        u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ u64::from(self.group())
    }

    /// Returns the group, which is stored in the last four bytes.
    #[must_use]
    pub fn group(&self) -> u32 {
        let tail = &self.as_bytes()[self.digest().len()..];
        tail.iter().fold(0, |group, &byte| (group << 8) | u32::from(byte))
    }
}

/// Pads a digest to the length of the core's hashes. Returns `None` if the digest is longer.
#[inline]
pub(crate) fn padded(digest: &[u8]) -> Option<BlockHash> {
    if let Ok(whole) = digest.try_into() {
        return Some(BlockHash::from_bytes(whole));
    }
    let mut bytes = [0; 32];
    bytes.get_mut(..digest.len())?.copy_from_slice(digest);
    Some(BlockHash::from_bytes(bytes))
}

impl PartialEq for Key {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        // The unused bytes after `len` are zero in both keys.
        self.len == other.len && self.bytes == other.bytes
    }
}

impl Eq for Key {}

impl std::hash::Hash for Key {
    #[inline]
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // The hash covers the first 32 bytes of the key and the group, which distinguishes keys with
        // the same digest. Digests are uniformly distributed, or chosen by someone who does not know
        // the secret key of the table's hash function.
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| self.bytes[at + i]));
        state.write_u64(word(0) ^ word(16));
        state.write_u64(word(8) ^ word(24) ^ (u64::from(self.group()) << 32));
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.digest().iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "/{}", self.group())
    }
}

// The complete key is serialized. Replays of journals need it, because equal keys have to refer to the
// same block.
impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.as_bytes())
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = serde_bytes::ByteBuf::deserialize(deserializer)?;
        Self::from_bytes(&bytes).map_err(D::Error::custom)
    }
}
