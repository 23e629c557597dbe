//! `BlockLists`: several intrusive lists that share one set of links, so that a block is on at most one of them.
//!
//! Owns: which list a block is on: the queues of a policy, one list per class, rank or tenant.
//!
//! Invariants: those of `list`, for each; a block is on one list or on none, and its neighbours are on the same. A link that its
//! neighbour does not mirror *tears* the lists: they accept and give nothing from then on.
//!
//! Costs: every operation O(1); 9 bytes per block, taken at once, and 24 bytes per list. With numbers of lists of 16 bits instead of
//! 8 ([`ListNumber`]) 10 bytes.

use std::fmt;

use kvpool_core::parts::{END, Link, Links, List, ensure, try_reserve};
use kvpool_core::{BlockId, InvariantViolation, MAX_BLOCKS, PoolError};

/// How the number of a list is kept with each block: in a byte, or in two where a policy has more lists than that.
pub trait ListNumber: Copy + Eq + fmt::Debug + Send + Sync + 'static {
    /// No list.
    const LOOSE: Self;
    /// The most lists that can share links.
    const MOST: usize;

    /// The number as an index.
    fn index(self) -> usize;

    /// An index below [`Self::MOST`] as a number.
    fn of(index: usize) -> Self;
}

macro_rules! list_numbers {
    ($($number:ty)*) => { $(
        impl ListNumber for $number {
            const LOOSE: Self = Self::MAX;
            const MOST: usize = Self::MAX as usize;

            #[inline]
            fn index(self) -> usize {
                self.into()
            }

            #[inline]
            fn of(index: usize) -> Self {
                index as Self
            }
        }
    )* };
}

list_numbers!(u8 u16);

/// Lists `0..num_lists` over blocks `1..num_blocks`; a block is on at most one.
///
/// ```
/// use kvpool_core::BlockId;
/// use kvpool_policies::parts::BlockLists;
/// let (a, b) = (BlockId::new(1), BlockId::new(2));
/// let mut lists: BlockLists = BlockLists::new(2, 8)?;
/// lists.push_back(0, a);
/// lists.push_front(1, b);
/// assert!(!lists.push_back(1, a), "a block is on one list at a time");
/// assert_eq!((lists.list_of(a), lists.front(1), lists.back(1), lists.len(0)), (Some(0), Some(b), Some(b), 1));
/// assert_eq!(lists.pop_front(0), Some(a));
/// # Ok::<(), kvpool_core::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BlockLists<N = u8> {
    lists: Vec<List>,
    links: Vec<Link>,
    /// By block: the list it is on.
    on: Vec<N>,
    /// Blocks on any list.
    linked: u32,
    /// Links were found that do not mirror each other, or lead from one list to another.
    torn: bool,
}

/// What is kept by block.
struct Shared<'a, N> {
    links: &'a mut [Link],
    on: &'a mut [N],
}

impl<N> Links for Shared<'_, N> {
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

impl<N: ListNumber> BlockLists<N> {
    /// `num_lists` empty lists for blocks `1..num_blocks`, with all their memory taken.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for more lists than there are numbers, or if there is no memory.
    pub fn new(num_lists: usize, num_blocks: usize) -> Result<Self, PoolError> {
        if num_lists > N::MOST {
            return Err(PoolError::config("num_lists", num_lists, format!("at most {}", N::MOST)));
        }
        let lists = vec![List::default(); num_lists];
        let mut lists = Self { lists, links: Vec::new(), on: Vec::new(), linked: 0, torn: false };
        lists.grow(num_blocks)?;
        Ok(lists)
    }

    /// Blocks on any list.
    #[must_use]
    pub const fn num_linked(&self) -> usize {
        self.linked as usize
    }

    /// Blocks on `list`.
    #[must_use]
    pub fn len(&self, list: usize) -> usize {
        self.lists.get(list).map_or(0, List::len)
    }

    /// Whether no block is on `list`.
    #[must_use]
    pub fn is_empty(&self, list: usize) -> bool {
        self.len(list) == 0
    }

    /// The list that `block` is on.
    #[must_use]
    #[inline]
    pub fn list_of(&self, block: BlockId) -> Option<usize> {
        self.on.get(block.index()).filter(|&&list| list != N::LOOSE).map(|&list| list.index())
    }

    /// The block at the front of `list`.
    #[must_use]
    pub fn front(&self, list: usize) -> Option<BlockId> {
        let front = self.lists.get(list)?.front()?;
        (!self.torn && self.is_on(list, front.get())).then_some(front)
    }

    /// The block at the back of `list`.
    #[must_use]
    pub fn back(&self, list: usize) -> Option<BlockId> {
        let back = self.lists.get(list)?.back()?;
        (!self.torn && self.is_on(list, back.get())).then_some(back)
    }

    fn is_on(&self, list: usize, block: u32) -> bool {
        self.on.get(block as usize).is_some_and(|&on| on.index() == list)
    }

    /// Whether what is beside a block of `list` is on it, too, or is its end.
    fn is_beside(&self, list: usize, neighbour: u32) -> bool {
        neighbour == END || self.is_on(list, neighbour)
    }

    /// Puts `block` after the back of `list`; false, and nothing changed, if it is on a list, or if there is no such list or block.
    #[inline]
    pub fn push_back(&mut self, list: usize, block: BlockId) -> bool {
        self.push(list, block, false)
    }

    /// Puts `block` before the front of `list`; false as [`Self::push_back`].
    #[inline]
    pub fn push_front(&mut self, list: usize, block: BlockId) -> bool {
        self.push(list, block, true)
    }

    /// Puts `block` before the front of `list`, or after its back; false as [`Self::push_back`].
    #[inline]
    pub fn push(&mut self, list: usize, block: BlockId, in_front: bool) -> bool {
        let loose = !block.is_null() && self.on.get(block.index()) == Some(&N::LOOSE);
        let Some(ends) = self.lists.get(list).filter(|_| loose && !self.torn) else { return false };
        let end = if in_front { ends.front() } else { ends.back() };
        let sound = end.is_none_or(|end| self.is_on(list, end.get()));
        let (ends, links) = (&mut self.lists[list], &mut self.links[..]);
        self.torn =
            !(sound && if in_front { ends.push_front(links, block) } else { ends.push_back(links, block) });
        if !self.torn {
            self.linked += 1;
            self.on[block.index()] = N::of(list); // below the most
        }
        !self.torn
    }

    /// Takes `block` off the list it is on; the list, or `None`, and nothing changed, if it is on none.
    #[inline]
    pub fn remove(&mut self, block: BlockId) -> Option<usize> {
        let list = self.list_of(block)?; // most are on none
        self.remove_from(list, block)
    }

    fn remove_from(&mut self, list: usize, block: BlockId) -> Option<usize> {
        if self.torn {
            return None;
        }
        let &Link { prev, next } = self.links.link(block.get())?;
        let sound = self.is_beside(list, prev) && self.is_beside(list, next);
        let removed = self.lists.get_mut(list).filter(|_| sound);
        self.torn = !removed.is_some_and(|ends| ends.remove(&mut self.links[..], block));
        if self.torn {
            return None;
        }
        self.linked = self.linked.wrapping_sub(1); // a count that is wrong is found by the sums, not here
        self.on[block.index()] = N::LOOSE;
        Some(list)
    }

    /// Puts a run of blocks after the back of `list`, `ids(0)` first, up to the first that is on a list already, or is no block. Returns
    /// how many; none if there is no such list.
    #[inline]
    pub fn push_back_run(&mut self, list: usize, len: usize, ids: impl Fn(usize) -> BlockId) -> usize {
        let sound = self.lists.get(list).and_then(List::back).is_none_or(|back| self.is_on(list, back.get()));
        self.torn |= !sound;
        let Some(ends) = self.lists.get_mut(list).filter(|_| !self.torn) else { return 0 };
        let mut shared = Shared { links: &mut self.links, on: &mut self.on };
        let put = |shared: &mut Shared<'_, N>, id: u32, link: Link| {
            let Some(place) = shared.links.link_mut(id).filter(|place| !place.is_linked()) else {
                return false;
            };
            *place = link;
            shared.on[id as usize] = N::of(list);
            true
        };
        let done = ends.push_back_run(&mut shared, len, |at| ids(at).get(), put);
        self.torn = ends.is_torn();
        self.linked += done as u32;
        done
    }

    /// Takes blocks off the list that the first of them is on, up to the first that is not on it. The list, and how many, if it is on
    /// any. Blocks that are neighbours, each before the one that was taken last, cost least.
    #[inline]
    pub fn remove_run(&mut self, blocks: &[BlockId]) -> Option<(usize, usize)> {
        let list = self.list_of(*blocks.first()?)?;
        let ends = self.lists.get_mut(list).filter(|_| !self.torn)?;
        let mut shared = Shared { links: &mut self.links, on: &mut self.on };
        let taken = ends.remove_run(&mut shared, blocks, |shared, block| {
            let on = shared.on.get_mut(block.index()).filter(|on| on.index() == list)?;
            *on = N::LOOSE;
            let link = shared.links.link_mut(block.get())?;
            Some(std::mem::replace(link, Link::LOOSE))
        });
        self.torn = ends.is_torn();
        self.linked = self.linked.wrapping_sub(taken as u32); // a count that is wrong is found by the sums, not here
        (!self.torn).then_some((list, taken))
    }

    /// Takes the front block of `list`.
    pub fn pop_front(&mut self, list: usize) -> Option<BlockId> {
        self.pop(list, true)
    }

    /// Takes the front block of `list`, or its back.
    #[inline]
    pub fn pop(&mut self, list: usize, front: bool) -> Option<BlockId> {
        let ends = self.lists.get_mut(list).filter(|_| !self.torn)?;
        let block = if front { ends.front() } else { ends.back() }?;
        let on = self.on.get_mut(block.index()).filter(|on| on.index() == list);
        self.torn = ends.pop(&mut self.links[..], front).is_none() || on.map(|on| *on = N::LOOSE).is_none();
        if self.torn {
            return None;
        }
        self.linked = self.linked.wrapping_sub(1); // a count that is wrong is found by the sums, not here
        Some(block)
    }

    /// Takes every block off every list. O(blocks).
    pub fn clear(&mut self) {
        self.lists.fill(List::default());
        self.links.fill(Link::LOOSE);
        self.on.fill(N::LOOSE);
        self.linked = 0;
    }

    /// The blocks of `list` from front to back.
    pub fn iter(&self, list: usize) -> impl Iterator<Item = BlockId> + '_ {
        self.lists.get(list).into_iter().flat_map(|ends| ends.iter(&self.links[..]))
    }

    /// Makes room for blocks up to `num_blocks - 1`; they are on no list.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory; then nothing has changed.
    pub fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let num_blocks = num_blocks.clamp(self.links.len(), MAX_BLOCKS.max(self.links.len()));
        try_reserve(&mut self.links, num_blocks)?;
        try_reserve(&mut self.on, num_blocks)?;
        self.links.resize(num_blocks, Link::LOOSE);
        self.on.resize(num_blocks, N::LOOSE);
        Ok(())
    }

    /// Whether the links of `block` and of its neighbours agree; of block 0: the ends of all lists, and their counts, O(lists).
    ///
    /// # Errors
    /// The broken invariant.
    pub fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        const NAME: &str = "L2 (a block is on one of several lists, beside others of it)";
        ensure(!self.torn, NAME, || "a change met links that do not".into())?;
        if block.is_null() {
            self.lists.iter().try_for_each(|list| list.check_block(&self.links[..], block))?;
            let sum = self.lists.iter().fold(0, |sum, list| list.len().wrapping_add(sum));
            return ensure(sum == self.num_linked(), NAME, || {
                format!("{sum} blocks by list, {} in all", self.linked)
            });
        }
        let (Some(&on), Some(link)) = (self.on.get(block.index()), self.links.link(block.get())) else {
            return Ok(());
        };
        let list = self.lists.get(on.index());
        let sound = match list {
            None => on == N::LOOSE && !link.is_linked(),
            Some(_) => [link.prev, link.next].iter().all(|&beside| self.is_beside(on.index(), beside)),
        };
        ensure(sound, NAME, || format!("{block:?} on list {on:?}: {link:?}"))?;
        list.map_or(Ok(()), |list| list.check_block(&self.links[..], block))
    }

    /// Recounts every list from its links.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "L2 (each of several lists has the blocks that say so)";
        ensure(!self.torn, NAME, || "a change met links that do not mirror each other".into())?;
        let mut linked = 0;
        for (list, ends) in self.lists.iter().enumerate() {
            linked += ends.check_invariants(&self.links[..])?;
            let stray = self.iter(list).find(|&block| self.list_of(block) != Some(list));
            ensure(stray.is_none(), NAME, || format!("list {list} has {stray:?}"))?;
        }
        let marked = self.on.iter().filter(|&&list| list != N::LOOSE).count();
        ensure(marked == linked && linked == self.num_linked(), NAME, || {
            format!("{marked} blocks say that they are on a list, {linked} are, {} counted", self.linked)
        })
    }
}

#[cfg(feature = "fault-injection")]
impl BlockLists {
    /// How many things [`Self::corrupt`] can change.
    pub const FAULTS: usize = 4;
}

#[cfg(feature = "fault-injection")]
impl<N: ListNumber> BlockLists<N> {
    /// Changes what is noted of `block` behind the lists' back: 0 its link backward, 1 its link forward, 2 the list that it is
    /// on, 3 the length of the list of that number. False if there is no such thing, or if it is so already. Links of a block on no
    /// list are not followed, and block 0 has many.
    pub fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        let list = match what {
            0 | 1 => self.list_of(block),
            3 => Some(block.index()),
            _ => None,
        };
        if let Some(list) = list.and_then(|list| self.lists.get_mut(list)) {
            let (block, what) = if what == 3 { (BlockId::new(END), 2) } else { (block, what) };
            return list.corrupt(&mut self.links[..], block, what, to);
        }
        let to = N::of(to as usize % (N::MOST + 1));
        let slot = self.on.get_mut(block.index()).filter(|_| what == 2 && !block.is_null());
        slot.is_some_and(|slot| std::mem::replace(slot, to) != to)
    }
}
