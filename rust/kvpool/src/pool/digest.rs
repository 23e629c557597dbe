//! `StateDigest`: one number for the state of a pool, kept up to date by the operations that change it.
//!
//! Owns: what every block looked like when it was counted last, and which blocks have changed since. Two pools of one
//! configuration that ran the same operations have the same digest, on any host and in any version that keeps this
//! specification; a journal compares digests to find the first operation that went another way.
//!
//! The specification:
//! - `mix(x)` is the first output of `SplitMix64` seeded with `x`: a bijection of 64 bits.
//! - The *term* of a block is 0 if it has no reference and no content; else
//!   `mix(mix(mix(id << 32 | references) ^ (fence references << 32 | content)) ^ key)`. `content` is 0 without a
//!   content; else its depth, with bit 31 set, and bit 30 if it is computed. `key` is the first 8 bytes of its hash,
//!   little endian. A change of one of them always changes the term.
//! - The digest starts with the sum of all terms, modulo 2^64, and takes in the scalars of `BlockPool::scalars`, in their
//!   order, each by `digest = mix(digest ^ scalar)`.
//!
//! Operations only *touch* the blocks they change; [`BlockPool::state_digest`] recounts those, each once, and adds the
//! difference. What it does not know is in which order blocks are free (but for the next one) and evicted: an order that
//! went another way shows in the blocks that the next operations get.
//!
//! Invariant: D1: a block that no operation touched since it was counted looks as it did then. A reference count, hash or
//! computed bit that something else changed breaks it; the scrubber and [`BlockPool::check_invariants`] look.
//!
//! Costs: off, one branch per operation. On, 8 bytes and a bit per block and 4 bytes per touched block; a touch is a bit
//! that is tested and set, a digest O(blocks touched since the last one).

use super::BlockPool;
use crate::allocator::BlockAllocator;
use crate::block::BlockId;
use crate::block_list::try_reserve;
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::fence::FenceSet;
use crate::prefix_index::PrefixIndex;

/// Mixes 64 bits: `SplitMix64`'s first output for this seed. Part of the specification: never changes.
#[inline]
pub(crate) const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Takes scalars into a digest, in their order.
pub(crate) fn take_in(digest: u64, scalars: impl IntoIterator<Item = u64>) -> u64 {
    scalars.into_iter().fold(digest, |digest, scalar| mix(digest ^ scalar))
}

/// The term of a block as it is now.
#[inline]
fn term(allocator: &BlockAllocator, fences: &FenceSet, index: &PrefixIndex, block: BlockId) -> u64 {
    let references = allocator.ref_count(block).unwrap_or(0);
    let fenced = fences.references(block);
    let (content, key) = index.content_word(block);
    if references | fenced | content == 0 {
        return 0;
    }
    let term = mix(u64::from(block.get()) << 32 | u64::from(references));
    let term = mix(term ^ (u64::from(fenced) << 32 | u64::from(content)));
    mix(term ^ key)
}

/// The terms of all blocks, their sum, and which of them are out of date.
#[derive(Debug, Default)]
pub(super) struct StateDigest {
    terms: Vec<u64>,
    /// Of all terms, modulo 2^64.
    sum: u64,
    /// Blocks touched since they were counted, each once.
    touched: Vec<BlockId>,
    /// The same, one bit per block.
    marks: Vec<u64>,
    /// Every block is touched.
    all: bool,
}

impl StateDigest {
    /// That of a pool of free blocks.
    pub(super) fn new(num_blocks: usize) -> Result<Self, PoolError> {
        let mut digest = Self::default();
        digest.grow(num_blocks)?;
        Ok(digest)
    }

    /// Adds free blocks.
    pub(super) fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.terms, num_blocks)?;
        try_reserve(&mut self.marks, num_blocks.div_ceil(64))?;
        self.terms.resize(num_blocks.max(self.terms.len()), 0);
        self.marks.resize(self.terms.len().div_ceil(64), 0);
        Ok(())
    }

    #[inline]
    fn touch(&mut self, block: BlockId) {
        let bit = 1 << (block.index() % 64);
        if let Some(word) = self.marks.get_mut(block.index() / 64)
            && *word & bit == 0
        {
            *word |= bit;
            self.touched.push(block);
        }
    }

    fn is_touched(&self, block: BlockId) -> bool {
        let word = self.marks.get(block.index() / 64).copied().unwrap_or(0);
        self.all || word & (1 << (block.index() % 64)) != 0
    }

    /// Recounts what was touched.
    fn settle(&mut self, term: impl Fn(BlockId) -> u64) {
        if self.all {
            self.marks.fill(0);
            self.touched.clear();
            self.all = false;
            self.touched.extend((1..self.terms.len() as u32).map(BlockId::new));
        }
        for &block in &self.touched {
            if let Some(word) = self.marks.get_mut(block.index() / 64) {
                *word &= !(1 << (block.index() % 64));
            }
            if let Some(slot) = self.terms.get_mut(block.index()) {
                let before = std::mem::replace(slot, term(block));
                self.sum = self.sum.wrapping_add(*slot).wrapping_sub(before);
            }
        }
        self.touched.clear();
    }
}

impl BlockPool {
    /// One number for the state of the pool, after any operation: see [`PoolConfig::digest`](super::PoolConfig::digest).
    /// `None` without it. O(blocks that changed since the last call).
    ///
    /// Equal histories give equal digests, on any host. What it is made of is specified in the pool's `digest` module.
    ///
    /// ```
    /// use kvpool::{BlockPool, PoolConfig};
    /// let config = PoolConfig { num_blocks: 100, digest: true, ..PoolConfig::default() };
    /// let (mut one, mut other) = (BlockPool::new(config.clone())?, BlockPool::new(config)?);
    /// let table = one.allocate(3)?;
    /// assert_ne!(one.state_digest(), other.state_digest());
    /// other.allocate(3)?;
    /// assert_eq!(one.state_digest(), other.state_digest());
    /// assert_eq!(one.state_digest(), Some(one.state_digest_from_scratch()));
    /// # Ok::<(), kvpool::PoolError>(())
    /// ```
    pub fn state_digest(&mut self) -> Option<u64> {
        let Self { digest, allocator, fences, index, .. } = self;
        let digest = digest.as_mut()?;
        digest.settle(|block| term(allocator, fences, index, block));
        let blocks = digest.sum;
        Some(take_in(blocks, self.scalars()))
    }

    /// What [`Self::state_digest`] gives, counted anew from every block, whether the pool was made with digests or not.
    /// O(blocks).
    #[must_use]
    pub fn state_digest_from_scratch(&self) -> u64 {
        let ids = (1..self.num_blocks() as u32).map(BlockId::new);
        let terms = ids.map(|block| term(&self.allocator, &self.fences, &self.index, block));
        take_in(terms.fold(0, u64::wrapping_add), self.scalars())
    }

    /// What the digest knows beside the blocks. Part of the specification: never changes its order.
    fn scalars(&self) -> [u64; 16] {
        let counters = &self.counters;
        let front = self.allocator.free_list().front().map_or(0, BlockId::get);
        [
            self.num_blocks() as u64,
            self.epoch,
            self.allocator.num_free() as u64,
            u64::from(front),
            self.evictor.len() as u64,
            self.allocator.num_held() as u64,
            self.fences.num_fenced() as u64,
            // Steps are numbered from 0: none completed is one less.
            self.fences.completed().map_or(0, |step| step.wrapping_add(1)),
            self.index.num_registered() as u64,
            self.index.num_hashes() as u64,
            counters.allocated,
            counters.evicted,
            counters.hits,
            counters.misses,
            counters.collisions,
            counters.duplicates_dropped,
        ]
    }

    /// Says that an operation changes these blocks: their references, fences or contents.
    #[inline]
    pub(super) fn touch(&mut self, blocks: &[BlockId]) {
        if let Some(digest) = &mut self.digest {
            blocks.iter().for_each(|&block| digest.touch(block));
        }
    }

    /// Says that an operation changes every block.
    pub(super) fn touch_all(&mut self) {
        if let Some(digest) = &mut self.digest {
            digest.all = true;
        }
    }

    /// D1 for one block. O(1).
    pub(super) fn check_term(&self, block: BlockId) -> Result<(), InvariantViolation> {
        let Some(digest) = &self.digest else { return Ok(()) };
        let stored = digest.terms.get(block.index()).copied();
        let now = term(&self.allocator, &self.fences, &self.index, block);
        ensure(stored == Some(now) || digest.is_touched(block), "D1 (untouched blocks are unchanged)", || {
            format!(
                "{block:?} changed, and no operation changed it: references, fences, hash or computed bit"
            )
        })
    }

    /// D1 for all blocks, and the sum of what was counted. O(blocks).
    pub(super) fn check_digest(&self) -> Result<(), InvariantViolation> {
        let Some(digest) = &self.digest else { return Ok(()) };
        (0..self.num_blocks() as u32).try_for_each(|block| self.check_term(BlockId::new(block)))?;
        let sum = digest.terms.iter().copied().fold(0, u64::wrapping_add);
        ensure(sum == digest.sum, "D2 (the sum is that of the terms)", || {
            format!("{:#x} kept, {sum:#x} found", digest.sum)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{mix, take_in};

    #[test]
    fn the_mixer_is_splitmix64() {
        // Known outputs: seed 0, and the successive outputs of seed 1234567.
        assert_eq!(mix(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(mix(1_234_567), 6_457_827_717_110_365_317);
        assert_eq!(mix(1_234_567_u64.wrapping_add(0x9E37_79B9_7F4A_7C15)), 3_203_168_211_198_807_973);
        assert_eq!(take_in(5, [7, 9]), mix(mix(5 ^ 7) ^ 9));
    }
}
