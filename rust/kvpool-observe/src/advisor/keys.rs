//! `KeyTable`: a bounded set of keys, each with a small number.
//!
//! Owns: which key has which number. Numbers run from 1 to the capacity, so that they can be block ids
//! of an evictor or indices of arrays; a number that was given up is given out again.
//!
//! Invariant: a key is found exactly if it was inserted and not removed since.
//!
//! Costs: all operations O(1); 18 bytes per key, taken by [`KeyTable::grow`] alone.

use kvpool::PoolError;
use kvpool::parts::try_reserve;
use kvpool_policies::parts::Slots;

#[derive(Clone, Debug)]
pub(super) struct KeyTable {
    /// By number; entry 0 is nobody's.
    keys: Vec<u64>,
    /// Numbers below `keys.len()` that no key has.
    unused: Vec<u32>,
    /// Numbers by key.
    slots: Slots,
    capacity: usize,
}

impl KeyTable {
    /// An empty table without room.
    pub(super) fn new() -> Self {
        Self { keys: vec![0], unused: Vec::new(), slots: Slots::new(), capacity: 0 }
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
        self.slots.reserve(capacity)?;
        try_reserve(&mut self.keys, capacity + 1)?;
        try_reserve(&mut self.unused, capacity)?;
        self.capacity = capacity;
        // Numbers whose keys were given up are in `unused`.
        let mut in_use = vec![true; self.keys.len()];
        in_use[0] = false;
        self.unused.iter().for_each(|&number| in_use[number as usize] = false);
        let numbers = (0_u32..).zip(in_use).filter_map(|(number, used)| used.then_some(number));
        self.slots.rebuild(capacity, &self.keys, numbers);
        Ok(())
    }

    /// The number of `key`.
    pub(super) fn find(&self, key: u64) -> Option<u32> {
        self.slots.find(&self.keys, key)
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
        self.slots.insert(&self.keys, number);
        Some(number)
    }

    /// Gives up the key of `number`.
    pub(super) fn remove(&mut self, number: u32) {
        let key = self.key(number);
        if self.find(key) == Some(number) {
            self.slots.remove(&self.keys, key);
            self.unused.push(number);
        }
    }

    pub(super) fn clear(&mut self) {
        self.keys.truncate(1);
        self.unused.clear();
        self.slots.clear();
    }

    /// Bytes held.
    pub(super) fn heap_bytes(&self) -> usize {
        8 * self.keys.capacity() + 4 * self.unused.capacity() + self.slots.heap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a map: what is in it is found by the number that it was given, nothing else is, and
        /// full is full.
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
