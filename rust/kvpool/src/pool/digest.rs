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
//! Invariants:
//! - D1: a block that no operation touched since it was counted looks as it did then. A reference count, hash or computed bit
//!   that something else changed breaks it. The scrubber looks, and so does every operation, at the blocks that it is about to
//!   change or to hand out.
//! - D2: what the blocks add up to is what the parts count.
//!
//! Costs: off, one branch per operation. On, 24 bytes and a bit per block and 4 bytes per touched block; a touch is a bit
//! that is tested and set and three numbers compared, a digest O(blocks touched since the last one).

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

/// What a block looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    references: u32,
    fences: u32,
    /// A check of its content, 0 without one.
    content: u64,
}

impl Counts {
    #[inline]
    fn of(allocator: &BlockAllocator, fences: &FenceSet, index: &PrefixIndex, block: BlockId) -> Self {
        let references = allocator.ref_count(block).unwrap_or(0);
        Self { references, fences: fences.references(block), content: index.content_check(block) }
    }

    /// The term of a block that looks so, with this content.
    fn term(self, block: BlockId, (content, key): (u32, u64)) -> u64 {
        if self.references | self.fences | content == 0 {
            return 0;
        }
        let term = mix(u64::from(block.get()) << 32 | u64::from(self.references));
        let term = mix(term ^ (u64::from(self.fences) << 32 | u64::from(content)));
        mix(term ^ key)
    }
}

/// Sums over all blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub(super) references: u64,
    pub(super) fences: u64,
    /// Blocks with a reference.
    pub(super) held: usize,
    /// Blocks with references of fences alone.
    pub(super) fenced: usize,
    /// Blocks with a content.
    pub(super) registered: usize,
    /// The checks of their contents.
    pub(super) contents: u64,
}

impl Totals {
    fn of(counts: Counts) -> Self {
        Self {
            references: u64::from(counts.references),
            fences: u64::from(counts.fences),
            held: usize::from(counts.references > 0),
            fenced: usize::from(counts.references > 0 && counts.references == counts.fences),
            registered: usize::from(counts.content != 0),
            contents: counts.content,
        }
    }

    /// One block looks otherwise: what was counted of it goes, what is found comes.
    fn exchange(&mut self, before: Counts, now: Counts) {
        let (before, now) = (Self::of(before), Self::of(now));
        self.references = self.references.wrapping_add(now.references).wrapping_sub(before.references);
        self.fences = self.fences.wrapping_add(now.fences).wrapping_sub(before.fences);
        self.held = self.held.wrapping_add(now.held).wrapping_sub(before.held);
        self.fenced = self.fenced.wrapping_add(now.fenced).wrapping_sub(before.fenced);
        self.registered = self.registered.wrapping_add(now.registered).wrapping_sub(before.registered);
        self.contents = self.contents.wrapping_add(now.contents).wrapping_sub(before.contents);
    }
}

/// A block as it was counted last.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    counts: Counts,
    /// Made of them.
    term: u64,
}

/// The terms of all blocks, their sums, and which of them are out of date.
#[derive(Debug, Default)]
pub(super) struct StateDigest {
    blocks: Vec<Counted>,
    /// Of all terms, modulo 2^64.
    sum: u64,
    totals: Totals,
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
        try_reserve(&mut self.blocks, num_blocks)?;
        try_reserve(&mut self.marks, num_blocks.div_ceil(64))?;
        self.blocks.resize(num_blocks.max(self.blocks.len()), Counted::default());
        self.marks.resize(self.blocks.len().div_ceil(64), 0);
        Ok(())
    }

    /// Whether a block was touched since it was counted.
    #[inline]
    fn is_touched(&self, block: BlockId) -> bool {
        let word = self.marks.get(block.index() / 64).copied().unwrap_or(0);
        word >> (block.index() % 64) & 1 != 0
    }

    /// Marks a block that is not. Returns what it looked like when it was counted.
    fn touch(&mut self, block: BlockId) -> Option<Counts> {
        *self.marks.get_mut(block.index() / 64)? |= 1 << (block.index() % 64);
        self.touched.push(block);
        if self.all { None } else { self.blocks.get(block.index()).map(|counted| counted.counts) }
    }

    /// What a block looked like when it was counted, unless it was touched since.
    fn untouched(&self, block: BlockId) -> Option<Counts> {
        let touched = self.all || self.is_touched(block);
        self.blocks.get(block.index()).filter(|_| !touched).map(|counted| counted.counts)
    }

    /// Recounts what was touched. `look` says what a block looks like, `content` what its content is.
    fn settle(&mut self, look: impl Fn(BlockId) -> Counts, content: impl Fn(BlockId) -> (u32, u64)) {
        if self.all {
            self.marks.fill(0);
            self.touched.clear();
            self.touched.extend((1..self.blocks.len() as u32).map(BlockId::new));
            self.all = false;
        }
        for &block in &self.touched {
            if let Some(word) = self.marks.get_mut(block.index() / 64) {
                *word &= !(1 << (block.index() % 64));
            }
            let Some(counted) = self.blocks.get_mut(block.index()) else { continue };
            let now = look(block);
            // Many blocks end up as they were: hit and released.
            if now == counted.counts {
                continue;
            }
            self.totals.exchange(counted.counts, now);
            let term = now.term(block, content(block));
            self.sum = self.sum.wrapping_add(term).wrapping_sub(counted.term);
            *counted = Counted { counts: now, term };
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
        self.settle_digest();
        let blocks = self.digest.as_ref()?.sum;
        Some(take_in(blocks, self.scalars()))
    }

    /// Counts what was touched.
    pub(super) fn settle_digest(&mut self) {
        let Self { digest, allocator, fences, index, .. } = self;
        if let Some(digest) = digest {
            digest.settle(
                |block| Counts::of(allocator, fences, index, block),
                |block| index.content_word(block),
            );
        }
    }

    /// What the blocks add up to; `None` without a digest. Only after [`Self::settle_digest`].
    pub(super) fn digest_totals(&self) -> Option<Totals> {
        self.digest.as_ref().map(|digest| digest.totals)
    }

    fn counts(&self, block: BlockId) -> Counts {
        Counts::of(&self.allocator, &self.fences, &self.index, block)
    }

    fn term(&self, block: BlockId) -> u64 {
        self.counts(block).term(block, self.index.content_word(block))
    }

    /// What [`Self::state_digest`] gives, counted anew from every block, whether the pool was made with digests or not.
    /// O(blocks).
    #[must_use]
    pub fn state_digest_from_scratch(&self) -> u64 {
        let ids = (1..self.num_blocks() as u32).map(BlockId::new);
        take_in(ids.map(|block| self.term(block)).fold(0, u64::wrapping_add), self.scalars())
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
            self.num_cached_free() as u64,
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

    /// Says that an operation is going to change these blocks: their references, fences or contents. What was counted of them is
    /// compared first.
    ///
    /// # Errors
    /// [`PoolError::Poisoned`]: somebody else has changed one of them.
    #[inline]
    pub(super) fn touch(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        let Some(digest) = &self.digest else { return Ok(()) };
        // Most blocks were touched since the last digest.
        match blocks.iter().position(|&block| !digest.is_touched(block)) {
            None => Ok(()),
            Some(first) => self.touch_first(&blocks[first..]),
        }
    }

    #[inline(never)]
    fn touch_first(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        let Self { digest: Some(digest), allocator, fences, index, .. } = self else { return Ok(()) };
        for &block in blocks {
            if digest.is_touched(block) {
                continue;
            }
            let counted = digest.touch(block);
            if counted.is_some_and(|counted| counted != Counts::of(allocator, fences, index, block)) {
                return Err(self.tampered(block));
            }
        }
        Ok(())
    }

    /// The same of free blocks that were just handed out, with one reference each.
    #[inline]
    pub(super) fn touch_new(&mut self, blocks: &[BlockId]) -> Result<(), PoolError> {
        let Self { digest: Some(digest), allocator, fences, index, .. } = self else { return Ok(()) };
        let new = Counts { references: 1, ..Counts::default() };
        for &block in blocks {
            let counted = if digest.is_touched(block) { None } else { digest.touch(block) };
            if counted.is_some_and(|counted| counted != Counts::default())
                || Counts::of(allocator, fences, index, block) != new
            {
                return Err(self.tampered(block));
            }
        }
        Ok(())
    }

    /// The same of every block. O(blocks).
    pub(super) fn touch_all(&mut self) -> Result<(), PoolError> {
        let tampered = (0..self.num_blocks() as u32).map(BlockId::new).find(|&block| self.is_tampered(block));
        if let Some(block) = tampered {
            return Err(self.tampered(block));
        }
        if let Some(digest) = &mut self.digest {
            digest.all = true;
        }
        Ok(())
    }

    /// Refuses a block that somebody else has changed since it was counted.
    pub(crate) fn check_untampered(&self, block: BlockId) -> Result<(), PoolError> {
        if self.is_tampered(block) { Err(self.tampered(block)) } else { Ok(()) }
    }

    /// Whether somebody else has changed a block since it was counted.
    #[inline]
    pub(super) fn is_tampered(&self, block: BlockId) -> bool {
        let counted = self.digest.as_ref().and_then(|digest| digest.untouched(block));
        counted.is_some_and(|counted| counted != self.counts(block))
    }

    /// Poisons the pool for a block that somebody else has changed.
    #[cold]
    pub(super) fn tampered(&self, block: BlockId) -> PoolError {
        self.condemn(|| {
            let counted = self.digest.as_ref().and_then(|digest| digest.blocks.get(block.index()));
            let counted = counted.map(|counted| counted.counts);
            format!("D1: {block:?} was {counted:?}, is {:?}, and no operation changed it", self.counts(block))
        })
    }

    /// D1 for one block. O(1).
    pub(super) fn check_term(&self, block: BlockId) -> Result<(), InvariantViolation> {
        let Some(digest) = &self.digest else { return Ok(()) };
        let Some(counted) = digest.untouched(block) else { return Ok(()) };
        let stored = digest.blocks.get(block.index()).map(|counted| counted.term);
        ensure(
            counted == self.counts(block) && stored == Some(self.term(block)),
            "D1 (what no operation touched is as it was counted)",
            || format!("{block:?} was {counted:?}, is {:?}", self.counts(block)),
        )
    }

    /// D1 for all blocks, and the sum of what was counted. O(blocks).
    pub(super) fn check_digest(&self) -> Result<(), InvariantViolation> {
        let Some(digest) = &self.digest else { return Ok(()) };
        (0..self.num_blocks() as u32).try_for_each(|block| self.check_term(BlockId::new(block)))?;
        let sum = digest.blocks.iter().map(|counted| counted.term).fold(0, u64::wrapping_add);
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
