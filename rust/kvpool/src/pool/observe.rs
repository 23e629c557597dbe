//! Defines [`PoolObserver`], which receives the notifications of a pool.
//!
//! A pool has at most one observer, which may pass its notifications on to other observers. A pool does
//! not depend on its observer, and returns the same results with and without one.
//!
//! An observer is notified after each change, in the order of the changes. A refused call changes
//! nothing and sends no notification.
//!
//! Costs: without an observer, one branch per call. With an observer, one notification for each content
//! that becomes computed or leaves the index. All other changes cost one notification per group of
//! blocks that change together.

use std::any::Any;
use std::fmt;

use super::BlockPool;
use crate::block::BlockId;
use crate::error::{InvariantViolation, PoolError};
use crate::evictor::Outlook;
use crate::hash::{BlockHash, HashAlgorithm, HashChain};
use crate::prefix_index::Visibility;
use crate::record::{ByBlock, Records};
use crate::retention::{EvictionCause, TenantId};

/// Gives read access to the blocks of a pool.
#[derive(Clone, Copy)]
pub struct Blocks<'a> {
    records: &'a Records,
}

/// The state of one block, as an observer can read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockView {
    /// Number of references, including those of running steps (fences) and of planned copies (pins).
    pub references: u32,
    /// Number of `references` that running steps (fences) and planned copies (pins) hold.
    pub fences: u32,
    /// The content of the block, if it is registered.
    pub content: Option<ContentView>,
}

/// The content of a registered block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentView {
    /// The hash of the content.
    pub hash: BlockHash,
    /// The number of the KV-cache group. The same hash in two groups means two contents. For hidden
    /// contents, which no lookup can find, this is [`u16::MAX`].
    pub group: u16,
    /// The position of the content in its hash chain.
    pub depth: u32,
    /// Whether the KV of the content is written.
    pub computed: bool,
}

impl Blocks<'_> {
    /// Number of blocks in the pool, including the null block.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether the pool has no blocks. Always false.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns the state of `block`. For an id that the pool does not have, returns the state of a free
    /// block. O(1).
    #[must_use]
    #[inline]
    pub fn get(&self, block: BlockId) -> BlockView {
        let record = self.records.at(block.get());
        let content = record.is_registered().then(|| ContentView {
            hash: record.hash,
            group: record.group,
            depth: record.depth(),
            computed: record.is_computed(),
        });
        BlockView { references: record.references, fences: record.fences, content }
    }
}

impl fmt::Debug for Blocks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks").field("len", &self.len()).finish()
    }
}

/// The result of a lookup that acquired the blocks that it found.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Lookup<'a> {
    /// The hashes that were looked up: consecutive hashes of one chain.
    pub hashes: &'a [BlockHash],
    /// The position of the first of these hashes in the chain.
    pub depth: u32,
    /// The hash that precedes the first of these hashes in the chain, if it is known.
    pub parent: Option<BlockHash>,
    /// Number of leading hashes whose blocks were found.
    pub hits: usize,
    /// The blocks that were found. Each of them has one more reference than before the lookup. There is
    /// one block per hit; with KV-cache groups, these are the blocks of all groups.
    pub blocks: &'a [BlockId],
    /// The tenant for whom the lookup was made. `None` if the caller named none.
    pub tenant: Option<TenantId>,
}

/// A list of blocks that were registered together. [`PoolObserver::computed`] is called in addition,
/// even if the same call marks the blocks computed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NewContents<'a> {
    /// The registered blocks.
    pub blocks: &'a [BlockId],
    /// The chain of the blocks, and the position of the first block in it. `None` for a single block
    /// whose chain is unknown.
    pub chain: Option<(&'a HashChain, usize)>,
}

/// Describes a block that became computed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Computed {
    /// The block.
    pub block: BlockId,
    /// The content of the block.
    pub content: ContentView,
    /// The hash of the previous content in the hash chain, if known.
    pub parent: Option<BlockHash>,
    /// The algorithm of the hash.
    pub algorithm: Option<HashAlgorithm>,
    /// Whether no other computed block has this content. If so, lookups can find the content from now
    /// on.
    pub first: bool,
}

/// The reason why a block left the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemovalCause {
    /// An allocation evicted the block, or its retention ended.
    Evicted(EvictionCause),
    /// A call removed the content by block id, or the last holder released the block while it was
    /// uncomputed or a duplicate.
    Dropped,
}

/// Describes a block that left the index.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Removed {
    /// The block.
    pub block: BlockId,
    /// The content that the block had.
    pub content: ContentView,
    /// The algorithm of the hash.
    pub algorithm: Option<HashAlgorithm>,
    /// Whether no other computed block has this content. If so, lookups no longer find the content.
    pub last: bool,
    /// The reason.
    pub cause: RemovalCause,
    /// The policy's prediction of future hits of the content. `None` if the block was not evicted, or
    /// the policy makes no such prediction.
    pub outlook: Option<Outlook>,
}

/// The reason why all cached contents were removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClearCause {
    /// The pool was reset.
    Reset,
    /// The epoch with this number ended.
    Epoch(u64),
}

/// Receives the notifications of a pool: see [`BlockPool::observe`]. The default of every notification
/// does nothing.
#[expect(unused_variables, reason = "the names document the arguments of the default methods")]
pub trait PoolObserver: Any + fmt::Debug + Send + Sync {
    /// Whether the observer needs the hash of the previous content of each content
    /// ([`Computed::parent`]). To store these hashes takes 32 bytes per block. The result must never
    /// change.
    fn wants_parents(&self) -> bool {
        false
    }

    /// Whether the observer needs to know of every content that becomes computed or leaves the index
    /// ([`Self::computed`], [`Self::removed`]). These methods are called once per block. An observer
    /// that only needs [`Self::changed`] returns false and avoids this cost. The result must never
    /// change.
    fn wants_contents(&self) -> bool {
        true
    }

    /// Receives blocks whose references, fences or contents have changed.
    fn changed(&mut self, blocks: &[BlockId]) {}

    /// Receives the result of a lookup that acquired the blocks that it found.
    fn looked_up(&mut self, lookup: &Lookup<'_>) {}

    /// Receives blocks that have been registered.
    fn registered(&mut self, new: &NewContents<'_>, blocks: Blocks<'_>) {}

    /// Receives a block that has become computed.
    fn computed(&mut self, computed: &Computed) {}

    /// Receives a block that has left the index.
    fn removed(&mut self, removed: &Removed) {}

    /// Receives that all cached contents have been removed. `epoch` is the epoch of the pool from now
    /// on. Every block may have changed.
    fn cleared(&mut self, cause: ClearCause, epoch: u64) {}

    /// Receives the time that the caller has set, in seconds on the caller's clock.
    fn time_passed(&mut self, now: f64) {}

    /// Prepares the observer for a pool of `num_blocks` blocks, including the null block. The pool
    /// calls this before it grows.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory. The pool then does not grow, and the
    /// observer must be unchanged.
    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        Ok(())
    }

    /// Compares the observer's records with the pool. [`BlockPool::check_invariants`] calls this
    /// method.
    ///
    /// # Errors
    /// The first difference.
    fn check(&self, pool: &BlockPool) -> Result<(), InvariantViolation> {
        Ok(())
    }
}

/// # Observers
///
/// An observer is notified of every change: see [`PoolObserver`].
impl BlockPool {
    /// Sets the observer, which receives all notifications from now on. Returns the previous observer.
    /// O(1). For the first observer that needs parent hashes, O(blocks).
    ///
    /// ```
    /// use kvpool::observe::PoolObserver;
    /// use kvpool::{BlockId, BlockPool, PoolConfig};
    /// #[derive(Debug, Default)]
    /// struct Changes(usize);
    /// impl PoolObserver for Changes {
    ///     fn changed(&mut self, blocks: &[BlockId]) {
    ///         self.0 += blocks.len();
    ///     }
    /// }
    /// let mut pool = BlockPool::new(PoolConfig::default())?;
    /// pool.observe(Box::new(Changes::default()))?;
    /// let blocks = pool.allocate(3)?;
    /// pool.release(&blocks)?;
    /// assert_eq!(pool.observer::<Changes>().unwrap().0, 6);
    /// # Ok::<(), kvpool::PoolError>(())
    /// ```
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for the parent hashes that the observer
    /// needs. Nothing has changed then.
    pub fn observe(
        &mut self,
        observer: Box<dyn PoolObserver>,
    ) -> Result<Option<Box<dyn PoolObserver>>, PoolError> {
        if observer.wants_parents() {
            self.keep_parents()?;
        }
        Ok(self.observer.replace(observer))
    }

    /// Returns the observer, if it is of type `T`.
    #[must_use]
    pub fn observer<T: PoolObserver>(&self) -> Option<&T> {
        let observer: &dyn Any = self.observer.as_deref()?;
        observer.downcast_ref()
    }

    /// Returns the observer, if it is of type `T`, and read access to the blocks.
    pub fn observer_mut<T: PoolObserver>(&mut self) -> Option<(&mut T, Blocks<'_>)> {
        let observer: &mut dyn Any = self.observer.as_deref_mut()?;
        Some((observer.downcast_mut()?, Blocks { records: &self.records }))
    }

    /// Returns read access to every block.
    #[must_use]
    pub fn blocks(&self) -> Blocks<'_> {
        Blocks { records: &self.records }
    }

    /// Returns the hash of the previous content in the hash chain of `block`, if known: see
    /// [`Computed::parent`]. O(1).
    #[must_use]
    pub fn parent_of(&self, block: BlockId) -> Option<BlockHash> {
        self.index.parent_of(&self.records, block)
    }

    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.observer.as_ref().is_some_and(|observer| observer.wants_contents())
    }

    #[inline]
    pub(super) fn notify_changed(&mut self, blocks: &[BlockId]) {
        if let Some(observer) = &mut self.observer {
            observer.changed(blocks);
        }
    }

    #[inline]
    pub(super) fn notify_looked_up(&mut self, lookup: &Lookup<'_>) {
        if let Some(observer) = &mut self.observer {
            observer.looked_up(lookup);
        }
    }

    #[inline]
    pub(super) fn notify_registered(&mut self, blocks: &[BlockId], chain: Option<(&HashChain, usize)>) {
        if let Some(observer) = &mut self.observer {
            observer.registered(&NewContents { blocks, chain }, Blocks { records: &self.records });
        }
    }

    pub(super) fn notify_time(&mut self, now: f64) {
        if let Some(observer) = &mut self.observer {
            observer.time_passed(now);
        }
    }

    pub(super) fn notify_cleared(&mut self, cause: ClearCause) {
        if let Some(observer) = &mut self.observer {
            observer.cleared(cause, self.epoch);
        }
    }

    #[inline(never)]
    pub(super) fn mark_computed_watched(&mut self, block: BlockId) {
        if self.is_computed(block) {
            return;
        }
        let first = self.index.mark_computed(&mut self.records, block) == Visibility::Appeared;
        self.notify_computed(block, first);
    }

    /// Notifies the observer that a registered block is computed. `first` is true if no other computed
    /// block has its content.
    pub(super) fn notify_computed(&mut self, block: BlockId, first: bool) {
        if !self.is_watched() {
            return;
        }
        let (parent, algorithm) = (self.index.parent_of(&self.records, block), self.index.algorithm());
        let Some(content) = self.blocks().get(block).content else { return };
        if let Some(observer) = &mut self.observer {
            observer.computed(&Computed { block, content, parent, algorithm, first });
        }
    }

    #[inline(never)]
    pub(super) fn unregister_watched(&mut self, block: BlockId, cause: RemovalCause) -> Visibility {
        // The algorithm is read before the removal, because the index resets it when its last block is
        // removed.
        let (content, algorithm) = (self.blocks().get(block).content, self.index.algorithm());
        if content.is_none() {
            return Visibility::Unchanged;
        }
        // No lookup can find a hidden content. So `last` is false when a hidden block is removed.
        let hidden = self.records.at(block.get()).is_hidden();
        let visibility = self.index.remove(&mut self.records, block);
        self.notify_removed(block, content, algorithm, visibility == Visibility::Vanished && !hidden, cause);
        visibility
    }

    /// Notifies the observer that a block has left the index. `last` is true if no other computed block
    /// has its content.
    pub(super) fn notify_removed(
        &mut self,
        block: BlockId,
        content: Option<ContentView>,
        algorithm: Option<HashAlgorithm>,
        last: bool,
        cause: RemovalCause,
    ) {
        if let (Some(observer), Some(content)) = (&mut self.observer, content) {
            let outlook = match cause {
                RemovalCause::Evicted(_) => self.order.outlook(block),
                RemovalCause::Dropped => None,
            };
            observer.removed(&Removed { block, content, algorithm, last, cause, outlook });
        }
    }

    /// Whether the index stores the parent hash of each block, because the evictor or an observer needs
    /// it.
    pub(crate) const fn keeps_parents(&self) -> bool {
        self.index.keeps_parents()
    }

    /// Stores parent hashes from now on. A pool needs this if contents may move between it and a pool
    /// that uses parent hashes.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory.
    pub(crate) fn keep_parents(&mut self) -> Result<(), PoolError> {
        self.index.keep_parents(&self.records)
    }
}
