//! `PrefixIndex`: block hash -> the blocks that hold that content.
//!
//! Owns: which blocks are registered, under which hash, at which depth of their chain, whether they are
//! computed, and what verifies a hit. It knows nothing of reference counts: a registered block may be
//! held or cached-free.
//!
//! Several blocks may carry one hash (two requests computed the same prompt at once): those that are
//! computed form a ring, in the order in which they became so, and the others form one, in the order in
//! which they were registered. Each ring has an entry of the table, so that a lookup looks at one
//! block, and a copy that becomes computed finds the end of its new ring, however many there are. The
//! oldest computed copy, the one that became computed first of those that are left, is the one that
//! hits.
//!
//! Invariants:
//! - P1: the table's entries of a hash are the heads of the rings of exactly the blocks registered under it.
//! - P2: a ring is of computed copies, or of uncomputed ones. A lookup never returns an uncomputed block.
//! - P3: every entry points to a block whose stored hash is its key; removing a block leaves no entry behind
//!   (vLLM #4761, kvcached #362).
//! - A second chain with an equal hash and other content (a collision) is never indexed over the first:
//!   it is counted.
//!
//! Costs: O(1) per block; its record and 8 bytes of table, and with verification 16 (fingerprint) or
//! `4 x block_size` more (tokens). A lookup reads one line of the table and one record. No call
//! allocates.
//!
//! ```
//! use std::sync::Arc;
//! use kvpool::{BlockHasher, BlockId, ExtraKeys, HashCursor, HasherConfig, PrefixIndex, Verify};
//! let hasher = Arc::new(BlockHasher::new(HasherConfig { block_size: 2, ..Default::default() })?);
//! let mut cursor = HashCursor::new(hasher, ExtraKeys::default())?;
//! cursor.append(&[1, 2, 3, 4, 5]);
//! let mut index = PrefixIndex::new(8, 2, Verify::None)?;
//! index.insert(BlockId::new(3), cursor.chain(), 0)?;
//! assert_eq!(index.find(cursor.chain(), 0), None); // registered, not computed
//! index.mark_computed(BlockId::new(3))?;
//! assert_eq!(index.find(cursor.chain(), 0), Some(BlockId::new(3)));
//! # Ok::<(), kvpool::PoolError>(())
//! ```

mod index;
mod interior;
mod named;
mod rings;
pub(crate) mod table;

use crate::block::BlockId;
use crate::error::{InvariantViolation, PoolError};
use crate::free_list::{check_id, check_num_blocks};
use crate::hash::{BlockHash, HashAlgorithm, HashChain, Verify};
use crate::record::{ByBlock, Record, blank};
pub(crate) use index::{Index, Visibility};

/// What [`PrefixIndex::insert`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// The block is registered.
    Registered,
    /// Another content has the same hash: the block is not registered.
    Collision,
}

/// Block hash -> blocks, for the blocks of one pool. A pool has the same over the records that its
/// other parts use, too.
#[derive(Clone, Debug)]
pub struct PrefixIndex {
    records: Vec<Record>,
    index: Index,
}

impl PrefixIndex {
    /// An empty index for blocks `1..num_blocks` of `block_size` tokens.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for a number of blocks or a block size out of range.
    pub fn new(num_blocks: usize, block_size: usize, verify: Verify) -> Result<Self, PoolError> {
        check_num_blocks(num_blocks)?;
        let index = Index::new(num_blocks, block_size, verify)?;
        Ok(Self { records: blank(num_blocks)?, index })
    }

    /// [`Self::new`], and each block also remembers its parent's hash (32 bytes per block), for event
    /// listeners and for evictors that keep the cache prefix-closed.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_parents(num_blocks: usize, block_size: usize, verify: Verify) -> Result<Self, PoolError> {
        let mut index = Self::new(num_blocks, block_size, verify)?;
        index.index.keep_parents(&index.records)?;
        Ok(index)
    }

    /// Blocks that are registered, computed or not.
    #[must_use]
    pub const fn num_registered(&self) -> usize {
        self.index.num_registered()
    }

    /// Distinct hashes among them.
    #[must_use]
    pub fn num_hashes(&self) -> usize {
        self.index.num_hashes()
    }

    /// The hash algorithm of what is registered; `None` while nothing is, and then a chain of any
    /// algorithm may be.
    #[must_use]
    pub const fn algorithm(&self) -> Option<HashAlgorithm> {
        self.index.algorithm()
    }

    /// How hits are verified.
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

    /// Whether `block` is registered and computed: whether a hit may return it.
    #[must_use]
    pub fn is_computed(&self, block: BlockId) -> bool {
        self.records.at(block.get()).is_computed()
    }

    /// The hash under which `block` is registered.
    #[must_use]
    pub fn hash_of(&self, block: BlockId) -> Option<BlockHash> {
        Index::hash_of(&self.records, block)
    }

    /// The position of a registered block in its chain: 0 for the first block of a prompt.
    #[must_use]
    pub fn depth_of(&self, block: BlockId) -> Option<u32> {
        Index::depth_of(&self.records, block)
    }

    /// The parent's hash of a registered block; `None` for the first block of a chain, if none is
    /// known, or without [`Self::with_parents`].
    #[must_use]
    pub fn parent_of(&self, block: BlockId) -> Option<BlockHash> {
        self.index.parent_of(&self.records, block)
    }

    /// The blocks registered under `hash`: computed ones, in the order in which they became so, then
    /// the others, in the order in which they were registered.
    #[must_use]
    pub fn copies(&self, hash: &BlockHash) -> Vec<BlockId> {
        self.index.copies(&self.records, hash.into())
    }

    /// Whether a computed copy of the block's content exists beside `block`.
    #[must_use]
    pub fn has_other_computed_copy(&self, block: BlockId) -> bool {
        self.index.other_computed_copy(&self.records, block).is_some()
    }

    /// Checks that chains of this kind can be looked up and registered here.
    ///
    /// # Errors
    /// [`PoolError::BlockSizeMismatch`], [`PoolError::AlgorithmMismatch`],
    /// [`PoolError::UnverifiedAlgorithm`] for a non-cryptographic digest without verification,
    /// [`PoolError::MissingVerification`] for a chain without the fingerprints or tokens to compare.
    pub fn check_chain(&self, chain: &HashChain) -> Result<(), PoolError> {
        self.index.check_chain(chain)
    }

    /// The computed block that holds the content of the chain's block `position`, or `None`. O(1).
    ///
    /// The caller has passed the chain to [`Self::check_chain`]. A collision is a miss.
    #[must_use]
    pub fn find(&self, chain: &HashChain, position: usize) -> Option<BlockId> {
        self.index.find_or_collision(&self.records, chain, position).ok().flatten()
    }

    /// Whether some block, computed or not, is registered under the chain's hash at `position`.
    #[must_use]
    pub fn is_registered(&self, chain: &HashChain, position: usize) -> bool {
        self.index.is_registered(&self.records, chain, position)
    }

    /// Registers `block` as the chain's block `position`, not yet computed. O(1).
    ///
    /// # Errors
    /// [`PoolError::AlreadyRegistered`]; ids and positions out of range; what [`Self::check_chain`] finds.
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

    /// Sets the computed bit of a registered block: from now on a lookup may return it. O(1); doing it
    /// again is a no-op.
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

    /// Takes `block` out of the index: no lookup finds it any more. Returns whether it was registered. O(1).
    pub fn remove(&mut self, block: BlockId) -> bool {
        if !self.contains(block) {
            return false;
        }
        self.index.remove(&mut self.records, block);
        true
    }

    /// Forgets everything, the algorithm too. O(blocks).
    pub fn clear(&mut self) {
        self.index.clear(&mut self.records);
    }

    /// Whether one block is found by the hash that it is registered under, and its links and bits agree
    /// with those of its neighbours; or has none, if it is not registered. Of block 0: what is counted.
    /// O(1).
    ///
    /// # Errors
    /// The broken invariant.
    pub fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.index.check_block(&self.records, block)
    }

    /// Recounts rings, flags and table from scratch. O(blocks).
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.index.check_invariants(&self.records)
    }
}
