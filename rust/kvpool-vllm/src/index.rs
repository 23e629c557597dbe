//! `KeyIndex`: key -> the blocks cached under it, in the order in which they were cached.
//!
//! vLLM does not de-duplicate: two requests that computed one prompt at once leave two blocks under one key. A lookup
//! returns the one that was cached first and is still there. It knows nothing of the state of blocks.
//!
//! Cost: O(1) per call, O(copies) to drop one of several; about 80 bytes per key.

use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::key::Key;

#[derive(Clone, Debug, Default)]
struct Copies {
    blocks: SmallVec<[u32; 2]>,
    /// Whether there ever were two at once: vLLM's map shows such a key as a group of blocks to its end.
    was_shared: bool,
}

/// Key -> blocks.
#[derive(Clone, Debug, Default)]
pub struct KeyIndex {
    copies: HashMap<Key, Copies>,
}

impl KeyIndex {
    /// Number of distinct keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.copies.len()
    }

    /// Whether nothing is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// The block that was cached first under `key` and is still there.
    #[must_use]
    #[inline]
    pub fn first(&self, key: &[u8]) -> Option<u32> {
        self.copies.get(key).and_then(|copies| copies.blocks.first()).copied()
    }

    /// The blocks cached under `key`, the oldest first.
    #[must_use]
    pub fn copies(&self, key: &[u8]) -> &[u32] {
        self.copies.get(key).map_or(&[], |copies| &copies.blocks)
    }

    /// Whether more than one block was cached under `key` at once since it came into the index.
    #[must_use]
    pub fn was_shared(&self, key: &[u8]) -> bool {
        self.copies.get(key).is_some_and(|copies| copies.was_shared)
    }

    /// Whether `block` is cached under `key`.
    #[must_use]
    pub fn contains(&self, key: &[u8], block: u32) -> bool {
        self.copies(key).contains(&block)
    }

    /// Adds `block` as the youngest copy, unless it is one. Returns the number of copies that were there.
    pub fn insert(&mut self, key: Key, block: u32) -> usize {
        let copies = self.copies.entry(key).or_default();
        let before = copies.blocks.len();
        if !copies.blocks.contains(&block) {
            copies.blocks.push(block);
            copies.was_shared |= before > 0;
        }
        before
    }

    /// Drops `block` from the copies of `key`. Returns the number of copies that are left, or `None` if it was none.
    pub fn remove(&mut self, key: &[u8], block: u32) -> Option<usize> {
        let copies = self.copies.get_mut(key)?;
        let at = copies.blocks.iter().position(|&copy| copy == block)?;
        copies.blocks.remove(at);
        let left = copies.blocks.len();
        if left == 0 {
            self.copies.remove(key);
        }
        Some(left)
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.copies.clear();
    }

    /// Every key with its blocks, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &[u32])> + '_ {
        self.copies.iter().map(|(key, copies)| (key, copies.blocks.as_slice()))
    }
}
