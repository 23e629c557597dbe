//! `Key`: a block hash with the number of its KV-cache group, as vLLM writes it: the digest's bytes,
//! then the group as four bytes, big endian.

use std::fmt;

use kvpool::{BlockHash, Name};
use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};

use crate::error::VllmError;

/// Bytes of a group number.
const GROUP: usize = 4;
/// The most bytes of a key. Digests of vLLM's hash functions have 16 or 32.
const MAX: usize = 39;

/// A block hash and the KV-cache group it was cached for. 40 bytes, copied as they are.
#[derive(Clone, Copy)]
pub struct Key {
    len: u8,
    bytes: [u8; MAX],
}

impl Key {
    /// The key of `digest` in `group`.
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

    /// Checks that [`Self::new`] takes a digest.
    ///
    /// # Errors
    /// As [`Self::new`].
    #[inline]
    pub const fn check_digest(digest: &[u8]) -> Result<(), VllmError> {
        if digest.len() > MAX - GROUP {
            return Err(VllmError::KeyTooLong { len: digest.len(), max: MAX - GROUP });
        }
        Ok(())
    }

    /// A key that is written already.
    ///
    /// # Errors
    /// [`VllmError::KeyTooLong`] for one of more than 39 bytes.
    pub fn from_bytes(key: &[u8]) -> Result<Self, VllmError> {
        if key.len() > MAX {
            return Err(VllmError::KeyTooLong { len: key.len(), max: MAX });
        }
        let mut bytes = [0; MAX];
        bytes[..key.len()].copy_from_slice(key);
        Ok(Self { len: key.len() as u8, bytes })
    }

    /// The key of `digest_len` bytes of a hash of the core's, in a group.
    #[inline]
    pub(crate) fn of_name(name: Name<'_>, digest_len: usize) -> Self {
        let digest_len = digest_len.min(32);
        let mut bytes = [0; MAX];
        bytes[..32].copy_from_slice(name.hash.as_bytes());
        bytes[digest_len..digest_len + GROUP].copy_from_slice(&u32::from(name.group).to_be_bytes());
        bytes[digest_len + GROUP..].fill(0);
        Self { len: (digest_len + GROUP) as u8, bytes }
    }

    /// The hash and the group that the core knows the key by, if its digest is `digest_len` bytes long,
    /// at most 32. Two keys have one name only if they are equal: what a digest is padded with is the
    /// same for all of that length.
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

    /// What the core notes of a content that no name leads to. Policies know contents by the first
    /// eight bytes: see [`Self::content`].
    pub(crate) fn hidden_hash(&self) -> BlockHash {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(&self.bytes[..32]);
        bytes[..8].copy_from_slice(&self.content().to_le_bytes());
        BlockHash::from_bytes(bytes)
    }

    /// The whole key.
    #[must_use]
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The digest without the group.
    #[must_use]
    pub fn digest(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len).saturating_sub(GROUP)]
    }

    /// A number for the content that the key stands for, the same wherever and whenever it is computed:
    /// the first eight bytes of the digest, as in kvpool's own pools, told apart by the group.
    #[must_use]
    pub fn content(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.bytes;
        u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ u64::from(self.group())
    }

    /// The group: the last four bytes.
    #[must_use]
    pub fn group(&self) -> u32 {
        let tail = &self.as_bytes()[self.digest().len()..];
        tail.iter().fold(0, |group, &byte| (group << 8) | u32::from(byte))
    }
}

/// A digest as the core has it; `None` if it is longer than that.
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
        // What is behind the length is zero in both.
        self.len == other.len && self.bytes == other.bytes
    }
}

impl Eq for Key {}

impl std::hash::Hash for Key {
    #[inline]
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        // Nearly all of a digest; the group tells apart what is left. Digests are uniform or chosen by
        // nobody who knows the hasher's key.
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

// Journals have keys whole: the same key has to lead to the same block.
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
