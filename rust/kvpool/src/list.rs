//! A [`List`] is an intrusive, doubly linked list whose links are block ids.
//!
//! The list itself only stores its two ends and its length. Each call gets the array with the links
//! ([`Links`]): the blocks' records, or an array that contains only links. Several lists may share one
//! array if a block is on at most one of them. The caller then has to know which list a block is on.
//!
//! Invariants: block 0 is the null block and never on a list, so the link value 0 marks both ends. A
//! block that is not on a list has *loose* links, which have a special value. So its link shows whether
//! a block is on a list.
//!
//! Every change checks the links of both neighbours, which it has to write in any case. If these links
//! do not match, the list is *torn*, and refuses all further changes. So a broken link never leads to a
//! change of a wrong block.
//!
//! Costs: every operation is O(1), or O(n) for n blocks. The array has 8 bytes per block.

use crate::block::BlockId;
use crate::error::{InvariantViolation, PoolError, ensure};

/// Marks the ends of a list: the value of the link before the first block and after the last block.
pub const END: u32 = 0;
const UNLINKED: u32 = u32::MAX;
/// Number of blocks by which a loop along a list loads cache lines in advance.
const AHEAD: u32 = 16;

/// The neighbours of a block on its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The block before it, or [`END`].
    pub prev: u32,
    /// The block after it, or [`END`].
    pub next: u32,
}

impl Link {
    /// The link of a block that is not on a list.
    pub const LOOSE: Self = Self { prev: UNLINKED, next: UNLINKED };

    /// Whether the block is on a list.
    #[must_use]
    #[inline]
    pub const fn is_linked(self) -> bool {
        self.next != UNLINKED
    }
}

/// An array of links, by block id.
pub trait Links {
    /// Returns the link of a block.
    fn link(&self, id: u32) -> Option<&Link>;
    /// Returns a mutable reference to the link of a block.
    fn link_mut(&mut self, id: u32) -> Option<&mut Link>;
    /// Returns the number of blocks that have a link, including the null block.
    fn num_links(&self) -> usize;
}

impl Links for [Link] {
    #[inline]
    fn link(&self, id: u32) -> Option<&Link> {
        self.get(id as usize)
    }

    #[inline]
    fn link_mut(&mut self, id: u32) -> Option<&mut Link> {
        self.get_mut(id as usize)
    }

    fn num_links(&self) -> usize {
        self.len()
    }
}

/// Reserves memory for `n` items. If there is not enough memory, returns an error about a pool of `n`
/// blocks.
///
/// # Errors
/// [`PoolError::InvalidConfig`]. Nothing has changed then.
pub fn try_reserve<T>(items: &mut Vec<T>, n: usize) -> Result<(), PoolError> {
    items.try_reserve_exact(n.saturating_sub(items.len())).map_err(|_| no_memory(n))
}

pub(crate) fn no_memory(num_blocks: usize) -> PoolError {
    PoolError::config("num_blocks", num_blocks, "few enough for the pool's arrays to fit in memory")
}

/// The ends and the length of a list. Every call takes the array with the links, which must be the same
/// array in every call.
#[derive(Clone, Debug, Default)]
pub struct List {
    front: u32,
    back: u32,
    len: usize,
    /// Whether a change has found links that do not match each other. The list is then torn and refuses
    /// all changes.
    torn: bool,
}

impl List {
    /// Number of blocks on the list.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the list is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the list has found a broken link, and therefore refuses all changes.
    #[must_use]
    pub const fn is_torn(&self) -> bool {
        self.torn
    }

    /// Returns the first block.
    #[must_use]
    pub const fn front(&self) -> Option<BlockId> {
        if self.len > 0 { Some(BlockId::new(self.front)) } else { None }
    }

    /// Returns the last block.
    #[must_use]
    pub const fn back(&self) -> Option<BlockId> {
        if self.len > 0 { Some(BlockId::new(self.back)) } else { None }
    }

    /// Returns the block after `id`. For [`END`], returns the front.
    #[inline]
    fn behind(&self, links: &(impl Links + ?Sized), id: u32) -> Option<u32> {
        if id == END { Some(self.front) } else { links.link(id).map(|link| link.next) }
    }

    /// Returns the block before `id`. For [`END`], returns the back.
    #[inline]
    fn before(&self, links: &(impl Links + ?Sized), id: u32) -> Option<u32> {
        if id == END { Some(self.back) } else { links.link(id).map(|link| link.prev) }
    }

    /// Whether `prev` and `next` link to each other. If they do not, marks the list as torn.
    #[inline]
    fn mirrors(&mut self, links: &(impl Links + ?Sized), prev: u32, next: u32) -> bool {
        self.torn |= self.behind(links, prev) != Some(next) || self.before(links, next) != Some(prev);
        !self.torn
    }

    #[inline]
    fn set_next(&mut self, links: &mut (impl Links + ?Sized), of: u32, next: u32) {
        match links.link_mut(of) {
            Some(link) if of != END => link.next = next,
            _ => self.front = next,
        }
    }

    #[inline]
    fn set_prev(&mut self, links: &mut (impl Links + ?Sized), of: u32, prev: u32) {
        match links.link_mut(of) {
            Some(link) if of != END => link.prev = prev,
            _ => self.back = prev,
        }
    }

    /// Adds `block` to the front. Returns false, and changes nothing, if it is already on a list.
    #[inline]
    pub fn push_front(&mut self, links: &mut (impl Links + ?Sized), block: BlockId) -> bool {
        self.insert_between(links, block.get(), END, self.front)
    }

    /// Adds `block` to the back. Returns false, and changes nothing, if it is already on a list.
    #[inline]
    pub fn push_back(&mut self, links: &mut (impl Links + ?Sized), block: BlockId) -> bool {
        self.insert_between(links, block.get(), self.back, END)
    }

    #[inline]
    fn insert_between(&mut self, links: &mut (impl Links + ?Sized), id: u32, prev: u32, next: u32) -> bool {
        let loose = id != END && links.link(id).is_some_and(|link| !link.is_linked());
        if !loose || !self.mirrors(links, prev, next) {
            return false;
        }
        if let Some(link) = links.link_mut(id) {
            *link = Link { prev, next };
        }
        self.set_next(links, prev, id);
        self.set_prev(links, next, id);
        self.len = self.len.wrapping_add(1); // `check_sums` finds a wrong count
        true
    }

    /// Adds `len` blocks to the back; `ids` returns their ids, one after the other. Stops at the first
    /// block that is already on a list. `put` stores the link of one block. It returns false, and
    /// stores nothing, if the block is on a list. Returns the number of blocks that were added.
    #[inline]
    pub fn push_back_run<L: Links + ?Sized>(
        &mut self,
        links: &mut L,
        len: usize,
        mut ids: impl FnMut(usize) -> u32,
        mut put: impl FnMut(&mut L, u32, Link) -> bool,
    ) -> usize {
        let back = self.back;
        if len == 0 || !self.mirrors(links, back, END) {
            return 0;
        }
        let first = ids(0);
        let (mut prev, mut id, mut done) = (back, first, 0);
        while id != END {
            let next = if done + 1 < len { ids(done + 1) } else { END };
            if !put(links, id, Link { prev, next }) {
                break;
            }
            (prev, id) = (id, next);
            done += 1;
        }
        if done > 0 {
            self.set_next(links, back, first);
            self.set_next(links, prev, END);
            self.back = prev;
            self.len = self.len.wrapping_add(done);
        }
        done
    }

    /// Removes `blocks` from the list. `take` returns the link of a block and marks the block as not on
    /// a list. Stops at the first block for which `take` returns `None`. Returns the number of blocks
    /// that were removed. Usually each block is the list's neighbour of the block before it. Then a
    /// removal reads only one record.
    #[inline]
    pub fn remove_run<L: Links + ?Sized>(
        &mut self,
        links: &mut L,
        blocks: &[BlockId],
        take: impl Fn(&mut L, BlockId) -> Option<Link>,
    ) -> usize {
        let mut rest = blocks;
        while let [first, behind @ ..] = rest {
            let Some(Link { mut prev, next }) = take(links, *first) else { break };
            let (mut last, mut torn) = (first.get(), false);
            rest = behind;
            while let [block, behind @ ..] = rest
                && block.get() == prev
            {
                let Some(link) = take(links, *block) else { break };
                torn |= link.next != last;
                (prev, last) = (link.prev, prev);
                rest = behind;
            }
            self.torn |= torn;
            self.join(links, (prev, last), (first.get(), next));
            if self.torn {
                return (blocks.len() - rest.len()).saturating_sub(1);
            }
        }
        let done = blocks.len() - rest.len();
        self.len = self.len.wrapping_sub(done); // `check_sums` finds a wrong count
        done
    }

    #[inline]
    fn join(
        &mut self,
        links: &mut (impl Links + ?Sized),
        (prev, begin): (u32, u32),
        (end, next): (u32, u32),
    ) {
        let behind = match links.link_mut(prev) {
            Some(link) if prev != END => &mut link.next,
            _ => &mut self.front,
        };
        self.torn |= std::mem::replace(behind, next) != begin;
        let before = match links.link_mut(next) {
            Some(link) if next != END => &mut link.prev,
            _ => &mut self.back,
        };
        self.torn |= std::mem::replace(before, prev) != end;
    }

    /// Removes the first `n` blocks, front first, and appends them to `out`. `take` returns the link of
    /// a block and marks the block as not on a list. Returns false, and appends nothing, if there are
    /// fewer blocks, or if `take` returns `None`. The list's ends are changed only once, for any number
    /// of removed blocks.
    ///
    /// The id of each block is known only after the link of the previous block was read, so a simple
    /// loop would wait for one cache line after the other. If the difference between block ids repeats,
    /// as is usual in a chain, the loop loads the cache line of a later block in advance.
    #[inline]
    pub(crate) fn pop_front_n<L: Links + ?Sized>(
        &mut self,
        links: &mut L,
        n: usize,
        out: &mut Vec<BlockId>,
        take: impl Fn(&mut L, BlockId) -> Option<Link>,
    ) -> bool {
        if n > self.len || self.torn {
            return false;
        }
        let before = out.len();
        out.reserve(n);
        let (mut last, mut at) = (END, self.front);
        let (mut step, mut read) = (0, 0);
        for _ in 0..n {
            match take(links, BlockId::new(at)) {
                Some(link) if link.prev == last && at != END => {
                    out.push(BlockId::new(at));
                    (last, at) = (at, link.next);
                }
                _ => return self.tear(out, before),
            }
            if at.wrapping_sub(last) == step {
                read ^= links.link(at.wrapping_add(step.wrapping_mul(AHEAD))).map_or(0, |link| link.next);
            }
            step = at.wrapping_sub(last);
        }
        std::hint::black_box(read);
        if n > 0 {
            if self.before(links, at) != Some(last) {
                return self.tear(out, before);
            }
            self.set_prev(links, at, END);
            self.front = at;
            self.len -= n;
        }
        true
    }

    #[cold]
    fn tear(&mut self, out: &mut Vec<BlockId>, before: usize) -> bool {
        self.torn = true;
        out.truncate(before);
        false
    }

    /// Removes the block at the front (with `front`) or at the back, and returns it.
    #[inline]
    pub fn pop(&mut self, links: &mut (impl Links + ?Sized), front: bool) -> Option<BlockId> {
        let block = if front { self.front() } else { self.back() }?;
        let link = links.link_mut(block.get()).filter(|_| !self.torn)?;
        let Link { prev, next } = std::mem::replace(link, Link::LOOSE);
        let (outer, inner) = if front { (prev, next) } else { (next, prev) };
        // The neighbour of the removed block becomes the new end.
        let beside = match (links.link_mut(inner).filter(|_| inner != END), front) {
            (Some(link), true) => &mut link.prev,
            (Some(link), false) => &mut link.next,
            (None, true) => &mut self.back,
            (None, false) => &mut self.front,
        };
        self.torn = outer != END || std::mem::replace(beside, END) != block.get();
        *(if front { &mut self.front } else { &mut self.back }) = inner;
        self.len = self.len.wrapping_sub(1); // `check_sums` finds a wrong count
        (!self.torn).then_some(block)
    }

    /// Removes `block` from any position on this list. The block must not be on another list. Returns
    /// false, and changes nothing, if it is not on a list.
    #[inline]
    pub fn remove(&mut self, links: &mut (impl Links + ?Sized), block: BlockId) -> bool {
        let id = block.get();
        let Some(&Link { prev, next }) = links.link(id).filter(|link| link.is_linked()) else { return false };
        if id == END || self.torn {
            return false;
        }
        self.torn = self.behind(links, prev) != Some(id) || self.before(links, next) != Some(id);
        if self.torn {
            return false;
        }
        self.set_next(links, prev, next);
        self.set_prev(links, next, prev);
        if let Some(link) = links.link_mut(id) {
            *link = Link::LOOSE;
        }
        self.len = self.len.wrapping_sub(1); // `check_sums` finds a wrong count
        true
    }

    /// Appends blocks `first..end`, which must not be on a list, in ascending order. O(blocks).
    pub(crate) fn push_back_range(&mut self, links: &mut (impl Links + ?Sized), first: u32, end: u32) {
        for id in first..end {
            self.push_back(links, BlockId::new(id));
        }
    }

    /// Returns the blocks from front to back.
    pub fn iter<'a>(&self, links: &'a (impl Links + ?Sized)) -> impl Iterator<Item = BlockId> + 'a {
        walk(links, self.front, |link| link.next)
    }

    /// Checks that the links of one block match those of its neighbours. The block must not be on
    /// another list. For block 0, checks the ends of the list. O(1).
    ///
    /// # Errors
    /// The broken invariant.
    pub fn check_block(
        &self,
        links: &(impl Links + ?Sized),
        block: BlockId,
    ) -> Result<(), InvariantViolation> {
        const NAME: &str = "L1 (the links of neighbours match each other)";
        ensure(!self.torn, NAME, || "a change has found links that do not match".into())?;
        let Link { prev, next } = match links.link(block.get()) {
            _ if block.is_null() => {
                let empty = self.len == 0;
                let sound = (self.front == END) == empty && (self.back == END) == empty;
                ensure(sound, NAME, || {
                    format!(
                        "the list of {} blocks begins with {} and ends with {}",
                        self.len, self.front, self.back
                    )
                })?;
                Link { prev: self.back, next: self.front }
            }
            Some(link) if link.is_linked() || link.prev != UNLINKED => *link,
            _ => return Ok(()),
        };
        let id = block.get();
        let mirrored = self.behind(links, prev) == Some(id) && self.before(links, next) == Some(id);
        ensure(mirrored, NAME, || format!("{block:?}: {prev} before, {next} after"))
    }

    /// Checks the list by following all links, forwards and backwards. Both ways must visit the same
    /// blocks, and their number must be the length of the list. Returns the length.
    ///
    /// # Errors
    /// The broken invariant.
    pub fn check_invariants(&self, links: &(impl Links + ?Sized)) -> Result<usize, InvariantViolation> {
        const NAME: &str = "L1 (both walks of a list match, and have its length)";
        ensure(!self.torn, NAME, || "a change has found links that do not match each other".into())?;
        let forward: Vec<_> = self.iter(links).collect();
        let mut backward: Vec<_> = walk(links, self.back, |link| link.prev).collect();
        backward.reverse();
        let differ = forward.iter().zip(&backward).position(|(one, other)| one != other);
        ensure(differ.is_none() && forward.len() == backward.len(), NAME, || {
            format!(
                "{} blocks forward, {} backward, first difference at position {differ:?}",
                forward.len(),
                backward.len()
            )
        })?;
        ensure(forward.len() == self.len, NAME, || {
            format!("{} blocks in the walk, {} counted", forward.len(), self.len)
        })?;
        Ok(self.len)
    }

    /// Overwrites one value of `block` for tests, and adjusts no other. `what` selects it: 0 is its
    /// backward link, 1 its forward link, 2 the length of the list. For block 0, 0 is the list's back
    /// and 1 its front. Returns false if there is no such value, or if it is already equal.
    #[cfg(feature = "fault-injection")]
    pub fn corrupt(
        &mut self,
        links: &mut (impl Links + ?Sized),
        block: BlockId,
        what: usize,
        to: u32,
    ) -> bool {
        let replace = |slot: &mut u32| std::mem::replace(slot, to) != to;
        match (what, links.link_mut(block.get())) {
            (0, _) if block.is_null() => replace(&mut self.back),
            (1, _) if block.is_null() => replace(&mut self.front),
            (0, Some(link)) => replace(&mut link.prev),
            (1, Some(link)) => replace(&mut link.next),
            (2, _) => std::mem::replace(&mut self.len, to as usize) != to as usize,
            _ => false,
        }
    }
}

/// Returns the blocks of the list by following its links. It returns at most as many blocks as the
/// array has, so it also ends if broken links form a circle.
fn walk<'a>(
    links: &'a (impl Links + ?Sized),
    first: u32,
    step: impl Fn(&Link) -> u32 + 'a,
) -> impl Iterator<Item = BlockId> + 'a {
    std::iter::successors(Some(first), move |&at| links.link(at).map(&step))
        .take(links.num_links())
        .take_while(|&at| at != END && (at as usize) < links.num_links())
        .map(BlockId::new)
}
