//! Implements LRU, which evicts the least recently used block first, and the last block of a chain
//! before the blocks in front of it.
//!
//! Blocks are ordered by the time of the release that made them cached-free. Blocks of one release are
//! ordered by depth, the deepest first, and at equal depth by their position in the call. This is
//! vLLM's order (`free_blocks` of a request's reversed table), regardless of the order in which callers
//! pass their blocks.
//!
//! A hit removes a block from the order, and its next release adds it at the back. If another block
//! with the same content is released and dropped as a duplicate, the block also moves to the back.
//! Otherwise it would be evicted before the blocks that follow it in their prompt.
//!
//! LRU stores no parents. A holder of a block also holds all blocks before it in its chain, so a parent
//! is evicted after its children. A pin of a planned copy does not hold the whole prefix. So a block is
//! added to the order when its last holder releases it, even if it is pinned.
//!
//! In one case LRU evicts a parent before its child. A caller may remove the content of a parent *by
//! id* while a child is held, and another request may compute that content again and release it first.
//! Then the parent is evicted first, and no lookup reaches the child until the parent is computed
//! again. The other policies evict the child first in this case.
//!
//! Costs: O(1) per block, O(n log n) for a release that is not already deepest-first. In a pool, LRU
//! needs no additional memory, because its links are in the blocks' records. `Recency` of the crate
//! `kvpool-policies` describes when to use it.

use std::cmp::Reverse;

use super::{Candidate, Evictor};
use crate::block::{BlockId, MAX_BLOCKS};
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::list::{Link, List, try_reserve};
use crate::record::{ByBlock, COMPUTED, IN_ORDER, Record, Records};

/// Sorts the blocks of one release into the order of eviction: the deepest first, and blocks of equal
/// depth in the given order.
#[inline]
pub fn sort_deepest_first(candidates: &mut [Candidate]) {
    if !candidates.is_sorted_by_key(|candidate| Reverse(candidate.depth)) {
        candidates.sort_by_key(|candidate| Reverse(candidate.depth));
    }
}

/// The LRU order of a pool. It is a list whose links are in the pool's records, the next victim at the
/// front.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lru {
    list: List,
}

impl Lru {
    pub(crate) const fn len(&self) -> usize {
        self.list.len()
    }

    pub(crate) const fn is_torn(&self) -> bool {
        self.list.is_torn()
    }

    /// Inserts blocks, which must not be on a list.
    #[inline]
    pub(crate) fn insert(&mut self, records: &mut Records, candidates: &mut [Candidate]) {
        sort_deepest_first(candidates);
        self.insert_run(records, candidates.len(), |at| candidates[at].block.get(), |_| true);
    }

    /// Inserts `len` blocks, the deepest first; `ids` returns their ids, one after the other. Stops at
    /// the first block that is on a list, or for whose record `accept` returns false. Returns the
    /// number of inserted blocks.
    #[inline]
    pub(crate) fn insert_run(
        &mut self,
        records: &mut Records,
        len: usize,
        ids: impl FnMut(usize) -> u32,
        mut accept: impl FnMut(&mut Record) -> bool,
    ) -> usize {
        self.list.push_back_run(records, len, ids, |records, id, link| {
            let Some(record) = records.of_mut(BlockId::new(id)) else { return false };
            if record.link.is_linked() || !accept(record) {
                return false;
            }
            record.link = link;
            record.flags |= IN_ORDER;
            true
        })
    }

    /// Returns the block that was inserted last.
    pub(crate) const fn last(&self) -> Option<BlockId> {
        self.list.back()
    }

    #[inline]
    pub(crate) fn remove(&mut self, records: &mut Records, block: BlockId) -> bool {
        if !records.at(block.get()).is_in_order() || !self.list.remove(records, block) {
            return false;
        }
        if let Some(record) = records.of_mut(block) {
            record.flags &= !IN_ORDER;
        }
        true
    }

    /// Removes `blocks` from the order. Stops at the first block that has references or is not in the
    /// order. Calls `hold` for the record of each removed block. Returns their number.
    #[inline]
    pub(crate) fn hit_run(
        &mut self,
        records: &mut Records,
        blocks: &[BlockId],
        hold: impl Fn(&mut Record),
    ) -> usize {
        self.list.remove_run(records, blocks, |records, block| {
            let record = records.of_mut(block)?;
            if record.references > 0 || !record.is_in_order() {
                return None;
            }
            record.flags &= !IN_ORDER;
            hold(record);
            Some(std::mem::replace(&mut record.link, Link::LOOSE))
        })
    }

    /// Removes the next `n` victims and appends them to `out`. The order must contain at least `n`
    /// blocks, and none of them may have references. Calls `hold` for the record of each. Returns false
    /// if a record contradicts this, or if links do not match.
    #[inline]
    pub(crate) fn evict_run(
        &mut self,
        records: &mut Records,
        n: usize,
        out: &mut Vec<BlockId>,
        hold: impl Fn(&mut Record),
    ) -> bool {
        self.list.pop_front_n(records, n, out, |records, block| {
            let record = records.of_mut(block).filter(|record| record.references == 0)?;
            let before = record.flags;
            record.flags &= !IN_ORDER;
            hold(record);
            let link = std::mem::replace(&mut record.link, Link::LOOSE);
            (before & (IN_ORDER | COMPUTED) == IN_ORDER | COMPUTED).then_some(link)
        })
    }

    #[inline]
    pub(crate) fn evict(&mut self, records: &mut Records) -> Option<BlockId> {
        let victim = self.list.front()?;
        self.remove(records, victim).then_some(victim)
    }

    pub(crate) fn iter<'a>(&self, records: &'a Records) -> impl Iterator<Item = BlockId> + 'a {
        self.list.iter(records)
    }

    pub(crate) fn check_block(&self, records: &Records, block: BlockId) -> Result<(), InvariantViolation> {
        self.list.check_block(records, block)
    }

    pub(crate) fn check_invariants(&self, records: &Records) -> Result<(), InvariantViolation> {
        let len = self.list.check_invariants(records)?;
        let linked = records.iter().skip(1).filter(|record| record.is_in_order()).count();
        ensure(linked == len, "L1 (every block in the order is on its list)", || {
            format!("{linked} blocks are marked as in the order, {len} are on the list")
        })
    }

    #[cfg(feature = "fault-injection")]
    pub(crate) fn corrupt(&mut self, records: &mut Records, block: BlockId, what: usize, to: u32) -> bool {
        self.list.corrupt(records, block, what, to)
    }
}

/// The least-recently-used policy as a separate [`Evictor`], with 8 bytes per block. A pool with LRU
/// does not use this type: it keeps the same order in its records.
///
/// ```
/// use kvpool::{BlockId, Candidate, Evictor, LruEvictor};
/// let id = BlockId::new;
/// let mut lru = LruEvictor::new(8)?;
/// lru.insert(&mut [Candidate { block: id(1), depth: 0 }, Candidate { block: id(2), depth: 1 }]);
/// lru.insert(&mut [Candidate { block: id(3), depth: 0 }]);
/// assert_eq!(lru.order(), [id(2), id(1), id(3)]);
/// assert!(lru.remove(id(1)));
/// assert_eq!(lru.evict(), Some(id(2)));
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LruEvictor {
    /// The order of eviction. The front of the list is the next victim.
    list: List,
    links: Vec<Link>,
}

impl LruEvictor {
    /// Makes an empty evictor for blocks `1..num_blocks`, and allocates all of its memory.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for this number of blocks.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        let mut lru = Self { list: List::default(), links: Vec::new() };
        lru.grow(num_blocks)?;
        Ok(lru)
    }
}

impl Evictor for LruEvictor {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn insert(&mut self, candidates: &mut [Candidate]) {
        sort_deepest_first(candidates);
        for candidate in candidates {
            self.list.push_back(&mut self.links[..], candidate.block);
        }
    }

    fn remove(&mut self, block: BlockId) -> bool {
        self.list.remove(&mut self.links[..], block)
    }

    fn renew(&mut self, block: BlockId) -> bool {
        self.remove(block)
    }

    fn evict(&mut self) -> Option<BlockId> {
        self.list.pop(&mut self.links[..], true)
    }

    fn len(&self) -> usize {
        self.list.len()
    }

    fn contains(&self, block: BlockId) -> bool {
        self.links.get(block.index()).is_some_and(|link| link.is_linked())
    }

    fn order(&self) -> Vec<BlockId> {
        self.list.iter(&self.links[..]).collect()
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let num_blocks = num_blocks.clamp(self.links.len(), MAX_BLOCKS.max(self.links.len()));
        try_reserve(&mut self.links, num_blocks)?;
        self.links.resize(num_blocks, Link::LOOSE);
        Ok(())
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.list.check_block(&self.links[..], block)
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        // The links of a block that is not on a list are never read, so overwriting them is no fault.
        (what == 2 || self.contains(block)) && self.list.corrupt(&mut self.links[..], block, what, to)
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        let len = self.list.check_invariants(&self.links[..])?;
        let linked = self.links.iter().filter(|link| link.is_linked()).count();
        ensure(linked == len, "L1 (every block in the order is on its list)", || {
            format!("{linked} blocks are marked as in the order, {len} are on the list")
        })
    }
}
