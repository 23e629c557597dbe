//! The contents of a pool, as a policy with a history sees them.
//!
//! vLLM knows hashes of blocks. A policy needs *contents*, and a prefix-closed policy also needs the
//! parent of each content.
//!
//! - The content of a block is its hash with the group. It begins when a block without a hash gets one,
//!   and ends when the hash is dropped. Further keys of a block, for prefixes that end inside of it,
//!   are not contents of their own. If the hash of a partial block is replaced by that of the full
//!   block, one content ends and another begins.
//! - Its *depth* is the block's position in the request's table, regardless of the group's block size.
//! - Its *parent* is the previous block in the same table, if that block has a hash. Therefore two
//!   copies of a prompt have separate parents. For a block that is cached alone, such as a partial
//!   block, the parent is the block that a lookup of the parent's key returns. The null block is never
//!   a parent. A block that the caller chose not to cache is never a parent either.
//! - Parents are recorded only in *chained* groups, which are the groups of full attention
//!   ([`Pool::chain_group`]). In a sliding window, in chunks and in Mamba states, a block is useful
//!   without the blocks before it, and those are freed first. If an evictor kept them for their
//!   descendants, it would keep blocks that cannot be hit any more.
//! - A use is a reference that [`Pool::touch`] adds, either to a free block or to a block in use. vLLM
//!   touches the blocks of a hit when the request is admitted, and connectors touch the blocks that
//!   they read.
//!
//! Each chained group is therefore prefix-closed on its own: none of its blocks is evicted while it is
//! the parent of a cached-free block. A hit of a model with several groups needs all of them, but no
//! policy coordinates groups.
//!
//! A release never changes the parent of a block. If the parent's content was removed, the block has no
//! parent.
//!
//! Costs: nothing with `lru` and without retention; otherwise O(1) per block, plus the cost of the
//! policy.

use kvpool::BlockId;

use crate::key::Key;
use crate::pool::Pool;

/// Position in a request's table at which a run of blocks begins.
///
/// ```
/// use kvpool_vllm::Start;
/// let start = Start { before: Some(4), ..Start::at(2) };
/// assert_eq!((start.first, start.before), (2, Some(4)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Position of the first block.
    pub first: usize,
    /// The block before the first block, if it belongs to the pool. Only a pool that [keeps a
    /// history](Pool::keeps_history) uses it.
    pub before: Option<u32>,
}

impl Start {
    /// Returns the start of a run at a position. The previous block is unknown.
    #[must_use]
    pub const fn at(first: usize) -> Self {
        Self { first, before: None }
    }
}

impl Pool {
    /// Whether the order of eviction depends on the contents of blocks. This is false for `lru` without
    /// retention, and for a pool without caching.
    #[must_use]
    #[inline]
    pub const fn keeps_history(&self) -> bool {
        self.caching && self.core.keeps_history()
    }

    /// Declares that a block of `group` is useless without the previous block in its table. This is the
    /// case for full attention. Repeated calls change nothing.
    pub fn chain_group(&mut self, group: u32) {
        if !self.is_chained(group) {
            self.chained.push(group);
        }
    }

    /// Whether [`Self::chain_group`] was called for `group`.
    #[must_use]
    pub fn is_chained(&self, group: u32) -> bool {
        self.chained.contains(&group)
    }

    /// Returns the depth and the parent that the core stores for a block. The block has the key `key`,
    /// the position `depth` in its table, and the previous block `before`.
    pub(crate) fn place(&self, key: &Key, depth: u32, before: Option<u32>) -> (u32, Option<BlockId>) {
        if !self.keeps_history() {
            return (0, None);
        }
        let is_parent = |before: &u32| self.is_chained(key.group()) && self.is_hashed(*before);
        (depth, before.filter(is_parent).map(BlockId::new))
    }
}
