//! `Key`: a block hash with the number of its KV-cache group, as vLLM writes it: the digest's bytes, then the group as
//! four bytes, big endian.

use std::borrow::Borrow;

use smallvec::SmallVec;

/// Bytes of a group number.
const GROUP: usize = 4;

/// A block hash and the KV-cache group it was cached for. Digests of up to 32 bytes need no memory of their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(SmallVec<[u8; 36]>);

impl Key {
    /// The key of `digest` in `group`.
    #[must_use]
    pub fn new(digest: &[u8], group: u32) -> Self {
        let mut bytes = SmallVec::from_slice(digest);
        bytes.extend_from_slice(&group.to_be_bytes());
        Self(bytes)
    }

    /// A key that is written already.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(SmallVec::from_slice(bytes))
    }

    /// The whole key.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The digest without the group.
    #[must_use]
    pub fn digest(&self) -> &[u8] {
        &self.0[..self.0.len().saturating_sub(GROUP)]
    }

    /// The group: the last four bytes.
    #[must_use]
    pub fn group(&self) -> u32 {
        let tail = &self.0[self.0.len().saturating_sub(GROUP)..];
        tail.iter().fold(0, |group, &byte| (group << 8) | u32::from(byte))
    }
}

impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}
