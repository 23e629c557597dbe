//! FIFO: evicts the oldest content.
//!
//! A hit changes nothing: a block keeps its place in the queue while it is in use. Behind [`crate::Closed`] a block
//! waits until its cached descendants are gone, which makes FIFO on prefix trees behave almost as LRU does: a parent is
//! protected as long as new turns hang on it.
//!
//! Cost: O(1), 9 bytes per block. When not to use it: as a cache policy, hardly ever; it is the yardstick of the others, and
//! what loops and one-shot floods do to it is easy to see.

use crate::block_lists::BlockLists;
use kvpool::{BlockId, Content, InvariantViolation, Policy, PoolError};

/// First in, first out.
#[derive(Clone, Debug)]
pub struct Fifo {
    queue: BlockLists,
}

impl Fifo {
    /// An empty order for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        Ok(Self { queue: BlockLists::new(1, num_blocks)? })
    }
}

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        "fifo"
    }

    fn admit(&mut self, _block: BlockId, _content: Content) {}

    fn hit(&mut self, _block: BlockId) {}

    fn release(&mut self, block: BlockId) {
        self.queue.push_back(0, block); // refused, and so left at its place, if it is queued already
    }

    fn pop(&mut self) -> Option<BlockId> {
        self.queue.pop_front(0)
    }

    fn take(&mut self, block: BlockId) {
        self.queue.remove(block);
    }

    fn unpop(&mut self, block: BlockId) {
        self.queue.push_front(0, block);
    }

    fn forget(&mut self, block: BlockId) {
        self.queue.remove(block);
    }

    fn clear(&mut self) {
        self.queue.clear();
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.queue.grow(num_blocks)
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.queue.check_block(block)
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        self.queue.corrupt(block, what, to)
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.queue.check_invariants()
    }
}
