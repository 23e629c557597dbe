//! LRU: evicts the least recently used block, and within one chain the deepest block first.
//!
//! Blocks are ordered by: time of the release that made the block cached-free; then depth, deeper
//! first; then position in that release. This is vLLM's order (`free_blocks` of a request's reversed
//! table), in whichever order callers pass their table. A hit removes the block, and its next release
//! puts it at the back. If a copy of its content is released and dropped as a duplicate, the block
//! moves to the back, too. Otherwise the blocks that depend on its content would outlive it.
//!
//! LRU stores no parents. A holder of a block also holds all blocks before it, so a parent is evicted
//! after its children. A pin of a planned copy does not hold the whole prefix. So a block takes its
//! place when its last holder releases it, pinned or not. There is one exception: a parent is dropped
//! *by id* while a child is held, and another request computes it again and releases it first. Then LRU
//! evicts the parent first, and no lookup reaches the child until the parent is computed again. The
//! other policies evict the child first in this case.
//!
//! Costs: O(1) per block, O(n log n) for a release that is not already deepest-first. In a pool it has
//! no memory of its own: its links are in the blocks' records. For when to use it, see `Recency` of the
//! crate `kvpool-policies`.

use std::cmp::Reverse;

use super::{Candidate, Evictor};
use crate::block::{BlockId, MAX_BLOCKS};
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::list::{Link, List, try_reserve};
use crate::record::{ByBlock, COMPUTED, IN_ORDER, Record, Records};

/// Sorts the blocks of one release into the order of eviction: the deepest first, and of equal depth in
/// the given order.
#[inline]
pub fn sort_deepest_first(candidates: &mut [Candidate]) {
    if !candidates.is_sorted_by_key(|candidate| Reverse(candidate.depth)) {
        candidates.sort_by_key(|candidate| Reverse(candidate.depth));
    }
}

/// The LRU order over the records of a pool. The front is the next victim.
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

    /// Inserts blocks that are on no list.
    #[inline]
    pub(crate) fn insert(&mut self, records: &mut Records, candidates: &mut [Candidate]) {
        sort_deepest_first(candidates);
        let put = |records: &mut Records, id: u32, link: Link| match records.of_mut(BlockId::new(id)) {
            Some(record) if !record.link.is_linked() => {
                record.link = link;
                record.flags |= IN_ORDER;
                true
            }
            _ => false,
        };
        self.list.push_back_run(records, candidates.len(), |at| candidates[at].block.get(), put);
    }

    /// Removes a block. False if it is not in the order.
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

    /// Removes blocks without references, up to the first that has one or is not in the order. Calls
    /// `hold` for each of them. Returns their number.
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

    /// Removes the next `n` victims and appends them to `out`. The order must have this number of
    /// blocks, and none may have references. Calls `hold` for each of them. False if one of them should
    /// not be in the order, or if links are broken.
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

    /// Removes and returns the next victim.
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

/// The least-recently-used policy as a type of its own: 8 bytes per block. A pool with LRU uses the
/// same order over its records.
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
    /// The order. The front is the next victim.
    list: List,
    links: Vec<Link>,
}

impl LruEvictor {
    /// Makes an empty evictor for blocks `1..num_blocks`, with all its memory.
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
        // The links of a block on no list are not followed, so damage to them has no effect.
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
