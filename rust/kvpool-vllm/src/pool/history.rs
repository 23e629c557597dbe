//! How this pool describes its contents to an eviction policy that keeps a history.
//!
//! vLLM knows only hashes of blocks. A policy needs *contents* that it can recognize later. A policy
//! that keeps prefixes whole also needs the parent of each content.
//!
//! - The content of a block is its hash with the group. It begins when the block gets a hash, and ends
//!   when the hash is removed. Further keys of a block, for prefixes that end inside of it, are not
//!   contents. If the hash of the full block replaces that of the partial block, one content ends and
//!   another begins.
//! - The *depth* of a content is the block's position in the request's table, for any block size.
//! - The *parent* of a content is the previous block in the same table, if that block has a hash.
//!   Therefore two copies of a prompt have separate parents. For a block that is cached alone, such as
//!   a partial block, the parent is the block that a lookup of the parent's key returns. The null block
//!   and blocks that the caller chose not to cache are never parents.
//! - Only *chained* groups have parents. These are the groups of full attention
//!   ([`Pool::chain_group`]). In a sliding window, in chunks and in Mamba states, a block is useful
//!   without the blocks before it, and those are freed first. An evictor that kept these earlier blocks
//!   would keep blocks that cannot be hit any more.
//! - A content is used when [`Pool::touch`] adds a reference to its block, which may be free or in use.
//!   vLLM touches the blocks of a hit when the request is admitted. Connectors touch the blocks that
//!   they read.
//!
//! Therefore each chained group keeps its prefixes whole: no block is evicted while it is the parent of
//! a cached-free block. A hit of a model with several groups needs all of them, but no policy
//! coordinates groups.
//!
//! A release never changes the parent of a block. If the parent's content is removed, the block has no
//! parent.
//!
//! Costs: nothing with `lru` and without retention. Otherwise O(1) per block, plus the cost of the
//! policy.

use kvpool::BlockId;

use crate::key::Key;
use crate::pool::Pool;

/// The position at which a list of consecutive blocks begins in a request's table.
///
/// ```
/// use kvpool_vllm::Start;
/// let start = Start { before: Some(4), ..Start::at(2) };
/// assert_eq!((start.first, start.before), (2, Some(4)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Position in the table of the first block of the list.
    pub first: usize,
    /// The previous block in the table, if it belongs to the pool. The block is used only if the policy
    /// keeps a history ([`Pool::keeps_history`]).
    pub before: Option<u32>,
}

impl Start {
    /// Returns a start at this position. The previous block is unknown.
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

    /// Declares that a block of `group` can be hit only together with the previous block in its table.
    /// This is true of full attention. Repeated calls change nothing.
    pub fn chain_group(&mut self, group: u32) {
        if !self.is_chained(group) {
            self.chained.push(group);
        }
    }

    /// Returns whether the group is chained: [`Self::chain_group`] was called with it.
    #[must_use]
    pub fn is_chained(&self, group: u32) -> bool {
        self.chained.contains(&group)
    }

    /// Returns the depth and the parent that the core stores for a block with the key `key`. `depth` is
    /// the block's position in its table, and `before` is the previous block.
    pub(crate) fn place(&self, key: &Key, depth: u32, before: Option<u32>) -> (u32, Option<BlockId>) {
        if !self.keeps_history() {
            return (0, None);
        }
        let is_parent = |before: &u32| self.is_chained(key.group()) && self.is_hashed(*before);
        (depth, before.filter(is_parent).map(BlockId::new))
    }
}
