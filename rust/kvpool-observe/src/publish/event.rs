//! `Event`: what a consumer is told, before it is bytes.

use std::sync::Arc;

use kvpool::BlockHash;

/// A digest, and how much of it its algorithm made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest {
    pub(crate) hash: BlockHash,
    pub(crate) len: u8,
}

impl Digest {
    /// The digest whose first `len` bytes count: 8 to 32, others are taken as the nearest of these.
    #[must_use]
    pub const fn new(hash: BlockHash, len: usize) -> Self {
        let len = if len < 8 {
            8
        } else if len > 32 {
            32
        } else {
            len as u8
        };
        Self { hash, len }
    }

    /// A digest of 8 bytes: what was a number already.
    #[must_use]
    pub fn of_number(number: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        Self { hash: BlockHash::from_bytes(bytes), len: 8 }
    }

    /// The bytes that count.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.hash.as_bytes()[..usize::from(self.len)]
    }

    fn number(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }

    /// The last 8 bytes as a number.
    #[must_use]
    pub fn last8(&self) -> u64 {
        let bytes = self.bytes();
        Self::number(&bytes[bytes.len() - 8..])
    }

    /// The first 8 bytes as a signed number.
    #[must_use]
    pub fn first8(&self) -> i64 {
        Self::number(&self.bytes()[..8]).cast_signed()
    }
}

/// What a block was hashed with beside its tokens, as vLLM tells it: untagged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Extra {
    /// The name of an adapter, a salt.
    Text(String),
    /// A multimodal item, and where it begins, counted from the block's first token.
    Item(String, i64),
    /// A digest of embeddings.
    Bytes(Vec<u8>),
}

/// What the blocks of a request share beside tokens: an event has one of each.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Label {
    /// The number of the adapter.
    pub lora_id: Option<i64>,
    /// Its name.
    pub lora_name: Option<String>,
    /// The cache salt. In vLLM's form it is the first block's extra key.
    pub salt: Option<String>,
    /// The session that computed them.
    pub session: Option<String>,
    /// Where they are, if not at this worker. Dynamo's indexer ignores what has one.
    pub locality: Option<String>,
    /// Whose they are, if not this worker's. Dynamo's indexer ignores what has one.
    pub ownership: Option<String>,
}

/// What a KV-cache group is, for a consumer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupName {
    /// Its number; none is not told.
    pub index: Option<u16>,
    /// Its kind, as `full_attention`.
    pub kind: Option<Arc<str>>,
    /// Tokens that it looks back at.
    pub window: Option<u32>,
}

/// One change.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// A run of contents, each the parent of the next, can be found.
    Stored {
        /// Where: 0 is the device.
        tier: u8,
        /// Their group.
        group: &'a GroupName,
        /// Their digests.
        hashes: &'a [Digest],
        /// What is before the first of them.
        parent: Option<Digest>,
        /// Their tokens.
        tokens: &'a [u32],
        /// Tokens of each.
        block_tokens: usize,
        /// What they share beside tokens.
        label: &'a Label,
        /// What each was hashed with beside tokens: as many as hashes, or none at all, which is not told.
        extra: &'a [Option<Arc<[Extra]>>],
    },
    /// Contents are no longer found in a tier.
    Removed {
        /// Where.
        tier: u8,
        /// Their group.
        group: &'a GroupName,
        /// Their digests.
        hashes: &'a [Digest],
    },
    /// Nothing is found any more, in any tier.
    Cleared,
}
