//! `Overlay`: the keys that the core's index cannot store.
//!
//! A key is *regular* if the core can store it. Its digest must have the pool's length, its group must
//! be at most [`kvpool::Name::MAX_GROUP`], and it must be the hash of each of its blocks. The overlay
//! contains all other keys, with all their blocks:
//!
//! - further keys of a block, which identify prefixes that end inside of it.
//! - keys with digests of another length, or with larger groups.
//! - keys that vLLM writes directly, as a hash without an entry in the index or the reverse.
//!
//! A key is regular for all of its blocks or for none. Once a key is in the overlay, it remains there
//! until it has no blocks, so that its blocks keep their order.
//!
//! In ordinary operation the overlay is empty and is not used.
//!
//! Costs: O(1) per call. Removing a block from a key with several blocks takes O(blocks of the key).
//! Memory: about 100 bytes per key.

use hashbrown::HashMap;

use crate::key::Key;

/// The hash of a block, as vLLM stores it: a key, and the number of tokens that it covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash {
    pub(crate) key: Key,
    /// Number of tokens in the prefix that the key identifies. `None` if vLLM did not pass it.
    pub(crate) num_tokens: Option<u32>,
}

/// The blocks under one key, in the order in which they were cached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    pub(crate) blocks: Vec<u32>,
    /// Whether the key has ever had two blocks at the same time.
    pub(crate) was_shared: bool,
}

/// The keys and hashes that are not stored in the core.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    /// For each block whose hash is not in the core: this hash.
    pub(crate) hashes: HashMap<u32, Hash>,
    /// For each block, its keys other than its hash, in the order in which they were added.
    pub(crate) further: HashMap<u32, Vec<Key>>,
    /// The blocks under each key that is not in the core.
    pub(crate) index: HashMap<Key, Copies>,
}

impl Overlay {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.index.is_empty() && self.hashes.is_empty() && self.further.is_empty()
    }

    pub(crate) fn copies(&self, key: &Key) -> &[u32] {
        if self.index.is_empty() {
            return &[];
        }
        self.index.get(key).map_or(&[], |copies| &copies.blocks)
    }

    /// Lists `block` under a key that is not in the core. Returns whether no block was cached under the
    /// key.
    pub(crate) fn insert(&mut self, key: Key, block: u32) -> bool {
        let copies = self.index.entry(key).or_default();
        let is_new = copies.blocks.is_empty();
        if !copies.blocks.contains(&block) {
            copies.blocks.push(block);
            copies.was_shared |= !is_new;
        }
        is_new
    }

    /// Removes `block` from a key that is not in the core. Returns whether the key now has no block.
    /// `None` if the block was not listed under it.
    pub(crate) fn remove(&mut self, key: &Key, block: u32) -> Option<bool> {
        let copies = self.index.get_mut(key)?;
        let at = copies.blocks.iter().position(|&copy| copy == block)?;
        copies.blocks.remove(at);
        let is_last = copies.blocks.is_empty();
        if is_last {
            self.index.remove(key);
        }
        Some(is_last)
    }
}
