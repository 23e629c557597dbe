//! ARC: Megiddo, Modha: "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003.
//!
//! The policy has two LRU lists: T1 contains blocks used once, and T2 blocks used again. B1 and B2
//! contain the *ghosts* of T1 and T2: keys of blocks that were evicted. A block whose key is a ghost is
//! admitted to T2, and changes the target size `p` of T1. A ghost in B1 shows that T1 was too short,
//! and adds max(1, B2 / B1) to `p`. A ghost in B2 subtracts max(1, B1 / B2). The victim is the oldest
//! block of T1 if T1 is longer than `p`, otherwise the oldest block of T2.
//!
//! The policy has no parameters. `p` is stored with 32 fractional bits. If T1 has exactly `p` blocks,
//! the published algorithm evicts from T1 when the admitted block was a ghost of B2. The comparison for
//! this case rounds `p` down, as in kvpool's eviction study.
//!
//! The published algorithm also limits T1 + B1 to the capacity. Here T1 counts every block that is not
//! in T2, even blocks in use or without content. So the ghosts are the same whether the evictions for
//! several admissions come before or after these. B1 + B2 is at most the capacity. If at most one block
//! is in use at a time, this is the published algorithm.
//!
//! Cost: O(1). A block takes 33 bytes: 10 for itself and 23 for its ghost.
//!
//! Do not use ARC for loops larger than the cache, or if the blocks of one request are a large part of
//! the cache. In the second case, the order of T1 says little, because all blocks of a request are used
//! at the same time. With a cache of 20 to 50 % of a chat workload's blocks, the hit rate of LRU is up
//! to 2.5 percentage points higher.

use crate::block_lists::BlockLists;
use crate::ghosts::Ghosts;
use kvpool::parts::{ensure, try_reserve};
use kvpool::{BlockId, Content, InvariantViolation, Policy, PoolError};

/// Number of the list T1, and of the queue B1 of its ghosts.
const ONCE: usize = 0;
/// Number of the list T2, and of the queue B2 of its ghosts.
const AGAIN: usize = 1;
const BITS: u32 = 32;

/// The ARC policy (adaptive replacement cache).
///
/// ```
/// use kvpool::{BlockId, Content, Policy};
/// use kvpool_policies::AdaptiveReplacement;
/// let (first, second) = (BlockId::new(1), BlockId::new(2));
/// let mut order = AdaptiveReplacement::new(8)?;
/// for block in [first, second] {
///     order.admit(block, Content { key: block.get().into(), depth: 0 });
///     order.release(block);
/// }
/// order.hit(first);
/// order.release(first);
/// // `second` was used only once.
/// assert_eq!(order.pop(), Some(second));
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct AdaptiveReplacement {
    lists: BlockLists,
    again: Vec<bool>,
    /// Number of blocks that belong to T2, including blocks that cannot be evicted now.
    in_t2: usize,
    ghosts: Ghosts,
    /// The target size of T1, in units of 2^-32 blocks.
    target: u64,
    /// Whether the key of the block that was admitted last was a ghost in B2, the queue of keys that
    /// were evicted from T2.
    from_b2: bool,
}

impl AdaptiveReplacement {
    /// Makes an empty order for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is not enough memory for this number of blocks.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        let mut policy = Self {
            lists: BlockLists::new(2, 0)?,
            again: Vec::new(),
            in_t2: 0,
            ghosts: Ghosts::new(2, 0)?,
            target: 0,
            from_b2: false,
        };
        policy.grow(num_blocks)?;
        Ok(policy)
    }

    fn capacity(&self) -> usize {
        self.again.len().saturating_sub(1)
    }

    fn list_of(&self, block: BlockId) -> usize {
        if self.again.get(block.index()) == Some(&true) { AGAIN } else { ONCE }
    }

    fn set_again(&mut self, block: BlockId, again: bool) {
        if let Some(slot) = self.again.get_mut(block.index()) {
            match (std::mem::replace(slot, again), again) {
                (false, true) => self.in_t2 += 1,
                (true, false) => self.in_t2 -= 1,
                _ => {}
            }
        }
    }

    /// Returns the amount by which the admission of a ghost changes the target size of T1. `own` is the
    /// number of ghosts in the queue of that ghost, and `other` the number in the other queue.
    fn step(own: usize, other: usize) -> u64 {
        ((other as u64) << BITS).checked_div(own as u64).unwrap_or(0).max(1 << BITS)
    }
}

impl Policy for AdaptiveReplacement {
    fn name(&self) -> &'static str {
        "arc"
    }

    fn admit(&mut self, block: BlockId, content: Content) {
        self.lists.remove(block);
        let (b1, b2) = (self.ghosts.len(ONCE), self.ghosts.len(AGAIN));
        let ghost = self.ghosts.take(content.key);
        match ghost {
            Some(ONCE) => {
                let most = (self.capacity() as u64) << BITS;
                self.target = self.target.saturating_add(Self::step(b1, b2)).min(most);
            }
            Some(_) => self.target = self.target.saturating_sub(Self::step(b2, b1)),
            None => {}
        }
        self.from_b2 = ghost == Some(AGAIN);
        self.set_again(block, ghost.is_some());
    }

    fn hit(&mut self, block: BlockId) {
        self.lists.remove(block);
        self.set_again(block, true);
    }

    fn release(&mut self, block: BlockId) {
        self.lists.remove(block);
        self.lists.push_back(self.list_of(block), block);
    }

    fn pop(&mut self) -> Option<BlockId> {
        let t1 = (self.lists.len(ONCE) as u64) << BITS;
        let above = t1 > self.target || (self.from_b2 && t1 >= self.target >> BITS << BITS);
        let (first, second) = if above { (ONCE, AGAIN) } else { (AGAIN, ONCE) };
        self.lists.pop_front(first).or_else(|| self.lists.pop_front(second))
    }

    fn take(&mut self, block: BlockId) {
        self.lists.remove(block);
    }

    fn unpop(&mut self, block: BlockId) {
        self.lists.push_front(self.list_of(block), block);
    }

    fn evicted(&mut self, block: BlockId, content: Content) {
        let list = self.list_of(block);
        self.forget(block);
        self.ghosts.push(list, content.key);
        self.ghosts.trim(ONCE, self.in_t2); // T1 + B1 <= capacity; T1 is every block not in T2
        self.ghosts.trim(AGAIN, self.capacity().saturating_sub(self.ghosts.len(ONCE)));
    }

    fn forget(&mut self, block: BlockId) {
        self.lists.remove(block);
        self.set_again(block, false);
    }

    fn clear(&mut self) {
        self.lists.clear();
        self.again.fill(false);
        self.in_t2 = 0;
        self.ghosts.clear();
        self.target = 0;
        self.from_b2 = false;
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.again, num_blocks)?;
        // The ghosts need room for one key more than the capacity, because a key is added before
        // another one is dropped.
        self.ghosts.grow(num_blocks)?;
        self.lists.grow(num_blocks)?; // last, because it accepts blocks as soon as it has grown
        self.again.resize(num_blocks.max(self.again.len()), false);
        Ok(())
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.lists.check_block(block)?;
        self.ghosts.check_block(block, self.again.len())?;
        let list = self.lists.list_of(block);
        ensure(
            list.is_none_or(|list| list == self.list_of(block)),
            "ARC (a block is on the list that it belongs to)",
            || format!("{block:?} is on list {list:?}"),
        )
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        match what.checked_sub(BlockLists::FAULTS) {
            None => self.lists.corrupt(block, what, to),
            Some(what) => self.ghosts.corrupt(block, what, to),
        }
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "ARC (a block is on its own list, and B1 + B2 are at most the capacity)";
        self.lists.check_invariants()?;
        self.ghosts.check_invariants()?;
        for list in [ONCE, AGAIN] {
            let stray = self.lists.iter(list).find(|&block| self.list_of(block) != list);
            ensure(stray.is_none(), NAME, || format!("block {stray:?} is on list {list}"))?;
        }
        let in_t2 = self.again.iter().filter(|&&again| again).count();
        let (b1, b2, capacity) = (self.ghosts.len(ONCE), self.ghosts.len(AGAIN), self.capacity());
        ensure(
            in_t2 == self.in_t2 && b1 + b2 <= capacity && self.target >> BITS <= capacity as u64,
            NAME,
            || {
                format!(
                    "{in_t2} blocks in T2, {} counted; B1 {b1}, B2 {b2}, target {}, capacity {capacity}",
                    self.in_t2,
                    self.target >> BITS
                )
            },
        )
    }
}
