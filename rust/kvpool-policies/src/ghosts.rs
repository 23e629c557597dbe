//! `Ghosts`: an exact, bounded memory of the keys that were evicted.
//!
//! Policies remember the keys of evicted blocks, called *ghosts*, to recognise content that returns.
//! This type stores them in one or several queues (for example B1 and B2 of ARC) with one hash table. A
//! key is in at most one queue.
//!
//! A set that may lose keys would be smaller, but one lost ghost in the middle of a chain ends the
//! prefix there. With such sets, S3-FIFO hits 6.20 instead of 7.55 per cent of a chat trace, with a
//! cache of 1 % of its blocks.
//!
//! Invariants: the hash table finds exactly the keys that are in a queue. There are at most as many
//! keys as the capacity.
//!
//! Costs: adding and removing a key is O(1). A ghost takes 23 bytes, and all are allocated at once. An
//! attacker cannot choose keys that collide (see `slots`).

use crate::block_lists::BlockLists;
use crate::slots::Slots;
use kvpool::parts::ensure;
use kvpool::parts::try_reserve;
use kvpool::{BlockId, MAX_BLOCKS};
use kvpool::{InvariantViolation, PoolError};

/// Number of the list of unused ghosts. Queue `q` is list `q + 1`.
const UNUSED: usize = 0;

/// A bounded memory of the keys of evicted blocks, in one or several queues.
///
/// ```
/// use kvpool_policies::parts::Ghosts;
/// let mut ghosts = Ghosts::new(2, 3)?;
/// for key in [10, 11, 12] {
///     ghosts.push(0, key);
/// }
/// ghosts.push(1, 10); // moves the key to queue 1
/// assert_eq!((ghosts.len(0), ghosts.len(1)), (2, 1));
/// ghosts.push(0, 13); // full: drops the oldest key of queue 0
/// assert_eq!(ghosts.find(11), None);
/// assert_eq!(ghosts.take(12), Some(0));
/// ghosts.trim(0, 0);
/// assert_eq!((ghosts.find(13), ghosts.find(10)), (None, Some(1)));
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Ghosts {
    /// The queues, as linked lists of ghosts. A ghost is a number from 1 to the capacity.
    queues: BlockLists,
    num_queues: usize,
    keys: Vec<u64>,
    slots: Slots,
    capacity: usize,
}

impl Ghosts {
    /// Makes empty queues for `capacity` ghosts in total, and allocates all their memory.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there are more queues than [`BlockLists`] supports, or if there
    /// is not enough memory.
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

    /// The number of keys on `queue`.
    #[must_use]
    pub fn len(&self, queue: usize) -> usize {
        self.queues.len(queue.saturating_add(1))
    }

    /// Whether no key is on `queue`.
    #[must_use]
    pub fn is_empty(&self, queue: usize) -> bool {
        self.len(queue) == 0
    }

    /// Returns the queue that `key` is on.
    #[must_use]
    pub fn find(&self, key: u64) -> Option<usize> {
        self.queue_of(BlockId::new(self.slots.find(&self.keys, key)?))
    }

    fn queue_of(&self, ghost: BlockId) -> Option<usize> {
        self.queues.list_of(ghost)?.checked_sub(1)
    }

    /// Removes `key` from its queue, and returns that queue.
    pub fn take(&mut self, key: u64) -> Option<usize> {
        let ghost = BlockId::new(self.slots.remove(&self.keys, key)?);
        let queue = self.queue_of(ghost);
        self.queues.remove(ghost)?;
        self.queues.push_front(UNUSED, ghost);
        queue
    }

    /// Adds `key` to `queue` as the newest key, and removes it from any other queue. If the memory is
    /// full, drops the oldest key of `queue`, or of the first queue that has any. Returns false, and
    /// changes nothing, if there is no such queue or if the capacity is 0.
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

    /// Drops the oldest keys of `queue` until it has at most `len`.
    pub fn trim(&mut self, queue: usize, len: usize) {
        while self.len(queue) > len && self.drop_oldest(queue) {}
    }

    /// Drops the oldest key of `queue`. Returns false if the queue is empty, or if the links of the
    /// queue are broken.
    fn drop_oldest(&mut self, queue: usize) -> bool {
        let oldest = self.queues.front(queue + 1);
        oldest.is_some_and(|oldest| self.take(self.keys[oldest.index()]).is_some())
    }

    /// Removes all keys. O(capacity).
    pub fn clear(&mut self) {
        self.queues.clear();
        self.slots.clear();
        self.make_unused(1);
    }

    /// Makes room for `capacity` ghosts in total. All existing ghosts remain.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is not enough memory. Nothing has changed then.
    pub fn grow(&mut self, capacity: usize) -> Result<(), PoolError> {
        let capacity = capacity.min(MAX_BLOCKS - 1);
        if capacity <= self.capacity {
            return Ok(());
        }
        self.slots.reserve(capacity)?;
        try_reserve(&mut self.keys, capacity + 1)?;
        self.queues.grow(capacity + 1)?; // invisible until `make_unused` below
        // All memory is reserved now, so the rest of this function cannot fail.
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

    /// Iterates over the keys of `queue`, oldest first.
    pub fn iter(&self, queue: usize) -> impl Iterator<Item = u64> + '_ {
        self.queues.iter(queue.saturating_add(1)).map(|ghost| self.keys[ghost.index()])
    }

    /// Checks some of the ghosts, so that calls for all of `blocks` blocks check every ghost. For each
    /// ghost that is assigned to `block`, checks that its links agree with those of its neighbours. For
    /// block 0, checks the ends of the queues and the number of ghosts. O(ghosts per block).
    ///
    /// # Errors
    /// The violated invariant.
    pub fn check_block(&self, block: BlockId, blocks: usize) -> Result<(), InvariantViolation> {
        if block.is_null() {
            self.queues.check_block(block)?;
            let ghosts = self.queues.num_linked();
            return ensure(
                ghosts == self.capacity,
                "G2 (every ghost number is on a queue or unused)",
                || format!("{ghosts} of {} numbers are on a queue or unused", self.capacity),
            );
        }
        let own = (block.index()..=self.capacity).step_by(blocks.saturating_sub(1).max(1));
        own.map(|ghost| BlockId::new(ghost as u32)).try_for_each(|ghost| self.queues.check_block(ghost))
    }

    /// Injects a fault into a link of a ghost, for tests.
    #[cfg(feature = "fault-injection")]
    pub fn corrupt(&mut self, ghost: BlockId, what: usize, to: u32) -> bool {
        self.queues.corrupt(ghost, what, to)
    }

    /// Checks all links of the queues, and that the hash table finds exactly their keys.
    ///
    /// # Errors
    /// The first violated invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "G1 (every ghost on a queue is found, and no other key is)";
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
