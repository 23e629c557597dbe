//! The hash chain of a sequence: the digests of its full blocks, first to last.
//!
//! The fields of a chain obey one invariant. `tokens` contains exactly the tokens of the hashed blocks,
//! or nothing if the digests were computed elsewhere. `fingerprints` has one entry per digest, or none.
//! A chain also stores its algorithm, block size and epoch, so that a pool can refuse a chain that does
//! not match.
//!
//! Memory: 32 bytes per block, 16 more with fingerprints, 4 per token, and 4 per block that a
//! multimodal item overlaps.

use std::fmt;

use super::hasher::ChainState;
use super::{BlockHash, BlockHasher, Fingerprint, HashAlgorithm, HashError, KnownStates, LinkRef};

/// The smallest number of blocks for which a chain that grows gets memory.
const LEAST_GROWTH: usize = 32;

/// The largest number of tokens per block for which this growth also applies to the tokens.
const MOST_TOKENS: usize = 32;

/// Reserves memory for `more` items. If there is too little, reserves it for at least `least` items.
fn make_room<T>(items: &mut Vec<T>, more: usize, least: usize) {
    if items.capacity() - items.len() < more {
        items.reserve(more.max(least));
    }
}

/// The digests of the full blocks of a sequence, from its first block on.
///
/// [`HashCursor`](super::HashCursor) and [`BlockHasher::extend`] make chains. A chain can also be made
/// from digests that an engine computed:
///
/// ```
/// use kvpool_hash::{BlockHash, HashAlgorithm, HashChain};
/// let digests = vec![BlockHash::from_bytes([1; 32]), BlockHash::from_bytes([2; 32])];
/// let mut chain = HashChain::from_digests(HashAlgorithm::VllmSha256, 16, 0, digests)?;
/// assert_eq!(chain.len(), 2);
/// assert!(chain.tokens().is_empty() && chain.fingerprints().is_empty());
/// chain.truncate(1);
/// assert_eq!(chain.hashes(), [BlockHash::from_bytes([1; 32])]);
/// # Ok::<(), kvpool_hash::HashError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct HashChain {
    algorithm: HashAlgorithm,
    block_size: usize,
    epoch: u64,
    hashes: Vec<BlockHash>,
    fingerprints: Vec<Fingerprint>,
    tokens: Vec<u32>,
    /// The positions in the chain of the blocks that a multimodal item overlaps, in ascending order.
    with_items: Vec<u32>,
}

/// Prints the digests, but not the tokens, which may be private.
impl fmt::Debug for HashChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HashChain")
            .field("algorithm", &self.algorithm)
            .field("block_size", &self.block_size)
            .field("epoch", &self.epoch)
            .field("hashes", &self.hashes)
            .finish_non_exhaustive()
    }
}

impl HashChain {
    /// Makes a chain without blocks. It has the algorithm and the block size of `hasher`.
    #[must_use]
    pub fn new(hasher: &BlockHasher, epoch: u64) -> Self {
        Self {
            algorithm: hasher.algorithm(),
            block_size: hasher.block_size(),
            epoch,
            hashes: Vec::new(),
            fingerprints: Vec::new(),
            tokens: Vec::new(),
            with_items: Vec::new(),
        }
    }

    /// Makes a chain of digests that were computed elsewhere. It has no tokens and no fingerprints, so
    /// hits on it cannot be verified, and it cannot be extended.
    ///
    /// # Errors
    /// [`HashError::BlockSize`] for a block size that is 0 or too large. [`HashError::DigestPadding`]
    /// for a digest that has non-zero bytes after the digest length of `algorithm`, because such a
    /// digest could never match.
    pub fn from_digests(
        algorithm: HashAlgorithm,
        block_size: usize,
        epoch: u64,
        hashes: Vec<BlockHash>,
    ) -> Result<Self, HashError> {
        let max = super::config::MAX_BLOCK_SIZE;
        if block_size == 0 || block_size > max {
            return Err(HashError::BlockSize { block_size, max });
        }
        let digest_len = algorithm.digest_len();
        let padded_wrong = |hash: &BlockHash| hash.as_bytes()[digest_len..].iter().any(|&byte| byte != 0);
        if let Some(index) = hashes.iter().position(padded_wrong) {
            return Err(HashError::DigestPadding { index, digest_len, algorithm });
        }
        Ok(Self {
            algorithm,
            block_size,
            epoch,
            hashes,
            fingerprints: Vec::new(),
            tokens: Vec::new(),
            with_items: Vec::new(),
        })
    }

    /// Makes a chain with any digests and tokens, without checks. Two such chains can have equal
    /// digests and different tokens, so that tests can cause collisions. Use this only for tests and
    /// replays.
    #[cfg(feature = "recorded")]
    #[must_use]
    pub fn forged(
        algorithm: HashAlgorithm,
        block_size: usize,
        epoch: u64,
        hashes: Vec<BlockHash>,
        fingerprints: Vec<Fingerprint>,
        tokens: Vec<u32>,
    ) -> Self {
        Self { algorithm, block_size, epoch, hashes, fingerprints, tokens, with_items: Vec::new() }
    }

    /// The number of blocks in the chain.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.hashes.len()
    }

    /// Whether the chain has no block.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// The hash function and the encoding of the digests.
    #[inline]
    #[must_use]
    pub fn algorithm(&self) -> HashAlgorithm {
        self.algorithm
    }

    /// The block size, in tokens.
    #[inline]
    #[must_use]
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The epoch (the version of the model's weights) of the request. In the native encoding, every
    /// digest depends on it.
    #[inline]
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The digests, one per block.
    #[inline]
    #[must_use]
    pub fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    /// The fingerprints, one per block. The list is empty if the hasher's [`Verify`](super::Verify)
    /// does not need fingerprints, or if the digests were computed elsewhere.
    #[inline]
    #[must_use]
    pub fn fingerprints(&self) -> &[Fingerprint] {
        &self.fingerprints
    }

    /// The tokens of the hashed blocks, `len() * block_size()` in all. The list is empty if the digests
    /// were computed elsewhere.
    #[inline]
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens of block `index`. `None` if the chain has no such block, or if its digests were
    /// computed elsewhere.
    #[inline]
    #[must_use]
    pub fn block_tokens(&self, index: usize) -> Option<&[u32]> {
        let start = index.checked_mul(self.block_size)?;
        self.tokens.get(start..start.checked_add(self.block_size)?)
    }

    /// Number of consecutive text blocks from `position` on. The digest of a text block depends only on
    /// the state of the previous block and on the block's tokens, because no multimodal item overlaps
    /// the block. The first block is not a text block, because its digest can depend on other extra
    /// keys. Blocks whose digests were computed elsewhere are not text blocks.
    #[must_use]
    pub fn text_blocks(&self, position: usize) -> usize {
        if position == 0 || self.tokens.is_empty() {
            return 0;
        }
        let next = self.with_items.partition_point(|&item| (item as usize) < position);
        let end = self.with_items.get(next).map_or(self.hashes.len(), |&item| item as usize);
        end.saturating_sub(position)
    }

    /// Returns the data of block `position` that a prefix index needs. `None` if the chain has no such
    /// block.
    #[inline]
    #[must_use]
    pub fn link(&self, position: usize) -> Option<LinkRef<'_>> {
        Some(LinkRef {
            algorithm: self.algorithm,
            hash: *self.hashes.get(position)?,
            fingerprint: self.fingerprints.get(position).copied(),
            tokens: self.block_tokens(position),
            depth: position as u32,
            parent: position.checked_sub(1).and_then(|before| self.hashes.get(before).copied()),
        })
    }

    /// Removes all blocks after the first `blocks` blocks.
    pub fn truncate(&mut self, blocks: usize) {
        self.hashes.truncate(blocks);
        self.fingerprints.truncate(blocks);
        self.tokens.truncate(blocks.saturating_mul(self.block_size));
        let kept = self.with_items.partition_point(|&position| (position as usize) < blocks);
        self.with_items.truncate(kept);
    }

    /// Changes only the stored epoch. This is used for algorithms whose digests do not depend on the
    /// epoch.
    pub(super) fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Returns the digest and the fingerprint of the last block, which is the parent of the next block.
    /// `None` if the chain has no block.
    pub(super) fn last_state(&self) -> Option<ChainState> {
        let digest = *self.hashes.last()?;
        Some(ChainState::new(digest, self.fingerprints.last().copied().unwrap_or(0)))
    }

    /// Checks that `hasher` can append blocks of a request with this epoch to the chain.
    pub(super) fn check_extendable(&self, hasher: &BlockHasher, epoch: u64) -> Result<(), HashError> {
        let mismatch = |what, chain: &dyn ToString, expected: &dyn ToString| {
            Err(HashError::ChainMismatch { what, chain: chain.to_string(), expected: expected.to_string() })
        };
        if self.algorithm != hasher.algorithm() {
            return mismatch("algorithm", &self.algorithm, &hasher.algorithm());
        }
        if self.block_size != hasher.block_size() {
            return mismatch("block size", &self.block_size, &hasher.block_size());
        }
        if self.epoch != epoch {
            return mismatch("epoch", &self.epoch, &epoch);
        }
        let blocks = self.hashes.len();
        let fingerprints = if hasher.has_fingerprints() { blocks } else { 0 };
        if self.tokens.len() / self.block_size != blocks || self.fingerprints.len() != fingerprints {
            return Err(HashError::ChainNotExtendable { blocks });
        }
        Ok(())
    }

    /// Marks the block at `position`, the last one so far, as overlapped by a multimodal item.
    pub(super) fn push_item_block(&mut self, position: u64) {
        self.with_items.push(position as u32); // a chain with 2^32 blocks would need 128 GiB
    }

    /// Appends the tokens of blocks that are about to be hashed, and reserves memory for the digests
    /// and fingerprints of these blocks. A chain that grows gets memory for several blocks, so
    /// that a short one is not moved at every few blocks.
    pub(super) fn push_tokens(&mut self, tokens: &[u32], fingerprints: bool) {
        let blocks = tokens.len() / self.block_size;
        let least = if self.hashes.is_empty() { 0 } else { LEAST_GROWTH };
        make_room(&mut self.tokens, tokens.len(), least * self.block_size.min(MOST_TOKENS));
        make_room(&mut self.hashes, blocks, least);
        if fingerprints {
            make_room(&mut self.fingerprints, blocks, least);
        }
        self.tokens.extend_from_slice(tokens);
    }

    /// Adds the states that `push` pushes, and their tokens, which are the first of `tokens`. States
    /// beyond the last whole block of `tokens` are dropped. Returns the number of blocks.
    #[inline]
    pub(super) fn push_known(
        &mut self,
        tokens: &[u32],
        fingerprints: bool,
        push: impl FnOnce(&mut KnownStates<'_>),
    ) -> usize {
        let (before, most) = (self.hashes.len(), tokens.len() / self.block_size);
        self.hashes.reserve(most);
        if fingerprints {
            self.fingerprints.reserve(most);
        }
        let fingerprints = fingerprints.then_some(&mut self.fingerprints);
        push(&mut KnownStates { hashes: &mut self.hashes, fingerprints });
        self.hashes.truncate(before + most);
        self.fingerprints.truncate(self.hashes.len());
        let known = self.hashes.len() - before;
        self.tokens.extend_from_slice(&tokens[..known * self.block_size]);
        known
    }

    /// Appends the digest, and if enabled the fingerprint, of the next block. Its tokens were appended
    /// before.
    pub(super) fn push_state(&mut self, state: &ChainState, fingerprints: bool) {
        self.hashes.push(state.digest());
        if fingerprints {
            self.fingerprints.push(state.fingerprint());
        }
    }
}
