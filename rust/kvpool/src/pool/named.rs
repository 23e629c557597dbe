//! Implements operations for engines that name contents themselves, such as vLLM. Such engines compute
//! their own hashes, have several groups, acquire blocks by id, and decide in which order blocks are
//! reused.
//!
//! These operations use the same data as all other operations of the pool. They differ in the following
//! ways:
//!
//! - A content has a [`Name`]: a digest from the caller, and a group. Two names are equal only if both
//!   parts are equal, so one digest in two groups names two contents. Registering a block also marks it
//!   computed. If several blocks have the same name, a lookup finds the oldest.
//! - A block can be *hidden*: it is registered without a name that a lookup can find. A hidden block
//!   keeps its position in the order of eviction, and is allocated when it is the next in this order.
//!   vLLM's queue does the same with a block whose hash was removed.
//! - Released blocks are evicted in the order of the call, not by their positions in their chains.
//!
//! Every operation is all-or-nothing, and all invariants of the pool hold after it. Pools that verify
//! hits refuse names, because a name has no tokens or fingerprint to compare. Journals do not record
//! these operations. Callers that need a journal have to write their own.
//!
//! Costs: like the operations that they replace, O(1) per block.

use super::BlockPool;
use super::observe::{ClearCause, ContentView, RemovalCause};
use crate::block::BlockId;
use crate::error::PoolError;
use crate::free_list::check_id;
use crate::hash::{BlockHash, HashAlgorithm, Verify};
use crate::prefix_index::{Index, Visibility};
use crate::record::{ByBlock, HIDDEN, MAX_POSITIONS, Name};

/// # Blocks and contents that the caller names
///
/// For engines that compute their own hashes, such as vLLM. A content has a [`Name`], which consists of
/// a digest from the caller and a group. Registering a block also marks it computed. Pools that verify
/// hits refuse names.
///
/// ```
/// use kvpool::hash::BlockHash;
/// use kvpool::{BlockId, BlockPool, Name, PoolConfig};
/// let mut pool = BlockPool::new(PoolConfig { num_blocks: 6, ..PoolConfig::default() })?;
/// let blocks = pool.allocate(3)?;
/// let hash = BlockHash::from_bytes([7; 32]);
/// pool.register_named(&blocks[..1], &[hash], 2, |_, is_new| assert!(is_new))?;
/// pool.release_in_order(&[blocks[2], blocks[1], blocks[0]])?;
/// // Blocks without content are allocated first, in the order of the release.
/// assert_eq!(pool.free_order()[..2], [blocks[2], blocks[1]]);
/// assert_eq!(pool.find_named(Name { hash: &hash, group: 2 }), Some(blocks[0]));
/// assert_eq!(pool.find_named(Name { hash: &hash, group: 0 }), None);
/// pool.acquire_by_id(&[blocks[0], BlockId::new(4)])?; // a cached one and a free one
/// # Ok::<(), kvpool::PoolError>(())
/// ```
impl BlockPool {
    /// Returns the oldest block that is registered under `name`. The caller gets no reference to it.
    /// O(1).
    #[must_use]
    #[inline]
    pub fn find_named(&self, name: Name<'_>) -> Option<BlockId> {
        let found = self.index.head_of_name(&self.records, name)?;
        (name.group != HIDDEN && self.records.at(found.get()).is_computed()).then_some(found)
    }

    /// Appends to `out` the blocks of consecutive contents of one group. Stops at the first content
    /// that is not cached. The caller gets no references to the blocks. O(blocks found).
    #[inline]
    pub fn find_named_run(&self, hashes: &[BlockHash], group: u16, out: &mut Vec<BlockId>) {
        if group != HIDDEN {
            self.index.find_run(&self.records, hashes, group, |_, _| true, out);
        }
    }

    /// Returns all blocks that are registered under `name`, the oldest first. O(blocks returned).
    #[must_use]
    pub fn copies_named(&self, name: Name<'_>) -> Vec<BlockId> {
        if name.group == HIDDEN { Vec::new() } else { self.index.copies(&self.records, name) }
    }

    /// Returns the name under which a lookup can find the content of `block`. `None` if the block has
    /// no content, or a hidden one.
    #[must_use]
    #[inline]
    pub fn name_of(&self, block: BlockId) -> Option<Name<'_>> {
        let record = self.records.at(block.get());
        (record.is_registered() && record.group != HIDDEN).then(|| record.name())
    }

    /// Returns whether `block` is registered without a name that a lookup can find.
    #[must_use]
    #[inline]
    pub fn is_hidden(&self, block: BlockId) -> bool {
        self.records.at(block.get()).is_hidden()
    }

    /// Returns the position of the content of `block` in its hash chain.
    #[must_use]
    pub fn depth_of(&self, block: BlockId) -> Option<u32> {
        Index::depth_of(&self.records, block)
    }

    /// Returns whether the eviction policy orders blocks by their contents and uses. LRU does not.
    #[must_use]
    #[inline]
    pub const fn keeps_history(&self) -> bool {
        self.history
    }

    /// Registers held blocks and marks them computed. Each counts as the first block of its chain
    /// (depth 0, no parent). Calls `report` for each block, with its position in `blocks` and whether
    /// its name is new. O(blocks).
    ///
    /// # Errors
    /// [`PoolError::AlreadyRegistered`], [`PoolError::NotHeld`], unknown ids;
    /// [`PoolError::MissingVerification`] in a pool that verifies hits; [`PoolError::InvalidConfig`]
    /// for a group above [`Name::MAX_GROUP`], or if there are not as many hashes as blocks.
    pub fn register_named(
        &mut self,
        blocks: &[BlockId],
        hashes: &[BlockHash],
        group: u16,
        report: impl FnMut(usize, bool),
    ) -> Result<(), PoolError> {
        self.register_at(blocks, hashes, group, |_| 0, report)
    }

    /// Like [`Self::register_named`], for consecutive blocks of a chain. `depth` is the position of the
    /// first block in the chain. If blocks of a chain are released together, the last block is evicted
    /// first. O(blocks).
    ///
    /// # Errors
    /// As [`Self::register_named`].
    pub fn register_stretch(
        &mut self,
        blocks: &[BlockId],
        hashes: &[BlockHash],
        group: u16,
        depth: u32,
    ) -> Result<(), PoolError> {
        let depth_of = |at: usize| depth.saturating_add(at as u32).min(MAX_POSITIONS as u32 - 1);
        self.register_at(blocks, hashes, group, depth_of, |_, _| {})
    }

    #[inline]
    fn register_at(
        &mut self,
        blocks: &[BlockId],
        hashes: &[BlockHash],
        group: u16,
        depth: impl Fn(usize) -> u32,
        mut report: impl FnMut(usize, bool),
    ) -> Result<(), PoolError> {
        self.check_group(group)?;
        if hashes.len() != blocks.len() {
            return Err(PoolError::config(
                "hashes",
                hashes.len(),
                format!("as many as blocks, {}", blocks.len()),
            ));
        }
        self.check_registrable(blocks)?;
        let Self { index, records, .. } = self;
        let (mut done, mut copies) = (0, Vec::new());
        let refused = loop {
            done += index
                .insert_named_run(records, &blocks[done..], &hashes[done..], group, |at| depth(done + at));
            let (Some(&block), Some(&hash)) = (blocks.get(done), hashes.get(done)) else { break None };
            if records.at(block.get()).is_registered() {
                break Some(block);
            }
            index.insert_named(records, block, &Index::link(hash, depth(done), None), group);
            copies.push(done);
            done += 1;
        };
        // A block appears twice in this call. Undoes the registrations of this call.
        if let Some(block) = refused {
            for undo in blocks[..done].iter().rev() {
                self.index.remove(&mut self.records, *undo);
            }
            return Err(PoolError::AlreadyRegistered { block });
        }
        self.notify_changed(blocks);
        self.notify_registered(blocks, None);
        let needs_contents = self.is_watched() || self.history;
        let mut copies = copies.into_iter().peekable();
        for (position, &block) in blocks.iter().enumerate() {
            let is_new = copies.next_if_eq(&position).is_none();
            if needs_contents {
                self.notify_computed(block, is_new);
                self.note_registered(block, &Index::link(hashes[position], depth(position), None), None);
            }
            report(position, is_new);
        }
        Ok(())
    }

    /// Registers one held block at position `depth` of its chain, and marks it computed. `parent` is
    /// the block with the previous content of the chain. It is ignored if it is not registered, or if
    /// `depth` is
    /// 0. Returns whether the name is new. O(1).
    ///
    /// # Errors
    /// As [`Self::register_named`].
    pub fn register_behind(
        &mut self,
        block: BlockId,
        name: Name<'_>,
        depth: u32,
        parent: Option<BlockId>,
    ) -> Result<bool, PoolError> {
        self.check_group(name.group)?;
        self.register_one(block, name, depth, parent)
    }

    /// Like [`Self::register_behind`], but registers a hidden content, which no lookup can find. Other
    /// blocks may be registered with the same hash.
    ///
    /// # Errors
    /// As [`Self::register_named`].
    pub fn register_hidden(
        &mut self,
        block: BlockId,
        hash: &BlockHash,
        depth: u32,
        parent: Option<BlockId>,
    ) -> Result<(), PoolError> {
        self.check_group(0)?;
        self.register_one(block, Name { hash, group: HIDDEN }, depth, parent).map(|_| ())
    }

    fn register_one(
        &mut self,
        block: BlockId,
        name: Name<'_>,
        depth: u32,
        parent: Option<BlockId>,
    ) -> Result<bool, PoolError> {
        let parent = parent.filter(|&parent| depth > 0 && self.is_registered(parent));
        self.register_behind_hash(block, name, depth, parent.and_then(|parent| self.hash_of(parent)), parent)
    }

    /// Registers one held block. `before` is the hash of the previous content in its chain. It is
    /// possible that no block has that content. For eviction, the parent of the block is `parent`, if
    /// that block has the content `before`, or else any other block that has it.
    pub(crate) fn register_behind_hash(
        &mut self,
        block: BlockId,
        name: Name<'_>,
        depth: u32,
        before: Option<BlockHash>,
        parent: Option<BlockId>,
    ) -> Result<bool, PoolError> {
        self.check_registrable(&[block])?;
        let depth = depth.min(MAX_POSITIONS as u32 - 1);
        let link = Index::link(*name.hash, depth, before.filter(|_| depth > 0));
        let is_new = self.index.insert_named(&mut self.records, block, &link, name.group);
        self.notify_changed(&[block]);
        self.notify_registered(&[block], None);
        self.notify_computed(block, is_new && name.group != HIDDEN);
        self.note_registered(block, &link, parent);
        Ok(is_new)
    }

    /// Hides the content of `block`, which is held or cached-free, so that no lookup finds it. The
    /// block keeps its position in the order of eviction and its history. Returns whether it was the
    /// last block with its name. O(1).
    ///
    /// # Errors
    /// [`PoolError::NotRegistered`]; unknown ids.
    pub fn hide(&mut self, block: BlockId) -> Result<bool, PoolError> {
        self.check_group(0)?;
        check_id(block, self.num_blocks(), "hidden")?;
        let record = *self.records.at(block.get());
        if !record.is_registered() {
            return Err(PoolError::NotRegistered { block });
        }
        if record.is_hidden() {
            return Ok(false);
        }
        let (content, algorithm) = (self.blocks().get(block).content, self.index.algorithm());
        let last = self.index.hide(&mut self.records, block) == Visibility::Vanished;
        self.notify_exchanged(block, content, algorithm, last);
        self.notify_changed(&[block]);
        Ok(last)
    }

    /// Notifies the observer that the content of a computed block was `before` and is now another.
    /// `last` is true if no other computed block has the content `before`.
    fn notify_exchanged(
        &mut self,
        block: BlockId,
        before: Option<ContentView>,
        algorithm: Option<HashAlgorithm>,
        last: bool,
    ) {
        self.notify_removed(block, before, algorithm, last, RemovalCause::Dropped);
        self.notify_registered(&[block], None);
        self.notify_computed(block, false);
    }

    /// Adds one reference per id. A block may be held, cached-free or free. For the eviction policy,
    /// the call is a use of the content of each cached-free block. O(n).
    ///
    /// # Errors
    /// [`PoolError::RefCountOverflow`], unknown ids.
    pub fn acquire_by_id(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        self.check_poison()?;
        self.check_countable(blocks)?;
        self.acquire_blocks(blocks)?;
        self.notify_changed(blocks);
        Ok(())
    }

    /// Returns an error if a block is not in the pool, or if its reference count would overflow.
    #[inline]
    pub(super) fn check_countable(&self, blocks: &[BlockId]) -> Result<(), PoolError> {
        // This loop only checks the ids. The records are read later, when they are changed.
        let usable = self.num_usable() as u32;
        let are_ours = blocks.iter().fold(true, |ours, block| ours & (block.get().wrapping_sub(1) < usable));
        if are_ours && self.allocator.has_room_for(blocks.len()) { Ok(()) } else { self.check_each(blocks) }
    }

    #[cold]
    fn check_each(&self, blocks: &[BlockId]) -> Result<(), PoolError> {
        let most = u32::MAX.saturating_sub(u32::try_from(blocks.len()).unwrap_or(u32::MAX));
        for &block in blocks {
            match self.records.of(block) {
                Some(record) if record.references <= most && !block.is_null() => {}
                record => {
                    check_id(block, self.num_blocks(), "acquired")?;
                    let held = record.map_or(0, |record| record.references);
                    return Err(PoolError::RefCountOverflow { block, held });
                }
            }
        }
        Ok(())
    }

    /// Records one use of the content of a held block for the eviction policy, as another acquisition
    /// would. Returns false, and changes nothing, if the block is not held or has no content. O(1).
    ///
    /// # Errors
    /// Only if the pool is poisoned.
    pub fn count_use(&mut self, block: BlockId) -> Result<bool, PoolError> {
        self.check_poison()?;
        let record = self.records.at(block.get());
        let holds = record.references > 0 && record.is_registered();
        if holds {
            self.note_shared_hit(block);
        }
        Ok(holds)
    }

    #[cold]
    pub(super) fn acquire_free(&mut self, block: BlockId) -> Result<(), PoolError> {
        let held = self.allocator.hold_free(&mut self.records, block);
        self.poison_if_broken(held)
    }

    /// Drops one reference per id. Registered and computed blocks without further references become
    /// cached-free; among blocks of equal depth, they are evicted in the order of the call. Other
    /// blocks without further references become free, and are allocated in the order of the call,
    /// before all blocks that were already free. O(n).
    ///
    /// # Errors
    /// As [`Self::release`].
    pub fn release_in_order(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        let plain = self.has_plain_releases();
        self.drop_references(&blocks.iter(), plain)?;
        // The free list allocates the block that was freed last first, so the blocks are freed in
        // reverse.
        if plain {
            self.idle.reverse();
        } else {
            let mut idle = std::mem::take(&mut self.idle);
            let (kept, freed): (Vec<_>, Vec<_>) =
                idle.drain(..).partition(|block| self.records.at(block.get()).is_computed());
            idle.extend(kept.into_iter().chain(freed.into_iter().rev()));
            self.idle = idle;
        }
        self.settle_idle(false, false)?;
        self.notify_changed(blocks);
        Ok(())
    }

    /// Like [`Self::release_in_order`], but blocks without a content are also added to the eviction
    /// order, as hidden blocks that no lookup finds. Returns the number of hidden blocks.
    ///
    /// # Errors
    /// As [`Self::release`]; as [`Self::register_named`] in a pool that verifies hits.
    pub fn release_to_back(&mut self, blocks: &[BlockId]) -> Result<usize, PoolError> {
        self.check_group(0)?;
        self.drop_references(&blocks.iter(), false)?;
        let mut hidden = 0;
        for at in 0..self.idle.len() {
            let block = self.idle[at];
            let record = self.records.at(block.get());
            if record.references > 0 || record.is_computed() {
                continue;
            }
            if record.is_registered() {
                self.unregister(block, RemovalCause::Dropped);
            }
            let link = Index::link(Self::hash_of_nothing(block), 0, None);
            self.index.insert_named(&mut self.records, block, &link, HIDDEN);
            // The policy is not notified of this registration. It treats a block that it does not know
            // as a new content.
            self.notify_registered(&[block], None);
            self.notify_computed(block, false);
            hidden += 1;
        }
        self.settle_idle(false, false)?;
        self.notify_changed(blocks);
        Ok(hidden)
    }

    /// Returns the hash under which a block without content is registered as hidden. It consists of the
    /// block's id.
    fn hash_of_nothing(block: BlockId) -> BlockHash {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&block.get().to_le_bytes());
        BlockHash::from_bytes(bytes)
    }

    /// Like [`Self::allocate_into`], but calls `gone` for every evicted block. The arguments are the
    /// block, the name of its content (if a lookup could find it), and whether no other block has this
    /// name.
    ///
    /// # Errors
    /// As [`Self::allocate_into`].
    #[inline]
    pub fn allocate_named(
        &mut self,
        n: usize,
        out: &mut Vec<BlockId>,
        mut gone: impl FnMut(BlockId, Option<Name<'_>>, bool),
    ) -> Result<(), PoolError> {
        let mut report = |block, name: Name<'_>, visibility| {
            let name = Some(name).filter(|name| name.group != HIDDEN);
            gone(block, name, visibility == Visibility::Vanished);
        };
        self.allocate_with(n, out, |pool, more, out| pool.evict_into(more, out, &mut report))
    }

    /// Returns the next `n` blocks that an allocation would take, or all available blocks if there are
    /// fewer. O(n) with LRU. With other policies, O(cached blocks) if fewer than `n` blocks are free.
    #[must_use]
    pub fn peek(&self, n: usize) -> Vec<BlockId> {
        let mut next: Vec<_> = self.allocator.free_list().iter(&self.records[..]).take(n).collect();
        if next.len() < n {
            let more = n - next.len() + self.pinned_in_order;
            let cached = self.order.first(&self.records, more).into_iter();
            next.extend(cached.filter(|block| self.records.at(block.get()).references == 0));
            next.truncate(n);
        }
        next
    }

    /// Like [`Self::allocate_into`], but the blocks keep their contents. The eviction policy forgets
    /// these blocks. When they are registered or released again, it treats them as new blocks at the
    /// start of a chain. O(n).
    ///
    /// # Errors
    /// As [`Self::allocate_into`].
    pub fn allocate_as_they_are(&mut self, n: usize, out: &mut Vec<BlockId>) -> Result<(), PoolError> {
        self.allocate_with(n, out, |pool, more, out| {
            for _ in 0..more {
                let victim = pool.evict_one()?;
                let (content, algorithm) = (pool.blocks().get(victim).content, pool.index.algorithm());
                Index::forget_depth(&mut pool.records, victim);
                pool.notify_exchanged(victim, content, algorithm, false);
                pool.allocator.hold_parked(&mut pool.records, victim);
                out.push(victim);
            }
            Ok(())
        })
    }

    /// Removes all cached content. Cached-free blocks become free. They are allocated after all blocks
    /// that were already free, in the order in which they would have been evicted. O(usable blocks).
    ///
    /// # Errors
    /// As [`Self::reset`].
    pub fn reset_in_order(&mut self) -> Result<usize, PoolError> {
        self.check_poison()?;
        self.check_idle()?;
        self.forget(ClearCause::Reset, true)
    }

    /// Adds a block to the end of the free list. The block must not be on a list.
    pub(super) fn free_behind(&mut self, block: BlockId) -> Result<(), PoolError> {
        let freed = self.allocator.free_behind(&mut self.records, block);
        self.poison_if_broken(freed)
    }

    /// Returns an error if the group number is too high, or if the pool verifies hits and therefore
    /// refuses names.
    pub(super) fn check_group(&self, group: u16) -> Result<(), PoolError> {
        self.check_poison()?;
        if group > Name::MAX_GROUP {
            return Err(PoolError::config("group", group, format!("at most {}", Name::MAX_GROUP)));
        }
        match self.verify() {
            Verify::None => Ok(()),
            Verify::Fingerprint => Err(PoolError::MissingVerification { verify: "fingerprints" }),
            _ => Err(PoolError::MissingVerification { verify: "tokens" }),
        }
    }

    fn check_registrable(&self, blocks: &[BlockId]) -> Result<(), PoolError> {
        for (position, &block) in blocks.iter().enumerate() {
            let record = self.records.at(block.get());
            if record.references == 0 {
                check_id(block, self.num_blocks(), "registered")?;
                return Err(PoolError::NotHeld { block, held: 0, operation: "register it", position });
            }
            if record.is_registered() {
                return Err(PoolError::AlreadyRegistered { block });
            }
        }
        Ok(())
    }
}
