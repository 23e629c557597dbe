//! `StateDigest`: a 64-bit digest of the state of a pool, updated by each operation.
//!
//! For every block, this type stores the reference counts and the content from the last time that the
//! block was added to the digest, and whether the block has changed after that. Two pools with the same
//! configuration that ran the same operations have the same digest, on any host and in any version that
//! implements this specification. A journal compares digests to find the first operation whose result
//! differs.
//!
//! The specification:
//! - `mix(x)` is the first output of `SplitMix64` seeded with `x`: a bijection of 64 bits.
//! - Each block adds a number, its *term*. The term is 0 if the block has no reference and no content.
//!   Otherwise it is `mix(mix(mix(id << 32 | references) ^ (fence references << 32 | content)) ^
//!   key)`. `content` is 0 without a content; otherwise it is the depth, with bit 31 set, and bit 30
//!   set if the content is computed. `key` is the first 8 bytes of the hash, little endian; in a group
//!   above 0, `mix(group)` is added to it. Changing any one of these values always changes the term.
//! - The digest starts with the sum of all terms, modulo 2^64. Then each value of `scalars`, in their
//!   order, is mixed in by `digest = mix(digest ^ scalar)`.
//!
//! Operations only record which blocks they changed.
//! [`PoolWatch::state_digest`](crate::PoolWatch::state_digest) computes the terms of those blocks
//! again, and adds the differences to the sum. The digest covers neither the eviction order nor the
//! order of the free list, except for its next block. If one of these orders differs, the next
//! operations get different blocks, and then the digests differ.
//!
//! Invariants:
//! - D1: a block that no operation has changed still has the stored counts and content. If anything
//!   else changes a reference count, hash or computed bit, D1 is broken, and the scrubber finds it.
//! - D2: the sums over all blocks equal the counters of the pool. If checksums of contents are summed,
//!   their sum equals that of all contents that were added and not removed. A journal's digest does not
//!   sum them, because that needs a notification for every content that is added or removed.
//!
//! Costs: a little over 24 bytes per block. Recording a change sets a bit, for up to 64 neighbouring
//! blocks at once. A digest takes O(blocks changed since the last one), and reads one word per 4,096
//! blocks.

use kvpool::observe::{BlockView, Blocks, ContentView};
use kvpool::parts::{ensure, try_reserve};
use kvpool::{BlockId, BlockPool, InvariantViolation, PoolError};

/// Mixes 64 bits: the first output of `SplitMix64` for this seed. The function is part of the
/// specification, so it must never change.
#[inline]
pub(crate) const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

pub(crate) fn take_in(digest: u64, scalars: impl IntoIterator<Item = u64>) -> u64 {
    scalars.into_iter().fold(digest, |digest, scalar| mix(digest ^ scalar))
}

/// The reference counts of a block and a checksum of its content. The number that the block adds to the
/// digest (its term) depends on these values and on the content's key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    references: u32,
    fences: u32,
    /// A checksum of the block's content, or 0 if it has no content.
    content: u64,
}

impl Counts {
    fn of(block: &BlockView) -> Self {
        let content = block.content.as_ref().map_or(0, content_check);
        Self { references: block.references, fences: block.fences, content }
    }

    /// Returns the number that a block with these counts and this content adds to the digest, which is the
    /// sum over all blocks.
    fn term(self, id: BlockId, content: Option<&ContentView>) -> u64 {
        let (bits, key) = content.map_or((0, 0), |content| (content_bits(content), content_key(content)));
        if self.references | self.fences | bits == 0 {
            return 0;
        }
        let term = mix(u64::from(id.get()) << 32 | u64::from(self.references));
        let term = mix(term ^ (u64::from(self.fences) << 32 | u64::from(bits)));
        mix(term ^ key)
    }
}

const COMPUTED: u32 = 1 << 30;

/// Returns the first 8 bytes of a content's hash, combined with the number of its KV-cache group.
fn content_key(content: &ContentView) -> u64 {
    group_key(content.hash.key(), content.group)
}

/// Combines a key with the number of a KV-cache group, so that equal keys in different groups give
/// different numbers.
pub(crate) fn group_key(key: u64, group: u16) -> u64 {
    key.wrapping_add(if group == 0 { 0 } else { mix(group.into()) })
}

/// Encodes in one number the depth of a content in its chain, and whether it is computed.
fn content_bits(content: &ContentView) -> u32 {
    content.depth | 1 << 31 | if content.computed { COMPUTED } else { 0 }
}

/// Returns a checksum of a content. It depends on the hash, the KV-cache group, the depth, and whether
/// the content is computed.
fn content_check(content: &ContentView) -> u64 {
    let word = |at: usize| {
        let bytes: [u8; 8] = std::array::from_fn(|i| content.hash.as_bytes()[at + i]);
        u64::from_le_bytes(bytes)
    };
    let hash = word(0) ^ word(8) ^ word(16) ^ word(24);
    hash.wrapping_add(u64::from(content_bits(content))).wrapping_add(u64::from(content.group) << 40)
}

/// Counts and sums over all blocks of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    references: u64,
    fences: u64,
    /// The number of blocks that have a reference.
    held: usize,
    /// The number of blocks that have references, but only those of fences.
    fenced: usize,
    /// The number of blocks that have a content.
    registered: usize,
    /// The sum of the checksums of all contents.
    contents: u64,
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

    /// Subtracts the former counts of one block from the totals, and adds the present ones.
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

/// The values of a block at the time of the last digest that included it.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    counts: Counts,
    /// The number that the block added to the digest (its term).
    term: u64,
}

/// The set of blocks that have changed since the last digest. It is a bit set in the order of block
/// ids. So adding a block needs no memory, and the records of changed blocks are read in memory order.
#[derive(Debug, Default)]
struct Changed {
    /// One bit per block, set if the block has changed.
    blocks: Vec<u64>,
    /// One bit per word of `blocks`, set if that word is not 0.
    words: Vec<u64>,
}

impl Changed {
    fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        let words = num_blocks.div_ceil(64);
        try_reserve(&mut self.blocks, words)?;
        try_reserve(&mut self.words, words.div_ceil(64))?;
        self.blocks.resize(words.max(self.blocks.len()), 0);
        self.words.resize(self.blocks.len().div_ceil(64), 0);
        Ok(())
    }

    #[inline]
    fn has(&self, block: BlockId) -> bool {
        let word = self.blocks.get(block.index() / 64).copied().unwrap_or(0);
        word >> (block.index() % 64) & 1 != 0
    }

    fn note(&mut self, blocks: &[BlockId]) {
        // Most blocks in `ids` follow each other. Collect their bits in a local word, and write it to
        // memory once.
        let (mut at, mut bits) = (usize::MAX, 0);
        for block in blocks {
            if block.index() / 64 != at {
                self.set(at, bits);
                (at, bits) = (block.index() / 64, 0);
            }
            bits |= 1 << (block.index() % 64);
        }
        self.set(at, bits);
    }

    #[inline]
    fn set(&mut self, at: usize, bits: u64) {
        if let (Some(word), Some(words)) = (self.blocks.get_mut(at), self.words.get_mut(at / 64)) {
            *word |= bits;
            *words |= 1 << (at % 64);
        }
    }

    /// Adds all blocks of the pool to the set, except the null block.
    fn note_all(&mut self) {
        self.blocks.fill(u64::MAX);
        self.words.fill(u64::MAX);
        if let Some(first) = self.blocks.first_mut() {
            *first &= !1;
        }
    }

    /// Calls `each` with every block that has changed, and possibly with some ids after the last block.
    /// Clears the set.
    fn take(&mut self, mut each: impl FnMut(BlockId)) {
        for (first, words) in self.words.iter_mut().enumerate() {
            for at in ones(std::mem::take(words)) {
                let at = first * 64 + at;
                let bits = self.blocks.get_mut(at).map_or(0, std::mem::take);
                ones(bits).for_each(|bit| each(BlockId::new((at * 64 + bit) as u32)));
            }
        }
    }
}

fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (bits != 0).then(|| bits.trailing_zeros() as usize);
        bits &= bits.wrapping_sub(1);
        lowest
    })
}

/// The number that each block adds to the digest (its term), the sum of all terms, and which blocks
/// have changed since.
#[derive(Debug, Default)]
pub(crate) struct StateDigest {
    blocks: Vec<Counted>,
    /// The sum of the terms of all blocks, modulo 2^64.
    sum: u64,
    totals: Totals,
    /// The sum of the checksums of all contents, modulo 2^64, updated when a content is added or
    /// removed. `None` if this sum is not kept.
    contents: Option<u64>,
    /// Blocks whose stored values are out of date.
    changed: Changed,
    /// Whether the stored values of all blocks are out of date.
    all: bool,
}

impl StateDigest {
    /// Makes the digest of a pool in its current state. If `contents` is true, also keeps the sum of
    /// the checksums of contents, for D2. O(blocks).
    pub(crate) fn new(blocks: Blocks<'_>, contents: bool) -> Result<Self, PoolError> {
        let mut digest = Self { all: true, ..Self::default() };
        digest.grow(blocks.len())?;
        let ids = (1..blocks.len() as u32).map(BlockId::new);
        let checks = ids.filter_map(|block| blocks.get(block).content).map(|content| content_check(&content));
        digest.contents = contents.then(|| checks.fold(0, u64::wrapping_add));
        digest.settle(blocks);
        Ok(digest)
    }

    /// Adds free blocks.
    pub(crate) fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        try_reserve(&mut self.blocks, num_blocks)?;
        self.changed.grow(num_blocks)?;
        self.blocks.resize(num_blocks.max(self.blocks.len()), Counted::default());
        Ok(())
    }

    /// Records that an operation has changed the references, fences or contents of these blocks.
    pub(crate) fn note_changed(&mut self, blocks: &[BlockId]) {
        self.changed.note(blocks);
    }

    pub(crate) const fn counts_contents(&self) -> bool {
        self.contents.is_some()
    }

    /// Records that these blocks have new contents. [`Self::note_computed`] records separately when
    /// they become computed.
    pub(crate) fn note_contents(&mut self, of: &[BlockId], blocks: Blocks<'_>) {
        if let Some(sum) = &mut self.contents {
            let contents = of.iter().filter_map(|&block| blocks.get(block).content);
            let checks = contents.map(|content| content_check(&ContentView { computed: false, ..content }));
            *sum = checks.fold(*sum, u64::wrapping_add);
        }
    }

    pub(crate) fn note_computed(&mut self, content: &ContentView) {
        if let Some(sum) = &mut self.contents {
            let before = content_check(&ContentView { computed: false, ..*content });
            *sum = sum.wrapping_sub(before).wrapping_add(content_check(content));
        }
    }

    pub(crate) fn note_removed(&mut self, content: &ContentView) {
        if let Some(sum) = &mut self.contents {
            *sum = sum.wrapping_sub(content_check(content));
        }
    }

    /// Records that all contents were removed, and that every block may have changed.
    pub(crate) fn note_cleared(&mut self) {
        self.all = true;
        self.contents = self.contents.map(|_| 0);
    }

    /// Returns the stored values of a block. `None` if the block has changed since they were stored.
    fn unchanged(&self, block: BlockId) -> Option<Counted> {
        let changed = self.all || self.changed.has(block);
        self.blocks.get(block.index()).filter(|_| !changed).copied()
    }

    /// Computes the terms of the changed blocks again, and updates the sums. O(changed blocks).
    pub(crate) fn settle(&mut self, blocks: Blocks<'_>) {
        if std::mem::take(&mut self.all) {
            self.changed.note_all();
        }
        let Self { blocks: all, sum, totals, changed, .. } = self;
        changed.take(|block| {
            let Some(counted) = all.get_mut(block.index()) else { return };
            let view = blocks.get(block);
            let now = Counts::of(&view);
            // Skip a block whose counts are the same as at the previous digest, for example after a hit
            // and a release.
            if now == counted.counts {
                return;
            }
            totals.exchange(counted.counts, now);
            let term = now.term(block, view.content.as_ref());
            *sum = sum.wrapping_add(term).wrapping_sub(counted.term);
            *counted = Counted { counts: now, term };
        });
    }

    /// Returns the digest of a pool. The caller must have called [`Self::settle`].
    pub(crate) fn value(&self, pool: &BlockPool) -> u64 {
        take_in(self.sum, scalars(pool))
    }

    /// Checks D1 for one block. O(1).
    pub(crate) fn check_block(&self, block: BlockId, blocks: Blocks<'_>) -> Result<(), InvariantViolation> {
        let Some(Counted { counts, term }) = self.unchanged(block) else { return Ok(()) };
        let view = blocks.get(block);
        let now = Counts::of(&view);
        let same = counts == now && term == now.term(block, view.content.as_ref());
        ensure(same, "D1 (blocks that no operation changed have the same counts as before)", || {
            format!("{block:?} had {counts:?}, now has {now:?}")
        })
    }

    /// Checks D2. The caller must have called [`Self::settle`]. O(1).
    pub(crate) fn check_sums(&self, pool: &BlockPool) -> Result<(), InvariantViolation> {
        let stats = pool.stats();
        let counted = Totals {
            references: pool.num_references(),
            fences: pool.num_fence_references(),
            held: pool.num_held(),
            fenced: stats.fenced,
            registered: stats.registered,
            contents: self.contents.unwrap_or(self.totals.contents),
        };
        let totals = self.totals;
        ensure(totals == counted, "D2 (the counters of the pool equal the sums over its blocks)", || {
            format!("counters of the pool: {counted:?}, sums over the blocks: {totals:?}")
        })
    }

    /// Checks D1 for all blocks, and that `sum` equals the sum of their terms. O(blocks).
    pub(crate) fn check(&self, blocks: Blocks<'_>) -> Result<(), InvariantViolation> {
        (0..blocks.len() as u32).try_for_each(|block| self.check_block(BlockId::new(block), blocks))?;
        let sum = self.blocks.iter().map(|counted| counted.term).fold(0, u64::wrapping_add);
        ensure(sum == self.sum, "D2 (the sum equals that of all terms)", || {
            format!("{:#x} stored, {sum:#x} found", self.sum)
        })
    }
}

/// Computes the digest of a pool from all of its blocks. O(blocks).
pub(crate) fn from_scratch(pool: &BlockPool) -> u64 {
    let ids = (1..pool.num_blocks() as u32).map(BlockId::new);
    let term = |block| {
        let view = pool.blocks().get(block);
        Counts::of(&view).term(block, view.content.as_ref())
    };
    take_in(ids.map(term).fold(0, u64::wrapping_add), scalars(pool))
}

/// Returns the values of the pool that the digest covers in addition to the blocks. Their order is part
/// of the specification, so it must never change.
fn scalars(pool: &BlockPool) -> [u64; 16] {
    let stats = pool.stats();
    [
        pool.num_blocks() as u64,
        stats.epoch,
        stats.free as u64,
        u64::from(pool.next_free().map_or(0, BlockId::get)),
        stats.cached_free as u64,
        pool.num_held() as u64,
        stats.fenced as u64,
        // Steps are numbered from 0. If no step has completed, the scalar is 0.
        pool.completed_step().map_or(0, |step| step.wrapping_add(1)),
        stats.registered as u64,
        pool.num_hashes() as u64,
        stats.allocated,
        stats.evicted,
        stats.hits,
        stats.misses,
        stats.collisions,
        stats.duplicates_dropped,
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use kvpool::BlockId;

    use super::{Changed, mix, take_in};

    #[test]
    fn changed_blocks_are_those_that_were_noted() {
        // The number of blocks is so large that the set needs more than two words in its list `words`.
        const BLOCKS: u64 = 9000;
        let mut changed = Changed::default();
        changed.grow(100).unwrap();
        changed.grow(BLOCKS as usize).unwrap();
        let mut model = BTreeSet::new();
        for turn in 0..2000 {
            let [first, step, len, then] = [1, 2, 3, 4].map(|salt| mix(turn * 8 + salt));
            let run = (0..len % 100).map(|at| (first % BLOCKS + at * (step % 5)) % BLOCKS);
            let run: Vec<_> = run.map(|id| BlockId::new(id as u32)).collect();
            changed.note(&run);
            // The set ignores block ids that the pool does not have.
            changed.note(&[BlockId::new(u32::MAX)]);
            model.extend(run);
            if then % 50 == 0 {
                changed.note_all();
                model.extend((1..BLOCKS as u32).map(BlockId::new));
            }
            let probe = BlockId::new((then % BLOCKS) as u32);
            assert_eq!(changed.has(probe), model.contains(&probe));
            if then % 3 == 0 {
                let mut taken = Vec::new();
                changed.take(|block| taken.push(block));
                taken.retain(|block| block.index() < BLOCKS as usize);
                assert_eq!(taken, std::mem::take(&mut model).into_iter().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn the_mixer_is_splitmix64() {
        // Published outputs of `SplitMix64`: the first one of seed 0, and the successive ones of seed
        // 1234567.
        assert_eq!(mix(0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(mix(1_234_567), 6_457_827_717_110_365_317);
        assert_eq!(mix(1_234_567_u64.wrapping_add(0x9E37_79B9_7F4A_7C15)), 3_203_168_211_198_807_973);
        assert_eq!(take_in(5, [7, 9]), mix(mix(5 ^ 7) ^ 9));
    }
}
