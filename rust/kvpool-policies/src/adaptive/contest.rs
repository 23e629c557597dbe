//! `Contest`: simulates one small cache (*shadow*) for each mode of the `adaptive` policy, and chooses
//! the mode whose shadow has the most hits.
//!
//! The shadows see only a sample of the released blocks: one key in 8, chosen by a hash of the key.
//! More keys are sampled if a shadow would otherwise have fewer than 1,024 entries. In pools below
//! 2,048 blocks, all keys are sampled.
//!
//! *A release* consists of all blocks that were released without a hit or an admission in between. In a
//! pool, these are the blocks of one request that finishes. If a caller hits and releases block by
//! block, each release has one block. The shadows serve a release when the next one begins. So the
//! evictions for a request use the mode that was active when the previous request finished. At most as
//! many blocks as a shadow has entries wait to be served. A longer release is served in parts.
//!
//! Costs: the release of a sampled key takes one access to each of the 6 shadows. A block that waits
//! takes 16 bytes.

use super::choice::{Choice, MODES};
use super::mode::Mode;
use super::shadow::{Sampled, Shadow};
use crate::slots::mixed;
use kvpool::parts::ensure;
use kvpool::parts::try_reserve;
use kvpool::{InvariantViolation, PoolError};

/// At least one key in this number is in the sample that the shadows (simulated caches) use.
const RATE: usize = 8;
/// Smallest number of entries of a shadow (a simulated cache). A pool with fewer blocks has one entry
/// per block.
const ENTRIES: usize = 1024;

/// The shadows (simulated caches) of all modes. They are made by [`Self::grow`].
#[derive(Clone, Debug, Default)]
pub(super) struct Contest {
    /// The shadow (simulated cache) of each mode, in the order of [`Mode::ALL`].
    shadows: Vec<Shadow>,
    entries: usize,
    /// One key in this number is sampled. It is a power of 2, or 0 before the first call of
    /// [`Self::grow`].
    rate: usize,
    /// The sampled blocks of the current release, which the simulated caches have not served yet.
    waiting: Vec<Sampled>,
    /// The depth of the latest released block, even if it was not sampled.
    depth: u32,
    /// Whether a released block that is not sampled began a new chain after the last sampled block.
    begins: bool,
    /// Number of references that were counted so far in the current chunk.
    references: usize,
    hits: [u64; MODES],
    choice: Choice,
}

impl Contest {
    pub(super) const fn mode(&self) -> Mode {
        Mode::ALL[self.choice.mode()]
    }

    fn samples(&self, key: u64) -> bool {
        self.rate > 0 && mixed(key) & (self.rate as u64 - 1) == 0
    }

    /// Adds a released block, whose content has this key and depth, to the current release.
    pub(super) fn release(&mut self, key: u64, depth: u32) {
        // The blocks of a chain are released deepest first, so a depth that does not fall begins a new
        // chain.
        self.begins |= depth >= self.depth;
        self.depth = depth;
        if self.samples(key) {
            if self.waiting.len() == self.entries {
                self.end_release();
            }
            self.waiting.push(Sampled::new(key, std::mem::take(&mut self.begins)));
        }
    }

    /// Lets all shadows (simulated caches) serve the blocks of the current release, and empties the
    /// list of these blocks.
    pub(super) fn end_release(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        for (shadow, hits) in self.shadows.iter_mut().zip(&mut self.hits) {
            *hits += shadow.serve(&mut self.waiting);
        }
        self.references += self.waiting.len();
        self.waiting.clear();
        if self.references >= (self.entries / Choice::CHUNKS as usize).max(1) {
            self.choice.record(self.references as u64, &self.hits);
            self.references = 0;
            self.hits = [0; MODES];
        }
    }

    pub(super) fn clear(&mut self) {
        self.shadows.iter_mut().for_each(Shadow::clear);
        self.choice = Choice::default();
        self.restart();
    }

    fn restart(&mut self) {
        self.waiting.clear();
        self.depth = 0;
        self.begins = true;
        self.references = 0;
        self.hits = [0; MODES];
    }

    /// Returns, for a pool of `capacity` blocks, a number n such that one key in n is sampled, and the
    /// number of entries of each shadow (simulated cache).
    fn size_for(capacity: usize) -> (usize, usize) {
        let mut rate = RATE;
        while rate > 1 && capacity / rate < ENTRIES {
            rate /= 2;
        }
        (rate, (capacity / rate).max(1))
    }

    /// Adapts the shadows (simulated caches) to a pool of `capacity` blocks. If memory is not
    /// sufficient, changes nothing. If a smaller part of the keys is sampled from now on, as when a
    /// pool grows over 2,048, 4,096 or 8,192 blocks, the shadows start empty. Until they are full, all
    /// modes have the same hits.
    pub(super) fn grow(&mut self, capacity: usize) -> Result<(), PoolError> {
        let (rate, entries) = Self::size_for(capacity);
        try_reserve(&mut self.waiting, entries)?;
        if rate == self.rate {
            self.shadows.iter_mut().try_for_each(|shadow| shadow.reserve(entries))?;
            self.shadows.iter_mut().for_each(|shadow| shadow.grow(entries));
        } else {
            self.shadows =
                Mode::ALL.into_iter().map(|mode| Shadow::new(mode, entries)).collect::<Result<_, _>>()?;
            self.restart();
        }
        self.rate = rate;
        self.entries = entries;
        Ok(())
    }

    pub(super) fn check_invariants(&self) -> Result<(), InvariantViolation> {
        const NAME: &str = "AD5 (waiting releases are sampled, and fit into a shadow)";
        self.choice.check_invariants()?;
        self.shadows.iter().try_for_each(|shadow| shadow.check_invariants(|key| self.samples(key)))?;
        let sampled = self.waiting.iter().all(|sampled| self.samples(sampled.key));
        let most = self.hits.iter().copied().max().unwrap_or(0);
        let fits = self.waiting.len() <= self.entries && (self.rate == 0 || self.shadows.len() == MODES);
        ensure(sampled && fits, NAME, || {
            format!(
                "{} releases wait, all sampled: {sampled}, {} entries, {most} hits",
                self.waiting.len(),
                self.entries
            )
        })
    }
}
