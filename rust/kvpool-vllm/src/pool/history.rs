//! What a policy with a history is told of a pool's contents.
//!
//! vLLM knows hashes of blocks; a policy wants to know *contents*, and a prefix-closed one which
//! content depends on which.
//!
//! - The content of a block is its hash, with the group. It begins when a block without a hash gets
//!   one, and ends when the hash is dropped. Further keys of a block, for prefixes that end inside of
//!   it, are no contents of their own. A hash of a part that gives way to that of the full block is one
//!   content after another.
//! - Its *depth* is the block's position in the request's table, whatever the block size of its group.
//! - Its *parent* is the block before it in the same table, if that carries a hash: with two copies of
//!   one prompt each copy hangs on its own. For a block that is cached alone, part of a block for one,
//!   it is the block that a lookup of the parent's key returns. The null block is no parent, nor is a
//!   block that a mask left uncached.
//! - Parents are noted in *chained* groups alone, those of full attention ([`Pool::chain_group`]). In a
//!   sliding window, in chunks and in Mamba states a block is of use without those before it, and it is
//!   those that are freed first: an evictor that kept them for their descendants' sake would keep what
//!   can't be hit any more.
//! - A use is a reference added by [`Pool::touch`], to a free block or to one in use: vLLM touches the
//!   blocks of a hit when the request is admitted, and connectors touch what they read.
//!
//! So each chained group is prefix-closed by itself: no block of it is evicted while a cached-free
//! block hangs on it. A hit of a model with several groups needs all of them, and no policy keeps
//! groups in step.
//!
//! A release gives no block another parent: what hung on a content that is gone hangs on nothing.
//!
//! Costs: nothing with `lru`, if there is no retention; else O(1) per block and what the policy costs.

use kvpool::BlockId;

use crate::key::Key;
use crate::pool::Pool;

/// Where in a request's table a run of blocks begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The position of its first block.
    pub first: usize,
    /// The block before that, if it is one of the pool's. Only a pool that [keeps a
    /// history](Pool::keeps_history) asks.
    pub before: Option<u32>,
}

impl Start {
    /// A run that begins at a position, behind a block that nobody named.
    #[must_use]
    pub const fn at(first: usize) -> Self {
        Self { first, before: None }
    }
}

impl Pool {
    /// Whether the order of eviction depends on what blocks hold: not with `lru` without retention, and
    /// not without caching.
    #[must_use]
    #[inline]
    pub const fn keeps_history(&self) -> bool {
        self.caching && self.core.keeps_history()
    }

    /// From now on a block of `group` is taken to be of no use without the block before it in its
    /// table: true of full attention. Asked for again, it is so already.
    pub fn chain_group(&mut self, group: u32) {
        if !self.is_chained(group) {
            self.chained.push(group);
        }
    }

    /// Whether that was said of `group`.
    #[must_use]
    pub fn is_chained(&self, group: u32) -> bool {
        self.chained.contains(&group)
    }

    /// Where the core is told that a block with `key` stands, at `depth` of its table and behind `before`.
    pub(crate) fn place(&self, key: &Key, depth: u32, before: Option<u32>) -> (u32, Option<BlockId>) {
        if !self.keeps_history() {
            return (0, None);
        }
        let is_parent = |before: &u32| self.is_chained(key.group()) && self.is_hashed(*before);
        (depth, before.filter(is_parent).map(BlockId::new))
    }
}
