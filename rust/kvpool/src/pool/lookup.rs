//! Implements the prefix-cache operations of [`BlockPool`]: lookups, registration, and marking blocks
//! as computed.

use super::BlockPool;
use super::observe::Lookup;
use crate::allocator::Allocator;
use crate::block::{BlockId, NULL_BLOCK};
use crate::error::PoolError;
use crate::evictor::Content;
use crate::free_list::check_id;
use crate::hash::{BlockHash, HashChain, HashCursor, Verify};
use crate::prefix_index::{Inserted, Matching};
use crate::record::{ByBlock, Name};
use crate::retention::TenantId;

const RUN: usize = 64;

/// The result of a lookup that acquires no blocks. It contains counts and no ids, because the blocks
/// may be evicted or acquired before the caller could use the ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// Number of leading blocks of the chain that a lookup would return.
    pub cached_blocks: usize,
    /// Number of `cached_blocks` that have no references. Acquiring them reduces the number of
    /// available blocks by the same number.
    pub idle_blocks: usize,
    /// Number of blocks after the cached blocks that are registered, but not yet computed.
    pub pending_blocks: usize,
}

/// The result of [`BlockPool::register`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Number of blocks that the call registered, counted from its first block.
    pub blocks: usize,
    /// Whether a hash collision stopped the call. The remaining blocks were not registered.
    pub collided: bool,
}

/// A match whose blocks are not yet acquired. It is valid only until the next change of the pool.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixMatch {
    /// The cached and computed blocks that the lookup found, in order.
    pub blocks: Vec<BlockId>,
    /// Number of blocks that were looked up.
    pub asked: usize,
    /// Whether a hash collision ended the match.
    pub collided: bool,
    /// The tenant that the observer is notified of. The caller of the lookup sets it.
    pub tenant: Option<TenantId>,
}

/// # Lookups
///
/// A lookup finds the cached prefix of a [`HashChain`].
impl BlockPool {
    pub(crate) fn check_chain(&self, chain: &HashChain) -> Result<(), PoolError> {
        if chain.epoch() != self.epoch {
            return Err(PoolError::StaleEpoch { chain: chain.epoch(), pool: self.epoch });
        }
        self.index.check_chain(chain)
    }

    /// Finds the cached blocks of `chain` from position `start` on, at most `max_blocks`. Stops at the
    /// first block that is not cached and computed. Changes nothing.
    pub(crate) fn find_prefix(
        &self,
        chain: &HashChain,
        start: usize,
        max_blocks: usize,
    ) -> Result<PrefixMatch, PoolError> {
        self.check_poison()?;
        self.check_chain(chain)?;
        let asked = chain.len().saturating_sub(start).min(max_blocks);
        let mut found = PrefixMatch { asked, ..PrefixMatch::default() };
        let PrefixMatch { blocks, collided, .. } = &mut found;
        blocks.reserve(asked.min(self.index.num_registered()));
        let records = &self.records[..];
        *collided = self.index.find_chain(records, chain, start, asked, blocks);
        if !self.allocator.has_room_for(1)
            && let Some(full) = blocks.iter().position(|block| records.at(block.get()).references == u32::MAX)
        {
            // This block's reference count has the largest possible value, so the match ends before the
            // block.
            blocks.truncate(full);
            *collided = false;
        }
        Ok(found)
    }

    /// Returns the number of `blocks` that have no references. If they are acquired, the number of
    /// available blocks falls by this number.
    pub(crate) fn num_idle(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().filter(|block| self.records.at(block.get()).references == 0).count()
    }

    /// Acquires a match. The pool must not have changed since the match was made. `hashes` are the
    /// hashes of its chain. The call can only fail because of a broken invariant.
    pub(crate) fn acquire_found(
        &mut self,
        found: &PrefixMatch,
        hashes: &[BlockHash],
    ) -> Result<(), PoolError> {
        self.acquire_blocks(&found.blocks)?;
        self.counters.hits += found.blocks.len() as u64;
        self.counters.misses += (found.asked - found.blocks.len()) as u64;
        self.counters.collisions += u64::from(found.collided);
        self.notify_changed(&found.blocks);
        let hashes = hashes.get(..found.asked).unwrap_or(&[]);
        let PrefixMatch { tenant, ref blocks, .. } = *found;
        self.notify_looked_up(&Lookup { hashes, depth: 0, parent: None, hits: blocks.len(), blocks, tenant });
        Ok(())
    }

    /// Adds one reference to each of these blocks, which may be in any state. The caller has checked
    /// that no reference count overflows.
    #[inline]
    pub(super) fn acquire_blocks(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        let mut at = 0;
        while at < blocks.len() {
            let Self { records, order, allocator, .. } = self;
            // Most blocks have no references. They are taken in runs of consecutive blocks; all other
            // blocks are handled one by one.
            let idle = order.hit_run(records, &blocks[at..], Allocator::hold);
            allocator.note_held(idle);
            at += idle;
            let Some(&block) = blocks.get(at) else { break };
            let record = self.records.at(block.get());
            if record.is_free() && !record.is_registered() {
                self.acquire_free(block)?;
                at += 1;
                continue;
            }
            if record.references == 0 {
                let reason =
                    format!("B2: block {block} is cached, has no references, and is not in the order");
                return Err(self.broken(reason));
            }
            if record.is_fenced() {
                self.fences.unfence();
            }
            let pinned_alone = record.is_released();
            self.allocator.count(&mut self.records, block);
            if pinned_alone {
                self.take_back(block);
            } else if self.history {
                self.note_shared_hit(block);
            }
            at += 1;
        }
        Ok(())
    }

    /// Finds the longest cached prefix of `chain`, at most `max_blocks` blocks, and acquires it: the
    /// caller gets one reference per block. Only computed blocks match. The lookup stops at the first
    /// block that does not match. O(blocks matched).
    ///
    /// # Errors
    /// [`PoolError::StaleEpoch`], [`PoolError::BlockSizeMismatch`], [`PoolError::UnverifiedAlgorithm`],
    /// [`PoolError::MissingVerification`]: the chain was not made for this pool.
    pub fn match_and_acquire(
        &mut self,
        chain: &HashChain,
        max_blocks: usize,
    ) -> Result<Vec<BlockId>, PoolError> {
        self.look_up(chain, max_blocks, None)
    }

    /// Like [`Self::match_and_acquire`], but names a tenant, so that an observer can count lookups by
    /// tenant. The tenant has no other effect.
    ///
    /// # Errors
    /// As [`Self::match_and_acquire`].
    pub fn match_and_acquire_for(
        &mut self,
        chain: &HashChain,
        max_blocks: usize,
        tenant: TenantId,
    ) -> Result<Vec<BlockId>, PoolError> {
        self.look_up(chain, max_blocks, Some(tenant))
    }

    fn look_up(
        &mut self,
        chain: &HashChain,
        max_blocks: usize,
        tenant: Option<TenantId>,
    ) -> Result<Vec<BlockId>, PoolError> {
        let found = PrefixMatch { tenant, ..self.find_prefix(chain, 0, max_blocks)? };
        self.acquire_found(&found, chain.hashes())?;
        Ok(found.blocks)
    }

    /// Returns the number of blocks that [`Self::match_and_acquire`] would find now. Changes no state
    /// and no counter. O(blocks matched).
    ///
    /// # Errors
    /// As [`Self::match_and_acquire`].
    pub fn probe(&self, chain: &HashChain, max_blocks: usize) -> Result<Probe, PoolError> {
        let found = self.find_prefix(chain, 0, max_blocks)?;
        let cached_blocks = found.blocks.len();
        let pending =
            (cached_blocks..found.asked).take_while(|&at| self.index.is_registered(&self.records, chain, at));
        let idle_blocks = self.num_idle(&found.blocks);
        Ok(Probe { cached_blocks, idle_blocks, pending_blocks: pending.count() })
    }

    /// Returns whether a block is registered under the hash of a chain's block at `position`, computed
    /// or not. O(1).
    #[must_use]
    pub fn is_indexed(&self, chain: &HashChain, position: usize) -> bool {
        self.index.is_registered(&self.records, chain, position)
    }
}

/// # Hashing
///
/// A pool that keeps tokens ([`PoolConfig::keep_tokens`](super::PoolConfig::keep_tokens)) knows the
/// hashes of its registered blocks, so that a prompt whose beginning is cached is hashed only after
/// that beginning.
impl BlockPool {
    /// Appends tokens like [`HashCursor::append`], and returns the number of blocks that they completed.
    /// Copies the hashes of blocks that are registered instead of computing them. The cursor is
    /// afterwards equal to one that has hashed all tokens. If the pool keeps no tokens, all blocks are
    /// hashed.
    ///
    /// Costs: one block is always hashed. A registered block costs a comparison and a copy of its tokens,
    /// and any other block as much as in [`HashCursor::append`].
    pub fn append_known(&self, cursor: &mut HashCursor, tokens: &[u32]) -> usize {
        let before = cursor.chain().len();
        let known = self.append_registered(cursor, tokens, usize::MAX);
        cursor.append(&tokens[known..]);
        cursor.chain().len() - before
    }

    /// The part of [`Self::append_known`] that reads the pool. Appends the leading tokens whose blocks
    /// are registered, and at most one block more per branch. Stops after `most_blocks` blocks, so
    /// that a caller can release a lock in between. Returns the number of appended tokens. If these
    /// fill fewer than `most_blocks` blocks, the others are best hashed without the pool.
    pub fn append_registered(&self, cursor: &mut HashCursor, tokens: &[u32], most_blocks: usize) -> usize {
        let hasher = cursor.hasher();
        let same_kind = hasher.block_size() == self.block_size()
            && hasher.has_fingerprints() == (self.verify() >= Verify::Fingerprint)
            && self.index.algorithm() == Some(hasher.algorithm());
        let known = Matching::new(&self.index, &self.records).filter(|_| same_kind);
        known.map_or(0, |mut known| cursor.append_known(tokens, &mut known, most_blocks))
    }
}

/// # Registration
///
/// A registered block is immutable. Lookups find it once it is marked as computed.
impl BlockPool {
    /// Registers held blocks as the blocks of `chain` from position `start` on. The engine must not
    /// change registered blocks. Lookups find them after [`Self::mark_computed`]. The call stops at a
    /// hash collision, which is counted. The blocks from there on can still be used, but are not
    /// cached. O(blocks), without memory allocations.
    ///
    /// # Errors
    /// [`PoolError::AlreadyRegistered`], [`PoolError::NotHeld`], [`PoolError::ChainTooShort`],
    /// [`PoolError::TooDeep`] after the first 2^28 blocks of a chain, unknown ids, and the errors of
    /// [`Self::match_and_acquire`] about chains.
    pub fn register(
        &mut self,
        blocks: &[BlockId],
        chain: &HashChain,
        start: usize,
    ) -> Result<Registered, PoolError> {
        let known = start.checked_sub(1).filter(|_| self.index.keeps_tokens());
        let before = known.and_then(|at| chain.hashes().get(at)).map(Name::from);
        let before = before.and_then(|name| self.index.head_of_name(&self.records, name));
        self.register_after(before, blocks, chain, start)
    }

    /// Like [`Self::register`]. `before` is the block with the content before `start`, or `None` if it
    /// is unknown. It is only used as a guess when a prompt is matched by its tokens.
    pub(crate) fn register_after(
        &mut self,
        before: Option<BlockId>,
        blocks: &[BlockId],
        chain: &HashChain,
        start: usize,
    ) -> Result<Registered, PoolError> {
        self.check_part(blocks.len(), chain, start)?;
        let records = &self.records[..];
        for (position, &block) in blocks.iter().enumerate() {
            if records.at(block.get()).references == 0 {
                check_id(block, self.num_blocks(), "registered")?;
                return Err(PoolError::NotHeld { block, held: 0, operation: "register it", position });
            }
        }
        let hashes = chain.hashes().get(start..start + blocks.len()).unwrap_or(&[]);
        let mut registered = 0;
        let mut before = before;
        let Self { index, records, .. } = self;
        let refused = loop {
            let done = registered;
            registered += index.insert_run(records, chain, start + done, &blocks[done..], &hashes[done..]);
            index.note_known(&blocks[done..registered], chain, start + done, before);
            before = registered.checked_sub(1).map(|last| blocks[last]).or(before);
            let Some(&block) = blocks.get(registered) else { break None };
            if records.at(block.get()).is_registered() {
                break Some(block);
            }
            let Some(link) = chain.link(start + registered) else { break None };
            if index.insert(records, block, &link) == Inserted::Collision {
                break None;
            }
            index.note_known(&[block], chain, start + registered, before);
            before = Some(block);
            registered += 1;
        };
        // A block was registered before, or appears twice in this call. Undoes the registrations of
        // this call.
        if let Some(block) = refused {
            for undo in blocks[..registered].iter().rev() {
                self.index.remove(&mut self.records, *undo);
            }
            return Err(PoolError::AlreadyRegistered { block });
        }
        self.counters.collisions += u64::from(registered < blocks.len());
        self.notify_changed(&blocks[..registered]);
        if self.history {
            self.note_all_registered(&blocks[..registered], chain, start);
        }
        self.notify_registered(&blocks[..registered], Some((chain, start)));
        Ok(Registered { blocks: registered, collided: registered < blocks.len() })
    }

    /// Notifies the evictor of the contents of newly registered blocks. LRU does not need these
    /// notifications, so a separate function makes them, which costs LRU nothing.
    #[inline(never)]
    fn note_all_registered(&mut self, blocks: &[BlockId], chain: &HashChain, start: usize) {
        let behind = chain.hashes().split_at_checked(start);
        let (Some((before, hashes)), Some(&first)) = (behind, blocks.first()) else { return };
        let group = self.records.at(first.get()).group; // all blocks of a chain have the same group
        let mut parent = self.head_of(before.last(), group);
        let mut run = [(NULL_BLOCK, Content::default()); RUN];
        let mut depth = start as u32; // below 2^28
        for (blocks, hashes) in blocks.chunks(RUN).zip(hashes.chunks(RUN)) {
            for (place, (&block, hash)) in run.iter_mut().zip(blocks.iter().zip(hashes)) {
                *place = (block, Content { key: Name { hash, group }.key(), depth });
                depth += 1;
            }
            self.order.registered_run(&run[..blocks.len()], parent);
            parent = blocks.last().copied();
        }
    }

    /// Sets the computed bit of registered blocks: the engine has written their KV, and lookups may
    /// return them. A block that is already computed remains computed. O(blocks), without memory
    /// allocations.
    ///
    /// # Errors
    /// [`PoolError::NotRegistered`], unknown ids.
    pub fn mark_computed(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        self.check_poison()?;
        let records = &self.records[..];
        for &block in blocks {
            if !records.at(block.get()).is_registered() {
                check_id(block, self.num_blocks(), "marked computed")?;
                return Err(PoolError::NotRegistered { block });
            }
        }
        if self.is_watched() {
            blocks.iter().for_each(|&block| self.mark_computed_watched(block));
        } else {
            let Self { index, records, .. } = self;
            for &block in blocks {
                index.mark_computed(records, block);
            }
        }
        self.notify_changed(blocks);
        Ok(())
    }
}
