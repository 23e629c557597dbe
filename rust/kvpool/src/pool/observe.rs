//! `PoolObserver`: what a pool tells whoever watches it.
//!
//! Owns: the contract. A pool has one observer at most; several in one are for that observer to be. The
//! pool knows nothing of what an observer makes of what it is told, and gives the same answers with one
//! and without.
//!
//! Everything is told after it was done, in the order in which it was done, and only what was done: a
//! refused call tells nothing.
//!
//! Costs: without an observer one branch per call. With one, contents are told one by one as they
//! become computed or leave, all else in runs.

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

/// The blocks of a pool, to look at.
#[derive(Clone, Copy)]
pub struct Blocks<'a> {
    records: &'a Records,
}

/// What a pool knows of one block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockView {
    /// References, those of fences and pins included.
    pub references: u32,
    /// Of these, references that fences and pins hold.
    pub fences: u32,
    /// What it is registered with, if it is.
    pub content: Option<ContentView>,
}

/// The content of a registered block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentView {
    /// Its hash.
    pub hash: BlockHash,
    /// Its group: the same hash in two groups is two contents. [`u16::MAX`] is that of what no lookup
    /// can ask for.
    pub group: u16,
    /// Its position in its chain.
    pub depth: u32,
    /// Whether its KV is written.
    pub computed: bool,
}

impl Blocks<'_> {
    /// Blocks of the pool, null block included.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there is no block: never.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// What is known of `block`; of one outside the pool as of a free one. O(1).
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

/// A lookup that acquired what it found.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Lookup<'a> {
    /// The hashes that were asked for, neighbours in one chain.
    pub hashes: &'a [BlockHash],
    /// The position of the first of them in its chain.
    pub depth: u32,
    /// The hash before the first, if it may be known.
    pub parent: Option<BlockHash>,
    /// How many of them were found, from the first on.
    pub hits: usize,
    /// The blocks that were found, each held once more now: one for each hit, and with KV-cache groups
    /// those of every group.
    pub blocks: &'a [BlockId],
    /// Who asked.
    pub tenant: Option<TenantId>,
}

/// A run of blocks that was registered. That they are computed is told apart, even of those that are at once.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NewContents<'a> {
    /// The blocks.
    pub blocks: &'a [BlockId],
    /// The chain that they are in, and the position of the first of them there. `None` for a single
    /// block whose chain is not known.
    pub chain: Option<(&'a HashChain, usize)>,
}

/// A block that became computed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Computed {
    /// The block.
    pub block: BlockId,
    /// Its content.
    pub content: ContentView,
    /// The hash of what is before it in its chain, if that is known.
    pub parent: Option<BlockHash>,
    /// The algorithm of its hash.
    pub algorithm: Option<HashAlgorithm>,
    /// Whether it is the first computed copy of its content: the content can be found from now on.
    pub first: bool,
}

/// Why a block left the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RemovalCause {
    /// An allocation needed it, or its retention ended.
    Evicted(EvictionCause),
    /// It was named, or its last holder gave it up uncomputed, or as a duplicate.
    Dropped,
}

/// A block that left the index.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Removed {
    /// The block.
    pub block: BlockId,
    /// What it was registered with.
    pub content: ContentView,
    /// The algorithm of its hash.
    pub algorithm: Option<HashAlgorithm>,
    /// Whether it was the last computed copy of its content: the content cannot be found any more.
    pub last: bool,
    /// Why.
    pub cause: RemovalCause,
    /// What the policy thought of it, if it was evicted by one that says so.
    pub outlook: Option<Outlook>,
}

/// Why all contents were forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClearCause {
    /// A reset.
    Reset,
    /// The end of this epoch.
    Epoch(u64),
}

/// Who watches a pool: see [`BlockPool::observe`]. All methods but the last do nothing unless they are
/// written.
#[expect(unused_variables, reason = "what a method may use, by name")]
pub trait PoolObserver: Any + fmt::Debug + Send + Sync {
    /// Whether it wants to know what contents hang on ([`Computed::parent`]): 32 bytes per block.
    /// Always says the same.
    fn wants_parents(&self) -> bool {
        false
    }

    /// Whether it wants to know of every content that becomes computed or leaves ([`Self::computed`],
    /// [`Self::removed`]): they are told block by block. What only counts what has
    /// [changed](Self::changed) need not pay for that. Always says the same.
    fn wants_contents(&self) -> bool {
        true
    }

    /// The references, fences or contents of these blocks have changed.
    fn changed(&mut self, blocks: &[BlockId]) {}

    /// A lookup has acquired what it found.
    fn looked_up(&mut self, lookup: &Lookup<'_>) {}

    /// Blocks are registered.
    fn registered(&mut self, new: &NewContents<'_>, blocks: Blocks<'_>) {}

    /// A block is computed.
    fn computed(&mut self, computed: &Computed) {}

    /// A block has left the index.
    fn removed(&mut self, removed: &Removed) {}

    /// All contents are forgotten; `epoch` is the pool's now. Every block may have changed.
    fn cleared(&mut self, cause: ClearCause, epoch: u64) {}

    /// The pool was told the time: seconds, on the clock of its caller.
    fn time_passed(&mut self, now: f64) {}

    /// The pool is about to grow to so many blocks, null block included.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory: then the pool does not grow, and nothing may
    /// have changed.
    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        Ok(())
    }

    /// Compares what it noted with the pool: part of [`BlockPool::check_invariants`].
    ///
    /// # Errors
    /// The first thing that is wrong.
    fn check(&self, pool: &BlockPool) -> Result<(), InvariantViolation> {
        Ok(())
    }
}

impl BlockPool {
    /// Tells `observer` of everything from now on; returns who was told before. O(1), O(blocks) if it
    /// is the first that wants parents.
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
    /// [`PoolError::InvalidConfig`] if there is no memory for the parents that it wants; nothing has
    /// changed then.
    pub fn observe(
        &mut self,
        observer: Box<dyn PoolObserver>,
    ) -> Result<Option<Box<dyn PoolObserver>>, PoolError> {
        if observer.wants_parents() {
            self.keep_parents()?;
        }
        Ok(self.observer.replace(observer))
    }

    /// The observer, if it is of this type.
    #[must_use]
    pub fn observer<T: PoolObserver>(&self) -> Option<&T> {
        let observer: &dyn Any = self.observer.as_deref()?;
        observer.downcast_ref()
    }

    /// The observer, if it is of this type, and the blocks.
    pub fn observer_mut<T: PoolObserver>(&mut self) -> Option<(&mut T, Blocks<'_>)> {
        let observer: &mut dyn Any = self.observer.as_deref_mut()?;
        Some((observer.downcast_mut()?, Blocks { records: &self.records }))
    }

    /// Every block, to look at.
    #[must_use]
    pub fn blocks(&self) -> Blocks<'_> {
        Blocks { records: &self.records }
    }

    /// The hash of what is before the content of `block` in its chain, if that is known: see
    /// [`Computed::parent`]. O(1).
    #[must_use]
    pub fn parent_of(&self, block: BlockId) -> Option<BlockHash> {
        self.index.parent_of(&self.records, block)
    }

    /// Whether somebody wants to know of contents that come and go.
    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.observer.as_ref().is_some_and(|observer| observer.wants_contents())
    }

    #[inline]
    pub(super) fn tell_changed(&mut self, blocks: &[BlockId]) {
        if let Some(observer) = &mut self.observer {
            observer.changed(blocks);
        }
    }

    #[inline]
    pub(super) fn tell_looked_up(&mut self, lookup: &Lookup<'_>) {
        if let Some(observer) = &mut self.observer {
            observer.looked_up(lookup);
        }
    }

    #[inline]
    pub(super) fn tell_registered(&mut self, blocks: &[BlockId], chain: Option<(&HashChain, usize)>) {
        if let Some(observer) = &mut self.observer {
            observer.registered(&NewContents { blocks, chain }, Blocks { records: &self.records });
        }
    }

    pub(super) fn tell_time(&mut self, now: f64) {
        if let Some(observer) = &mut self.observer {
            observer.time_passed(now);
        }
    }

    pub(super) fn tell_cleared(&mut self, cause: ClearCause) {
        if let Some(observer) = &mut self.observer {
            observer.cleared(cause, self.epoch);
        }
    }

    /// [`BlockPool::mark_computed`] of one block, with a word to the observer.
    #[inline(never)]
    pub(super) fn mark_computed_watched(&mut self, block: BlockId) {
        if self.is_computed(block) {
            return;
        }
        let first = self.index.mark_computed(&mut self.records, block) == Visibility::Appeared;
        self.tell_computed(block, first);
    }

    /// A registered block is computed now: the `first` with its content, if it is.
    pub(super) fn tell_computed(&mut self, block: BlockId, first: bool) {
        if !self.is_watched() {
            return;
        }
        let (parent, algorithm) = (self.index.parent_of(&self.records, block), self.index.algorithm());
        let Some(content) = self.blocks().get(block).content else { return };
        if let Some(observer) = &mut self.observer {
            observer.computed(&Computed { block, content, parent, algorithm, first });
        }
    }

    /// Takes a registered block out of the index, with a word to the observer.
    #[inline(never)]
    pub(super) fn unregister_watched(&mut self, block: BlockId, cause: RemovalCause) -> Visibility {
        // The algorithm first: it may be the last one.
        let (content, algorithm) = (self.blocks().get(block).content, self.index.algorithm());
        if content.is_none() {
            return Visibility::Unchanged;
        }
        // What no lookup leads to, nobody was told of as the last one.
        let hidden = self.records.at(block.get()).is_hidden();
        let visibility = self.index.remove(&mut self.records, block);
        self.tell_removed(block, content, algorithm, visibility == Visibility::Vanished && !hidden, cause);
        visibility
    }

    /// A block has left the index, with the last computed copy of its content, if it is.
    pub(super) fn tell_removed(
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

    /// Whether blocks remember the hash of what is before them, for the evictor or for an observer.
    pub(crate) const fn keeps_parents(&self) -> bool {
        self.index.keeps_parents()
    }

    /// From now on they do: contents may come from, or go to, a pool that needs it.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory.
    pub(crate) fn keep_parents(&mut self) -> Result<(), PoolError> {
        self.index.keep_parents(&self.records)
    }
}
