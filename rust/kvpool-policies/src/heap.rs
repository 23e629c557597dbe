//! `BlockHeap`: blocks in the order of a rank that changes.
//!
//! Owns: the rank of each block, in the heap or not, and the heap. A rank is a key and, of equal keys, a second number, which
//! policies take from a counter, so that no two are equal and the order never depends on how the heap came about.
//!
//! All blocks are in one array: the heap in front, and behind it blocks that are out, with the ranks that they had. So a
//! comparison reads what lies side by side, where ranks by block would be a cache miss each. A block that is taken out keeps its
//! place until it comes up to the top, or is put in again: most come back with another rank soon, and move once and not twice.
//!
//! Invariants: the array is a permutation of the blocks, each at the place that is noted for it; in the heap none has a lower
//! rank than its parent; what is in is within the heap. A block that is not at its place counts as not there, and is refused.
//!
//! Costs: remove O(1); push and pop O(log n), and a pop as much more for each block at the top that is out; 28 bytes per block, taken
//! at once.

use kvpool::parts::{ensure, try_reserve};
use kvpool::{BlockId, InvariantViolation, PoolError};

/// What blocks are ordered by: a key, and of equal keys the second number. The lowest goes first.
pub(crate) type Rank = (u64, u64);

/// Children of a place: those of one compare within two cache lines, and the heap is half as deep as one of two.
const CHILDREN: usize = 4;
/// Beside the place of a block: it is out.
const OUT: u32 = 1 << 31;
/// Blocks that a heap has at most, that of 60 GB.
const MOST: usize = OUT as usize;

/// A heap of blocks `1..num_blocks`, the lowest rank on top.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockHeap {
    /// The heap, and behind it the blocks that are out and have left it.
    entries: Vec<Entry>,
    /// Places of the heap.
    len: usize,
    /// By block: its place in `entries`, and [`OUT`].
    places: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The rank of `block`, or the last that it had.
    rank: Rank,
    block: u32,
}

impl Entry {
    /// Ranks compare as one number.
    #[inline]
    fn is_below(self, other: Self) -> bool {
        let whole = |(key, second): Rank| u128::from(key) << 64 | u128::from(second);
        whole(self.rank) < whole(other.rank)
    }
}

impl BlockHeap {
    /// An empty heap for blocks `1..num_blocks`, with all its memory taken.
    pub(crate) fn new(num_blocks: usize) -> Result<Self, PoolError> {
        let mut heap = Self::default();
        heap.grow(num_blocks)?;
        Ok(heap)
    }

    #[inline]
    fn place(&self, block: BlockId) -> Option<usize> {
        let place = (*self.places.get(block.index())? & !OUT) as usize;
        self.entries.get(place).filter(|entry| entry.block == block.get()).map(|_| place)
    }

    /// Whether `block` is in the heap.
    #[inline]
    pub(crate) fn contains(&self, block: BlockId) -> bool {
        self.places.get(block.index()).is_some_and(|place| place & OUT == 0)
    }

    /// The rank of `block`, or the last that it had; (0, 0) if it had none.
    pub(crate) fn rank(&self, block: BlockId) -> Rank {
        self.place(block).map(|place| self.entries[place].rank).unwrap_or_default()
    }

    /// Puts `block` in, or gives it another rank; false, and nothing changed, if there is no such block.
    pub(crate) fn push(&mut self, block: BlockId, rank: Rank) -> bool {
        let Some(mut place) = self.place(block).filter(|_| !block.is_null()) else { return false };
        let entry = Entry { rank, block: block.get() };
        if place >= self.len {
            // It changes places with the first that has left, and is the last of the heap.
            let Some(&out) = self.entries.get(self.len) else { return false };
            self.set(place, out);
            place = self.len;
            self.len += 1;
            self.rise(place, entry);
        } else if entry.is_below(self.entries[place]) {
            self.rise(place, entry);
        } else {
            self.sink(place, entry);
        }
        self.places[block.index()] &= !OUT;
        true
    }

    /// Puts `block` in at the last rank that it had; false, and nothing changed, if it is in, or if there is no such block.
    pub(crate) fn restore(&mut self, block: BlockId) -> bool {
        !self.contains(block) && self.push(block, self.rank(block))
    }

    /// Takes the block of the lowest rank.
    pub(crate) fn pop(&mut self) -> Option<BlockId> {
        while self.len > 0 {
            let top = *self.entries.first()?;
            self.len -= 1;
            let last = *self.entries.get(self.len)?;
            self.set(self.len, top);
            if self.len > 0 {
                self.sink(0, last);
            }
            let block = BlockId::new(top.block);
            if self.remove(block) {
                return Some(block);
            }
        }
        None
    }

    /// Takes `block` out; false if it was not in.
    #[inline]
    pub(crate) fn remove(&mut self, block: BlockId) -> bool {
        let place = self.places.get_mut(block.index()).filter(|place| **place & OUT == 0);
        place.map(|place| *place |= OUT).is_some()
    }

    /// Puts `entry` at `place` or above it.
    fn rise(&mut self, mut place: usize, entry: Entry) {
        while place > 0 {
            let up = (place - 1) / CHILDREN;
            let parent = self.entries[up];
            if !entry.is_below(parent) {
                break;
            }
            self.set(place, parent);
            place = up;
        }
        self.set(place, entry);
    }

    /// Puts `entry` at `place` or below it.
    fn sink(&mut self, mut place: usize, entry: Entry) {
        loop {
            let first = CHILDREN * place + 1;
            let children = self.entries.get(first..self.len.min(first + CHILDREN)).unwrap_or_default();
            let mut lowest = (entry, place);
            for (&child, at) in children.iter().zip(first..) {
                if child.is_below(lowest.0) {
                    lowest = (child, at);
                }
            }
            let (child, down) = lowest;
            self.set(place, child);
            if down == place {
                break;
            }
            place = down;
        }
    }

    /// Puts `entry` at `place`. Whether its block is in or out stays as it is.
    #[inline]
    fn set(&mut self, place: usize, entry: Entry) {
        self.entries[place] = entry;
        if let Some(slot) = self.places.get_mut(entry.block as usize) {
            *slot = *slot & OUT | place as u32; // fits: less than MOST
        }
    }

    /// Takes every block out and forgets the ranks. O(blocks).
    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.entries.iter_mut().for_each(|entry| entry.rank = (0, 0));
        self.places.iter_mut().for_each(|place| *place |= OUT);
    }

    /// Makes room for blocks up to `num_blocks - 1`; they are not in the heap.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for more than [`MOST`], or if there is no memory; then nothing has changed.
    pub(crate) fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        if num_blocks > MOST {
            return Err(PoolError::config(
                "num_blocks",
                num_blocks,
                format!("at most {MOST} with a policy that has a heap"),
            ));
        }
        let before = self.places.len();
        let num_blocks = num_blocks.max(before);
        try_reserve(&mut self.entries, num_blocks)?;
        try_reserve(&mut self.places, num_blocks)?;
        self.entries.extend((before..num_blocks).map(|block| Entry { rank: (0, 0), block: block as u32 }));
        self.places.extend((before..num_blocks).map(|place| place as u32 | OUT)); // fits: less than MOST
        Ok(())
    }

    /// Whether one block is where it is noted, with a rank between those of its neighbours above and below. Of block 0: whether
    /// it is out, and the count. O(1).
    pub(crate) fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        const NAME: &str = "H1 (a block of a heap is where it is noted, none ranks below its parent)";
        if block.index() >= self.places.len() {
            return Ok(());
        }
        let sound = self.place(block).is_some_and(|place| {
            let within = self.entries.get(..self.len).unwrap_or_default();
            let rank = |at: usize| within.get(at).map(|entry| entry.rank);
            let own = rank(place);
            let first = CHILDREN * place + 1;
            let below = (first..first + CHILDREN).filter_map(rank).min();
            let above = place.checked_sub(1).and_then(|place| rank(place / CHILDREN));
            let ordered = own.is_none() || (above <= own && below.is_none_or(|below| Some(below) >= own));
            ordered && !(self.contains(block) && (own.is_none() || block.is_null()))
        });
        ensure(sound, NAME, || {
            let noted = self.places.get(block.index());
            format!("{block:?} is noted at {noted:?}, {} in the heap", self.len)
        })
    }

    /// Recounts the heap.
    pub(crate) fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "H1 (a heap's blocks are where they are noted, none ranks below its parent)";
        let all = self.entries.len() == self.places.len() && self.len <= self.entries.len();
        ensure(all, NAME, || {
            format!("{} of {} entries, {} places", self.len, self.entries.len(), self.places.len())
        })?;
        // Each block is at a place of its own, so that all places are somebody's.
        (0..self.places.len() as u32).try_for_each(|block| self.check_block(BlockId::new(block)))
    }
}

#[cfg(feature = "fault-injection")]
impl BlockHeap {
    /// How many things [`Self::corrupt`] can change.
    pub(crate) const FAULTS: usize = 2;

    /// Changes what is noted of `block` behind the heap's back: 0 its place, 1 the block that is at its place. False if there is no such thing, or if it is so already.
    pub(crate) fn corrupt(&mut self, block: BlockId, what: usize, to: u32) -> bool {
        match (what, self.place(block)) {
            (0, Some(_)) => {
                let slot = self.places.get_mut(block.index());
                slot.is_some_and(|slot| {
                    let to = *slot & OUT | to & !OUT;
                    std::mem::replace(slot, to) != to
                })
            }
            (1, Some(place)) => std::mem::replace(&mut self.entries[place].block, to) != to,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(block: u32) -> BlockId {
        BlockId::new(block)
    }

    #[test]
    fn a_block_comes_back_at_the_rank_that_it_had() {
        let mut heap = BlockHeap::new(8).unwrap();
        heap.push(id(1), (5, 0));
        heap.push(id(2), (7, 1));
        heap.push(id(1), (9, 2)); // another rank
        assert_eq!(heap.pop(), Some(id(2)));
        assert!(heap.restore(id(2)));
        assert_eq!(
            (heap.rank(id(1)), heap.pop(), heap.pop(), heap.pop()),
            ((9, 2), Some(id(2)), Some(id(1)), None)
        );
    }

    #[test]
    fn more_blocks_than_places_are_refused() {
        let error = BlockHeap::new(MOST + 1).unwrap_err().to_string();
        assert!(error.contains("num_blocks is 2147483649: must be at most 2147483648"), "{error}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

        #[test]
        fn a_heap_gives_the_lowest_rank(
            steps in prop::collection::vec((0_u8..12, 0_u32..14, 0_u64..6), 1..200),
        ) {
            let mut heap = BlockHeap::new(8).unwrap();
            let mut num_blocks = 8;
            let mut model: Vec<((u64, u64), u32)> = Vec::new();
            let mut ranks = [(0, 0); 16];
            for (at, (step, block, key)) in steps.into_iter().enumerate() {
                let known = block > 0 && block < num_blocks;
                let inside = model.iter().any(|&(_, member)| member == block);
                match step {
                    0..6 => {
                        let rank = (key, at as u64);
                        prop_assert_eq!(heap.push(id(block), rank), known);
                        if known {
                            model.retain(|&(_, member)| member != block);
                            model.push((rank, block));
                            ranks[block as usize] = rank;
                        }
                    }
                    6..8 => {
                        model.sort_unstable();
                        let least = if model.is_empty() { None } else { Some(id(model.remove(0).1)) };
                        prop_assert_eq!(heap.pop(), least);
                    }
                    8 => {
                        prop_assert_eq!(heap.remove(id(block)), inside);
                        model.retain(|&(_, member)| member != block);
                    }
                    // Two that never had a rank would be equal.
                    9 if ranks[block as usize] != (0, 0) => {
                        prop_assert_eq!(heap.restore(id(block)), known && !inside);
                        if known && !inside {
                            model.push((ranks[block as usize], block));
                        }
                    }
                    10 => {
                        num_blocks = num_blocks.max(block);
                        heap.grow(block as usize).unwrap();
                    }
                    _ if key == 0 => {
                        heap.clear();
                        model.clear();
                        ranks = [(0, 0); 16];
                    }
                    _ => prop_assert_eq!(heap.contains(id(block)), inside),
                }
                heap.check_invariants().unwrap();
                let inside = (0..16).filter(|&block| heap.contains(id(block))).count();
                prop_assert_eq!(inside, model.len());
                prop_assert_eq!(heap.rank(id(block)), ranks[block as usize]);
            }
        }
    }
}
