//! A [`FreeBlockList`] contains the free blocks of a pool: those without references and without cached
//! content.
//!
//! The list determines which blocks are free, and in which order they are allocated. The block that was
//! released last is allocated first (LIFO), because its memory is most likely still in a cache. In a
//! new pool, the ids are in ascending order. If the blocks of a table are released from the last to the
//! first, they are allocated again in the order of the table, so consecutive ids remain together.
//!
//! Invariants: those of `list.rs`. In particular, a block is on the list at most once, and the length
//! is the number of blocks on the list. (In vLLM #42571, a block that was freed twice in one call was
//! counted twice and linked once.)
//!
//! Costs: O(1) per block, including removal from the middle.

use crate::block::{BlockId, MAX_BLOCKS};
use crate::error::{InvariantViolation, PoolError, Refusal, ensure};
use crate::list::{Link, Links, List, try_reserve};

/// The free blocks of a pool, in the order of allocation.
///
/// ```
/// use kvpool::{BlockId, FreeBlockList};
/// let mut free = FreeBlockList::new(5)?; // blocks 1 to 4
/// assert_eq!(free.pop_front_n(2)?, [BlockId::new(1), BlockId::new(2)]);
/// free.push_front(BlockId::new(2))?;
/// free.remove(BlockId::new(3))?;
/// assert_eq!(free.iter().map(BlockId::get).collect::<Vec<_>>(), [2, 4]);
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct FreeBlockList {
    links: Vec<Link>,
    list: List,
}

/// Checks that `num_blocks`, which includes the null block, is an allowed number of blocks.
pub(crate) fn check_num_blocks(num_blocks: usize) -> Result<(), PoolError> {
    if (2..=MAX_BLOCKS).contains(&num_blocks) {
        return Ok(());
    }
    Err(PoolError::config(
        "num_blocks",
        num_blocks,
        format!("from 2 (block 0 is the null block) to {MAX_BLOCKS}"),
    ))
}

impl FreeBlockList {
    /// Makes a list of all blocks `1..num_blocks`, in ascending order. Takes 8 bytes per block.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if `num_blocks` is below 2 or above [`MAX_BLOCKS`].
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        check_num_blocks(num_blocks)?;
        let mut links = Vec::new();
        try_reserve(&mut links, num_blocks)?;
        links.resize(num_blocks, Link::LOOSE);
        let mut list = List::default();
        list.push_back_range(&mut links[..], 1, num_blocks as u32);
        Ok(Self { links, list })
    }

    /// Number of free blocks.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether no block is free.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.list.len() == 0
    }

    /// Number of blocks in the pool, including the null block.
    #[must_use]
    pub const fn num_blocks(&self) -> usize {
        self.links.len()
    }

    /// Whether `block` is free.
    #[must_use]
    pub fn contains(&self, block: BlockId) -> bool {
        !block.is_null() && self.links.link(block.get()).is_some_and(|link| link.is_linked())
    }

    /// Returns the block that is allocated next.
    #[must_use]
    pub fn front(&self) -> Option<BlockId> {
        self.list.front()
    }

    /// Removes the next `n` free blocks from the list and returns them. O(n).
    ///
    /// # Errors
    /// [`PoolError::OutOfBlocks`] if fewer than `n` blocks are free.
    pub fn pop_front_n(&mut self, n: usize) -> Result<Vec<BlockId>, PoolError> {
        let mut out = Vec::new();
        if self.list.pop_front_n(&mut self.links[..], n, &mut out, take_link) {
            return Ok(out);
        }
        if self.list.is_torn() {
            return Err(torn());
        }
        let can_ever_fit = n < self.num_blocks();
        Err(PoolError::OutOfBlocks(Refusal::new(n, self.len(), 0, can_ever_fit)))
    }

    /// Frees `block`, so that it is allocated next.
    ///
    /// # Errors
    /// [`PoolError::WrongState`] if it is already free; [`PoolError::UnknownBlock`] or
    /// [`PoolError::NullBlock`] if it is not a block of this pool.
    pub fn push_front(&mut self, block: BlockId) -> Result<(), PoolError> {
        let done = self.list.push_front(&mut self.links[..], block);
        self.refuse_unless(done, block, "free it again")
    }

    /// Frees `block`, so that it is allocated last.
    ///
    /// # Errors
    /// As [`Self::push_front`].
    pub fn push_back(&mut self, block: BlockId) -> Result<(), PoolError> {
        let done = self.list.push_back(&mut self.links[..], block);
        self.refuse_unless(done, block, "free it again")
    }

    /// Frees blocks, all or nothing, as if [`Self::push_front`] were called for each in turn.
    ///
    /// # Errors
    /// As [`Self::push_front`], for the first block that is refused. A block that appears twice is
    /// refused.
    pub fn push_front_n(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        for (done, &block) in blocks.iter().enumerate() {
            if let Err(error) = self.push_front(block) {
                for &undo in blocks.iter().take(done).rev() {
                    self.list.remove(&mut self.links[..], undo);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Removes `block` from any position on the list. O(1).
    ///
    /// # Errors
    /// [`PoolError::WrongState`] if it is not free; [`PoolError::UnknownBlock`] or
    /// [`PoolError::NullBlock`] if it is not a block of this pool.
    pub fn remove(&mut self, block: BlockId) -> Result<(), PoolError> {
        let done = self.list.remove(&mut self.links[..], block);
        self.refuse_unless(done, block, "remove it from the free list")
    }

    /// Returns the free blocks in the order of allocation.
    pub fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.list.iter(&self.links[..])
    }

    /// Checks that the links of one block match those of its neighbours. The block may be free or not.
    /// For block 0, checks the ends of the list. O(1).
    ///
    /// # Errors
    /// The broken invariant.
    pub fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.list.check_block(&self.links[..], block)
    }

    /// Checks the list by following all of its links.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        let len = self.list.check_invariants(&self.links[..])?;
        let linked = self.links.iter().skip(1).filter(|link| link.is_linked()).count();
        ensure(linked == len, "L1 (every free block is on the list)", || {
            format!("{linked} blocks have links, {len} are on the list")
        })
    }

    fn refuse_unless(&self, done: bool, block: BlockId, operation: &'static str) -> Result<(), PoolError> {
        if done {
            return Ok(());
        }
        if self.list.is_torn() {
            return Err(torn());
        }
        check_id(block, self.num_blocks(), operation)?;
        let state = if self.contains(block) { "already free" } else { "not free" };
        Err(PoolError::WrongState { block, state, operation })
    }
}

/// Returns the link of a block, and sets it to the value for blocks that are not on a list.
fn take_link(links: &mut [Link], block: BlockId) -> Option<Link> {
    links.get_mut(block.index()).map(|link| std::mem::replace(link, Link::LOOSE))
}

/// Makes the error for a free list with broken links, or with a block that has references.
#[cold]
pub(crate) fn torn() -> PoolError {
    let reason = "L1, A1: the free list has links that do not match each other, or a block that is held";
    PoolError::Poisoned { reason: reason.into() }
}

/// Checks that `block` is a block of a pool of `num_blocks` blocks, and not the null block.
///
/// # Errors
/// [`PoolError::NullBlock`], [`PoolError::UnknownBlock`].
#[inline]
pub(crate) fn check_id(block: BlockId, num_blocks: usize, operation: &'static str) -> Result<(), PoolError> {
    if block.is_null() {
        return Err(PoolError::NullBlock { operation });
    }
    if block.index() >= num_blocks {
        return Err(PoolError::UnknownBlock { block: u64::from(block.get()), last: num_blocks as u32 - 1 });
    }
    Ok(())
}
