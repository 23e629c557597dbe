//! `Memory`: what was evicted lately, and of which class it was.
//!
//! Owns: ghosts of 8 bytes in buckets of 8, one cache line each: a mark of 16 bits of the key, the class, and when it was used last.
//! A full bucket loses its oldest. So a ghost may be lost early, and one in some thousands is another content's: it is a memory for
//! statistics, not for the identity of anything. Of every chain one block of [`EVERY`] is remembered, for its neighbours: blocks of a
//! request are used together, and the memory reaches four times as far back.
//!
//! Costs: one line per eviction or admission that is remembered; 7 bytes per block of the pool.

use super::age::SECOND;
use crate::hazard::class::CLASSES;
use kvpool_core::PoolError;
use kvpool_core::parts::try_reserve;

/// Of so many neighbours one is remembered: those at depths that it divides.
pub(super) const EVERY: u32 = 4;
/// Ghosts of a bucket.
const WAYS: usize = 8;
/// Ghosts per block of the pool: 7/8.
const SHARE: (usize, usize) = (7, 8);

/// An evicted content.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ghost {
    mark: u16,
    /// [`GAP`] for none.
    pub(super) class: u16,
    /// Its last use.
    pub(super) stamp: u32,
}

const GAP: u16 = u16::MAX;
const NO_GHOST: Ghost = Ghost { mark: 0, class: GAP, stamp: 0 };
const _: () = assert!(CLASSES < GAP as usize && SECOND > 0);

#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    ghosts: Vec<[Ghost; WAYS]>,
}

/// The finalizer of `SplitMix64`.
const fn mixed(key: u64) -> u64 {
    let key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

impl Memory {
    /// The bucket and the mark of a key.
    fn place(&self, key: u64) -> (usize, u16) {
        let mixed = mixed(key);
        let bucket = ((mixed >> 32) * self.ghosts.len() as u64) >> 32;
        (bucket as usize, mixed as u16)
    }

    /// What is remembered of `key`, and no more.
    pub(super) fn take(&mut self, key: u64) -> Option<Ghost> {
        let (bucket, mark) = self.place(key);
        let found =
            self.ghosts.get_mut(bucket)?.iter_mut().find(|ghost| ghost.class != GAP && ghost.mark == mark)?;
        Some(std::mem::replace(found, NO_GHOST))
    }

    /// Remembers `key`. Returns the ghost that made room, if one had to.
    pub(super) fn push(&mut self, key: u64, class: u16, stamp: u32, now: u32) -> Option<Ghost> {
        let (bucket, mark) = self.place(key);
        let ghosts = self.ghosts.get_mut(bucket)?;
        let same = ghosts.iter().position(|ghost| ghost.class != GAP && ghost.mark == mark);
        let free = || ghosts.iter().position(|ghost| ghost.class == GAP);
        let oldest = || {
            let ages = ghosts.iter().map(|ghost| now.wrapping_sub(ghost.stamp));
            ages.enumerate().max_by_key(|&(at, age)| (age, std::cmp::Reverse(at))).map(|(at, _)| at)
        };
        let place = same.or_else(free).or_else(oldest)?;
        let before = std::mem::replace(&mut ghosts[place], Ghost { mark, class, stamp });
        (before.class != GAP && same.is_none()).then_some(before)
    }

    /// Ghosts that there is room for.
    pub(super) fn len(&self) -> usize {
        self.ghosts.len() * WAYS
    }

    /// The ghost at a place, if one is there.
    pub(super) fn at(&self, place: usize) -> Option<Ghost> {
        self.ghosts.get(place / WAYS).map(|bucket| bucket[place % WAYS]).filter(|ghost| ghost.class != GAP)
    }

    /// Forgets everything. O(ghosts).
    pub(super) fn clear(&mut self) {
        self.ghosts.fill([NO_GHOST; WAYS]);
    }

    fn buckets_for(capacity: usize) -> usize {
        (capacity / SHARE.1 * SHARE.0).div_ceil(WAYS).max(1)
    }

    /// Takes the memory for a pool of `capacity` blocks, and changes nothing.
    pub(super) fn reserve(&mut self, capacity: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.ghosts, Self::buckets_for(capacity))
    }

    /// Is that of a pool of `capacity` blocks from now on, after [`Self::reserve`]. What a larger one looks for elsewhere is forgotten.
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

    #[test]
    fn what_is_taken_is_gone() {
        let mut memory = of(100);
        assert!(memory.push(7, 3, 50, 60).is_none());
        assert!(memory.push(7, 4, 70, 80).is_none(), "the same key again");
        let ghost = memory.take(7).unwrap();
        assert_eq!((ghost.class, ghost.stamp), (4, 70));
        assert!(memory.take(7).is_none());
    }

    #[test]
    fn a_full_bucket_loses_its_oldest() {
        let mut memory = of(8); // one bucket
        let before = (0..8).filter_map(|key| memory.push(key, 0, 10 + key as u32, 20)).count();
        assert_eq!(before, 0);
        let lost = memory.push(100, 0, 19, 20).unwrap();
        assert_eq!(lost.stamp, 10);
        assert!(memory.take(0).is_none() && memory.take(1).is_some());
    }

    #[test]
    fn without_room_nothing_is_remembered() {
        let mut memory = Memory::default();
        assert!(memory.push(1, 1, 1, 1).is_none() && memory.take(1).is_none() && memory.at(0).is_none());
    }
}
