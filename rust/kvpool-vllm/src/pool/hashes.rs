//! Changes of keys: what blocks carry, and what leads to them.
//!
//! What a block is registered as follows from what it carries ([`Pool::settle`]): in use, it is
//! registered exactly if it has a hash, by the key's name if that is regular and hidden if it is not;
//! in the queue it stays in the part in which it is, and what is said of its hash is in the overlay
//! where the core has no room for it.
//!
//! A regular key gives way to the overlay as a whole ([`Pool::make_irregular`]) as soon as one of its
//! blocks can't have it in the core.
//!
//! Costs: O(1) per key; O(copies) where a key leaves the core.

use kvpool::{BlockId, Name, PoolError};

use crate::error::VllmError;
use crate::key::Key;
use crate::pool::overlay::Hash;
use crate::pool::{Pool, Removed};

/// In a mark: the key of the block once had two blocks at once.
pub(crate) const SHARED: u32 = 1 << 31;
/// In a mark: nobody said how many tokens the hash stands for.
pub(crate) const NO_TOKENS: u32 = SHARED - 1;

/// A key as the core has it.
type Named = (kvpool::BlockHash, u16);

impl Pool {
    /// Writes the hash of `block`; what leads to it stays.
    pub fn set_hash(&mut self, block: u32, key: Key, num_tokens: Option<u32>) {
        // A pool that is poisoned takes no hashes any more.
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
        // The policy is told of another content: if the block is free, among the cached ones.
        let id = [BlockId::new(block)];
        let was_queued = self.held(block) == 0;
        self.drop_content(block)?;
        if was_queued {
            self.core.acquire_by_id(&id)?;
        }
        self.settle(block)?;
        if was_queued { self.core.release_in_order(&id) } else { Ok(()) }
    }

    /// Forgets the hash of `block`; what leads to it stays.
    pub fn reset_hash(&mut self, block: u32) {
        let detached = self.detach(block);
        let _refused = detached.and_then(|()| {
            self.overlay.hashes.remove(&block);
            self.settle(block)
        });
    }

    /// Caches `block` under `key`: as its hash if it has none, as a further key otherwise. Nothing
    /// changes if it is cached so already. Returns whether the key is new to the index, as opposed to
    /// known by another block, or by this.
    pub fn insert_hash(&mut self, key: Key, block: u32, num_tokens: Option<u32>) -> bool {
        self.insert_hash_behind(key, block, num_tokens, 0, None)
    }

    /// As [`Self::insert_hash`], for the block at `depth` of a table, behind one with the key `parent`.
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

    /// Gives `block` the key, as its hash if it has none, as a further one otherwise, and makes the key
    /// lead to it. `place` is its depth and what is before it. Returns whether the key led nowhere, or
    /// `None` if the block had it: then nothing has changed.
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

    /// Gives its hash to a block that has none. Returns whether the key led nowhere.
    fn give_hash(
        &mut self,
        key: Key,
        block: u32,
        num_tokens: Option<u32>,
        (depth, before): (u32, Option<u32>),
    ) -> Result<bool, PoolError> {
        let id = BlockId::new(block);
        if block != 0 && self.held(block) == 0 && self.keeps_history() {
            // The policy is told of a content: the block is among the cached ones from now on.
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

    /// The first key that the core may know says how long digests are here. Only before the core knows
    /// any: two keys of different lengths may have one name.
    #[inline]
    pub(crate) fn learn_length(&mut self, key: &Key) {
        let len = key.digest().len();
        if len != self.digest_len && key.name(len).is_some() && self.core.stats().registered == 0 {
            self.digest_len = len;
        }
    }

    /// The name by which the core may know `key`.
    #[inline(always)]
    pub(crate) fn regular_name(&self, key: &Key, num_tokens: Option<u32>) -> Option<Named> {
        let is_noted = num_tokens.is_none_or(|tokens| tokens < NO_TOKENS);
        let is_irregular = !self.overlay.index.is_empty() && self.overlay.index.contains_key(key);
        if !self.caching || is_irregular || !is_noted {
            return None;
        }
        key.name(self.digest_len)
    }

    /// Notes the tokens of a hash that the core knows since now.
    #[inline]
    pub(crate) fn mark(&mut self, block: u32, num_tokens: Option<u32>) {
        if let Some(mark) = self.marks.get_mut(block as usize) {
            *mark = num_tokens.unwrap_or(NO_TOKENS);
        }
    }

    /// `block` is not the only one with its name; whether there were others before the first, that knows.
    pub(crate) fn mark_shared(&mut self, block: u32) {
        let first = self.core.name_of(BlockId::new(block)).and_then(|name| self.core.find_named(name));
        for block in first.into_iter().map(BlockId::get).chain([block]) {
            if let Some(mark) = self.marks.get_mut(block as usize) {
                *mark |= SHARED;
            }
        }
    }

    /// Puts `block` under `key` in the index alone.
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

    /// Makes a key that does not lead to `block` do so, in the overlay. Returns whether it led nowhere.
    fn lead_to(&mut self, key: Key, block: u32) -> Result<bool, PoolError> {
        self.make_irregular(&key)?;
        Ok(self.overlay.insert(key, block))
    }

    /// Takes a key out of the core, with all its blocks: their contents are hidden.
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

    /// The hash of `block` is in the overlay from now on, if it has one.
    pub(crate) fn detach(&mut self, block: u32) -> Result<(), PoolError> {
        match self.core.name_of(BlockId::new(block)).map(|name| Key::of_name(name, self.digest_len)) {
            Some(key) => self.make_irregular(&key),
            None => Ok(()),
        }
    }

    /// Takes `block` from `key` in the index alone. Returns whether it was there.
    pub fn remove_from_index(&mut self, key: &Key, block: u32) -> bool {
        let is_there = self.keys().leads_to(key, block) && self.make_irregular(key).is_ok();
        let removed = is_there && self.overlay.remove(key, block).is_some();
        self.removals += u64::from(removed);
        removed
    }

    /// Empties the index alone. O(blocks).
    pub fn clear_index(&mut self) {
        self.removals += 1;
        for block in 1..self.num_blocks as u32 {
            let _refused = self.detach(block);
        }
        self.overlay.index.clear();
    }

    /// Takes all keys away from `block`: its hash first, then the further ones. Of a block whose hash
    /// was taken back by hand ([`Self::reset_hash`]) the further ones stay, as vLLM leaves them.
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

    /// The same of a block whose hash, if it has one, the core does not know. What it is registered as stays.
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

    /// A key led to `block`, and does no longer.
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

    /// Gives the keys of `from` to `to`, which must carry none. Lookups then find `to`.
    ///
    /// # Errors
    /// [`VllmError::AlreadyCached`] if `to` carries a hash; [`VllmError::UnknownBlock`].
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

    /// Makes what `block` is registered as what follows from what it carries.
    pub(crate) fn settle(&mut self, block: u32) -> Result<(), PoolError> {
        let id = BlockId::new(block);
        if block == 0 || block as usize >= self.num_blocks {
            return Ok(());
        }
        let (is_registered, is_hashed) = (self.core.is_registered(id), self.is_hashed(block));
        if self.held(block) == 0 {
            // With `lru` it keeps its place.
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

    /// Takes what `block` holds out of the core: a block of the queue is the next to be handed out then.
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
