//! `Queue`: the blocks without references, in the order in which they will be handed out.
//!
//! vLLM has one list. Its blocks without a hash are put at its front and those with one at its back, so it always reads
//! as two: kvpool's free list, last in first out, and behind it kvpool's evictor, least recently used. A block stays in
//! the part in which it was put, whatever becomes of its hash, until it is taken or moved.
//!
//! Any other policy is no order of vLLM's. It is told what blocks hold ([`Queue::registered`]), who uses it
//! ([`Queue::remove`], [`Queue::used`]) and what is gone ([`Queue::forget`]); a free block whose content is gone has
//! nothing to be kept for, and goes to the front. The queue owns what the evictor was told; whether that is what a block
//! carries is for [`Pool`](crate::Pool) to see to.
//!
//! Costs: O(1) per block, O(log n) where the policy needs it; 16 bytes per block, with another policy than `lru` 36 and
//! what the policy has.

use kvpool::evictor::{Candidate, Content, Evictor};
use kvpool::{BlockId, EvictionPolicy, FreeBlockList, InvariantViolation, PoolError};

use crate::error::filled;

/// In the place of a depth: the evictor was not told what the block holds.
const UNTOLD: u32 = u32::MAX;

/// The free blocks, in the order of reuse.
#[derive(Debug)]
pub struct Queue {
    free: FreeBlockList,
    evictor: Box<dyn Evictor>,
    /// How deep in its chain the content is that the evictor was told of, by block. Empty if it wants no history.
    told: Vec<u32>,
}

impl Queue {
    /// Blocks `1..num_blocks`, ascending, all in the first part.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for a number of blocks out of range.
    pub fn new(num_blocks: usize, policy: EvictionPolicy) -> Result<Self, PoolError> {
        // kvpool has no pool of the null block alone; vLLM has.
        let at_least_two = num_blocks.max(2);
        let mut free = FreeBlockList::new(at_least_two)?;
        if num_blocks < 2 {
            free.pop_front_n(at_least_two - 1)?;
        }
        let evictor = policy.build(at_least_two, None)?;
        let told = if evictor.wants_history() { filled(at_least_two, UNTOLD)? } else { Vec::new() };
        Ok(Self { free, evictor, told })
    }

    /// Whether the order depends on what blocks hold and who uses it: not with `lru`.
    #[must_use]
    #[inline]
    pub const fn wants_history(&self) -> bool {
        !self.told.is_empty()
    }

    /// How deep in its chain the content is that `block` is known to hold.
    #[must_use]
    pub fn depth_of(&self, block: u32) -> Option<u32> {
        self.told.get(block as usize).copied().filter(|&depth| depth != UNTOLD)
    }

    /// Whether `block` is free and among the cached ones.
    #[must_use]
    pub fn is_cached(&self, block: u32) -> bool {
        self.evictor.contains(BlockId::new(block))
    }

    fn tell(&mut self, block: u32, depth: u32) {
        if let Some(place) = self.told.get_mut(block as usize) {
            *place = depth;
        }
    }

    /// Number of blocks in it.
    #[must_use]
    pub fn len(&self) -> usize {
        self.free.len() + self.evictor.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether `block` is in it.
    #[must_use]
    pub fn contains(&self, block: u32) -> bool {
        let block = BlockId::new(block);
        self.free.contains(block) || self.evictor.contains(block)
    }

    /// Takes the next `n` blocks, or as many as there are.
    pub fn pop_front_n(&mut self, n: usize, out: &mut Vec<u32>) {
        let mut from_free = Vec::with_capacity(n.min(self.free.len()));
        if self.free.pop_front_n_into(n.min(self.free.len()), &mut from_free).is_ok() {
            out.extend(from_free.iter().map(|block| block.get()));
        }
        for _ in from_free.len()..n {
            let Some(block) = self.evictor.evict() else { return };
            self.tell(block.get(), UNTOLD);
            out.push(block.get());
        }
    }

    /// Takes `block` from wherever it is: what it holds is in use again. Returns whether it was there.
    pub fn remove(&mut self, block: u32) -> bool {
        let id = BlockId::new(block);
        // What the evictor made up for a block without a content ends with its stay.
        let was_cached =
            if self.depth_of(block).is_some() { self.evictor.hit(id) } else { self.evictor.remove(id) };
        was_cached || self.free.remove(id).is_ok()
    }

    /// Counts a use of what `block` holds, which is in use already.
    #[inline]
    pub(crate) fn used(&mut self, block: u32) {
        if self.depth_of(block).is_some() {
            self.evictor.hit(BlockId::new(block));
        }
    }

    /// `block` has a new content, which depends on that of `parent`, if there is one. If it is free, it is among the
    /// cached ones from now on.
    pub(crate) fn registered(&mut self, block: u32, content: Content, parent: Option<u32>) {
        if !self.wants_history() || block == 0 {
            return;
        }
        let id = BlockId::new(block);
        // Contents begin in blocks that are in use; one that is free is taken out meanwhile.
        let was_cached = self.evictor.contains(id) && self.evictor.remove(id);
        let was_free = was_cached || self.free.contains(id) && self.free.remove(id).is_ok();
        // A depth without a content would be the mark of none.
        let content = Content { depth: content.depth.min(UNTOLD - 1), ..content };
        self.evictor.registered(id, content, parent.filter(|&parent| parent != 0).map(BlockId::new));
        self.tell(block, content.depth);
        if was_free {
            self.push_back_n(&[block]);
        }
    }

    /// The content of `block` is gone. If it is among the cached ones, it is reused next.
    pub(crate) fn forget(&mut self, block: u32) {
        if !self.wants_history() {
            return;
        }
        self.tell(block, UNTOLD);
        if self.evictor.remove(BlockId::new(block)) {
            self.push_front_n(&[block]);
        }
    }

    /// All contents are gone: what was cached is reused in the order in which it would have been evicted, behind what is
    /// free. O(blocks).
    pub(crate) fn forget_all(&mut self) {
        if !self.wants_history() {
            return;
        }
        let cached = self.evictor.order();
        self.evictor.clear();
        self.told.fill(UNTOLD);
        for block in cached {
            // Refused only for a block that is in it already.
            let _ = self.free.push_back(block);
        }
    }

    /// Puts `blocks` at the front: the first of them will be handed out next.
    pub fn push_front_n(&mut self, blocks: &[u32]) {
        for &block in blocks.iter().rev() {
            // Refused only for a block that is in it already.
            let _ = self.free.push_front(BlockId::new(block));
        }
    }

    /// Puts `blocks` at the back: with `lru` the last of them will be handed out last, with another policy they go where
    /// it wants them, as of one moment.
    pub fn push_back_n(&mut self, blocks: &[u32]) {
        // Equal depth, with `lru`: the evictor keeps the order in which they are given.
        let depth = |block| self.depth_of(block).unwrap_or(0);
        let candidate = |&block: &u32| Candidate { block: BlockId::new(block), depth: depth(block) };
        match blocks {
            [] => {}
            [block] => {
                let mut alone = [candidate(block)];
                self.evictor.insert(&mut alone);
            }
            _ => {
                let mut candidates: Vec<_> = blocks.iter().map(candidate).collect();
                self.evictor.insert(&mut candidates);
            }
        }
    }

    /// The next `n` blocks, or as many as there are, without taking them. O(n) while the free list has as many, O(len)
    /// otherwise.
    #[must_use]
    pub fn peek(&self, n: usize) -> Vec<u32> {
        let mut next: Vec<u32> = self.free.iter().take(n).map(BlockId::get).collect();
        if next.len() < n {
            let more = n - next.len();
            next.extend(self.evictor.order().into_iter().take(more).map(BlockId::get));
        }
        next
    }

    /// All of them, in the order of reuse. O(n).
    #[must_use]
    pub fn order(&self) -> Vec<u32> {
        self.free.iter().chain(self.evictor.order()).map(BlockId::get).collect()
    }

    /// Recounts both parts from scratch: each is a sound list, and no block is in both.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.free.check_invariants()?;
        self.evictor.check_invariants()?;
        let twice = self.evictor.order().into_iter().find(|&block| self.free.contains(block));
        match twice {
            None => Ok(()),
            Some(block) => Err(InvariantViolation::new(
                "V1 (a free block is in one part of the queue)",
                format!("block {block:?} is in both"),
            )),
        }
    }
}
