//! Defines block ids and block states.
//!
//! A block is a piece of KV memory with room for `block_size` tokens. Its [`BlockId`] is a number from
//! 0 to the number of blocks - 1. Block 0 is the *null block*: it fills positions of block tables that
//! need no block, and it is never allocated and never counted. Every other block is always in exactly
//! one [`BlockState`]:
//!
//! ```text
//!              allocate                    release (not registered, or not computed)
//!   Free  ───────────────►  Active  ─────────────────────────────────────────────►  Free
//!                           ▲    │
//!         match_and_acquire │    │ release (registered and computed)
//!                           │    ▼
//!                         CachedFree  ── evicted by an allocation ──►  Active (new owner)
//!
//!   Active ── release_after(step) ──► Fenced ── complete_step(step) ──► Free or CachedFree
//! ```

use std::fmt;

/// The id of a block: an index into the engine's KV memory. It has the memory layout of a `u32`.
///
/// With the feature `bytemuck`, a block table can be read as numbers without a copy:
///
#[cfg_attr(feature = "bytemuck", doc = "```")]
#[cfg_attr(not(feature = "bytemuck"), doc = "```ignore")]
/// use kvpool::BlockId;
/// let table = [BlockId::new(3), BlockId::new(5)];
/// let ids: &[u32] = bytemuck::cast_slice(&table);
/// assert_eq!(ids, [3, 5]);
/// assert_eq!(bytemuck::cast_slice::<u32, BlockId>(ids), table);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "bytemuck", derive(bytemuck::Pod, bytemuck::Zeroable))]
#[repr(transparent)]
pub struct BlockId(u32);

/// The null block, block 0. It fills positions of block tables that need no block. It is never
/// allocated and never counted.
pub const NULL_BLOCK: BlockId = BlockId(0);

/// The largest number of blocks in one pool, including the null block. Ids are `u32` numbers, and one
/// of these numbers marks blocks that are not on a list.
pub const MAX_BLOCKS: usize = (u32::MAX - 1) as usize;

impl BlockId {
    /// Makes the id of a block from its number.
    #[must_use]
    pub const fn new(id: u32) -> Self {
        Self(id)
    }

    /// Returns the id as a number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the id as an array index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Returns whether this is the null block.
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Debug for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<BlockId> for u32 {
    fn from(block: BlockId) -> Self {
        block.0
    }
}

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BlockState {
    /// Block 0.
    Null,
    /// The block has no references and no cached content. It is on the free list.
    Free,
    /// The block has no references, and is registered and computed. A lookup can acquire it, and an
    /// allocation may evict it.
    CachedFree,
    /// At least one block table holds the block.
    Active,
    /// No block table holds the block any more, but a running step or transfer may still read or write
    /// it. So a fence holds its references.
    Fenced,
}

impl BlockState {
    /// Returns the name of the state in lower case, as it appears in Python and in logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Free => "free",
            Self::CachedFree => "cached-free",
            Self::Active => "active",
            Self::Fenced => "fenced",
        }
    }
}
