//! S3-FIFO: Yang, Zhang, Qiu, Yue, Rashmi: "FIFO queues are all you need for cache eviction", SOSP 2023.
//!
//! The policy has two FIFO queues of blocks, *small* and *main*, and a queue of *ghosts*, which are
//! keys of evicted blocks. A new content is added to small. A content whose key is a ghost is added to
//! main. A hit increments the block's counter, up to 3, and moves nothing.
//!
//! To find a victim, the policy looks at small if it has at least its share of blocks, and at main
//! otherwise. In small, the oldest block moves to main with counter 0 if it was hit. Otherwise it is
//! evicted, and its key becomes a ghost. In main, if the oldest block's counter is above 0, the counter
//! is decremented and the block moves to the back. Otherwise it is evicted without a ghost. So content
//! that is used once is evicted early, and content that is used again soon is kept.
//!
//! The parameters are those of kvpool's eviction study. The share of small is 1/10 of the capacity. A
//! block of small is promoted to main after one hit. There are ghosts for 9/10 of the capacity; the
//! oldest is dropped first, and a ghost that is hit is removed. The authors' code promotes after two
//! hits, which costs 3.4 percentage points of hit rate on agent traces with small caches.
//!
//! Cost: a hit is one store. Admission and eviction are O(1) amortized, because each extra pass of a
//! block through main uses up one of its hits. A block takes 32 bytes: 11 for itself, and 21 for its
//! share of the ghosts.
//!
//! Do not use S3-FIFO for chat traffic with a cache of 5 to 20 % of the workload's blocks. There, the
//! hit rates of LRU and ARC are 4 percentage points higher, because small is too short for the time
//! between two turns.

use crate::block_lists::BlockLists;
use crate::ghosts::Ghosts;
use kvpool::BlockId;
use kvpool::parts::ensure;
use kvpool::parts::try_reserve;
use kvpool::{Content, Policy};
use kvpool::{InvariantViolation, PoolError};

const SMALL: usize = 0;
const MAIN: usize = 1;

/// The largest value of a block's hit counter.
const MOST: u8 = 3;

#[derive(Clone, Copy, Debug, Default)]
struct State {
    in_main: bool,
    hits: u8,
}

/// The S3-FIFO policy: FIFO queues of new blocks (small) and of reused blocks (main), and a queue of
/// ghosts.
///
/// ```
/// use kvpool::{BlockId, Content, Policy};
/// use kvpool_policies::S3Fifo;
/// let (first, second) = (BlockId::new(1), BlockId::new(2));
/// let mut order = S3Fifo::new(8)?;
/// for block in [first, second] {
///     order.admit(block, Content { key: block.get().into(), depth: 0 });
///     order.release(block);
/// }
/// // A hit moves nothing, but the block is kept when its turn comes.
/// order.hit(first);
/// assert_eq!(order.pop(), Some(second));
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct S3Fifo {
    lists: BlockLists,
    states: Vec<State>,
    ghosts: Ghosts,
    /// The policy evicts from the queue *small* if that queue has at least this number of blocks.
    small: usize,
}

impl S3Fifo {
    /// Makes an empty order for blocks `1..num_blocks`.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is not enough memory for this number of blocks.
    pub fn new(num_blocks: usize) -> Result<Self, PoolError> {
        let mut policy =
            Self { lists: BlockLists::new(2, 0)?, states: Vec::new(), ghosts: Ghosts::new(1, 0)?, small: 1 };
        policy.grow(num_blocks)?;
        Ok(policy)
    }

    fn state(&self, block: BlockId) -> State {
        self.states.get(block.index()).copied().unwrap_or_default()
    }

    fn set_state(&mut self, block: BlockId, in_main: bool, hits: u8) {
        if let Some(state) = self.states.get_mut(block.index()) {
            *state = State { in_main, hits };
        }
    }

    fn queue_of(&self, block: BlockId) -> usize {
        if self.state(block).in_main { MAIN } else { SMALL }
    }
}

impl Policy for S3Fifo {
    fn name(&self) -> &'static str {
        "s3-fifo"
    }

    fn admit(&mut self, block: BlockId, content: Content) {
        self.lists.remove(block);
        let in_main = self.ghosts.take(content.key).is_some();
        self.set_state(block, in_main, 0);
    }

    fn hit(&mut self, block: BlockId) {
        let State { in_main, hits } = self.state(block);
        self.set_state(block, in_main, MOST.min(hits + 1));
    }

    fn release(&mut self, block: BlockId) {
        // A block that is already in a queue keeps its position.
        self.lists.push_back(self.queue_of(block), block);
    }

    fn pop(&mut self) -> Option<BlockId> {
        loop {
            let from_small = self.lists.len(SMALL) >= self.small || self.lists.is_empty(MAIN);
            let block = self.lists.pop_front(if from_small { SMALL } else { MAIN })?;
            let State { hits, .. } = self.state(block);
            if hits == 0 {
                return Some(block);
            }
            self.set_state(block, true, if from_small { 0 } else { hits - 1 });
            self.lists.push_back(MAIN, block);
        }
    }

    fn take(&mut self, block: BlockId) {
        self.lists.remove(block);
    }

    fn unpop(&mut self, block: BlockId) {
        self.lists.push_front(self.queue_of(block), block);
    }

    fn evicted(&mut self, block: BlockId, content: Content) {
        if self.queue_of(block) == SMALL {
            self.ghosts.push(0, content.key);
        }
        self.forget(block);
    }

    fn forget(&mut self, block: BlockId) {
        self.lists.remove(block);
        self.set_state(block, false, 0);
    }

    fn clear(&mut self) {
        self.lists.clear();
        self.states.fill(State::default());
        self.ghosts.clear();
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let num_blocks = num_blocks.max(self.states.len());
        let capacity = num_blocks.saturating_sub(1);
        try_reserve(&mut self.states, num_blocks)?;
        self.ghosts.grow(capacity * 9 / 10)?;
        self.lists.grow(num_blocks)?; // last, because it accepts blocks as soon as it has grown
        self.states.resize(num_blocks, State::default());
        self.small = (capacity / 10).max(1);
        Ok(())
    }

    fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.lists.check_block(block)?;
        self.ghosts.check_block(block, self.states.len())?;
        let (list, state) = (self.lists.list_of(block), self.state(block));
        let sound = list.is_none_or(|list| list == self.queue_of(block)) && state.hits <= MOST;
        ensure(sound, "S3-FIFO (a block is on its own queue, and its hit counter is in range)", || {
            format!("{block:?} is on list {list:?}: {state:?}")
        })
    }

    #[cfg(feature = "fault-injection")]
    fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        match what.checked_sub(BlockLists::FAULTS) {
            None => self.lists.corrupt(block, what, to),
            Some(what) => self.ghosts.corrupt(block, what, to),
        }
    }

    fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.lists.check_invariants()?;
        self.ghosts.check_invariants()?;
        (0..self.states.len() as u32).try_for_each(|block| self.check_block(BlockId::new(block)))
    }
}
