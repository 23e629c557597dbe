//! `Memory`: a memory of recent evictions, with the classes of the evicted blocks. It may lose some of
//! them.
//!
//! The memory contains *ghosts* (records of evicted contents) of 8 bytes, in buckets of 8, which are
//! one cache line. A ghost contains a mark (16 bits of the key), the class, and the time of the last
//! use. A new ghost in a full bucket replaces the oldest one. So a ghost may be lost early, and one
//! ghost in several thousand is found for another content. That is acceptable, because the memory
//! serves only statistics.
//!
//! In every chain, only one block in [`EVERY`] has a ghost, which represents its neighbours, because
//! the blocks of a request are used together. So the memory covers four times as many evictions.
//!
//! *Neighbours.* A ghost also contains marks of 2 bits of the next blocks of its chain that were
//! evicted just before it. They show whether another block was in that chain. A new block after a
//! cached prompt, such as a question about a document, has no mark in the ghost, or in two of three
//! cases a different one. Without marks it would be mistaken for a block that is used again.
//!
//! *Batches.* Access to the line of a ghost is a cache miss. So ghosts are collected until there are
//! [`BATCH`] of them, or until the memory is read. Then all their lines are fetched at once. The lines
//! for the contents of one call are also fetched at once ([`Memory::prefetch`]).
//!
//! Costs: one cache line per remembered eviction or admission, and 7 bytes per block of the pool.
//! Because small pools would replace ghosts soonest, they have up to four times as many ghosts, which
//! take at most 0.11 MB more.

use super::class::CLASSES;
use crate::slots::mixed;
use kvpool::parts::try_reserve;
use kvpool::{Content, PoolError};

/// One block of a chain in this number has a ghost (a record of its eviction): each block whose depth
/// is a multiple of it.
pub(super) const EVERY: u32 = 4;
/// The number of ghosts (records of evictions) that are collected before they are stored together.
const BATCH: usize = 16;
const WAYS: usize = 8;
/// The number of ghosts (records of evictions) for each block of the pool, as numerator and
/// denominator.
const SHARE: (usize, usize) = (7, 8);
/// A threshold (the number of ghosts in a pool of 64 k blocks) and a largest factor. A pool with fewer
/// ghosts than the threshold gets the geometric mean of its own number and the threshold, but at most
/// its own number times the factor.
///
/// Both constants were chosen on the traces on which the policy is tuned. A factor of 4 in pools of up
/// to 16 k blocks, with 57,344 ghosts in all larger pools, was worse where LRU is best: in caches of at
/// least a fifth of a workload. Thresholds of 28,672 or 40,960 were worse where loops and scans return
/// late.
const SMALL_POOL: (usize, usize) = (57_344, 4);

/// A ghost: the record of an evicted content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ghost {
    mark: u16,
    /// The class, in the low bits. The higher bits contain the marks of the next blocks of the chain,
    /// that of the nearest block lowest. [`GAP`] means an empty slot.
    what: u16,
    /// The time of the content's last use, in ticks.
    pub(super) stamp: u32,
}

const GAP: u16 = u16::MAX;
/// The slot with the highest rank gets a new ghost (record of an eviction). An occupied slot has the
/// age of its ghost as its rank, and an empty slot this rank, which is higher than all ages.
const FREE: u64 = 1 << 32;
const SAME: u64 = 1 << 33;
const NO_GHOST: Ghost = Ghost { mark: 0, what: GAP, stamp: 0 };
/// The number of bits that the class of a block takes in a ghost (record of an eviction).
const CLASS: u32 = 10;
const NEIGHBOUR: u32 = 2;
const _: () = assert!(CLASSES < (1 << CLASS) && CLASS + (EVERY - 1) * NEIGHBOUR <= 16);

/// Returns the mark (two bits of the key) that stands for a neighbour in a ghost: 1 to 3. A mark of 0
/// means no neighbour.
const fn small_mark(key: u64) -> u16 {
    (key % 3) as u16 + 1
}

impl Ghost {
    pub(super) const fn class(self) -> u16 {
        self.what & ((1 << CLASS) - 1)
    }

    /// Whether this ghost, whose content had the depth `depth`, also represents the content
    /// `neighbour`.
    pub(super) const fn represents(self, depth: u32, neighbour: Content) -> bool {
        if neighbour.depth < depth {
            // If a caller uses blocks one at a time (stream form), the deeper block of a chain is used
            // first. Its use implies a use of this block.
            return depth - neighbour.depth < EVERY;
        }
        let behind = neighbour.depth - depth;
        let marks = self.what >> CLASS;
        behind > 0 && behind < EVERY && marks >> (NEIGHBOUR * (behind - 1)) & 3 == small_mark(neighbour.key)
    }
}

/// A ghost (record of an eviction) that is collected, but not stored yet: its key, its class with
/// marks, and the time of its last use.
type Waiting = (u64, u16, u32);

#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    ghosts: Vec<[Ghost; WAYS]>,
    /// The ghosts (records of evictions) that are collected, but not stored yet. Only the first
    /// `num_waiting` entries are valid.
    waiting: [Waiting; BATCH],
    num_waiting: usize,
    /// The depth of the latest evicted content, and its mark with the marks of the blocks after it. The
    /// field is used only if that content gets no record of its own.
    neighbours: (u32, u16),
}

impl Memory {
    /// Returns the bucket that may contain the ghost of a key, and the mark (16 bits of the key) that
    /// the ghost has.
    fn place(&self, key: u64) -> (usize, u16) {
        let mixed = mixed(key);
        let bucket = ((mixed >> 32) * self.ghosts.len() as u64) >> 32;
        (bucket as usize, mixed as u16)
    }

    /// Loads the cache lines that may contain the ghosts of `contents` into the processor's cache in
    /// advance.
    #[inline]
    pub(super) fn prefetch(&self, contents: impl Iterator<Item = Content>) {
        let remembered = contents.filter(|content| content.depth.is_multiple_of(EVERY));
        self.prefetch_keys(remembered.map(|content| content.key));
    }

    #[inline]
    fn prefetch_keys(&self, keys: impl Iterator<Item = u64>) {
        let line = |key: u64| self.ghosts.get(self.place(key).0).map_or(0, |bucket| bucket[0].mark);
        std::hint::black_box(keys.fold(0, |read, key| read ^ line(key)));
    }

    /// Removes and returns the ghost (record of the eviction) of `key`. The caller first has to call
    /// [`Self::settle`].
    pub(super) fn take(&mut self, key: u64) -> Option<Ghost> {
        let (bucket, mark) = self.place(key);
        let found =
            self.ghosts.get_mut(bucket)?.iter_mut().find(|ghost| ghost.what != GAP && ghost.mark == mark)?;
        Some(std::mem::replace(found, NO_GHOST))
    }

    /// Records the eviction of `content`, as a ghost or as a mark in the ghost of a neighbour. Returns
    /// whether enough ghosts are collected, so that the caller has to call [`Self::settle`].
    #[inline]
    pub(super) fn push(&mut self, content: Content, class: u16, stamp: u32) -> bool {
        let (depth, marks) = self.neighbours;
        let marks = if depth == content.depth.wrapping_add(1) { marks } else { 0 };
        if !content.depth.is_multiple_of(EVERY) {
            self.neighbours = (content.depth, marks << NEIGHBOUR | small_mark(content.key));
            return false;
        }
        self.neighbours = (0, 0);
        if let Some(place) = self.waiting.get_mut(self.num_waiting) {
            *place = (content.key, marks << CLASS | class, stamp);
            self.num_waiting += 1;
        }
        self.num_waiting == BATCH
    }

    /// Stores the collected ghosts (records of evictions). Calls `lost` with each older ghost that was
    /// replaced.
    pub(super) fn settle(&mut self, now: u32, mut lost: impl FnMut(Ghost)) {
        let (waiting, count) = (self.waiting, std::mem::take(&mut self.num_waiting));
        let waiting = &waiting[..count];
        self.prefetch_keys(waiting.iter().map(|&(key, ..)| key));
        for &(key, what, stamp) in waiting {
            self.replace(key, what, stamp, now).into_iter().for_each(&mut lost);
        }
    }

    fn replace(&mut self, key: u64, what: u16, stamp: u32, now: u32) -> Option<Ghost> {
        let (bucket, mark) = self.place(key);
        let ghosts = self.ghosts.get_mut(bucket)?;
        // A new ghost replaces an older ghost of the same content, or else takes an empty slot. If all
        // slots are used, it replaces the oldest ghost. Among equals, it takes the first slot.
        let rank = |ghost: &Ghost| match ghost {
            Ghost { what: GAP, .. } => FREE,
            ghost if ghost.mark == mark => SAME,
            ghost => u64::from(now.wrapping_sub(ghost.stamp)),
        };
        let first = (rank(&ghosts[0]), 0);
        let (victim_rank, place) = (1..WAYS).fold(first, |most, at| {
            let rank = rank(&ghosts[at]);
            if rank > most.0 { (rank, at) } else { most }
        });
        let before = std::mem::replace(&mut ghosts[place], Ghost { mark, what, stamp });
        (victim_rank < FREE).then_some(before)
    }

    pub(super) fn len(&self) -> usize {
        self.ghosts.len() * WAYS
    }

    /// Returns the ghosts (records of evictions) in every `step`th slot. `turn` is the number of the
    /// sample, and determines the first slot.
    pub(super) fn sample(&self, turn: usize, step: usize) -> impl Iterator<Item = Ghost> {
        let places = (turn % step..self.len()).step_by(step);
        places.map(|place| self.ghosts[place / WAYS][place % WAYS]).filter(|ghost| ghost.what != GAP)
    }

    pub(super) fn clear(&mut self) {
        self.ghosts.fill([NO_GHOST; WAYS]);
        (self.neighbours, self.num_waiting) = ((0, 0), 0);
    }

    fn buckets_for(capacity: usize) -> usize {
        let ghosts = capacity / SHARE.1 * SHARE.0;
        let (few, times) = SMALL_POOL;
        let more = if ghosts < few { (ghosts * few).isqrt().min(ghosts * times) } else { ghosts };
        more.div_ceil(WAYS).max(1)
    }

    /// Allocates memory for a pool of `capacity` blocks. The stored ghosts do not change.
    pub(super) fn reserve(&mut self, capacity: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.ghosts, Self::buckets_for(capacity))
    }

    /// Grows to a pool of `capacity` blocks, after [`Self::reserve`]. If the number of buckets grows,
    /// all ghosts are removed, because keys then belong to other buckets.
    pub(super) fn grow(&mut self, capacity: usize) {
        let buckets = Self::buckets_for(capacity);
        if buckets > self.ghosts.len() {
            self.clear();
            self.ghosts.resize(buckets, [NO_GHOST; WAYS]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(capacity: usize) -> Memory {
        let mut memory = Memory::default();
        memory.reserve(capacity).unwrap();
        memory.grow(capacity);
        memory
    }

    /// Adds one ghost and stores it. Returns the ghost that it replaced.
    fn push(memory: &mut Memory, content: Content, class: u16, stamp: u32, now: u32) -> Option<Ghost> {
        memory.push(content, class, stamp);
        let mut made_room = None;
        memory.settle(now, |lost| made_room = Some(lost));
        made_room
    }

    fn head(key: u64) -> Content {
        Content { key, depth: 0 }
    }

    #[test]
    fn a_ghost_represents_neighbours_evicted_just_before_it() {
        let content = |depth: u32| Content { key: u64::from(depth) + 100, depth };
        let other = |depth: u32| Content { key: u64::from(depth) + 101, depth };
        let mut memory = of(100);
        for depth in [14, 13, 12, 3, 1, 0] {
            assert!(push(&mut memory, content(depth), CLASSES as u16 - 1, 5, 5).is_none());
        }
        let ghost = memory.take(content(12).key).unwrap();
        assert_eq!(ghost.class(), CLASSES as u16 - 1);
        assert!([13, 14, 11, 9].into_iter().all(|depth| ghost.represents(12, content(depth))));
        assert!([15, 16, 17, 8, 0].into_iter().all(|depth| !ghost.represents(12, content(depth))));
        assert!([13, 14, 15].into_iter().all(|depth| !ghost.represents(12, other(depth))));
        let ghost = memory.take(content(0).key).unwrap();
        assert!(ghost.represents(0, content(1)) && !ghost.represents(0, content(3)), "there was a gap");
    }

    #[test]
    fn small_pools_have_more_ghosts_per_block() {
        let ghosts = |capacity: usize| Memory::buckets_for(capacity) * WAYS;
        assert_eq!([64, 4096, 16_384, 65_536, 1 << 20].map(ghosts), [224, 14_336, 28_672, 57_344, 917_504]);
        assert!((0..100_000).step_by(64).all(|capacity| ghosts(capacity) <= ghosts(capacity + 64)));
    }

    #[test]
    fn a_ghost_can_be_taken_once() {
        let mut memory = of(100);
        assert!(push(&mut memory, head(7), 3, 50, 60).is_none());
        assert!(push(&mut memory, head(7), 4, 70, 80).is_none(), "the same key again");
        let ghost = memory.take(7).unwrap();
        assert_eq!((ghost.class(), ghost.stamp), (4, 70));
        assert!(memory.take(7).is_none());
    }

    #[test]
    fn a_full_bucket_loses_its_oldest() {
        let mut memory = of(7); // one bucket
        let before = (0..8).filter_map(|key| push(&mut memory, head(key), 0, 10 + key as u32, 20)).count();
        assert_eq!(before, 0);
        let lost = push(&mut memory, head(100), 0, 19, 20).unwrap();
        assert_eq!(lost.stamp, 10);
        assert!(memory.take(0).is_none() && memory.take(1).is_some());
    }

    #[test]
    fn without_room_nothing_is_remembered() {
        let mut memory = Memory::default();
        assert!(
            push(&mut memory, head(1), 1, 1, 1).is_none()
                && memory.take(1).is_none()
                && memory.sample(0, 1).next().is_none()
        );
    }

    /// Regression test: a sample with an even step saw only some of the slots of each bucket. With a
    /// step of 56 it estimated 107,296 ghosts instead of 38,188.
    #[test]
    fn a_sample_estimates_the_number_of_ghosts() {
        for capacity in [1 << 17, 75_000, 90_000] {
            let mut memory = of(capacity);
            for key in 0..memory.len() as u64 / 3 {
                push(&mut memory, head(key), 0, 1, 1);
            }
            let there = memory.sample(0, 1).count();
            let step = super::super::sample_step(memory.len());
            for turn in 0..16 {
                let counted = memory.sample(turn, step).count() * step;
                assert!(counted.abs_diff(there) < there / 8, "{capacity}, {turn}: {counted} of {there}");
            }
        }
    }

    /// Ghosts that are stored together have the same result as ghosts that are stored one by one, and
    /// replace the same ghosts.
    #[test]
    fn a_batch_of_ghosts_equals_single_ghosts() {
        let (mut one_by_one, mut together) = (of(50), of(50));
        let (mut random, mut lost) = (1_u64, [Vec::new(), Vec::new()]);
        for at in 0..2_000_u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let content = Content { key: random >> 54, depth: (random >> 32) as u32 % 6 };
            let due = together.push(content, at as u16 % 600, at);
            lost[0].extend(push(&mut one_by_one, content, at as u16 % 600, at, at).map(|ghost| ghost.stamp));
            if due || random >> 20 & 15 == 0 {
                together.settle(at, |ghost| lost[1].push(ghost.stamp));
                let other = random >> 10 & 1023;
                let taken = [&mut one_by_one, &mut together]
                    .map(|memory| memory.take(other).map(|ghost| ghost.stamp));
                assert_eq!(taken[0], taken[1]);
            }
        }
        together.settle(2_000, |ghost| lost[1].push(ghost.stamp));
        assert!(lost[0].len() > 200, "{}", lost[0].len());
        assert_eq!(lost[0], lost[1]);
    }
}
