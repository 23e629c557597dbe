//! LRU as a policy: evicts the block that was released longest ago.
//!
//! The order is the same as that of [`kvpool::LruEvictor`], which implements `lru` in a pool without
//! retention. This policy implements `lru` in pools with retention, in sizing runs, and in the advisor.
//!
//! Cost: O(1), 9 bytes per block. LRU is hard to beat if a cache holds at least a few per cent of a
//! workload's blocks, and it does not keep old blocks for ever. It has two weak points. Prompts that
//! are never reused flush the cache if they are larger than it. A loop larger than the cache never
//! hits.

use crate::block_lists::BlockLists;
use kvpool::{BlockId, Content, InvariantViolation, Policy, PoolError};

/// The LRU policy (least recently used).
///
/// ```
/// use kvpool::{BlockId, Content, Policy};
/// use kvpool_policies::Recency;
/// let (first, second) = (BlockId::new(1), BlockId::new(2));
/// let mut order = Recency::new(8)?;
/// for block in [first, second] {
///     order.admit(block, Content { key: block.get().into(), depth: 0 });
///     order.release(block);
/// }
/// order.hit(first);
/// order.release(first);
/// assert_eq!(order.pop(), Some(second));
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Recency {
    list: BlockLists,
}

impl Recency {
    /// Makes an empty order for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is not enough memory for this number of blocks.
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
