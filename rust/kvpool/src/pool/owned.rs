//! Implements the operations for engines that allocate blocks themselves. The pool then only finds
//! cached blocks and chooses the blocks to evict.
//!
//! While a block belongs to the engine's allocator, its id is free in the pool. The engine never calls
//! [`BlockPool::allocate`]. It makes the pool with [`DuplicatePolicy::Keep`](crate::DuplicatePolicy),
//! and with one id for each of its blocks.
//!
//! | call | effect on an id |
//! |---|---|
//! | [`BlockPool::adopt`] | engine's -> held and cached, unless another id has the same content |
//! | [`BlockPool::release_table`] | held -> cached-free |
//! | [`BlockPool::lookup`], [`BlockPool::acquire_match`] | cached-free -> held |
//! | [`BlockPool::evict`] | cached-free -> engine's |
//! | [`BlockPool::disown`] | held by one holder -> engine's |

use super::BlockPool;
use super::table::named_twice;
use crate::block::{BlockId, BlockState};
use crate::error::PoolError;
use crate::free_list::check_id;
use crate::hash::HashChain;
use crate::record::ByBlock;

/// # Ids that the engine's allocator owns
///
/// For engines that allocate blocks themselves. The pool only finds cached blocks and chooses the
/// blocks to evict. While a block belongs to the engine's allocator, its id is free in the pool.
impl BlockPool {
    /// Evicts up to `n` cached-free blocks and returns them in the order of eviction. The blocks are
    /// free then, and the next allocations take them in this order. They are counted and reported as
    /// evicted blocks. O(blocks evicted).
    ///
    /// ```
    /// use kvpool::{BlockPool, BlockState, ExtraKeys, HashCursor, HasherConfig, PoolConfig};
    /// let hasher = kvpool::BlockHasher::new(HasherConfig { block_size: 2, ..Default::default() })?;
    /// let mut prompt = HashCursor::new(hasher.into(), ExtraKeys::default())?;
    /// prompt.append(&[1, 2, 3, 4]);
    /// let mut pool = BlockPool::new(PoolConfig { num_blocks: 9, block_size: 2, ..Default::default() })?;
    /// let table = pool.allocate(2)?;
    /// pool.register(&table, prompt.chain(), 0)?;
    /// pool.mark_computed(&table)?;
    /// pool.release_table(&table)?;
    ///
    /// assert_eq!(pool.evict(1)?, table[1..]); // the deepest first
    /// assert_eq!(pool.evict(5)?, table[..1]);
    /// assert_eq!(pool.state(table[0]), Some(BlockState::Free));
    /// # Ok::<(), kvpool::PoolError>(())
    /// ```
    ///
    /// # Errors
    /// Only if the pool is poisoned.
    pub fn evict(&mut self, n: usize) -> Result<Vec<BlockId>, PoolError> {
        self.check_poison()?;
        self.check_available(0)?;
        let n = n.min(self.num_cached_free());
        let mut victims = Vec::with_capacity(n);
        self.evict_into(n, &mut victims, |_, _, _| {})?;
        let released = self.allocator.release(&mut self.records, &victims.iter(), |_, _| {});
        self.poison_if_broken(released)?;
        // The free list allocates the block that was freed last first, so the victims are freed in
        // reverse.
        for &victim in victims.iter().rev() {
            self.free(victim)?;
        }
        self.notify_changed(&victims);
        Ok(victims)
    }

    /// Adds blocks of the engine to the cache: their ids, which are free in the pool, become the blocks
    /// of `chain` from position `start` on. Each id is registered and marked computed, and the caller
    /// gets one reference to it. If another computed block already has the content, the caller gets a
    /// reference to that block instead, and the id remains free.
    ///
    /// Returns one pair for each id that remains free: its position in `blocks`, ascending, and the
    /// block that has the content. Stops at a hash collision, which is counted; this id and the
    /// following ones also remain free, and are not returned. O(blocks log blocks).
    ///
    /// ```
    /// use kvpool::{BlockId, BlockPool, BlockState, ExtraKeys, HashCursor, HasherConfig, PoolConfig};
    /// let hasher = kvpool::BlockHasher::new(HasherConfig { block_size: 2, ..Default::default() })?;
    /// let mut prompt = HashCursor::new(hasher.into(), ExtraKeys::default())?;
    /// prompt.append(&[1, 2, 3, 4]);
    /// let mut pool = BlockPool::new(PoolConfig { num_blocks: 9, block_size: 2, ..Default::default() })?;
    ///
    /// // The engine computed a prompt in two blocks, and later computed it again in two others.
    /// let (mine, twice) = ([5, 3].map(BlockId::new), [7, 8].map(BlockId::new));
    /// assert_eq!(pool.adopt(&mine, prompt.chain(), 0)?, []);
    /// assert_eq!(pool.adopt(&twice, prompt.chain(), 0)?, [(0, mine[0]), (1, mine[1])]);
    /// assert_eq!(pool.state(twice[0]), Some(BlockState::Free)); // the engine frees it
    /// pool.release_table(&mine)?;
    /// pool.release_table(&mine)?;
    ///
    /// let found = pool.lookup(prompt.chain(), 0, usize::MAX)?;
    /// pool.acquire_match(&found)?;
    /// pool.release_table(found.blocks())?;
    /// assert_eq!(pool.evict(2)?, [mine[1], mine[0]]); // the engine has them again
    /// # Ok::<(), kvpool::PoolError>(())
    /// ```
    ///
    /// # Errors
    /// [`PoolError::WrongState`] for an id that is not free, or appears twice;
    /// [`PoolError::RefCountOverflow`]; as [`Self::register`].
    pub fn adopt(
        &mut self,
        blocks: &[BlockId],
        chain: &HashChain,
        start: usize,
    ) -> Result<Vec<(usize, BlockId)>, PoolError> {
        self.check_part(blocks.len(), chain, start)?;
        let operation = "adopt it";
        for &block in blocks {
            check_id(block, self.num_blocks(), "adopted")?;
            match self.state(block) {
                Some(BlockState::Free) => {}
                state => {
                    let state = state.map_or("", BlockState::name);
                    return Err(PoolError::WrongState { block, state, operation });
                }
            }
        }
        if let Some(block) = named_twice(blocks.to_vec()) {
            return Err(PoolError::WrongState { block, state: "named twice", operation });
        }
        let staged = self.stage_table(blocks, chain, start)?;
        self.enter_table(staged, true)
    }

    /// Returns ids to the engine's allocator. The caller must be the only holder of each block. The
    /// block loses its reference and its content, and is free. O(blocks).
    ///
    /// # Errors
    /// [`PoolError::NotHeld`] for a block that has no references, or appears twice;
    /// [`PoolError::WrongState`] for a block that has another holder, or is fenced; unknown ids.
    pub fn disown(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        self.check_poison()?;
        for (position, &block) in blocks.iter().enumerate() {
            check_id(block, self.num_blocks(), "disowned")?;
            let operation = "disown it";
            let record = self.records.at(block.get());
            match (record.references, record.fences) {
                (1, 0) => {}
                (0, _) => return Err(PoolError::NotHeld { block, held: 0, operation, position }),
                (_, 0) => {
                    return Err(PoolError::WrongState { block, state: "held by others, too", operation });
                }
                _ => return Err(PoolError::WrongState { block, state: "fenced", operation }),
            }
        }
        self.check_releasable(blocks)?;
        self.drop_cached(blocks)?;
        self.release_table(blocks)
    }
}
