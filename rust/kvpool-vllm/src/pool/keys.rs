//! `Keys`: looks up the keys of a block, and the blocks of a key.
//!
//! vLLM does not de-duplicate. If two requests compute the same prompt at the same time, there are two
//! blocks under one key. A lookup returns the block that was cached first, among those that still
//! exist. A block has one hash, and may have further keys for prefixes that end inside of it.
//!
//! `Keys` is a view of a [`Pool`]. It combines the core's index with the overlay, which contains the
//! keys that the core cannot store.

use kvpool::{BlockId, Name};

use crate::key::Key;
use crate::pool::Pool;
use crate::pool::hashes::{NO_TOKENS, SHARED};

/// A view of a pool that finds the keys of a block, and the blocks of a key.
#[derive(Clone, Copy, Debug)]
pub struct Keys<'a> {
    pool: &'a Pool,
}

impl Pool {
    /// Returns the block that was cached first under `key`, among those that are still cached.
    #[must_use]
    #[inline]
    pub fn find(&self, key: &Key) -> Option<u32> {
        if let Some((hash, group)) = key.name(self.digest_len)
            && let Some(block) = self.core.find_named(Name { hash: &hash, group })
        {
            return Some(block.get());
        }
        self.overlay.copies(key).first().copied()
    }

    #[inline]
    pub(crate) fn is_hashed(&self, block: u32) -> bool {
        self.core.name_of(BlockId::new(block)).is_some()
            || !self.overlay.hashes.is_empty() && self.overlay.hashes.contains_key(&block)
    }

    /// Returns the number of tokens that the hash of `block` covers. Of the two nested options, the
    /// outer `None` means that the block has no hash, the inner one that the number is unknown.
    #[inline]
    pub(crate) fn tokens_of(&self, block: u32) -> Option<Option<u32>> {
        if self.core.name_of(BlockId::new(block)).is_some() {
            let mark = self.marks.get(block as usize).copied().unwrap_or(NO_TOKENS);
            return Some(Some(mark & !SHARED).filter(|&tokens| tokens != NO_TOKENS));
        }
        if self.overlay.hashes.is_empty() {
            return None;
        }
        self.overlay.hashes.get(&block).map(|hash| hash.num_tokens)
    }

    /// Returns the blocks that the core itself lists under `key`, without those of the overlay.
    pub(crate) fn regular_copies(&self, key: &Key) -> Vec<BlockId> {
        match key.name(self.digest_len) {
            Some((hash, group)) => self.core.copies_named(Name { hash: &hash, group }),
            None => Vec::new(),
        }
    }

    /// Whether the core has a block under `key`, and has had two such blocks at the same time.
    pub(crate) fn was_shared_in_core(&self, key: &Key) -> bool {
        let copies = self.regular_copies(key);
        copies.iter().any(|block| self.marks.get(block.index()).is_some_and(|mark| mark & SHARED != 0))
    }
}

impl<'a> Keys<'a> {
    pub(crate) const fn of(pool: &'a Pool) -> Self {
        Self { pool }
    }

    /// Returns the number of distinct keys under which blocks are cached. O(1) in ordinary operation.
    /// O(blocks of the pool) while there are cached blocks whose keys the core cannot store.
    #[must_use]
    pub fn len(&self) -> usize {
        let regular =
            if self.pool.hidden == 0 { self.pool.core.num_hashes() } else { self.regular().count() };
        regular + self.pool.overlay.index.len()
    }

    /// Returns whether no block is cached under any key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the block that was cached first under `key`, among those that are still cached.
    #[must_use]
    pub fn first(&self, key: &Key) -> Option<u32> {
        self.pool.find(key)
    }

    /// Returns the blocks cached under `key`, in the order in which they were cached.
    #[must_use]
    pub fn copies(&self, key: &Key) -> Vec<u32> {
        let regular = self.pool.regular_copies(key).into_iter().map(BlockId::get);
        regular.chain(self.pool.overlay.copies(key).iter().copied()).collect()
    }

    /// Whether `key` has ever had two blocks at the same time since it last had none.
    #[must_use]
    pub fn was_shared(&self, key: &Key) -> bool {
        let irregular = self.pool.overlay.index.get(key).is_some_and(|copies| copies.was_shared);
        irregular || self.pool.was_shared_in_core(key)
    }

    /// Returns whether the index lists `block` under `key`.
    #[must_use]
    pub fn leads_to(&self, key: &Key, block: u32) -> bool {
        let name = self.pool.core.name_of(BlockId::new(block));
        name.is_some_and(|name| Key::of_name(name, self.pool.digest_len) == *key)
            || self.pool.overlay.copies(key).contains(&block)
    }

    /// Returns the hash of `block`, and the number of tokens that it covers (`None` if unknown).
    #[must_use]
    #[inline]
    pub fn hash_of(&self, block: u32) -> Option<(Key, Option<u32>)> {
        let pool = self.pool;
        if let Some(name) = pool.core.name_of(BlockId::new(block)) {
            return Some((Key::of_name(name, pool.digest_len), pool.tokens_of(block).flatten()));
        }
        pool.overlay.hashes.get(&block).map(|hash| (hash.key, hash.num_tokens))
    }

    /// Returns the keys of `block` other than its hash, in the order in which they were added.
    #[must_use]
    pub fn further_keys(&self, block: u32) -> &'a [Key] {
        self.pool.overlay.further.get(&block).map_or(&[], Vec::as_slice)
    }

    /// Iterates over the blocks with further keys, in arbitrary order.
    pub fn blocks_with_further_keys(&self) -> impl Iterator<Item = u32> + 'a {
        self.pool.overlay.further.keys().copied()
    }

    /// Iterates over the keys that are in the core's index. O(blocks of the pool).
    fn regular(self) -> impl Iterator<Item = Key> + 'a {
        let pool = self.pool;
        (1..pool.num_blocks as u32).map(BlockId::new).filter_map(move |block| {
            let name = pool.core.name_of(block)?;
            let is_first = pool.core.find_named(name) == Some(block);
            is_first.then(|| Key::of_name(name, pool.digest_len))
        })
    }

    /// Iterates over every key under which a block is cached, in arbitrary order. O(blocks of the
    /// pool).
    pub fn iter(&self) -> impl Iterator<Item = Key> + 'a {
        self.regular().chain(self.pool.overlay.index.keys().copied())
    }
}
