//! 2Q: Johnson, Shasha: "2Q: A Low Overhead High Performance Buffer Management Replacement Algorithm", VLDB 1994; the full
//! version.
//!
//! Content comes into A1in, a FIFO queue; a hit there changes nothing, for it may be the same use still going on. What is
//! evicted from A1in is remembered in A1out, keys only. What comes back while it is remembered goes to Am, an LRU list. The
//! victim is the oldest of A1in if A1in is above its share, else the least recently used of Am, which leaves no ghost.
//!
//! Parameters, those that the paper recommends: A1in 1/4 of the capacity (Kin), A1out 1/2 (Kout).
//!
//! Cost: O(1); 10 bytes per block, 23 per ghost: 22 bytes per block.
//!
//! When not to use it: where blocks are used many times within a short while and then never again, as in agents' sessions: a
//! hit in A1in proves nothing, so each block has to be evicted once before it is kept.

use crate::block_lists::BlockLists;
use crate::ghosts::Ghosts;
use kvpool::parts::{ensure, try_reserve};
use kvpool::{BlockId, Content, InvariantViolation, Policy, PoolError};

const A1_IN: usize = 0;
const A_M: usize = 1;

/// A FIFO queue for what is new, an LRU list for what has come back.
#[derive(Clone, Debug)]
pub struct TwoQ {
    lists: BlockLists,
    /// By block: whether it belongs to Am.
    proven: Vec<bool>,
    /// A1out.
    ghosts: Ghosts,
    /// Blocks that A1in holds before it is evicted from: Kin.
    share: usize,
}

impl TwoQ {
    /// An empty order for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        let mut policy =
            Self { lists: BlockLists::new(2, 0)?, proven: Vec::new(), ghosts: Ghosts::new(1, 0)?, share: 1 };
        policy.grow(num_blocks)?;
        Ok(policy)
    }

    fn list_of(&self, block: BlockId) -> usize {
        if self.proven.get(block.index()) == Some(&true) { A_M } else { A1_IN }
    }

    fn set_proven(&mut self, block: BlockId, proven: bool) {
        if let Some(slot) = self.proven.get_mut(block.index()) {
            *slot = proven;
        }
    }
}

impl Policy for TwoQ {
    fn name(&self) -> &'static str {
        "2q"
    }

    fn admit(&mut self, block: BlockId, content: Content) {
        self.lists.remove(block);
        let proven = self.ghosts.take(content.key).is_some();
        self.set_proven(block, proven);
    }

    fn hit(&mut self, block: BlockId) {
        if self.list_of(block) == A_M {
            self.lists.remove(block);
        }
    }

    fn release(&mut self, block: BlockId) {
        let list = self.list_of(block);
        if list == A_M {
            self.lists.remove(block);
        }
        self.lists.push_back(list, block); // refused, and so left at its place, if it is in A1in already
    }

    fn pop(&mut self) -> Option<BlockId> {
        let from_new = self.lists.len(A1_IN) > self.share;
        let (first, second) = if from_new { (A1_IN, A_M) } else { (A_M, A1_IN) };
        self.lists.pop_front(first).or_else(|| self.lists.pop_front(second))
    }

    fn take(&mut self, block: BlockId) {
        self.lists.remove(block);
    }

    fn unpop(&mut self, block: BlockId) {
        self.lists.push_front(self.list_of(block), block);
    }

    fn evicted(&mut self, block: BlockId, content: Content) {
        if self.list_of(block) == A1_IN {
            self.ghosts.push(0, content.key, ());
        }
        self.forget(block);
    }

    fn forget(&mut self, block: BlockId) {
        self.lists.remove(block);
        self.set_proven(block, false);
    }

    fn clear(&mut self) {
        self.lists.clear();
        self.proven.fill(false);
        self.ghosts.clear();
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let num_blocks = num_blocks.max(self.proven.len());
        let capacity = num_blocks.saturating_sub(1);
        try_reserve(&mut self.proven, num_blocks)?;
        self.ghosts.grow((capacity / 2).max(1))?;
        self.lists.grow(num_blocks)?; // last: it accepts blocks as soon as it has grown
        self.proven.resize(num_blocks, false);
        self.share = (capacity / 4).max(1);
        Ok(())
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.lists.check_block(block)?;
        self.ghosts.check_block(block, self.proven.len())?;
        let list = self.lists.list_of(block);
        ensure(
            list.is_none_or(|list| list == self.list_of(block)),
            "2Q (a block is on the list that it belongs to)",
            || format!("{block:?} is on list {list:?}"),
        )
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        match what.checked_sub(BlockLists::FAULTS) {
            None => self.lists.corrupt(block, what, to),
            Some(what) => self.ghosts.corrupt(block, what, to),
        }
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "2Q (a block is on the list that it belongs to)";
        self.lists.check_invariants()?;
        self.ghosts.check_invariants()?;
        for list in [A1_IN, A_M] {
            let stray = self.lists.iter(list).find(|&block| self.list_of(block) != list);
            ensure(stray.is_none(), NAME, || format!("block {stray:?} is on list {list}"))?;
        }
        Ok(())
    }
}
