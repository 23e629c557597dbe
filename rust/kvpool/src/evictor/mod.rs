//! Evictors: which cached-free block to reuse when no free block is left.
//!
//! An [`Evictor`] owns the *order* of the cached-free blocks and nothing else: reference counts, hashes and the free list
//! belong to others, and [`crate::BlockPool`] is the only caller. One policy per file.
//!
//! | policy | file | evicts first | cost per block |
//! |---|---|---|---|
//! | LRU | [`lru`] | least recently released; of one release the deepest of a chain | O(1) |
//! | last access | [`last_access`] | the earliest access time that the caller stated; of equal times the deepest | O(log n) |

pub mod last_access;
pub mod lru;

use std::fmt;
use std::str::FromStr;

use crate::block::BlockId;
use crate::error::{InvariantViolation, PoolError};
pub use last_access::LastAccessEvictor;
pub use lru::LruEvictor;

/// A block that has become cached-free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The block.
    pub block: BlockId,
    /// Its position in its hash chain: 0 for the first block of a prompt.
    pub depth: u32,
}

/// The order in which cached-free blocks are evicted.
///
/// The pool guarantees: blocks are real blocks of the pool; a block is inserted only when it becomes cached-free, and
/// removed or evicted before it is inserted again; no call is re-entered.
///
/// A policy guarantees what each method says, deterministically: the same calls give the same order on any host (no
/// clocks, no hash-map order, no process seeds). No method may panic, whatever the arguments.
pub trait Evictor: fmt::Debug + Send + Sync {
    /// The policy's name, as users write it.
    fn name(&self) -> &'static str;

    /// Takes the blocks that one release made cached-free. They count as touched at the same moment.
    ///
    /// MUST hold every candidate afterwards. MUST evict, of the candidates of one call, the deeper before the shallower,
    /// and of equal depth the earlier first: the cache stays prefix-closed when holders hold whole prefixes.
    /// MAY reorder `candidates`. MUST ignore a block that it already holds.
    fn insert(&mut self, candidates: &mut [Candidate]);

    /// Gives up `block`, because it was hit or dropped from the index. Returns whether it was held.
    ///
    /// MUST NOT change the order of the other blocks. MUST be O(1) or O(log n).
    fn remove(&mut self, block: BlockId) -> bool;

    /// Gives up the next victim.
    ///
    /// MUST return a block whenever it holds one. MUST NOT allocate. MUST be O(1) or O(log n).
    fn evict(&mut self) -> Option<BlockId>;

    /// Learns that the content of `block`, held here or in use, was accessed at `time`, on a clock of the caller's.
    ///
    /// MUST NOT move an access back in time. MAY ignore it, as policies without times do.
    fn mark_accessed(&mut self, _block: BlockId, _time: f64) {}

    /// Learns that `block`, which is not held here, has lost its content: its access time, if any, is that of the past.
    fn forget_access(&mut self, _block: BlockId) {}

    /// Number of blocks held.
    fn len(&self) -> usize;

    /// Whether no block is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `block` is held. O(1).
    fn contains(&self, block: BlockId) -> bool;

    /// The blocks in the order in which they would be evicted if nothing else happened. For tests and tools: O(n).
    fn order(&self) -> Vec<BlockId>;

    /// Makes room for blocks up to `num_blocks - 1`, so that no later call allocates. MAY be asked twice for the same.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory; then nothing has changed.
    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError>;

    /// Recounts its own structures from scratch.
    ///
    /// # Errors
    /// The first broken invariant.
    fn check_invariants(&self) -> Result<(), InvariantViolation>;
}

/// The policies that come with the crate, by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EvictionPolicy {
    /// Least recently used: see [`lru`].
    #[default]
    Lru,
    /// By access times that the caller states: see [`last_access`].
    LastAccess,
}

impl EvictionPolicy {
    /// Every policy.
    pub const ALL: &'static [Self] = &[Self::Lru, Self::LastAccess];

    /// The policy's name, as users write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::LastAccess => "last-accessed",
        }
    }

    /// An empty evictor of this policy for blocks `1..num_blocks`, with all its memory taken.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks.
    pub fn build(self, num_blocks: usize) -> Result<Box<dyn Evictor>, PoolError> {
        Ok(match self {
            Self::Lru => Box::new(LruEvictor::reserved(num_blocks)?),
            Self::LastAccess => Box::new(LastAccessEvictor::new(num_blocks)?),
        })
    }
}

impl FromStr for EvictionPolicy {
    type Err = PoolError;

    fn from_str(name: &str) -> Result<Self, PoolError> {
        Self::ALL.iter().copied().find(|policy| policy.name() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|policy| policy.name()).collect();
            PoolError::InvalidConfig {
                field: "eviction",
                value: format!("{name:?}"),
                expected: format!("one of {}", known.join(", ")),
            }
        })
    }
}
