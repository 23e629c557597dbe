//! Evictors: which cached-free block to reuse when no free block is left.
//!
//! An [`Evictor`] owns the *order* of the cached-free blocks and nothing else; [`crate::BlockPool`] is
//! its only caller.
//!
//! Most policies are a [`Policy`], an order with its history; `Closed` of the crate `kvpool-policies`
//! makes a prefix-closed evictor of any of them, with [`crate::retention`] if it is asked for. [`lru`]
//! is an evictor of its own, closed by itself and the cheapest. An [`EvictionPolicy`] is one of them by
//! name. The core has LRU, the crate `kvpool-policies` the others, and any crate can.

pub mod lru;
mod names;
pub mod policy;

use std::fmt;

use crate::block::BlockId;
use crate::error::{InvariantViolation, PoolError};
use crate::retention::{EvictionCause, Retain};
pub use lru::LruEvictor;
pub use names::EvictionPolicy;
pub use policy::{Content, Finish, Kept, Outlook, Policy, Release, Signal};

/// A block that its last holder has released: cached-free, unless a planned copy pins it.
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
/// If [`Evictor::evict`] gives up a block that a planned copy pins, it is no victim, and the next one
/// is asked for.
///
/// A policy guarantees what each method says, deterministically: the same calls give the same order on
/// any host (no clocks, no hash-map order, no process seeds). No method may panic, whatever the
/// arguments. All but `clear`, `grow`, `order` and `check_invariants` MUST be O(1) or O(log n) per
/// block.
pub trait Evictor: fmt::Debug + Send + Sync {
    /// The policy's name, as users write it.
    fn name(&self) -> &'static str;

    /// Takes the blocks that one release made cached-free. They count as touched at the same moment.
    ///
    /// MUST hold every candidate afterwards. MUST evict, of the candidates of one call, the deeper
    /// before the shallower, and of equal depth the earlier first: the cache stays prefix-closed when
    /// holders hold whole prefixes. MAY reorder `candidates`. MUST ignore a block that it already
    /// holds.
    fn insert(&mut self, candidates: &mut [Candidate]);

    /// Whether [`Self::signal`] does anything. Must always say the same.
    fn wants_signals(&self) -> bool {
        false
    }

    /// Learns of blocks in use that the request which is about to release them ended so. It counts for
    /// their next release. MAY be ignored.
    fn signal(&mut self, _blocks: &[BlockId], _signal: Signal) {}

    /// Whether it measures ages on the caller's clock. Must always say the same.
    fn keeps_time(&self) -> bool {
        false
    }

    /// Learns the time, in seconds on a clock of the caller's. Asked of those that [keep
    /// time](Self::keeps_time); with retention it is [`Retain::advance_time`] that says it.
    ///
    /// # Errors
    /// [`PoolError::TimeBackwards`]; [`PoolError::InvalidConfig`] for what is no number.
    fn set_time(&mut self, _now: f64) -> Result<(), PoolError> {
        Ok(())
    }

    /// Gives up `block`, held here or in use, because its content is gone. Returns whether it was held.
    ///
    /// MUST NOT change the order of the other blocks, those apart that waited for it.
    fn remove(&mut self, block: BlockId) -> bool;

    /// Gives up `block`, because a lookup took it: its content stays. Returns whether it was held. A
    /// policy that [wants history](Self::wants_history) is told of hits on blocks in use too.
    fn hit(&mut self, block: BlockId) -> bool {
        self.remove(block)
    }

    /// [`Self::hit`] of blocks that one lookup took, from the first on, up to the first that is not
    /// held. Returns how many were.
    fn hit_run(&mut self, blocks: &[BlockId]) -> usize {
        blocks.iter().take_while(|&&block| self.contains(block) && self.hit(block)).count()
    }

    /// Whether [`Self::registered`], and [`Self::hit`] for blocks in use, are to be called. Must always
    /// say the same.
    fn wants_history(&self) -> bool {
        false
    }

    /// Learns that `block`, which is in use, has a new content, behind that of `parent` if there is one
    /// in its chain.
    fn registered(&mut self, _block: BlockId, _content: Content, _parent: Option<BlockId>) {}

    /// [`Self::registered`] of blocks of one chain: the first behind `parent`, each of the others
    /// behind the one before it.
    fn registered_run(&mut self, run: &[(BlockId, Content)], mut parent: Option<BlockId>) {
        for &(block, content) in run {
            self.registered(block, content, parent);
            parent = Some(block);
        }
    }

    /// The block that `block` hangs on: the one with the content before its own. `None` if there was
    /// none, or if that content is gone: at the release of `block` the pool then looks for another
    /// block with it, as it does if the parent was never computed, and says so with [`Self::relink`].
    fn parent(&self, _block: BlockId) -> Option<BlockId> {
        None
    }

    /// Where in `candidates` the first block is whose [`Self::parent`] is gone, or is none of those
    /// that are `computed`, as candidates are.
    fn find_orphan(&self, candidates: &[Candidate], computed: &dyn Fn(BlockId) -> bool) -> Option<usize> {
        candidates.iter().enumerate().position(|(at, one)| {
            // Of a chain that is released each hangs on the next.
            let next = candidates.get(at + 1).map(|next| next.block);
            !self.parent(one.block).is_some_and(|parent| next == Some(parent) || computed(parent))
        })
    }

    /// Learns that `parent` has the content before that of `block`, which is in use: from now on it
    /// hangs on that.
    fn relink(&mut self, _block: BlockId, _parent: BlockId) {}

    /// Whether cached blocks held here hang on `block`. A copy of a content is not dropped then, though
    /// another exists.
    fn has_dependents(&self, _block: BlockId) -> bool {
        false
    }

    /// Learns that a release drops another copy of the content of `block`. Returns whether `block` was
    /// held and has been given up: the pool then inserts it again, with the blocks of that release. For
    /// orders that are closed by their times alone: what the copy's holder held behind it is newer than
    /// `block` is.
    fn renew(&mut self, _block: BlockId) -> bool {
        false
    }

    /// Forgets all contents, history included. O(blocks).
    fn clear(&mut self) {
        while self.evict().is_some() {}
    }

    /// Priorities, times to live, pins and tenants, if this evictor has them.
    fn retention(&self) -> Option<&dyn Retain> {
        None
    }

    /// The same, to be told something. Must have it exactly if [`Self::retention`] does.
    fn retention_mut(&mut self) -> Option<&mut dyn Retain> {
        None
    }

    /// Gives up the next victim. MUST return a block whenever it holds one. MUST NOT allocate.
    fn evict(&mut self) -> Option<BlockId>;

    /// [`Self::evict`], `n` times or until nothing is held, appending to `out`. MUST NOT allocate
    /// beyond what `out` takes.
    fn evict_run(&mut self, n: usize, out: &mut Vec<BlockId>) {
        out.extend((0..n).map_while(|_| self.evict()));
    }

    /// Why the last [`Self::evict`] gave up the block that it did; for explanations.
    fn cause(&self) -> EvictionCause {
        EvictionCause::Policy
    }

    /// What the policy thought of `block`, if that is what the last [`Self::evict`] gave up; for
    /// explanations.
    fn outlook(&self, _block: BlockId) -> Option<Outlook> {
        None
    }

    /// Learns that the content of `block`, held here or in use, was accessed at `time`, on a clock of
    /// the caller's. MUST NOT move an access back in time. MAY ignore it, as policies without times do.
    fn mark_accessed(&mut self, _block: BlockId, _time: f64) {}

    /// Number of blocks held.
    fn len(&self) -> usize;

    /// Whether no block is held.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `block` is held.
    fn contains(&self, block: BlockId) -> bool;

    /// The blocks in the order in which they would be evicted if nothing else happened. For tests and
    /// tools: O(n).
    fn order(&self) -> Vec<BlockId>;

    /// Makes room for blocks up to `num_blocks - 1`, so that no later call allocates. MAY be asked
    /// twice for the same.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory; then nothing has changed.
    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError>;

    /// Checks what is known of one block against its neighbours; for the null block, the ends of its
    /// orders and what is counted. The scrubber asks it of every block in turn
    /// ([`crate::BlockPool::check_block`]). MUST NOT allocate unless something is broken.
    ///
    /// # Errors
    /// The broken invariant.
    fn check_block(&self, _block: BlockId) -> Result<(), InvariantViolation> {
        Ok(())
    }

    /// Changes the `what`th thing that is noted of `block` to `to`, behind the evictor's back. False if
    /// there is no such thing, or if it is so already. For tests of the scrubber.
    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, _block: BlockId, _what: usize, _to: u32) -> bool {
        false
    }

    /// Recounts its own structures from scratch.
    ///
    /// # Errors
    /// The first broken invariant.
    fn check_invariants(&self) -> Result<(), InvariantViolation>;
}
