//! `Deadlines`: when the retention of which block runs out.
//!
//! Owns: one deadline per block at most, in an indexed binary heap. Putting a deadline off, which every hit on a block with an
//! idle time to live does, is O(1): only the wanted deadline is noted, and the heap learns of it when the old one is due.
//!
//! Costs: O(log blocks) to set, end, or run out; 24 bytes per block.

use crate::block::BlockId;
use crate::block_list::try_reserve;
use crate::error::{InvariantViolation, PoolError, ensure};

/// Not in the heap.
const OUT: u32 = u32::MAX;

/// A time in the order of its number: greater time, greater key. Only finite times get in.
fn key_of(time: f64) -> u64 {
    let bits = (time + 0.0).to_bits(); // -0 and 0 are the same time
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    /// (key when it was pushed, block): a heap, earliest first; of equal keys the lower id.
    heap: Vec<(u64, u32)>,
    /// By block: its place in the heap.
    places: Vec<u32>,
    /// By block: the deadline that is meant, never before the one in the heap.
    wanted: Vec<u64>,
}

impl Deadlines {
    pub(super) fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.heap, num_blocks)?;
        try_reserve(&mut self.places, num_blocks)?;
        try_reserve(&mut self.wanted, num_blocks)?;
        let num_blocks = num_blocks.max(self.places.len());
        self.places.resize(num_blocks, OUT);
        self.wanted.resize(num_blocks, 0);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(super) fn contains(&self, block: BlockId) -> bool {
        self.places.get(block.index()).is_some_and(|&place| place != OUT)
    }

    /// Sets the deadline of `block`, which is one of the pool's, in place of any that it had.
    pub(super) fn set(&mut self, block: BlockId, deadline: f64) {
        let key = key_of(deadline);
        match self.places.get(block.index()) {
            None => {}
            Some(&OUT) => {
                self.wanted[block.index()] = key;
                self.places[block.index()] = self.heap.len() as u32;
                self.heap.push((key, block.get()));
                self.sift_up(self.heap.len() - 1);
            }
            Some(&place) => {
                self.wanted[block.index()] = key;
                if key < self.heap[place as usize].0 {
                    self.heap[place as usize].0 = key;
                    self.sift_up(place as usize);
                }
            }
        }
    }

    /// Ends the deadline of `block`.
    pub(super) fn end(&mut self, block: BlockId) {
        let Some(&place) = self.places.get(block.index()).filter(|&&place| place != OUT) else { return };
        self.places[block.index()] = OUT;
        let last = self.heap.len() - 1;
        self.heap.swap(place as usize, last);
        self.heap.pop();
        if (place as usize) < last {
            self.places[self.heap[place as usize].1 as usize] = place;
            self.sift_up(place as usize);
            self.sift_down(place as usize);
        }
    }

    /// Takes a block whose deadline is `now` or before.
    pub(super) fn pop_due(&mut self, now: f64) -> Option<BlockId> {
        let now = key_of(now);
        loop {
            let &(key, block) = self.heap.first().filter(|(key, _)| *key <= now)?;
            let (block, wanted) = (BlockId::new(block), self.wanted[block as usize]);
            if wanted > key {
                self.heap[0].0 = wanted; // put off meanwhile
                self.sift_down(0);
                continue;
            }
            self.end(block);
            return Some(block);
        }
    }

    pub(super) fn clear(&mut self) {
        self.heap.clear();
        self.places.fill(OUT);
    }

    fn sift_up(&mut self, mut at: usize) {
        while at > 0 && self.heap[at] < self.heap[(at - 1) / 2] {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let children = (2 * at + 1)..(2 * at + 3).min(self.heap.len()).max(2 * at + 1);
            let Some(least) = children.min_by_key(|&child| self.heap[child]) else { return };
            if self.heap[at] <= self.heap[least] {
                return;
            }
            self.swap(at, least);
            at = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[self.heap[a].1 as usize] = a as u32;
        self.places[self.heap[b].1 as usize] = b as u32;
    }

    pub(super) fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "R3 (deadlines are a heap, and know their places)";
        for (place, &(key, block)) in self.heap.iter().enumerate() {
            let parent = place.saturating_sub(1) / 2;
            let sound = self.heap[parent] <= self.heap[place]
                && self.places.get(block as usize) == Some(&(place as u32))
                && self.wanted[block as usize] >= key;
            ensure(sound, NAME, || format!("block {block} at place {place}"))?;
        }
        let placed = self.places.iter().filter(|&&place| place != OUT).count();
        ensure(placed == self.heap.len(), NAME, || {
            format!("{placed} placed, {} in the heap", self.heap.len())
        })
    }
}
