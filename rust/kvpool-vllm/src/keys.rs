//! `Keys`: which keys a block carries, and which blocks a key leads to.
//!
//! vLLM does not de-duplicate: two requests that computed one prompt at once leave two blocks under one key; a lookup
//! returns the one that was cached first and is still there. A block has one hash, and may have further keys, for
//! prefixes that end inside of it.
//!
//! Nearly every key is *regular*: it leads to one block, whose hash it is. Those are in a table of block ids that compares
//! through the block's own hash, 5 bytes per key. All others are in a map with their blocks in order, and stay there until
//! they lead nowhere: a key that had several blocks is shown as such by vLLM's map to its end.
//!
//! Invariant V3: a key leads to a block exactly if the block carries it. The calls for what vLLM does by hand
//! ([`Keys::set_hash`], [`Keys::reset_hash`], [`Keys::insert`] without either) may break that, and nothing else.
//!
//! Costs: O(1) per call, O(copies) to drop one of several; 48 bytes per block, 5 per regular key, about 100 per other.

use std::hash::BuildHasher;

use crate::error::{filled, no_memory};
use crate::key::Key;
use hashbrown::hash_table::{Entry, OccupiedEntry};
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use kvpool::PoolError;

/// Blocks whose hashes are read ahead.
const BATCH: usize = 32;

/// The hash of a block.
#[derive(Clone, Debug)]
struct Hash {
    key: Key,
    /// Tokens of the prefix that the key stands for; vLLM may leave it out.
    num_tokens: Option<u32>,
}

/// The blocks of an irregular key, in the order in which they were cached.
#[derive(Clone, Debug, Default)]
struct Copies {
    blocks: Vec<u32>,
    /// Whether there ever were two at once.
    was_shared: bool,
}

/// Keys of blocks, both ways.
#[derive(Clone, Debug)]
pub struct Keys {
    hashes: Vec<Option<Hash>>,
    further: HashMap<u32, Vec<Key>>,
    regular: HashTable<u32>,
    irregular: HashMap<Key, Copies>,
    /// Keyed: nobody can choose digests that meet. Nothing depends on the order that this gives.
    hasher: DefaultHashBuilder,
}

impl Keys {
    /// No keys, for blocks `0..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for more than fit in memory.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        let mut regular = HashTable::new();
        // Nothing is in it that would have to be hashed.
        regular.try_reserve(num_blocks, |_| 0).map_err(|_| no_memory(num_blocks))?;
        Ok(Self {
            hashes: filled(num_blocks, None)?,
            further: HashMap::new(),
            regular,
            irregular: HashMap::new(),
            hasher: DefaultHashBuilder::default(),
        })
    }

    /// Number of distinct keys that lead somewhere.
    #[must_use]
    pub fn len(&self) -> usize {
        self.regular.len() + self.irregular.len()
    }

    /// Whether nothing is cached.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key)
    }

    #[inline]
    fn is_hash_of(&self, block: u32, key: &Key) -> bool {
        self.hashes.get(block as usize).and_then(Option::as_ref).is_some_and(|hash| hash.key == *key)
    }

    #[inline]
    fn regular(&self, key: &Key) -> Option<u32> {
        self.regular_at(self.hash(key), key)
    }

    #[inline]
    fn regular_at(&self, hash: u64, key: &Key) -> Option<u32> {
        self.regular.find(hash, |&block| self.is_hash_of(block, key)).copied()
    }

    /// The block that was cached first under `key` and is still there.
    #[must_use]
    #[inline]
    pub fn first(&self, key: &Key) -> Option<u32> {
        let regular = self.regular(key);
        if regular.is_some() || self.irregular.is_empty() {
            return regular;
        }
        self.irregular.get(key).and_then(|copies| copies.blocks.first()).copied()
    }

    /// The blocks cached under `key`, the oldest first.
    #[must_use]
    pub fn copies(&self, key: &Key) -> Vec<u32> {
        match self.regular(key) {
            Some(block) => vec![block],
            None => self.irregular.get(key).map_or_else(Vec::new, |copies| copies.blocks.clone()),
        }
    }

    /// Whether more than one block was cached under `key` at once since it led nowhere.
    #[must_use]
    pub fn was_shared(&self, key: &Key) -> bool {
        self.irregular.get(key).is_some_and(|copies| copies.was_shared)
    }

    /// Whether `key` leads to `block`.
    #[must_use]
    pub fn leads_to(&self, key: &Key, block: u32) -> bool {
        self.regular(key) == Some(block)
            || self.irregular.get(key).is_some_and(|copies| copies.blocks.contains(&block))
    }

    /// The hash of `block`, with the number of tokens it stands for.
    #[must_use]
    #[inline]
    pub fn hash_of(&self, block: u32) -> Option<(&Key, Option<u32>)> {
        self.hashes.get(block as usize)?.as_ref().map(|hash| (&hash.key, hash.num_tokens))
    }

    /// The keys of `block` beyond its hash, in the order in which they were added.
    #[must_use]
    pub fn further_keys(&self, block: u32) -> &[Key] {
        self.further.get(&block).map_or(&[], Vec::as_slice)
    }

    /// The blocks that carry further keys, in no order that means anything.
    pub fn blocks_with_further_keys(&self) -> impl Iterator<Item = u32> + '_ {
        self.further.keys().copied()
    }

    /// Writes the hash of `block`; what leads to it stays.
    pub fn set_hash(&mut self, block: u32, key: Key, num_tokens: Option<u32>) {
        self.reset_hash(block);
        if let Some(place) = self.hashes.get_mut(block as usize) {
            *place = Some(Hash { key, num_tokens });
        }
    }

    /// Forgets the hash of `block`; what leads to it stays.
    pub fn reset_hash(&mut self, block: u32) {
        let Some(hash) = self.hashes.get(block as usize).and_then(Option::as_ref) else { return };
        let key = hash.key;
        if self.regular(&key) == Some(block) {
            // It is compared through the hash that goes away.
            self.make_irregular(key, block);
        }
        self.hashes[block as usize] = None;
    }

    fn remove_regular(&mut self, key: &Key, block: u32) -> bool {
        self.remove_regular_at(self.hash(key), block)
    }

    fn remove_regular_at(&mut self, hash: u64, block: u32) -> bool {
        self.regular.find_entry(hash, |&found| found == block).map(OccupiedEntry::remove).is_ok()
    }

    fn make_irregular(&mut self, key: Key, block: u32) -> &mut Copies {
        self.remove_regular(&key, block);
        let copies = self.irregular.entry(key).or_default();
        copies.blocks.push(block);
        copies
    }

    /// Makes `key` lead to `block` also, behind the blocks it leads to. Returns how many those are.
    pub fn insert(&mut self, key: Key, block: u32) -> usize {
        self.insert_at(self.hash(&key), key, block)
    }

    fn insert_at(&mut self, hash: u64, key: Key, block: u32) -> usize {
        let may_be_regular = self.is_hash_of(block, &key) && !self.is_irregular(&key);
        let (hashes, hasher) = (&self.hashes, &self.hasher);
        let key_of = |block: u32| hashes[block as usize].as_ref().map(|hash| &hash.key);
        let known = if may_be_regular {
            // One probe for both: finding a block that has the key, and a place for this one.
            let rehash = |&block: &u32| key_of(block).map_or(0, |key| hasher.hash_one(key));
            match self.regular.entry(hash, |&known| key_of(known) == Some(&key), rehash) {
                Entry::Occupied(entry) => *entry.get(),
                Entry::Vacant(place) => {
                    place.insert(block);
                    return 0;
                }
            }
        } else if let Some(known) = self.regular_at(hash, &key) {
            known
        } else {
            let copies = self.irregular.entry(key).or_default();
            let before = copies.blocks.len();
            if !copies.blocks.contains(&block) {
                copies.blocks.push(block);
                copies.was_shared |= before > 0;
            }
            return before;
        };
        if known != block {
            let copies = self.make_irregular(key, known);
            copies.blocks.push(block);
            copies.was_shared = true;
        }
        1
    }

    #[inline]
    fn is_irregular(&self, key: &Key) -> bool {
        !self.irregular.is_empty() && self.irregular.contains_key(key)
    }

    /// Gives `block` the key, as its hash if it has none, as a further one otherwise, and makes the key lead to it.
    /// Returns how many blocks it led to before, or `None` if the block had it: then nothing has changed.
    pub fn give(&mut self, key: Key, block: u32, num_tokens: Option<u32>) -> Option<usize> {
        self.give_at(self.hash(&key), key, block, num_tokens)
    }

    /// [`Self::give`] for a run of blocks, where `key_of` has the key for a position, if there is one, and `num_tokens_of`
    /// its tokens: a block's other keys make way. Calls `gone` as [`Self::take`] does, and `given` with the position.
    pub(crate) fn give_run(
        &mut self,
        blocks: &[u32],
        key_of: impl Fn(usize) -> Option<Key>,
        num_tokens_of: impl Fn(usize) -> u32,
        mut gone: impl FnMut(u32, Key, usize),
        mut given: impl FnMut(Option<Option<usize>>),
    ) {
        let mut batch = Vec::with_capacity(BATCH.min(blocks.len()));
        for (nth, blocks) in blocks.chunks(BATCH).enumerate() {
            let first = nth * BATCH;
            batch.clear();
            let hashed = |position| key_of(first + position).map(|key| (self.hash(&key), key));
            batch.extend((0..blocks.len()).map(hashed));
            for (position, (&block, hashed)) in blocks.iter().zip(&batch).enumerate() {
                let Some((hash, key)) = *hashed else {
                    given(None);
                    continue;
                };
                if self.hash_of(block).is_some() {
                    self.take(&[block], &mut gone);
                }
                given(Some(self.give_at(hash, key, block, Some(num_tokens_of(first + position)))));
            }
        }
    }

    fn give_at(&mut self, hash: u64, key: Key, block: u32, num_tokens: Option<u32>) -> Option<usize> {
        let leads_to_it = || self.irregular.get(&key).is_some_and(|copies| copies.blocks.contains(&block));
        if self.is_hash_of(block, &key) || !self.irregular.is_empty() && leads_to_it() {
            return None;
        }
        let place = self.hashes.get_mut(block as usize)?;
        if place.is_none() {
            *place = Some(Hash { key, num_tokens });
        } else {
            let keys = self.further.entry(block).or_default();
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        Some(self.insert_at(hash, key, block))
    }

    /// Makes `key` lead to `block` no longer. Returns how many blocks it still leads to, or `None` if it did not.
    pub fn remove(&mut self, key: &Key, block: u32) -> Option<usize> {
        if self.is_hash_of(block, key) && self.remove_regular(key, block) {
            return Some(0);
        }
        self.remove_irregular(key, block)
    }

    fn remove_irregular(&mut self, key: &Key, block: u32) -> Option<usize> {
        if self.irregular.is_empty() {
            return None;
        }
        let copies = self.irregular.get_mut(key)?;
        let at = copies.blocks.iter().position(|&copy| copy == block)?;
        copies.blocks.remove(at);
        let left = copies.blocks.len();
        if left == 0 {
            self.irregular.remove(key);
        }
        Some(left)
    }

    /// Takes all keys from each of `blocks`, its hash first; `gone` gets the block and each key that led to it, with the
    /// number of blocks that the key still leads to.
    ///
    /// The blocks are any, so each costs a few misses of the cache. Reading a batch of hashes before the first of them is
    /// looked for lets the processor wait for many at once.
    pub fn take(&mut self, blocks: &[u32], mut gone: impl FnMut(u32, Key, usize)) {
        let mut batch = Vec::with_capacity(BATCH.min(blocks.len()));
        for blocks in blocks.chunks(BATCH) {
            batch.clear();
            let of = |&block: &u32| self.hash_of(block).map(|(key, _)| (block, self.hash(key)));
            batch.extend(blocks.iter().filter_map(of));
            for &(block, hash) in &batch {
                self.take_one(block, hash, &mut gone);
            }
        }
    }

    fn take_one(&mut self, block: u32, hash: u64, gone: &mut impl FnMut(u32, Key, usize)) {
        let Some(Hash { key, .. }) = self.hashes[block as usize].take() else { return };
        let is_regular = self.remove_regular_at(hash, block);
        let left = if is_regular { Some(0) } else { self.remove_irregular(&key, block) };
        if let Some(left) = left {
            gone(block, key, left);
        }
        if self.further.is_empty() {
            return;
        }
        for key in self.further.remove(&block).into_iter().flatten() {
            if let Some(left) = self.remove_irregular(&key, block) {
                gone(block, key, left);
            }
        }
    }

    /// Makes every key lead nowhere; blocks keep what they carry.
    pub fn clear_index(&mut self) {
        self.regular.clear();
        self.irregular.clear();
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.clear_index();
        self.further.clear();
        self.hashes.fill(None);
    }

    /// Every key that leads somewhere, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = &Key> + '_ {
        let regular = self.regular.iter().filter_map(|&block| self.hash_of(block).map(|(key, _)| key));
        regular.chain(self.irregular.keys())
    }
}
