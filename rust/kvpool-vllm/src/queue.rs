//! `Queue`: the blocks without references, in the order in which they will be handed out.
//!
//! vLLM has one list. Its blocks without a hash are put at its front and those with one at its back, so it always reads
//! as two: kvpool's free list, last in first out, and behind it kvpool's evictor, least recently used. A block stays in
//! the part in which it was put, whatever becomes of its hash, until it is taken or moved.
//!
//! Costs: O(1) per block; 16 bytes per block.

use kvpool::evictor::{Candidate, Evictor};
use kvpool::{BlockId, EvictionPolicy, FreeBlockList, InvariantViolation, PoolError};

/// The free blocks, in the order of reuse.
#[derive(Debug)]
pub struct Queue {
    free: FreeBlockList,
    evictor: Box<dyn Evictor>,
}

impl Queue {
    /// Blocks `1..num_blocks`, ascending, all in the first part.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for a number of blocks out of range.
    pub fn new(num_blocks: usize, policy: EvictionPolicy) -> Result<Self, PoolError> {
        // kvpool has no pool of the null block alone; vLLM has.
        let at_least_two = num_blocks.max(2);
        let mut free = FreeBlockList::new(at_least_two)?;
        if num_blocks < 2 {
            free.pop_front_n(at_least_two - 1)?;
        }
        Ok(Self { free, evictor: policy.build(at_least_two)? })
    }

    /// Number of blocks in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.free.len() + self.evictor.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `block` is in it.
    #[must_use]
    pub fn contains(&self, block: u32) -> bool {
        let block = BlockId::new(block);
        self.free.contains(block) || self.evictor.contains(block)
    }

    /// Takes the next `n` blocks, or as many as there are.
    pub fn pop_front_n(&mut self, n: usize, out: &mut Vec<u32>) {
        let mut from_free = Vec::with_capacity(n.min(self.free.len()));
        if self.free.pop_front_n_into(n.min(self.free.len()), &mut from_free).is_ok() {
            out.extend(from_free.iter().map(|block| block.get()));
        }
        for _ in from_free.len()..n {
            let Some(block) = self.evictor.evict() else { return };
            out.push(block.get());
        }
    }

    /// Takes `block` from wherever it is. Returns whether it was there.
    pub fn remove(&mut self, block: u32) -> bool {
        let block = BlockId::new(block);
        self.evictor.remove(block) || self.free.remove(block).is_ok()
    }

    /// Puts `blocks` at the front: the first of them will be handed out next.
    pub fn push_front_n(&mut self, blocks: &[u32]) {
        for &block in blocks.iter().rev() {
            // Refused only for a block that is in it already.
            let _ = self.free.push_front(BlockId::new(block));
        }
    }

    /// Puts `blocks` at the back: the last of them will be handed out last.
    pub fn push_back_n(&mut self, blocks: &[u32]) {
        // Equal depth: the evictor keeps the order in which they are given.
        let candidate = |&block: &u32| Candidate { block: BlockId::new(block), depth: 0 };
        match blocks {
            [] => {}
            [block] => self.evictor.insert(&mut [candidate(block)]),
            _ => self.evictor.insert(&mut blocks.iter().map(candidate).collect::<Vec<_>>()),
        }
    }

    /// The next `n` blocks, or as many as there are, without taking them. O(n) while the free list has as many, O(len)
    /// otherwise.
    #[must_use]
    pub fn peek(&self, n: usize) -> Vec<u32> {
        let mut next: Vec<u32> = self.free.iter().take(n).map(BlockId::get).collect();
        if next.len() < n {
            let more = n - next.len();
            next.extend(self.evictor.order().into_iter().take(more).map(BlockId::get));
        }
        next
    }

    /// All of them, in the order of reuse. O(n).
    #[must_use]
    pub fn order(&self) -> Vec<u32> {
        self.free.iter().chain(self.evictor.order()).map(BlockId::get).collect()
    }

    /// Recounts both parts from scratch: each is a sound list, and no block is in both.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.free.check_invariants()?;
        self.evictor.check_invariants()?;
        let twice = self.evictor.order().into_iter().find(|&block| self.free.contains(block));
        match twice {
            None => Ok(()),
            Some(block) => Err(InvariantViolation::new(
                "V1 (a free block is in one part of the queue)",
                format!("block {block:?} is in both"),
            )),
        }
    }
}
