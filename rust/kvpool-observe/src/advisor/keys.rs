//! `KeyTable`: a bounded set of 64-bit keys, each with a small number.
//!
//! Numbers are from 1 to the capacity, so they can serve as block ids of an evictor or as indices of
//! arrays. The number of a removed key is reused.
//!
//! Invariant: a key is found if and only if it was inserted and not removed after that.
//!
//! Costs: all operations are O(1). 18 bytes per key, allocated only by [`KeyTable::grow`].

use kvpool::PoolError;
use kvpool::parts::try_reserve;
use kvpool_policies::parts::Slots;

#[derive(Clone, Debug)]
pub(super) struct KeyTable {
    /// The keys, indexed by their numbers. Entry 0 is unused.
    keys: Vec<u64>,
    /// Numbers below `keys.len()` that are not assigned to a key.
    unused: Vec<u32>,
    slots: Slots,
    capacity: usize,
}

impl KeyTable {
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

    pub(super) fn grow(&mut self, capacity: usize) -> Result<(), PoolError> {
        let capacity = capacity.min(u32::MAX as usize / 2);
        if capacity <= self.capacity {
            return Ok(());
        }
        self.slots.reserve(capacity)?;
        try_reserve(&mut self.keys, capacity + 1)?;
        try_reserve(&mut self.unused, capacity)?;
        self.capacity = capacity;
        let mut in_use = vec![true; self.keys.len()];
        in_use[0] = false;
        self.unused.iter().for_each(|&number| in_use[number as usize] = false);
        let numbers = (0_u32..).zip(in_use).filter_map(|(number, used)| used.then_some(number));
        self.slots.rebuild(capacity, &self.keys, numbers);
        Ok(())
    }

    pub(super) fn find(&self, key: u64) -> Option<u32> {
        self.slots.find(&self.keys, key)
    }

    pub(super) fn key(&self, number: u32) -> u64 {
        self.keys.get(number as usize).copied().unwrap_or(0)
    }

    /// Assigns a number to `key`, which must not be in the table. `None` if the table is full.
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
                self.keys.len() as u32 - 1 // fits, because the capacity does
            }
        };
        self.slots.insert(&self.keys, number);
        Some(number)
    }

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
        /// The table agrees with a map of the same keys: it finds exactly these keys, with the assigned
        /// numbers, and refuses new keys when it is full.
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
                        table.remove(number); // a second removal has no effect
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
