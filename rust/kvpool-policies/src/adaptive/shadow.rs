//! `Shadow`: what a cache of sampled keys would hit if it were always in one mode.
//!
//! Owns: an order in a fixed mode over entries that stand for blocks, their keys and those of
//! evictions, and the hits not scored yet.
//!
//! A release is served as a manager serves a request, because to hold its blocks or not changes what a
//! small cache hits: all that is there is taken out of the order; the rest is admitted from the head
//! on, as far as it fits; then all is put back, deepest first.
//!
//! *Prefix hits.* A block counts only if all before it hit too. Keys come deepest first, so these are
//! the hits after the last miss of a chain: a run that a miss sets to 0, scored when the next chain
//! begins.
//!
//! Invariant: between releases all entries in use are in the order.
//!
//! Costs: O(1) amortized per key; 63 bytes per entry, taken by [`Shadow::reserve`] alone.

use super::mode::Mode;
use super::order::Order;
use super::recent::{REMEMBERED, Recent};
use kvpool::parts::ensure;
use kvpool::{BlockId, NULL_BLOCK};
use kvpool::{InvariantViolation, PoolError};

/// A released block whose key is in the sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sampled {
    pub(super) key: u64,
    /// Its chain begins, from the deep end, with this or with one before it that is not in the sample.
    pub(super) begins: bool,
    /// Its entry in the shadow that serves it; the null block for none.
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
    /// Entries in use: those above were never used.
    used: u32,
    /// Hits of the chain that is being released, since its last miss.
    run: u64,
}

impl Shadow {
    /// Empty, with the memory for `entries`.
    pub(super) fn new(mode: Mode, entries: usize) -> Result<Self, PoolError> {
        let mut shadow = Self { order: Order::new(mode)?, keys: Recent::new(), used: 0, run: 0 };
        shadow.reserve(entries)?;
        shadow.grow(entries);
        Ok(shadow)
    }

    /// The entry of `key`; the null block for none.
    fn find(&self, key: u64) -> BlockId {
        self.keys.entry(key).map_or(NULL_BLOCK, BlockId::new)
    }

    /// Serves one release, and returns the prefix hits of the chains that ended.
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
                // A key that was released twice was admitted for the first time above.
                sampled.entry = self.find(sampled.key);
                if sampled.entry.is_null() {
                    sampled.entry = self.admit(sampled.key);
                }
            }
        }
        self.order.begin_release();
        for sampled in release {
            self.order.release(sampled.entry); // nothing for the null block
        }
        score
    }

    /// Gives `key` an entry; the null block if this release has all of them.
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

    /// Takes the memory for `entries`, and changes nothing that is seen.
    pub(super) fn reserve(&mut self, entries: usize) -> Result<(), PoolError> {
        self.keys.reserve(entries, entries * REMEMBERED)?;
        self.order.reserve(entries + 1)
    }

    /// Has `entries` from now on, after [`Self::reserve`]. What is there stays.
    pub(super) fn grow(&mut self, entries: usize) {
        self.order.resize(entries + 1);
        self.keys.grow(entries, entries * REMEMBERED, self.used);
    }

    /// Recounts everything; `sampled` says which keys are in the sample.
    pub(super) fn check_invariants(&self, sampled: impl Fn(u64) -> bool) -> Result<(), InvariantViolation> {
        const NAME: &str = "AD3 (a shadow's entries are in its order, and sampled)";
        self.order.check_invariants()?;
        self.keys.check_invariants(self.used)?;
        let stray = (1..=self.used).find(|&entry| !sampled(self.keys.key(entry)));
        let (used, ordered, capacity) = (self.used as usize, self.order.len(), self.order.capacity());
        ensure(stray.is_none() && used == ordered && used <= capacity, NAME, || {
            format!("{used} used, {ordered} in the order, {capacity} in all, not sampled: {stray:?}")
        })
    }
}
