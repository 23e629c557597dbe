//! `Overlay`: the keys that the core's index has no room for.
//!
//! A key is *regular* if the core knows it: a digest of the pool's length, a group up to
//! [`kvpool::Name::MAX_GROUP`], and the hash of each block that it leads to. All others are here, with
//! all their blocks: further keys of a block, for prefixes that end inside it; digests of another
//! length; larger groups; and whatever vLLM writes by hand, a hash without its entry in the index or an
//! entry without its hash. A key is regular for all of its blocks or for none, and once it is here it
//! stays until it leads nowhere, so that its blocks keep their order.
//!
//! In ordinary operation this is empty, and nobody asks it.
//!
//! Costs: O(1) per call, O(copies) to drop one of several; about 100 bytes per key.

use hashbrown::HashMap;

use crate::key::Key;

/// The hash of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hash {
    pub(crate) key: Key,
    /// Tokens of the prefix that the key stands for; vLLM may leave it out.
    pub(crate) num_tokens: Option<u32>,
}

/// The blocks that a key leads to, in the order in which they were cached.
#[derive(Clone, Debug, Default)]
pub(crate) struct Copies {
    pub(crate) blocks: Vec<u32>,
    /// Whether there ever were two at once.
    pub(crate) was_shared: bool,
}

/// See above.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    /// Hashes of blocks that the core does not know.
    pub(crate) hashes: HashMap<u32, Hash>,
    /// Keys of blocks beyond their hash, in the order in which they were added.
    pub(crate) further: HashMap<u32, Vec<Key>>,
    /// What irregular keys lead to.
    pub(crate) index: HashMap<Key, Copies>,
}

impl Overlay {
    /// Whether there is anything to ask for.
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

    /// Makes a key that is not regular lead to `block`, too. Returns whether it led nowhere.
    pub(crate) fn insert(&mut self, key: Key, block: u32) -> bool {
        let copies = self.index.entry(key).or_default();
        let is_new = copies.blocks.is_empty();
        if !copies.blocks.contains(&block) {
            copies.blocks.push(block);
            copies.was_shared |= !is_new;
        }
        is_new
    }

    /// Makes a key that is not regular lead to `block` no longer. Returns whether it leads nowhere now;
    /// `None` if it did not lead to the block.
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
