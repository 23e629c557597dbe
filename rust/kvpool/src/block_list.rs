//! `BlockList`: an intrusive doubly linked list whose links are block ids.
//!
//! Owns: the links. One entry per block id of the pool, 8 bytes each, so a block is on a given list at most once and
//! leaves it from anywhere in O(1). Nothing here knows why a block is on a list.
//!
//! Invariants: the list is circular through entry 0 (block 0 is the null block and never a member), so no step has an
//! end case; a block that is not a member has sentinel links, so membership is one load and a stale link cannot lie.
//!
//! A change looks at both neighbours before it writes. Links that do not mirror each other *tear* the list: from then on it
//! accepts and gives nothing, so a broken link is never followed into somebody else's block.
//!
//! Costs: every operation O(1), or O(n) for n blocks; construction one allocation.

use crate::block::{BlockId, MAX_BLOCKS};
use crate::error::{InvariantViolation, PoolError, ensure};

const UNLINKED: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
}

const LOOSE: Link = Link { prev: UNLINKED, next: UNLINKED };

/// Reserves room for `n` items, or says that a pool of `n` blocks does not fit in memory.
///
/// # Errors
/// [`PoolError::InvalidConfig`] if there is no memory.
pub fn try_reserve<T>(items: &mut Vec<T>, n: usize) -> Result<(), PoolError> {
    items.try_reserve_exact(n.saturating_sub(items.len())).map_err(|_| no_memory(n))
}

/// The error for arrays that do not fit in memory.
pub(crate) fn no_memory(num_blocks: usize) -> PoolError {
    PoolError::InvalidConfig {
        field: "num_blocks",
        value: num_blocks.to_string(),
        expected: "few enough for the pool's arrays to fit in memory".into(),
    }
}

/// An ordered set of blocks with O(1) removal from the middle.
#[derive(Clone, Debug)]
pub struct BlockList {
    /// Entry 0 is the list's head and tail: `next` is the front, `prev` the back. Entries behind the highest member so
    /// far are reserved but not written: a large pool is constructed without touching its memory.
    links: Vec<Link>,
    num_blocks: usize,
    len: usize,
    /// Links were found that do not mirror each other.
    torn: bool,
}

impl BlockList {
    /// An empty list that can hold blocks `1..num_blocks`, of [`MAX_BLOCKS`] at most. Memory is taken as blocks come.
    #[must_use]
    pub fn new(num_blocks: usize) -> Self {
        let links = vec![Link { prev: 0, next: 0 }];
        Self { links, num_blocks: num_blocks.clamp(1, MAX_BLOCKS), len: 0, torn: false }
    }

    /// Takes the memory for all blocks at once, so that no later push allocates.
    pub(crate) fn reserve_all(&mut self) -> Result<(), PoolError> {
        try_reserve(&mut self.links, self.num_blocks)
    }

    /// A list of all blocks `1..num_blocks`, in ascending order.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks.
    pub fn full(num_blocks: usize) -> Result<Self, PoolError> {
        let mut list = Self::new(num_blocks);
        list.reserve_all()?;
        let n = list.num_blocks as u32;
        list.links[0] = Link { prev: n - 1, next: 1 % n };
        list.links.extend((1..n).map(|i| Link { prev: i - 1, next: (i + 1) % n }));
        list.len = n as usize - 1;
        Ok(list)
    }

    /// Blocks on the list.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether no block is on the list.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One more than the largest id that the list can hold.
    #[must_use]
    pub const fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Whether `block` is on the list. False for ids that the list cannot hold.
    #[must_use]
    pub fn contains(&self, block: BlockId) -> bool {
        !block.is_null() && self.links.get(block.index()).is_some_and(|link| link.next != UNLINKED)
    }

    /// Whether `block` could be pushed: a real block of the pool that is not on the list.
    #[must_use]
    pub fn accepts(&self, block: BlockId) -> bool {
        !block.is_null()
            && match self.links.get(block.index()) {
                Some(link) => link.next == UNLINKED,
                None => block.index() < self.num_blocks,
            }
    }

    /// Whether the list met a broken link, and does nothing any more.
    #[must_use]
    pub const fn is_torn(&self) -> bool {
        self.torn
    }

    /// The block at the front.
    #[must_use]
    pub fn front(&self) -> Option<BlockId> {
        (self.len > 0).then(|| BlockId::new(self.links[0].next))
    }

    /// Puts `block` before the front; false, and nothing changed, if the list does not accept it.
    pub fn push_front(&mut self, block: BlockId) -> bool {
        let front = self.links[0].next;
        self.insert_between(block, 0, front)
    }

    /// Puts `block` after the back; false, and nothing changed, if the list does not accept it.
    pub fn push_back(&mut self, block: BlockId) -> bool {
        let back = self.links[0].prev;
        self.insert_between(block, back, 0)
    }

    fn insert_between(&mut self, block: BlockId, prev: u32, next: u32) -> bool {
        if !self.accepts(block) {
            return false;
        }
        if !self.mirrors(prev, next) {
            return false;
        }
        if block.index() >= self.links.len() {
            self.links.resize(block.index() + 1, LOOSE);
        }
        self.links[block.index()] = Link { prev, next };
        self.links[prev as usize].next = block.get();
        self.links[next as usize].prev = block.get();
        self.len += 1;
        true
    }

    /// Takes the front block.
    pub fn pop_front(&mut self) -> Option<BlockId> {
        let front = self.front()?;
        self.remove(front).then_some(front)
    }

    /// Whether `prev` and `next` are neighbours that say so of each other. Tears the list if they do not.
    #[inline]
    fn mirrors(&mut self, prev: u32, next: u32) -> bool {
        let forward = self.links.get(prev as usize).is_some_and(|link| link.next == next);
        let backward = self.links.get(next as usize).is_some_and(|link| link.prev == prev);
        self.torn |= !(forward && backward);
        !self.torn
    }

    /// Takes the first `n` blocks, front first, appending them to `out`; false, and nothing changed, if there are
    /// fewer. The rest is spliced to the head once, however many are taken.
    pub fn pop_front_n(&mut self, n: usize, out: &mut Vec<BlockId>) -> bool {
        if n > self.len || self.torn {
            return false;
        }
        out.reserve(n);
        let before = out.len();
        let (mut last, mut cursor) = (0, self.links[0].next);
        for _ in 0..n {
            match self.links.get_mut(cursor as usize) {
                Some(slot) if slot.prev == last && cursor != 0 => {
                    let link = std::mem::replace(slot, LOOSE);
                    out.push(BlockId::new(cursor));
                    (last, cursor) = (cursor, link.next);
                }
                _ => {
                    self.torn = true;
                    out.truncate(before);
                    return false;
                }
            }
        }
        match self.links.get_mut(cursor as usize) {
            Some(slot) if slot.prev == last || n == 0 => slot.prev = 0,
            _ => {
                self.torn = true;
                out.truncate(before);
                return false;
            }
        }
        self.links[0].next = cursor;
        self.len -= n;
        true
    }

    /// Takes `block` out of the list, wherever it is; false, and nothing changed, if it is not a member.
    pub fn remove(&mut self, block: BlockId) -> bool {
        if !self.contains(block) {
            return false;
        }
        let Link { prev, next } = self.links[block.index()];
        if !self.mirrors(prev, block.get()) || !self.mirrors(block.get(), next) {
            return false;
        }
        self.links[block.index()] = LOOSE;
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
        self.len = self.len.wrapping_sub(1); // a count that is wrong is found by the sums, not here
        true
    }

    /// Makes room for blocks up to `num_blocks - 1`; they are not on the list.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory; then nothing has changed.
    pub fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let num_blocks = self.num_blocks.max(num_blocks).min(MAX_BLOCKS);
        try_reserve(&mut self.links, num_blocks)?;
        self.num_blocks = num_blocks;
        Ok(())
    }

    /// The blocks from front to back.
    pub fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.walk(|link| link.next)
    }

    /// The blocks from back to front.
    pub fn iter_back(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.walk(|link| link.prev)
    }

    /// Walks the links, over real blocks and never longer than the list could be: a broken ring ends, it does not hang.
    fn walk(&self, step: fn(&Link) -> u32) -> impl Iterator<Item = BlockId> + '_ {
        let first = step(&self.links[0]);
        std::iter::successors(Some(first), move |&at| self.links.get(at as usize).map(step))
            .take(self.links.len())
            .take_while(|&at| at != 0 && (at as usize) < self.links.len())
            .map(BlockId::new)
    }

    /// Whether one block's links, a member's or not, and those of its neighbours agree. Of block 0: the ends. O(1).
    ///
    /// # Errors
    /// The broken invariant.
    pub fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        const NAME: &str = "L1 (links mirror each other)";
        ensure(!self.torn, NAME, || "a change met links that do not".into())?;
        let Some(&Link { prev, next }) = self.links.get(block.index()) else { return Ok(()) };
        if prev == UNLINKED && next == UNLINKED && !block.is_null() {
            return Ok(());
        }
        let forward = self.links.get(next as usize).is_some_and(|link| link.prev == block.get());
        let backward = self.links.get(prev as usize).is_some_and(|link| link.next == block.get());
        let alone = block.is_null() && (next == 0) != (self.len == 0);
        ensure(forward && backward && !alone, NAME, || format!("{block:?}: {prev} before, {next} after"))
    }

    /// Recounts the list from its links.
    ///
    /// # Errors
    /// The first broken invariant: forward and backward walks must both have `len` members and mirror each other,
    /// and every other entry must be loose.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "L1 (a list's walks agree with its length)";
        ensure(!self.torn, NAME, || "a change met links that do not mirror each other".into())?;
        let forward: Vec<_> = self.iter().collect();
        let mut backward: Vec<_> = self.iter_back().collect();
        backward.reverse();
        ensure(forward == backward, NAME, || format!("forward {forward:?}, backward {backward:?}"))?;
        ensure(forward.len() == self.len, NAME, || {
            format!("{} walked, {} counted", forward.len(), self.len)
        })?;
        let linked = self.links.iter().skip(1).filter(|link| link.next != UNLINKED).count();
        ensure(linked == self.len, NAME, || format!("{linked} entries are linked, {} counted", self.len))
    }
}

#[cfg(feature = "fault-injection")]
impl BlockList {
    /// Changes what is noted of `block` behind the list's back: 0 its link backward, 1 its link forward, 2 the length. False if
    /// there is no such thing, or if it is so already.
    pub(crate) fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        let replace = |slot: &mut u32| std::mem::replace(slot, to) != to;
        match (what, self.links.get_mut(block.index())) {
            (0, Some(link)) => replace(&mut link.prev),
            (1, Some(link)) => replace(&mut link.next),
            (2, _) => std::mem::replace(&mut self.len, to as usize) != to as usize,
            _ => false,
        }
    }
}
