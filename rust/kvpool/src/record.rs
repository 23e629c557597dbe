//! A `Record` contains the data that a pool stores about one block, in one cache line.
//!
//! Each part of a pool writes its own fields of the records:
//!
//! | field | written by |
//! |---|---|
//! | `link` | [`crate::list`]: a block is on one list at most, the free list or the LRU order |
//! | flag `IN_ORDER` | the LRU order: set if the block is on that list |
//! | `hash`, `group`, `ring`, depth, other flags | the prefix index |
//! | `references` | the allocator |
//! | `fences`, `pins` | the fences |
//!
//! The record of block 0, the null block, is always blank. A read with an id that is out of range also
//! returns a blank record. Ids from callers are checked. Before an id from a link is used, the other
//! block's link is compared. So a broken link is detected before it leads to another change.
//!
//! Costs: 64 bytes per block, in one allocation that is written completely at construction.

use crate::block::BlockId;
use crate::error::PoolError;
use crate::hash::BlockHash;
use crate::list::{Link, Links, try_reserve};

/// The block is full, hashed and indexed.
pub(crate) const REGISTERED: u32 = 1 << 31;
/// The KV of the block is written.
pub(crate) const COMPUTED: u32 = 1 << 30;
/// The block is the head of the ring of its hash, so the index table contains it. A ring is a circular
/// list of the blocks with the same hash.
pub(crate) const HEAD: u32 = 1 << 29;
/// The block is in the LRU eviction order, so its link belongs to that list and not to the free list.
pub(crate) const IN_ORDER: u32 = 1 << 28;
/// The bits that contain the position of the content in its hash chain.
pub(crate) const DEPTH: u32 = IN_ORDER - 1;

/// The bits that are all 0 in a block without content.
pub(crate) const CONTENT: u32 = REGISTERED | COMPUTED | HEAD | DEPTH;

/// The group of hidden contents, which no lookup can find. Their blocks are in the order of eviction,
/// but have no name. Callers cannot use this group.
pub(crate) const HIDDEN: u16 = u16::MAX;
/// The group of a record without content, such as that of the null block. Because of this group, a
/// lookup of a digest of zeros does not find such a record.
const UNNAMED: u16 = u16::MAX - 1;

/// Largest number of blocks in a hash chain whose positions a record can store.
pub(crate) const MAX_POSITIONS: usize = IN_ORDER as usize;

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Record {
    /// The hash of the content, if the block is registered.
    pub(crate) hash: BlockHash,
    /// The neighbours on the list that contains the block.
    pub(crate) link: Link,
    /// The neighbours in the ring of blocks with the same hash.
    pub(crate) ring: Link,
    /// Number of references, including those of fences and pins.
    pub(crate) references: u32,
    /// Number of `references` that belong to fences and pins.
    pub(crate) fences: u32,
    /// Number of `fences` that are pins: 1 if a planned copy reads or writes the block, else 0.
    pub(crate) pins: u16,
    /// The number of the KV-cache group of the content. If two groups have the same digest, these are
    /// two contents.
    pub(crate) group: u16,
    /// The position of the content in its hash chain (depth) in the low bits, and flags in the high
    /// bits.
    pub(crate) flags: u32,
}

const _: () = assert!(size_of::<Record>() == 64);

const BLANK: Record = Record {
    hash: BlockHash::from_bytes([0; 32]),
    link: Link::LOOSE,
    ring: Link::LOOSE,
    references: 0,
    fences: 0,
    pins: 0,
    group: UNNAMED,
    flags: 0,
};

static OUTSIDE: Record = BLANK;

impl Record {
    #[inline]
    pub(crate) const fn is(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    #[inline]
    pub(crate) const fn is_registered(&self) -> bool {
        self.is(REGISTERED)
    }

    #[inline]
    pub(crate) const fn is_computed(&self) -> bool {
        self.is(COMPUTED)
    }

    #[inline]
    pub(crate) const fn depth(&self) -> u32 {
        self.flags & DEPTH
    }

    /// Whether the block has a content that no lookup can find.
    #[inline]
    pub(crate) const fn is_hidden(&self) -> bool {
        self.is_registered() && self.group == HIDDEN
    }

    /// The name in the record. It only has a meaning if the block is registered.
    #[inline]
    pub(crate) const fn name(&self) -> Name<'_> {
        Name { hash: &self.hash, group: self.group }
    }

    /// Whether the record contains this name. It only has a meaning if the block is registered.
    #[inline(always)]
    pub(crate) fn is_named(&self, name: Name<'_>) -> bool {
        self.group == name.group && self.hash == *name.hash
    }

    /// Whether a lookup of `name` returns this block, because it is the oldest computed block with this
    /// name.
    #[inline(always)]
    pub(crate) fn leads_to(&self, name: Name<'_>) -> bool {
        self.flags & (COMPUTED | HEAD) == COMPUTED | HEAD && self.is_named(name)
    }

    /// Number of references of block tables and other holders, without those of fences and pins. 0 if a
    /// fault makes the number of fences larger than the number of references; the scrubber finds this
    /// fault.
    #[inline]
    pub(crate) const fn holders(&self) -> u32 {
        self.references.saturating_sub(self.fences)
    }

    /// Whether the block has no references, or only pins.
    #[inline]
    pub(crate) const fn is_released(&self) -> bool {
        self.references == self.pins as u32
    }

    /// Whether the block has references, and all of them belong to fences and pins.
    #[inline]
    pub(crate) const fn is_fenced(&self) -> bool {
        self.references > 0 && self.references == self.fences
    }

    #[inline]
    pub(crate) const fn is_free(&self) -> bool {
        self.link.is_linked() && !self.is(IN_ORDER)
    }

    #[inline]
    pub(crate) const fn is_in_order(&self) -> bool {
        self.link.is_linked() && self.is(IN_ORDER)
    }
}

/// The name of a content: a digest, and the number of a KV-cache group. Two names are equal only if
/// both parts are equal.
///
/// ```
/// use kvpool::{BlockHash, Name};
/// let hash = BlockHash::from_bytes([7; 32]);
/// assert_ne!(Name { hash: &hash, group: 0 }, Name { hash: &hash, group: 1 });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a> {
    /// The digest of the block's tokens and of all tokens before them.
    pub hash: &'a BlockHash,
    /// The number of the KV-cache group, at most [`Self::MAX_GROUP`]. 0 in pools without groups.
    pub group: u16,
}

impl Name<'_> {
    /// The highest number that a group can have.
    pub const MAX_GROUP: u16 = UNNAMED - 1;

    /// Returns a number that identifies the content, the same on any host. Eviction policies use it to
    /// remember contents after their blocks were evicted.
    pub(crate) fn key(self) -> u64 {
        let group = if self.group == HIDDEN { 0 } else { self.group };
        self.hash.key() ^ u64::from(group)
    }
}

/// Makes a name in group 0, because pools without groups use only group 0.
impl<'a> From<&'a BlockHash> for Name<'a> {
    #[inline]
    fn from(hash: &'a BlockHash) -> Self {
        Self { hash, group: 0 }
    }
}

/// The records of all blocks of a pool, by id. This is a slice and not a `Vec`, so that the compiler
/// can keep the length in a register.
pub(crate) type Records = [Record];

/// Makes blank records for blocks `0..num_blocks`.
///
/// # Errors
/// [`PoolError::InvalidConfig`] if there is no memory.
pub(crate) fn blank(num_blocks: usize) -> Result<Vec<Record>, PoolError> {
    let mut records = Vec::new();
    grow(&mut records, num_blocks)?;
    Ok(records)
}

/// Appends blank records until there are `num_blocks`. Changes nothing if there is not enough memory.
pub(crate) fn grow(records: &mut Vec<Record>, num_blocks: usize) -> Result<(), PoolError> {
    try_reserve(records, num_blocks)?;
    records.resize(num_blocks.max(records.len()), BLANK);
    Ok(())
}

/// Access to records by block id.
pub(crate) trait ByBlock {
    /// Returns the record of a block, or `None` if the id is out of range.
    fn of(&self, block: BlockId) -> Option<&Record>;
    fn of_mut(&mut self, block: BlockId) -> Option<&mut Record>;
    /// Returns the record of a block, or a blank record if the id is out of range.
    fn at(&self, id: u32) -> &Record;
}

impl ByBlock for Records {
    #[inline]
    fn of(&self, block: BlockId) -> Option<&Record> {
        self.get(block.index())
    }

    #[inline]
    fn of_mut(&mut self, block: BlockId) -> Option<&mut Record> {
        self.get_mut(block.index())
    }

    #[inline]
    fn at(&self, id: u32) -> &Record {
        self.get(id as usize).unwrap_or(&OUTSIDE)
    }
}

impl Links for Records {
    #[inline]
    fn link(&self, id: u32) -> Option<&Link> {
        self.get(id as usize).map(|record| &record.link)
    }

    #[inline]
    fn link_mut(&mut self, id: u32) -> Option<&mut Link> {
        self.get_mut(id as usize).map(|record| &mut record.link)
    }

    fn num_links(&self) -> usize {
        self.len()
    }
}
