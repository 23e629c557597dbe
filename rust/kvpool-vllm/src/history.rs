//! What an evictor with a history is told of a pool's contents: the calls by which [`Pool`] keeps V4.
//!
//! vLLM knows hashes of blocks; a policy wants to know *contents*, and a prefix-closed one which content depends on which.
//!
//! - The content of a block is its hash, with the group. It begins when a block without a hash gets one, and ends when the
//!   hash is dropped. Further keys of a block, for prefixes that end inside of it, are no contents of their own. A hash of a
//!   part that gives way to that of the full block is one content after another.
//! - Its *depth* is the block's position in the request's table, whatever the block size of its group.
//! - Its *parent* is the block before it in the same table, if that carries a hash: with two copies of one prompt each copy
//!   hangs on its own. For a block that is cached alone, part of a block for one, it is the block that a lookup of the
//!   parent's key returns. The null block is no parent, nor is a block that a mask left uncached.
//! - Parents are noted in *chained* groups alone, those of full attention ([`Pool::chain_group`]). In a sliding window, in
//!   chunks and in Mamba states a block is of use without those before it, and it is those that are freed first: an evictor
//!   that kept them for their descendants' sake would keep what can't be hit any more.
//! - A use is a reference added by [`Pool::touch`], to a free block or to one in use: vLLM touches the blocks of a hit when
//!   the request is admitted, and connectors touch what they read.
//!
//! So each chained group is prefix-closed by itself: no block of it is evicted while a cached-free block hangs on it. A
//! hit of a model with several groups needs all of them, and no policy keeps groups in step.
//!
//! Costs: nothing with `lru`; else O(1) per block and what the policy costs.

use kvpool::evictor::Content;

use crate::journal::VllmOperation;
use crate::key::Key;
use crate::pool::Pool;

/// Where in a request's table a run of blocks begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// The position of its first block.
    pub first: usize,
    /// The block before that, if it is one of the pool's. Only a pool that [keeps a history](Pool::keeps_history) asks.
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
    /// Whether the order of eviction depends on what blocks hold: not with `lru`, and not without caching.
    #[must_use]
    #[inline]
    pub const fn keeps_history(&self) -> bool {
        self.caching && self.queue.wants_history()
    }

    /// From now on a block of `group` is taken to be of no use without the block before it in its table: true of full
    /// attention. Asked for again, it is so already.
    pub fn chain_group(&mut self, group: u32) {
        if !self.chained.contains(&group) {
            self.recorded(|_| VllmOperation::ChainGroup { group }, |pool| pool.chained.push(group));
        }
    }

    /// `block` carries a hash since now; `before` is what stands before it in its table.
    pub(crate) fn note_content(&mut self, block: u32, depth: u32, before: Option<u32>) {
        if !self.keeps_history() {
            return;
        }
        let Some((&key, _)) = self.keys.hash_of(block) else { return };
        let is_chained = |key: Key| self.chained.contains(&key.group());
        let parent = before.filter(|&before| is_chained(key) && self.keys.hash_of(before).is_some());
        self.queue.registered(block, Content { key: key.content(), depth }, parent);
    }

    /// A run of a table has been cached, but for those that `cached` says no of, by their position in `blocks`.
    pub(crate) fn note_run(&mut self, start: Start, blocks: &[u32], cached: impl Fn(usize) -> bool) {
        if !self.keeps_history() {
            return;
        }
        let mut before = start.before;
        for (position, &block) in blocks.iter().enumerate() {
            if cached(position) {
                let depth = u32::try_from(start.first + position).unwrap_or(u32::MAX);
                self.note_content(block, depth, before);
            }
            before = Some(block);
        }
    }

    /// Those of `blocks` without a hash have none since now.
    pub(crate) fn note_gone(&mut self, blocks: &[u32]) {
        if !self.keeps_history() {
            return;
        }
        for &block in blocks {
            if self.keys.hash_of(block).is_none() {
                self.queue.forget(block);
            }
        }
    }
}
