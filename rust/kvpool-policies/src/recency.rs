//! LRU as a policy: evicts what was released longest ago.
//!
//! The order is that of [`kvpool::LruEvictor`], which is what `lru` means in a pool without retention.
//! This one is for a pool with retention, for sizing and for the advisor.
//!
//! Cost: O(1), 9 bytes per block. Hard to beat once a cache holds a few per cent of a workload's
//! blocks, and it never stagnates; a scan of never-reused prompts larger than the cache flushes it, and
//! a loop larger than the cache never hits.

use crate::block_lists::BlockLists;
use kvpool::{BlockId, Content, InvariantViolation, Policy, PoolError};

/// Least recently used.
#[derive(Clone, Debug)]
pub struct Recency {
    list: BlockLists,
}

impl Recency {
    /// An empty order for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        Ok(Self { list: BlockLists::new(1, num_blocks)? })
    }
}

impl Policy for Recency {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn admit(&mut self, _block: BlockId, _content: Content) {}

    fn hit(&mut self, block: BlockId) {
        self.list.remove(block);
    }

    fn release(&mut self, block: BlockId) {
        self.list.remove(block);
        self.list.push_back(0, block);
    }

    fn pop(&mut self) -> Option<BlockId> {
        self.list.pop_front(0)
    }

    fn take(&mut self, block: BlockId) {
        self.list.remove(block);
    }

    fn unpop(&mut self, block: BlockId) {
        self.list.push_front(0, block);
    }

    fn forget(&mut self, block: BlockId) {
        self.list.remove(block);
    }

    fn clear(&mut self) {
        self.list.clear();
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.list.grow(num_blocks)
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.list.check_block(block)
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        self.list.corrupt(block, what, to)
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.list.check_invariants()
    }
}
