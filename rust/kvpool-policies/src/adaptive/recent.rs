//! `Recent`: the keys of recent evictions, with their numbers of uses. It can also contain *entries*,
//! which are keys that are present in a simulated cache. Then one lookup returns whether a key is
//! present, was evicted recently, or neither.
//!
//! Evictions are stored in a ring buffer with one slot per eviction. A hash table finds both slots and
//! entries by key. When a key is taken, its slot remains empty. So an eviction is remembered during a
//! fixed number of later evictions. In [`crate::ghosts::Ghosts`], by contrast, the number of keys is
//! bounded, so a key is remembered longer if other keys are taken. No key is lost early, because one
//! lost key in the middle of a chain would end the next prefix there.
//!
//! Invariants: the hash table finds a slot by its key unless the slot is empty. A key has one slot, or
//! one entry, or neither.

use crate::slots::Slots;
use kvpool::parts::ensure;
use kvpool::parts::try_reserve;
use kvpool::{InvariantViolation, PoolError};

/// Number of evictions that are remembered for each block of the cache.
pub(super) const REMEMBERED: usize = 2;
/// Largest number of evictions that this type can remember.
const MOST: usize = 1 << 31;

#[derive(Clone, Debug)]
pub(super) struct Recent {
    /// The keys of the entries (keys that are present), from index 1 on, and after them the keys of the
    /// ring buffer (recent evictions).
    keys: Vec<u64>,
    /// The number of uses of the key in each slot. It is 0 for an empty slot.
    counts: Vec<u8>,
    /// The hash table from keys to their indices in `keys`.
    numbers: Slots,
    entries: usize,
    /// The slot for the next eviction. If the ring buffer is full, it contains the oldest eviction.
    next: usize,
}

impl Recent {
    pub(super) fn new() -> Self {
        Self { keys: vec![0], counts: Vec::new(), numbers: Slots::new(), entries: 0, next: 0 }
    }

    /// The index in `keys` of a slot of the ring buffer.
    const fn number(&self, place: usize) -> usize {
        1 + self.entries + place
    }

    /// The slot with this index in `keys`. `None` if the index is that of an entry.
    fn place(&self, number: u32) -> Option<usize> {
        (number as usize).checked_sub(1 + self.entries)
    }

    pub(super) fn entry(&self, key: u64) -> Option<u32> {
        self.numbers.find(&self.keys, key).filter(|&number| self.place(number).is_none())
    }

    /// Returns the key of `entry`. For an unused entry, this is its last key.
    pub(super) fn key(&self, entry: u32) -> u64 {
        self.keys[entry as usize]
    }

    /// Records the eviction of `key`, which has no entry, with its number of uses. If the ring buffer
    /// is full, this replaces the oldest eviction.
    pub(super) fn push(&mut self, key: u64, count: u8) {
        let place = self.next;
        let number = self.number(place);
        let Some(&oldest) = self.counts.get(place) else { return };
        if oldest != 0 {
            self.numbers.remove(&self.keys, self.keys[number]);
            self.counts[place] = 0;
        }
        self.keys[number] = key;
        // If the key has an entry or an earlier eviction, the new slot replaces it.
        let before = self.numbers.put(&self.keys, number as u32); // at most MOST
        if let Some(gap) = before.and_then(|before| self.place(before)) {
            self.counts[gap] = 0;
        }
        self.counts[place] = count.max(1);
        self.next = if place + 1 == self.counts.len() { 0 } else { place + 1 };
    }

    /// Forgets the eviction of `key`, and returns its number of uses. `None` if the eviction is not
    /// remembered.
    pub(super) fn take(&mut self, key: u64) -> Option<u8> {
        let number = self.numbers.remove(&self.keys, key)?;
        let place = self.place(number)?;
        Some(std::mem::take(&mut self.counts[place]))
    }

    /// Makes `key` present: stores it in the unused entry `entry`. The key must have no entry. If its
    /// eviction is remembered, forgets the eviction and returns its number of uses.
    pub(super) fn admit(&mut self, entry: u32, key: u64) -> Option<u8> {
        self.keys[entry as usize] = key;
        let before = self.numbers.put(&self.keys, entry)?;
        let place = self.place(before)?;
        Some(std::mem::take(&mut self.counts[place]))
    }

    /// Records that the key of `entry` was evicted, with its number of uses. The entry becomes unused.
    pub(super) fn evict(&mut self, entry: u32, count: u8) {
        self.push(self.key(entry), count);
    }

    /// Forgets all evictions and all entries. O(capacity).
    pub(super) fn clear(&mut self) {
        self.numbers.clear();
        self.counts.fill(0);
        self.next = 0;
    }

    /// Allocates memory for this number of entries and of evictions. The content does not change.
    pub(super) fn reserve(&mut self, entries: usize, evictions: usize) -> Result<(), PoolError> {
        let evictions = evictions.min(MOST);
        try_reserve(&mut self.keys, 1 + entries + evictions)?;
        try_reserve(&mut self.counts, evictions)?;
        self.numbers.reserve(entries + evictions)
    }

    /// Grows to this number of entries and of evictions, after [`Self::reserve`]. All evictions are
    /// still remembered. `used` is the number of entries that have a key.
    pub(super) fn grow(&mut self, entries: usize, evictions: usize, used: u32) {
        let (entries, before) = (entries.max(self.entries), self.counts.len());
        let evictions = evictions.min(MOST).max(before);
        // Rotates the ring buffer so that the oldest eviction comes first, and new slots can be
        // appended.
        let first = self.number(0);
        self.keys[first..].rotate_left(self.next);
        self.counts.rotate_left(self.next);
        self.next = if evictions > before { before } else { 0 };
        self.keys.resize(1 + entries + evictions, 0);
        self.counts.resize(evictions, 0);
        self.keys.copy_within(first..first + before, 1 + entries);
        self.entries = entries;
        let places = self.counts.iter().enumerate().filter(|&(_, &count)| count != 0);
        let places = places.map(|(place, _)| (1 + entries + place) as u32); // at most MOST
        self.numbers.rebuild(entries + evictions, &self.keys, (1..=used).chain(places));
    }

    #[cfg(test)]
    fn known(&self) -> usize {
        self.counts.iter().filter(|&&count| count != 0).count()
    }

    #[cfg(test)]
    fn contains(&self, key: u64) -> bool {
        self.numbers.find(&self.keys, key).is_some_and(|number| self.place(number).is_some())
    }

    /// Checks the invariants for all slots, and for the first `used` entries.
    pub(super) fn check_invariants(&self, used: u32) -> Result<(), InvariantViolation> {
        const NAME: &str =
            "AD1 (remembered evictions and entries are found by their keys, and nothing else is)";
        let mut known = 0;
        let places = (0..self.counts.len()).filter(|&place| self.counts[place] != 0);
        for number in (1..=used as usize).chain(places.map(|place| self.number(place))) {
            let found = self.numbers.find(&self.keys, self.keys[number]);
            ensure(found == Some(number as u32), NAME, || format!("number {number} is found as {found:?}"))?;
            known += 1;
        }
        let found = self.numbers.count();
        let sound = found == known && self.keys.len() == 1 + self.entries + self.counts.len();
        ensure(sound && (0..self.counts.len().max(1)).contains(&self.next), NAME, || {
            format!("{known} known, {found} in the table, next {} of {}", self.next, self.counts.len())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(capacity: usize) -> Recent {
        let mut recent = Recent::new();
        recent.reserve(0, capacity).unwrap();
        recent.grow(0, capacity, 0);
        recent
    }

    #[test]
    fn a_taken_key_leaves_a_gap() {
        let mut recent = of(3);
        (1..=3).for_each(|key| recent.push(key, 7));
        assert_eq!((recent.take(2), recent.take(2)), (Some(7), None));
        recent.push(4, 1); // forgets 1, although there is a gap
        assert!(!recent.contains(1) && recent.contains(3) && recent.contains(4));
        recent.check_invariants(0).unwrap();
    }

    #[test]
    fn a_key_that_is_evicted_twice_has_one_place() {
        let mut recent = of(3);
        [(1, 7), (2, 7), (1, 5)].into_iter().for_each(|(key, count)| recent.push(key, count));
        recent.check_invariants(0).unwrap();
        assert_eq!(recent.known(), 2);
        recent.push(3, 7); // goes into the gap
        assert_eq!((recent.take(1), recent.take(2), recent.take(3)), (Some(5), Some(7), Some(7)));
        // The second eviction of key 1 replaces the oldest eviction, which has the same key.
        (1..=3).chain([1]).for_each(|key| recent.push(key, 9));
        recent.check_invariants(0).unwrap();
        assert_eq!(recent.known(), 3);
    }

    #[test]
    fn growing_keeps_exactly_the_remembered_evictions() {
        let mut recent = of(3);
        (1..=5).for_each(|key| recent.push(key, key as u8));
        recent.reserve(0, 5).unwrap();
        recent.grow(0, 5, 0);
        recent.check_invariants(0).unwrap();
        assert_eq!((recent.known(), recent.contains(2), recent.contains(3)), (3, false, true));
        (6..=7).for_each(|key| recent.push(key, 1));
        assert!(recent.contains(3));
        recent.push(8, 1);
        assert!(!recent.contains(3));
        assert_eq!(recent.take(4), Some(4));
        recent.check_invariants(0).unwrap();
    }

    #[test]
    fn a_key_moves_between_an_entry_and_a_place() {
        let mut recent = Recent::new();
        recent.reserve(2, 2).unwrap();
        recent.grow(2, 2, 0);
        assert_eq!((recent.admit(1, 10), recent.admit(2, 20), recent.entry(20)), (None, None, Some(2)));
        recent.evict(1, 3);
        assert_eq!((recent.entry(10), recent.contains(10)), (None, true));
        assert_eq!((recent.admit(1, 10), recent.entry(10), recent.known()), (Some(3), Some(1), 0));
        recent.check_invariants(2).unwrap();
        recent.evict(1, 4);
        recent.admit(1, 30);
        // After growing, entries and evictions have new indices, and are found by their keys.
        recent.reserve(5, 4).unwrap();
        recent.grow(5, 4, 2);
        recent.check_invariants(2).unwrap();
        assert_eq!((recent.entry(30), recent.entry(20), recent.contains(10)), (Some(1), Some(2), true));
        assert_eq!((recent.admit(3, 10), recent.entry(10)), (Some(4), Some(3)));
        recent.check_invariants(3).unwrap();
    }

    #[test]
    fn without_room_nothing_is_remembered() {
        let mut recent = Recent::new();
        recent.push(1, 1);
        assert_eq!(recent.take(1), None);
        recent.check_invariants(0).unwrap();
    }
}
