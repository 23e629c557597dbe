//! [`BlockPool`] combines the allocator, the prefix index, the evictor and the fences. No other code
//! changes more than one of them.
//!
//! Each block is free, cached-free (not in use, but with cached content), active (in use) or fenced
//! (released, but a running step may still use it). Every operation that changes two parts at once is a
//! method here, and is all-or-nothing: it checks everything first, and after that nothing can fail.
//!
//! Invariants, recounted by [`BlockPool::check_invariants`]:
//! - B1: free + cached-free + active + fenced == usable blocks; every block is in exactly one of the
//!   four.
//! - B2: the evictor holds exactly the blocks that are registered, computed, and without references. It
//!   may also hold blocks whose only references are pins (see `pins.rs`).
//! - B3: a free block is not registered; a registered block has references or is cached-free.
//! - B4: an allocation takes a cached block only if no free block is left (vLLM #42948, #42656).
//! - B5: a content that was registered in an earlier epoch is never matched again. A new epoch starts
//!   when the model's weights change.
//!
//! If an operation finds a broken invariant, it *poisons* the pool. A poisoned pool refuses every
//! operation and returns the reason, so that it cannot serve wrong KV.
//!
//! Costs: every operation is O(1) per block, and does not depend on the size of the pool. A block takes
//! less than 80 bytes without verification. [`BlockPool::reset`] and [`BlockPool::bump_epoch`] take
//! O(usable blocks), and are called rarely.

mod checks;
#[cfg(feature = "fault-injection")]
mod faults;
mod groups;
mod image;
mod lifetime;
mod link;
mod lookup;
mod named;
pub(crate) mod observe;
mod order;
mod owned;
mod pins;
mod retention;
mod table;
mod weak;

use std::str::FromStr;
use std::sync::OnceLock;

use crate::allocator::Allocator;
use crate::block::{BlockId, BlockState};
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::evictor::lru::Lru;
use crate::evictor::{Candidate, Content, EvictionPolicy, Evictor};
use crate::fence::Fences;
use crate::free_list::check_num_blocks;
use crate::hash::{BlockHash, LinkRef, Verify};
use crate::prefix_index::{Index, Visibility};
use crate::record::{ByBlock, Name, Record, blank};
use crate::retention::{EvictionCause, RetentionConfig};
use crate::stats::PoolStats;

#[cfg(feature = "fault-injection")]
pub use faults::Fault;
pub use image::{PoolImage, Restored, SavedBlock};
pub(crate) use lookup::PrefixMatch;
pub use lookup::{Probe, Registered};
use observe::{PoolObserver, RemovalCause};
pub use weak::Match;

/// The rule for a released block if another cached block has the same content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DuplicatePolicy {
    /// The block remains cached, as a copy, until it is evicted.
    #[default]
    Keep,
    /// The block is freed at once, because one copy is enough. But it remains cached if it is the
    /// parent of cached blocks.
    DropOnRelease,
}

impl DuplicatePolicy {
    /// Every policy.
    pub const ALL: &'static [Self] = &[Self::Keep, Self::DropOnRelease];

    /// Returns the name of the policy in settings and commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::DropOnRelease => "drop-on-release",
        }
    }
}

impl FromStr for DuplicatePolicy {
    type Err = PoolError;

    fn from_str(name: &str) -> Result<Self, PoolError> {
        Self::ALL.iter().copied().find(|policy| policy.name() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|policy| policy.name()).collect();
            PoolError::config("duplicates", format!("{name:?}"), format!("one of {}", known.join(", ")))
        })
    }
}

/// Settings of a [`BlockPool`].
///
/// ```
/// use kvpool::{BlockPool, DuplicatePolicy, PoolConfig};
/// let duplicates = DuplicatePolicy::DropOnRelease;
/// let config = PoolConfig { num_blocks: 1000, block_size: 16, duplicates, ..PoolConfig::default() };
/// let pool = BlockPool::new(config)?;
/// assert_eq!(pool.num_usable(), 999); // all but the null block
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Number of blocks in the pool, including the null block: ids run from 0 to `num_blocks - 1`. At
    /// least 2.
    pub num_blocks: usize,
    /// Number of tokens per block. At least 1.
    pub block_size: usize,
    /// How a lookup checks that a cached block has the same tokens as the prompt, so that a hash
    /// collision does no harm.
    pub verify: Verify,
    /// Whether a released block remains cached if another block already caches the same content.
    pub duplicates: DuplicatePolicy,
    /// The eviction policy: it decides which cached-free block is reused first.
    pub eviction: EvictionPolicy,
    /// Settings of retention, with priorities, times to live, pins and tenants' limits: see
    /// [`crate::retention`]. Retention needs a policy of the crate `kvpool-policies`. `None` switches
    /// it off and costs nothing.
    pub retention: Option<RetentionConfig>,
    /// Whether the pool keeps the tokens of registered blocks, so that [`BlockPool::append_known`] need
    /// not hash a prompt whose blocks are registered. With blocks of 16 tokens, this takes 101 bytes
    /// per block; 85 with [`Verify::Fingerprint`], 21 with [`Verify::Tokens`].
    pub keep_tokens: bool,
    /// More fields may be added. End struct literals with `..Default::default()`.
    #[doc(hidden)]
    pub more: (),
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            num_blocks: 1024,
            block_size: 16,
            verify: Verify::None,
            duplicates: DuplicatePolicy::Keep,
            eviction: EvictionPolicy::LRU,
            retention: None,
            keep_tokens: false,
            more: (),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    allocated: u64,
    evicted: u64,
    hits: u64,
    misses: u64,
    collisions: u64,
    duplicates_dropped: u64,
}

/// Manages the blocks of one tier: allocation, prefix cache and eviction, in all-or-nothing operations.
///
/// [`CacheManager`](crate::CacheManager) uses a pool for its requests. Use a pool directly for blocks
/// that belong to no request, or if you write your own request manager. Each block is free,
/// cached-free, active or fenced: see [`BlockState`].
///
/// ```
/// use std::sync::Arc;
/// use kvpool::{BlockHasher, BlockPool, ExtraKeys, HashCursor, HasherConfig, PoolConfig};
/// let hasher = Arc::new(BlockHasher::new(HasherConfig { block_size: 4, ..Default::default() })?);
/// let mut pool = BlockPool::new(PoolConfig { num_blocks: 100, block_size: 4, ..Default::default() })?;
/// let mut prompt = HashCursor::new(hasher, ExtraKeys::default())?;
/// prompt.append(&[1, 2, 3, 4, 5, 6, 7, 8]);
///
/// let blocks = pool.allocate(2)?;
/// pool.register(&blocks, prompt.chain(), 0)?;
/// pool.mark_computed(&blocks)?;                    // the engine has written their KV
/// pool.release_table(&blocks)?;                    // cached-free now
///
/// let again = pool.match_and_acquire(prompt.chain(), usize::MAX)?;
/// assert_eq!(again, blocks);
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Debug)]
pub struct BlockPool {
    /// One record per block. The parts of the pool below store their data about a block in its record.
    records: Vec<Record>,
    allocator: Allocator,
    index: Index,
    order: order::Order,
    /// Whether the eviction policy has to be notified of registrations, and of hits on blocks that are
    /// in use.
    history: bool,
    fences: Fences,
    /// Number of blocks in the eviction order whose only references are pins (references of planned
    /// copies).
    pinned_in_order: usize,
    observer: Option<Box<dyn PoolObserver>>,
    duplicates: DuplicatePolicy,
    epoch: u64,
    counters: Counters,
    /// The reason why the pool is poisoned, if it is. A `OnceLock`, because a lookup through a shared
    /// reference may find a broken block.
    poison: OnceLock<Box<str>>,
    /// Lists of the released blocks, for `settle_idle`. Every release reuses them, so that it does not
    /// allocate memory.
    idle: Vec<BlockId>,
    candidates: Vec<Candidate>,
}

/// # Construction
impl BlockPool {
    /// Makes a pool in which every block is free. O(blocks), with one memory allocation per array.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] with the setting and the allowed values.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "callers pass the configuration by value: later fields may be consumed"
    )]
    pub fn new(config: PoolConfig) -> Result<Self, PoolError> {
        check_num_blocks(config.num_blocks)?;
        let order = if config.eviction == EvictionPolicy::LRU && config.retention.is_none() {
            order::Order::Lru(Lru::default())
        } else {
            let evictor = config.eviction.build(config.num_blocks, config.retention.as_ref())?;
            order::Order::Other(order::Guarded::new(evictor))
        };
        Self::assemble(&config, order)
    }

    /// Makes a pool that uses an evictor of the caller. `config.eviction` and `config.retention` are
    /// ignored. `Closed` of the crate `kvpool-policies` turns a [`crate::Policy`] into an evictor with
    /// retention.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`], also if `evictor` already holds blocks.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "callers pass the configuration by value: later fields may be consumed"
    )]
    pub fn with_evictor(config: PoolConfig, mut evictor: Box<dyn Evictor>) -> Result<Self, PoolError> {
        check_num_blocks(config.num_blocks)?;
        if !evictor.is_empty() {
            return Err(PoolError::config(
                "evictor",
                format!("{} with {} blocks", evictor.name(), evictor.len()),
                "empty",
            ));
        }
        evictor.grow(config.num_blocks)?;
        Self::assemble(&config, order::Order::Other(order::Guarded::new(evictor)))
    }

    fn assemble(config: &PoolConfig, order: order::Order) -> Result<Self, PoolError> {
        let history = order.wants_history();
        let mut records = blank(config.num_blocks)?;
        let mut index = Index::new(config.num_blocks, config.block_size, config.verify)?;
        if history {
            index.keep_parents(&records)?;
        }
        if config.keep_tokens {
            index.keep_tokens(config.num_blocks)?;
        }
        Ok(Self {
            allocator: Allocator::new(&mut records),
            index,
            records,
            order,
            history,
            fences: Fences::default(),
            pinned_in_order: 0,
            observer: None,
            duplicates: config.duplicates,
            epoch: 0,
            counters: Counters::default(),
            poison: OnceLock::new(),
            idle: Vec::new(),
            candidates: Vec::new(),
        })
    }
}

/// # Counts
impl BlockPool {
    /// Number of blocks, including the null block.
    #[must_use]
    pub const fn num_blocks(&self) -> usize {
        self.records.len()
    }

    /// Number of blocks that can be allocated: all but the null block.
    #[must_use]
    pub const fn num_usable(&self) -> usize {
        self.records.len() - 1
    }

    /// Number of blocks that an allocation can take now: free and cached-free blocks.
    #[must_use]
    pub fn num_available(&self) -> usize {
        self.allocator.num_free().saturating_add(self.num_cached_free())
    }

    /// Number of blocks with a reference, including fenced blocks.
    #[must_use]
    pub const fn num_held(&self) -> usize {
        self.allocator.num_held()
    }

    /// Number of blocks that no request holds, but a running step may still touch.
    #[must_use]
    pub const fn num_fenced(&self) -> usize {
        self.fences.num_fenced()
    }

    /// Number of references of all blocks. It includes the references of running steps (fences) and of
    /// planned copies (pins).
    #[must_use]
    pub const fn num_references(&self) -> u64 {
        self.allocator.num_references()
    }

    /// Number of references that running steps (fences) and planned copies (pins) hold.
    /// [`Self::num_references`] includes them.
    #[must_use]
    pub const fn num_fence_references(&self) -> u64 {
        self.fences.num_references()
    }

    /// Number of distinct contents of registered blocks, including hidden blocks. Blocks with the same
    /// content count once.
    #[must_use]
    pub fn num_hashes(&self) -> usize {
        self.index.num_hashes()
    }

    /// Returns the gauges and counters of the pool. O(1).
    #[must_use]
    pub fn stats(&self) -> PoolStats {
        let Counters { allocated, evicted, hits, misses, collisions, duplicates_dropped } = self.counters;
        PoolStats {
            usable: self.num_usable(),
            free: self.allocator.num_free(),
            cached_free: self.num_cached_free(),
            active: self.allocator.num_held().saturating_sub(self.num_fenced()),
            fenced: self.num_fenced(),
            registered: self.index.num_registered(),
            // By B3, every registered block has references or is cached-free.
            registered_active: self.index.num_registered().saturating_sub(self.num_cached_free()),
            block_size: self.block_size(),
            epoch: self.epoch,
            allocated,
            evicted,
            hits,
            misses,
            collisions,
            duplicates_dropped,
        }
    }
}

/// # State of a block
impl BlockPool {
    /// The state of `block`. `None` for ids that the pool does not have.
    #[must_use]
    pub fn state(&self, block: BlockId) -> Option<BlockState> {
        let record = self.records.of(block)?;
        Some(match record.references {
            _ if block.is_null() => BlockState::Null,
            0 if self.order.contains(&self.records, block) => BlockState::CachedFree,
            0 => BlockState::Free,
            _ if record.is_fenced() => BlockState::Fenced,
            _ => BlockState::Active,
        })
    }

    /// Number of references of `block`, including those of running steps (fences) and of planned copies
    /// (pins). `None` for ids that the pool does not have.
    #[must_use]
    pub fn ref_count(&self, block: BlockId) -> Option<u32> {
        self.records.of(block).map(|record| record.references)
    }

    /// Number of references of `block` that block tables and other holders have. References of running
    /// steps (fences) and of planned copies (pins) are not counted.
    #[must_use]
    pub fn num_holders(&self, block: BlockId) -> u32 {
        self.records.at(block.get()).holders()
    }

    /// Number of references of `block` that running steps (fences) and planned copies (pins) hold.
    /// [`Self::ref_count`] includes them.
    #[must_use]
    pub fn fence_references(&self, block: BlockId) -> u32 {
        self.records.at(block.get()).fences
    }

    /// Number of references of `block` because of which a request must not write to the block: those of
    /// holders and of running steps. Pins are not counted, because a planned copy is made before the
    /// step writes anything.
    #[must_use]
    pub(crate) fn num_users(&self, block: BlockId) -> u32 {
        let record = self.records.at(block.get());
        record.references.saturating_sub(record.pins.into())
    }

    /// Whether `block` is registered: full, hashed, indexed, and immutable.
    #[must_use]
    pub fn is_registered(&self, block: BlockId) -> bool {
        self.records.at(block.get()).is_registered()
    }

    /// Whether `block` is registered and its KV is written.
    #[must_use]
    pub fn is_computed(&self, block: BlockId) -> bool {
        self.records.at(block.get()).is_computed()
    }

    /// The hash under which `block` is registered.
    #[must_use]
    pub fn hash_of(&self, block: BlockId) -> Option<BlockHash> {
        Index::hash_of(&self.records, block)
    }

    /// Returns the blocks that are registered under `hash`, computed blocks first. The caller gets no
    /// references to them: see [`Self::match_and_acquire`].
    #[must_use]
    pub fn copies(&self, hash: &BlockHash) -> Vec<BlockId> {
        self.index.copies(&self.records, hash.into())
    }
}

/// # Orders of allocation and eviction
impl BlockPool {
    /// The free block that is allocated next, if any is free.
    #[must_use]
    pub const fn next_free(&self) -> Option<BlockId> {
        self.allocator.free_list().front()
    }

    /// The free blocks in the order of allocation. O(free blocks).
    #[must_use]
    pub fn free_order(&self) -> Vec<BlockId> {
        self.allocator.free_list().iter(&self.records[..]).collect()
    }

    /// The cached-free blocks in the order of eviction. O(cached-free blocks).
    #[must_use]
    pub fn eviction_order(&self) -> Vec<BlockId> {
        let mut order = self.order.order(&self.records);
        if self.pinned_in_order > 0 {
            order.retain(|&block| self.records.at(block.get()).references == 0);
        }
        order
    }

    /// The name of the eviction policy.
    #[must_use]
    pub fn policy_name(&self) -> &'static str {
        self.order.name()
    }
}

/// # Settings, epoch and steps
impl BlockPool {
    /// Tokens per block.
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.index.block_size()
    }

    /// The hash algorithm of the registered blocks. `None` if no block is registered: see
    /// [`crate::PrefixIndex::algorithm`].
    #[must_use]
    pub const fn algorithm(&self) -> Option<crate::hash::HashAlgorithm> {
        self.index.algorithm()
    }

    /// How the pool checks that the cached blocks of a hit have the same tokens as the prompt.
    #[must_use]
    pub const fn verify(&self) -> Verify {
        self.index.verify()
    }

    /// The current epoch. It starts at 0, and each [`Self::bump_epoch`] adds 1.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The last step that was passed to `complete_step`, if any.
    #[must_use]
    pub const fn completed_step(&self) -> Option<u64> {
        self.fences.completed()
    }

    /// Whether `complete_step` has been called for `step` or a later one.
    #[must_use]
    pub fn is_completed(&self, step: u64) -> bool {
        self.fences.is_completed(step)
    }
}

/// # Invariants
impl BlockPool {
    /// The reason why the pool refuses work, if it is poisoned.
    #[must_use]
    pub fn poison_reason(&self) -> Option<&str> {
        self.poison.get().map(AsRef::as_ref)
    }

    /// Checks every invariant of the pool and of its parts by recounting from scratch. O(blocks), for
    /// tests.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        if let Some(reason) = self.poison_reason() {
            return Err(InvariantViolation::new("B0 (the pool is not poisoned)", reason));
        }
        self.allocator.check_invariants(&self.records)?;
        self.index.check_invariants(&self.records)?;
        self.order.check_invariants(&self.records)?;
        self.fences.check_invariants(&self.records)?;
        self.observer.as_ref().map_or(Ok(()), |observer| observer.check(self))?;
        self.check_block(BlockId::new(0))?;
        let (mut free, mut cached_free, mut active, mut fenced) = (0, 0, 0, 0);
        for block in (1..self.num_blocks() as u32).map(BlockId::new) {
            self.check_block(block)?;
            match self.state(block) {
                Some(BlockState::Free) => free += 1,
                Some(BlockState::CachedFree) => cached_free += 1,
                Some(BlockState::Fenced) => fenced += 1,
                _ => active += 1,
            }
        }
        let stats = self.stats();
        let counted = (stats.free, stats.cached_free, stats.active, stats.fenced);
        ensure(counted == (free, cached_free, active, fenced), "B1 (the sums hold)", || {
            format!("counted {counted:?}, found {:?}", (free, cached_free, active, fenced))
        })
    }
}

impl BlockPool {
    /// Notifies the evictor of the content of `block`, which was just registered. `before` is the
    /// previous block in the block table of the request that holds `block`.
    fn note_registered(&mut self, block: BlockId, link: &LinkRef<'_>, before: Option<BlockId>) {
        if !self.history {
            return;
        }
        let group = self.records.at(block.get()).group;
        let parent = before.or_else(|| self.head_of(link.parent.as_ref(), group));
        let content = Content { key: Name { hash: &link.hash, group }.key(), depth: link.depth };
        self.order.registered(block, content, parent);
    }

    #[inline]
    fn head_of(&self, hash: Option<&BlockHash>, group: u16) -> Option<BlockId> {
        self.index.head_of_name(&self.records, Name { hash: hash?, group })
    }

    fn note_shared_hit(&mut self, block: BlockId) {
        if self.history {
            self.order.hit(&mut self.records, block);
        }
    }

    #[inline]
    fn unregister(&mut self, block: BlockId, cause: RemovalCause) -> Visibility {
        if self.is_watched() {
            return self.unregister_watched(block, cause);
        }
        self.index.remove(&mut self.records, block)
    }

    /// Removes blocks that the policy has evicted from the index. Calls `gone` for each of them.
    #[inline]
    fn unregister_run(&mut self, blocks: &[BlockId], mut gone: impl FnMut(BlockId, Name<'_>, Visibility)) {
        if !self.is_watched() {
            return self.index.remove_run(&mut self.records, blocks, gone);
        }
        for &block in blocks {
            let visibility = self.unregister_watched(block, RemovalCause::Evicted(EvictionCause::Policy));
            gone(block, self.records.at(block.get()).name(), visibility);
        }
    }
}
