//! Checks of a pool in O(1), one block or the sums at a time; and the poisoning of a pool whose
//! invariant is broken.
//!
//! [`BlockPool::check_invariants`] recounts everything at once, O(blocks), and is for tests. A scrubber
//! checks a few blocks and the sums per call ([`BlockPool::check_block`], [`BlockPool::check_sums`]),
//! so that an engine can afford it in every step. A broken invariant *poisons* the pool: from then on
//! every operation is refused with the reason ([`PoolError::Poisoned`]), instead of serving wrong KV.
//! Counts, states, orders and statistics can still be read, because they help to find the cause.
//!
//! Between two checks, operations only check links: a link is followed only if its neighbour links
//! back.

use super::BlockPool;
use crate::block::{BlockId, NULL_BLOCK};
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::record::ByBlock;

/// # Checks and poisoning
///
/// A broken invariant poisons the pool: it refuses all work from then on.
impl BlockPool {
    /// Checks one block in O(1) (O(log blocks) with access times):
    ///
    /// - The block is in exactly one place (B1), in the order of eviction only if computed (B2), and
    ///   free only without a content (B3).
    /// - Its links in the free list, in the ring of its hash and in the evictor's orders match those of
    ///   its neighbours.
    /// - The index table leads from its hash to its ring.
    /// - Its parent in the evictor has the previous content of its chain.
    /// - Fences have at most as many references as the block has (F1).
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
        // A pinned block keeps its place in the order.
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

    /// Checks that the parent of a block has the previous content of its chain.
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

    /// Checks the sums: free, cached-free and held blocks add up to all usable blocks (B1), and at most
    /// the held blocks are fenced (F2). O(1).
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

    /// Poisons the pool because of a broken invariant: it refuses all work from now on. Returns the
    /// error of those refusals.
    #[cold]
    pub fn poison(&self, violation: &InvariantViolation) -> PoolError {
        self.poison_because(|| violation.to_string())
    }

    /// Returns an error if an invariant is broken, or if a part has found broken links.
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

    /// Poisons the pool, unless it is poisoned already: the first reason remains.
    #[cold]
    pub(crate) fn poison_because(&self, reason: impl FnOnce() -> String) -> PoolError {
        let reason = self.poison.get_or_init(|| reason().into_boxed_str());
        PoolError::Poisoned { reason: reason.to_string() }
    }

    /// Returns the result of a part. If the part found a broken invariant, poisons the pool.
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
