//! Implements weak lookups. A [`Match`] lists the cached blocks of a chain, but has no references to
//! them. It can be acquired later, if the blocks still have the same contents.
//!
//! Weak lookups are for schedulers that often look up every waiting request, but acquire the blocks of
//! few of them. A [`Match`] may become stale, because its blocks may be evicted, dropped, or get other
//! contents. So [`BlockPool::acquire_match`] checks that each block still has the content that the
//! lookup found. If one block has not, the call refuses the whole match.

use std::hash::{Hash, Hasher};

use super::BlockPool;
use super::observe::Lookup;
use crate::block::BlockId;
use crate::error::PoolError;
use crate::hash::{BlockHash, ChainLink, Fingerprint, HashAlgorithm, HashChain, LinkRef, Verify};
use crate::pool::DuplicatePolicy;

/// The result of a weak lookup: the cached blocks of a chain from a position on. A match has no
/// references to its blocks.
///
/// Two matches are equal if they begin at the same position and end with the same hash, even if their
/// blocks differ. A match takes about 36 bytes per block, 16 more with fingerprints. If the pool
/// compares tokens, a match also contains the tokens.
///
/// ```
/// use kvpool::{BlockHasher, BlockPool, ExtraKeys, HashCursor, HasherConfig, Match, PoolConfig};
/// let hasher = BlockHasher::new(HasherConfig { block_size: 2, ..Default::default() })?;
/// let mut prompt = HashCursor::new(hasher.into(), ExtraKeys::default())?;
/// prompt.append(&[1, 2, 3, 4]);
/// let mut pool = BlockPool::new(PoolConfig { num_blocks: 9, block_size: 2, ..Default::default() })?;
/// let table = pool.allocate(2)?;
/// pool.register_table(&table, prompt.chain(), 0)?;
/// pool.release_table(&table)?;
///
/// // A scheduler that has stored the blocks itself can make the match from them.
/// let stored = Match::new(prompt.chain(), 0, &table)?;
/// assert_eq!(stored, pool.lookup(prompt.chain(), 0, usize::MAX)?);
/// pool.acquire_match(&stored)?;
/// assert_eq!(pool.ref_count(table[0]), Some(1));
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Match {
    start: usize,
    blocks: Vec<BlockId>,
    algorithm: HashAlgorithm,
    block_size: usize,
    epoch: u64,
    /// The hashes of the blocks, in order. Fingerprints and tokens are only stored if the pool compares
    /// them.
    hashes: Vec<BlockHash>,
    fingerprints: Vec<Fingerprint>,
    tokens: Vec<u32>,
    /// The hash of the content before the first block, if known.
    parent: Option<BlockHash>,
    link: Option<ChainLink>,
}

impl Match {
    /// Makes a match from blocks that the caller expects to contain the content of `chain` from
    /// position `start` on. The contents are not checked before [`BlockPool::acquire_match`].
    /// O(blocks).
    ///
    /// # Errors
    /// [`PoolError::ChainTooShort`].
    pub fn new(chain: &HashChain, start: usize, blocks: &[BlockId]) -> Result<Self, PoolError> {
        if start.checked_add(blocks.len()).is_none_or(|end| end > chain.len()) {
            return Err(PoolError::ChainTooShort { start, blocks: blocks.len(), chain: chain.len() });
        }
        Ok(Self::of(chain, start, blocks.to_vec(), Verify::Tokens))
    }

    /// Makes a match. The caller has checked that the chain is long enough. `verify` is the
    /// verification of the pool.
    fn of(chain: &HashChain, start: usize, blocks: Vec<BlockId>, verify: Verify) -> Self {
        let end = start.saturating_add(blocks.len());
        let size = chain.block_size();
        let fingerprints = if verify >= Verify::Fingerprint { chain.fingerprints() } else { &[] };
        let tokens = if verify >= Verify::Tokens { chain.tokens() } else { &[] };
        let of_tokens = start.saturating_mul(size)..end.saturating_mul(size);
        Self {
            algorithm: chain.algorithm(),
            block_size: size,
            epoch: chain.epoch(),
            hashes: chain.hashes().get(start..end).unwrap_or(&[]).to_vec(),
            fingerprints: fingerprints.get(start..end).unwrap_or(&[]).to_vec(),
            tokens: tokens.get(of_tokens).unwrap_or(&[]).to_vec(),
            parent: start.checked_sub(1).and_then(|before| chain.hashes().get(before).copied()),
            link: if blocks.is_empty() { None } else { ChainLink::of_chain(chain, end - 1) },
            start,
            blocks,
        }
    }

    /// Makes a match from any content, without checks, for tests and replays: see
    /// [`HashChain::forged`].
    #[cfg(feature = "replay")]
    #[must_use]
    pub fn forged(start: usize, blocks: Vec<BlockId>, part: &HashChain) -> Self {
        Self { start, ..Self::of(part, 0, blocks, Verify::Tokens) }
    }

    /// The position of the first block in its hash chain.
    #[must_use]
    pub const fn start(&self) -> usize {
        self.start
    }

    /// Number of matched blocks.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Whether no block matched.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// The matched blocks. Their contents may have changed since the lookup.
    #[must_use]
    pub fn blocks(&self) -> &[BlockId] {
        &self.blocks
    }

    /// The hashes of the blocks.
    #[must_use]
    pub fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    /// The fingerprints of the blocks. Empty if the pool does not verify hits.
    #[must_use]
    pub fn fingerprints(&self) -> &[Fingerprint] {
        &self.fingerprints
    }

    /// The algorithm of the hashes.
    #[must_use]
    pub const fn algorithm(&self) -> HashAlgorithm {
        self.algorithm
    }

    /// Tokens per block.
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.block_size
    }

    /// The epoch of the chain.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The [`ChainLink`](crate::ChainLink) of the last block, which identifies its content in the
    /// chain. `None` if no block matched, or if the chain contains no tokens.
    #[must_use]
    pub const fn link(&self) -> Option<&ChainLink> {
        self.link.as_ref()
    }

    fn content(&self, at: usize) -> Option<LinkRef<'_>> {
        let depth = self.start.saturating_add(at) as u32;
        let tokens = self.tokens.get(at * self.block_size..(at + 1) * self.block_size);
        let (hash, fingerprint) = (*self.hashes.get(at)?, self.fingerprints.get(at).copied());
        Some(LinkRef { algorithm: self.algorithm, hash, fingerprint, tokens, depth, parent: None })
    }
}

impl PartialEq for Match {
    fn eq(&self, other: &Self) -> bool {
        self.start == other.start && self.hashes.last() == other.hashes.last()
    }
}

impl Eq for Match {}

impl Hash for Match {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.start.hash(state);
        self.hashes.last().map(BlockHash::as_bytes).hash(state);
    }
}

/// # Weak lookups
///
/// A [`Match`] lists the cached blocks of a chain without references to them, for schedulers that look
/// up many waiting requests.
impl BlockPool {
    /// Finds the cached blocks of `chain` from position `start` on, at most `max_blocks`. Stops at the
    /// first block that is not cached and computed. Blocks before `start` are not looked up. Changes no
    /// state and no counter, and acquires nothing. O(blocks matched).
    ///
    /// ```
    /// use kvpool::{BlockPool, ExtraKeys, HashCursor, HasherConfig, PoolConfig, PoolError};
    /// let hasher = kvpool::BlockHasher::new(HasherConfig { block_size: 2, ..Default::default() })?;
    /// let mut prompt = HashCursor::new(hasher.into(), ExtraKeys::default())?;
    /// prompt.append(&[1, 2, 3, 4]);
    /// let mut pool = BlockPool::new(PoolConfig { num_blocks: 9, block_size: 2, ..Default::default() })?;
    /// let table = pool.allocate(2)?;
    /// pool.register(&table, prompt.chain(), 0)?;
    /// pool.mark_computed(&table)?;
    /// pool.release_table(&table)?;
    ///
    /// let found = pool.lookup(prompt.chain(), 0, usize::MAX)?;
    /// pool.acquire_match(&found)?; // one reference per block
    /// pool.release_table(found.blocks())?;
    ///
    /// pool.evict(1)?;
    /// let (block, position) = (found.blocks()[1], 1);
    /// assert_eq!(pool.acquire_match(&found), Err(PoolError::StaleMatch { block, position }));
    /// # Ok::<(), PoolError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::match_and_acquire`].
    pub fn lookup(&self, chain: &HashChain, start: usize, max_blocks: usize) -> Result<Match, PoolError> {
        let found = self.find_prefix(chain, start, max_blocks)?;
        Ok(Match::of(chain, start, found.blocks, self.verify()))
    }

    /// Like [`Self::lookup`], but also records a use of the blocks that it finds, as an acquisition and
    /// a [`Self::release_table`] would. Cached-free blocks that were found are then evicted as late as
    /// newly released blocks. Blocks before `start` are not refreshed. If they are evicted, a later
    /// lookup does not find the others. The call counts no hits and no misses; hits are counted when a
    /// match is acquired. O(blocks matched).
    ///
    /// # Errors
    /// As [`Self::lookup`]; [`PoolError::RefCountOverflow`].
    pub fn lookup_refreshing(
        &mut self,
        chain: &HashChain,
        start: usize,
        max_blocks: usize,
    ) -> Result<Match, PoolError> {
        let found = self.find_prefix(chain, start, max_blocks)?.blocks;
        self.acquire_by_id(&found)?;
        self.release_table(&found)?;
        if self.duplicates == DuplicatePolicy::DropOnRelease {
            // The release may have dropped a duplicate block. Then another block has its content, so
            // the lookup is repeated.
            return self.lookup(chain, start, max_blocks);
        }
        Ok(Match::of(chain, start, found, self.verify()))
    }

    /// Acquires a match: adds one reference to each block, if all blocks are still computed and have
    /// the same contents. Otherwise adds no reference. Counts the blocks as hits. The observer gets a
    /// lookup of exactly these blocks. O(blocks).
    ///
    /// # Errors
    /// [`PoolError::StaleMatch`] with the first block that no longer has its content, because it was
    /// evicted or dropped, or because the epoch has ended; [`PoolError::RefCountOverflow`].
    pub fn acquire_match(&mut self, found: &Match) -> Result<(), PoolError> {
        self.check_poison()?;
        self.check_match(found)?;
        self.acquire_by_id(&found.blocks)?;
        self.counters.hits += found.len() as u64;
        self.notify_looked_up(&Lookup {
            hashes: &found.hashes,
            depth: found.start as u32,
            parent: found.parent,
            hits: found.len(),
            blocks: &found.blocks,
            tenant: None,
        });
        Ok(())
    }

    fn check_match(&self, found: &Match) -> Result<(), PoolError> {
        let current = found.epoch == self.epoch
            && self.algorithm() == Some(found.algorithm)
            && found.block_size == self.block_size();
        for (position, &block) in found.blocks.iter().enumerate() {
            let holds = |content| self.index.holds(&self.records, block, &content);
            if !current || !found.content(position).is_some_and(holds) {
                return Err(PoolError::StaleMatch { block, position });
            }
        }
        Ok(())
    }
}
