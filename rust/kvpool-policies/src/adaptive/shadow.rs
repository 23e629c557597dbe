//! `Shadow`: simulates a cache of the sampled keys in a fixed mode, to count its hits.
//!
//! A shadow has entries, which stand for the blocks of the simulated cache. It stores an order of these
//! entries in its mode, the keys of the entries and of recent evictions, and the hits that are not
//! counted yet.
//!
//! A release is served in the same way as a manager serves a request, because in a small cache the hits
//! depend on the blocks that a request holds. First, all keys of the release that are present leave the
//! order. Then the other keys are admitted, beginning with the head of the chain, until all entries are
//! used by this release. Finally all entries are put back into the order, deepest first.
//!
//! *Prefix hits.* A hit of a block counts only if all blocks before it hit too. Keys come deepest
//! first, so the prefix hits are the hits after the last miss of a chain. A counter counts the hits,
//! and each miss resets it to 0. Its value is added to the prefix hits when the next chain begins.
//!
//! Invariant: between releases, every entry with a key is in the order.
//!
//! Costs: O(1) amortized per key. An entry takes 63 bytes, allocated only by [`Shadow::reserve`].

use super::mode::Mode;
use super::order::Order;
use super::recent::{REMEMBERED, Recent};
use kvpool::parts::ensure;
use kvpool::{BlockId, NULL_BLOCK};
use kvpool::{InvariantViolation, PoolError};

/// A released block whose key is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sampled {
    pub(super) key: u64,
    /// Whether this block is the first of its chain in the release, apart from blocks that are not
    /// sampled.
    pub(super) begins: bool,
    /// The entry that the key has in the simulated cache that now serves the release, or the null block
    /// if it has none.
    entry: BlockId,
}

impl Sampled {
    pub(super) const fn new(key: u64, begins: bool) -> Self {
        Self { key, begins, entry: NULL_BLOCK }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Shadow {
    order: Order,
    keys: Recent,
    /// Number of entries that have a key. Entries with higher numbers were never used.
    used: u32,
    /// Number of hits since the last miss, in the chain whose blocks are now served.
    run: u64,
}

impl Shadow {
    /// Makes an empty simulated cache with this number of entries.
    pub(super) fn new(mode: Mode, entries: usize) -> Result<Self, PoolError> {
        let mut shadow = Self { order: Order::new(mode)?, keys: Recent::new(), used: 0, run: 0 };
        shadow.reserve(entries)?;
        shadow.grow(entries);
        Ok(shadow)
    }

    /// Returns the entry of `key`, or the null block if the key has none.
    fn find(&self, key: u64) -> BlockId {
        self.keys.entry(key).map_or(NULL_BLOCK, BlockId::new)
    }

    /// Serves one release. Returns the prefix hits of the chains that ended.
    pub(super) fn serve(&mut self, release: &mut [Sampled]) -> u64 {
        let (mut hits, mut score) = (0, 0);
        for sampled in &mut *release {
            if sampled.begins {
                score += std::mem::take(&mut self.run);
            }
            sampled.entry = self.find(sampled.key);
            if sampled.entry.is_null() {
                self.run = 0;
            } else {
                hits += 1;
                self.run += 1;
                self.order.hit(sampled.entry);
            }
        }
        if hits < release.len() {
            for sampled in release.iter_mut().rev().filter(|sampled| sampled.entry.is_null()) {
                // A key that occurs twice in the release has an entry since its first occurrence.
                sampled.entry = self.find(sampled.key);
                if sampled.entry.is_null() {
                    sampled.entry = self.admit(sampled.key);
                }
            }
        }
        self.order.begin_release();
        for sampled in release {
            self.order.release(sampled.entry); // does nothing for the null block
        }
        score
    }

    /// Gives an entry to `key`, if necessary that of an evicted key. Returns the null block if this
    /// release already uses all entries.
    fn admit(&mut self, key: u64) -> BlockId {
        let entry = if (self.used as usize) < self.order.capacity() {
            self.used += 1;
            BlockId::new(self.used)
        } else {
            let Some(victim) = self.order.pop() else { return NULL_BLOCK };
            self.keys.evict(victim.get(), self.order.uses(victim).unwrap_or_default());
            victim
        };
        let before = self.keys.admit(entry.get(), key);
        self.order.admit(entry, before);
        entry
    }

    pub(super) fn clear(&mut self) {
        self.order.clear();
        self.keys.clear();
        self.used = 0;
        self.run = 0;
    }

    /// Allocates memory for this number of entries. The content of the simulated cache does not change.
    pub(super) fn reserve(&mut self, entries: usize) -> Result<(), PoolError> {
        self.keys.reserve(entries, entries * REMEMBERED)?;
        self.order.reserve(entries + 1)
    }

    /// Grows to this number of entries, after [`Self::reserve`]. All keys remain.
    pub(super) fn grow(&mut self, entries: usize) {
        self.order.resize(entries + 1);
        self.keys.grow(entries, entries * REMEMBERED, self.used);
    }

    /// Checks the invariants of the order, the keys and the entries. `sampled` returns whether a key is
    /// in the sample.
    pub(super) fn check_invariants(&self, sampled: impl Fn(u64) -> bool) -> Result<(), InvariantViolation> {
        const NAME: &str = "AD3 (a shadow's entries are in its order, and sampled)";
        self.order.check_invariants()?;
        self.keys.check_invariants(self.used)?;
        let stray = (1..=self.used).find(|&entry| !sampled(self.keys.key(entry)));
        let (used, ordered, capacity) = (self.used as usize, self.order.len(), self.order.capacity());
        ensure(stray.is_none() && used == ordered && used <= capacity, NAME, || {
            format!(
                "{used} entries used, {ordered} in the order, capacity {capacity}; not sampled: {stray:?}"
            )
        })
    }
}
