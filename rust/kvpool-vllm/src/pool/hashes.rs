//! Changes of keys: the keys that a block has, and the blocks that the index lists under a key.
//!
//! Each change also adjusts the registration of the block in the core ([`Pool::settle`]). A block in
//! use is registered exactly if it has a hash. If the core can store its key, the block is registered
//! under that key. Otherwise it is registered as a hidden content, which no lookup of the core finds,
//! and the overlay stores the hash. A block in the queue remains where it is.
//!
//! If the core can no longer store the key for one of its blocks, the key moves to the overlay with all
//! its blocks ([`Pool::make_irregular`]).
//!
//! Costs: O(1) per key; O(blocks of the key) when a key moves to the overlay.

use kvpool::{BlockId, Name, PoolError};

use crate::error::VllmError;
use crate::key::Key;
use crate::pool::overlay::Hash;
use crate::pool::{Pool, Removed};

/// A bit in an entry of [`Pool::marks`]. It is set if the index has listed two blocks under the block's
/// key at the same time.
pub(crate) const SHARED: u32 = 1 << 31;
/// The entry in [`Pool::marks`] of a block whose hash covers an unknown number of tokens.
pub(crate) const NO_TOKENS: u32 = SHARED - 1;

type Named = (kvpool::BlockHash, u16);

impl Pool {
    /// Sets the hash of `block`. The index, in which lookups find blocks, does not change.
    pub fn set_hash(&mut self, block: u32, key: Key, num_tokens: Option<u32>) {
        // An error is ignored, because it means that an invariant is broken and the pool refuses all
        // calls.
        let _refused = self.write_hash(block, key, num_tokens);
    }

    fn write_hash(&mut self, block: u32, key: Key, num_tokens: Option<u32>) -> Result<(), PoolError> {
        if block as usize >= self.num_blocks {
            return Ok(());
        }
        self.detach(block)?;
        self.overlay.hashes.insert(block, Hash { key, num_tokens });
        if !self.keeps_history() || block == 0 {
            return self.settle(block);
        }
        // Notify the policy that the block now has another content. If the block is free, it is now one
        // of the cached-free blocks.
        let id = [BlockId::new(block)];
        let was_queued = self.held(block) == 0;
        self.drop_content(block)?;
        if was_queued {
            self.core.acquire_by_id(&id)?;
        }
        self.settle(block)?;
        if was_queued { self.core.release_in_order(&id) } else { Ok(()) }
    }

    /// Removes the hash of `block`. The index, in which lookups find blocks, does not change.
    pub fn reset_hash(&mut self, block: u32) {
        let detached = self.detach(block);
        let _refused = detached.and_then(|()| {
            self.overlay.hashes.remove(&block);
            self.settle(block)
        });
    }

    /// Caches `block` under `key`. The key becomes the block's hash, or a further key if the block has
    /// a hash. Changes nothing if the block already has this key. Returns whether no other block was
    /// cached under the key before.
    pub fn insert_hash(&mut self, key: Key, block: u32, num_tokens: Option<u32>) -> bool {
        self.insert_hash_behind(key, block, num_tokens, 0, None)
    }

    /// Like [`Self::insert_hash`]. `depth` is the position of the block in its table, and `parent` is
    /// the key of the previous block.
    pub fn insert_hash_behind(
        &mut self,
        key: Key,
        block: u32,
        num_tokens: Option<u32>,
        depth: u32,
        parent: Option<&Key>,
    ) -> bool {
        let before = parent.and_then(|parent| self.find(parent));
        matches!(self.give(key, block, num_tokens, (depth, before)), Ok(Some(true)))
    }

    /// Caches `block` under `key`. The key becomes the block's hash, or a further key if the block has
    /// a hash. `place` contains the block's depth in its table and the previous block. Returns whether
    /// no block was cached under the key. If `block` already has the key, changes nothing and returns
    /// `None`.
    pub(crate) fn give(
        &mut self,
        key: Key,
        block: u32,
        num_tokens: Option<u32>,
        place: (u32, Option<u32>),
    ) -> Result<Option<bool>, PoolError> {
        if block as usize >= self.num_blocks {
            return Ok(None);
        }
        let hash = self.keys().hash_of(block);
        if hash.is_some_and(|(hash, _)| hash == key) || self.overlay.copies(&key).contains(&block) {
            return Ok(None);
        }
        if hash.is_none() {
            return self.give_hash(key, block, num_tokens, place).map(Some);
        }
        let keys = self.overlay.further.entry(block).or_default();
        if !keys.contains(&key) {
            keys.push(key);
        }
        self.lead_to(key, block).map(Some)
    }

    /// Gives a block its first hash. Returns whether no block was cached under the key. The tuple
    /// contains the block's depth in its table and the previous block.
    fn give_hash(
        &mut self,
        key: Key,
        block: u32,
        num_tokens: Option<u32>,
        (depth, before): (u32, Option<u32>),
    ) -> Result<bool, PoolError> {
        let id = BlockId::new(block);
        if block != 0 && self.held(block) == 0 && self.keeps_history() {
            // Notify the policy of a new content. From now on, the block is one of the cached-free
            // blocks.
            self.drop_content(block)?;
            self.core.acquire_by_id(&[id])?;
            let is_new = self.give_hash(key, block, num_tokens, (depth, before))?;
            self.core.release_in_order(&[id])?;
            return Ok(is_new);
        }
        let may_register = self.caching && block != 0 && self.held(block) > 0;
        let (depth, parent) = self.place(&key, depth, before);
        if may_register {
            self.learn_length(&key);
        }
        if may_register && let Some((hash, group)) = self.regular_name(&key, num_tokens) {
            let is_new = self.core.register_behind(id, Name { hash: &hash, group }, depth, parent)?;
            self.mark(block, num_tokens);
            if !is_new {
                self.mark_shared(block);
            }
            return Ok(is_new);
        }
        let is_new = self.lead_to(key, block)?;
        self.overlay.hashes.insert(block, Hash { key, num_tokens });
        if may_register {
            self.core.register_hidden(id, &key.hidden_hash(), depth, parent)?;
            self.hidden += 1;
        }
        Ok(is_new)
    }

    /// Sets the length of all digests in the core to that of this key. This is possible only while the
    /// core has no key: padded digests of different lengths might be equal.
    #[inline]
    pub(crate) fn learn_length(&mut self, key: &Key) {
        let len = key.digest().len();
        if len != self.digest_len && key.name(len).is_some() && self.core.stats().registered == 0 {
            self.digest_len = len;
        }
    }

    /// Returns the core's name for `key`. `None` if the core cannot store this key.
    #[inline(always)]
    pub(crate) fn regular_name(&self, key: &Key, num_tokens: Option<u32>) -> Option<Named> {
        let is_noted = num_tokens.is_none_or(|tokens| tokens < NO_TOKENS);
        let is_irregular = !self.overlay.index.is_empty() && self.overlay.index.contains_key(key);
        if !self.caching || is_irregular || !is_noted {
            return None;
        }
        key.name(self.digest_len)
    }

    /// Stores how many tokens a hash that is now in the core covers. `None` means unknown.
    #[inline]
    pub(crate) fn mark(&mut self, block: u32, num_tokens: Option<u32>) {
        if let Some(mark) = self.marks.get_mut(block as usize) {
            *mark = num_tokens.unwrap_or(NO_TOKENS);
        }
    }

    /// Marks that the index lists several blocks under the key of `block`. Sets the bit for `block` and
    /// for the first of these blocks.
    pub(crate) fn mark_shared(&mut self, block: u32) {
        let first = self.core.name_of(BlockId::new(block)).and_then(|name| self.core.find_named(name));
        for block in first.into_iter().map(BlockId::get).chain([block]) {
            if let Some(mark) = self.marks.get_mut(block as usize) {
                *mark |= SHARED;
            }
        }
    }

    /// Adds `block` to the index under `key`, without changing the block's hash.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`].
    pub fn insert_in_index(&mut self, key: Key, block: u32) -> Result<(), VllmError> {
        self.check(block)?;
        if !self.keys().leads_to(&key, block) {
            self.lead_to(key, block)?;
        }
        Ok(())
    }

    /// Lists `block` under a key in the overlay (the keys that the core does not store), to which the
    /// key moves if it is in the core. Returns whether no block was cached under the key.
    fn lead_to(&mut self, key: Key, block: u32) -> Result<bool, PoolError> {
        self.make_irregular(&key)?;
        Ok(self.overlay.insert(key, block))
    }

    /// Moves a key with all its blocks from the core to the overlay, which stores all other keys. In
    /// the core, the contents of these blocks become hidden: lookups no longer find them.
    fn make_irregular(&mut self, key: &Key) -> Result<(), PoolError> {
        let copies = self.regular_copies(key);
        if copies.is_empty() {
            return Ok(());
        }
        let was_shared = copies.len() > 1 || self.was_shared_in_core(key);
        for &block in &copies {
            let num_tokens = self.tokens_of(block.get()).flatten();
            self.core.hide(block)?;
            self.hidden += 1;
            self.overlay.hashes.insert(block.get(), Hash { key: *key, num_tokens });
            self.overlay.insert(*key, block.get());
        }
        if let Some(entry) = self.overlay.index.get_mut(key) {
            entry.was_shared |= was_shared;
        }
        Ok(())
    }

    /// If the hash of `block` is in the core, moves it to the overlay (the store of all other keys),
    /// together with all blocks of its key.
    pub(crate) fn detach(&mut self, block: u32) -> Result<(), PoolError> {
        match self.core.name_of(BlockId::new(block)).map(|name| Key::of_name(name, self.digest_len)) {
            Some(key) => self.make_irregular(&key),
            None => Ok(()),
        }
    }

    /// Removes `block` from the index under `key`. The block keeps its hash. Returns whether the block
    /// was listed there.
    pub fn remove_from_index(&mut self, key: &Key, block: u32) -> bool {
        let is_there = self.keys().leads_to(key, block) && self.make_irregular(key).is_ok();
        let removed = is_there && self.overlay.remove(key, block).is_some();
        self.removals += u64::from(removed);
        removed
    }

    /// Removes all entries of the index. Blocks keep their hashes. O(blocks of the pool).
    pub fn clear_index(&mut self) {
        self.removals += 1;
        for block in 1..self.num_blocks as u32 {
            let _refused = self.detach(block);
        }
        self.overlay.index.clear();
    }

    /// Removes all keys of `block`: first its hash, then its further keys. If the hash was already
    /// removed with [`Self::reset_hash`], the block keeps its further keys, as in vLLM.
    pub fn remove_hashes(&mut self, block: u32) -> Vec<Removed> {
        let mut removed = Vec::new();
        let _refused = self.remove_hashes_into(block, &mut Some(&mut removed));
        removed
    }

    pub(crate) fn remove_hashes_into(
        &mut self,
        block: u32,
        removed: &mut Option<&mut Vec<Removed>>,
    ) -> Result<(), PoolError> {
        let id = BlockId::new(block);
        let key = self.core.name_of(id).map(|name| Key::of_name(name, self.digest_len));
        if let Some(key) = key {
            let last_copy = self.core.hide(id)?;
            self.hidden += 1;
            self.note_removed(block, key, last_copy, removed);
            self.remove_further(block, removed);
        } else {
            self.remove_irregular(block, removed);
        }
        self.settle(block)
    }

    /// Like [`Self::remove_hashes_into`]. The hash of the block must be in the overlay, not in the
    /// core. The block's registration in the core does not change.
    pub(crate) fn remove_irregular(&mut self, block: u32, removed: &mut Option<&mut Vec<Removed>>) {
        if let Some(Hash { key, .. }) = self.overlay.hashes.remove(&block) {
            if let Some(last_copy) = self.overlay.remove(&key, block) {
                self.note_removed(block, key, last_copy, removed);
            }
            self.remove_further(block, removed);
        }
    }

    pub(crate) fn remove_further(&mut self, block: u32, removed: &mut Option<&mut Vec<Removed>>) {
        if self.overlay.further.is_empty() {
            return;
        }
        for key in self.overlay.further.remove(&block).into_iter().flatten() {
            if let Some(last_copy) = self.overlay.remove(&key, block) {
                self.note_removed(block, key, last_copy, removed);
            }
        }
    }

    /// Counts a removed key and, if `removed` is given, appends it there.
    pub(crate) fn note_removed(
        &mut self,
        block: u32,
        key: Key,
        last_copy: bool,
        removed: &mut Option<&mut Vec<Removed>>,
    ) {
        self.removals += 1;
        if let Some(removed) = removed {
            removed.push(Removed { block, key, last_copy });
        }
    }

    /// Moves the keys of `from` to `to`, which must not have a hash. Lookups then find `to`.
    ///
    /// # Errors
    /// [`VllmError::AlreadyCached`] if `to` has a hash. [`VllmError::UnknownBlock`] for an unknown id.
    pub fn move_hashes(&mut self, from: u32, to: u32) -> Result<(), VllmError> {
        self.check(from)?;
        self.check(to)?;
        let num_tokens = self.tokens_of(from).flatten();
        if let Some(cached) = self.tokens_of(to) {
            let (cached, wanted) = (cached.unwrap_or(0), num_tokens.unwrap_or(0));
            return Err(VllmError::AlreadyCached { block: to, cached, wanted });
        }
        let depth = self.core.depth_of(BlockId::new(from)).unwrap_or(0);
        for removed in self.remove_hashes(from) {
            self.give(removed.key, to, num_tokens, (depth, None))?;
        }
        Ok(())
    }

    /// Makes the registration of `block` in the core agree with its hash: a block in use is registered
    /// exactly if it has a hash.
    pub(crate) fn settle(&mut self, block: u32) -> Result<(), PoolError> {
        let id = BlockId::new(block);
        if block == 0 || block as usize >= self.num_blocks {
            return Ok(());
        }
        let (is_registered, is_hashed) = (self.core.is_registered(id), self.is_hashed(block));
        if self.held(block) == 0 {
            // With `lru`, a free block without a hash keeps its position in the queue.
            return if !is_hashed && self.keeps_history() { self.drop_content(block) } else { Ok(()) };
        }
        match (is_registered, self.caching && is_hashed) {
            (true, false) => self.drop_content(block),
            (false, true) => {
                let hash = self.overlay.hashes.get(&block).map(|hash| hash.key.hidden_hash());
                if let Some(hash) = hash {
                    self.core.register_hidden(id, &hash, 0, None)?;
                    self.hidden += 1;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Removes the content of `block` from the core. If the block is in the queue, it becomes the next
    /// block to be allocated.
    pub(crate) fn drop_content(&mut self, block: u32) -> Result<(), PoolError> {
        let id = BlockId::new(block);
        let was_hidden = self.core.is_hidden(id);
        if self.core.is_registered(id) {
            self.core.drop_cached(&[id])?;
            self.hidden -= usize::from(was_hidden);
        }
        Ok(())
    }
}
