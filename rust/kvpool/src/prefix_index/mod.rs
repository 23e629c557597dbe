//! [`PrefixIndex`] maps block hashes to the blocks with that content.
//!
//! For each registered block, the index stores its hash, its depth in its chain, whether it is
//! computed, and the data that verify a hit. The index does not use reference counts: a registered
//! block may be held or cached-free.
//!
//! Several blocks may have the same hash, because two requests may compute the same prompt at the same
//! time. These blocks are called copies. The computed copies form a ring, a circular list, in the order
//! in which they became computed. The other copies form a second ring, in the order in which they were
//! registered.
//!
//! The table has one entry per ring, for its first block. So a lookup reads one block, and a block that
//! becomes computed is added to the end of its new ring in O(1), for any number of copies. A hit
//! returns the oldest computed copy: the one that became computed first.
//!
//! Invariants:
//! - P1: the table contains the first blocks of the rings of a hash. These rings contain exactly the
//!   blocks that are registered under the hash.
//! - P2: either all blocks of a ring are computed, or none of them. A lookup never returns an
//!   uncomputed block.
//! - P3: the block of every entry has the hash under which the entry is stored. When a block is
//!   removed, no entry for it remains (vLLM #4761, kvcached #362).
//! - If a block has the hash of another content (a collision), it is not registered. The collision is
//!   counted.
//!
//! Costs: O(1) time per block. Each block takes its record of 64 bytes and 9 bytes of table.
//! Verification by fingerprints takes 16 more bytes per block, and verification by tokens another
//! `4 x block_size` bytes. A lookup reads one cache line of the table and one record. No call allocates
//! memory.

mod index;
mod interior;
mod known;
mod named;
mod rings;
pub(crate) mod table;

use crate::block::BlockId;
use crate::error::{InvariantViolation, PoolError};
use crate::free_list::{check_id, check_num_blocks};
use crate::hash::{BlockHash, HashAlgorithm, HashChain, Verify};
use crate::record::{ByBlock, Record, blank};
pub(crate) use index::{Index, Visibility};
pub(crate) use known::Matching;

/// The result of [`PrefixIndex::insert`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The block is registered.
    Registered,
    /// Another content has the same hash, so the block is not registered.
    Collision,
}

/// Maps block hashes to blocks. This type is for use without a pool. A [`crate::BlockPool`] contains
/// the same index, and stores the index data in its own records of blocks.
///
/// ```
/// use std::sync::Arc;
/// use kvpool::{BlockHasher, BlockId, ExtraKeys, HashCursor, HasherConfig, PrefixIndex, Verify};
/// let hasher = Arc::new(BlockHasher::new(HasherConfig { block_size: 2, ..Default::default() })?);
/// let mut cursor = HashCursor::new(hasher, ExtraKeys::default())?;
/// cursor.append(&[1, 2, 3, 4, 5]);
/// let mut index = PrefixIndex::new(8, 2, Verify::None)?;
/// index.insert(BlockId::new(3), cursor.chain(), 0)?;
/// assert_eq!(index.find(cursor.chain(), 0), None); // registered, not computed
/// index.mark_computed(BlockId::new(3))?;
/// assert_eq!(index.find(cursor.chain(), 0), Some(BlockId::new(3)));
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PrefixIndex {
    records: Vec<Record>,
    index: Index,
}

impl PrefixIndex {
    /// Makes an empty index for blocks `1..num_blocks` of `block_size` tokens.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if the number of blocks or the block size is out of range.
    pub fn new(num_blocks: usize, block_size: usize, verify: Verify) -> Result<Self, PoolError> {
        check_num_blocks(num_blocks)?;
        let index = Index::new(num_blocks, block_size, verify)?;
        Ok(Self { records: blank(num_blocks)?, index })
    }

    /// Like [`Self::new`], but the index also stores the parent hash of each block, which takes 32
    /// bytes per block. Two users need the parent hashes: observers that make events, and evictors that
    /// evict a block only after the blocks that follow it in their prompt.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_parents(num_blocks: usize, block_size: usize, verify: Verify) -> Result<Self, PoolError> {
        let mut index = Self::new(num_blocks, block_size, verify)?;
        index.index.keep_parents(&index.records)?;
        Ok(index)
    }

    /// Number of registered blocks, computed or not.
    #[must_use]
    pub const fn num_registered(&self) -> usize {
        self.index.num_registered()
    }

    /// Number of distinct hashes of registered blocks.
    #[must_use]
    pub fn num_hashes(&self) -> usize {
        self.index.num_hashes()
    }

    /// The hash algorithm of the registered blocks. `None` if no block is registered; then a chain of
    /// any algorithm can be registered.
    #[must_use]
    pub const fn algorithm(&self) -> Option<HashAlgorithm> {
        self.index.algorithm()
    }

    /// How the index verifies hits.
    #[must_use]
    pub const fn verify(&self) -> Verify {
        self.index.verify()
    }

    /// Tokens per block.
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.index.block_size()
    }

    /// Whether `block` is registered.
    #[must_use]
    pub fn contains(&self, block: BlockId) -> bool {
        self.records.at(block.get()).is_registered()
    }

    /// Whether `block` is registered and computed, so that lookups may return it.
    #[must_use]
    pub fn is_computed(&self, block: BlockId) -> bool {
        self.records.at(block.get()).is_computed()
    }

    /// The hash under which `block` is registered.
    #[must_use]
    pub fn hash_of(&self, block: BlockId) -> Option<BlockHash> {
        Index::hash_of(&self.records, block)
    }

    /// The position of a registered block in its hash chain. 0 for the first block of a prompt.
    #[must_use]
    pub fn depth_of(&self, block: BlockId) -> Option<u32> {
        Index::depth_of(&self.records, block)
    }

    /// The hash of the block before a registered block in its hash chain. `None` if the block is the
    /// first of its chain, if that hash is unknown, or if the index was not made by
    /// [`Self::with_parents`].
    #[must_use]
    pub fn parent_of(&self, block: BlockId) -> Option<BlockHash> {
        self.index.parent_of(&self.records, block)
    }

    /// Returns the blocks that are registered under `hash`: first the computed blocks, in the order in
    /// which they became computed, then the other blocks, in the order in which they were registered.
    #[must_use]
    pub fn copies(&self, hash: &BlockHash) -> Vec<BlockId> {
        self.index.copies(&self.records, hash.into())
    }

    /// Whether another computed block has the same content as `block`.
    #[must_use]
    pub fn has_other_computed_copy(&self, block: BlockId) -> bool {
        self.index.other_computed_copy(&self.records, block).is_some()
    }

    /// Checks that this chain can be looked up and registered in this index.
    ///
    /// # Errors
    /// [`PoolError::BlockSizeMismatch`], [`PoolError::AlgorithmMismatch`],
    /// [`PoolError::UnverifiedAlgorithm`] for a non-cryptographic digest without verification,
    /// [`PoolError::MissingVerification`] for a chain without the fingerprints or tokens to compare.
    pub fn check_chain(&self, chain: &HashChain) -> Result<(), PoolError> {
        self.index.check_chain(chain)
    }

    /// Returns the computed block with the content of the chain's block at `position`, or `None`. O(1).
    ///
    /// The caller must have checked the chain with [`Self::check_chain`]. If a block with the same hash
    /// has another content, returns `None`.
    #[must_use]
    pub fn find(&self, chain: &HashChain, position: usize) -> Option<BlockId> {
        self.index.find_or_collision(&self.records, chain, position).ok().flatten()
    }

    /// Whether some block, computed or not, is registered under the chain's hash at `position`.
    #[must_use]
    pub fn is_registered(&self, chain: &HashChain, position: usize) -> bool {
        self.index.is_registered(&self.records, chain, position)
    }

    /// Registers `block` for the content of the chain at `position`. Does not mark it computed. O(1).
    ///
    /// # Errors
    /// [`PoolError::AlreadyRegistered`]; ids and positions out of range; the errors of
    /// [`Self::check_chain`].
    pub fn insert(
        &mut self,
        block: BlockId,
        chain: &HashChain,
        position: usize,
    ) -> Result<Inserted, PoolError> {
        check_id(block, self.records.len(), "registered")?;
        self.check_chain(chain)?;
        Index::check_depth(position)?;
        let Some(link) = chain.link(position) else {
            return Err(PoolError::ChainTooShort { start: position, blocks: 1, chain: chain.len() });
        };
        if self.contains(block) {
            return Err(PoolError::AlreadyRegistered { block });
        }
        Ok(self.index.insert(&mut self.records, block, &link))
    }

    /// Marks a registered block as computed, so that lookups may return it. Does nothing if the block
    /// is already computed. O(1).
    ///
    /// # Errors
    /// [`PoolError::NotRegistered`]; ids out of range.
    pub fn mark_computed(&mut self, block: BlockId) -> Result<(), PoolError> {
        check_id(block, self.records.len(), "marked computed")?;
        if !self.contains(block) {
            return Err(PoolError::NotRegistered { block });
        }
        self.index.mark_computed(&mut self.records, block);
        Ok(())
    }

    /// Removes `block` from the index, so that no lookup finds it. Returns whether it was registered.
    /// O(1).
    pub fn remove(&mut self, block: BlockId) -> bool {
        if !self.contains(block) {
            return false;
        }
        self.index.remove(&mut self.records, block);
        true
    }

    /// Removes all blocks, and resets the algorithm. O(blocks).
    pub fn clear(&mut self) {
        self.index.clear(&mut self.records);
    }

    /// Checks one block in O(1). A registered block must be found by its hash, and its links and flags
    /// must match those of the neighbours in its ring. A block that is not registered must have no
    /// content. For block 0, checks the index's counts of blocks and rings.
    ///
    /// # Errors
    /// The broken invariant.
    pub fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.index.check_block(&self.records, block)
    }

    /// Checks all invariants by recounting rings, flags and table from scratch. O(blocks).
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.index.check_invariants(&self.records)
    }
}
