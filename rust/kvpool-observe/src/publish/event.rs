//! `Event`: a KV event for consumers, before it is encoded.

use std::sync::Arc;

use kvpool::BlockHash;

/// A digest, and its length in bytes.
///
/// ```
/// use kvpool::BlockHash;
/// use kvpool_observe::publish::Digest;
/// assert_eq!(Digest::of_number(7).last8(), 7);
/// assert_eq!(Digest::new(BlockHash::from_bytes([1; 32]), 16).bytes(), [1; 16]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest {
    pub(crate) hash: BlockHash,
    pub(crate) len: u8,
}

impl Digest {
    /// Makes a digest from the first `len` bytes of a hash. A `len` outside of 8 to 32 is replaced by
    /// the nearest bound.
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

    /// Makes a digest of 8 bytes from a number.
    #[must_use]
    pub fn of_number(number: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        Self { hash: BlockHash::from_bytes(bytes), len: 8 }
    }

    /// Returns the bytes of the digest, without padding.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.hash.as_bytes()[..usize::from(self.len)]
    }

    fn number(bytes: &[u8]) -> u64 {
        bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
    }

    /// Returns the last 8 bytes of the digest as a number.
    #[must_use]
    pub fn last8(&self) -> u64 {
        let bytes = self.bytes();
        Self::number(&bytes[bytes.len() - 8..])
    }

    /// Returns the first 8 bytes of the digest as a signed number.
    #[must_use]
    pub fn first8(&self) -> i64 {
        Self::number(&self.bytes()[..8]).cast_signed()
    }
}

/// An extra key of a block. In an event it has no tag that names its kind, as in vLLM's events.
///
/// ```
/// use kvpool_observe::publish::Extra;
/// // An image that begins three tokens before the block.
/// let image = Extra::Item("digest of the image".into(), -3);
/// assert_ne!(image, Extra::Text("adapter".into()));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Extra {
    /// A text: the name of an adapter, or a salt.
    Text(String),
    /// A multimodal item, and its start relative to the block's first token.
    Item(String, i64),
    /// Bytes: a digest of prompt embeddings.
    Bytes(Vec<u8>),
}

/// The keys that all blocks of a request share. All blocks of one event share the same keys of this
/// kind.
///
/// ```
/// use kvpool_observe::publish::Label;
/// let label = Label { salt: Some("team-a".into()), ..Label::default() };
/// assert_eq!(label.lora_name, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Label {
    /// The number of the adapter.
    pub lora_id: Option<i64>,
    /// The name of the adapter.
    pub lora_name: Option<String>,
    /// The cache salt. In vLLM's form of events, it is an extra key of the first block.
    pub salt: Option<String>,
    /// The id of the session that computed the blocks.
    pub session: Option<String>,
    /// The location of the blocks, if it is not this worker. Dynamo's indexer ignores blocks for which
    /// this is set.
    pub locality: Option<String>,
    /// The owner of the blocks, if it is not this worker. Dynamo's indexer ignores blocks for which
    /// this is set.
    pub ownership: Option<String>,
}

/// The description of a KV-cache group in events.
///
/// ```
/// use kvpool_observe::publish::GroupName;
/// let name = GroupName { index: Some(1), kind: Some("sliding_window".into()), window: Some(1024) };
/// assert_eq!(name.kind.as_deref(), Some("sliding_window"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupName {
    /// The number of the KV-cache group. `None` omits the number from events.
    pub index: Option<u16>,
    /// The kind of the KV-cache group, for example `full_attention`.
    pub kind: Option<Arc<str>>,
    /// The size of the group's sliding window, in tokens.
    pub window: Option<u32>,
}

/// One event.
///
/// ```
/// use kvpool_observe::publish::{Digest, Event, Form, GroupName, encode};
/// let group = GroupName::default();
/// let event = Event::Removed { tier: 0, group: &group, hashes: &[Digest::of_number(7)] };
/// let bytes = encode(Form::default(), 0.0, 0, &[event]);
/// assert!(bytes.windows(12).any(|some| some == b"BlockRemoved"));
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Several contents were stored. Each one is the parent of the next.
    Stored {
        /// The number of the tier that stored the contents; 0 is the device.
        tier: u8,
        /// The KV-cache group of the contents.
        group: &'a GroupName,
        /// The digests of the contents.
        hashes: &'a [Digest],
        /// The digest of the content before the first one in the chain.
        parent: Option<Digest>,
        /// The tokens of all contents.
        tokens: &'a [u32],
        /// The number of tokens of each content.
        block_tokens: usize,
        /// The extra keys that all contents of the event share.
        label: &'a Label,
        /// The extra keys of each content: one entry per hash. If it is empty, the field is omitted.
        extra: &'a [Option<Arc<[Extra]>>],
    },
    /// Contents were removed from a tier.
    Removed {
        /// The tier.
        tier: u8,
        /// The KV-cache group of the contents.
        group: &'a GroupName,
        /// The digests of the contents.
        hashes: &'a [Digest],
    },
    /// All contents were removed from all tiers.
    Cleared,
}
