//! `ChainLink`: one block of a hash chain, as a separate value.
//!
//! A [`HashChain`](super::HashChain) belongs to one sequence, which grows at its end. For a tree of
//! blocks, in which each block has one predecessor, store one [`ChainLink`] per full block instead.
//! With a link, a caller can hash the next block, register the block in a pool, and verify a hit on it.
//! A link takes O(block size) memory.

use std::fmt;

use super::{
    BlockHash, BlockHasher, ChainState, ExtraKeys, Fingerprint, HashAlgorithm, HashChain, HashError,
};

/// A full block of a hash chain: its digest, its tokens, its position, and the digest of its
/// predecessor.
///
/// ```
/// use std::sync::Arc;
/// use kvpool_hash::{BlockHasher, ChainLink, ExtraKeys, HashCursor, HasherConfig};
/// let hasher = Arc::new(BlockHasher::new(HasherConfig { block_size: 2, ..HasherConfig::default() })?);
/// let extra = ExtraKeys::default();
/// let first = ChainLink::new(&hasher, None, &[1, 2], &extra)?;
/// let second = ChainLink::new(&hasher, Some(&first), &[3, 4], &extra)?;
///
/// let mut cursor = HashCursor::new(hasher, extra)?;
/// cursor.append(&[1, 2, 3, 4]);
/// assert_eq!([first.hash(), second.hash()], cursor.chain().hashes());
/// assert_eq!(second.depth(), 1);
/// # Ok::<(), kvpool_hash::HashError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ChainLink {
    algorithm: HashAlgorithm,
    epoch: u64,
    state: ChainState,
    has_fingerprint: bool,
    parent: Option<BlockHash>,
    depth: u32,
    tokens: Box<[u32]>,
}

impl ChainLink {
    /// Hashes one block after `parent`. Without a parent, it is the first block of a chain. `extra`
    /// must be the extra keys with which the parent was hashed.
    ///
    /// # Errors
    /// [`HashError::NotOneBlock`] for another number of tokens than one block.
    /// [`HashError::ChainMismatch`] if the parent has another algorithm, block size or epoch, or if
    /// only one of parent and hasher has fingerprints. The errors of [`BlockHasher::check_extra`].
    pub fn new(
        hasher: &BlockHasher,
        parent: Option<&Self>,
        tokens: &[u32],
        extra: &ExtraKeys,
    ) -> Result<Self, HashError> {
        let depth = parent.map_or(0, |parent| parent.depth + 1);
        let before = match parent {
            None => hasher.root(extra)?,
            Some(parent) => {
                parent.check_extendable(hasher, extra.epoch)?;
                parent.state
            }
        };
        let start = u64::from(depth) * hasher.block_size() as u64;
        let state = hasher.hash_block(&before, start, tokens, extra)?;
        Ok(Self {
            algorithm: hasher.algorithm(),
            epoch: extra.epoch,
            state,
            has_fingerprint: hasher.has_fingerprints(),
            parent: parent.map(Self::hash),
            depth,
            tokens: tokens.into(),
        })
    }

    /// Makes a link from a digest that was computed elsewhere. `parent` contains the digest and the
    /// depth of the previous block. It is `None` for the first block of a chain.
    ///
    /// The link has no fingerprint, so a pool that verifies hits by fingerprints refuses it.
    ///
    /// # Errors
    /// [`HashError::NotOneBlock`] for an empty list of tokens. [`HashError::DigestPadding`] for a
    /// digest with non-zero bytes after the digest length of `algorithm`, because such a digest could
    /// never match.
    pub fn from_digest(
        algorithm: HashAlgorithm,
        epoch: u64,
        hash: BlockHash,
        parent: Option<(BlockHash, u32)>,
        tokens: &[u32],
    ) -> Result<Self, HashError> {
        if tokens.is_empty() {
            return Err(HashError::NotOneBlock { tokens: 0, block_size: 1 });
        }
        let digest_len = algorithm.digest_len();
        let padded_wrong = |hash: &BlockHash| hash.as_bytes()[digest_len..].iter().any(|&byte| byte != 0);
        if padded_wrong(&hash) || parent.is_some_and(|(parent, _)| padded_wrong(&parent)) {
            return Err(HashError::DigestPadding { index: 0, digest_len, algorithm });
        }
        Ok(Self {
            algorithm,
            epoch,
            state: ChainState::new(hash, 0),
            has_fingerprint: false,
            parent: parent.map(|(parent, _)| parent),
            depth: parent.map_or(0, |(_, depth)| depth.saturating_add(1)),
            tokens: tokens.into(),
        })
    }

    /// Makes the link of the block at `position` in a chain. `None` if the chain has no such block.
    /// Also `None` if the digests of the chain were computed elsewhere, because a link contains the
    /// tokens of its block.
    #[must_use]
    pub fn of_chain(chain: &HashChain, position: usize) -> Option<Self> {
        let LinkRef { algorithm, hash, fingerprint, tokens, depth, parent } = chain.link(position)?;
        Some(Self {
            algorithm,
            epoch: chain.epoch(),
            state: ChainState::new(hash, fingerprint.unwrap_or(0)),
            has_fingerprint: fingerprint.is_some(),
            parent,
            depth,
            tokens: tokens?.into(),
        })
    }

    /// Makes a link with any content, without checks, like [`super::HashChain::forged`]. Use this only
    /// for tests and replays.
    #[cfg(feature = "recorded")]
    #[must_use]
    pub const fn forged(
        algorithm: HashAlgorithm,
        epoch: u64,
        hash: BlockHash,
        fingerprint: Option<Fingerprint>,
        parent: Option<BlockHash>,
        depth: u32,
        tokens: Box<[u32]>,
    ) -> Self {
        let (state, has_fingerprint) = match fingerprint {
            None => (ChainState::new(hash, 0), false),
            Some(fingerprint) => (ChainState::new(hash, fingerprint), true),
        };
        Self { algorithm, epoch, state, has_fingerprint, parent, depth, tokens }
    }

    fn check_extendable(&self, hasher: &BlockHasher, epoch: u64) -> Result<(), HashError> {
        let mismatch = |what, chain: &dyn ToString, expected: &dyn ToString| {
            Err(HashError::ChainMismatch { what, chain: chain.to_string(), expected: expected.to_string() })
        };
        if self.algorithm != hasher.algorithm() {
            return mismatch("algorithm", &self.algorithm, &hasher.algorithm());
        }
        if self.tokens.len() != hasher.block_size() {
            return mismatch("block size", &self.tokens.len(), &hasher.block_size());
        }
        if self.epoch != epoch {
            return mismatch("epoch", &self.epoch, &epoch);
        }
        if self.has_fingerprint != hasher.has_fingerprints() {
            return mismatch("fingerprint", &self.has_fingerprint, &hasher.has_fingerprints());
        }
        Ok(())
    }

    /// The digest of the block and everything before it.
    #[inline]
    #[must_use]
    pub const fn hash(&self) -> BlockHash {
        self.state.digest()
    }

    /// The hash function and encoding of the digest.
    #[inline]
    #[must_use]
    pub const fn algorithm(&self) -> HashAlgorithm {
        self.algorithm
    }

    /// The epoch (the version of the model's weights) for which the block was hashed.
    #[inline]
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The block's position in the chain. It is 0 for the first block of a prompt.
    #[inline]
    #[must_use]
    pub const fn depth(&self) -> u32 {
        self.depth
    }

    /// The tokens of the block.
    #[inline]
    #[must_use]
    pub const fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The number of tokens in the chain up to the end of the block.
    #[inline]
    #[must_use]
    pub const fn num_tokens(&self) -> u64 {
        (self.depth as u64 + 1) * self.tokens.len() as u64
    }

    /// Returns the data of the block that a prefix index needs.
    #[inline]
    #[must_use]
    pub fn as_ref(&self) -> LinkRef<'_> {
        LinkRef {
            algorithm: self.algorithm,
            hash: self.state.digest(),
            fingerprint: self.has_fingerprint.then(|| self.state.fingerprint()),
            tokens: Some(&self.tokens),
            depth: self.depth,
            parent: self.parent,
        }
    }
}

/// Prints the position in the chain, but not the tokens, which may be private.
impl fmt::Debug for ChainLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChainLink")
            .field("algorithm", &self.algorithm)
            .field("epoch", &self.epoch)
            .field("depth", &self.depth)
            .field("hash", &self.hash())
            .finish_non_exhaustive()
    }
}

/// The data of a block that a prefix index needs. It comes from a chain, a link, or another index.
#[derive(Clone, Copy)]
pub struct LinkRef<'a> {
    /// The hash function and encoding of the digest.
    pub algorithm: HashAlgorithm,
    /// The digest of the block and everything before it.
    pub hash: BlockHash,
    /// The fingerprint of the same prefix, if the hasher computes fingerprints.
    pub fingerprint: Option<Fingerprint>,
    /// The tokens of the block. `None` if the digest was computed elsewhere without them.
    pub tokens: Option<&'a [u32]>,
    /// The block's position in the chain. It is 0 for the first block of a prompt.
    pub depth: u32,
    /// The digest of the previous block. `None` for the first block.
    pub parent: Option<BlockHash>,
}

/// Prints the position in the chain, but not the tokens, which may be private.
impl fmt::Debug for LinkRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkRef")
            .field("algorithm", &self.algorithm)
            .field("depth", &self.depth)
            .field("hash", &self.hash)
            .finish_non_exhaustive()
    }
}
