//! What the policies by frequency share: a heap of blocks, how often each was used, and a clock of releases that breaks ties
//! in the order of LRU.

use crate::heap::BlockHeap;
use kvpool::parts::{ensure, try_reserve};
use kvpool::{BlockId, InvariantViolation, PoolError};

/// Blocks by a key that is made from their use count. 32 bytes per block.
#[derive(Clone, Debug)]
pub(crate) struct Ranked {
    heap: BlockHeap,
    /// By block: uses of its content; 0 without content.
    uses: Vec<u32>,
    releases: u64,
}

impl Ranked {
    pub(crate) fn new(num_blocks: usize) -> Result<Self, PoolError> {
        let mut ranked = Self { heap: BlockHeap::new(0)?, uses: Vec::new(), releases: 0 };
        ranked.grow(num_blocks)?;
        Ok(ranked)
    }

    pub(crate) fn admit(&mut self, block: BlockId) {
        self.heap.remove(block);
        if let Some(uses) = self.uses.get_mut(block.index()) {
            *uses = 1;
        }
    }

    /// A block in use is out of the heap: its key will be another.
    pub(crate) fn hit(&mut self, block: BlockId) {
        self.heap.remove(block);
        if let Some(uses) = self.uses.get_mut(block.index()) {
            *uses = uses.saturating_add(1);
        }
    }

    pub(crate) fn uses(&self, block: BlockId) -> u64 {
        self.uses.get(block.index()).map_or(0, |&uses| u64::from(uses))
    }

    /// The key of `block`, or the last that it had.
    pub(crate) fn key(&self, block: BlockId) -> u64 {
        self.heap.rank(block).0
    }

    pub(crate) fn release(&mut self, block: BlockId, key: u64) {
        self.releases += 1;
        self.heap.push(block, (key, self.releases));
    }

    pub(crate) fn pop(&mut self) -> Option<BlockId> {
        self.heap.pop()
    }

    pub(crate) fn take(&mut self, block: BlockId) {
        self.heap.remove(block);
    }

    pub(crate) fn unpop(&mut self, block: BlockId) {
        self.heap.restore(block);
    }

    pub(crate) fn forget(&mut self, block: BlockId) {
        self.heap.remove(block);
        if let Some(uses) = self.uses.get_mut(block.index()) {
            *uses = 0;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.heap.clear();
        self.uses.fill(0);
    }

    pub(crate) fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.uses, num_blocks)?;
        self.heap.grow(num_blocks)?;
        self.uses.resize(num_blocks.max(self.uses.len()), 0);
        Ok(())
    }

    pub(crate) fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.heap.check_block(block)
    }

    #[cfg(feature = "fault-injection")]
    pub(crate) fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        self.heap.corrupt(block, what, to)
    }

    pub(crate) fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.heap.check_invariants()?;
        let late = (0..self.uses.len()).map(|block| BlockId::new(block as u32)).find(|&block| {
            let (_, release) = self.heap.rank(block);
            release > self.releases
        });
        ensure(late.is_none(), "F1 (no release is later than the clock)", || format!("block {late:?} is"))
    }
}
