//! `Contest`: simulates one shadow cache per mode on a sample of the released blocks, and chooses the
//! best mode.
//!
//! The contest decides which keys are in the sample, and stores the release that is not yet served, the
//! shadows, and the current chunk. A key is sampled by a hash of its bits: one in 8 keys. The rate is
//! higher if a shadow would have fewer than 1,024 entries. Below 2,048 blocks, all keys are sampled.
//!
//! *A release* consists of all blocks that were released without a hit or an admission in between. In a
//! pool, these are the blocks of one request that finishes. A caller that hits and releases block by
//! block makes releases of one block. At most one shadow capacity of blocks is stored; a longer release
//! is served in parts. The shadows serve a release when the next one begins. So the evictions for a
//! request use the mode that was active when the previous request finished.
//!
//! Costs: the release of a sampled key takes one access to each of the 6 shadows. A stored sampled
//! block takes 16 bytes.

use super::choice::{Choice, MODES};
use super::mode::Mode;
use super::shadow::{Sampled, Shadow};
use crate::slots::mixed;
use kvpool::parts::ensure;
use kvpool::parts::try_reserve;
use kvpool::{InvariantViolation, PoolError};

/// The sampling rate is at least one key in this number.
const RATE: usize = 8;
/// The minimum number of entries of a shadow, if the pool has as many blocks.
const ENTRIES: usize = 1024;

/// The contest of the modes. It is empty until it has grown.
#[derive(Clone, Debug, Default)]
pub(super) struct Contest {
    /// The shadows, indexed by mode.
    shadows: Vec<Shadow>,
    /// The number of entries of each shadow.
    entries: usize,
    /// One key in this number is sampled. It is a power of 2, or 0 before the contest has grown to a
    /// capacity.
    rate: usize,
    /// The sampled blocks of the current release, or of the last one.
    waiting: Vec<Sampled>,
    /// The depth of the last released block, whether it was sampled or not.
    depth: u32,
    /// Whether a chain began after the last sampled block.
    begins: bool,
    /// The current chunk: references, and hits by mode.
    references: usize,
    hits: [u64; MODES],
    choice: Choice,
}

impl Contest {
    /// The active mode.
    pub(super) const fn mode(&self) -> Mode {
        Mode::ALL[self.choice.mode()]
    }

    fn samples(&self, key: u64) -> bool {
        self.rate > 0 && mixed(key) & (self.rate as u64 - 1) == 0
    }

    /// Adds a released block with this content to the current release.
    pub(super) fn release(&mut self, key: u64, depth: u32) {
        // Chains are released deepest block first.
        self.begins |= depth >= self.depth;
        self.depth = depth;
        if self.samples(key) {
            if self.waiting.len() == self.entries {
                self.end_release();
            }
            self.waiting.push(Sampled::new(key, std::mem::take(&mut self.begins)));
        }
    }

    /// Serves the current release.
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

    /// Returns the sampling rate, and the number of entries of a shadow, in a pool of `capacity`
    /// blocks.
    fn size_for(capacity: usize) -> (usize, usize) {
        let mut rate = RATE;
        while rate > 1 && capacity / rate < ENTRIES {
            rate /= 2;
        }
        (rate, (capacity / rate).max(1))
    }

    /// Adapts the contest to a pool of `capacity` blocks. Changes nothing if there is not enough
    /// memory. If the sampling rate falls, as when a pool grows over 2,048, 4,096 or 8,192 blocks, the
    /// shadows start empty. Until they are full, all modes have the same hits.
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
