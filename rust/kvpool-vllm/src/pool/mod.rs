//! `Pool`: vLLM's block pool as a face of [`kvpool::BlockPool`].
//!
//! Owns nothing that the core owns: references, contents, the free list and the order of eviction are
//! those of one [`kvpool::BlockPool`], with its invariants, its scrubber and its digest. What is here
//! is what only vLLM does:
//!
//! | what vLLM does | what the core has |
//! |---|---|
//! | a key, digest and group | a content's name; keys that are none are in an overlay (`overlay`), and their blocks' contents are hidden |
//! | a block that leaves its queue by hand | a reference that is not shown (`counts`) |
//! | a hash that goes, while the block keeps its place | the content is hidden in its place |
//! | a block without a hash at the back of the queue | a hidden content |
//! | a block with a hash at the front of the queue | a free block; its hash is in the overlay |
//! | tokens of a hash, whether a key once had two blocks | a number per block (`marks`) |
//!
//! So a block in use is registered in the core exactly if it carries a hash, and the queue reads as the
//! free list, and then the order of eviction. With `lru` all contents are at depth 0: those of one
//! release keep the order that it is given in.
//!
//! Invariants, recounted by [`Pool::check_invariants`] with the core's:
//! - V1: a key leads to its blocks in the core or in the overlay, never in both.
//! - V2: a block is in the queue exactly if it has no references; the null block never is.
//! - V3: a key leads to a block exactly if the block carries it, as its hash or as a further one.
//! - V4: a block in use is registered exactly if it carries a hash; with another policy than `lru`, a
//!   free block that carries one is among the cached ones.
//!
//! V2, V3 and the second half of V4 hold for what went through the pool's own calls. vLLM also writes
//! reference counts and hashes by itself ([`Pool::set_ref_count`], [`Pool::set_hash`]); what that may
//! break is what it may break in vLLM. Everything else holds whatever is done by hand
//! ([`Pool::check_representation`]).
//!
//! Costs: O(1) per block and key; the core's bytes per block and 4 more. What is in an overlay costs
//! about 100 bytes.

pub(crate) mod counts;
pub(crate) mod hashes;
pub(crate) mod hints;
pub(crate) mod history;
pub(crate) mod invariants;
pub(crate) mod keys;
pub(crate) mod overlay;
pub(crate) mod queue;
pub(crate) mod run;

use kvpool::retention::RetentionConfig;
use kvpool::{BlockHash, BlockId, BlockPool, EvictionPolicy, PoolConfig, PoolError};
use kvpool_observe::{PoolWatch, ScrubReport, Scrubber, WatchConfig};

use crate::error::{VllmError, filled};
use crate::key::Key;
use crate::pool::counts::Counts;
use crate::pool::keys::Keys;
use crate::pool::overlay::Overlay;

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
    pub(crate) core: BlockPool,
    pub(crate) num_blocks: usize,
    pub(crate) caching: bool,
    /// Bytes of a digest that the core knows. No key has as many before there is a first one.
    pub(crate) digest_len: usize,
    /// Of each block with a hash that the core knows: its tokens, and whether its key once had two
    /// blocks. See `hashes`.
    pub(crate) marks: Vec<u32>,
    /// Blocks whose content is hidden in the core.
    pub(crate) hidden: usize,
    pub(crate) overlay: Overlay,
    pub(crate) counts: Counts,
    /// Blocks of the queue that do not count as free: somebody has written the count.
    withheld: usize,
    /// How often a key was removed: a lookup's result stands while this does.
    pub(crate) removals: u64,
    /// The groups in which a block is of no use without the one before it.
    pub(crate) chained: Vec<u32>,
    /// Blocks and hashes of the call that runs.
    pub(crate) ids: Vec<BlockId>,
    pub(crate) batch: Vec<BlockHash>,
}

impl Pool {
    /// A pool of blocks `0..num_blocks`, all but the null block free. Without `caching` nothing keeps
    /// its hash.
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
        Self::with_retention(num_blocks, caching, policy, None)
    }

    /// As [`Self::with_policy`], with retention: what is said of blocks moves them within that order
    /// ([`Self::retain`]).
    ///
    /// # Errors
    /// As [`Self::new`]; [`VllmError::Pool`] for pins and floors that do not fit into the pool.
    pub fn with_retention(
        num_blocks: usize,
        caching: bool,
        policy: EvictionPolicy,
        retention: Option<RetentionConfig>,
    ) -> Result<Self, VllmError> {
        if num_blocks == 0 {
            return Err(VllmError::Pool(PoolError::config(
                "num_gpu_blocks",
                "0",
                "at least 1, the null block",
            )));
        }
        // The core has no pool of the null block alone; vLLM has. Its only block is never given back.
        let at_least_two = num_blocks.max(2);
        let config =
            PoolConfig { num_blocks: at_least_two, eviction: policy, retention, ..PoolConfig::default() };
        let mut core = BlockPool::new(config)?;
        core.allocate(at_least_two - num_blocks)?;
        Ok(Self {
            core,
            num_blocks,
            caching,
            digest_len: usize::MAX,
            marks: filled(num_blocks, 0)?,
            hidden: 0,
            overlay: Overlay::default(),
            counts: Counts::default(),
            withheld: 0,
            removals: 0,
            chained: Vec::new(),
            ids: Vec::new(),
            batch: Vec::new(),
        })
    }

    /// Blocks of the pool, the null block included.
    #[must_use]
    pub const fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// The pool underneath, to look at: its statistics, states, and why it refuses work, if it does.
    #[must_use]
    pub const fn core(&self) -> &BlockPool {
        &self.core
    }

    /// Watches the core from now on: [`PoolWatch::watch`]. What is in the overlays it is not told.
    ///
    /// # Errors
    /// [`VllmError::Pool`] names the setting and what is allowed.
    pub fn watch(&mut self, config: &WatchConfig) -> Result<(), VllmError> {
        Ok(self.core.watch(config)?)
    }

    /// Checks the next `blocks` blocks of the core, and the sums: [`Scrubber::scrub`].
    ///
    /// # Errors
    /// [`VllmError::Pool`] with what is broken, now and from now on.
    pub fn scrub(&mut self, scrubber: &mut Scrubber, blocks: usize) -> Result<ScrubReport, VllmError> {
        Ok(scrubber.scrub(&mut self.core, blocks)?)
    }

    /// One number for the state of the core: [`PoolWatch::state_digest`]. `None` without a digest.
    pub fn state_digest(&mut self) -> Option<u64> {
        self.core.state_digest()
    }

    /// Blocks in the queue.
    #[inline]
    pub(crate) fn queue_len(&self) -> usize {
        self.core.num_available()
    }

    /// Whether `block` is in the queue.
    pub(crate) fn is_queued(&self, block: u32) -> bool {
        block != 0 && (block as usize) < self.num_blocks && self.held(block) == 0
    }

    /// References that the core has of `block`.
    #[inline]
    pub(crate) fn held(&self, block: u32) -> u32 {
        self.core.ref_count(BlockId::new(block)).unwrap_or(0)
    }

    /// Blocks that can be handed out, cached ones included.
    #[must_use]
    #[inline]
    pub fn num_free(&self) -> usize {
        self.queue_len().saturating_sub(self.withheld)
    }

    /// Writes how many blocks count as free, as vLLM's queue lets one do; the queue stays as it is.
    /// Allocations see the count, and it goes up and down with the queue from there on, not below 0.
    ///
    /// # Errors
    /// [`VllmError::Pool`] for more blocks than the queue has: they could not be handed out.
    pub fn set_num_free(&mut self, count: usize) -> Result<(), VllmError> {
        let queued = self.queue_len();
        self.withheld = queued.checked_sub(count).ok_or_else(|| {
            VllmError::Pool(PoolError::config(
                "num_free_blocks",
                count,
                format!("at most {queued}, the blocks in the queue"),
            ))
        })?;
        Ok(())
    }

    /// How often a key was removed so far: while it stays, every block that a lookup returned would be
    /// returned again.
    #[must_use]
    pub const fn removals(&self) -> u64 {
        self.removals
    }

    /// What leads to which block.
    #[must_use]
    pub const fn keys(&self) -> Keys<'_> {
        Keys::of(self)
    }

    /// The free blocks in the order of reuse. O(free blocks).
    pub fn order(&self) -> impl Iterator<Item = u32> {
        self.peek(self.queue_len()).into_iter()
    }

    /// The next `n` blocks, without taking them.
    #[must_use]
    pub fn peek(&self, n: usize) -> Vec<u32> {
        self.core.peek(n).into_iter().map(BlockId::get).collect()
    }

    pub(crate) fn check(&self, block: u32) -> Result<(), VllmError> {
        if (block as usize) < self.num_blocks {
            return Ok(());
        }
        Err(VllmError::UnknownBlock { block, last: (self.num_blocks - 1) as u32 })
    }

    /// What the core refused, in this pool's words.
    #[cold]
    pub(crate) fn refusal(&self, error: PoolError) -> VllmError {
        match error {
            PoolError::NotHeld { block, .. } => VllmError::NotHeld { block: block.get() },
            PoolError::NullBlock { .. } => VllmError::NotHeld { block: 0 },
            PoolError::UnknownBlock { block, .. } => {
                let block = u32::try_from(block).unwrap_or(u32::MAX);
                VllmError::UnknownBlock { block, last: (self.num_blocks - 1) as u32 }
            }
            error => VllmError::Pool(error),
        }
    }

    /// Whether the counts of the core are those that are shown, and its blocks this pool's.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.counts.is_empty() && self.num_blocks > 1
    }

    /// Takes the next `n` free blocks, each with one reference, and what they were cached for away from
    /// them; the keys go to `removed`, block by block.
    ///
    /// # Errors
    /// [`VllmError::OutOfBlocks`] if fewer are free.
    pub fn allocate(
        &mut self,
        n: usize,
        out: &mut Vec<u32>,
        mut removed: Option<&mut Vec<Removed>>,
    ) -> Result<(), VllmError> {
        let free = self.num_free();
        if n > free {
            return Err(VllmError::OutOfBlocks { wanted: n, free });
        }
        self.ids.clear();
        if !self.overlay.is_empty() || !self.counts.is_empty() {
            self.allocate_marked(n, &mut removed)?;
        } else {
            let Self { core, ids, digest_len, .. } = self;
            let (mut keys, mut hidden) = (0, 0);
            core.allocate_named(n, ids, |block, name, last_copy| {
                let Some(name) = name else {
                    hidden += 1;
                    return;
                };
                keys += 1;
                if let Some(removed) = &mut removed {
                    let key = Key::of_name(name, *digest_len);
                    removed.push(Removed { block: block.get(), key, last_copy });
                }
            })?;
            self.removals += keys;
            self.hidden -= hidden;
        }
        out.extend(self.ids.iter().map(|block| block.get()));
        Ok(())
    }

    /// The same where blocks have keys that the core does not know, or counts that are not its own.
    #[cold]
    fn allocate_marked(
        &mut self,
        n: usize,
        removed: &mut Option<&mut Vec<Removed>>,
    ) -> Result<(), VllmError> {
        let Self { core, ids, digest_len, .. } = self;
        let mut gone = Vec::new();
        core.allocate_named(n, ids, |block, name, last_copy| {
            gone.push((block, name.map(|name| (Key::of_name(name, *digest_len), last_copy))));
        })?;
        let mut gone = gone.into_iter().peekable();
        for at in 0..n {
            let block = self.ids[at];
            let content = gone.next_if(|(victim, _)| *victim == block).map(|(_, content)| content);
            self.hidden -= usize::from(content == Some(None));
            if let Some(Some((key, last_copy))) = content {
                self.note_removed(block.get(), key, last_copy, removed);
                self.remove_further(block.get(), removed);
            } else if self.caching {
                self.remove_irregular(block.get(), removed);
            }
            self.counts.set(block.get(), 0);
        }
        Ok(())
    }

    /// Adds one reference to each block, the null block excepted; those that were free are so no longer.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`].
    pub fn touch(&mut self, blocks: &[u32]) -> Result<(), VllmError> {
        self.gather(blocks);
        if self.is_plain() && self.hidden == 0 && self.overlay.hashes.is_empty() {
            return self.core.acquire_by_id(&self.ids).map_err(|error| self.refusal(error));
        }
        blocks.iter().try_for_each(|&block| self.check(block))?;
        self.acquire_shown()
    }

    /// Notes the blocks of a call, but for the null block.
    #[inline]
    pub(crate) fn gather(&mut self, blocks: &[u32]) {
        self.ids.clear();
        self.ids.extend(blocks.iter().map(|&block| BlockId::new(block)));
        if blocks.contains(&0) {
            self.ids.retain(|block| !block.is_null());
        }
    }

    /// Drops one reference of each block, the null block excepted. Blocks without further ones become
    /// free in the order given: those without a hash to be reused at once, the first of them first; the
    /// others after everything that is free by now.
    ///
    /// # Errors
    /// [`VllmError::NotHeld`], [`VllmError::UnknownBlock`].
    pub fn free(&mut self, blocks: impl IntoIterator<Item = u32>) -> Result<(), VllmError> {
        self.ids.clear();
        self.ids.extend(blocks.into_iter().filter(|&block| block != 0).map(BlockId::new));
        self.drop_gathered(false)
    }

    /// Drops one reference of each block; those without further ones go to the end of the queue, hash or not.
    ///
    /// # Errors
    /// [`VllmError::NotHeld`], [`VllmError::UnknownBlock`].
    pub fn unpin(&mut self, blocks: &[u32]) -> Result<(), VllmError> {
        self.ids.clear();
        self.ids.extend(blocks.iter().map(|&block| BlockId::new(block)));
        self.drop_gathered(true)
    }

    /// Drops one reference of what is shown of each of the call's blocks.
    fn drop_gathered(&mut self, to_back: bool) -> Result<(), VllmError> {
        if !self.is_plain() {
            self.drop_shown()?;
        }
        self.release(to_back).map_err(|error| self.refusal(error))
    }

    /// Drops one of the core's references of each of the call's blocks.
    #[inline]
    pub(crate) fn release(&mut self, to_back: bool) -> Result<(), PoolError> {
        if to_back {
            self.hidden += self.core.release_to_back(&self.ids)?;
            return Ok(());
        }
        self.core.release_in_order(&self.ids)
    }

    /// Takes the keys of `block` away, in use or not, as [`Self::remove_hashes`] does. With
    /// `reuse_first`, or in a pool that [keeps a history](Self::keeps_history), a free one is also the
    /// next to be handed out, for nothing can hit it any more; vLLM's own pool leaves it among the
    /// cached ones, which it outlives.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`].
    pub fn evict(&mut self, block: u32, reuse_first: bool) -> Result<Vec<Removed>, VllmError> {
        self.check(block)?;
        let removed = self.remove_hashes(block);
        if reuse_first && !removed.is_empty() && self.ref_count(block) == 0 && self.is_queued(block) {
            self.reuse_next(block)?;
        }
        Ok(removed)
    }

    /// Forgets everything that is cached, if no block but the null block is in use. With `lru` the
    /// order of the queue stays.
    pub fn reset(&mut self) -> bool {
        if self.num_free() + 1 != self.num_blocks {
            return false;
        }
        if self.num_blocks > 1 && self.core.reset_in_order().is_err() {
            return false;
        }
        self.removals += 1;
        self.hidden = 0;
        self.overlay = Overlay::default();
        true
    }

    /// How many of these blocks are free, that is, would leave the queue when touched.
    #[must_use]
    pub fn num_evictable(&self, blocks: &[u32]) -> usize {
        blocks.iter().filter(|&&block| block != 0 && self.ref_count(block) == 0).count()
    }
}
