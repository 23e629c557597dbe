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
//!   little endian; in a group above 0, `mix(group)` is added to it. A change of one of them always changes the term.
//! - The digest starts with the sum of all terms, modulo 2^64, and takes in the scalars of `BlockPool::scalars`, in their
//!   order, each by `digest = mix(digest ^ scalar)`.
//!
//! Operations only name the blocks that they changed; [`BlockPool::state_digest`] recounts those, each once, and adds the
//! difference. What it does not know is in which order blocks are free (but for the next one) and evicted: an order that
//! went another way shows in the blocks that the next operations get.
//!
//! Invariants:
//! - D1: a block that no operation changed since it was counted looks as it did then. A reference count, hash or computed bit
//!   that something else changed breaks it, and the scrubber finds it.
//! - D2: what the blocks add up to is what the parts count.
//!
//! Costs: off, one branch per operation. On, 24 bytes and a bit per block and 4 bytes per changed block; a change is a bit that is
//! tested and set, a digest O(blocks changed since the last one).

use super::BlockPool;
use crate::block::BlockId;
use crate::block::record::{ByBlock, COMPUTED, DEPTH, REGISTERED, Record, Records};
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::list::try_reserve;

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
    fn of(record: &Record) -> Self {
        Self { references: record.references, fences: record.fences, content: content_check(record) }
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

/// What the digest takes in of a content: its depth and bits, and the first 8 bytes of its hash. Zeros without one.
fn content_word(record: &Record) -> (u32, u64) {
    if record.is_registered() {
        let group = if record.group == 0 { 0 } else { mix(record.group.into()) };
        (record.flags & (REGISTERED | COMPUTED | DEPTH), record.hash.key().wrapping_add(group))
    } else {
        (0, 0)
    }
}

/// A number that another hash, group, depth or computed bit would change; 0 without a content.
fn content_check(record: &Record) -> u64 {
    let word = |at: usize| {
        let bytes: [u8; 8] = std::array::from_fn(|i| record.hash.as_bytes()[at + i]);
        u64::from_le_bytes(bytes)
    };
    match content_word(record).0 {
        0 => 0,
        bits => (word(0) ^ word(8) ^ word(16) ^ word(24))
            .wrapping_add(u64::from(bits))
            .wrapping_add(u64::from(record.group) << 40),
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
    /// The checks of all contents, summed up modulo 2^64 as they came and went.
    contents: u64,
    /// Blocks that have changed since they were counted, each once.
    changed: Vec<BlockId>,
    /// The same, one bit per block.
    marks: Vec<u64>,
    /// Every block has.
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

    /// Whether a block has changed since it was counted.
    #[inline]
    fn has_changed(&self, block: BlockId) -> bool {
        let word = self.marks.get(block.index() / 64).copied().unwrap_or(0);
        word >> (block.index() % 64) & 1 != 0
    }

    #[inline(never)]
    fn note(&mut self, blocks: &[BlockId]) {
        for &block in blocks {
            if !self.has_changed(block)
                && let Some(word) = self.marks.get_mut(block.index() / 64)
            {
                *word |= 1 << (block.index() % 64);
                self.changed.push(block);
            }
        }
    }

    /// What a block looked like when it was counted, unless it has changed since.
    fn unchanged(&self, block: BlockId) -> Option<Counts> {
        let changed = self.all || self.has_changed(block);
        self.blocks.get(block.index()).filter(|_| !changed).map(|counted| counted.counts)
    }

    /// Recounts what has changed.
    fn settle(&mut self, records: &Records) {
        if self.all {
            self.marks.fill(0);
            self.changed.clear();
            self.changed.extend((1..self.blocks.len() as u32).map(BlockId::new));
            self.all = false;
        }
        for &block in &self.changed {
            if let Some(word) = self.marks.get_mut(block.index() / 64) {
                *word &= !(1 << (block.index() % 64));
            }
            let Some(counted) = self.blocks.get_mut(block.index()) else { continue };
            let record = records.at(block.get());
            let now = Counts::of(record);
            // Many blocks end up as they were: hit and released.
            if now == counted.counts {
                continue;
            }
            self.totals.exchange(counted.counts, now);
            let term = now.term(block, content_word(record));
            self.sum = self.sum.wrapping_add(term).wrapping_sub(counted.term);
            *counted = Counted { counts: now, term };
        }
        self.changed.clear();
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

    /// Counts what has changed.
    pub(super) fn settle_digest(&mut self) {
        if let Some(digest) = &mut self.digest {
            digest.settle(&self.records);
        }
    }

    /// What the blocks add up to; `None` without a digest. Only after [`Self::settle_digest`].
    pub(super) fn digest_totals(&self) -> Option<Totals> {
        self.digest.as_ref().map(|digest| digest.totals)
    }

    fn term(&self, block: BlockId) -> u64 {
        let record = self.records.at(block.get());
        Counts::of(record).term(block, content_word(record))
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

    /// Says that an operation has changed these blocks: their references, fences or contents.
    #[inline]
    pub(super) fn note_changed(&mut self, blocks: &[BlockId]) {
        if let Some(digest) = &mut self.digest {
            digest.note(blocks);
        }
    }

    /// The same of every block, none of which has a content. O(blocks).
    pub(super) fn note_all_changed(&mut self) {
        if let Some(digest) = &mut self.digest {
            digest.all = true;
            digest.contents = 0;
        }
    }

    /// These blocks have the contents that they have from now on.
    #[inline]
    pub(super) fn note_contents(&mut self, blocks: &[BlockId]) {
        if let Some(digest) = &mut self.digest {
            let checks = blocks.iter().map(|block| content_check(self.records.at(block.get())));
            digest.contents = checks.fold(digest.contents, u64::wrapping_add);
        }
    }

    /// The content that this block has is going to change, or to go.
    #[inline]
    pub(super) fn note_content_ends(&mut self, block: BlockId) {
        if let Some(digest) = &mut self.digest {
            digest.contents = digest.contents.wrapping_sub(content_check(self.records.at(block.get())));
        }
    }

    /// The checks of all contents as they came and went; 0 without a digest.
    pub(super) fn content_sum(&self) -> u64 {
        self.digest.as_ref().map_or(0, |digest| digest.contents)
    }

    /// D1 for one block. O(1).
    pub(super) fn check_term(&self, block: BlockId) -> Result<(), InvariantViolation> {
        let Some(digest) = &self.digest else { return Ok(()) };
        let Some(counted) = digest.unchanged(block) else { return Ok(()) };
        let stored = digest.blocks.get(block.index()).map(|counted| counted.term);
        ensure(
            counted == Counts::of(self.records.at(block.get())) && stored == Some(self.term(block)),
            "D1 (what no operation changed is as it was counted)",
            || format!("{block:?} was {counted:?}, is {:?}", Counts::of(self.records.at(block.get()))),
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
