//! Evictors: the order in which cached-free blocks are reused when no free block is left.
//!
//! An [`Evictor`] owns the *order* of the cached-free blocks and nothing else. Only
//! [`crate::BlockPool`] calls it.
//!
//! Most eviction policies implement [`Policy`], which is an order with its history. `Closed` of the
//! crate `kvpool-policies` makes an evictor of any of them. That evictor is prefix-closed, and has
//! [`crate::retention`] if requested. [`lru`] is an evictor of its own; it is prefix-closed by itself
//! and the cheapest. An [`EvictionPolicy`] selects a policy by name. The core contains LRU, and the
//! crate `kvpool-policies` the other policies. Any crate can add more.

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

/// A block that its last holder has released. It is cached-free, unless a planned copy pins it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The block.
    pub block: BlockId,
    /// Its position in its hash chain: 0 for the first block of a prompt.
    pub depth: u32,
}

/// The order in which cached-free blocks are evicted.
///
/// The pool guarantees: blocks are real blocks of the pool; a block is inserted only when its last
/// holder has released it, and removed or evicted before it is inserted again; no call is re-entered.
/// If [`Evictor::evict`] returns a block that a planned copy pins, the block is not a victim, and the
/// pool asks for the next one.
///
/// A policy guarantees what each method requires, deterministically: the same calls give the same order
/// on any host (no clocks, no hash-map order, no process seeds). No method may panic, whatever the
/// arguments. All but `clear`, `grow`, `order` and `check_invariants` MUST be O(1) or O(log n) per
/// block.
pub trait Evictor: fmt::Debug + Send + Sync {
    /// The policy's name, as users write it.
    fn name(&self) -> &'static str;

    /// Inserts the blocks that one release made cached-free. They count as used at the same moment.
    ///
    /// MUST hold every candidate afterwards. From the candidates of one call, MUST evict the deeper
    /// before the shallower, and of equal depth the earlier first: the cache remains prefix-closed when
    /// holders hold whole prefixes. MAY reorder `candidates`. MUST ignore a block that it already
    /// holds.
    fn insert(&mut self, candidates: &mut [Candidate]);

    /// Whether [`Self::signal`] has an effect. The result must never change.
    fn wants_signals(&self) -> bool {
        false
    }

    /// Notes how the request ended that is about to release these blocks, which are in use. It applies
    /// to their next release. MAY be ignored.
    fn signal(&mut self, _blocks: &[BlockId], _signal: Signal) {}

    /// Whether the evictor measures ages on the caller's clock. The result must never change.
    fn keeps_time(&self) -> bool {
        false
    }

    /// Sets the time, in seconds on a clock of the caller. Called for evictors that [keep
    /// time](Self::keeps_time). With retention, [`Retain::advance_time`] is called instead.
    ///
    /// # Errors
    /// [`PoolError::TimeBackwards`]; [`PoolError::InvalidConfig`] if the time is not a number.
    fn set_time(&mut self, _now: f64) -> Result<(), PoolError> {
        Ok(())
    }

    /// Removes `block`, held by the evictor or in use, because its content is gone. Returns whether the
    /// evictor held it.
    ///
    /// MUST NOT change the order of the other blocks, except blocks that waited for this one.
    fn remove(&mut self, block: BlockId) -> bool;

    /// Removes `block` because a lookup took it. Its content remains. Returns whether the evictor held
    /// it. If the evictor [wants history](Self::wants_history), this is also called for hits on blocks
    /// in use.
    fn hit(&mut self, block: BlockId) -> bool {
        self.remove(block)
    }

    /// Calls [`Self::hit`] for blocks that one lookup took, up to the first that the evictor does not
    /// hold. Returns the number of blocks that it held.
    fn hit_run(&mut self, blocks: &[BlockId]) -> usize {
        blocks.iter().take_while(|&&block| self.contains(block) && self.hit(block)).count()
    }

    /// Whether the pool must call [`Self::registered`], and [`Self::hit`] for blocks in use. The result
    /// must never change.
    fn wants_history(&self) -> bool {
        false
    }

    /// Notes that `block`, which is in use, has a new content. `parent` is the block with the previous
    /// content of the chain, if there is one.
    fn registered(&mut self, _block: BlockId, _content: Content, _parent: Option<BlockId>) {}

    /// Calls [`Self::registered`] for consecutive blocks of a chain. The parent of the first is
    /// `parent`, and the parent of each other block is the one before it.
    fn registered_run(&mut self, run: &[(BlockId, Content)], mut parent: Option<BlockId>) {
        for &(block, content) in run {
            self.registered(block, content, parent);
            parent = Some(block);
        }
    }

    /// Returns the parent of `block`: the block with the previous content of its chain. `None` if there
    /// was none, or if that content is gone. When `block` is released, the pool then looks for another
    /// block with that content, and passes it to [`Self::relink`]. It does the same if the parent was
    /// never computed.
    fn parent(&self, _block: BlockId) -> Option<BlockId> {
        None
    }

    /// Returns the index of the first candidate whose [`Self::parent`] is gone or not computed.
    /// Candidates themselves are computed. `computed` returns whether a block is.
    fn find_orphan(&self, candidates: &[Candidate], computed: &dyn Fn(BlockId) -> bool) -> Option<usize> {
        candidates.iter().enumerate().position(|(at, one)| {
            // When a chain is released, the parent of each candidate is the next candidate.
            let next = candidates.get(at + 1).map(|next| next.block);
            !self.parent(one.block).is_some_and(|parent| next == Some(parent) || computed(parent))
        })
    }

    /// Notes that `parent` is now the parent of `block`, which is in use.
    fn relink(&mut self, _block: BlockId, _parent: BlockId) {}

    /// Whether `block` is the parent of a block that the evictor holds. If so, the pool does not drop
    /// it as a duplicate.
    fn has_dependents(&self, _block: BlockId) -> bool {
        false
    }

    /// Notes that a release drops another copy of the content of `block`. Returns whether the evictor
    /// held `block` and has removed it; the pool then inserts it again, with the blocks of that
    /// release. Only orders that are prefix-closed by their times alone need it: the blocks after the
    /// dropped copy are newer than `block`.
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

    /// Returns the retention mutably. Must return `Some` exactly if [`Self::retention`] does.
    fn retention_mut(&mut self) -> Option<&mut dyn Retain> {
        None
    }

    /// Removes and returns the next victim. MUST return a block whenever it holds one. MUST NOT
    /// allocate memory.
    fn evict(&mut self) -> Option<BlockId>;

    /// Calls [`Self::evict`] `n` times, or until no block is left, and appends the victims to `out`.
    /// MUST NOT allocate memory except for `out`.
    fn evict_run(&mut self, n: usize, out: &mut Vec<BlockId>) {
        out.extend((0..n).map_while(|_| self.evict()));
    }

    /// Returns the cause of the last [`Self::evict`], for explanations.
    fn cause(&self) -> EvictionCause {
        EvictionCause::Policy
    }

    /// Returns the policy's expectations about `block`, if the last [`Self::evict`] returned that
    /// block. For explanations.
    fn outlook(&self, _block: BlockId) -> Option<Outlook> {
        None
    }

    /// Notes that the content of `block`, held by the evictor or in use, was accessed at `time`, on a
    /// clock of the caller. MUST NOT move an access back in time. MAY ignore it, as policies without
    /// times do.
    fn mark_accessed(&mut self, _block: BlockId, _time: f64) {}

    /// Returns the number of blocks that the evictor holds.
    fn len(&self) -> usize;

    /// Whether the evictor holds no block.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the evictor holds `block`.
    fn contains(&self, block: BlockId) -> bool;

    /// Returns the blocks in the order in which they would be evicted if no other call came between.
    /// For tests and tools: O(n).
    fn order(&self) -> Vec<BlockId>;

    /// Makes room for blocks up to `num_blocks - 1`, so that no later call allocates memory. MAY be
    /// called twice with the same number.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory. Nothing has changed then.
    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError>;

    /// Checks the data of one block against its neighbours. For the null block, checks the ends of the
    /// orders, and the counts. The scrubber calls it for every block in turn
    /// ([`crate::BlockPool::check_block`]). MUST NOT allocate memory unless something is broken.
    ///
    /// # Errors
    /// The broken invariant.
    fn check_block(&self, _block: BlockId) -> Result<(), InvariantViolation> {
        Ok(())
    }

    /// Overwrites the value number `what` of `block` with `to`, without any bookkeeping. False if there
    /// is no such value, or it is already equal. For tests of the scrubber.
    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, _block: BlockId, _what: usize, _to: u32) -> bool {
        false
    }

    /// Recounts the evictor's data from scratch.
    ///
    /// # Errors
    /// The first broken invariant.
    fn check_invariants(&self) -> Result<(), InvariantViolation>;
}
