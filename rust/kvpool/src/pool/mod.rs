//! `BlockPool`: the only place where allocator, prefix index, evictor and fences meet.
//!
//! Owns: which part holds a block. Every operation that changes two parts at once is a method here, and is
//! all-or-nothing: it checks everything first, and after that nothing can fail.
//!
//! Invariants, recounted by [`BlockPool::check_invariants`]:
//! - B1: free + cached-free + active + fenced == usable blocks; every block is in exactly one of the four.
//! - B2: the evictor holds exactly the blocks with no reference that are registered and computed; and
//!   of those that only pins hold, the ones whose turn has not come (`pins`).
//! - B3: a free block is not registered; a registered block is held or cached-free.
//! - B4: an allocation takes a cached block only when no free one is left (vLLM #42948, #42656).
//! - B5: what an earlier epoch registered is never matched again.
//!
//! A block that breaks one of them mid-operation *poisons* the pool: it refuses all work and says why,
//! instead of serving wrong KV.
//!
//! Costs: every operation O(1) per block, whatever the size of the pool; under 80 bytes per block
//! without verification. [`BlockPool::reset`] and [`BlockPool::bump_epoch`] are O(usable blocks) and
//! rare.
//!
//! ```
//! use std::sync::Arc;
//! use kvpool::{BlockHasher, BlockPool, ExtraKeys, HashCursor, HasherConfig, PoolConfig};
//! let hasher = Arc::new(BlockHasher::new(HasherConfig { block_size: 4, ..Default::default() })?);
//! let mut pool = BlockPool::new(PoolConfig { num_blocks: 100, block_size: 4, ..Default::default() })?;
//! let mut prompt = HashCursor::new(hasher, ExtraKeys::default())?;
//! prompt.append(&[1, 2, 3, 4, 5, 6, 7, 8]);
//!
//! let blocks = pool.allocate(2)?;
//! pool.register(&blocks, prompt.chain(), 0)?;
//! pool.mark_computed(&blocks)?;                    // the engine has written their KV
//! pool.release_table(&blocks)?;                    // cached-free now
//!
//! let again = pool.match_and_acquire(prompt.chain(), usize::MAX)?;
//! assert_eq!(again, blocks);
//! # Ok::<(), kvpool::PoolError>(())
//! ```

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

/// What happens to a released block whose content another cached block holds too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DuplicatePolicy {
    /// Kept as a copy until evicted.
    #[default]
    Keep,
    /// Freed at once, unless cached blocks hang on this very copy: one copy of a content is enough.
    DropOnRelease,
}

impl DuplicatePolicy {
    /// Every policy.
    pub const ALL: &'static [Self] = &[Self::Keep, Self::DropOnRelease];

    /// The policy's name, as users write it.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Blocks of the pool, null block included: ids run from 0 to `num_blocks - 1`. At least 2.
    pub num_blocks: usize,
    /// Tokens per block. At least 1.
    pub block_size: usize,
    /// How hits are verified.
    pub verify: Verify,
    /// What happens to duplicates.
    pub duplicates: DuplicatePolicy,
    /// Which cached-free block is reused first.
    pub eviction: EvictionPolicy,
    /// Priorities, times to live, pins and tenants' limits: see [`crate::retention`]; for a policy of
    /// the crate `kvpool-policies`. `None` has none of it, and costs nothing.
    pub retention: Option<RetentionConfig>,
    /// Fields may come: end a literal with `..Default::default()`.
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
            more: (),
        }
    }
}

/// Monotone counters.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    allocated: u64,
    evicted: u64,
    hits: u64,
    misses: u64,
    collisions: u64,
    duplicates_dropped: u64,
}

/// Blocks of one tier: allocation, prefix cache, eviction.
#[derive(Debug)]
pub struct BlockPool {
    /// What is known of each block: all parts below write to it.
    records: Vec<Record>,
    allocator: Allocator,
    index: Index,
    order: order::Order,
    /// Whether the order wants to be told of registrations and of hits on blocks in use.
    history: bool,
    fences: Fences,
    /// Blocks that the evictor holds and pins hold, too.
    pinned_in_order: usize,
    observer: Option<Box<dyn PoolObserver>>,
    duplicates: DuplicatePolicy,
    epoch: u64,
    counters: Counters,
    /// Why it refuses work, once it does. Set through a shared reference, too: a lookup that finds a
    /// block changed says so.
    poison: OnceLock<Box<str>>,
    /// Reused by every release, so that a steady state allocates nothing.
    idle: Vec<BlockId>,
    candidates: Vec<Candidate>,
}

impl BlockPool {
    /// A pool with every block free. One allocation per array, O(blocks).
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] names the setting and what is allowed.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a configuration is handed over: later fields may be consumed"
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

    /// A pool with a policy of the caller's own; `config.eviction` and `config.retention` are ignored:
    /// `Closed` of the crate `kvpool-policies` makes an evictor of a [`crate::Policy`], with retention.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`], also if `evictor` already holds blocks.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "a configuration is handed over: later fields may be consumed"
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

    /// Blocks, null block included.
    #[must_use]
    pub const fn num_blocks(&self) -> usize {
        self.records.len()
    }

    /// Blocks that can be used: all but the null block.
    #[must_use]
    pub const fn num_usable(&self) -> usize {
        self.records.len() - 1
    }

    /// Blocks that an allocation can take now: free and cached-free.
    #[must_use]
    pub fn num_available(&self) -> usize {
        self.allocator.num_free().saturating_add(self.num_cached_free())
    }

    /// Blocks that no request holds but a running step may still touch.
    #[must_use]
    pub const fn num_fenced(&self) -> usize {
        self.fences.num_fenced()
    }

    /// References of all blocks, those of fences and pins included.
    #[must_use]
    pub const fn num_references(&self) -> u64 {
        self.allocator.num_references()
    }

    /// Of those, references that fences and pins hold.
    #[must_use]
    pub const fn num_fence_references(&self) -> u64 {
        self.fences.num_references()
    }

    /// References of `block` that fences hold: part of [`Self::ref_count`].
    #[must_use]
    pub fn fence_references(&self, block: BlockId) -> u32 {
        self.records.at(block.get()).fences
    }

    /// References of `block` outside of fences and pins: block tables and other holders.
    #[must_use]
    pub fn num_holders(&self, block: BlockId) -> u32 {
        self.records.at(block.get()).holders()
    }

    /// References of `block` that forbid somebody else to write to it: those of holders, and of steps
    /// that may still touch it. Pins do not: a planned copy is made before anything of the step is
    /// written.
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

    /// The blocks registered under `hash`, computed ones first. A look, not a hold: see
    /// [`Self::match_and_acquire`].
    #[must_use]
    pub fn copies(&self, hash: &BlockHash) -> Vec<BlockId> {
        self.index.copies(&self.records, hash.into())
    }

    /// Blocks with a reference, fenced ones included.
    #[must_use]
    pub const fn num_held(&self) -> usize {
        self.allocator.num_held()
    }

    /// The free block that is handed out next, if one is free.
    #[must_use]
    pub const fn next_free(&self) -> Option<BlockId> {
        self.allocator.free_list().front()
    }

    /// Names that blocks are registered under, hidden ones included: copies count once.
    #[must_use]
    pub fn num_hashes(&self) -> usize {
        self.index.num_hashes()
    }

    /// The last step for which `complete_step` has been called, if it has.
    #[must_use]
    pub const fn completed_step(&self) -> Option<u64> {
        self.fences.completed()
    }

    /// Whether `complete_step` has been called for `step` or a later one.
    #[must_use]
    pub fn is_completed(&self, step: u64) -> bool {
        self.fences.is_completed(step)
    }

    /// Tokens per block.
    #[must_use]
    pub const fn block_size(&self) -> usize {
        self.index.block_size()
    }

    /// The hash algorithm of what is registered; `None` while nothing is: see
    /// [`crate::PrefixIndex::algorithm`].
    #[must_use]
    pub const fn algorithm(&self) -> Option<crate::hash::HashAlgorithm> {
        self.index.algorithm()
    }

    /// How hits are verified.
    #[must_use]
    pub const fn verify(&self) -> Verify {
        self.index.verify()
    }

    /// The current epoch: 0, plus one per [`Self::bump_epoch`].
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Why the pool refuses work, if it does.
    #[must_use]
    pub fn poison_reason(&self) -> Option<&str> {
        self.poison.get().map(AsRef::as_ref)
    }

    /// References of `block`, those of fences included; `None` for ids outside the pool.
    #[must_use]
    pub fn ref_count(&self, block: BlockId) -> Option<u32> {
        self.records.of(block).map(|record| record.references)
    }

    /// Where `block` is; `None` for ids outside the pool.
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

    /// The hash under which `block` is registered.
    #[must_use]
    pub fn hash_of(&self, block: BlockId) -> Option<BlockHash> {
        Index::hash_of(&self.records, block)
    }

    /// Whether `block` is registered and its KV written.
    #[must_use]
    pub fn is_computed(&self, block: BlockId) -> bool {
        self.records.at(block.get()).is_computed()
    }

    /// The free blocks in the order in which they will be handed out. O(free blocks).
    #[must_use]
    pub fn free_order(&self) -> Vec<BlockId> {
        self.allocator.free_list().iter(&self.records[..]).collect()
    }

    /// The cached-free blocks in the order in which they would be evicted. O(cached-free blocks).
    #[must_use]
    pub fn eviction_order(&self) -> Vec<BlockId> {
        let mut order = self.order.order(&self.records);
        if self.pinned_in_order > 0 {
            order.retain(|&block| self.records.at(block.get()).references == 0);
        }
        order
    }

    /// Gauges and counters. O(1).
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
            // B3: a registered block is held or cached-free.
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

    /// Recounts every invariant of the pool and of its parts from scratch. O(blocks), for tests and
    /// scrubbing.
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

    /// The name of the policy that chooses victims.
    #[must_use]
    pub fn policy_name(&self) -> &'static str {
        self.order.name()
    }

    /// Tells the evictor what `block`, just registered, holds. `before` is the block before it in its
    /// holder's table.
    fn note_registered(&mut self, block: BlockId, link: &LinkRef<'_>, before: Option<BlockId>) {
        if !self.history {
            return;
        }
        let group = self.records.at(block.get()).group;
        let parent = before.or_else(|| self.head_of(link.parent.as_ref(), group));
        let content = Content { key: Name { hash: &link.hash, group }.key(), depth: link.depth };
        self.order.registered(block, content, parent);
    }

    /// The first block with a content of that hash, if there is one.
    #[inline]
    fn head_of(&self, hash: Option<&BlockHash>, group: u16) -> Option<BlockId> {
        self.index.head_of_name(&self.records, Name { hash: hash?, group })
    }

    /// Tells the evictor that a lookup took a block which was in use.
    fn note_shared_hit(&mut self, block: BlockId) {
        if self.history {
            self.order.hit(&mut self.records, block);
        }
    }

    /// Takes a registered block out of the index.
    #[inline]
    fn unregister(&mut self, block: BlockId, cause: RemovalCause) -> Visibility {
        if self.is_watched() {
            return self.unregister_watched(block, cause);
        }
        self.index.remove(&mut self.records, block)
    }

    /// Takes blocks that plain LRU evicts out of the index, and says so.
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
