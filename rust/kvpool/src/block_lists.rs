//! `BlockLists`: several intrusive lists that share one set of links, so that a block is on at most one of them.
//!
//! Owns: the links, and which list a block is on. What a list is to one order, this is to a policy with queues:
//! small and main, T1 and T2, one list per class or priority.
//!
//! Invariants: a block is on one list or on none; a list's walk has as many members as it counts. As a list,
//! the lists are *torn* by a link that its neighbour does not mirror: they accept and give nothing from then on.
//!
//! Costs: every operation O(1); 9 bytes per block, taken at once, and 12 bytes per list.

use crate::block::{BlockId, MAX_BLOCKS};
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::list::try_reserve;

/// No block: the end of a list. Block 0 is the null block and never a member.
const END: u32 = 0;
/// No list.
const LOOSE: u8 = u8::MAX;

#[derive(Clone, Copy, Debug, Default)]
struct Link {
    prev: u32,
    next: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    front: u32,
    back: u32,
    len: u32,
}

/// Lists `0..num_lists` over blocks `1..num_blocks`; a block is on at most one.
///
/// ```
/// use kvpool::{BlockId, evictor::parts::BlockLists};
/// let (a, b) = (BlockId::new(1), BlockId::new(2));
/// let mut lists = BlockLists::new(2, 8)?;
/// lists.push_back(0, a);
/// lists.push_front(1, b);
/// assert!(!lists.push_back(1, a), "a block is on one list at a time");
/// assert_eq!((lists.list_of(a), lists.front(1), lists.len(0)), (Some(0), Some(b), 1));
/// assert_eq!(lists.pop_front(0), Some(a));
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BlockLists {
    ends: Vec<Ends>,
    links: Vec<Link>,
    /// By block: the list it is on.
    on: Vec<u8>,
    /// Blocks on any list.
    linked: u32,
    /// Links were found that do not mirror each other.
    torn: bool,
}

impl BlockLists {
    /// The most lists that can share links.
    pub const MAX_LISTS: usize = LOOSE as usize;

    /// `num_lists` empty lists for blocks `1..num_blocks`, with all their memory taken.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for more than [`Self::MAX_LISTS`] lists, or if there is no memory.
    pub fn new(num_lists: usize, num_blocks: usize) -> Result<Self, PoolError> {
        if num_lists > Self::MAX_LISTS {
            return Err(PoolError::InvalidConfig {
                field: "num_lists",
                value: num_lists.to_string(),
                expected: format!("at most {}", Self::MAX_LISTS),
            });
        }
        let ends = vec![Ends::default(); num_lists];
        let mut lists = Self { ends, links: Vec::new(), on: Vec::new(), linked: 0, torn: false };
        lists.grow(num_blocks)?;
        Ok(lists)
    }

    /// Blocks on `list`.
    #[must_use]
    pub fn len(&self, list: usize) -> usize {
        self.ends.get(list).map_or(0, |ends| ends.len as usize)
    }

    /// Whether no block is on `list`.
    #[must_use]
    pub fn is_empty(&self, list: usize) -> bool {
        self.len(list) == 0
    }

    /// The list that `block` is on.
    #[must_use]
    pub fn list_of(&self, block: BlockId) -> Option<usize> {
        self.on.get(block.index()).filter(|&&list| list != LOOSE).map(|&list| usize::from(list))
    }

    /// The block at the front of `list`.
    #[must_use]
    pub fn front(&self, list: usize) -> Option<BlockId> {
        let front = self.ends.get(list).filter(|ends| ends.len > 0).map(|ends| BlockId::new(ends.front));
        front.filter(|&front| !self.torn && self.is_on(list, front.get()))
    }

    fn is_on(&self, list: usize, block: u32) -> bool {
        self.on.get(block as usize).is_some_and(|&on| usize::from(on) == list)
    }

    /// Whether `block`, on `list` or an end of it, has `expected` before it.
    fn has_before(&self, list: usize, block: u32, expected: u32) -> bool {
        match block {
            END => self.ends.get(list).is_some_and(|ends| ends.back == expected),
            block => self.is_on(list, block) && self.links[block as usize].prev == expected,
        }
    }

    /// The same, behind it.
    fn has_behind(&self, list: usize, block: u32, expected: u32) -> bool {
        match block {
            END => self.ends.get(list).is_some_and(|ends| ends.front == expected),
            block => self.is_on(list, block) && self.links[block as usize].next == expected,
        }
    }

    /// Whether `prev` and `next` are neighbours on `list` that say so of each other. Tears the lists if they do not.
    #[inline]
    fn mirrors(&mut self, list: usize, prev: u32, next: u32) -> bool {
        self.torn |= !self.has_behind(list, prev, next) || !self.has_before(list, next, prev);
        !self.torn
    }

    /// Puts `block` after the back of `list`; false, and nothing changed, if it is on a list, or if there is no such list or
    /// block.
    pub fn push_back(&mut self, list: usize, block: BlockId) -> bool {
        if !self.accepts(list, block) {
            return false;
        }
        let back = self.ends[list].back;
        if !self.mirrors(list, back, END) {
            return false;
        }
        self.links[block.index()] = Link { prev: back, next: END };
        match back {
            END => self.ends[list].front = block.get(),
            back => self.links[back as usize].next = block.get(),
        }
        self.ends[list].back = block.get();
        self.note_pushed(list, block);
        true
    }

    /// Puts `block` before the front of `list`; false as [`Self::push_back`].
    pub fn push_front(&mut self, list: usize, block: BlockId) -> bool {
        if !self.accepts(list, block) {
            return false;
        }
        let front = self.ends[list].front;
        if !self.mirrors(list, END, front) {
            return false;
        }
        self.links[block.index()] = Link { prev: END, next: front };
        match front {
            END => self.ends[list].back = block.get(),
            front => self.links[front as usize].prev = block.get(),
        }
        self.ends[list].front = block.get();
        self.note_pushed(list, block);
        true
    }

    fn accepts(&self, list: usize, block: BlockId) -> bool {
        list < self.ends.len() && !block.is_null() && self.on.get(block.index()) == Some(&LOOSE)
    }

    fn note_pushed(&mut self, list: usize, block: BlockId) {
        self.ends[list].len = self.ends[list].len.wrapping_add(1);
        self.linked += 1;
        self.on[block.index()] = list as u8; // at most MAX_LISTS
    }

    /// Takes `block` off the list it is on; the list, or `None`, and nothing changed, if it is on none.
    pub fn remove(&mut self, block: BlockId) -> Option<usize> {
        let list = self.list_of(block)?;
        let Link { prev, next } = *self.links.get(block.index())?;
        if list >= self.ends.len()
            || !self.mirrors(list, prev, block.get())
            || !self.mirrors(list, block.get(), next)
        {
            self.torn = true;
            return None;
        }
        match prev {
            END => self.ends[list].front = next,
            prev => self.links[prev as usize].next = next,
        }
        match next {
            END => self.ends[list].back = prev,
            next => self.links[next as usize].prev = prev,
        }
        // A count that is wrong is found by the sums, not here.
        self.ends[list].len = self.ends[list].len.wrapping_sub(1);
        self.linked = self.linked.wrapping_sub(1);
        self.on[block.index()] = LOOSE;
        Some(list)
    }

    /// Takes the front block of `list`.
    pub fn pop_front(&mut self, list: usize) -> Option<BlockId> {
        let front = self.front(list)?;
        self.remove(front).map(|_| front)
    }

    /// Takes every block off every list. O(blocks).
    pub fn clear(&mut self) {
        self.ends.fill(Ends::default());
        self.on.fill(LOOSE);
        self.linked = 0;
    }

    /// The blocks of `list` from front to back.
    pub fn iter(&self, list: usize) -> impl Iterator<Item = BlockId> + '_ {
        let first = self.ends.get(list).map_or(END, |ends| ends.front);
        // Of real blocks, and never longer than there are: a broken list ends, it does not hang.
        std::iter::successors(Some(first), |&at| self.links.get(at as usize).map(|link| link.next))
            .take(self.links.len())
            .take_while(|&at| at != END && (at as usize) < self.links.len())
            .map(BlockId::new)
    }

    /// Makes room for blocks up to `num_blocks - 1`; they are on no list.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory; then nothing has changed.
    pub fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let num_blocks = num_blocks.clamp(self.links.len(), MAX_BLOCKS.max(self.links.len()));
        try_reserve(&mut self.links, num_blocks)?;
        try_reserve(&mut self.on, num_blocks)?;
        self.links.resize(num_blocks, Link::default());
        self.on.resize(num_blocks, LOOSE);
        Ok(())
    }

    /// Whether one block's links and those of its neighbours agree. Of block 0: the ends of all lists, and their counts. O(1),
    /// O(lists) for block 0.
    ///
    /// # Errors
    /// The broken invariant.
    pub fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        const NAME: &str = "L2 (links of several lists mirror each other)";
        ensure(!self.torn, NAME, || "a change met links that do not".into())?;
        if block.is_null() {
            let mut sum = 0_u64;
            for (list, &Ends { front, back, len }) in self.ends.iter().enumerate() {
                sum += u64::from(len);
                let empty = len == 0;
                let sound = self.has_before(list, front, END)
                    && self.has_behind(list, back, END)
                    && (front == END) == empty
                    && (back == END) == empty;
                ensure(sound, NAME, || format!("list {list} of {len}: from {front} to {back}"))?;
            }
            return ensure(sum == u64::from(self.linked), NAME, || {
                format!("{sum} blocks by list, {} in all", self.linked)
            });
        }
        let (Some(&on), Some(&Link { prev, next })) =
            (self.on.get(block.index()), self.links.get(block.index()))
        else {
            return Ok(());
        };
        let list = usize::from(on);
        let sound = on == LOOSE
            || (list < self.ends.len()
                && self.has_behind(list, prev, block.get())
                && self.has_before(list, next, block.get()));
        ensure(sound, NAME, || format!("{block:?} on list {on}: {prev} before, {next} after"))
    }

    /// Recounts every list from its links.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "L2 (each of several lists has the blocks that say so)";
        ensure(!self.torn, NAME, || "a change met links that do not mirror each other".into())?;
        let mut linked = 0;
        for (list, ends) in self.ends.iter().enumerate() {
            let blocks: Vec<_> = self.iter(list).collect();
            let theirs = blocks.iter().all(|&block| self.list_of(block) == Some(list));
            let backward = blocks
                .windows(2)
                .all(|pair| self.links.get(pair[1].index()).is_some_and(|link| link.prev == pair[0].get()));
            let back = blocks.last().map_or(END, |block| block.get());
            ensure(
                theirs && backward && blocks.len() == ends.len as usize && back == ends.back,
                NAME,
                || {
                    format!(
                        "list {list}: {} walked, {} counted, members {theirs}, backward {backward}",
                        blocks.len(),
                        ends.len
                    )
                },
            )?;
            linked += blocks.len();
        }
        let marked = self.on.iter().filter(|&&list| list != LOOSE).count();
        ensure(marked == linked && linked == self.linked as usize, NAME, || {
            format!("{marked} blocks say that they are on a list, {linked} are, {} counted", self.linked)
        })
    }
}

#[cfg(feature = "fault-injection")]
impl BlockLists {
    /// How many things [`Self::corrupt`] can change.
    pub const FAULTS: usize = 4;

    /// Changes what is noted of `block` behind the lists' back: 0 its link backward, 1 its link forward, 2 the list that it is
    /// on, 3 the length of the list of that number. False if there is no such thing, or if it is so already.
    pub fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        let linked = self.list_of(block).is_some();
        match what {
            0 | 1 => {
                // Links of a block on no list mean nothing.
                let Some(link) = self.links.get_mut(block.index()).filter(|_| linked) else { return false };
                let slot = if what == 0 { &mut link.prev } else { &mut link.next };
                std::mem::replace(slot, to) != to
            }
            2 => {
                let to = (to % 256) as u8;
                let Some(slot) = self.on.get_mut(block.index()).filter(|_| !block.is_null()) else {
                    return false;
                };
                std::mem::replace(slot, to) != to
            }
            3 => {
                let Some(ends) = self.ends.get_mut(block.index()) else { return false };
                std::mem::replace(&mut ends.len, to) != to
            }
            _ => false,
        }
    }
}
