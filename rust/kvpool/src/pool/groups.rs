//! Finds and acquires hits of several KV-cache groups, which keep all of their blocks in one pool: see
//! [`crate::groups`].
//!
//! A block of a group is registered under two values: the digest of its last hash unit (a unit is a
//! fixed number of tokens), and the number of the group ([`BlockPool::register_named`]).

use super::observe::Lookup;
use super::{BlockPool, PrefixMatch};
use crate::block::BlockId;
use crate::error::PoolError;
use crate::groups::{Blocks, Cached, GroupHit, Groups, HashUnits, Tokens};
use crate::hash::{BlockHash, HashChain};
use crate::record::Name;

struct OfChain<'a> {
    pool: &'a BlockPool,
    groups: &'a Groups,
    hashes: &'a [BlockHash],
    /// The hashes of the blocks of the lookup in progress. All lookups reuse this buffer.
    named: Vec<BlockHash>,
}

impl Cached for OfChain<'_> {
    fn find_run(&mut self, group: usize, first: Blocks, end: Blocks, out: &mut Vec<BlockId>) {
        let Self { pool, groups, hashes, ref mut named } = *self;
        let naming = |at: usize| groups.naming_unit(group, Blocks(at)).and_then(|unit| hashes.get(unit.0));
        let per_block = groups.specs().get(group).map_or(0, |spec| spec.block_tokens / groups.unit());
        let hashes = if per_block == 1 {
            hashes.get(first.0..end.0.min(hashes.len())).unwrap_or(&[])
        } else {
            named.clear();
            named.extend((first.0..end.0).map_while(naming));
            named
        };
        pool.find_named_run(hashes, group as u16, out);
    }

    fn find_leading(&mut self, group: usize, at: Blocks, most: HashUnits) -> Option<(HashUnits, BlockId)> {
        let Self { pool, groups, hashes, .. } = *self;
        let per_block = groups.specs().get(group)?.block_tokens / groups.unit();
        let first = at.0.checked_mul(per_block)?;
        let units = hashes.get(first..hashes.len().min(first + most.0.min(per_block - 1)))?;
        let find = |hash: &BlockHash| pool.index.find_interior(Name { hash, group: group as u16 });
        // If the first `n` units of a block match, every smaller number of units matches too, so a
        // binary search finds the largest number.
        let found = units.partition_point(|hash| find(hash).is_some());
        Some((HashUnits(found), find(units.get(found.checked_sub(1)?)?)?))
    }
}

/// # KV-cache groups
///
/// A hybrid model has several groups of layers, and a hit has to serve all of them: see
/// [`crate::groups`].
impl BlockPool {
    /// Finds the longest hit of a chain, at most `limit` tokens, that every group can serve. The chain
    /// is hashed in units of [`Groups::unit`], which is the block size of the pool. The caller gets no
    /// references to the blocks. Costs: as [`Groups::longest_hit`].
    ///
    /// ```
    /// use std::sync::Arc;
    /// use kvpool::groups::{GroupKind, GroupSpec, Groups, Tokens};
    /// use kvpool::{BlockHasher, BlockPool, ExtraKeys, HashCursor, HasherConfig, NULL_BLOCK, PoolConfig};
    /// let window = GroupSpec::new(GroupKind::Sliding { window: 3 }, 2);
    /// let groups = Groups::new(vec![GroupSpec::new(GroupKind::Full, 2), window], None)?;
    /// let hasher = Arc::new(BlockHasher::new(HasherConfig { block_size: 2, ..Default::default() })?);
    /// let mut prompt = HashCursor::new(hasher, ExtraKeys::default())?;
    /// prompt.append(&[1, 2, 3, 4, 5, 6]);
    ///
    /// let mut pool = BlockPool::new(PoolConfig { num_blocks: 9, block_size: 2, ..Default::default() })?;
    /// let (full, last) = (pool.allocate(3)?, pool.allocate(1)?);
    /// pool.register_named(&full, prompt.chain().hashes(), 0, |_, _| {})?;
    /// pool.register_named(&last, &prompt.chain().hashes()[2..], 1, |_, _| {})?;
    /// // A token at position 6 reads two tokens of the window: one block.
    /// let hit = pool.find_groups(&groups, prompt.chain(), Tokens(6))?;
    /// assert_eq!((hit.tokens, &hit.tables[0]), (Tokens(6), &full));
    /// assert_eq!(hit.tables[1], [NULL_BLOCK, NULL_BLOCK, last[0]]);
    /// // A token at position 4 reads a block that is not cached, and so does every earlier one.
    /// assert_eq!(pool.find_groups(&groups, prompt.chain(), Tokens(5))?.tokens, Tokens(0));
    /// # Ok::<(), kvpool::PoolError>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Self::match_and_acquire`] about chains; [`PoolError::BlockSizeMismatch`] for
    /// groups with another unit; [`PoolError::MissingVerification`] in a pool that verifies hits,
    /// because hits of groups cannot be verified.
    pub fn find_groups(
        &self,
        groups: &Groups,
        chain: &HashChain,
        limit: Tokens,
    ) -> Result<GroupHit, PoolError> {
        let limit = limit.min(Tokens(chain.len().saturating_mul(groups.unit())));
        Ok(groups.longest_hit(limit, &mut self.of_chain(groups, chain)?))
    }

    fn of_chain<'a>(&'a self, groups: &'a Groups, chain: &'a HashChain) -> Result<OfChain<'a>, PoolError> {
        self.check_group(0)?;
        self.check_chain(chain)?;
        if groups.unit() != self.block_size() {
            return Err(PoolError::BlockSizeMismatch { chain: groups.unit(), pool: self.block_size() });
        }
        Ok(OfChain { pool: self, groups, hashes: chain.hashes(), named: Vec::new() })
    }

    /// Returns all blocks that are registered in a group for the content at a position of a chain, like
    /// [`Self::copies`]. Returns an empty list if the group caches nothing.
    pub(crate) fn copies_in_group(
        &self,
        groups: &Groups,
        chain: &HashChain,
        group: usize,
        at: Blocks,
    ) -> Result<Vec<BlockId>, PoolError> {
        let hashes = self.of_chain(groups, chain)?.hashes;
        let hash = groups.naming_unit(group, at).and_then(|unit| hashes.get(unit.0));
        Ok(hash.map_or_else(Vec::new, |hash| self.copies_named(Name { hash, group: group as u16 })))
    }

    /// Reserves memory for the hashes of units inside of blocks. A unit is the number of tokens per
    /// hash. With these hashes, hits can end inside a block, in groups with
    /// [`GroupSpec::partial_hits`](crate::groups::GroupSpec). The index stores at most `per_block` such
    /// hashes per block, each in 72 bytes.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if `per_block` is too large, or there is no memory.
    pub fn keep_interior(&mut self, per_block: usize) -> Result<(), PoolError> {
        self.check_poison()?;
        self.index.keep_interior(self.num_blocks(), per_block)
    }

    /// Registers the hashes of the first units inside a registered block of a group, so that hits can
    /// end inside the block. Does nothing if such hashes are already registered for the block. Hashes
    /// beyond the limit of [`Self::keep_interior`] are ignored. O(units).
    ///
    /// # Errors
    /// [`PoolError::NotRegistered`], and the errors of [`Self::register_named`] about groups.
    pub fn name_interior(
        &mut self,
        block: BlockId,
        hashes: &[BlockHash],
        group: u16,
    ) -> Result<(), PoolError> {
        self.check_group(group)?;
        if !self.is_registered(block) {
            return Err(PoolError::NotRegistered { block });
        }
        let most = self.index.interior_units().min(hashes.len());
        self.index.name_interior(block, &hashes[..most], group);
        Ok(())
    }

    /// Acquires the blocks that [`Self::find_groups`] found. The pool must not have changed since. The
    /// hit has `tokens` tokens, and `hits` blocks of the first group. `hashes` are the hashes of the
    /// chain. The observer gets the lengths of the lookup and of the hit in hash units.
    pub(crate) fn acquire_in_groups(
        &mut self,
        blocks: &[BlockId],
        hits: usize,
        tokens: usize,
        found: &PrefixMatch,
        hashes: &[BlockHash],
    ) -> Result<(), PoolError> {
        self.acquire_blocks(blocks)?;
        self.counters.hits += hits as u64;
        self.counters.misses += found.asked.saturating_sub(hits) as u64;
        self.notify_changed(blocks);
        let (hits, tenant) = (tokens / self.block_size(), found.tenant);
        self.notify_looked_up(&Lookup { hashes, depth: 0, parent: None, hits, blocks, tenant });
        Ok(())
    }

    /// Returns the number of tokens that each group alone could hit, at most `limit`, in the order of
    /// the groups. The group with the smallest number limits the hit of all groups. Changes nothing.
    ///
    /// # Errors
    /// As [`Self::find_groups`].
    pub fn reach_of_groups(
        &self,
        groups: &Groups,
        chain: &HashChain,
        limit: Tokens,
    ) -> Result<Vec<Tokens>, PoolError> {
        let mut cached = self.of_chain(groups, chain)?;
        let limit = limit.min(Tokens(chain.len().saturating_mul(groups.unit())));
        Ok((0..groups.specs().len()).map(|group| groups.longest_alone(group, limit, &mut cached)).collect())
    }
}
