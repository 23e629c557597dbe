//! `BlockAllocator`: reference counts over the free list.
//!
//! Owns: the reference count of every block and, through [`FreeBlockList`], which blocks are free. A block is *free*
//! (count 0, on the free list), *held* (count above 0) or *parked* (count 0, kept off the free list by its owner: the
//! pool parks cached-free blocks, which the evictor orders).
//!
//! Invariants:
//! - A1: a block is on the free list only if its count is 0.
//! - A2: free + held + parked == usable blocks, recounted from scratch.
//! - A4: the references of all blocks are counted, so that whoever knows all holders can tell a leak.
//! - Every call is all-or-nothing, and works per *reference*: a block named twice in one call gains or loses two.
//!   Releasing more references than a block has is an error that changes nothing (TensorRT-LLM #14937, vLLM #42571),
//!   never a saturated counter.
//!
//! Costs: 4 bytes per block beside the free list's 8; O(1) per block.
//!
//! ```
//! use kvpool::{BlockAllocator, PoolError};
//! let mut allocator = BlockAllocator::new(4)?;
//! let blocks = allocator.allocate(2)?;
//! allocator.acquire(&blocks)?;                      // a second holder
//! allocator.release(&[blocks[0], blocks[0]])?;      // both references of one block
//! assert_eq!(allocator.num_free(), 2);
//! assert!(matches!(allocator.release(&[blocks[0]]), Err(PoolError::NotHeld { held: 0, .. })));
//! # Ok::<(), PoolError>(())
//! ```

use crate::block::BlockId;
use crate::block_list::try_reserve;
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::free_list::{FreeBlockList, check_id};

/// Counts references, hands out free blocks, takes back released ones.
#[derive(Clone, Debug)]
pub struct BlockAllocator {
    ref_counts: Vec<u32>,
    free: FreeBlockList,
    /// Blocks with a count above 0.
    held: usize,
    /// All references.
    references: u64,
}

impl BlockAllocator {
    /// An allocator of blocks `1..num_blocks`, all free. 12 bytes per block.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if `num_blocks` is below 2 or above [`crate::MAX_BLOCKS`].
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        let free = FreeBlockList::new(num_blocks)?;
        let mut ref_counts = Vec::new();
        try_reserve(&mut ref_counts, num_blocks)?;
        ref_counts.resize(num_blocks, 0);
        Ok(Self { ref_counts, free, held: 0, references: 0 })
    }

    /// Blocks of the pool, null block included.
    #[must_use]
    pub const fn num_blocks(&self) -> usize {
        self.ref_counts.len()
    }

    /// Blocks that can be used: all but the null block.
    #[must_use]
    pub const fn num_usable(&self) -> usize {
        self.ref_counts.len() - 1
    }

    /// Blocks on the free list.
    #[must_use]
    pub const fn num_free(&self) -> usize {
        self.free.len()
    }

    /// Blocks with at least one reference.
    #[must_use]
    pub const fn num_held(&self) -> usize {
        self.held
    }

    /// References of all blocks.
    #[must_use]
    pub const fn num_references(&self) -> u64 {
        self.references
    }

    /// References of `block`; `None` for ids outside the pool.
    #[must_use]
    pub fn ref_count(&self, block: BlockId) -> Option<u32> {
        self.ref_counts.get(block.index()).copied()
    }

    /// The free blocks in the order in which they will be handed out.
    #[must_use]
    pub const fn free_list(&self) -> &FreeBlockList {
        &self.free
    }

    /// Takes `n` free blocks, each with one reference. O(n).
    ///
    /// # Errors
    /// [`PoolError::OutOfBlocks`] if fewer are free.
    pub fn allocate(&mut self, n: usize) -> Result<Vec<BlockId>, PoolError> {
        let mut out = Vec::new();
        self.allocate_into(n, &mut out)?;
        Ok(out)
    }

    /// [`Self::allocate`] into a list that the caller reuses.
    ///
    /// # Errors
    /// [`PoolError::OutOfBlocks`] if fewer are free; `out` is then unchanged.
    pub fn allocate_into(&mut self, n: usize, out: &mut Vec<BlockId>) -> Result<(), PoolError> {
        let first = out.len();
        self.free.pop_front_n_into(n, out)?;
        for &block in &out[first..] {
            match self.ref_counts.get_mut(block.index()) {
                Some(count) if *count == 0 => *count = 1,
                count => {
                    let reason = format!("A1: block {block} is on the free list with {count:?} references");
                    return Err(PoolError::Poisoned { reason });
                }
            }
        }
        self.held = self.held.wrapping_add(n);
        self.references = self.references.wrapping_add(n as u64);
        Ok(())
    }

    /// Adds one reference per id to blocks that somebody holds. O(n).
    ///
    /// # Errors
    /// [`PoolError::NotHeld`] for a block without references (take it by `allocate` or by a lookup instead), unknown
    /// ids, a count that would overflow.
    pub fn acquire(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        for (position, &block) in blocks.iter().enumerate() {
            if let Err(error) = self.acquire_one(block, position) {
                for undo in blocks.iter().take(position) {
                    self.ref_counts[undo.index()] -= 1;
                }
                return Err(error);
            }
        }
        self.references = self.references.wrapping_add(blocks.len() as u64);
        Ok(())
    }

    fn acquire_one(&mut self, block: BlockId, position: usize) -> Result<(), PoolError> {
        check_id(block, self.num_blocks(), "acquired")?;
        let count = &mut self.ref_counts[block.index()];
        match *count {
            0 => Err(PoolError::NotHeld { block, held: 0, operation: "acquire it", position }),
            u32::MAX => Err(PoolError::RefCountOverflow { block, held: u32::MAX }),
            _ => {
                *count += 1;
                Ok(())
            }
        }
    }

    /// Drops one reference per id; blocks without further references become free, the last of them to be handed out
    /// first. O(n).
    ///
    /// # Errors
    /// [`PoolError::NotHeld`] if the call names a block more often than it has references; unknown ids.
    pub fn release(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        let mut idle = Vec::new();
        self.drop_references(blocks, &mut idle)?;
        for block in idle {
            self.free_parked(block)?;
        }
        Ok(())
    }

    /// Drops one reference per id and parks the blocks that lost their last one, appending them to `idle` in the order
    /// in which they did. The caller decides where they go.
    pub(crate) fn drop_references(
        &mut self,
        blocks: &[BlockId],
        idle: &mut Vec<BlockId>,
    ) -> Result<(), PoolError> {
        let first_idle = idle.len();
        for (position, &block) in blocks.iter().enumerate() {
            let refused = check_id(block, self.num_blocks(), "released").err().or_else(|| {
                let none_left = self.ref_counts[block.index()] == 0;
                none_left.then_some(PoolError::NotHeld { block, held: 0, operation: "release it", position })
            });
            if let Some(mut error) = refused {
                idle.truncate(first_idle);
                for undo in blocks.iter().take(position) {
                    self.ref_counts[undo.index()] += 1;
                }
                if let PoolError::NotHeld { held, .. } = &mut error {
                    *held = self.ref_counts[block.index()];
                }
                return Err(error);
            }
            let count = &mut self.ref_counts[block.index()];
            *count -= 1;
            if *count == 0 {
                idle.push(block);
            }
        }
        // Totals that are wrong are found by the sums, not here.
        self.held = self.held.wrapping_sub(idle.len() - first_idle);
        self.references = self.references.wrapping_sub(blocks.len() as u64);
        Ok(())
    }

    /// Puts a parked block on the free list, to be handed out next.
    pub(crate) fn free_parked(&mut self, block: BlockId) -> Result<(), PoolError> {
        debug_assert_eq!(self.ref_counts[block.index()], 0);
        self.free.push_front(block)
    }

    /// Gives a parked block its first reference.
    pub(crate) fn hold_parked(&mut self, block: BlockId) {
        debug_assert_eq!(self.ref_counts[block.index()], 0);
        self.ref_counts[block.index()] = 1;
        self.held = self.held.wrapping_add(1);
        self.references = self.references.wrapping_add(1);
    }

    /// Adds free blocks up to `num_blocks - 1`, to be handed out last.
    pub(crate) fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.ref_counts, num_blocks)?;
        self.free.grow(num_blocks)?;
        self.ref_counts.resize(num_blocks, 0);
        Ok(())
    }

    /// Recounts references and lists from scratch.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.free.check_invariants()?;
        let held = self.ref_counts.iter().skip(1).filter(|&&count| count > 0).count();
        ensure(held == self.held, "A2 (held blocks are counted)", || {
            format!("{held} have references, {} counted", self.held)
        })?;
        ensure(self.ref_counts[0] == 0, "A3 (the null block has no references)", || {
            format!("it has {}", self.ref_counts[0])
        })?;
        let references = self.ref_counts.iter().map(|&count| u64::from(count)).sum::<u64>();
        ensure(references == self.references, "A4 (references are counted)", || {
            format!("{references} found, {} counted", self.references)
        })?;
        let held_and_free = self.free.iter().find(|&block| self.ref_count(block) != Some(0));
        ensure(held_and_free.is_none(), "A1 (a free block has no references)", || {
            format!("{held_and_free:?} is on the free list")
        })
    }
}

#[cfg(feature = "fault-injection")]
impl BlockAllocator {
    /// Changes a reference count, the number of held blocks or that of references behind the allocator's back: 0 to 2.
    pub(crate) fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        match (what, self.ref_counts.get_mut(block.index())) {
            (0, Some(count)) => std::mem::replace(count, to) != to,
            (1, _) => std::mem::replace(&mut self.held, to as usize) != to as usize,
            (2, _) => std::mem::replace(&mut self.references, u64::from(to)) != u64::from(to),
            _ => false,
        }
    }

    /// The free list, to change it behind the allocator's back.
    pub(crate) fn free_list_mut(&mut self) -> &mut FreeBlockList {
        &mut self.free
    }
}
