//! Prompts and chains as a journal holds them: by the keys of their digests.

use kvpool::Match;
use kvpool::hash::{ChainLink, HashAlgorithm, HashChain};
use serde::{Deserialize, Serialize};

use crate::Keys;

/// An algorithm's position in the list of all.
fn number(algorithm: HashAlgorithm) -> u8 {
    HashAlgorithm::ALL.iter().position(|&known| known == algorithm).unwrap_or(0) as u8
}

/// The first eight bytes of a block's digest, and of its fingerprint; 0 for one without.
pub type ContentKey = (u64, u64);

pub(crate) fn content_key(chain: &HashChain, position: usize, verified: bool) -> Option<ContentKey> {
    let fingerprint =
        chain.fingerprints().get(position).filter(|_| verified).map_or(0, |&whole| whole as u64);
    Some((chain.hashes().get(position)?.key(), fingerprint))
}

/// A hash chain, and how many tokens it is of.
///
/// Its first blocks may be *known*: they are the chain that ends in a block which was recorded before.
/// The others follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainRecord {
    /// Tokens, those of the last, partial block included.
    pub tokens: usize,
    /// The epoch that it was hashed in.
    pub epoch: u64,
    /// The algorithm, by its position in [`HashAlgorithm::ALL`].
    pub algorithm: u8,
    /// Tokens per block.
    pub block_size: usize,
    /// Blocks that are known, and the key and fingerprint of the last of them.
    pub known: Option<(usize, ContentKey)>,
    /// The keys of the blocks behind.
    pub keys: Keys,
    /// Their fingerprints' first eight bytes; empty without fingerprints.
    pub fingerprints: Keys,
    /// Whether the chain carries tokens.
    pub has_tokens: bool,
}

impl ChainRecord {
    /// Without verified hits fingerprints are left out.
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

    /// The part of a chain that a match is of. Without verified hits fingerprints are left out.
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

    /// Blocks of it.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.known.map_or(0, |(blocks, _)| blocks) + self.keys.len()
    }
}

/// One block's place in a chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkRecord {
    /// The algorithm, by its position in [`HashAlgorithm::ALL`].
    pub algorithm: u8,
    /// Tokens of the block.
    pub block_size: usize,
    /// The epoch that it was hashed in.
    pub epoch: u64,
    /// The key of the block.
    pub key: u64,
    /// The first eight bytes of its fingerprint, if it has one.
    pub fingerprint: Option<u64>,
    /// The key of the block before it.
    pub parent: Option<u64>,
    /// Its position.
    pub depth: u32,
}

impl LinkRecord {
    /// What is written of a link.
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
