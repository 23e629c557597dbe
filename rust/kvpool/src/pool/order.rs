//! `Order` is the eviction order of a pool.
//!
//! LRU, the default, stores its list in the pool's records. It needs no dynamic calls and no other
//! memory. Every other policy is an [`Evictor`] with its own data.
//!
//! The evictor may be code of the caller. If it panics, an operation remains half done. So the pool
//! sets a flag during each call of the evictor. If the flag is still set when a later call begins, the
//! pool refuses all operations.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::block::BlockId;
use crate::error::{InvariantViolation, PoolError};
use crate::evictor::lru::Lru;
use crate::evictor::{Candidate, Content, Evictor, Outlook, Signal};
use crate::record::{ByBlock, Record, Records};
use crate::retention::{EvictionCause, Retain};

#[derive(Debug)]
pub(super) enum Order {
    Lru(Lru),
    Other(Guarded),
}

/// An evictor, and a flag that is set during each call of the evictor. If the flag is set at any other
/// time, a call has panicked.
#[derive(Debug)]
pub(super) struct Guarded {
    evictor: Box<dyn Evictor>,
    entered: AtomicBool,
}

impl Guarded {
    pub(super) const fn new(evictor: Box<dyn Evictor>) -> Self {
        Self { evictor, entered: AtomicBool::new(false) }
    }

    #[inline]
    fn with_ref<R>(&self, call: impl FnOnce(&dyn Evictor) -> R) -> R {
        let before = self.entered.load(Ordering::Relaxed);
        self.entered.store(true, Ordering::Relaxed);
        let answer = call(&*self.evictor);
        self.entered.store(before, Ordering::Relaxed); // a read must not clear the flag of an earlier panic
        answer
    }

    #[inline]
    pub(super) fn with_mut<R>(&mut self, call: impl FnOnce(&mut dyn Evictor) -> R) -> R {
        let before = std::mem::replace(self.entered.get_mut(), true);
        let answer = call(&mut *self.evictor);
        *self.entered.get_mut() = before;
        answer
    }
}

impl Order {
    /// Calls the evictor, and returns its result. For LRU, returns the default value of the result
    /// type.
    #[inline]
    fn with_ref<R: Default>(&self, call: impl FnOnce(&dyn Evictor) -> R) -> R {
        match self {
            Self::Lru(_) => R::default(),
            Self::Other(evictor) => evictor.with_ref(call),
        }
    }

    /// Calls the evictor. Does nothing for LRU, which does not need these calls.
    #[inline]
    fn with_mut(&mut self, call: impl FnOnce(&mut dyn Evictor)) {
        if let Self::Other(evictor) = self {
            evictor.with_mut(call);
        }
    }

    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Lru(_) => "lru",
            Self::Other(evictor) => evictor.with_ref(|evictor| evictor.name()),
        }
    }

    /// Whether the evictor needs notifications of registrations, and of hits on blocks in use. The
    /// answer never changes during the life of a pool.
    pub(super) fn wants_history(&self) -> bool {
        self.with_ref(|evictor| evictor.wants_history())
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Lru(lru) => lru.len(),
            Self::Other(evictor) => evictor.with_ref(|evictor| evictor.len()),
        }
    }

    pub(super) fn is_torn(&self) -> bool {
        matches!(self, Self::Lru(lru) if lru.is_torn())
    }

    /// Whether an evictor has panicked in the middle of an operation.
    #[inline]
    pub(super) fn has_panicked(&self) -> bool {
        matches!(self, Self::Other(evictor) if evictor.entered.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn contains(&self, records: &Records, block: BlockId) -> bool {
        match self {
            Self::Lru(_) => records.at(block.get()).is_in_order(),
            Self::Other(evictor) => evictor.with_ref(|evictor| evictor.contains(block)),
        }
    }

    #[inline]
    pub(super) fn hit(&mut self, records: &mut Records, block: BlockId) -> bool {
        match self {
            Self::Lru(lru) => lru.remove(records, block),
            Self::Other(evictor) => evictor.with_mut(|evictor| evictor.hit(block)),
        }
    }

    /// Removes the leading `blocks`, which a lookup found, from the eviction order. Stops at the first
    /// block that has a reference or is not in the order. Calls `hold` for the record of each removed
    /// block. Returns the number of removed blocks.
    #[inline]
    pub(super) fn hit_run(
        &mut self,
        records: &mut Records,
        blocks: &[BlockId],
        hold: impl Fn(&mut Record),
    ) -> usize {
        match self {
            Self::Lru(lru) => lru.hit_run(records, blocks, hold),
            Self::Other(evictor) => {
                let unheld = |&&block: &&BlockId| records.at(block.get()).references == 0;
                let unheld = &blocks[..blocks.iter().take_while(unheld).count()];
                // Limits the result to the length of the list, because an evictor of the caller may
                // return a wrong number.
                let hit = evictor.with_mut(|evictor| evictor.hit_run(unheld)).min(unheld.len());
                for &block in &unheld[..hit] {
                    records.of_mut(block).map(&hold);
                }
                hit
            }
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, records: &mut Records, block: BlockId) -> bool {
        match self {
            Self::Lru(lru) => lru.remove(records, block),
            Self::Other(evictor) => evictor.with_mut(|evictor| evictor.remove(block)),
        }
    }

    /// Removes the evictor's data about a block that is not in the eviction order, for instance
    /// accesses while the block was held. The block has lost the content that the data belongs to.
    #[inline]
    pub(super) fn forget(&mut self, block: BlockId) {
        self.with_mut(|evictor| {
            evictor.remove(block);
        });
    }

    pub(super) fn renew(&mut self, records: &mut Records, block: BlockId) -> bool {
        match self {
            Self::Lru(lru) => lru.remove(records, block),
            Self::Other(evictor) => evictor.with_mut(|evictor| evictor.renew(block)),
        }
    }

    #[inline]
    pub(super) fn evict(&mut self, records: &mut Records) -> Option<BlockId> {
        match self {
            Self::Lru(lru) => lru.evict(records),
            Self::Other(evictor) => evictor.with_mut(|evictor| evictor.evict()),
        }
    }

    pub(super) fn clear(&mut self) {
        self.with_mut(|evictor| evictor.clear());
    }

    pub(super) fn registered(&mut self, block: BlockId, content: Content, parent: Option<BlockId>) {
        self.with_mut(|evictor| evictor.registered(block, content, parent));
    }

    pub(super) fn registered_run(&mut self, run: &[(BlockId, Content)], parent: Option<BlockId>) {
        self.with_mut(|evictor| evictor.registered_run(run, parent));
    }

    pub(super) fn parent(&self, block: BlockId) -> Option<BlockId> {
        self.with_ref(|evictor| evictor.parent(block))
    }

    pub(super) fn find_orphan(&self, records: &Records, candidates: &[Candidate]) -> Option<usize> {
        let computed = |block: BlockId| records.at(block.get()).is_computed();
        self.with_ref(|evictor| evictor.find_orphan(candidates, &computed))
    }

    pub(super) fn relink(&mut self, block: BlockId, parent: BlockId) {
        self.with_mut(|evictor| evictor.relink(block, parent));
    }

    pub(super) fn has_dependents(&self, block: BlockId) -> bool {
        self.with_ref(|evictor| evictor.has_dependents(block))
    }

    pub(super) fn cause(&self) -> EvictionCause {
        self.with_ref(|evictor| evictor.cause())
    }

    pub(super) fn outlook(&self, block: BlockId) -> Option<Outlook> {
        self.with_ref(|evictor| evictor.outlook(block))
    }

    pub(super) fn mark_accessed(&mut self, block: BlockId, time: f64) {
        self.with_mut(|evictor| evictor.mark_accessed(block, time));
    }

    pub(super) fn wants_signals(&self) -> bool {
        self.with_ref(|evictor| evictor.wants_signals())
    }

    pub(super) fn keeps_time(&self) -> bool {
        self.with_ref(|evictor| evictor.keeps_time())
    }

    pub(super) fn set_time(&mut self, now: f64) -> Result<(), PoolError> {
        match self {
            Self::Lru(_) => Ok(()),
            Self::Other(evictor) => evictor.with_mut(|evictor| evictor.set_time(now)),
        }
    }

    #[inline]
    pub(super) fn signal(&mut self, blocks: &[BlockId], signal: Signal) {
        self.with_mut(|evictor| evictor.signal(blocks, signal));
    }

    pub(super) fn retention(&self) -> Option<&dyn Retain> {
        match self {
            Self::Lru(_) => None,
            Self::Other(evictor) => evictor.evictor.retention(),
        }
    }

    pub(super) fn retention_mut(&mut self) -> Option<&mut dyn Retain> {
        match self {
            Self::Lru(_) => None,
            Self::Other(evictor) => evictor.evictor.retention_mut(),
        }
    }

    pub(super) fn order(&self, records: &Records) -> Vec<BlockId> {
        self.first(records, usize::MAX)
    }

    /// Returns the first `n` blocks in the order of eviction. O(n) with LRU, O(blocks in the order)
    /// otherwise.
    pub(super) fn first(&self, records: &Records, n: usize) -> Vec<BlockId> {
        match self {
            Self::Lru(lru) => lru.iter(records).take(n).collect(),
            Self::Other(evictor) => evictor.with_ref(|evictor| evictor.order()).into_iter().take(n).collect(),
        }
    }

    pub(super) fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        match self {
            Self::Lru(_) => Ok(()),
            Self::Other(evictor) => evictor.with_mut(|evictor| evictor.grow(num_blocks)),
        }
    }

    pub(super) fn check_block(&self, records: &Records, block: BlockId) -> Result<(), InvariantViolation> {
        match self {
            Self::Lru(lru) if block.is_null() || records.at(block.get()).is_in_order() => {
                lru.check_block(records, block)
            }
            Self::Lru(_) => Ok(()),
            Self::Other(evictor) => evictor.with_ref(|evictor| evictor.check_block(block)),
        }
    }

    pub(super) fn check_invariants(&self, records: &Records) -> Result<(), InvariantViolation> {
        match self {
            Self::Lru(lru) => lru.check_invariants(records),
            Self::Other(evictor) => evictor.with_ref(|evictor| evictor.check_invariants()),
        }
    }

    #[cfg(feature = "fault-injection")]
    pub(super) fn corrupt(&mut self, records: &mut Records, block: BlockId, what: usize, to: u32) -> bool {
        match self {
            Self::Lru(lru) => lru.corrupt(records, block, what, to),
            Self::Other(evictor) => evictor.with_mut(|evictor| evictor.corrupt(block, what, to)),
        }
    }
}
