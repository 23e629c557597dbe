//! `Pool`: reference counts, hash keys and the queue of one vLLM block pool.
//!
//! Invariants, recounted by [`Pool::check_invariants`]:
//! - V1: a free block is in exactly one part of the queue.
//! - V2: a block is in the queue exactly if it has no references; the null block never is.
//! - V3: a key leads to a block exactly if the block carries it, as its hash or as a further one ([`Keys`]).
//! - V4: with another policy than `lru`, the evictor knows a content of a block exactly if the block carries a hash, and a
//!   free block that carries one is in the evictor's part of the queue.
//!
//! V2 to V4 hold for what went through the pool's own calls. vLLM also writes reference counts and hashes by itself
//! ([`Pool::set_ref_count`], [`Pool::set_hash`]); what that may break is what it may break in vLLM.
//!
//! Costs: O(1) per block and key; about 100 bytes per block and 80 more per cached key.

use kvpool::EvictionPolicy;
use kvpool_record::{Check, Journal};

use crate::error::{VllmError, filled};
use crate::history::Start;
use crate::journal::{Told, VllmOperation};
use crate::key::Key;
use crate::keys::Keys;
use crate::queue::Queue;
use crate::slots::{Demand, Slots};

/// A key that led to a block and does no longer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// The block.
    pub block: u32,
    /// The key.
    pub key: Key,
    /// Whether no other block is left under the key.
    pub last_copy: bool,
}

/// One vLLM block pool. Block 0 is the null block.
#[derive(Debug)]
pub struct Pool {
    pub(crate) caching: bool,
    ref_counts: Vec<i32>,
    pub(crate) queue: Queue,
    /// Blocks of the queue that do not count as free: somebody has written the count.
    withheld: usize,
    pub(crate) keys: Keys,
    /// How often a key was removed: a lookup's result stands while this does.
    removals: u64,
    /// The groups in which a block is of no use without the one before it.
    pub(crate) chained: Vec<u32>,
    pub(crate) journal: Option<Box<Journal>>,
}

impl Pool {
    /// A pool of blocks `0..num_blocks`, all but the null block free. Without `caching` nothing keeps its hash.
    ///
    /// # Errors
    /// [`VllmError::Pool`] for a number of blocks that is 0 or too large.
    pub fn new(num_blocks: usize, caching: bool) -> Result<Self, VllmError> {
        Self::with_policy(num_blocks, caching, EvictionPolicy::LRU)
    }

    /// As [`Self::new`], with another order of eviction than vLLM's.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_policy(num_blocks: usize, caching: bool, policy: EvictionPolicy) -> Result<Self, VllmError> {
        if num_blocks == 0 {
            return Err(VllmError::Pool(kvpool::PoolError::InvalidConfig {
                field: "num_gpu_blocks",
                value: "0".into(),
                expected: "at least 1, the null block".into(),
            }));
        }
        Ok(Self {
            caching,
            queue: Queue::new(num_blocks, policy)?,
            withheld: 0,
            keys: Keys::new(num_blocks)?,
            ref_counts: filled(num_blocks, 0)?,
            removals: 0,
            chained: Vec::new(),
            journal: None,
        })
    }

    /// Blocks of the pool, the null block included.
    #[must_use]
    pub const fn num_blocks(&self) -> usize {
        self.ref_counts.len()
    }

    /// Blocks that can be handed out, cached ones included.
    #[must_use]
    #[inline]
    pub fn num_free(&self) -> usize {
        self.queue.len().saturating_sub(self.withheld)
    }

    /// Writes how many blocks count as free, as vLLM's queue lets one do; the queue stays as it is. Allocations see the
    /// count, and it goes up and down with the queue from there on, not below 0.
    ///
    /// What is withheld is in no journal, and neither is a call that it refuses: that changes nothing.
    ///
    /// # Errors
    /// [`VllmError::Pool`] for more blocks than the queue has: they could not be handed out.
    pub fn set_num_free(&mut self, count: usize) -> Result<(), VllmError> {
        let queued = self.queue.len();
        self.withheld = queued.checked_sub(count).ok_or_else(|| {
            VllmError::Pool(kvpool::PoolError::InvalidConfig {
                field: "num_free_blocks",
                value: count.to_string(),
                expected: format!("at most {queued}, the blocks in the queue"),
            })
        })?;
        Ok(())
    }

    /// How often a key was removed so far: while it stays, every block that a lookup returned would be returned again.
    #[must_use]
    pub const fn removals(&self) -> u64 {
        self.removals
    }

    /// What leads to which block.
    #[must_use]
    pub const fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The free blocks in the order of reuse.
    pub fn order(&self) -> impl Iterator<Item = u32> {
        self.queue.order().into_iter()
    }

    /// The free blocks, to look at.
    #[must_use]
    pub const fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Takes the next `n` blocks out of the queue by hand, or as many as there are. Reference counts do not follow.
    pub fn pop_from_queue(&mut self, n: usize) -> Vec<u32> {
        self.recorded(
            |_| VllmOperation::QueuePop { blocks: n },
            |pool| {
                let mut out = Vec::new();
                pool.queue.pop_front_n(n, &mut out);
                Told(out)
            },
        )
        .0
    }

    /// Takes a block out of the queue by hand. Returns whether it was there.
    pub fn remove_from_queue(&mut self, block: u32) -> bool {
        self.recorded(|_| VllmOperation::QueueRemove { block }, |pool| pool.queue.remove(block))
    }

    /// Puts blocks that are not in the queue at its front or its back by hand.
    pub fn push_to_queue(&mut self, blocks: &[u32], front: bool) {
        self.recorded(
            |_| VllmOperation::QueuePush { blocks: blocks.to_vec(), front },
            |pool| if front { pool.queue.push_front_n(blocks) } else { pool.queue.push_back_n(blocks) },
        );
    }

    /// The next `n` blocks, without taking them.
    #[must_use]
    pub fn peek(&self, n: usize) -> Vec<u32> {
        self.queue.peek(n)
    }

    /// References of `block`.
    #[must_use]
    pub fn ref_count(&self, block: u32) -> i32 {
        self.ref_counts.get(block as usize).copied().unwrap_or(0)
    }

    /// Writes a reference count, as vLLM does for a copy's two ends. The queue does not follow.
    pub fn set_ref_count(&mut self, block: u32, count: i32) {
        self.recorded(
            |_| VllmOperation::SetRefCount { block, count },
            |pool| pool.set_ref_count_unrecorded(block, count),
        );
    }

    fn set_ref_count_unrecorded(&mut self, block: u32, count: i32) {
        if let Some(place) = self.ref_counts.get_mut(block as usize) {
            *place = count;
        }
    }

    /// Writes the hash of `block`; what leads to it stays.
    pub fn set_hash(&mut self, block: u32, key: Key, num_tokens: Option<u32>) {
        self.recorded(
            |_| VllmOperation::SetHash { block, key, num_tokens },
            |pool| pool.set_hash_unrecorded(block, key, num_tokens),
        );
    }

    fn set_hash_unrecorded(&mut self, block: u32, key: Key, num_tokens: Option<u32>) {
        self.keys.set_hash(block, key, num_tokens);
        self.note_content(block, 0, None);
    }

    /// Forgets the hash of `block`; what leads to it stays.
    pub fn reset_hash(&mut self, block: u32) {
        self.recorded(|_| VllmOperation::ResetHash { block }, |pool| pool.reset_hash_unrecorded(block));
    }

    fn reset_hash_unrecorded(&mut self, block: u32) {
        self.keys.reset_hash(block);
        self.note_gone(&[block]);
    }

    fn check(&self, block: u32) -> Result<(), VllmError> {
        if (block as usize) < self.ref_counts.len() {
            return Ok(());
        }
        Err(VllmError::UnknownBlock { block, last: (self.ref_counts.len() - 1) as u32 })
    }

    /// Takes the next `n` free blocks, each with one reference, and what they were cached for away from them; the keys
    /// go to `removed`, block by block.
    ///
    /// # Errors
    /// [`VllmError::OutOfBlocks`] if fewer are free.
    pub fn allocate(
        &mut self,
        n: usize,
        out: &mut Vec<u32>,
        removed: Option<&mut Vec<Removed>>,
    ) -> Result<(), VllmError> {
        let free = self.num_free();
        if n > free && n <= self.queue.len() {
            return Err(VllmError::OutOfBlocks { wanted: n, free });
        }
        let journal = self.journal.take();
        let first = out.len();
        let result = self.allocate_unrecorded(n, out, removed);
        if let Some(journal) = journal {
            let answer = result.as_ref().map(|()| Told(&out[first..]));
            self.note(journal, &VllmOperation::Allocate { blocks: n }, Check::of(&answer));
        }
        result
    }

    fn allocate_unrecorded(
        &mut self,
        n: usize,
        out: &mut Vec<u32>,
        removed: Option<&mut Vec<Removed>>,
    ) -> Result<(), VllmError> {
        if n > self.queue.len() {
            return Err(VllmError::OutOfBlocks { wanted: n, free: self.num_free() });
        }
        let first = out.len();
        self.queue.pop_front_n(n, out);
        self.hold_new(&out[first..], removed);
        Ok(())
    }

    /// The second half of [`Self::allocate`], for blocks that were taken from the queue by hand.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`].
    pub fn claim(&mut self, blocks: &[u32], removed: Option<&mut Vec<Removed>>) -> Result<(), VllmError> {
        self.recorded(
            |_| VllmOperation::Claim { blocks: blocks.to_vec() },
            |pool| pool.claim_unrecorded(blocks, removed),
        )
    }

    fn claim_unrecorded(
        &mut self,
        blocks: &[u32],
        removed: Option<&mut Vec<Removed>>,
    ) -> Result<(), VllmError> {
        blocks.iter().try_for_each(|&block| self.check(block))?;
        self.hold_new(blocks, removed);
        Ok(())
    }

    fn hold_new(&mut self, blocks: &[u32], removed: Option<&mut Vec<Removed>>) {
        if self.caching {
            self.remove_hashes_into(blocks, removed);
        }
        for &block in blocks {
            self.ref_counts[block as usize] = 1;
        }
    }

    /// Adds one reference to each block, the null block excepted; those that were free are so no longer.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`].
    pub fn touch(&mut self, blocks: &[u32]) -> Result<(), VllmError> {
        self.recorded(
            |_| VllmOperation::Touch { blocks: blocks.to_vec() },
            |pool| pool.touch_unrecorded(blocks),
        )
    }

    fn touch_unrecorded(&mut self, blocks: &[u32]) -> Result<(), VllmError> {
        blocks.iter().try_for_each(|&block| self.check(block))?;
        for &block in blocks.iter().filter(|&&block| block != 0) {
            let count = &mut self.ref_counts[block as usize];
            if *count == 0 {
                self.queue.remove(block);
            } else {
                self.queue.used(block);
            }
            *count += 1;
        }
        Ok(())
    }

    /// Drops one reference of each block, the null block excepted. Blocks without further ones become free in the order
    /// given: those without a hash to be reused at once, the first of them first; the others after everything that is
    /// free by now.
    ///
    /// # Errors
    /// [`VllmError::NotHeld`], [`VllmError::UnknownBlock`].
    pub fn free(&mut self, blocks: impl IntoIterator<Item = u32>) -> Result<(), VllmError> {
        let blocks: Vec<u32> = blocks.into_iter().filter(|&block| block != 0).collect();
        self.recorded(
            |_| VllmOperation::Free { blocks: blocks.clone() },
            |pool| pool.free_unrecorded(&blocks),
        )
    }

    fn free_unrecorded(&mut self, blocks: &[u32]) -> Result<(), VllmError> {
        let idle = self.drop_references(blocks)?;
        let is_hashed = |&block: &u32| self.caching && self.keys.hash_of(block).is_some();
        let (last, first): (Vec<u32>, Vec<u32>) = idle.into_iter().partition(is_hashed);
        self.queue.push_front_n(&first);
        self.queue.push_back_n(&last);
        Ok(())
    }

    /// Drops one reference of each block; those without further ones go to the end of the queue, hash or not.
    ///
    /// # Errors
    /// [`VllmError::NotHeld`], [`VllmError::UnknownBlock`].
    pub fn unpin(&mut self, blocks: &[u32]) -> Result<(), VllmError> {
        self.recorded(
            |_| VllmOperation::Unpin { blocks: blocks.to_vec() },
            |pool| pool.unpin_unrecorded(blocks),
        )
    }

    fn unpin_unrecorded(&mut self, blocks: &[u32]) -> Result<(), VllmError> {
        let idle = self.drop_references(blocks)?;
        self.queue.push_back_n(&idle);
        Ok(())
    }

    /// Drops one reference of each block, all or none. Returns those that lost their last one, in the order in which they
    /// did. The null block has none.
    fn drop_references(&mut self, blocks: &[u32]) -> Result<Vec<u32>, VllmError> {
        let mut idle = Vec::with_capacity(blocks.len());
        for (position, &block) in blocks.iter().enumerate() {
            match self.ref_counts.get_mut(block as usize) {
                Some(count) if *count > 0 && block != 0 => {
                    *count -= 1;
                    if *count == 0 {
                        idle.push(block);
                    }
                }
                _ => {
                    for &undo in &blocks[..position] {
                        self.ref_counts[undo as usize] += 1;
                    }
                    return Err(self.check(block).err().unwrap_or(VllmError::NotHeld { block }));
                }
            }
        }
        Ok(idle)
    }

    /// Takes the blocks that `demand` needs, if they may be taken: holds its `hits`, which are cached, and allocates the
    /// others into `out`. False, and nothing has changed, if they may not. What is evicted goes to `removed`.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`] among the hits.
    pub fn take_slots(
        &mut self,
        slots: Slots,
        demand: Demand,
        hits: &[u32],
        out: &mut Vec<u32>,
        removed: Option<&mut Vec<Removed>>,
    ) -> Result<bool, VllmError> {
        let demand = Demand { hits: hits.len(), evictable: self.num_evictable(hits), ..demand };
        let Some(missing) = slots.plan(&demand, self.num_free()) else { return Ok(false) };
        // As two operations of a journal: the arithmetic before them changes nothing.
        self.touch(hits)?;
        self.allocate(missing, out, removed)?;
        Ok(true)
    }

    /// The block that was cached first under `key` and is still there.
    #[must_use]
    #[inline]
    pub fn find(&self, key: &Key) -> Option<u32> {
        self.keys.first(key)
    }

    /// Caches `block` under `key`: as its hash if it has none, as a further key otherwise. Nothing changes if it is
    /// cached so already. Returns whether the key is new to the index, as opposed to known by another block, or by this.
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
        self.recorded(
            |_| VllmOperation::InsertHash { key, block, num_tokens, depth, parent: parent.copied() },
            |pool| pool.insert_hash_behind_unrecorded(key, block, num_tokens, depth, parent),
        )
    }

    fn insert_hash_behind_unrecorded(
        &mut self,
        key: Key,
        block: u32,
        num_tokens: Option<u32>,
        depth: u32,
        parent: Option<&Key>,
    ) -> bool {
        let had_hash = self.keys.hash_of(block).is_some();
        let is_new = self.keys.give(key, block, num_tokens) == Some(0);
        if !had_hash {
            let before = parent.and_then(|parent| self.keys.first(parent));
            self.note_content(block, depth, before);
        }
        is_new
    }

    /// Caches full blocks of one table, from `start` on: each under the key that `key_of` has for its position
    /// in `blocks`, those without a key left out. A hash of fewer tokens gives way; its keys go to `removed`. If `stored`
    /// is given, it learns for each block whether its key is new to the index, or `None` for one that was left out.
    ///
    /// # Errors
    /// [`VllmError::AlreadyCached`] for a block that is cached for as many tokens; [`VllmError::UnknownBlock`].
    pub fn cache_full(
        &mut self,
        start: Start,
        blocks: &[u32],
        key_of: impl Fn(usize) -> Option<Key>,
        block_size: usize,
        removed: &mut Vec<Removed>,
        stored: Option<&mut Vec<Option<bool>>>,
    ) -> Result<(), VllmError> {
        self.recorded(
            |_| VllmOperation::CacheFull {
                first: start.first,
                before: start.before,
                blocks: blocks.to_vec(),
                keys: (0..blocks.len()).map(&key_of).collect(),
                block_size,
            },
            |pool| pool.cache_full_unrecorded(start, blocks, &key_of, block_size, removed, stored),
        )
    }

    fn cache_full_unrecorded(
        &mut self,
        start: Start,
        blocks: &[u32],
        key_of: impl Fn(usize) -> Option<Key>,
        block_size: usize,
        removed: &mut Vec<Removed>,
        mut stored: Option<&mut Vec<Option<bool>>>,
    ) -> Result<(), VllmError> {
        let tokens_of = |position: usize| ((start.first + position + 1) * block_size) as u32;
        for (position, &block) in blocks.iter().enumerate() {
            self.check(block)?;
            if let Some((_, cached)) = self.keys.hash_of(block)
                && cached.is_none_or(|cached| cached >= tokens_of(position))
                && key_of(position).is_some()
            {
                let cached = cached.unwrap_or(0);
                return Err(VllmError::AlreadyCached { block, cached, wanted: tokens_of(position) });
            }
        }
        let removals = &mut self.removals;
        self.keys.give_run(
            blocks,
            &key_of,
            tokens_of,
            |block, key, left| {
                *removals += 1;
                removed.push(Removed { block, key, last_copy: left == 0 });
            },
            |given| {
                if let Some(stored) = stored.as_deref_mut() {
                    stored.push(given.map(|copies| copies == Some(0)));
                }
            },
        );
        self.note_run(start, blocks, |position| key_of(position).is_some());
        Ok(())
    }

    /// Puts `block` under `key` in the index alone.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`].
    pub fn insert_in_index(&mut self, key: Key, block: u32) -> Result<(), VllmError> {
        self.recorded(
            |_| VllmOperation::InsertInIndex { key, block },
            |pool| pool.insert_in_index_unrecorded(key, block),
        )
    }

    fn insert_in_index_unrecorded(&mut self, key: Key, block: u32) -> Result<(), VllmError> {
        self.check(block)?;
        self.keys.insert(key, block);
        Ok(())
    }

    /// Takes `block` from `key` in the index alone. Returns whether it was there.
    pub fn remove_from_index(&mut self, key: &Key, block: u32) -> bool {
        self.recorded(
            |_| VllmOperation::RemoveFromIndex { key: *key, block },
            |pool| pool.remove_from_index_unrecorded(key, block),
        )
    }

    fn remove_from_index_unrecorded(&mut self, key: &Key, block: u32) -> bool {
        let removed = self.keys.remove(key, block).is_some();
        self.removals += u64::from(removed);
        removed
    }

    /// Empties the index alone.
    pub fn clear_index(&mut self) {
        self.recorded(|_| VllmOperation::ClearIndex, Self::clear_index_unrecorded);
    }

    fn clear_index_unrecorded(&mut self) {
        self.removals += 1;
        self.keys.clear_index();
    }

    /// Takes all keys away from `block`: its hash first, then the further ones.
    pub fn remove_hashes(&mut self, block: u32) -> Vec<Removed> {
        self.recorded(|_| VllmOperation::RemoveHashes { block }, |pool| pool.remove_hashes_unrecorded(block))
    }

    fn remove_hashes_unrecorded(&mut self, block: u32) -> Vec<Removed> {
        let mut removed = Vec::new();
        self.remove_hashes_into(&[block], Some(&mut removed));
        removed
    }

    fn remove_hashes_into(&mut self, blocks: &[u32], mut removed: Option<&mut Vec<Removed>>) {
        let removals = &mut self.removals;
        self.keys.take(blocks, |block, key, left| {
            *removals += 1;
            if let Some(removed) = removed.as_deref_mut() {
                removed.push(Removed { block, key, last_copy: left == 0 });
            }
        });
        self.note_gone(blocks);
    }

    /// Gives the keys of `from` to `to`, which must carry none. Lookups then find `to`.
    ///
    /// # Errors
    /// [`VllmError::AlreadyCached`] if `to` carries a hash; [`VllmError::UnknownBlock`].
    pub fn move_hashes(&mut self, from: u32, to: u32) -> Result<(), VllmError> {
        self.recorded(
            |_| VllmOperation::MoveHashes { from, to },
            |pool| pool.move_hashes_unrecorded(from, to),
        )
    }

    fn move_hashes_unrecorded(&mut self, from: u32, to: u32) -> Result<(), VllmError> {
        self.check(from)?;
        self.check(to)?;
        let num_tokens = self.keys.hash_of(from).and_then(|(_, num_tokens)| num_tokens);
        if let Some((_, cached)) = self.keys.hash_of(to) {
            let (cached, wanted) = (cached.unwrap_or(0), num_tokens.unwrap_or(0));
            return Err(VllmError::AlreadyCached { block: to, cached, wanted });
        }
        let depth = self.queue.depth_of(from).unwrap_or(0);
        for removed in self.remove_hashes(from) {
            self.insert_hash_behind(removed.key, to, num_tokens, depth, None);
        }
        Ok(())
    }

    /// Takes all keys away from `block`, in use or not. With `reuse_first`, or another policy than `lru`, a free one is also
    /// the next to be handed out, for nothing can hit it any more; vLLM's own pool leaves it among the cached ones, which
    /// it outlives.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`].
    pub fn evict(&mut self, block: u32, reuse_first: bool) -> Result<Vec<Removed>, VllmError> {
        self.recorded(
            |_| VllmOperation::Evict { block, reuse_first },
            |pool| pool.evict_unrecorded(block, reuse_first),
        )
    }

    fn evict_unrecorded(&mut self, block: u32, reuse_first: bool) -> Result<Vec<Removed>, VllmError> {
        self.check(block)?;
        let removed = self.remove_hashes(block);
        if reuse_first
            && !removed.is_empty()
            && self.ref_counts[block as usize] == 0
            && self.queue.remove(block)
        {
            self.queue.push_front_n(&[block]);
        }
        Ok(removed)
    }

    /// Forgets everything that is cached, if no block but the null block is in use. With `lru` the order of the queue stays.
    pub fn reset(&mut self) -> bool {
        if self.num_free() < self.queue.len() {
            return false;
        }
        self.recorded(|_| VllmOperation::Reset, Self::reset_unrecorded)
    }

    fn reset_unrecorded(&mut self) -> bool {
        if self.queue.len() + 1 != self.num_blocks() {
            return false;
        }
        self.removals += 1;
        self.keys.clear();
        self.queue.forget_all();
        true
    }

    /// How many of these blocks are free, that is, would leave the queue when touched.
    #[must_use]
    pub fn num_evictable(&self, blocks: &[u32]) -> usize {
        blocks.iter().filter(|&&block| block != 0 && self.ref_count(block) == 0).count()
    }
}
