//! `Contest`: a sample of what is released, a shadow per mode to serve it, and the choice that comes of it.
//!
//! Owns: which keys are in the sample, the releases that wait, the shadows, and the chunk being
//! counted. A key is sampled by its mixed bits: one of 8, more of them while a shadow would have fewer
//! than 1,024 entries, all below 2,048 blocks.
//!
//! *A release*, as shadows serve it, is what was released with no hit and no admission between. In the
//! pool that is one request that ends; a caller that hits and releases block by block has releases of
//! one block. At most one shadow capacity is kept; a longer release is served in parts. It is served
//! when the next one begins, so that the evictions for a request are in the mode that was in office
//! when the request before it ended.
//!
//! Costs: a release of a sampled key is one access to each of the 6 shadows; 16 bytes per sampled block
//! that waits.

use super::choice::{Choice, MODES};
use super::mode::Mode;
use super::shadow::{Sampled, Shadow};
use crate::slots::mixed;
use kvpool::parts::ensure;
use kvpool::parts::try_reserve;
use kvpool::{InvariantViolation, PoolError};

/// One of so many keys is sampled at most.
const RATE: usize = 8;
/// Entries that a shadow has at least, if the pool has as many.
const ENTRIES: usize = 1024;

/// Without room until it has grown.
#[derive(Clone, Debug, Default)]
pub(super) struct Contest {
    /// By mode.
    shadows: Vec<Shadow>,
    /// Entries of each.
    entries: usize,
    /// One of so many keys is sampled, a power of 2; 0 before there is room.
    rate: usize,
    /// The release that goes on or was the last.
    waiting: Vec<Sampled>,
    /// The depth of the block released last, sampled or not.
    depth: u32,
    /// A chain began since the last sampled block.
    begins: bool,
    /// The chunk: references, and hits by mode.
    references: usize,
    hits: [u64; MODES],
    choice: Choice,
}

impl Contest {
    /// The mode in office.
    pub(super) const fn mode(&self) -> Mode {
        Mode::ALL[self.choice.mode()]
    }

    fn samples(&self, key: u64) -> bool {
        self.rate > 0 && mixed(key) & (self.rate as u64 - 1) == 0
    }

    /// A block with this content is released, as part of the release that goes on.
    pub(super) fn release(&mut self, key: u64, depth: u32) {
        // Chains come deepest first.
        self.begins |= depth >= self.depth;
        self.depth = depth;
        if self.samples(key) {
            if self.waiting.len() == self.entries {
                self.end_release();
            }
            self.waiting.push(Sampled::new(key, std::mem::take(&mut self.begins)));
        }
    }

    /// Serves what waits.
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

    /// Sampling rate, and entries of a shadow, for a pool of `capacity` blocks.
    fn size_for(capacity: usize) -> (usize, usize) {
        let mut rate = RATE;
        while rate > 1 && capacity / rate < ENTRIES {
            rate /= 2;
        }
        (rate, (capacity / rate).max(1))
    }

    /// Is the contest of a pool of `capacity` blocks from now on, or has not changed if there is no
    /// memory. If fewer keys are sampled from now on, as when a pool grows over 2,048, 4,096 or 8,192
    /// blocks, shadows start empty, and until they are full all modes hit the same.
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
        const NAME: &str = "AD5 (what waits is sampled and fits into a shadow)";
        self.choice.check_invariants()?;
        self.shadows.iter().try_for_each(|shadow| shadow.check_invariants(|key| self.samples(key)))?;
        let sampled = self.waiting.iter().all(|sampled| self.samples(sampled.key));
        let most = self.hits.iter().copied().max().unwrap_or(0);
        let fits = self.waiting.len() <= self.entries && (self.rate == 0 || self.shadows.len() == MODES);
        ensure(sampled && fits, NAME, || {
            format!(
                "{} wait, all sampled: {sampled}, {} entries, {most} hits",
                self.waiting.len(),
                self.entries
            )
        })
    }
}
