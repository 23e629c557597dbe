//! `Deadlines`: the times at which the blocks' times to live end, in a binary heap.
//!
//! A block has at most one deadline. A deadline that has passed is removed from the heap, so the size
//! of the heap is the number of blocks with a running time to live.
//!
//! Costs: O(log blocks) to set, remove or expire a deadline. 20 bytes per block.

use kvpool::parts::{ensure, try_reserve};
use kvpool::{BlockId, InvariantViolation, PoolError};

/// Converts a key of the heap back to its time.
fn time_of(key: u64) -> f64 {
    f64::from_bits(if key >> 63 == 1 { key & !(1 << 63) } else { !key })
}

/// The recorded position of a block that is not in the heap.
const OUT: u32 = u32::MAX;

/// Converts a finite time to a number with the same order, which is the key in the heap.
fn key_of(time: f64) -> u64 {
    let bits = (time + 0.0).to_bits(); // -0 and 0 are the same time
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Deadlines {
    /// A heap of (key, block id). The earliest key comes first, and among equal keys the lowest id.
    heap: Vec<(u64, u32)>,
    /// The position of each block in the heap, or [`OUT`].
    places: Vec<u32>,
}

impl Deadlines {
    pub(super) fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let num_blocks = num_blocks.max(self.places.len());
        try_reserve(&mut self.heap, num_blocks)?;
        try_reserve(&mut self.places, num_blocks)?;
        self.places.resize(num_blocks, OUT);
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    pub(super) fn contains(&self, block: BlockId) -> bool {
        self.places.get(block.index()).is_some_and(|&place| place != OUT)
    }

    pub(super) fn of(&self, block: BlockId) -> Option<f64> {
        let (key, _) = *self.heap.get(self.place(block)?)?;
        Some(time_of(key))
    }

    fn place(&self, block: BlockId) -> Option<usize> {
        let place = *self.places.get(block.index())? as usize;
        self.heap.get(place).filter(|&&(_, other)| other == block.get()).map(|_| place)
    }

    /// Sets the deadline of `block`, which replaces an existing one. An infinite deadline becomes the
    /// largest finite number.
    pub(super) fn set(&mut self, block: BlockId, deadline: f64) {
        let key = key_of(deadline.min(f64::MAX));
        if let Some(place) = self.places.get_mut(block.index()).filter(|place| **place == OUT) {
            *place = self.heap.len() as u32;
            self.heap.push((key, block.get()));
        }
        if let Some(place) = self.place(block) {
            self.heap[place].0 = key;
            self.sift(place);
        }
    }

    pub(super) fn end(&mut self, block: BlockId) -> bool {
        let Some(place) = self.place(block) else { return false };
        self.places[block.index()] = OUT;
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.note(place);
            self.sift(place);
        }
        true
    }

    /// Removes and returns a block whose deadline is `now` or earlier.
    pub(super) fn pop_due(&mut self, now: f64) -> Option<BlockId> {
        let now = key_of(now);
        let &(_, block) = self.heap.first().filter(|(key, _)| *key <= now)?;
        self.end(BlockId::new(block)).then_some(BlockId::new(block))
    }

    pub(super) fn clear(&mut self) {
        self.heap.clear();
        self.places.fill(OUT);
    }

    /// Records, for the block that is at this position of the heap, that it is there.
    fn note(&mut self, place: usize) {
        let block = self.heap[place].1;
        if let Some(slot) = self.places.get_mut(block as usize) {
            *slot = place as u32;
        }
    }

    /// Moves the entry at a position up or down to its correct position.
    fn sift(&mut self, mut at: usize) {
        while at > 0 && self.heap[at] < self.heap[(at - 1) / 2] {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
        loop {
            let children = 2 * at + 1..self.heap.len().min(2 * at + 3);
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
        self.note(a);
        self.note(b);
    }

    /// Checks invariant R3 for one block in O(1). Calls for all blocks check it completely.
    pub(super) fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        let Some(&noted) = self.places.get(block.index()) else { return Ok(()) };
        let sound = self.place(block).map_or(noted == OUT, |place| {
            let mut children = (2 * place + 1..2 * place + 3).filter_map(|at| self.heap.get(at));
            self.heap[place.saturating_sub(1) / 2] <= self.heap[place]
                && children.all(|child| self.heap[place] <= *child)
        });
        // This also checks the heap position whose number is the block id. There are at most as many
        // positions as blocks, so calls for all blocks check every position.
        let at = self.heap.get(block.index()).map(|&(_, there)| BlockId::new(there));
        let known = at.is_none_or(|there| self.place(there) == Some(block.index()));
        let fits = self.heap.len() <= self.places.len();
        ensure(sound && known && fits, "R3 (deadlines form a heap, and recorded places are correct)", || {
            format!(
                "the recorded place of {block:?} is {noted}; the place of the same number contains {at:?}"
            )
        })
    }

    /// Injects a fault for tests: changes the recorded position of a block.
    #[cfg(feature = "fault-injection")]
    pub(super) fn corrupt(&mut self, block: BlockId, to: u32) -> bool {
        let slot = self.places.get_mut(block.index()).filter(|slot| **slot != OUT);
        slot.is_some_and(|slot| std::mem::replace(slot, to) != to)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Call {
        Set(u32, i8),
        End(u32),
        Pop(i8),
    }

    /// With this number of blocks, the heap has several levels, so entries move up and down on all
    /// paths.
    const BLOCKS: u32 = 120;

    fn call() -> impl Strategy<Value = Call> {
        let time = || -60_i8..60;
        prop_oneof![
            8 => (0..BLOCKS, time()).prop_map(|(block, time)| Call::Set(block, time)),
            4 => (0..BLOCKS).prop_map(Call::End),
            1 => time().prop_map(Call::Pop),
        ]
    }

    fn check(deadlines: &Deadlines) -> Result<(), InvariantViolation> {
        (0..BLOCKS).try_for_each(|block| deadlines.check_block(BlockId::new(block)))
    }

    proptest! {
        /// Compares with a map. Deadlines are returned from the earliest on, and by block id among
        /// equal times. A removed deadline is never returned.
        #[test]
        fn deadlines_equal_a_map(calls in prop::collection::vec(call(), 1..400), last in -60_i8..61) {
            let mut deadlines = Deadlines::default();
            deadlines.grow(BLOCKS as usize).expect("there is memory");
            let mut model = BTreeMap::<u32, i8>::new();
            let pop = |deadlines: &mut Deadlines, model: &mut BTreeMap<u32, i8>, now: i8| {
                let due = model.iter().map(|(&block, &time)| (time, block)).min().filter(|due| due.0 <= now);
                let due = due.map(|(_, block)| block);
                due.map(|block| model.remove(&block));
                (deadlines.pop_due(f64::from(now) / 4.0).map(BlockId::get), due)
            };
            for call in calls.into_iter().chain((0..=BLOCKS).map(|_| Call::Pop(last))) {
                match call {
                    Call::Set(block, time) => {
                        deadlines.set(BlockId::new(block), f64::from(time) / 4.0);
                        model.insert(block, time);
                    }
                    Call::End(block) => {
                        deadlines.end(BlockId::new(block));
                        model.remove(&block);
                    }
                    Call::Pop(now) => {
                        let (found, expected) = pop(&mut deadlines, &mut model, now);
                        prop_assert_eq!(found, expected);
                    }
                }
                check(&deadlines).map_err(|broken| TestCaseError::fail(broken.to_string()))?;
                prop_assert_eq!(deadlines.len(), model.len());
            }
            for block in (0..BLOCKS).map(BlockId::new) {
                prop_assert_eq!(deadlines.contains(block), model.contains_key(&block.get()));
            }
        }
    }

    #[test]
    fn unknown_blocks_have_no_deadline() {
        let mut deadlines = Deadlines::default();
        deadlines.grow(2).expect("there is memory");
        deadlines.set(BlockId::new(2), 1.0);
        deadlines.end(BlockId::new(2));
        assert_eq!((deadlines.len(), deadlines.pop_due(f64::MAX)), (0, None));
        deadlines.set(BlockId::new(1), 0.0);
        deadlines.clear();
        assert!(deadlines.pop_due(f64::MAX).is_none() && !deadlines.contains(BlockId::new(1)));
        assert!(check(&deadlines).is_ok());
    }
}
