//! Eviction by access times that the caller passes: the rule of vLLM v0.
//!
//! The engine calls [`Evictor::mark_accessed`] with its own times, for blocks in use and for free
//! blocks. The victim is the block with the earliest time. Among blocks with equal times it is the
//! deepest one of its chain, and among equally deep blocks the one with the lowest id. A block that was
//! never marked has the time -1. The time of a block is reset when the block is evicted or hit.
//!
//! The order is a tree that contains only the evictable blocks, so it has no stale entries. (vLLM v0
//! used a lazy heap, which lost blocks and returned old hashes.) Each operation is O(log n) per block.
//! A block takes 16 bytes, and an evictable block about 40 more.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use kvpool::parts::{ensure, try_reserve};
use kvpool::{BlockId, Candidate, Evictor, InvariantViolation, PoolError};

/// The access time of a block that the caller has never marked.
const NEVER: f64 = -1.0;

/// A time that is never NaN, so that it can be compared with every other time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

type Key = (Time, Reverse<u32>, BlockId);

/// Evicts blocks by the time of their last access, which the caller passes.
///
/// ```
/// use kvpool::{BlockId, Candidate, Evictor};
/// use kvpool_policies::LastAccessEvictor;
/// let id = BlockId::new;
/// let mut evictor = LastAccessEvictor::new(8)?;
/// evictor.mark_accessed(id(1), 20.0);
/// evictor.insert(&mut [Candidate { block: id(1), depth: 0 }, Candidate { block: id(2), depth: 1 }]);
/// assert_eq!(evictor.order(), [id(2), id(1)]);
/// evictor.mark_accessed(id(2), 30.0);
/// assert_eq!(evictor.evict(), Some(id(1)));
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct LastAccessEvictor {
    order: BTreeSet<Key>,
    times: Vec<f64>,
    depths: Vec<Option<u32>>,
}

impl LastAccessEvictor {
    /// Makes an empty evictor for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is not enough memory for this number of blocks.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        let mut evictor = Self { order: BTreeSet::new(), times: Vec::new(), depths: Vec::new() };
        evictor.grow(num_blocks)?;
        Ok(evictor)
    }

    fn key(&self, block: BlockId) -> Option<Key> {
        let depth = (*self.depths.get(block.index())?)?;
        Some((Time(self.times[block.index()]), Reverse(depth), block))
    }

    fn give_up(&mut self, block: BlockId) -> bool {
        let Some(key) = self.key(block).filter(|key| self.order.remove(key)) else { return false };
        self.depths[key.2.index()] = None;
        self.times[key.2.index()] = NEVER;
        true
    }
}

impl Evictor for LastAccessEvictor {
    fn name(&self) -> &'static str {
        "last-accessed"
    }

    fn insert(&mut self, candidates: &mut [Candidate]) {
        for &mut Candidate { block, depth } in candidates {
            if let Some(slot) = self.depths.get_mut(block.index())
                && slot.is_none()
            {
                *slot = Some(depth);
                self.order.extend(self.key(block));
            }
        }
    }

    fn remove(&mut self, block: BlockId) -> bool {
        let held = self.give_up(block);
        if let Some(time) = self.times.get_mut(block.index()) {
            *time = NEVER; // the access was to the removed content
        }
        held
    }

    fn hit(&mut self, block: BlockId) -> bool {
        self.give_up(block)
    }

    fn evict(&mut self) -> Option<BlockId> {
        let (_, _, victim) = *self.order.first()?;
        self.give_up(victim).then_some(victim)
    }

    fn mark_accessed(&mut self, block: BlockId, time: f64) {
        if time.is_nan() || self.times.get(block.index()).is_none_or(|&last| last >= time) {
            return;
        }
        let held = self.key(block);
        self.times[block.index()] = time;
        if let Some(old) = held {
            self.order.remove(&old);
            self.order.extend(self.key(block));
        }
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    fn contains(&self, block: BlockId) -> bool {
        self.depths.get(block.index()).is_some_and(Option::is_some)
    }

    fn order(&self) -> Vec<BlockId> {
        self.order.iter().map(|&(_, _, block)| block).collect()
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.times, num_blocks)?;
        try_reserve(&mut self.depths, num_blocks)?;
        if num_blocks > self.times.len() {
            self.times.resize(num_blocks, NEVER);
            self.depths.resize(num_blocks, None);
        }
        Ok(())
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        let key = self.key(block);
        ensure(
            key.is_none_or(|key| self.order.contains(&key)),
            "E1 (the order contains exactly the evictable blocks)",
            || format!("{block:?} is evictable, but not in the order"),
        )
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        match (what, self.depths.get_mut(block.index())) {
            (0, Some(depth @ Some(_))) => depth.replace(to) != Some(to),
            (1, Some(depth)) => depth.take().is_some(),
            _ => false,
        }
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        let held = self.depths.iter().flatten().count();
        let keyed = self.order.iter().all(|key| self.key(key.2) == Some(*key));
        ensure(
            held == self.order.len() && keyed,
            "E1 (the order contains exactly the evictable blocks)",
            || format!("{held} evictable, {} in the order, keys correct: {keyed}", self.order.len()),
        )
    }
}
