//! For engines whose own allocator owns the ids, and for which a pool is the index and the order of eviction.

use super::BlockPool;
use crate::block::BlockId;
use crate::error::PoolError;

impl BlockPool {
    /// Evicts up to `n` cached-free blocks and returns them, in the order of eviction; fewer are all that there were. They are free
    /// then, and handed out next, in that order. Counted and told as what an allocation evicts. O(blocks evicted).
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
        self.check_sums_of_lists()?;
        let n = n.min(self.num_cached_free());
        let mut victims = Vec::with_capacity(n);
        self.counters.evicted += n as u64;
        self.evict_into(n, &mut victims, |_, _, _| {})?;
        // What is freed last is handed out first.
        for &victim in victims.iter().rev() {
            self.free_parked(victim)?;
        }
        self.tell_changed(&victims);
        Ok(victims)
    }
}
