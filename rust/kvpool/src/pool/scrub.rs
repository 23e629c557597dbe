//! The scrubber: checks a few blocks per call against everything that is known of them, all the time, while the pool works.
//!
//! Owns: which block is checked next, and what a pool does once an invariant is broken. [`BlockPool::check_invariants`]
//! recounts everything at once, O(blocks), and is for tests; [`BlockPool::scrub`] checks a few blocks and the sums, so that an
//! engine can afford it in every step. Whatever breaks *poisons* the pool: from then on every operation is refused with the
//! reason ([`PoolError::Poisoned`]) instead of serving wrong KV. Readings that name no block to be used, and those that help to
//! find out what happened, still answer: counts, states, orders, events, statistics.
//!
//! What is checked of a block: that it is in exactly one place (B1), in the order of eviction only if computed (B2), free only without a
//! content (B3); that its links in the free list, in the rings of the index and in the evictor's orders are mirrored by its
//! neighbours; that the table leads from its hash to its ring; that it hangs on the block with the content before its own; that
//! fences have no more references than there are (F1); and, in a pool with a digest, that references, fences and content are
//! what the last operation left (D1). Of the pool, in each call: that free, cached-free and held blocks add up to all, and, with
//! a digest, that the counters are those of the blocks (D2).
//!
//! A pool without a digest does not notice a reference count that was changed from one possible number to another.
//!
//! Between two scrubs operations look out for links alone: they are followed only if they are mirrored.
//!
//! Costs: O(1) per block checked (O(log blocks) with access times), O(blocks touched since the last digest) per call.

use super::BlockPool;
use super::digest::Totals;
use crate::block::record::ByBlock;
use crate::block::{BlockId, NULL_BLOCK};
use crate::error::{InvariantViolation, PoolError, ensure};

/// What a call of a scrubber did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubReport {
    /// The block that the next call begins with; of a manager, on the device.
    pub position: usize,
    /// Blocks checked by this call, the null block included, in all tiers.
    pub blocks: usize,
    /// Requests whose tables this call has finished checking; 0 for a pool.
    pub requests: usize,
    /// How often everything has been checked so far.
    pub passes: u64,
}

/// Where the scrubber is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scrubber {
    at: u32,
    passes: u64,
}

impl BlockPool {
    /// Checks the next `blocks` blocks and the sums: see the list above. A broken invariant poisons the pool. Begins where the last
    /// call stopped and goes round; never checks a block twice in one call. O(`blocks`).
    ///
    /// ```
    /// use kvpool::{BlockPool, PoolConfig};
    /// let mut pool = BlockPool::new(PoolConfig { num_blocks: 100, digest: true, ..PoolConfig::default() })?;
    /// pool.allocate(3)?;
    /// assert_eq!(pool.scrub(64)?.position, 64);
    /// let report = pool.scrub(64)?;
    /// assert_eq!((report.position, report.passes), (28, 1));
    /// # Ok::<(), kvpool::PoolError>(())
    /// ```
    ///
    /// # Errors
    /// [`PoolError::Poisoned`] with the invariant and what was found, now and from now on.
    pub fn scrub(&mut self, blocks: usize) -> Result<ScrubReport, PoolError> {
        self.check_poison()?;
        let blocks = blocks.min(self.num_blocks());
        self.settle_digest();
        let broken = self.check_sums().and_then(|()| self.scrub_blocks(blocks)).err();
        if let Some(violation) = broken {
            return Err(self.broken(violation.to_string()));
        }
        let Scrubber { at, passes } = self.scrubber;
        Ok(ScrubReport { position: at as usize, blocks, requests: 0, passes })
    }

    fn scrub_blocks(&mut self, blocks: usize) -> Result<(), InvariantViolation> {
        for _ in 0..blocks {
            self.check_block(BlockId::new(self.scrubber.at))?;
            self.scrubber.at += 1;
            if self.scrubber.at as usize >= self.num_blocks() {
                self.scrubber = Scrubber { at: 0, passes: self.scrubber.passes + 1 };
            }
        }
        Ok(())
    }

    /// Everything that can be said of one block in O(1).
    pub(super) fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        let record = self.records.at(block.get());
        if block.is_null() || !record.is_in_order() {
            self.allocator.free_list().check_block(&self.records[..], block)?;
        }
        self.index.check_block(&self.records, block)?;
        self.order.check_block(&self.records, block)?;
        self.check_term(block)?;
        let references = record.references;
        let on_free_list = record.is_free();
        let evictable = self.order.contains(&self.records, block);
        // Pins leave a block its place in the order.
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
        ensure(fenced <= references, "F1 (fence references are references)", || {
            format!("{block:?}: {fenced} of {references}")
        })?;
        self.check_parent(block)
    }

    /// A block hangs on one with the content before its own.
    fn check_parent(&self, block: BlockId) -> Result<(), InvariantViolation> {
        if !self.history || !self.is_registered(block) {
            return Ok(());
        }
        let Some(parent) = self.order.parent(block) else { return Ok(()) };
        let (holds, wanted) = (self.hash_of(parent), self.index.noted_parent(&self.records, block));
        ensure(holds == wanted, "E5 (a block hangs on the content before its own)", || {
            format!("{block:?} hangs on {parent:?} with {holds:?}, not {wanted:?}")
        })
    }

    /// What has to add up. O(1).
    pub(super) fn check_sums(&self) -> Result<(), InvariantViolation> {
        let (free, cached_free) = (self.allocator.num_free(), self.num_cached_free());
        let (held, fenced) = (self.allocator.num_held(), self.fences.num_fenced());
        let sum = free.saturating_add(cached_free).saturating_add(held);
        ensure(sum == self.num_usable(), "B1 (the sums hold)", || {
            format!("{free} free, {cached_free} cached-free, {held} held of {}", self.num_usable())
        })?;
        let references = self.fences.num_references();
        ensure(self.fences.is_plausible() && fenced <= held, "F2 (fenced blocks are held)", || {
            format!("{fenced} fenced of {held} held, {references} fence references")
        })?;
        let Some(totals) = self.digest_totals() else { return Ok(()) };
        let counted = Totals {
            references: self.allocator.num_references(),
            fences: references,
            held,
            fenced,
            registered: self.index.num_registered(),
            contents: self.content_sum(),
        };
        ensure(totals == counted, "D2 (counters are those of the blocks)", || {
            format!("counted {counted:?}, found {totals:?}")
        })
    }

    /// Refuses work if an invariant broke before, or if a part met broken links.
    #[inline]
    pub(crate) fn check_poison(&self) -> Result<(), PoolError> {
        let torn = self.index.is_torn() || self.allocator.free_list().is_torn() || self.order.is_torn();
        if self.poison.get().is_none() && !torn && !self.order.has_panicked() {
            return Ok(());
        }
        if torn {
            Err(self.condemn(|| "L1: an operation met links that do not mirror each other".into()))
        } else {
            Err(self.condemn(|| {
                format!("the evictor {:?} panicked in the middle of an operation", self.order.name())
            }))
        }
    }

    /// Poisons the pool, unless it is poisoned already: the first reason stays.
    #[cold]
    pub(crate) fn condemn(&self, reason: impl FnOnce() -> String) -> PoolError {
        let reason = self.poison.get_or_init(|| reason().into_boxed_str());
        PoolError::Poisoned { reason: reason.to_string() }
    }

    /// Poisons the pool: an internal invariant broke during an operation. What the journal has collected is written.
    #[cold]
    pub(super) fn broken(&mut self, reason: String) -> PoolError {
        let error = self.condemn(|| reason);
        self.flush_journal();
        error
    }
}
