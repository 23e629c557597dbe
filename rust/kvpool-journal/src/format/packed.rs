//! Lists of numbers that are stored as byte strings, so that a whole list is copied at once. The length
//! of the bytes is validated when a list is read.

use kvpool::BlockId;
use kvpool::hash::{BlockHash, Fingerprint};
use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};

/// A list of items of `N` bytes each, little endian.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Packed<const N: usize>(Vec<u8>);

/// A list of block ids.
pub type Ids = Packed<4>;
/// A list of 64-bit numbers, which are the first eight bytes of digests or fingerprints.
pub type Keys = Packed<8>;

impl<const N: usize> Packed<N> {
    fn of(items: impl ExactSizeIterator<Item = [u8; N]>) -> Self {
        Self(items.collect::<Vec<_>>().into_flattened())
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Number of items.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len() / N
    }

    /// Whether the list has no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn items(&self) -> impl Iterator<Item = [u8; N]> + '_ {
        self.0.chunks_exact(N).filter_map(|item| item.try_into().ok())
    }
}

impl Ids {
    /// Packs ids.
    #[must_use]
    pub fn pack(blocks: &[BlockId]) -> Self {
        Self::of(blocks.iter().map(|block| block.get().to_le_bytes()))
    }

    /// Returns the ids.
    #[must_use]
    pub fn unpack(&self) -> Vec<BlockId> {
        self.items().map(|item| BlockId::new(u32::from_le_bytes(item))).collect()
    }
}

impl Keys {
    /// Makes a list of the first eight bytes of each digest.
    #[must_use]
    pub fn of_hashes(hashes: &[BlockHash]) -> Self {
        Self::of(hashes.iter().map(|hash| hash.key().to_le_bytes()))
    }

    /// Makes a list of the first eight bytes of each fingerprint.
    #[must_use]
    pub fn of_fingerprints(fingerprints: &[Fingerprint]) -> Self {
        Self::of(fingerprints.iter().map(|&fingerprint| (fingerprint as u64).to_le_bytes()))
    }

    /// Packs numbers.
    #[must_use]
    pub fn pack(keys: &[u64]) -> Self {
        Self::of(keys.iter().map(|key| key.to_le_bytes()))
    }

    /// Appends a number.
    pub fn push(&mut self, key: u64) {
        self.0.extend_from_slice(&key.to_le_bytes());
    }

    /// Returns the numbers.
    pub fn unpack(&self) -> impl Iterator<Item = u64> + '_ {
        self.items().map(u64::from_le_bytes)
    }
}

impl<const N: usize> std::fmt::Debug for Packed<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let number = |item: &[u8]| item.iter().rev().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte));
        f.debug_list().entries(self.0.chunks_exact(N).map(number)).finish()
    }
}

impl<const N: usize> Serialize for Packed<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de, const N: usize> Deserialize<'de> for Packed<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = serde_bytes::ByteBuf::deserialize(deserializer)?.into_vec();
        if !bytes.len().is_multiple_of(N) {
            return Err(D::Error::invalid_length(bytes.len(), &"whole items"));
        }
        Ok(Self(bytes))
    }
}
