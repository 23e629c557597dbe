//! `Recent`: the keys of the last so many evictions, and how often each had been used.
//!
//! Owns: a ring with a place per eviction, and a table that finds keys in it. A key that is taken leaves a gap: what is
//! remembered is an age in evictions, not a number of keys as in [`crate::ghosts::Ghosts`], where keys live on in the room
//! of those that were taken. Nothing is lost before its time: one lost ghost in the middle of a chain makes the next prefix end
//! there.
//!
//! Invariants: a place with a count is found by its key, no other is; a key has one place.
//!
//! Costs: all operations O(1); 15 bytes per eviction remembered, taken by [`Recent::reserve`] alone.

use crate::slots::Slots;
use kvpool_core::parts::ensure;
use kvpool_core::parts::try_reserve;
use kvpool_core::{InvariantViolation, PoolError};

/// The most evictions that are remembered.
const MOST: usize = 1 << 31;

#[derive(Clone, Debug)]
pub(super) struct Recent {
    /// By place, the first of which is 1.
    keys: Vec<u64>,
    /// By place: uses of the key, 0 for a gap.
    counts: Vec<u8>,
    places: Slots,
    /// The place of the next eviction: the oldest one's.
    next: usize,
}

impl Recent {
    /// Remembers nothing.
    pub(super) fn new() -> Self {
        Self { keys: vec![0], counts: vec![0], places: Slots::new(), next: 1 }
    }

    fn capacity(&self) -> usize {
        self.keys.len() - 1
    }

    /// `key`, used `count` times, is evicted. The oldest eviction is forgotten if there is no room.
    pub(super) fn push(&mut self, key: u64, count: u8) {
        if self.capacity() == 0 {
            return;
        }
        self.take(key);
        if self.counts[self.next] != 0 {
            self.take(self.keys[self.next]);
        }
        self.keys[self.next] = key;
        self.counts[self.next] = count.max(1);
        self.places.insert(&self.keys, self.next as u32); // at most MOST
        self.next = if self.next == self.capacity() { 1 } else { self.next + 1 };
    }

    /// How often `key` had been used, if its eviction is remembered; it is no more.
    pub(super) fn take(&mut self, key: u64) -> Option<u8> {
        let place = self.places.remove(&self.keys, key)?;
        Some(std::mem::take(&mut self.counts[place as usize]))
    }

    /// Forgets all evictions. O(capacity).
    pub(super) fn clear(&mut self) {
        self.places.clear();
        self.counts.fill(0);
        self.next = 1;
    }

    /// Takes the memory for `capacity` evictions, and changes nothing.
    pub(super) fn reserve(&mut self, capacity: usize) -> Result<(), PoolError> {
        let capacity = capacity.min(MOST);
        try_reserve(&mut self.keys, capacity + 1)?;
        try_reserve(&mut self.counts, capacity + 1)?;
        self.places.reserve(capacity)
    }

    /// Remembers `capacity` evictions from now on, after [`Self::reserve`]. None of those that are remembered is forgotten.
    pub(super) fn grow(&mut self, capacity: usize) {
        let capacity = capacity.min(MOST);
        if capacity <= self.capacity() {
            return;
        }
        // From the oldest to the newest; then there is room.
        let oldest = self.next - 1;
        self.keys[1..].rotate_left(oldest);
        self.counts[1..].rotate_left(oldest);
        self.next = self.keys.len();
        self.keys.resize(capacity + 1, 0);
        self.counts.resize(capacity + 1, 0);
        let counts = &self.counts;
        let known = (1..=capacity as u32).filter(|&place| counts[place as usize] != 0);
        self.places.rebuild(capacity, &self.keys, known);
    }

    #[cfg(test)]
    fn known(&self) -> usize {
        self.counts.iter().filter(|&&count| count != 0).count()
    }

    /// Whether the eviction of `key` is remembered.
    pub(super) fn contains(&self, key: u64) -> bool {
        self.places.find(&self.keys, key).is_some()
    }

    /// Recounts the places.
    pub(super) fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "AD1 (an eviction that is remembered is found, no other is)";
        let mut known = 0;
        for (place, _) in self.counts.iter().enumerate().filter(|&(_, &count)| count != 0) {
            let found = self.places.find(&self.keys, self.keys[place]);
            ensure(found == Some(place as u32), NAME, || format!("place {place} is found as {found:?}"))?;
            known += 1;
        }
        let found = self.places.count();
        let sound = found == known && self.counts.len() == self.keys.len() && self.counts[0] == 0;
        ensure(sound && (1..=self.capacity().max(1)).contains(&self.next), NAME, || {
            format!("{known} known, {found} in the table, next {} of {}", self.next, self.capacity())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(capacity: usize) -> Recent {
        let mut recent = Recent::new();
        recent.reserve(capacity).unwrap();
        recent.grow(capacity);
        recent
    }

    #[test]
    fn a_taken_key_leaves_a_gap() {
        let mut recent = of(3);
        (1..=3).for_each(|key| recent.push(key, 7));
        assert_eq!((recent.take(2), recent.take(2)), (Some(7), None));
        recent.push(4, 1); // the gap is older than nothing: 1 goes all the same
        assert!(!recent.contains(1) && recent.contains(3) && recent.contains(4));
        recent.check_invariants().unwrap();
    }

    #[test]
    fn growing_forgets_nothing_and_brings_nothing_back() {
        let mut recent = of(3);
        (1..=5).for_each(|key| recent.push(key, key as u8));
        recent.reserve(5).unwrap();
        recent.grow(5);
        recent.check_invariants().unwrap();
        assert_eq!((recent.known(), recent.contains(2), recent.contains(3)), (3, false, true));
        (6..=7).for_each(|key| recent.push(key, 1));
        assert!(recent.contains(3));
        recent.push(8, 1);
        assert!(!recent.contains(3));
        assert_eq!(recent.take(4), Some(4));
        recent.check_invariants().unwrap();
    }

    #[test]
    fn without_room_nothing_is_remembered() {
        let mut recent = Recent::new();
        recent.push(1, 1);
        assert_eq!(recent.take(1), None);
        recent.check_invariants().unwrap();
    }
}
