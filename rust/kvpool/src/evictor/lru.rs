//! LRU: evicts the least recently used block; of one chain the deepest block first.
//!
//! Total order: (time of the release that made the block cached-free, deeper first, position in that release). That is
//! vLLM's order (`free_blocks` of a request's reversed table), stated so that it does not depend on callers passing
//! their table reversed. A hit removes the block; its next release puts it at the back. A copy of it that is dropped at its
//! release puts it there too: else what hangs on that content would outlive it.
//!
//! It knows no parents: that whoever holds a block holds all before it is what keeps a parent behind its children. Pins of planned
//! copies hold no such prefix, so a block takes its place when its last holder goes, pinned or not. A parent that is
//! dropped *by id* under a held child, computed anew by somebody else and released first is evicted first, and no lookup reaches
//! the child until the parent is computed once more. The other policies keep such a chain closed, too.
//!
//! Cost: O(1) per block and 8 bytes per block of the pool; a release that is not already deepest-first is sorted,
//! O(n log n). LRU is hard to beat once a cache holds a few per cent of a workload's blocks, and it never stagnates;
//! a scan of never-reused prompts larger than the cache flushes it.

use std::cmp::Reverse;

use super::{Candidate, Evictor};
use crate::block::BlockId;
use crate::block_list::BlockList;
use crate::error::{InvariantViolation, PoolError};

/// The least-recently-used policy.
///
/// ```
/// use kvpool::{BlockId, Candidate, Evictor, LruEvictor};
/// let id = BlockId::new;
/// let mut lru = LruEvictor::new(8);
/// lru.insert(&mut [Candidate { block: id(1), depth: 0 }, Candidate { block: id(2), depth: 1 }]);
/// lru.insert(&mut [Candidate { block: id(3), depth: 0 }]);
/// assert_eq!(lru.order(), [id(2), id(1), id(3)]);
/// assert!(lru.remove(id(1)));
/// assert_eq!(lru.evict(), Some(id(2)));
/// ```
#[derive(Clone, Debug)]
pub struct LruEvictor {
    /// Front: the next victim.
    list: BlockList,
}

impl LruEvictor {
    /// An empty evictor for blocks `1..num_blocks`.
    #[must_use]
    pub fn new(num_blocks: usize) -> Self {
        Self { list: BlockList::new(num_blocks) }
    }

    /// As [`Self::new`], with the memory for every block taken at once.
    pub(super) fn reserved(num_blocks: usize) -> Result<Self, PoolError> {
        let mut evictor = Self::new(num_blocks);
        evictor.list.reserve_all()?;
        Ok(evictor)
    }
}

impl Evictor for LruEvictor {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn insert(&mut self, candidates: &mut [Candidate]) {
        if !candidates.is_sorted_by_key(|candidate| Reverse(candidate.depth)) {
            candidates.sort_by_key(|candidate| Reverse(candidate.depth));
        }
        for candidate in candidates {
            self.list.push_back(candidate.block);
        }
    }

    fn remove(&mut self, block: BlockId) -> bool {
        self.list.remove(block)
    }

    fn renew(&mut self, block: BlockId) -> bool {
        self.list.remove(block)
    }

    fn evict(&mut self) -> Option<BlockId> {
        self.list.pop_front()
    }

    fn len(&self) -> usize {
        self.list.len()
    }

    fn contains(&self, block: BlockId) -> bool {
        self.list.contains(block)
    }

    fn order(&self) -> Vec<BlockId> {
        self.list.iter().collect()
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.list.grow(num_blocks)
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.list.check_block(block)
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        self.list.corrupt(block, what, to)
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.list.check_invariants()
    }
}
