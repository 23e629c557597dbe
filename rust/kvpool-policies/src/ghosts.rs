//! `Ghosts`: which keys were evicted, exactly, in a bounded memory.
//!
//! Owns: the keys, on one queue or several that share a table (B1 and B2 of ARC). A key is on one queue
//! at most. Lossy sets would be smaller, but one lost ghost in the middle of a chain cuts the prefix:
//! with hashed sets S3-FIFO hits 6.20 instead of 7.55 per cent of a chat trace at 1 % of its blocks.
//!
//! Invariants: every key on a queue is found, nothing else is; no more keys than the capacity.
//!
//! Costs: push, take, trim (per key) O(1); 23 bytes per ghost, taken at once. Nobody can choose keys that
//! collide (`slots`).

use crate::block_lists::BlockLists;
use crate::slots::Slots;
use kvpool::parts::ensure;
use kvpool::parts::try_reserve;
use kvpool::{BlockId, MAX_BLOCKS};
use kvpool::{InvariantViolation, PoolError};

/// The list of the numbers that no ghost has; queue `q` is list `q + 1`.
const UNUSED: usize = 0;

/// A bounded memory of keys in queues.
///
/// ```
/// use kvpool_policies::parts::Ghosts;
/// let mut ghosts = Ghosts::new(2, 3)?;
/// for key in [10, 11, 12] {
///     ghosts.push(0, key);
/// }
/// ghosts.push(1, 10); // a key is on one queue
/// assert_eq!((ghosts.len(0), ghosts.len(1)), (2, 1));
/// ghosts.push(0, 13); // full: the oldest of this queue makes room
/// assert_eq!(ghosts.find(11), None);
/// assert_eq!(ghosts.take(12), Some(0));
/// ghosts.trim(0, 0);
/// assert_eq!((ghosts.find(13), ghosts.find(10)), (None, Some(1)));
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ghosts {
    /// Ghost numbers, linked as blocks are.
    queues: BlockLists,
    num_queues: usize,
    /// By ghost number.
    keys: Vec<u64>,
    /// Ghost numbers by key.
    slots: Slots,
    capacity: usize,
}

impl Ghosts {
    /// Empty queues for `capacity` ghosts together, with all their memory taken.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for as many queues as [`BlockLists`] has numbers, or more, or if
    /// there is no memory.
    pub fn new(num_queues: usize, capacity: usize) -> Result<Self, PoolError> {
        let mut ghosts = Self {
            queues: BlockLists::new(num_queues.saturating_add(1), 1)?,
            num_queues,
            keys: Vec::new(),
            slots: Slots::new(),
            capacity: 0,
        };
        ghosts.grow(capacity)?;
        Ok(ghosts)
    }

    /// Ghosts on `queue`.
    #[must_use]
    pub fn len(&self, queue: usize) -> usize {
        self.queues.len(queue.saturating_add(1))
    }

    /// Whether no ghost is on `queue`.
    #[must_use]
    pub fn is_empty(&self, queue: usize) -> bool {
        self.len(queue) == 0
    }

    /// The queue that `key` is on.
    #[must_use]
    pub fn find(&self, key: u64) -> Option<usize> {
        self.queue_of(BlockId::new(self.slots.find(&self.keys, key)?))
    }

    fn queue_of(&self, ghost: BlockId) -> Option<usize> {
        self.queues.list_of(ghost)?.checked_sub(1)
    }

    /// Takes `key` off its queue, and returns that queue.
    pub fn take(&mut self, key: u64) -> Option<usize> {
        let ghost = BlockId::new(self.slots.remove(&self.keys, key)?);
        let queue = self.queue_of(ghost);
        self.queues.remove(ghost)?;
        self.queues.push_front(UNUSED, ghost);
        queue
    }

    /// Puts `key` on `queue` as the newest, off any queue that it was on. If all ghosts are used, the
    /// oldest of `queue` makes room, or of the first queue with any. False, and nothing changed, if
    /// there is no such queue or no capacity.
    pub fn push(&mut self, queue: usize, key: u64) -> bool {
        if queue >= self.num_queues || self.capacity == 0 {
            return false;
        }
        self.take(key);
        if self.queues.is_empty(UNUSED) {
            let mut queues = std::iter::once(queue).chain(0..self.num_queues);
            self.drop_oldest(queues.find(|&from| !self.is_empty(from)).unwrap_or(queue));
        }
        let Some(ghost) = self.queues.pop_front(UNUSED) else { return false };
        self.keys[ghost.index()] = key;
        self.queues.push_back(queue + 1, ghost);
        self.slots.insert(&self.keys, ghost.get());
        true
    }

    /// Drops the oldest of `queue` until there are `len` at most.
    pub fn trim(&mut self, queue: usize, len: usize) {
        while self.len(queue) > len && self.drop_oldest(queue) {}
    }

    /// Whether it was dropped: a queue whose links are broken drops none.
    fn drop_oldest(&mut self, queue: usize) -> bool {
        let oldest = self.queues.front(queue + 1);
        oldest.is_some_and(|oldest| self.take(self.keys[oldest.index()]).is_some())
    }

    /// Forgets all ghosts. O(capacity).
    pub fn clear(&mut self) {
        self.queues.clear();
        self.slots.clear();
        self.make_unused(1);
    }

    /// Makes room for `capacity` ghosts; those that there are stay.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory; then nothing has changed.
    pub fn grow(&mut self, capacity: usize) -> Result<(), PoolError> {
        let capacity = capacity.min(MAX_BLOCKS - 1);
        if capacity <= self.capacity {
            return Ok(());
        }
        self.slots.reserve(capacity)?;
        try_reserve(&mut self.keys, capacity + 1)?;
        self.queues.grow(capacity + 1)?; // unnoticed until they are unused ghosts, below
        // Nothing fails from here on.
        self.keys.resize(capacity + 1, 0);
        let first_new = self.capacity + 1;
        self.capacity = capacity;
        let ghosts = (1..=self.num_queues).flat_map(|list| self.queues.iter(list)).map(BlockId::get);
        self.slots.rebuild(capacity, &self.keys, ghosts);
        self.make_unused(first_new);
        Ok(())
    }

    fn make_unused(&mut self, first: usize) {
        for ghost in first..=self.capacity {
            self.queues.push_back(UNUSED, BlockId::new(ghost as u32)); // fits: less than MAX_BLOCKS
        }
    }

    /// The keys of `queue`, oldest first.
    pub fn iter(&self, queue: usize) -> impl Iterator<Item = u64> + '_ {
        self.queues.iter(queue.saturating_add(1)).map(|ghost| self.keys[ghost.index()])
    }

    /// Whether the links of the ghosts that belong to `block` agree with their neighbours': every ghost
    /// belongs to one of `blocks` blocks. Of block 0: the ends of the queues, and how many ghosts there
    /// are. O(ghosts per block).
    ///
    /// # Errors
    /// The broken invariant.
    pub fn check_block(&self, block: BlockId, blocks: usize) -> Result<(), InvariantViolation> {
        if block.is_null() {
            self.queues.check_block(block)?;
            let ghosts = self.queues.num_linked();
            return ensure(ghosts == self.capacity, "G2 (every ghost is on a queue, or unused)", || {
                format!("{ghosts} of {} are", self.capacity)
            });
        }
        let own = (block.index()..=self.capacity).step_by(blocks.saturating_sub(1).max(1));
        own.map(|ghost| BlockId::new(ghost as u32)).try_for_each(|ghost| self.queues.check_block(ghost))
    }

    /// Changes a link of a ghost behind the queues' back.
    #[cfg(feature = "fault-injection")]
    pub fn corrupt(&mut self, ghost: BlockId, what: usize, to: u32) -> bool {
        self.queues.corrupt(ghost, what, to)
    }

    /// Recounts the queues and the table.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "G1 (every ghost on a queue is found, nothing else is)";
        self.queues.check_invariants()?;
        let mut ghosts = 0;
        for ghost in (1..=self.num_queues).flat_map(|list| self.queues.iter(list)) {
            let found = self.slots.find(&self.keys, self.keys[ghost.index()]);
            ensure(found == Some(ghost.get()), NAME, || format!("ghost {ghost} is found as {found:?}"))?;
            ghosts += 1;
        }
        let used = self.slots.count();
        let unused = self.queues.len(UNUSED);
        ensure(used == ghosts && used + unused == self.capacity, NAME, || {
            format!("{ghosts} on queues, {used} in the table, {unused} unused, capacity {}", self.capacity)
        })
    }
}
