//! Defines evictors, which decide the order in which cached-free blocks are reused when no free block
//! is left.
//!
//! An [`Evictor`] owns the *order* of the cached-free blocks and nothing else. Only
//! [`crate::BlockPool`] calls it.
//!
//! Most eviction policies implement [`Policy`]: an order of blocks, and the history from which the
//! policy computes it. `Closed` of the crate `kvpool-policies` turns any of them into an evictor. That
//! evictor is prefix-closed, which means that it evicts a block only after all blocks that follow it in
//! a prompt. It also implements [`crate::retention`] if requested.
//!
//! [`lru`] implements the evictor directly. It is prefix-closed without `Closed`, and the cheapest
//! policy. An [`EvictionPolicy`] selects a policy by name. This crate contains LRU, and the crate
//! `kvpool-policies` contains the other policies. Any crate can add more policies.

pub mod lru;
mod names;
pub mod policy;

use std::fmt;

use crate::block::BlockId;
use crate::error::{InvariantViolation, PoolError};
use crate::retention::{EvictionCause, Retain};
pub use lru::LruEvictor;
pub use names::EvictionPolicy;
pub use policy::{CacheTime, Content, Finish, Outlook, Policy, Release, Signal};

/// A block that has lost its last holder in a release, and is to be inserted into the order of
/// eviction. It has no references, or only pins of planned copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The block.
    pub block: BlockId,
    /// The position of the block in its hash chain. 0 for the first block of a prompt.
    pub depth: u32,
}

/// The order in which cached-free blocks are evicted.
///
/// The pool guarantees the following. All blocks are blocks of the pool, and never the null block. A
/// block is inserted only when its last holder has released it, and it is removed or evicted before it
/// is inserted again. No method is called while another call is in progress. If [`Evictor::evict`]
/// returns a block that a planned copy pins, the pool does not reuse that block, and calls `evict`
/// again.
///
/// An evictor has to fulfil the requirements of each method, and has to be deterministic: the same
/// calls give the same order on any host (no clocks, no hash-map order, no process seeds). No method
/// may panic for any arguments. All but `clear`, `grow`, `order` and `check_invariants` MUST be O(1) or
/// O(log n) per block.
pub trait Evictor: fmt::Debug + Send + Sync {
    /// Returns the name of the policy in settings and commands.
    fn name(&self) -> &'static str;

    /// Inserts the blocks that one release made cached-free. All of them count as used at the same
    /// time.
    ///
    /// The evictor MUST hold every candidate afterwards. It MUST evict the candidates of one call by
    /// depth, the deepest first, and at equal depth in the order of the call. If holders hold whole
    /// prefixes, this evicts a block after the blocks that follow it. It MAY reorder `candidates`. It
    /// MUST ignore a block that it already holds.
    fn insert(&mut self, candidates: &mut [Candidate]);

    /// Whether the evictor uses the hints that [`Self::signal`] gives about how requests ended. The
    /// result must never change.
    fn wants_signals(&self) -> bool {
        false
    }

    /// Receives how a request ended, before it releases these blocks. The blocks are in use, and the
    /// signal applies to their next release. The evictor MAY ignore it.
    fn signal(&mut self, _blocks: &[BlockId], _signal: Signal) {}

    /// Whether the evictor orders blocks by ages on the caller's clock. The result must never change.
    fn keeps_time(&self) -> bool {
        false
    }

    /// Sets the time, in seconds on a clock of the caller. The pool calls this method for evictors that
    /// [keep time](Self::keeps_time). With retention, [`Retain::advance_time`] is called instead.
    ///
    /// # Errors
    /// [`PoolError::TimeBackwards`]; [`PoolError::InvalidConfig`] if the time is not a number.
    fn set_time(&mut self, _now: f64) -> Result<(), PoolError> {
        Ok(())
    }

    /// Removes `block` and its history, because the block no longer has its content. The block may be
    /// in use. Returns whether the evictor held it.
    ///
    /// The call MUST NOT change the order of other blocks, except blocks whose eviction had to wait for
    /// this block.
    fn remove(&mut self, block: BlockId) -> bool;

    /// Removes `block` because a lookup acquired it. The block keeps its content. Returns whether the
    /// evictor held it. If the evictor [wants history](Self::wants_history), this is also called for
    /// hits on blocks in use.
    fn hit(&mut self, block: BlockId) -> bool {
        self.remove(block)
    }

    /// Calls [`Self::hit`] for each of the blocks that one lookup acquired. Stops at the first block
    /// that the evictor does not hold. Returns the number of blocks before it.
    fn hit_run(&mut self, blocks: &[BlockId]) -> usize {
        blocks.iter().take_while(|&&block| self.contains(block) && self.hit(block)).count()
    }

    /// Whether the pool must call [`Self::registered`] for new contents, and [`Self::hit`] for hits on
    /// blocks in use. The result must never change.
    fn wants_history(&self) -> bool {
        false
    }

    /// Receives that `block`, which is in use, has a new content. `parent` is the block that contains
    /// the previous content of the chain, if there is one.
    fn registered(&mut self, _block: BlockId, _content: Content, _parent: Option<BlockId>) {}

    /// Calls [`Self::registered`] for consecutive blocks of a chain. The parent of the first block is
    /// `parent`, and the parent of each other block is the block before it.
    fn registered_run(&mut self, run: &[(BlockId, Content)], mut parent: Option<BlockId>) {
        for &(block, content) in run {
            self.registered(block, content, parent);
            parent = Some(block);
        }
    }

    /// Returns the parent of `block`: the block that contains the previous content of its chain. `None`
    /// if there was none, or if the parent no longer has that content. If the parent has lost its
    /// content, or was never computed, the pool looks for another block with that content when `block`
    /// is released, and passes it to [`Self::relink`].
    fn parent(&self, _block: BlockId) -> Option<BlockId> {
        None
    }

    /// Returns the index of the first candidate that has no [`Self::parent`], or whose parent is not
    /// computed. All candidates are computed. `computed` returns whether a block is computed.
    fn find_orphan(&self, candidates: &[Candidate], computed: &dyn Fn(BlockId) -> bool) -> Option<usize> {
        candidates.iter().enumerate().position(|(at, one)| {
            // When a chain is released, its last block comes first, so the parent of each candidate is
            // the next candidate.
            let next = candidates.get(at + 1).map(|next| next.block);
            !self.parent(one.block).is_some_and(|parent| next == Some(parent) || computed(parent))
        })
    }

    /// Receives that `parent` is from now on the parent of `block`, which is in use.
    fn relink(&mut self, _block: BlockId, _parent: BlockId) {}

    /// Whether `block` is the parent of a block that the evictor holds. If so, the pool does not drop
    /// it as a duplicate.
    fn has_dependents(&self, _block: BlockId) -> bool {
        false
    }

    /// Receives that a release frees another block with the same content as `block`. Removes `block`
    /// from the order, if this evictor needs that. Returns whether it has removed `block`. The pool
    /// then inserts `block` again, with the blocks of that release.
    ///
    /// Only evictors that order blocks by time and store no parents need this: without it, they would
    /// evict `block` before the blocks that follow the dropped copy, because those were used later.
    fn renew(&mut self, _block: BlockId) -> bool {
        false
    }

    /// Removes all blocks and their history. O(blocks).
    fn clear(&mut self) {
        while self.evict().is_some() {}
    }

    /// Returns the retention of this evictor, if it has any: priorities, times to live, pins and
    /// tenants.
    fn retention(&self) -> Option<&dyn Retain> {
        None
    }

    /// Returns a mutable reference to the retention. Must return `Some` exactly if [`Self::retention`]
    /// does.
    fn retention_mut(&mut self) -> Option<&mut dyn Retain> {
        None
    }

    /// Removes and returns the next victim. The evictor MUST return a block if it holds any. It MUST
    /// NOT allocate memory.
    fn evict(&mut self) -> Option<BlockId>;

    /// Calls [`Self::evict`] `n` times, or until no block is left, and appends the victims to `out`. It
    /// MUST NOT allocate memory except for `out`.
    fn evict_run(&mut self, n: usize, out: &mut Vec<BlockId>) {
        out.extend((0..n).map_while(|_| self.evict()));
    }

    /// Returns the cause of the last [`Self::evict`]. Explanations of misses use it.
    fn cause(&self) -> EvictionCause {
        EvictionCause::Policy
    }

    /// Returns the policy's prediction of future hits of `block`, if the last [`Self::evict`] returned
    /// that block. Explanations of misses use it.
    fn outlook(&self, _block: BlockId) -> Option<Outlook> {
        None
    }

    /// Receives that the content of `block` was accessed at `time`, on a clock of the caller. The block
    /// is held by the evictor or in use. A call with an earlier time than the last access MUST have no
    /// effect. Policies that do not use times MAY ignore the call.
    fn mark_accessed(&mut self, _block: BlockId, _time: f64) {}

    /// Returns the number of blocks that the evictor holds.
    fn len(&self) -> usize;

    /// Whether the evictor holds no block.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the evictor holds `block`.
    fn contains(&self, block: BlockId) -> bool;

    /// Returns the blocks in the order in which repeated calls of [`Self::evict`] would return them.
    /// O(n), for tests and tools.
    fn order(&self) -> Vec<BlockId>;

    /// Allocates memory for blocks up to `num_blocks - 1`, so that no later call allocates memory. The
    /// pool may call this twice with the same number.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory. Nothing has changed then.
    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError>;

    /// Checks that the data of one block match those of its neighbours in the order. For the null
    /// block, checks the ends of the evictor's lists and its counts. The scrubber calls this method for
    /// every block in turn ([`crate::BlockPool::check_block`]). It MUST NOT allocate memory unless an
    /// invariant is broken.
    ///
    /// # Errors
    /// The broken invariant.
    fn check_block(&self, _block: BlockId) -> Result<(), InvariantViolation> {
        Ok(())
    }

    /// Overwrites value number `what` of `block` with `to`, and adjusts no other value. Tests of the
    /// scrubber use it. Returns false if there is no such value, or if it is already equal.
    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, _block: BlockId, _what: usize, _to: u32) -> bool {
        false
    }

    /// Checks the evictor's data by recounting from scratch.
    ///
    /// # Errors
    /// The first broken invariant.
    fn check_invariants(&self) -> Result<(), InvariantViolation>;
}
