//! Lookups, registration and the computed bit: the prefix-cache half of [`BlockPool`].

use super::BlockPool;
use super::observe::Lookup;
use crate::allocator::Allocator;
use crate::block::{BlockId, NULL_BLOCK};
use crate::error::PoolError;
use crate::evictor::Content;
use crate::free_list::check_id;
use crate::hash::{BlockHash, HashChain, Verify};
use crate::prefix_index::Inserted;
use crate::record::{ByBlock, Name};
use crate::retention::TenantId;

/// Blocks that an evictor is told of at once.
const RUN: usize = 64;

/// The answer to "what would a lookup find?". Counts, not ids: another request may take the blocks meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// Blocks from the start of the chain that a lookup would return.
    pub cached_blocks: usize,
    /// Of those, blocks that nobody holds: acquiring them leaves that many fewer to allocate.
    pub idle_blocks: usize,
    /// Blocks behind the cached ones that are registered and being computed now.
    pub pending_blocks: usize,
}

/// What [`BlockPool::register`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// Blocks registered, from the first of the call on.
    pub blocks: usize,
    /// Whether a hash collision stopped it: the blocks behind were not registered.
    pub collided: bool,
}

/// A match that nothing has acquired yet. Only valid until the pool changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct PrefixMatch {
    /// The computed copies that were found, in order.
    pub blocks: Vec<BlockId>,
    /// Blocks asked for.
    pub asked: usize,
    /// Whether a hash collision stopped it.
    pub collided: bool,
    /// Whose lookup it is, for the observer; the caller fills it in.
    pub tenant: Option<TenantId>,
}

impl BlockPool {
    /// Checks that `chain` belongs to this pool's epoch, block size and verification.
    pub(crate) fn check_chain(&self, chain: &HashChain) -> Result<(), PoolError> {
        if chain.epoch() != self.epoch {
            return Err(PoolError::StaleEpoch { chain: chain.epoch(), pool: self.epoch });
        }
        self.index.check_chain(chain)
    }

    /// The longest computed prefix of what is behind the first `start` blocks of `chain`, at most
    /// `max_blocks` long. Changes nothing.
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
        if self.verify() == Verify::None {
            let hashes = chain.hashes().get(start..).and_then(|hashes| hashes.get(..asked)).unwrap_or(&[]);
            self.index.find_run(records, hashes, 0, blocks);
        } else {
            blocks.extend((0..asked).map_while(|at| {
                let sure = self.index.find_or_collision(records, chain, start + at);
                *collided = sure.is_err();
                sure.ok().flatten()
            }));
        }
        if !self.allocator.has_room_for(1)
            && let Some(full) = blocks.iter().position(|block| records.at(block.get()).references == u32::MAX)
        {
            // No further reference can be counted: as good as a miss.
            blocks.truncate(full);
            *collided = false;
        }
        Ok(found)
    }

    /// Of blocks those without references: acquiring them leaves as many fewer to allocate.
    pub(crate) fn num_idle(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().filter(|block| self.records.at(block.get()).references == 0).count()
    }

    /// Acquires a match made since the pool last changed, in a chain of these hashes. Cannot fail,
    /// short of a broken invariant.
    pub(crate) fn acquire_found(
        &mut self,
        found: &PrefixMatch,
        hashes: &[BlockHash],
    ) -> Result<(), PoolError> {
        self.acquire_blocks(&found.blocks)?;
        self.counters.hits += found.blocks.len() as u64;
        self.counters.misses += (found.asked - found.blocks.len()) as u64;
        self.counters.collisions += u64::from(found.collided);
        self.tell_changed(&found.blocks);
        let hashes = hashes.get(..found.asked).unwrap_or(&[]);
        let PrefixMatch { tenant, ref blocks, .. } = *found;
        self.tell_looked_up(&Lookup { hashes, depth: 0, parent: None, hits: blocks.len(), blocks, tenant });
        Ok(())
    }

    /// Adds one reference to each of some blocks, of which as many can be counted, wherever they are.
    #[inline]
    pub(super) fn acquire_blocks(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        let mut at = 0;
        while at < blocks.len() {
            let Self { records, order, allocator, .. } = self;
            // What nobody holds, which is most of it; each of the rest by itself.
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
                let reason = format!("B2: block {block} is cached, unheld, and not with the evictor");
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

    /// Finds the longest cached prefix of `chain`, at most `max_blocks` blocks, and acquires it: one
    /// reference per block for the caller. Only computed blocks match; the walk stops at the first that
    /// does not. O(blocks matched).
    ///
    /// # Errors
    /// [`PoolError::StaleEpoch`], [`PoolError::BlockSizeMismatch`], [`PoolError::UnverifiedAlgorithm`],
    /// [`PoolError::MissingVerification`]: the chain is not one of this pool's.
    pub fn match_and_acquire(
        &mut self,
        chain: &HashChain,
        max_blocks: usize,
    ) -> Result<Vec<BlockId>, PoolError> {
        self.look_up(chain, max_blocks, None)
    }

    /// [`Self::match_and_acquire`] on behalf of a tenant, whom an observer may count it for. Without
    /// one it is the same.
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

    /// What [`Self::match_and_acquire`] would find now. Changes nothing, counts nothing. O(blocks matched).
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

    /// Whether a block is registered under the hash of a chain's block at `position`, computed or not. O(1).
    #[must_use]
    pub fn is_indexed(&self, chain: &HashChain, position: usize) -> bool {
        self.index.is_registered(&self.records, chain, position)
    }

    /// Registers held blocks as the chain's blocks `start..`: they are immutable from now on. Nothing
    /// matches them before [`Self::mark_computed`]. Stops at a hash collision, which is counted; the
    /// caller's blocks stay usable, they are just not cached. O(blocks), allocates nothing.
    ///
    /// # Errors
    /// [`PoolError::AlreadyRegistered`], [`PoolError::NotHeld`], [`PoolError::ChainTooShort`],
    /// [`PoolError::TooDeep`] behind the first 2^28 blocks of a chain, unknown ids, and what
    /// [`Self::match_and_acquire`] says of chains.
    pub fn register(
        &mut self,
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
        let Self { index, records, .. } = self;
        let refused = loop {
            let done = registered;
            registered += index.insert_run(records, chain, start + done, &blocks[done..], &hashes[done..]);
            let Some(&block) = blocks.get(registered) else { break None };
            if records.at(block.get()).is_registered() {
                break Some(block);
            }
            let Some(link) = chain.link(start + registered) else { break None };
            if index.insert(records, block, &link) == Inserted::Collision {
                break None;
            }
            registered += 1;
        };
        // Already registered before, or named twice in this call: take back what this call did.
        if let Some(block) = refused {
            for undo in blocks[..registered].iter().rev() {
                self.index.remove(&mut self.records, *undo);
            }
            return Err(PoolError::AlreadyRegistered { block });
        }
        self.counters.collisions += u64::from(registered < blocks.len());
        self.tell_changed(&blocks[..registered]);
        if self.history {
            self.note_all_registered(&blocks[..registered], chain, start);
        }
        self.tell_registered(&blocks[..registered], Some((chain, start)));
        Ok(Registered { blocks: registered, collided: registered < blocks.len() })
    }

    /// Tells the evictor, which asks for it, what blocks just registered hold. Plain LRU does not:
    /// apart from what it pays for.
    #[inline(never)]
    fn note_all_registered(&mut self, blocks: &[BlockId], chain: &HashChain, start: usize) {
        let behind = chain.hashes().split_at_checked(start);
        let (Some((before, hashes)), Some(&first)) = (behind, blocks.first()) else { return };
        let group = self.records.at(first.get()).group; // that of the whole chain
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

    /// Sets the computed bit of registered blocks: the engine has written their KV, lookups may return
    /// them. O(blocks), allocates nothing; a block that is computed already stays so.
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
        self.tell_changed(blocks);
        Ok(())
    }
}
