//! A Fenwick tree: an array of counts that can be changed one at a time and summed over ranges, both in
//! O(log entries). Source: Fenwick, "A new data structure for cumulative frequency tables", 1994.

/// Counts by entry, with fast sums over ranges of entries.
///
/// ```
/// use kvpool_observe::advisor::Fenwick;
/// let mut counts = Fenwick::new(10);
/// counts.add(3, 5);
/// counts.add(7, 1);
/// counts.subtract(3, 2);
/// assert_eq!((counts.after(2), counts.after(3), counts.after(7)), (4, 1, 0));
/// ```
#[derive(Clone, Debug)]
pub struct Fenwick {
    tree: Vec<u32>,
    total: u32,
}

impl Fenwick {
    /// Makes a tree of `entries` counts of 0. A tree takes 4 bytes per entry.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        Self { tree: vec![0; entries + 1], total: 0 }
    }

    /// Adds `count` to an entry. Does nothing if the entry does not exist. O(log entries).
    pub fn add(&mut self, entry: u32, count: u32) {
        if entry as usize + 1 < self.tree.len() {
            self.total += count;
            self.change(entry, |sum| *sum += count);
        }
    }

    /// Subtracts `count` from an entry, which must be at least `count`. Does nothing if the entry does
    /// not exist. O(log entries).
    pub fn subtract(&mut self, entry: u32, count: u32) {
        if entry as usize + 1 < self.tree.len() {
            self.total -= count;
            self.change(entry, |sum| *sum -= count);
        }
    }

    fn change(&mut self, entry: u32, change: impl Fn(&mut u32)) {
        let mut place = entry as usize + 1;
        while let Some(sum) = self.tree.get_mut(place) {
            change(sum);
            place += place & place.wrapping_neg();
        }
    }

    /// Returns the sum of the counts of all entries after `entry`. O(log entries).
    #[must_use]
    pub fn after(&self, entry: u32) -> u32 {
        let mut place = (entry as usize + 1).min(self.tree.len() - 1);
        let mut up_to = 0;
        while place > 0 {
            up_to += self.tree[place];
            place &= place - 1;
        }
        self.total - up_to
    }

    /// Sets the first `ones` entries to 1 and all others to 0. O(entries).
    pub(super) fn fill_ones(&mut self, ones: usize) {
        let ones = ones.min(self.tree.len() - 1);
        for (place, sum) in self.tree.iter_mut().enumerate() {
            let before = place & place.wrapping_sub(1);
            // The difference of the two minima is at most `ones`. It fits in 32 bits, because a tree
            // has fewer than 2^32 entries.
            *sum = (place.min(ones) - before.min(ones)) as u32;
        }
        self.total = ones as u32;
    }

    pub(super) fn heap_bytes(&self) -> usize {
        4 * self.tree.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_ones_equals_adding_ones() {
        for entries in 0..40_usize {
            for ones in 0..=entries {
                let (mut filled, mut added) = (Fenwick::new(entries), Fenwick::new(entries));
                filled.add(0, 3);
                filled.fill_ones(ones);
                (0..ones as u32).for_each(|entry| added.add(entry, 1));
                assert_eq!((filled.tree, filled.total), (added.tree, added.total), "{entries} {ones}");
            }
        }
    }
}
