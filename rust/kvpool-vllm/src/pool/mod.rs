//! `Pool`: vLLM's block pool, implemented on top of [`kvpool::BlockPool`].
//!
//! References, contents, the free list and the order of eviction belong to one [`kvpool::BlockPool`]
//! (the core), with its invariants, its scrubber and its digest. This module only adds what vLLM's pool
//! does in addition:
//!
//! - A key (digest and group) is the name of a content in the core. The `overlay` stores the keys that
//!   cannot be names. The contents of their blocks are *hidden* in the core: they have a position in
//!   the order of eviction, but no lookup finds them.
//! - If vLLM takes a block out of the queue directly, the core holds a reference to it that vLLM does
//!   not see (`counts`).
//! - If a block's hash is removed and the block keeps its position in the queue, its content becomes
//!   hidden.
//! - A block without a hash at the back of the queue has a hidden content.
//! - A block with a hash at the front of the queue is a free block in the core. Its hash is in the
//!   overlay.
//! - One number per block (`marks`) stores how many tokens its hash covers, and whether its key ever
//!   had two blocks.
//!
//! Therefore a block in use is registered in the core exactly if it has a hash. The queue is the core's
//! free list, followed by its order of eviction. With `lru` all contents have depth 0, so the blocks of
//! one release keep their order.
//!
//! Invariants, which [`Pool::check_invariants`] checks together with those of the core:
//! - V1: the blocks of a key are listed in the core or in the overlay, never in both.
//! - V2: a block is in the queue exactly if it has no references. The null block is never in the queue.
//! - V3: a block is listed under a key exactly if it has this key, as its hash or as a further key.
//! - V4: a block in use is registered in the core exactly if it has a hash. With another policy than
//!   `lru`, a free block with a hash is one of the cached-free blocks.
//!
//! V2, V3 and the second half of V4 hold after calls of the pool's own operations. vLLM also writes
//! reference counts and hashes directly ([`Pool::set_ref_count`], [`Pool::set_hash`]), which can break
//! these invariants here as in vLLM. The other invariants always hold ([`Pool::check_representation`]).
//!
//! Costs: O(1) per block and key. The memory is that of the core plus 4 bytes per block. An entry in
//! the overlay takes about 100 bytes.

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

/// A key that was removed from a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Id of the block that had the key.
    pub block: u32,
    /// The key.
    pub key: Key,
    /// Whether the block was the last one cached under the key.
    pub last_copy: bool,
}

/// A drop-in replacement for vLLM's block pool. Block 0 is the null block.
///
/// ```
/// use kvpool_vllm::Pool;
/// let mut pool = Pool::new(8, true)?;
/// let mut blocks = Vec::new();
/// pool.allocate(3, &mut blocks, None)?;
/// assert_eq!((blocks.as_slice(), pool.num_free()), (&[1, 2, 3][..], 4));
/// pool.free([3, 2, 1])?;
/// assert_eq!(pool.num_free(), 7);
/// # Ok::<(), kvpool_vllm::VllmError>(())
/// ```
#[derive(Debug)]
pub struct Pool {
    pub(crate) core: BlockPool,
    pub(crate) num_blocks: usize,
    pub(crate) caching: bool,
    /// Length of the digests in the core, in bytes. Before the core has its first key, it is larger
    /// than any digest.
    pub(crate) digest_len: usize,
    /// For each block whose hash is in the core: the number of tokens that the hash covers, and whether
    /// its key ever had two blocks. `hashes` defines the bits.
    pub(crate) marks: Vec<u32>,
    /// Number of blocks whose content is hidden in the core, which means that no lookup of the core
    /// finds it.
    pub(crate) hidden: usize,
    pub(crate) overlay: Overlay,
    pub(crate) counts: Counts,
    /// Number of blocks that are in the queue but not counted as free. vLLM can write such a number of
    /// free blocks directly.
    withheld: usize,
    /// Number of times that a key was removed from a block. The results of lookups are valid until it
    /// changes.
    pub(crate) removals: u64,
    /// The groups in which a block can be hit only together with the previous block.
    pub(crate) chained: Vec<u32>,
    /// A buffer for the blocks of the present call, which saves an allocation.
    pub(crate) ids: Vec<BlockId>,
    pub(crate) batch: Vec<BlockHash>,
}

impl Pool {
    /// Creates a pool of the blocks `0..num_blocks`. All of them are free except for the null block. If
    /// `caching` is false, no block keeps its hash.
    ///
    /// # Errors
    /// [`VllmError::Pool`] if the number of blocks is 0 or too large.
    pub fn new(num_blocks: usize, caching: bool) -> Result<Self, VllmError> {
        Self::with_policy(num_blocks, caching, EvictionPolicy::LRU)
    }

    /// Like [`Self::new`], with a policy that determines the order of eviction.
    ///
    /// # Errors
    /// Like [`Self::new`].
    pub fn with_policy(num_blocks: usize, caching: bool, policy: EvictionPolicy) -> Result<Self, VllmError> {
        Self::with_retention(num_blocks, caching, policy, None)
    }

    /// Like [`Self::with_policy`], with retention: hints change the order of eviction
    /// ([`Self::retain`]).
    ///
    /// # Errors
    /// Like [`Self::new`]. [`VllmError::Pool`] if the pins and floors of `retention` exceed the size of
    /// the pool.
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
        // vLLM supports a pool that contains only the null block, but the core does not. In that case
        // the core gets one more block, which is allocated here and never released.
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

    /// Number of blocks in the pool, including the null block.
    #[must_use]
    pub const fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Returns the core pool, to read its statistics and states, and why it refuses calls after a
    /// broken invariant.
    #[must_use]
    pub const fn core(&self) -> &BlockPool {
        &self.core
    }

    /// Adds an observer to the core pool, as in [`PoolWatch::watch`]. The observer does not see keys
    /// that the core cannot store.
    ///
    /// # Errors
    /// [`VllmError::Pool`] with the name of the wrong setting and its allowed values.
    pub fn watch(&mut self, config: &WatchConfig) -> Result<(), VllmError> {
        Ok(self.core.watch(config)?)
    }

    /// Checks the invariants of the next `blocks` blocks of the core pool, and the sums of its counts,
    /// as in [`Scrubber::scrub`].
    ///
    /// # Errors
    /// [`VllmError::Pool`] with the broken invariant. Later calls return the same error.
    pub fn scrub(&mut self, scrubber: &mut Scrubber, blocks: usize) -> Result<ScrubReport, VllmError> {
        Ok(scrubber.scrub(&mut self.core, blocks)?)
    }

    /// Returns the digest of the core pool's state, as in [`PoolWatch::state_digest`]. `None` if no
    /// observer computes it.
    pub fn state_digest(&mut self) -> Option<u64> {
        self.core.state_digest()
    }

    #[inline]
    pub(crate) fn queue_len(&self) -> usize {
        self.core.num_available()
    }

    pub(crate) fn is_queued(&self, block: u32) -> bool {
        block != 0 && (block as usize) < self.num_blocks && self.held(block) == 0
    }

    /// Returns the number of references that the core has for `block`. vLLM may see another number.
    #[inline]
    pub(crate) fn held(&self, block: u32) -> u32 {
        self.core.ref_count(BlockId::new(block)).unwrap_or(0)
    }

    /// Number of blocks that can be allocated, including cached-free blocks.
    #[must_use]
    #[inline]
    pub fn num_free(&self) -> usize {
        self.queue_len().saturating_sub(self.withheld)
    }

    /// Sets the number of free blocks directly, as vLLM's queue allows. The queue itself does not
    /// change, but allocations fail beyond this number. Later changes of the queue change the number
    /// too, but it never becomes negative.
    ///
    /// # Errors
    /// [`VllmError::Pool`] if the queue has fewer blocks, because not all of them could be allocated.
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

    /// Number of times that a key was removed from a block. Until it changes, a repeated lookup returns
    /// the same blocks.
    #[must_use]
    pub const fn removals(&self) -> u64 {
        self.removals
    }

    /// Returns a view that finds the keys of a block, and the blocks of a key.
    #[must_use]
    pub const fn keys(&self) -> Keys<'_> {
        Keys::of(self)
    }

    /// Iterates over the free blocks in the order in which they will be reused. O(free blocks).
    pub fn order(&self) -> impl Iterator<Item = u32> {
        self.peek(self.queue_len()).into_iter()
    }

    /// Returns the first `n` blocks of the queue, without allocating them.
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

    /// Converts an error of the core into an error of this pool.
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

    /// Whether the core and vLLM see the same blocks with the same reference counts.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.counts.is_empty() && self.num_blocks > 1
    }

    /// Allocates the next `n` free blocks, each with one reference, and removes their keys. Appends the
    /// blocks to `out`, and the removed keys to `removed`.
    ///
    /// # Errors
    /// [`VllmError::OutOfBlocks`] if fewer blocks are free.
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

    /// Does the work of [`Self::allocate`] if there are keys that are not in the core, or counts that
    /// differ from the core's.
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

    /// Adds one reference to each block, except the null block. Free blocks leave the queue.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`] for an unknown id.
    pub fn touch(&mut self, blocks: &[u32]) -> Result<(), VllmError> {
        self.gather(blocks);
        if self.is_plain() && self.hidden == 0 && self.overlay.hashes.is_empty() {
            return self.core.acquire_by_id(&self.ids).map_err(|error| self.refusal(error));
        }
        blocks.iter().try_for_each(|&block| self.check(block))?;
        self.acquire_shown()
    }

    /// Stores these blocks, without the null block, in the buffer of the present call.
    #[inline]
    pub(crate) fn gather(&mut self, blocks: &[u32]) {
        self.ids.clear();
        self.ids.extend(blocks.iter().map(|&block| BlockId::new(block)));
        if blocks.contains(&0) {
            self.ids.retain(|block| !block.is_null());
        }
    }

    /// Drops one reference of each block, except the null block. Blocks that then have no references
    /// become free in the given order. Those without a hash go to the front of the queue in this order,
    /// so they are reused before all other blocks. Those with a hash go to the end of the queue.
    ///
    /// # Errors
    /// [`VllmError::NotHeld`] if a block is freed more often than it has references.
    /// [`VllmError::UnknownBlock`] for an unknown id.
    pub fn free(&mut self, blocks: impl IntoIterator<Item = u32>) -> Result<(), VllmError> {
        self.ids.clear();
        self.ids.extend(blocks.into_iter().filter(|&block| block != 0).map(BlockId::new));
        self.drop_gathered(false)
    }

    /// Drops one reference of each block. Blocks that then have no references go to the end of the
    /// queue, with or without a hash.
    ///
    /// # Errors
    /// [`VllmError::NotHeld`] if a block has fewer references. [`VllmError::UnknownBlock`] for an
    /// unknown id.
    pub fn unpin(&mut self, blocks: &[u32]) -> Result<(), VllmError> {
        self.ids.clear();
        self.ids.extend(blocks.iter().map(|&block| BlockId::new(block)));
        self.drop_gathered(true)
    }

    /// For each block in the buffer, drops one of the references that vLLM sees.
    fn drop_gathered(&mut self, to_back: bool) -> Result<(), VllmError> {
        if !self.is_plain() {
            self.drop_shown()?;
        }
        self.release(to_back).map_err(|error| self.refusal(error))
    }

    /// For each block in the buffer, drops one of the core's references.
    #[inline]
    pub(crate) fn release(&mut self, to_back: bool) -> Result<(), PoolError> {
        if to_back {
            self.hidden += self.core.release_to_back(&self.ids)?;
            return Ok(());
        }
        self.core.release_in_order(&self.ids)
    }

    /// Removes the keys of `block`, in use or not, like [`Self::remove_hashes`]. A free block without
    /// keys cannot be hit any more. If `reuse_first` is set, or if the pool [keeps a
    /// history](Self::keeps_history), it therefore becomes the next block to be allocated. In vLLM's
    /// own pool it keeps its position among the cached blocks.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`] for an unknown id.
    pub fn evict(&mut self, block: u32, reuse_first: bool) -> Result<Vec<Removed>, VllmError> {
        self.check(block)?;
        let removed = self.remove_hashes(block);
        if reuse_first && !removed.is_empty() && self.ref_count(block) == 0 && self.is_queued(block) {
            self.reuse_next(block)?;
        }
        Ok(removed)
    }

    /// If only the null block is in use, removes all cached contents and returns true. Otherwise
    /// changes nothing and returns false. With `lru`, the order of the queue does not change.
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

    /// Returns how many of these blocks are free, and would therefore leave the queue if they were
    /// touched.
    #[must_use]
    pub fn num_evictable(&self, blocks: &[u32]) -> usize {
        blocks.iter().filter(|&&block| block != 0 && self.ref_count(block) == 0).count()
    }
}
