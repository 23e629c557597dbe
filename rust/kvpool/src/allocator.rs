//! [`BlockAllocator`] counts references to blocks, and keeps the free list.
//!
//! A block is *free* (count 0, on the free list), *held* (count above 0) or *parked* (count 0, but not
//! on the free list). Parked blocks are the cached-free blocks of the pool, which the evictor orders.
//!
//! Invariants:
//! - A1: a block is on the free list only if its count is 0.
//! - A2: free + held + parked == usable blocks, recounted from scratch.
//! - A3: the null block has no references.
//! - A4: the total number of references is the sum of all counts. A caller that knows all holders can
//!   use the total to detect a leak.
//! - Every call is all-or-nothing, and counts *references*: a block that appears twice in one call
//!   gains or loses two references. To release more references than a block has is an error that
//!   changes nothing; the count is not silently set to 0 (TensorRT-LLM #14937, vLLM #42571).
//!
//! Costs: one record of memory and O(1) time per block. No call allocates memory except for its result.

use crate::block::BlockId;
use crate::error::{InvariantViolation, PoolError, Refusal, ensure};
use crate::free_list::{check_id, check_num_blocks, torn};
use crate::list::{Link, List};
use crate::record::{ByBlock, Record, Records, blank};

/// Counts references, allocates free blocks, and frees released blocks. This type is for use without a
/// pool. A [`crate::BlockPool`] contains the same allocator, which stores its counts in the pool's
/// records.
///
/// ```
/// use kvpool::{BlockAllocator, PoolError};
/// let mut allocator = BlockAllocator::new(4)?;
/// let blocks = allocator.allocate(2)?;
/// allocator.acquire(&blocks)?;                      // a second holder
/// allocator.release(&[blocks[0], blocks[0]])?;      // both references of one block
/// assert_eq!(allocator.num_free(), 2);
/// assert!(matches!(allocator.release(&[blocks[0]]), Err(PoolError::NotHeld { held: 0, .. })));
/// # Ok::<(), PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BlockAllocator {
    records: Vec<Record>,
    allocator: Allocator,
}

impl BlockAllocator {
    /// Makes an allocator for blocks `1..num_blocks`, all of which are free. Takes 64 bytes per block.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if `num_blocks` is below 2 or above [`crate::MAX_BLOCKS`].
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        check_num_blocks(num_blocks)?;
        let mut records = blank(num_blocks)?;
        let allocator = Allocator::new(&mut records);
        Ok(Self { records, allocator })
    }

    /// Number of blocks, including the null block.
    #[must_use]
    pub const fn num_blocks(&self) -> usize {
        self.records.len()
    }

    /// Number of blocks that can be allocated: all but the null block.
    #[must_use]
    pub const fn num_usable(&self) -> usize {
        self.records.len() - 1
    }

    /// Number of blocks on the free list.
    #[must_use]
    pub const fn num_free(&self) -> usize {
        self.allocator.free.len()
    }

    /// Number of blocks with at least one reference.
    #[must_use]
    pub const fn num_held(&self) -> usize {
        self.allocator.held
    }

    /// Number of references of all blocks.
    #[must_use]
    pub const fn num_references(&self) -> u64 {
        self.allocator.references
    }

    /// Number of references of `block`. `None` for ids that the pool does not have.
    #[must_use]
    pub fn ref_count(&self, block: BlockId) -> Option<u32> {
        self.records.of(block).map(|record| record.references)
    }

    /// Returns the free blocks in the order of allocation.
    pub fn free_order(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.allocator.free.iter(&self.records[..])
    }

    /// Allocates `n` free blocks, each with one reference. O(n).
    ///
    /// # Errors
    /// [`PoolError::OutOfBlocks`] if fewer than `n` blocks are free.
    pub fn allocate(&mut self, n: usize) -> Result<Vec<BlockId>, PoolError> {
        let mut out = Vec::new();
        self.allocate_into(n, &mut out)?;
        Ok(out)
    }

    /// Like [`Self::allocate`], but appends to a list that the caller reuses.
    ///
    /// # Errors
    /// [`PoolError::OutOfBlocks`] if fewer than `n` blocks are free; `out` is then unchanged.
    pub fn allocate_into(&mut self, n: usize, out: &mut Vec<BlockId>) -> Result<(), PoolError> {
        if n > self.num_free() {
            let can_ever_fit = n < self.num_blocks();
            return Err(PoolError::OutOfBlocks(Refusal::new(n, self.num_free(), 0, can_ever_fit)));
        }
        self.allocator.allocate_into(&mut self.records, n, out)
    }

    /// Adds one reference per id to blocks that already have a reference. O(n).
    ///
    /// # Errors
    /// [`PoolError::NotHeld`] for a block without references (only `allocate` and lookups can take such
    /// blocks), unknown ids, a count that would overflow.
    pub fn acquire(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        self.allocator.acquire(&mut self.records, blocks)
    }

    /// Drops one reference per id. Blocks without further references become free. The block that became
    /// free last is allocated first. O(n).
    ///
    /// # Errors
    /// [`PoolError::NotHeld`] if a block appears more often than it has references; unknown ids.
    pub fn release(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        let mut idle = Vec::new();
        self.allocator.release(&mut self.records, &blocks.iter(), |block, _| idle.push(block))?;
        idle.into_iter().try_for_each(|block| self.allocator.free(&mut self.records, block))
    }

    /// Checks all invariants by recounting references and lists from scratch.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.allocator.check_invariants(&self.records)
    }
}

/// The free list, and the numbers of held blocks and of references. Every call gets the records, which
/// contain the reference count of each block.
#[derive(Clone, Debug)]
pub(crate) struct Allocator {
    free: List,
    held: usize,
    references: u64,
}

impl Allocator {
    pub(crate) fn new(records: &mut Records) -> Self {
        let mut free = List::default();
        free.push_back_range(records, 1, records.len() as u32);
        Self { free, held: 0, references: 0 }
    }

    pub(crate) const fn free_list(&self) -> &List {
        &self.free
    }

    pub(crate) const fn num_free(&self) -> usize {
        self.free.len()
    }

    pub(crate) const fn num_held(&self) -> usize {
        self.held
    }

    pub(crate) const fn num_references(&self) -> u64 {
        self.references
    }

    /// Allocates `n` blocks, each with one reference. At least `n` blocks must be free.
    #[inline]
    pub(crate) fn allocate_into(
        &mut self,
        records: &mut Records,
        n: usize,
        out: &mut Vec<BlockId>,
    ) -> Result<(), PoolError> {
        let hold = |records: &mut Records, block| {
            let record = records.of_mut(block).filter(|record| record.references == 0)?;
            Self::hold(record);
            Some(std::mem::replace(&mut record.link, Link::LOOSE))
        };
        if !self.free.pop_front_n(records, n, out, hold) {
            return Err(torn());
        }
        self.note_held(n);
        Ok(())
    }

    /// Adds one reference per id to blocks that already have a reference, all or nothing.
    #[inline]
    pub(crate) fn acquire(&mut self, records: &mut Records, blocks: &[BlockId]) -> Result<(), PoolError> {
        for (position, &block) in blocks.iter().enumerate() {
            let references = records.of(block).map_or(0, |record| record.references);
            if references == 0 || references == u32::MAX {
                return Err(self.refuse_acquire(records, blocks, position));
            }
            if let Some(record) = records.of_mut(block) {
                record.references += 1;
            }
        }
        self.references = self.references.wrapping_add(blocks.len() as u64);
        Ok(())
    }

    /// Called when [`Self::acquire`] finds an error at `position`. Undoes the changes for the blocks
    /// before it, and returns the error of that block.
    #[cold]
    fn refuse_acquire(&mut self, records: &mut Records, blocks: &[BlockId], position: usize) -> PoolError {
        for &undo in &blocks[..position] {
            if let Some(record) = records.of_mut(undo) {
                record.references -= 1;
            }
        }
        let block = blocks[position];
        if let Err(error) = check_id(block, records.len(), "acquired") {
            return error;
        }
        match records.at(block.get()).references {
            0 => PoolError::NotHeld { block, held: 0, operation: "acquire it", position },
            _ => PoolError::RefCountOverflow { block, held: u32::MAX },
        }
    }

    /// Drops one reference per id, all or nothing. It is an error if only references of fences or pins
    /// are left to drop. Calls `idle` for each block that then has no references or only pins, in the
    /// order of the call. If this function returns an error, the caller must ignore the calls of
    /// `idle`. Returns the number of blocks that have lost their last holder but still have references
    /// of fences or pins.
    #[inline]
    pub(crate) fn release<'a>(
        &mut self,
        records: &mut Records,
        blocks: &(impl Iterator<Item = &'a BlockId> + Clone),
        mut idle: impl FnMut(BlockId, &Record),
    ) -> Result<usize, PoolError> {
        let (mut count, mut free, mut fenced) = (0, 0, 0);
        for &block in blocks.clone() {
            let Some(record) = records.of_mut(block).filter(|record| record.references > record.fences)
            else {
                return Err(refuse_release(records, blocks, count));
            };
            count += 1;
            record.references -= 1;
            if record.references == record.fences {
                free += usize::from(record.references == 0);
                fenced += usize::from(record.references > 0);
                if record.is_released() {
                    idle(block, record);
                }
            }
        }
        // A wrong total is not detected here, but by `check_sums`.
        self.held = self.held.wrapping_sub(free);
        self.references = self.references.wrapping_sub(count as u64);
        Ok(fenced)
    }

    /// Undoes a successful [`Self::release`]. No other change may have been made since.
    pub(crate) fn recount(&mut self, records: &mut Records, blocks: &[BlockId]) {
        for &block in blocks {
            if let Some(record) = records.of_mut(block) {
                self.held = self.held.wrapping_add(usize::from(record.references == 0));
                record.references += 1;
            }
        }
        self.references = self.references.wrapping_add(blocks.len() as u64);
    }

    /// Undoes a successful [`Self::acquire`]. No other change may have been made since.
    pub(crate) fn uncount(&mut self, records: &mut Records, blocks: &[BlockId]) {
        for &block in blocks {
            if let Some(record) = records.of_mut(block) {
                record.references -= 1;
            }
        }
        self.references = self.references.wrapping_sub(blocks.len() as u64);
    }

    /// Adds a reference to a block that already has one. The count must be below its maximum.
    #[inline]
    pub(crate) fn count(&mut self, records: &mut Records, block: BlockId) {
        if let Some(record) = records.of_mut(block) {
            record.references = record.references.saturating_add(1);
        }
        self.references = self.references.wrapping_add(1);
    }

    /// Drops the reference of a fence or a pin that has ended. For a pin, returns whether the block now
    /// has no references. For a fence, returns whether it now has none or only pins.
    pub(crate) fn end_fence(&mut self, records: &mut Records, block: BlockId, pin: bool) -> bool {
        let Some(record) = records.of_mut(block) else { return false };
        record.references = record.references.wrapping_sub(1);
        let released = if pin { record.references == 0 } else { record.is_released() };
        self.held = self.held.wrapping_sub(usize::from(record.references == 0));
        self.references = self.references.wrapping_sub(1);
        released
    }

    /// Adds a parked block (one without references that is not on the free list) to the front of the
    /// free list.
    #[inline]
    pub(crate) fn free(&mut self, records: &mut Records, block: BlockId) -> Result<(), PoolError> {
        if self.free.push_front(records, block) { Ok(()) } else { Err(torn()) }
    }

    /// Adds a parked block (one without references that is not on the free list) to the end of the free
    /// list.
    pub(crate) fn free_behind(&mut self, records: &mut Records, block: BlockId) -> Result<(), PoolError> {
        if self.free.push_back(records, block) { Ok(()) } else { Err(torn()) }
    }

    pub(crate) fn hold_free(&mut self, records: &mut Records, block: BlockId) -> Result<(), PoolError> {
        if !self.free.remove(records, block) {
            return Err(torn());
        }
        self.hold_parked(records, block);
        Ok(())
    }

    /// Gives a parked block (one without references that is not on the free list) its first reference.
    pub(crate) fn hold_parked(&mut self, records: &mut Records, block: BlockId) {
        records.of_mut(block).map(Self::hold);
        self.note_held(1);
    }

    /// Sets the reference count of a block to 1. The caller removes blocks from their list, and then
    /// calls [`Self::note_held`] once for all of them.
    #[inline(always)]
    pub(crate) const fn hold(record: &mut Record) {
        record.references = 1;
    }

    /// Adds `n` to the number of held blocks and to the number of references, for blocks that got their
    /// first reference.
    #[inline]
    pub(crate) const fn note_held(&mut self, n: usize) {
        self.held = self.held.wrapping_add(n);
        self.references = self.references.wrapping_add(n as u64);
    }

    /// Drops the reference of a block that has only one, which belongs to a holder. Returns false, and
    /// changes nothing, for other blocks. The caller adds the blocks to a list, and then calls
    /// [`Self::note_parked`] once for all of them.
    #[inline(always)]
    pub(crate) const fn park(record: &mut Record) -> bool {
        let parks = record.references == 1 && record.fences == 0;
        if parks {
            record.references = 0;
        }
        parks
    }

    /// Subtracts `n` from the number of held blocks and from the number of references, for blocks that
    /// lost their only reference.
    #[inline]
    pub(crate) const fn note_parked(&mut self, n: usize) {
        self.held = self.held.wrapping_sub(n);
        self.references = self.references.wrapping_sub(n as u64);
    }

    /// Whether the reference count of any block has room for `n` more references. Compares the total of
    /// all blocks with the limit, because no single count can be above the total.
    #[inline]
    pub(crate) const fn has_room_for(&self, n: usize) -> bool {
        self.references.saturating_add(n as u64) <= u32::MAX as u64
    }

    /// Adds new blocks, those from number `before` on, to the end of the free list.
    pub(crate) fn grow(&mut self, records: &mut Records, before: usize) {
        self.free.push_back_range(records, before as u32, records.len() as u32);
    }

    pub(crate) fn check_invariants(&self, records: &Records) -> Result<(), InvariantViolation> {
        let free = self.free.check_invariants(records)?;
        let linked = records.iter().skip(1).filter(|record| record.is_free()).count();
        ensure(free == linked, "L1 (every free block is on the list)", || {
            format!("{linked} blocks are marked as free, {free} are on the list")
        })?;
        let held = records.iter().skip(1).filter(|record| record.references > 0).count();
        ensure(held == self.held, "A2 (held blocks are counted)", || {
            format!("{held} have references, {} counted", self.held)
        })?;
        let of_null = records.at(0).references;
        ensure(of_null == 0, "A3 (the null block has no references)", || {
            format!("it has {of_null} references")
        })?;
        let references = records.iter().map(|record| u64::from(record.references)).sum::<u64>();
        ensure(references == self.references, "A4 (references are counted)", || {
            format!("{references} found, {} counted", self.references)
        })?;
        let held_and_free = self.free.iter(records).find(|&block| records.at(block.get()).references > 0);
        ensure(held_and_free.is_none(), "A1 (a free block has no references)", || {
            format!("{held_and_free:?} is on the free list")
        })
    }
}

/// Called when a release finds an error at `position`. Undoes the changes for the blocks before it, and
/// returns the error of that block.
#[cold]
fn refuse_release<'a>(
    records: &mut Records,
    blocks: &(impl Iterator<Item = &'a BlockId> + Clone),
    position: usize,
) -> PoolError {
    for &undo in blocks.clone().take(position) {
        if let Some(record) = records.of_mut(undo) {
            record.references += 1;
        }
    }
    let Some(&block) = blocks.clone().nth(position) else { return torn() };
    if let Err(error) = check_id(block, records.len(), "released") {
        return error;
    }
    let record = records.at(block.get());
    if record.fences > record.references {
        let reason = format!("F1: fences have more references to block {block} than it has");
        return PoolError::Poisoned { reason };
    }
    PoolError::NotHeld { block, held: record.holders(), operation: "release it", position }
}

#[cfg(feature = "fault-injection")]
impl Allocator {
    /// Overwrites one value for tests, and adjusts no other. `what` selects it: 0 is a block's
    /// reference count, 1 the number of held blocks, 2 the number of references.
    pub(crate) fn corrupt(&mut self, records: &mut Records, block: BlockId, what: usize, to: u32) -> bool {
        match (what, records.of_mut(block)) {
            (0, Some(record)) => std::mem::replace(&mut record.references, to) != to,
            (1, _) => std::mem::replace(&mut self.held, to as usize) != to as usize,
            (2, _) => std::mem::replace(&mut self.references, u64::from(to)) != u64::from(to),
            _ => false,
        }
    }

    pub(crate) fn free_list_mut(&mut self) -> &mut List {
        &mut self.free
    }
}
