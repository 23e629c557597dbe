//! `BlockLists`: several linked lists of blocks that share one array of links, so that a block is on at
//! most one of them.
//!
//! The array also records which list a block is on. A policy uses the lists for its queues, or has one
//! list per class, rank or tenant.
//!
//! Invariants: those of `list` hold for each list. A block and its neighbours are on the same list. The
//! link from a block to its neighbour and the link back must agree. If two links disagree, the lists
//! become *damaged*: from then on they accept and return nothing.
//!
//! Costs: every operation is O(1). A block takes 9 bytes, allocated at once, and a list 24 bytes. A
//! policy that stores more data per block may implement [`Members`] for its own array, with the links
//! in the same entries. Then a block takes one cache line instead of two.

use kvpool::parts::{END, Link, Links, List, ensure, try_reserve};
use kvpool::{BlockId, InvariantViolation, MAX_BLOCKS, PoolError};

/// The array with the data of each block: its links, the number of its list, and data of the policy.
pub trait Members: Links + Default {
    /// The maximum number of lists that can share the array.
    const MOST: usize;

    /// Returns the list that a block is on. `None` if it is on no list, or if there is no such block.
    fn list_of(&self, id: u32) -> Option<usize>;

    /// Records the list that a block is on, which is a number below [`Self::MOST`]. `None` means no
    /// list.
    fn note(&mut self, id: u32, list: Option<usize>);

    /// Removes every block from its list. O(blocks).
    fn clear(&mut self);

    /// Makes room for the blocks `1..num_blocks`. The new blocks are on no list.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is not enough memory. Nothing has changed then.
    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError>;
}

/// The array with links only, and in one byte per block the number of its list.
#[derive(Clone, Debug, Default)]
pub struct Bare {
    links: Vec<Link>,
    /// For each block, the number of the list that it is on.
    on: Vec<u8>,
}

const LOOSE: u8 = u8::MAX;

impl Links for Bare {
    #[inline]
    fn link(&self, id: u32) -> Option<&Link> {
        self.links.link(id)
    }

    #[inline]
    fn link_mut(&mut self, id: u32) -> Option<&mut Link> {
        self.links.link_mut(id)
    }

    fn num_links(&self) -> usize {
        self.links.len()
    }
}

impl Members for Bare {
    const MOST: usize = LOOSE as usize;

    #[inline]
    fn list_of(&self, id: u32) -> Option<usize> {
        self.on.get(id as usize).filter(|&&list| list != LOOSE).map(|&list| list.into())
    }

    #[inline]
    fn note(&mut self, id: u32, list: Option<usize>) {
        if let Some(on) = self.on.get_mut(id as usize) {
            *on = list.map_or(LOOSE, |list| list as u8);
        }
    }

    fn clear(&mut self) {
        self.links.fill(Link::LOOSE);
        self.on.fill(LOOSE);
    }

    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.links, num_blocks)?;
        try_reserve(&mut self.on, num_blocks)?;
        self.links.resize(num_blocks, Link::LOOSE);
        self.on.resize(num_blocks, LOOSE);
        Ok(())
    }
}

/// Linked lists `0..num_lists` of the blocks `1..num_blocks`. A block is on at most one list.
///
/// ```
/// use kvpool::BlockId;
/// use kvpool_policies::parts::BlockLists;
/// let (a, b) = (BlockId::new(1), BlockId::new(2));
/// let mut lists: BlockLists = BlockLists::new(2, 8)?;
/// lists.push_back(0, a);
/// lists.push_front(1, b);
/// assert!(!lists.push_back(1, a), "a block is on one list at a time");
/// assert_eq!((lists.list_of(a), lists.len(0)), (Some(0), 1));
/// assert_eq!((lists.front(1), lists.back(1)), (Some(b), Some(b)));
/// assert_eq!(lists.pop_front(0), Some(a));
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BlockLists<M = Bare> {
    lists: Vec<List>,
    /// The data of each block, which includes its links.
    pub(crate) members: M,
    /// The number of blocks that are on a list.
    linked: u32,
    /// Whether links were found that disagree, or that lead from one list to another.
    damaged: bool,
}

impl<M: Members> BlockLists<M> {
    /// Makes `num_lists` empty lists for blocks `1..num_blocks`, and allocates all their memory.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for more than [`Members::MOST`] lists, or if there is not enough
    /// memory.
    pub fn new(num_lists: usize, num_blocks: usize) -> Result<Self, PoolError> {
        if num_lists > M::MOST {
            return Err(PoolError::config("num_lists", num_lists, format!("at most {}", M::MOST)));
        }
        let lists = vec![List::default(); num_lists];
        let mut lists = Self { lists, members: M::default(), linked: 0, damaged: false };
        lists.grow(num_blocks)?;
        Ok(lists)
    }

    /// The number of blocks that are on a list.
    #[must_use]
    pub const fn num_linked(&self) -> usize {
        self.linked as usize
    }

    /// The number of blocks on `list`.
    #[must_use]
    pub fn len(&self, list: usize) -> usize {
        self.lists.get(list).map_or(0, List::len)
    }

    /// Whether no block is on `list`.
    #[must_use]
    pub fn is_empty(&self, list: usize) -> bool {
        self.len(list) == 0
    }

    /// Returns the list that `block` is on.
    #[must_use]
    #[inline]
    pub fn list_of(&self, block: BlockId) -> Option<usize> {
        self.members.list_of(block.get())
    }

    /// Returns the block at the front of `list`.
    #[must_use]
    pub fn front(&self, list: usize) -> Option<BlockId> {
        let front = self.lists.get(list)?.front()?;
        (!self.damaged && self.is_on(list, front.get())).then_some(front)
    }

    /// Returns the block at the back of `list`.
    #[must_use]
    pub fn back(&self, list: usize) -> Option<BlockId> {
        let back = self.lists.get(list)?.back()?;
        (!self.damaged && self.is_on(list, back.get())).then_some(back)
    }

    fn is_on(&self, list: usize, block: u32) -> bool {
        self.members.list_of(block) == Some(list)
    }

    /// Whether a neighbour in `list` is on this list, or is the end of the list.
    fn is_beside(&self, list: usize, neighbour: u32) -> bool {
        neighbour == END || self.is_on(list, neighbour)
    }

    /// Adds `block` at the back of `list`. Returns false, and changes nothing, if the block is on a
    /// list, or if there is no such list or block.
    #[inline]
    pub fn push_back(&mut self, list: usize, block: BlockId) -> bool {
        self.push(list, block, false)
    }

    /// Adds `block` at the front of `list`. Returns false in the same cases as [`Self::push_back`].
    #[inline]
    pub fn push_front(&mut self, list: usize, block: BlockId) -> bool {
        self.push(list, block, true)
    }

    /// Adds `block` at the front or at the back of `list`. Returns false in the same cases as
    /// [`Self::push_back`].
    #[inline]
    pub fn push(&mut self, list: usize, block: BlockId, in_front: bool) -> bool {
        let known = !block.is_null() && block.index() < self.members.num_links();
        let loose = known && self.list_of(block).is_none();
        let Some(ends) = self.lists.get(list).filter(|_| loose && !self.damaged) else { return false };
        let end = if in_front { ends.front() } else { ends.back() };
        let sound = end.is_none_or(|end| self.is_on(list, end.get()));
        let (ends, links) = (&mut self.lists[list], &mut self.members);
        self.damaged =
            !(sound && if in_front { ends.push_front(links, block) } else { ends.push_back(links, block) });
        if !self.damaged {
            self.linked += 1;
            self.members.note(block.get(), Some(list)); // below `MOST`
        }
        !self.damaged
    }

    /// Removes `block` from its list and returns the list. Returns `None`, and changes nothing, if it
    /// is on none.
    #[inline]
    pub fn remove(&mut self, block: BlockId) -> Option<usize> {
        let list = self.list_of(block)?; // most blocks are on no list
        self.remove_from(list, block)
    }

    fn remove_from(&mut self, list: usize, block: BlockId) -> Option<usize> {
        if self.damaged {
            return None;
        }
        let &Link { prev, next } = self.members.link(block.get())?;
        let sound = self.is_beside(list, prev) && self.is_beside(list, next);
        let removed = self.lists.get_mut(list).filter(|_| sound);
        self.damaged = !removed.is_some_and(|ends| ends.remove(&mut self.members, block));
        if self.damaged {
            return None;
        }
        self.linked = self.linked.wrapping_sub(1); // a wrong count is found by the checks, not here
        self.members.note(block.get(), None);
        Some(list)
    }

    /// Adds consecutive blocks at the back of `list`. `ids(0)` returns the first of them. The caller's
    /// `put` writes the links of a block, and records that it is on this list. At the first block for
    /// which `put` returns false, the call ends. Returns the number of blocks added. It is 0 if there
    /// is no such list.
    #[inline]
    pub fn push_back_run(
        &mut self,
        list: usize,
        len: usize,
        ids: impl Fn(usize) -> BlockId,
        put: impl Fn(&mut M, u32, Link) -> bool,
    ) -> usize {
        let sound = self.lists.get(list).and_then(List::back).is_none_or(|back| self.is_on(list, back.get()));
        self.damaged |= !sound;
        let Some(ends) = self.lists.get_mut(list).filter(|_| !self.damaged) else { return 0 };
        let done = ends.push_back_run(&mut self.members, len, |at| ids(at).get(), put);
        self.damaged = ends.is_torn();
        self.linked += done as u32;
        done
    }

    /// Removes blocks from `list`. If a block is on this list, the caller's `take` clears its links,
    /// records that it is on no list, and returns the old links. At the first block for which `take`
    /// returns `None`, the call ends. Returns the number of blocks removed. The call is cheapest if
    /// each block precedes the previous one in the list.
    #[inline]
    pub fn remove_run(
        &mut self,
        list: usize,
        blocks: &[BlockId],
        take: impl Fn(&mut M, BlockId) -> Option<Link>,
    ) -> usize {
        let Some(ends) = self.lists.get_mut(list).filter(|_| !self.damaged) else { return 0 };
        let taken = ends.remove_run(&mut self.members, blocks, take);
        self.damaged = ends.is_torn();
        // Do not check this count here. If it becomes wrong, `check_invariants` finds it.
        self.linked = self.linked.wrapping_sub(taken as u32);
        taken
    }

    /// Removes and returns the front block of `list`.
    pub fn pop_front(&mut self, list: usize) -> Option<BlockId> {
        self.pop(list, true)
    }

    /// Removes and returns the block at the front of `list`, or at its back if `front` is false.
    #[inline]
    pub fn pop(&mut self, list: usize, front: bool) -> Option<BlockId> {
        self.pop_if(list, front, |_, _| true)
    }

    /// Removes and returns the front or the back block of `list`, if `qualifies` is true of it.
    #[inline]
    pub fn pop_if(
        &mut self,
        list: usize,
        front: bool,
        qualifies: impl Fn(&M, BlockId) -> bool,
    ) -> Option<BlockId> {
        let ends = self.lists.get_mut(list).filter(|_| !self.damaged)?;
        let block = if front { ends.front() } else { ends.back() }?;
        let is_on = self.members.list_of(block.get()) == Some(list);
        if is_on && !qualifies(&self.members, block) {
            return None;
        }
        self.damaged = !is_on || ends.pop(&mut self.members, front).is_none();
        if self.damaged {
            return None;
        }
        self.members.note(block.get(), None);
        self.linked = self.linked.wrapping_sub(1); // a wrong count is found by the checks, not here
        Some(block)
    }

    /// Removes every block from every list. O(blocks).
    pub fn clear(&mut self) {
        self.lists.fill(List::default());
        self.members.clear();
        self.linked = 0;
    }

    /// Iterates over the blocks of `list` from front to back.
    pub fn iter(&self, list: usize) -> impl Iterator<Item = BlockId> + '_ {
        self.lists.get(list).into_iter().flat_map(|ends| ends.iter(&self.members))
    }

    /// Makes room for the blocks `1..num_blocks`. The new blocks are on no list.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is not enough memory. Nothing has changed then.
    pub fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let before = self.members.num_links();
        self.members.grow(num_blocks.clamp(before, MAX_BLOCKS.max(before)))
    }

    /// Checks that the links of `block` and of its neighbours agree. If `block` is block 0, checks the
    /// ends and the lengths of all lists in O(lists).
    ///
    /// # Errors
    /// The violated invariant.
    pub fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        const NAME: &str = "L2 (a block and its neighbours are on the same list)";
        ensure(!self.damaged, NAME, || "a change found links that do not mirror each other".into())?;
        if block.is_null() {
            self.lists.iter().try_for_each(|list| list.check_block(&self.members, block))?;
            let sum = self.lists.iter().fold(0, |sum, list| list.len().wrapping_add(sum));
            return ensure(sum == self.num_linked(), NAME, || {
                format!("the lists have {sum} blocks, {} counted", self.linked)
            });
        }
        let Some(link) = self.members.link(block.get()) else { return Ok(()) };
        let on = self.list_of(block);
        let list = on.and_then(|on| self.lists.get(on));
        let sound = match on.filter(|_| list.is_some()) {
            None => on.is_none() && !link.is_linked(),
            Some(on) => [link.prev, link.next].iter().all(|&beside| self.is_beside(on, beside)),
        };
        ensure(sound, NAME, || format!("{block:?} on list {on:?}: {link:?}"))?;
        list.map_or(Ok(()), |list| list.check_block(&self.members, block))
    }

    /// Follows the links of every list, and checks that each list contains exactly the blocks that are
    /// marked for it.
    ///
    /// # Errors
    /// The first violated invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "L2 (each list contains exactly the blocks marked for it)";
        ensure(!self.damaged, NAME, || "a change found links that do not mirror each other".into())?;
        let mut linked = 0;
        for (list, ends) in self.lists.iter().enumerate() {
            linked += ends.check_invariants(&self.members)?;
            let stray = self.iter(list).find(|&block| self.list_of(block) != Some(list));
            ensure(stray.is_none(), NAME, || {
                format!("list {list} contains {stray:?}, which is not marked for it")
            })?;
        }
        let ids = 0..self.members.num_links() as u32;
        let marked = ids.filter(|&id| self.members.list_of(id).is_some()).count();
        ensure(marked == linked && linked == self.num_linked(), NAME, || {
            format!("{marked} blocks are marked as on a list, {linked} are on one, {} counted", self.linked)
        })
    }
}

#[cfg(feature = "fault-injection")]
impl BlockLists {
    /// The number of kinds of faults that [`Self::corrupt`] can inject.
    pub const FAULTS: usize = 4;
}

#[cfg(feature = "fault-injection")]
impl<M: Members> BlockLists<M> {
    /// Injects a fault into the data of `block`, for tests. `what` selects the data: 0 is the backward
    /// link, 1 the forward link, and 2 the list that the block is on. 3 is the length of the list whose
    /// number is that of the block. Returns false if there is no such data, or if it already has the
    /// value `to`. The links of a block on no list, and of block 0 (which has the ends of every list),
    /// cannot be corrupted.
    pub fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        let list = match what {
            0 | 1 => self.list_of(block),
            3 => Some(block.index()),
            _ => None,
        };
        if let Some(list) = list.and_then(|list| self.lists.get_mut(list)) {
            let (block, what) = if what == 3 { (BlockId::new(END), 2) } else { (block, what) };
            return list.corrupt(&mut self.members, block, what, to);
        }
        let before = self.members.list_of(block.get());
        if what == 2 && !block.is_null() {
            self.members.note(block.get(), Some(to as usize % (M::MOST + 1)).filter(|&to| to < M::MOST));
        }
        self.members.list_of(block.get()) != before
    }
}
