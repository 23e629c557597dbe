//! `KeyTable`: a bounded set of keys, each with a small number.
//!
//! Owns: which key has which number. Numbers run from 1 to the capacity, so that they can be block ids of an evictor or
//! indices of arrays; a number that was given up is given out again.
//!
//! Invariant: a key is found exactly if it was inserted and not removed since.
//!
//! Costs: all operations O(1); 18 bytes per key, taken by [`KeyTable::grow`] alone. Open addressing with linear probes and
//! backward-shift deletion; at most two thirds of the slots are used. Where a key goes depends on a random number of the
//! instance, so nobody can choose keys that meet; what the table says does not depend on it.

use std::hash::{BuildHasher, RandomState};

use crate::block_list::{no_memory, try_reserve};
use crate::error::PoolError;

/// An empty slot: numbers start at 1.
const EMPTY: u32 = 0;

#[derive(Clone, Debug)]
pub(super) struct KeyTable {
    /// By number; entry 0 is nobody's.
    keys: Vec<u64>,
    /// Numbers below `keys.len()` that no key has.
    unused: Vec<u32>,
    /// Numbers by key.
    slots: Vec<u32>,
    capacity: usize,
    table_key: [u64; 2],
}

impl KeyTable {
    /// An empty table without room.
    pub(super) fn new() -> Self {
        let state = RandomState::new();
        Self {
            keys: vec![0],
            unused: Vec::new(),
            slots: vec![EMPTY],
            capacity: 0,
            table_key: [state.hash_one(0_u8), state.hash_one(1_u8) | 1],
        }
    }

    pub(super) fn len(&self) -> usize {
        self.keys.len() - 1 - self.unused.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() == self.capacity
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Makes room for `capacity` keys.
    pub(super) fn grow(&mut self, capacity: usize) -> Result<(), PoolError> {
        let capacity = capacity.min(u32::MAX as usize / 2);
        if capacity <= self.capacity {
            return Ok(());
        }
        // A third is always empty, and so every probe ends.
        let num_slots = capacity + capacity / 2 + 1;
        let mut slots = Vec::new();
        slots.try_reserve_exact(num_slots).map_err(|_| no_memory(capacity))?;
        try_reserve(&mut self.keys, capacity + 1)?;
        try_reserve(&mut self.unused, capacity)?;
        slots.resize(num_slots, EMPTY);
        self.capacity = capacity;
        let old = std::mem::replace(&mut self.slots, slots);
        old.into_iter().filter(|&number| number != EMPTY).for_each(|number| self.occupy(number));
        Ok(())
    }

    /// The number of `key`.
    pub(super) fn find(&self, key: u64) -> Option<u32> {
        self.slot_of(key).map(|slot| self.slots[slot])
    }

    /// The key of a number that is in use.
    pub(super) fn key(&self, number: u32) -> u64 {
        self.keys.get(number as usize).copied().unwrap_or(0)
    }

    /// Gives `key`, which must not be in the table, a number; `None` if the table is full.
    pub(super) fn insert(&mut self, key: u64) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        let number = match self.unused.pop() {
            Some(number) => {
                self.keys[number as usize] = key;
                number
            }
            None => {
                self.keys.push(key);
                self.keys.len() as u32 - 1 // fits: the capacity does
            }
        };
        self.occupy(number);
        Some(number)
    }

    /// Gives up the key of `number`.
    pub(super) fn remove(&mut self, number: u32) {
        let Some(slot) = self.slot_of(self.key(number)).filter(|&slot| self.slots[slot] == number) else {
            return;
        };
        self.unused.push(number);
        self.vacate(slot);
    }

    pub(super) fn clear(&mut self) {
        self.keys.truncate(1);
        self.unused.clear();
        self.slots.fill(EMPTY);
    }

    /// Bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        8 * self.keys.capacity() + 4 * (self.unused.capacity() + self.slots.capacity())
    }

    /// Where `key` is looked for first.
    fn home(&self, key: u64) -> usize {
        let product = u128::from(key ^ self.table_key[0]) * u128::from(self.table_key[1]);
        let mixed = (product as u64) ^ ((product >> 64) as u64);
        (((mixed >> 32) * self.slots.len() as u64) >> 32) as usize
    }

    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { 0 } else { slot + 1 }
    }

    /// Slots from `from` on to `to`, around the end.
    fn steps(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.slots.len() - from }
    }

    fn slot_of(&self, key: u64) -> Option<usize> {
        let mut slot = self.home(key);
        loop {
            match self.slots[slot] {
                EMPTY => return None,
                number if self.keys[number as usize] == key => return Some(slot),
                _ => slot = self.after(slot),
            }
        }
    }

    fn occupy(&mut self, number: u32) {
        let mut slot = self.home(self.keys[number as usize]);
        while self.slots[slot] != EMPTY {
            slot = self.after(slot);
        }
        self.slots[slot] = number;
    }

    /// Empties `slot`, and moves up what had to pass it.
    fn vacate(&mut self, slot: usize) {
        let mut hole = slot;
        let mut next = self.after(slot);
        while self.slots[next] != EMPTY {
            let home = self.home(self.keys[self.slots[next] as usize]);
            if self.steps(home, next) >= self.steps(hole, next) {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
            next = self.after(next);
        }
        self.slots[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a map: what is in it is found by the number that it was given, nothing else is, and full is full.
        #[test]
        fn a_table_is_a_map(operations in vec((0..3_u8, 0..40_u64), 0..300), capacity in 1..20_usize) {
            let mut table = KeyTable::new();
            table.grow(capacity).unwrap();
            let mut capacity = capacity;
            let mut model = HashMap::new();
            for (operation, key) in operations {
                match (operation, model.get(&key)) {
                    (0, Some(&number)) => {
                        table.remove(number);
                        table.remove(number); // twice is once
                        model.remove(&key);
                    }
                    (1, _) if key == 39 => {
                        table.clear();
                        model.clear();
                    }
                    (2, _) if key == 39 && capacity < 60 => {
                        capacity += 7;
                        table.grow(capacity).unwrap();
                    }
                    (_, None) => {
                        let number = table.insert(key);
                        prop_assert_eq!(number.is_some(), model.len() < capacity);
                        model.extend(number.map(|number| (key, number)));
                    }
                    _ => {}
                }
                prop_assert_eq!(table.len(), model.len());
                for key in 0..40 {
                    prop_assert_eq!(table.find(key), model.get(&key).copied());
                }
                for (&key, &number) in &model {
                    prop_assert!(number as usize <= capacity && number > 0 && table.key(number) == key);
                }
            }
        }
    }
}
