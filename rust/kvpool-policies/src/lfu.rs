//! LFU and LFU with dynamic aging.
//!
//! **LFU** evicts what was used least often; of equal counts the least recently used. A count starts at 1 with the
//! content and is lost with it.
//!
//! **LFU-DA**: Arlitt, Cherkasova, Dilley, Friedrich, Jin: "Evaluating Content Management Techniques for Web Proxy Caches",
//! ACM SIGMETRICS Performance Evaluation Review 27(4), 2000. The key of a block is its count plus the cache's *age* at its last
//! use, and the age is the key of what was evicted last. What was popular once is overtaken when the age has come up to it.
//!
//! Parameters: none. Cost: O(log n) per release and eviction; 32 bytes per block. No ghosts.
//!
//! When not to use them: LFU stagnates. Blocks proven once are never displaced, however long they have been dead: 5 % where LRU
//! hits 91 on agents (`docs/eviction-study.md`). It is the yardstick for popularity that never changes. LFU-DA stays close to LRU:
//! a point above it at 5 to 10 % of a chat trace, 7 points below at 5 % of an agentic one.

use crate::ranked::Ranked;
use kvpool::{BlockId, Content, InvariantViolation, Policy, PoolError};

/// Least frequently used; of equal counts the least recently used.
#[derive(Clone, Debug)]
pub struct Lfu {
    ranked: Ranked,
}

impl Lfu {
    /// An empty order for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        Ok(Self { ranked: Ranked::new(num_blocks)? })
    }
}

impl Policy for Lfu {
    fn name(&self) -> &'static str {
        "lfu"
    }

    fn admit(&mut self, block: BlockId, _content: Content) {
        self.ranked.admit(block);
    }

    fn hit(&mut self, block: BlockId) {
        self.ranked.hit(block);
    }

    fn release(&mut self, block: BlockId) {
        self.ranked.release(block, self.ranked.uses(block));
    }

    fn pop(&mut self) -> Option<BlockId> {
        self.ranked.pop()
    }

    fn take(&mut self, block: BlockId) {
        self.ranked.take(block);
    }

    fn unpop(&mut self, block: BlockId) {
        self.ranked.unpop(block);
    }

    fn forget(&mut self, block: BlockId) {
        self.ranked.forget(block);
    }

    fn clear(&mut self) {
        self.ranked.clear();
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.ranked.grow(num_blocks)
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.ranked.check_block(block)
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        self.ranked.corrupt(block, what, to)
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.ranked.check_invariants()
    }
}

/// Least frequently used, with dynamic aging.
#[derive(Clone, Debug)]
pub struct LfuDa {
    ranked: Ranked,
    /// The key of what was evicted last.
    age: u64,
}

impl LfuDa {
    /// An empty order for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        Ok(Self { ranked: Ranked::new(num_blocks)?, age: 0 })
    }
}

impl Policy for LfuDa {
    fn name(&self) -> &'static str {
        "lfu-da"
    }

    fn admit(&mut self, block: BlockId, _content: Content) {
        self.ranked.admit(block);
    }

    fn hit(&mut self, block: BlockId) {
        self.ranked.hit(block);
    }

    fn release(&mut self, block: BlockId) {
        self.ranked.release(block, self.age.saturating_add(self.ranked.uses(block)));
    }

    fn pop(&mut self) -> Option<BlockId> {
        self.ranked.pop()
    }

    fn take(&mut self, block: BlockId) {
        self.ranked.take(block);
    }

    fn unpop(&mut self, block: BlockId) {
        self.ranked.unpop(block);
    }

    fn evicted(&mut self, block: BlockId, _content: Content) {
        self.age = self.age.max(self.ranked.key(block));
        self.ranked.forget(block);
    }

    fn forget(&mut self, block: BlockId) {
        self.ranked.forget(block);
    }

    fn clear(&mut self) {
        self.ranked.clear();
        self.age = 0;
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.ranked.grow(num_blocks)
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.ranked.check_block(block)
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        self.ranked.corrupt(block, what, to)
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.ranked.check_invariants()
    }
}
