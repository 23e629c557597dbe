//! `Slots`: a hash table that finds the index of a key in an array of keys, which the caller owns.
//!
//! The table stores only indices, from 1 on. The caller stores the keys, and passes the same array to
//! every call. It may change only keys whose indices are not in the table. The table finds an index by
//! its key if and only if the index is in the table.
//!
//! Costs: all operations are O(1). An index takes 6 bytes, allocated only by [`Slots::reserve`]. The
//! table uses open addressing with linear probes and backward-shift deletion, so deleted entries leave
//! no tombstones. At most two thirds of the slots are used.
//!
//! The slot of a key depends on a secret random number of the table, so an attacker cannot choose keys
//! that collide. The results of calls do not depend on that number.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

use kvpool::PoolError;
use kvpool::parts::try_reserve;

/// Mixes the bits of a key (the finalizer of `SplitMix64`), for samples and statistics. It has no
/// secret, so a caller could choose keys with given results. If that must not be possible, use
/// [`Slots`].
pub(crate) const fn mixed(key: u64) -> u64 {
    let key = key.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let key = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let key = (key ^ (key >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    key ^ (key >> 31)
}

/// An empty slot.
const EMPTY: u32 = 0;

/// A hash table that finds the index of a key in the caller's array of keys.
#[derive(Clone)]
pub struct Slots {
    slots: Vec<u32>,
    secret: [u64; 2],
}

/// Prints the size of the table, but not its secret.
impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}

impl Default for Slots {
    fn default() -> Self {
        Self::new()
    }
}

impl Slots {
    /// Makes an empty table, which has no memory yet.
    #[must_use]
    pub fn new() -> Self {
        let state = RandomState::new();
        Self { slots: vec![EMPTY], secret: [state.hash_one(0_u8), state.hash_one(1_u8) | 1] }
    }

    /// Returns the number of slots for `numbers` indices. At least a third of the slots is always
    /// empty, so every probe ends.
    fn len_for(numbers: usize) -> usize {
        numbers.saturating_add(numbers / 2 + 1).min(u32::MAX as usize)
    }

    /// Allocates memory for `numbers` indices. The content of the table does not change.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is not enough memory. Nothing has changed then.
    pub fn reserve(&mut self, numbers: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.slots, Self::len_for(numbers))
    }

    /// Removes all indices, makes room for `numbers` indices, and adds `these`. After
    /// [`Self::reserve`], this does not allocate. O(numbers).
    pub fn rebuild(&mut self, numbers: usize, keys: &[u64], these: impl Iterator<Item = u32>) {
        self.slots.clear();
        self.slots.resize(Self::len_for(numbers), EMPTY);
        // If the caller passes more indices than there is room for, ignore the others, because a probe
        // in a full table would not end.
        these.take(numbers).for_each(|number| self.insert(keys, number));
    }

    /// Removes all indices.
    pub fn clear(&mut self) {
        self.slots.fill(EMPTY);
    }

    /// The number of indices in the table. O(slots).
    #[must_use]
    pub fn count(&self) -> usize {
        self.slots.iter().filter(|&&number| number != EMPTY).count()
    }

    /// Returns the index of `key` in the caller's array.
    #[must_use]
    pub fn find(&self, keys: &[u64], key: u64) -> Option<u32> {
        self.slot_of(keys, key).map(|slot| self.slots[slot])
    }

    /// Adds the index `number`. The table must have room, and must not contain an index with the same
    /// key.
    pub fn insert(&mut self, keys: &[u64], number: u32) {
        let mut slot = self.home(keys[number as usize]);
        while self.slots[slot] != EMPTY {
            slot = self.after(slot);
        }
        self.slots[slot] = number;
    }

    /// Adds the index `number`. If the table has an index with the same key, removes and returns it.
    /// The table must have room.
    pub fn put(&mut self, keys: &[u64], number: u32) -> Option<u32> {
        let key = keys[number as usize];
        let mut slot = self.home(key);
        loop {
            let before = self.slots[slot];
            if before == EMPTY || keys[before as usize] == key {
                self.slots[slot] = number;
                return (before != EMPTY).then_some(before);
            }
            slot = self.after(slot);
        }
    }

    /// Removes and returns the index of `key`.
    pub fn remove(&mut self, keys: &[u64], key: u64) -> Option<u32> {
        let slot = self.slot_of(keys, key)?;
        let number = self.slots[slot];
        // Move later indices forward if their probes passed the emptied slot, so that probes still find
        // them.
        let mut hole = slot;
        let mut next = self.after(slot);
        while self.slots[next] != EMPTY {
            let home = self.home(keys[self.slots[next] as usize]);
            if self.steps(home, next) >= self.steps(hole, next) {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
            next = self.after(next);
        }
        self.slots[hole] = EMPTY;
        Some(number)
    }

    /// Returns the size of the table's heap memory, in bytes.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        4 * self.slots.capacity()
    }

    /// Returns the first slot in which `key` is looked up.
    fn home(&self, key: u64) -> usize {
        let product = u128::from(key ^ self.secret[0]) * u128::from(self.secret[1]);
        let mixed = (product as u64) ^ ((product >> 64) as u64);
        (((mixed >> 32) * self.slots.len() as u64) >> 32) as usize
    }

    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { 0 } else { slot + 1 }
    }

    /// The number of steps from the slot `from` to the slot `to`. After the last slot, probes continue
    /// at the first.
    fn steps(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots.len() - from }
    }

    fn slot_of(&self, keys: &[u64], key: u64) -> Option<usize> {
        let mut slot = self.home(key);
        loop {
            match self.slots[slot] {
                EMPTY => return None,
                number if keys[number as usize] == key => return Some(slot),
                _ => slot = self.after(slot),
            }
        }
    }
}
