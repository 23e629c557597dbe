//! Checks the invariants of a pool in small parts: one block per call, or only the pool's totals, each
//! in O(1).
//!
//! [`BlockPool::check_invariants`] recounts everything at once, O(blocks), and is for tests. A scrubber
//! (a checker that runs in production) checks a few blocks and the totals per call
//! ([`BlockPool::check_block`], [`BlockPool::check_sums`]), so an engine can afford to call it in every
//! step. A broken invariant *poisons* the pool: every later operation returns the reason
//! ([`PoolError::Poisoned`]), so that the pool cannot serve wrong KV. The pool's counters, block states
//! and orders can still be read, because they help to find the cause.
//!
//! Ordinary operations make only one check: they follow a list link from one block to another only if
//! the other block links back.

use super::BlockPool;
use crate::block::{BlockId, NULL_BLOCK};
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::record::ByBlock;

/// # Checks and poisoning
///
/// A broken invariant poisons the pool, which then refuses every operation.
impl BlockPool {
    /// Checks one block in O(1) (O(log blocks) with access times):
    ///
    /// - The block is either held, in the eviction order, or free (B1). Only a computed block is in the
    ///   eviction order (B2). A free block has no content (B3).
    /// - Its links in the free list, in the evictor's orders, and in the ring of blocks with the same
    ///   hash match the links of its neighbours.
    /// - The index table contains the ring of its hash.
    /// - The block that the evictor stores as its parent contains the previous content of its hash
    ///   chain.
    /// - The block has at least as many references as the fences hold of it (F1).
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        let record = self.records.at(block.get());
        if block.is_null() || !record.is_in_order() {
            self.allocator.free_list().check_block(&self.records[..], block)?;
        }
        self.index.check_block(&self.records, block)?;
        self.order.check_block(&self.records, block)?;
        let references = record.references;
        let on_free_list = record.is_free();
        let evictable = self.order.contains(&self.records, block);
        // A pinned block may remain in the eviction order, so its pins alone do not count it as held.
        let held = references > 0 && !(evictable && record.is_released());
        let places = usize::from(on_free_list) + usize::from(evictable) + usize::from(held);
        ensure(places == usize::from(block != NULL_BLOCK), "B1 (a block is in exactly one place)", || {
            format!("{block:?}: {references} references, free {on_free_list}, evictable {evictable}")
        })?;
        ensure(!evictable || record.is_computed(), "B2 (evictable blocks are computed)", || {
            format!("{block:?}")
        })?;
        ensure(!on_free_list || !record.is_registered(), "B3 (free blocks are not registered)", || {
            format!("{block:?}")
        })?;
        let fenced = record.fences;
        ensure(fenced <= references, "F1 (a block has at least its fence references)", || {
            format!("{block:?}: {fenced} of {references}")
        })?;
        self.check_parent(block)
    }

    /// Checks that the block that the evictor stores as the parent of `block` contains the previous
    /// content of its hash chain.
    fn check_parent(&self, block: BlockId) -> Result<(), InvariantViolation> {
        if !self.history || !self.is_registered(block) {
            return Ok(());
        }
        let Some(parent) = self.order.parent(block) else { return Ok(()) };
        let (holds, wanted) = (self.hash_of(parent), self.index.noted_parent(&self.records, block));
        ensure(holds == wanted, "E5 (the parent of a block has the content before its own)", || {
            format!("the parent of {block:?} is {parent:?} with {holds:?}, expected {wanted:?}")
        })
    }

    /// Checks the pool's totals: the numbers of free, cached-free and held blocks add up to the number
    /// of usable blocks (B1), and the number of fenced blocks is at most the number of held blocks
    /// (F2). O(1).
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_sums(&self) -> Result<(), InvariantViolation> {
        let (free, cached_free) = (self.allocator.num_free(), self.num_cached_free());
        let (held, fenced) = (self.allocator.num_held(), self.fences.num_fenced());
        let sum = free.saturating_add(cached_free).saturating_add(held);
        ensure(sum == self.num_usable(), "B1 (the sums hold)", || {
            format!("{free} free, {cached_free} cached-free, {held} held of {}", self.num_usable())
        })?;
        let references = self.fences.num_references();
        ensure(self.fences.is_plausible() && fenced <= held, "F2 (fenced blocks are held)", || {
            format!("{fenced} fenced of {held} held, {references} fence references")
        })
    }

    /// Poisons the pool because of a broken invariant: every later operation is refused. Returns the
    /// error that those operations return.
    #[cold]
    pub fn poison(&self, violation: &InvariantViolation) -> PoolError {
        self.poison_because(|| violation.to_string())
    }

    /// Returns an error if the pool is poisoned, or if one of its lists has found links that do not
    /// match.
    ///
    /// # Errors
    /// [`PoolError::Poisoned`].
    #[inline]
    pub fn check_poison(&self) -> Result<(), PoolError> {
        let torn = self.index.is_torn() || self.allocator.free_list().is_torn() || self.order.is_torn();
        if self.poison.get().is_none() && !torn && !self.order.has_panicked() {
            return Ok(());
        }
        if torn {
            Err(self
                .poison_because(|| "L1: an operation has found links that do not match each other".into()))
        } else {
            Err(self.poison_because(|| {
                format!("the evictor {:?} panicked in the middle of an operation", self.order.name())
            }))
        }
    }

    /// Poisons the pool. If it is poisoned already, keeps the first reason.
    #[cold]
    pub(crate) fn poison_because(&self, reason: impl FnOnce() -> String) -> PoolError {
        let reason = self.poison.get_or_init(|| reason().into_boxed_str());
        PoolError::Poisoned { reason: reason.to_string() }
    }

    /// Passes on the result of a call of the allocator or another part. If that part found a broken
    /// invariant, poisons the pool.
    #[inline]
    pub(super) fn poison_if_broken<T>(&self, answer: Result<T, PoolError>) -> Result<T, PoolError> {
        answer.map_err(|error| match error {
            PoolError::Poisoned { reason } => self.broken(reason),
            refusal => refusal,
        })
    }

    /// Poisons the pool because an internal invariant broke during an operation.
    #[cold]
    pub(super) fn broken(&self, reason: String) -> PoolError {
        self.poison_because(|| reason)
    }
}
