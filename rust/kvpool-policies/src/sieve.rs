//! SIEVE: Zhang, Yang, Yue, Vigfusson, Rashmi: "SIEVE is Simpler than LRU: an Efficient Turn-Key Eviction Algorithm for Web
//! Caches", NSDI 2024.
//!
//! One queue in the order of admission, and a hand that moves from the oldest to the newest. A hit sets a block's *visited*
//! bit and moves nothing. The hand clears set bits as it passes and evicts the first block without one; behind the newest it
//! goes on with the oldest. New blocks come in as the newest.
//!
//! Parameters: none. Cost: a hit one store; an eviction O(1) amortized, for every block that the hand passes was hit since
//! it passed last; 10 bytes per block. No ghosts.
//!
//! When not to use it: by itself, on prefix caches hardly ever. A bit is set once and for all as long as the block is hit
//! now and then, nothing that was proven once is displaced, and the cache stagnates (12.8 % where LRU hits 19.6 %,
//! `docs/eviction-study.md`). Prefix-closed eviction makes it nearly LRU on agents, not on chats.

use crate::block_lists::BlockLists;
use kvpool::parts::try_reserve;
use kvpool::{BlockId, Content, InvariantViolation, Policy, PoolError};

/// A lazily promoting FIFO queue with a hand.
///
/// The queue is two lists: the blocks that the hand has yet to pass, of which the newest is the last, and those that it has
/// passed. The hand is at the front of the first.
#[derive(Clone, Debug)]
pub struct Sieve {
    lists: BlockLists,
    /// Which of the two lists is ahead of the hand.
    ahead: usize,
    visited: Vec<bool>,
}

impl Sieve {
    /// An empty order for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        let mut sieve = Self { lists: BlockLists::new(2, 0)?, ahead: 0, visited: Vec::new() };
        sieve.grow(num_blocks)?;
        Ok(sieve)
    }

    fn set_visited(&mut self, block: BlockId, visited: bool) {
        if let Some(bit) = self.visited.get_mut(block.index()) {
            *bit = visited;
        }
    }

    /// Moves the hand behind the newest to the oldest.
    fn wrap(&mut self) {
        if self.lists.is_empty(self.ahead) {
            self.ahead = 1 - self.ahead;
        }
    }
}

impl Policy for Sieve {
    fn name(&self) -> &'static str {
        "sieve"
    }

    fn admit(&mut self, block: BlockId, _content: Content) {
        self.set_visited(block, false);
    }

    fn hit(&mut self, block: BlockId) {
        self.set_visited(block, true);
    }

    fn release(&mut self, block: BlockId) {
        self.lists.push_back(self.ahead, block); // refused, and so left at its place, if it is queued already
    }

    fn pop(&mut self) -> Option<BlockId> {
        loop {
            self.wrap();
            let block = self.lists.pop_front(self.ahead)?;
            if !std::mem::replace(self.visited.get_mut(block.index())?, false) {
                self.wrap();
                return Some(block);
            }
            self.lists.push_back(1 - self.ahead, block);
        }
    }

    fn take(&mut self, block: BlockId) {
        self.lists.remove(block);
        self.wrap();
    }

    fn unpop(&mut self, block: BlockId) {
        self.lists.push_front(self.ahead, block);
    }

    fn forget(&mut self, block: BlockId) {
        self.take(block);
        self.set_visited(block, false);
    }

    fn clear(&mut self) {
        self.lists.clear();
        self.visited.fill(false);
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.visited, num_blocks)?;
        self.lists.grow(num_blocks)?;
        self.visited.resize(num_blocks.max(self.visited.len()), false);
        Ok(())
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.lists.check_block(block)
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        self.lists.corrupt(block, what, to)
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.lists.check_invariants()
    }
}
