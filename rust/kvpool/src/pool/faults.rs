//! Faults: what memory that went bad, or a bug elsewhere, can do to a pool. For tests of the scrubber.

use super::BlockPool;
use crate::block::BlockId;

/// One value, changed behind the pool's back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The references of a block.
    References(BlockId, u32),
    /// Its references that fences hold.
    FenceReferences(BlockId, u32),
    /// Its link backward in the free list; that of block 0 is the list's end.
    FreePrev(BlockId, u32),
    /// Its link forward; that of block 0 is the list's front.
    FreeNext(BlockId, u32),
    /// The link backward in the ring of its hash.
    RingPrev(BlockId, u32),
    /// The link forward.
    RingNext(BlockId, u32),
    /// A bit of the hash that it is registered under, 0 to 255.
    Hash(BlockId, u32),
    /// A bit of the group that it is registered in, 0 to 15.
    Group(BlockId, u32),
    /// Its computed bit.
    Computed(BlockId),
    /// Its position in its chain.
    Depth(BlockId, u32),
    /// That it is registered, though it is not.
    Registered(BlockId),
    /// Where the table leads that led to it.
    TableEntry(BlockId, u32),
    /// That the table leads to it.
    TableEntryGone(BlockId),
    /// The numbered thing that the evictor notes of it: a link, a list, a place in a heap, a parent.
    Evictor(BlockId, usize, u32),
    /// The number of free blocks.
    NumFree(u32),
    /// The number of held blocks.
    NumHeld(u32),
    /// The number of references.
    NumReferences(u32),
    /// The number of fenced blocks.
    NumFenced(u32),
    /// The number of references that fences hold.
    NumFenceReferences(u32),
    /// The number of registered blocks.
    NumRegistered(u32),
}

impl Fault {
    /// Things that an evictor may note of a block: see [`Self::Evictor`].
    pub const EVICTOR: usize = 30;

    /// Every fault of a block, and every one of the pool, with `to` as the new value.
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

impl BlockPool {
    /// Changes one value behind the pool's back. False, and nothing changed, if there is no such value,
    /// or if it is so already.
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
