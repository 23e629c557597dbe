//! Injects faults into a pool, so that tests can check that the scrubber finds them. Each fault is a
//! change that bad memory or a bug can cause.

use super::BlockPool;
use crate::block::BlockId;

/// One value in a pool's memory that a test overwrites. Values that depend on it are not adjusted, so
/// the pool becomes inconsistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The number of references of a block.
    References(BlockId, u32),
    /// The number of references of a block that fences hold.
    FenceReferences(BlockId, u32),
    /// The backward link of a block in the free list. For block 0, the id of the last block of the
    /// list.
    FreePrev(BlockId, u32),
    /// The forward link of a block in the free list. For block 0, the id of the first block of the
    /// list.
    FreeNext(BlockId, u32),
    /// The backward link of a block in the ring (circular list) of the blocks with the same hash.
    RingPrev(BlockId, u32),
    /// The forward link of a block in the ring (circular list) of the blocks with the same hash.
    RingNext(BlockId, u32),
    /// One bit of the hash that a block is registered under. The number of the bit is 0 to 255.
    Hash(BlockId, u32),
    /// One bit of the number of the KV-cache group that a block is registered in. The number of the bit
    /// is 0 to 15.
    Group(BlockId, u32),
    /// The bit that marks a block as computed.
    Computed(BlockId),
    /// The position of a block's content in its hash chain.
    Depth(BlockId, u32),
    /// Sets the bit that marks a block as registered, although the block is not registered.
    Registered(BlockId),
    /// The block id in the index table's entry for a block.
    TableEntry(BlockId, u32),
    /// Removes the index table's entry for a block.
    TableEntryGone(BlockId),
    /// One of the values that the evictor stores for a block: a link, a list, an index in a heap, or a
    /// parent. The first number selects the value.
    Evictor(BlockId, usize, u32),
    /// The pool's count of free blocks.
    NumFree(u32),
    /// The pool's count of held blocks.
    NumHeld(u32),
    /// The pool's count of references of all blocks.
    NumReferences(u32),
    /// The pool's count of fenced blocks.
    NumFenced(u32),
    /// The pool's count of references that fences hold.
    NumFenceReferences(u32),
    /// The pool's count of registered blocks.
    NumRegistered(u32),
}

impl Fault {
    /// Number of values that an evictor may store for a block: see [`Self::Evictor`].
    pub const EVICTOR: usize = 30;

    /// Returns one fault for each value of `block`, and one for each count of the pool. `to` is the
    /// value to write.
    #[must_use]
    pub fn all(block: BlockId, to: u32) -> Vec<Self> {
        let mut faults = vec![
            Self::References(block, to),
            Self::FenceReferences(block, to),
            Self::FreePrev(block, to),
            Self::FreeNext(block, to),
            Self::RingPrev(block, to),
            Self::RingNext(block, to),
            Self::Hash(block, to % 256),
            Self::Group(block, to % 16),
            Self::Computed(block),
            Self::Depth(block, to),
            Self::Registered(block),
            Self::TableEntry(block, to),
            Self::TableEntryGone(block),
            Self::NumFree(to),
            Self::NumHeld(to),
            Self::NumReferences(to),
            Self::NumFenced(to),
            Self::NumFenceReferences(to),
            Self::NumRegistered(to),
        ];
        faults.extend((0..Self::EVICTOR).map(|what| Self::Evictor(block, what, to)));
        faults
    }
}

/// # Fault injection
///
/// Overwrites values of a pool, for tests of the scrubber.
impl BlockPool {
    /// Overwrites one value of the pool. Returns false, and changes nothing, if the pool has no such
    /// value or it is already equal to the new one.
    pub fn inject(&mut self, fault: Fault) -> bool {
        let none = BlockId::new(0);
        let records = &mut self.records[..];
        match fault {
            Fault::References(block, to) => self.allocator.corrupt(records, block, 0, to),
            Fault::FenceReferences(block, to) => self.fences.corrupt(records, block, 0, to),
            Fault::FreePrev(block, to) => self.allocator.free_list_mut().corrupt(records, block, 0, to),
            Fault::FreeNext(block, to) => self.allocator.free_list_mut().corrupt(records, block, 1, to),
            Fault::RingPrev(block, to) => self.index.corrupt(records, block, 0, to),
            Fault::RingNext(block, to) => self.index.corrupt(records, block, 1, to),
            Fault::Hash(block, bit) => self.index.corrupt(records, block, 2, bit),
            Fault::Group(block, bit) => self.index.corrupt(records, block, 9, bit),
            Fault::Computed(block) => self.index.corrupt(records, block, 3, 0),
            Fault::Depth(block, to) => self.index.corrupt(records, block, 4, to),
            Fault::Registered(block) => self.index.corrupt(records, block, 8, 0),
            Fault::TableEntry(block, to) => self.index.corrupt(records, block, 5, to),
            Fault::TableEntryGone(block) => self.index.corrupt(records, block, 6, 0),
            Fault::Evictor(block, what, to) => self.order.corrupt(records, block, what, to),
            Fault::NumFree(to) => self.allocator.free_list_mut().corrupt(records, none, 2, to),
            Fault::NumHeld(to) => self.allocator.corrupt(records, none, 1, to),
            Fault::NumReferences(to) => self.allocator.corrupt(records, none, 2, to),
            Fault::NumFenced(to) => self.fences.corrupt(records, none, 1, to),
            Fault::NumFenceReferences(to) => self.fences.corrupt(records, none, 2, to),
            Fault::NumRegistered(to) => self.index.corrupt(records, none, 7, to),
        }
    }
}
