//! Prompts and chains in the form that a journal stores: each block is represented by its key, which is
//! the start of its digest.

use kvpool::Match;
use kvpool::hash::{ChainLink, HashAlgorithm, HashChain};
use serde::{Deserialize, Serialize};

use crate::Keys;

fn number(algorithm: HashAlgorithm) -> u8 {
    HashAlgorithm::ALL.iter().position(|&known| known == algorithm).unwrap_or(0) as u8
}

/// The key of a block as a journal stores it: the first eight bytes of its digest, and the first eight
/// bytes of its fingerprint, or 0 if it has no fingerprint.
pub type ContentKey = (u64, u64);

pub(crate) fn content_key(chain: &HashChain, position: usize, verified: bool) -> Option<ContentKey> {
    let fingerprint =
        chain.fingerprints().get(position).filter(|_| verified).map_or(0, |&whole| whole as u64);
    Some((chain.hashes().get(position)?.key(), fingerprint))
}

/// The record of a hash chain, with the number of its tokens.
///
/// The first blocks may be *known*: an earlier record contains the last of them, and through it the
/// blocks before. The record lists only the blocks after the known blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainRecord {
    /// Number of tokens, including those of the last block if it is partial.
    pub tokens: usize,
    /// The epoch in which the chain was hashed.
    pub epoch: u64,
    /// The hash algorithm, as its position in [`HashAlgorithm::ALL`].
    pub algorithm: u8,
    /// Number of tokens per block.
    pub block_size: usize,
    /// Number of known blocks, with the key and the fingerprint of the last known block.
    pub known: Option<(usize, ContentKey)>,
    /// The keys of the blocks that follow the known blocks.
    pub keys: Keys,
    /// The first eight bytes of the fingerprint of each block in `keys`. The list is empty if hits are
    /// not verified by fingerprints.
    pub fingerprints: Keys,
    /// Whether the recorded chain contained tokens.
    pub has_tokens: bool,
}

impl ChainRecord {
    /// Makes the record of a chain. Omits fingerprints unless hits are verified.
    pub(crate) fn new(chain: &HashChain, tokens: usize, known: usize, verified: bool) -> Self {
        let last = known.checked_sub(1).and_then(|last| chain.hashes().get(last));
        let known = if last.is_some() { known } else { 0 };
        let fingerprints = if verified { chain.fingerprints() } else { &[] };
        Self {
            tokens,
            epoch: chain.epoch(),
            algorithm: number(chain.algorithm()),
            block_size: chain.block_size(),
            known: last.and_then(|_| Some((known, content_key(chain, known - 1, verified)?))),
            keys: Keys::of_hashes(chain.hashes().get(known..).unwrap_or(&[])),
            fingerprints: Keys::of_fingerprints(fingerprints.get(known..).unwrap_or(&[])),
            has_tokens: !chain.tokens().is_empty(),
        }
    }

    /// Makes the record of the part of a chain that a match covers. Omits fingerprints unless hits are
    /// verified.
    pub(crate) fn of_match(found: &Match, verified: bool) -> Self {
        Self {
            tokens: found.len().saturating_mul(found.block_size()),
            epoch: found.epoch(),
            algorithm: number(found.algorithm()),
            block_size: found.block_size(),
            known: None,
            keys: Keys::of_hashes(found.hashes()),
            fingerprints: Keys::of_fingerprints(if verified { found.fingerprints() } else { &[] }),
            has_tokens: found.link().is_some(),
        }
    }

    /// Returns the number of blocks in the chain.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.known.map_or(0, |(blocks, _)| blocks) + self.keys.len()
    }
}

/// The record of a link, which describes the position of one block in a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRecord {
    /// The hash algorithm, as its position in [`HashAlgorithm::ALL`].
    pub algorithm: u8,
    /// Number of tokens in the block.
    pub block_size: usize,
    /// The epoch in which the block was hashed.
    pub epoch: u64,
    /// The key of the block: the first eight bytes of its digest.
    pub key: u64,
    /// The first eight bytes of the block's fingerprint, if it has one.
    pub fingerprint: Option<u64>,
    /// The key of the previous block in the chain.
    pub parent: Option<u64>,
    /// Position of the block in the chain.
    pub depth: u32,
}

impl LinkRecord {
    /// Makes the record of this link.
    #[must_use]
    pub fn new(link: &ChainLink) -> Self {
        let inner = link.as_ref();
        Self {
            algorithm: number(link.algorithm()),
            block_size: link.tokens().len(),
            epoch: link.epoch(),
            key: link.hash().key(),
            fingerprint: inner.fingerprint.map(|fingerprint| fingerprint as u64),
            parent: inner.parent.map(|parent| parent.key()),
            depth: link.depth(),
        }
    }
}
