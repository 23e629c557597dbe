//! `List`: an intrusive doubly linked list whose links are block ids.
//!
//! Owns: the links. The list itself only contains its ends and its length. The links are in an array of
//! the caller ([`Links`]): in the blocks' records, or in an array of links alone. Several lists may
//! share one array if a block is on at most one of them. The caller then knows which list a block is
//! on. The list does not depend on why a block is on it.
//!
//! Invariants: block 0 is the null block and never a member, so 0 marks both ends. A block on no list
//! has loose links. So a membership test reads one link, and a stale link cannot make a block look like
//! a member.
//!
//! Every change reads both neighbours, which it has to write anyway. If their links do not match each
//! other, the list is *torn*: from then on every change is refused. So a broken link is never followed
//! into another block.
//!
//! Costs: every operation O(1), or O(n) for n blocks; 8 bytes per block in the array.

use crate::block::BlockId;
use crate::error::{InvariantViolation, PoolError, ensure};

/// Marks both ends of a list: the neighbour of the first block and of the last block.
pub const END: u32 = 0;
const UNLINKED: u32 = u32::MAX;
/// Number of blocks by which a walk loads cache lines ahead.
const AHEAD: u32 = 16;

/// The neighbours of a block on a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The block before it, or [`END`].
    pub prev: u32,
    /// The block after it, or [`END`].
    pub next: u32,
}

impl Link {
    /// The link of a block that is on no list.
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
    /// Returns the link of a block, mutably.
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

/// Reserves room for `n` items. If there is no memory, returns an error about a pool of `n` blocks.
///
/// # Errors
/// [`PoolError::InvalidConfig`]. Nothing has changed then.
pub fn try_reserve<T>(items: &mut Vec<T>, n: usize) -> Result<(), PoolError> {
    items.try_reserve_exact(n.saturating_sub(items.len())).map_err(|_| no_memory(n))
}

/// The error for arrays that do not fit in memory.
pub(crate) fn no_memory(num_blocks: usize) -> PoolError {
    PoolError::config("num_blocks", num_blocks, "few enough for the pool's arrays to fit in memory")
}

/// The ends of a list. Every call takes the array with its links, which must always be the same one.
#[derive(Clone, Debug, Default)]
pub struct List {
    front: u32,
    back: u32,
    len: usize,
    /// Whether a change has found links that do not match each other.
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

    /// Whether the list has found a broken link, and refuses all changes.
    #[must_use]
    pub const fn is_torn(&self) -> bool {
        self.torn
    }

    /// The first block.
    #[must_use]
    pub const fn front(&self) -> Option<BlockId> {
        if self.len > 0 { Some(BlockId::new(self.front)) } else { None }
    }

    /// The last block.
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

    /// Whether `prev` and `next` are neighbours that link to each other. Marks the list as torn if they
    /// do not.
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

    /// Puts `block` before the front. False, and nothing changed, if it is already on a list.
    #[inline]
    pub fn push_front(&mut self, links: &mut (impl Links + ?Sized), block: BlockId) -> bool {
        self.insert_between(links, block.get(), END, self.front)
    }

    /// Puts `block` after the back. False, and nothing changed, if it is already on a list.
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
        self.len = self.len.wrapping_add(1); // the check of the sums finds a wrong count
        true
    }

    /// Puts a run of blocks after the back, `ids(0)` first, up to the first that is already on a list.
    /// `put` stores the link of one block, and returns whether the block was on no list. Returns the
    /// number of blocks that were added.
    #[inline]
    pub fn push_back_run<L: Links + ?Sized>(
        &mut self,
        links: &mut L,
        len: usize,
        ids: impl Fn(usize) -> u32,
        put: impl Fn(&mut L, u32, Link) -> bool,
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

    /// Removes blocks, up to the first for which `take` returns `None`. `take` returns the link of a
    /// block and makes it loose. Returns the number of blocks that were removed. If each block is the
    /// neighbour before the one removed last, as in a chain, its removal reads only one record.
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
        self.len = self.len.wrapping_sub(done); // the check of the sums finds a wrong count
        done
    }

    /// Links `prev` to `next`, after a run of blocks between them was removed that began with `begin`
    /// and ended with `end`.
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
    /// a block and makes it loose. False, and nothing appended, if there are fewer blocks, or if `take`
    /// returns `None`. The rest is linked to the end once, no matter how many blocks are removed.
    ///
    /// Each link leads to the next, so a plain walk would wait for one cache line after the other. If
    /// the distance between block ids repeats, as in a chain, the walk loads the line of a later block
    /// ahead.
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

    /// Removes and returns the block at the front, or at the back.
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
        self.len = self.len.wrapping_sub(1); // the check of the sums finds a wrong count
        (!self.torn).then_some(block)
    }

    /// Removes `block` from any place on this list. The block must be on this list or on none. False,
    /// and nothing changed, if it is on none.
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
        self.len = self.len.wrapping_sub(1); // the check of the sums finds a wrong count
        true
    }

    /// Appends blocks `first..end`, which are on no list, in ascending order. O(blocks).
    pub(crate) fn push_back_range(&mut self, links: &mut (impl Links + ?Sized), first: u32, end: u32) {
        for id in first..end {
            self.push_back(links, BlockId::new(id));
        }
    }

    /// The blocks from front to back.
    pub fn iter<'a>(&self, links: &'a (impl Links + ?Sized)) -> impl Iterator<Item = BlockId> + 'a {
        walk(links, self.front, |link| link.next)
    }

    /// Checks that the links of one block match those of its neighbours. The block must be on this list
    /// or on none. For block 0, checks the ends of the list. O(1).
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

    /// Recounts the list from its links: the forward and the backward walk must match, and have its
    /// length. Returns the length.
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

    /// Overwrites a value of `block`, without any bookkeeping: 0 its backward link, 1 its forward link
    /// (for block 0 the list's back and front), 2 the length. False if there is no such value, or it is
    /// already equal.
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

/// Walks the links over real blocks. The walk is never longer than the array, so it also ends in a
/// broken ring.
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
