//! `Record`: what the core knows of one block, in one cache line.
//!
//! Owns: the layout, and the array of records. Who writes which field:
//!
//! | field | written by |
//! |---|---|
//! | `link` | [`crate::list`]: the free list, or the order of LRU; a block is on one list at most |
//! | the flag `IN_ORDER` | the order of LRU: on which of the two |
//! | `hash`, `group`, `ring`, depth, the other flags | the prefix index |
//! | `references` | the allocator |
//! | `fences`, `pins` | the fences |
//!
//! The record of block 0, the null block, stays blank. An id outside the array reads as a blank record,
//! too: ids come from callers who were checked, or from links that are compared before they are
//! followed, so a broken link is found and never followed far.
//!
//! Costs: 64 bytes per block, one allocation, all of it written at construction.

use crate::block::BlockId;
use crate::error::PoolError;
use crate::hash::BlockHash;
use crate::list::{Link, Links, try_reserve};

/// The block is full, hashed and indexed.
pub(crate) const REGISTERED: u32 = 1 << 31;
/// Its KV is written.
pub(crate) const COMPUTED: u32 = 1 << 30;
/// The table leads to it, as to the head of the ring of its hash.
pub(crate) const HEAD: u32 = 1 << 29;
/// Its link is one of the eviction order, not of the free list.
pub(crate) const IN_ORDER: u32 = 1 << 28;
/// The position of its content in its chain.
pub(crate) const DEPTH: u32 = IN_ORDER - 1;

/// What a block without a content has none of.
pub(crate) const CONTENT: u32 = REGISTERED | COMPUTED | HEAD | DEPTH;

/// The group of contents that no lookup leads to: they have a place among the cached ones, and no name.
/// Never a caller's.
pub(crate) const HIDDEN: u16 = u16::MAX;
/// The group of a record that never had a content, as the null block's: a digest of zeros does not name it.
const UNNAMED: u16 = u16::MAX - 1;

/// Positions of a chain that a record can note.
pub(crate) const MAX_POSITIONS: usize = IN_ORDER as usize;

/// One block.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Record {
    /// That of its content, if it is registered.
    pub(crate) hash: BlockHash,
    /// Neighbours on the list that it is on.
    pub(crate) link: Link,
    /// Neighbours in the ring of the blocks with its hash.
    pub(crate) ring: Link,
    /// References, those of fences and pins included.
    pub(crate) references: u32,
    /// Of these, references that fences and pins hold.
    pub(crate) fences: u32,
    /// Of these, pins: 1 if a planned copy reads or writes it, else 0.
    pub(crate) pins: u16,
    /// The group in which its hash names its content: one digest is another content in every group.
    pub(crate) group: u16,
    /// Depth in the low bits, flags above.
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

    /// Whether it has a content that no lookup leads to.
    #[inline]
    pub(crate) const fn is_hidden(&self) -> bool {
        self.is_registered() && self.group == HIDDEN
    }

    /// What its content is called, if it has one.
    #[inline]
    pub(crate) const fn name(&self) -> Name<'_> {
        Name { hash: &self.hash, group: self.group }
    }

    /// Whether its content, if it has one, is called so.
    #[inline(always)]
    pub(crate) fn is_named(&self, name: Name<'_>) -> bool {
        self.group == name.group && self.hash == *name.hash
    }

    /// Whether a lookup of `name` finds it: the oldest computed copy of that content.
    #[inline(always)]
    pub(crate) fn leads_to(&self, name: Name<'_>) -> bool {
        self.flags & (COMPUTED | HEAD) == COMPUTED | HEAD && self.is_named(name)
    }

    /// References that are neither fences nor pins: block tables and other holders. 0 if there are more
    /// fences than references, which the scrubber finds.
    #[inline]
    pub(crate) const fn holders(&self) -> u32 {
        self.references.saturating_sub(self.fences)
    }

    /// Whether nobody but pins holds it: nobody at all, of most blocks.
    #[inline]
    pub(crate) const fn is_released(&self) -> bool {
        self.references == self.pins as u32
    }

    /// Whether fences and pins hold all of its references, and there are some.
    #[inline]
    pub(crate) const fn is_fenced(&self) -> bool {
        self.references > 0 && self.references == self.fences
    }

    /// Whether it is on the free list.
    #[inline]
    pub(crate) const fn is_free(&self) -> bool {
        self.link.is_linked() && !self.is(IN_ORDER)
    }

    /// Whether it is in the order of LRU.
    #[inline]
    pub(crate) const fn is_in_order(&self) -> bool {
        self.link.is_linked() && self.is(IN_ORDER)
    }
}

/// What a content is called: a digest, and the KV-cache group that it is of. Both count, always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name<'a> {
    /// The digest of the block and everything before it.
    pub hash: &'a BlockHash,
    /// The group, at most [`Self::MAX_GROUP`]; 0 in pools without groups.
    pub group: u16,
}

impl Name<'_> {
    /// The highest number of a group.
    pub const MAX_GROUP: u16 = UNNAMED - 1;

    /// A number for the content, the same on any host, for whoever remembers contents without their blocks.
    pub(crate) fn key(self) -> u64 {
        let group = if self.group == HIDDEN { 0 } else { self.group };
        self.hash.key() ^ u64::from(group)
    }
}

/// In group 0, that of pools without groups.
impl<'a> From<&'a BlockHash> for Name<'a> {
    #[inline]
    fn from(hash: &'a BlockHash) -> Self {
        Self { hash, group: 0 }
    }
}

/// The records of all blocks of a pool, by id. Parts are given the slice, so that its bounds stay in
/// registers.
pub(crate) type Records = [Record];

/// Blank records of blocks `0..num_blocks`.
///
/// # Errors
/// [`PoolError::InvalidConfig`] if there is no memory.
pub(crate) fn blank(num_blocks: usize) -> Result<Vec<Record>, PoolError> {
    let mut records = Vec::new();
    grow(&mut records, num_blocks)?;
    Ok(records)
}

/// Blank records up to `num_blocks - 1`. Nothing has changed if there is no memory.
pub(crate) fn grow(records: &mut Vec<Record>, num_blocks: usize) -> Result<(), PoolError> {
    try_reserve(records, num_blocks)?;
    records.resize(num_blocks.max(records.len()), BLANK);
    Ok(())
}

/// Records by block id.
pub(crate) trait ByBlock {
    /// The record of a block; `None` outside the pool.
    fn of(&self, block: BlockId) -> Option<&Record>;
    fn of_mut(&mut self, block: BlockId) -> Option<&mut Record>;
    /// The record of a block; a blank one outside the pool.
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
