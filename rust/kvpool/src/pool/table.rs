//! Registers whole tables of full blocks. The blocks of new contents are registered and marked
//! computed. A block whose content is already cached is replaced by the cached block.

use super::BlockPool;
use crate::block::BlockId;
use crate::error::PoolError;
use crate::free_list::check_id;
use crate::hash::HashChain;
use crate::prefix_index::Index;
use crate::record::{ByBlock, Name};

/// A part of a block table that passed all checks, and the cached blocks that will replace blocks of
/// it. The pool is still unchanged.
pub(super) struct Staged<'a> {
    blocks: &'a [BlockId],
    chain: &'a HashChain,
    start: usize,
    /// Number of blocks before the first hash collision. Without a collision, the number of all blocks.
    end: usize,
    /// The positions in `blocks` at which a cached block replaces a block, ascending, each with the
    /// cached block.
    changes: Vec<(usize, BlockId)>,
}

/// # Whole block tables
///
/// Registers full blocks, marks them computed, and replaces blocks whose content is already cached.
impl BlockPool {
    pub(super) fn check_part(&self, blocks: usize, chain: &HashChain, start: usize) -> Result<(), PoolError> {
        self.check_poison()?;
        self.check_chain(chain)?;
        Index::check_depth(start.saturating_add(blocks.saturating_sub(1)))?;
        if start.checked_add(blocks).is_none_or(|end| end > chain.len()) {
            return Err(PoolError::ChainTooShort { start, blocks, chain: chain.len() });
        }
        Ok(())
    }

    /// Registers held, full blocks as the blocks of `chain` from `start` on, and marks them computed.
    /// If another computed block already has the content, the caller gets a reference to that block,
    /// and its own block loses a reference. Returns the positions in `blocks` that changed, ascending,
    /// with the cached blocks that belong there now. A block that is already registered for its
    /// position is not changed.
    ///
    /// The call stops at a hash collision like [`Self::register`]; the blocks from there on are
    /// unchanged. O(blocks log blocks).
    ///
    /// ```
    /// use kvpool::{BlockPool, ExtraKeys, HashCursor, HasherConfig, PoolConfig};
    /// let hasher = kvpool::BlockHasher::new(HasherConfig { block_size: 2, ..Default::default() })?;
    /// let mut prompt = HashCursor::new(hasher.into(), ExtraKeys::default())?;
    /// prompt.append(&[1, 2, 3, 4]);
    /// let mut pool = BlockPool::new(PoolConfig { num_blocks: 9, block_size: 2, ..Default::default() })?;
    /// let (mut one, mut other) = (pool.allocate(2)?, pool.allocate(2)?);
    /// assert_eq!(pool.register_table(&one[..1], prompt.chain(), 0)?, []);
    /// for (at, block) in pool.register_table(&other, prompt.chain(), 0)? {
    ///     other[at] = block;
    /// }
    /// assert_eq!(other[0], one[0]);
    /// # Ok::<(), kvpool::PoolError>(())
    /// ```
    ///
    /// # Errors
    /// [`PoolError::NotHeld`]; [`PoolError::AlreadyRegistered`] for a block that is registered under
    /// another content, or that appears twice; [`PoolError::RefCountOverflow`]; as [`Self::register`].
    pub fn register_table(
        &mut self,
        blocks: &[BlockId],
        chain: &HashChain,
        start: usize,
    ) -> Result<Vec<(usize, BlockId)>, PoolError> {
        self.check_part(blocks.len(), chain, start)?;
        for (position, &block) in blocks.iter().enumerate() {
            check_id(block, self.num_blocks(), "registered")?;
            if self.num_holders(block) == 0 {
                let held = self.records.at(block.get()).references;
                return Err(PoolError::NotHeld { block, held, operation: "register it", position });
            }
            let record = self.records.at(block.get());
            let hash = chain.hashes().get(start + position);
            if record.is_registered() && !hash.is_some_and(|hash| record.is_named(Name::from(hash))) {
                return Err(PoolError::AlreadyRegistered { block });
            }
        }
        let is_new = |block: &BlockId| !self.is_registered(*block);
        if let Some(block) = named_twice(blocks.iter().copied().filter(is_new).collect()) {
            return Err(PoolError::AlreadyRegistered { block });
        }
        let staged = self.stage_table(blocks, chain, start)?;
        let given_up: Vec<_> = staged.changes.iter().map(|&(at, _)| blocks[at]).collect();
        self.check_releasable(&given_up)?;
        let changes = self.enter_table(staged, false)?;
        self.release_table(&given_up[..changes.len()])?;
        Ok(changes)
    }

    /// Finds the cached blocks that have the same contents as `blocks`, and will replace them. The
    /// caller has called [`Self::check_part`].
    pub(super) fn stage_table<'a>(
        &self,
        blocks: &'a [BlockId],
        chain: &'a HashChain,
        start: usize,
    ) -> Result<Staged<'a>, PoolError> {
        let (mut end, mut changes) = (blocks.len(), Vec::new());
        for (at, &block) in blocks.iter().enumerate() {
            match self.index.find_or_collision(&self.records, chain, start + at) {
                Ok(Some(cached)) if cached != block => changes.push((at, cached)),
                Ok(_) => {}
                Err(()) => {
                    end = at;
                    break;
                }
            }
        }
        let cached: Vec<_> = changes.iter().map(|&(_, cached)| cached).collect();
        self.check_countable(&cached)?;
        Ok(Staged { blocks, chain, start, end, changes })
    }

    /// Registers the blocks that are not replaced, marks them computed, and acquires the cached blocks
    /// that replace the others. With `free`, the blocks have no references yet, and this call adds one
    /// to each registered block. Returns the replaced positions and the cached blocks. The call can
    /// only fail because of a broken invariant.
    pub(super) fn enter_table(
        &mut self,
        staged: Staged<'_>,
        free: bool,
    ) -> Result<Vec<(usize, BlockId)>, PoolError> {
        let Staged { blocks, chain, start, mut end, mut changes } = staged;
        let mut collided = end < blocks.len();
        self.counters.collisions += u64::from(collided);
        let (mut kept, mut changed) = (Vec::new(), changes.iter().map(|&(at, _)| at).peekable());
        let mut at = 0;
        while at < end {
            if changed.next_if_eq(&at).is_some() {
                at += 1;
                continue;
            }
            let until = changed.peek().copied().unwrap_or(end).min(end);
            let rest = &blocks[at..until];
            let new = rest.iter().take_while(|&&block| !self.is_registered(block)).count();
            let run = &rest[..new];
            if free {
                run.iter().try_for_each(|&block| self.acquire_free(block))?;
            }
            let done = if new > 0 { self.register(run, chain, start + at)?.blocks } else { 0 };
            kept.extend_from_slice(&run[..done]);
            if done < new {
                // Two contents in `chain` itself have the same hash. `register` has counted this
                // collision; it is subtracted if the call has already counted one.
                self.counters.collisions -= u64::from(std::mem::replace(&mut collided, true));
                if free {
                    self.release_table(&run[done..])?;
                }
                end = at + done;
                break;
            }
            at += new;
            if new < rest.len() {
                kept.push(rest[new]); // already registered here, perhaps not computed yet
                at += 1;
            }
        }
        self.mark_computed(&kept)?;
        changes.retain(|&(at, _)| at < end);
        let cached: Vec<_> = changes.iter().map(|&(_, cached)| cached).collect();
        self.acquire_by_id(&cached)?;
        Ok(changes)
    }
}

/// Returns one of the blocks that appear more than once in the list, if there are any.
pub(super) fn named_twice(mut blocks: Vec<BlockId>) -> Option<BlockId> {
    blocks.sort_unstable();
    blocks.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0])
}
