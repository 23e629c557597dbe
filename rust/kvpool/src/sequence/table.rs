//! `Table`: the block table of one KV-cache group of a sequence.
//!
//! Owns: the entries, and which of them may be shared, are registered, or are given up. How many tokens there are, and what of them is
//! computed, is the sequence's ([`super::Sequence`]), which passes it in.
//!
//! The table *covers* its first tokens: all of them and lookahead slots beyond, or, of a prompt that is admitted in chunks, those that
//! are computed and the chunk that comes next.
//!
//! Invariants: S1: the table covers all computed tokens; S2: the first `trimmed` entries, and no others, are the null block; S3:
//! `published` blocks are full and computed.

use std::fmt;
use std::ops::Range;

use hashbrown::HashMap;

use crate::tiers::{TierError, Tiers};
use kvpool_core::groups::GroupKind;
use kvpool_core::hash::HashCursor;
use kvpool_core::parts::ensure;
use kvpool_core::{BlockId, BlockPool, InvariantViolation, NULL_BLOCK, PoolError, Until};

/// A position of a block table that holds another block now: a new one at the end, a copy in the place of a shared block, or
/// a cached block in the place of an equal one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableChange {
    /// Position in the block table.
    pub index: usize,
    /// The block that is there now.
    pub block: BlockId,
    /// The KV-cache group whose table that is: 0 where there is one.
    pub group: u16,
}

/// What the entries of a table are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One block per `block_tokens` tokens, in order.
    Positions,
    /// One block: the state behind the computed tokens, which every step writes.
    State,
    /// One block per `block_tokens` tokens of an encoder's output, which are none of the sequence's.
    Encoder,
}

impl Layout {
    pub(crate) const fn of(kind: GroupKind) -> Self {
        match kind {
            GroupKind::State => Self::State,
            GroupKind::Cross => Self::Encoder,
            _ => Self::Positions,
        }
    }
}

/// The blocks of a group.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) blocks: Vec<BlockId>,
    /// Tokens per block.
    pub(crate) block_tokens: usize,
    pub(crate) group: u16,
    pub(crate) layout: Layout,
    /// Leading blocks that are in the index, or of no use there: matched at admission, or committed since.
    pub(crate) published: usize,
    /// Leading blocks that no token to come reads.
    pub(crate) trimmed: usize,
    /// The first position whose block may be shared or registered though tokens to come are written to it: after a fork or a
    /// truncation. [`NOT_GUARDED`] if there is none.
    pub(crate) guarded: usize,
}

/// No position of a table is guarded.
pub(crate) const NOT_GUARDED: usize = usize::MAX;

/// References that planned appends give up: the last holder of a block writes in place.
pub(crate) type GivenUp = HashMap<BlockId, u32>;

impl Table {
    pub(crate) const fn new(group: u16, layout: Layout, block_tokens: usize) -> Self {
        let blocks = Vec::new();
        Self { blocks, block_tokens, group, layout, published: 0, trimmed: 0, guarded: NOT_GUARDED }
    }

    /// Holds the blocks of an admission. The first `cached` tokens were hit: their blocks are registered, or null where nothing is
    /// needed.
    pub(crate) fn hold(&mut self, blocks: Vec<BlockId>, cached: usize) {
        self.trimmed = blocks.iter().take_while(|block| block.is_null()).count();
        self.published = if self.layout == Layout::Positions { cached / self.block_tokens } else { 0 };
        self.blocks = blocks;
    }

    /// Tokens that it has blocks for.
    #[inline]
    pub(crate) fn covered_tokens(&self) -> usize {
        match self.layout {
            Layout::Positions => self.blocks.len() * self.block_tokens,
            Layout::State if self.blocks.is_empty() => 0,
            Layout::State | Layout::Encoder => usize::MAX,
        }
    }

    /// Blocks that it lacks to cover `slots`.
    #[inline]
    pub(crate) fn missing_for(&self, slots: usize) -> usize {
        // Most rows of a decode step lack none: a comparison is cheaper than a division.
        if slots <= self.covered_tokens() {
            return 0;
        }
        match self.layout {
            Layout::Positions => slots.div_ceil(self.block_tokens).saturating_sub(self.blocks.len()),
            Layout::State => 1,
            Layout::Encoder => 0,
        }
    }

    /// Blocks that it lacks for so many tokens of an encoder's output, if that is what it holds.
    pub(crate) fn encoder_missing_for(&self, tokens: usize) -> usize {
        match self.layout {
            Layout::Encoder => tokens.div_ceil(self.block_tokens).saturating_sub(self.blocks.len()),
            Layout::Positions | Layout::State => 0,
        }
    }

    /// Whether a growth to `slots`, with so many tokens computed then, neither takes a block nor registers one.
    #[inline]
    pub(crate) fn needs_no_pool(&self, slots: usize, computed: Option<usize>) -> bool {
        self.guarded == NOT_GUARDED
            && slots <= self.covered_tokens()
            && computed.is_none_or(|computed| !self.completes_block(computed))
    }

    /// Whether the first `computed` tokens fill a block that is not published.
    #[inline]
    pub(crate) fn completes_block(&self, computed: usize) -> bool {
        self.layout == Layout::Positions && computed >= (self.published + 1).saturating_mul(self.block_tokens)
    }

    /// Blocks that a growth to `slots`, behind `tokens` tokens, may write to and that may be shared or registered.
    #[inline]
    fn guarded_positions(&self, tokens: usize, slots: usize) -> Range<usize> {
        if self.guarded == NOT_GUARDED || slots <= tokens {
            return 0..0;
        }
        let end = slots.div_ceil(self.block_tokens).min(self.blocks.len());
        self.guarded.min(end)..end
    }

    /// Blocks that a growth to `slots` must not write to.
    #[inline]
    pub(crate) fn copied<'a>(
        &'a self,
        pool: &'a BlockPool,
        tokens: usize,
        slots: usize,
        given_up: &'a GivenUp,
    ) -> impl Iterator<Item = BlockId> + 'a {
        let users = |block| pool.num_users(block) - given_up.get(&block).copied().unwrap_or(0);
        let must = move |block: &BlockId| users(*block) > 1 || pool.is_registered(*block);
        self.blocks[self.guarded_positions(tokens, slots)].iter().copied().filter(must)
    }

    /// Of those the ones that would be copied even if nobody else held anything.
    pub(crate) fn num_registered_guarded(&self, pool: &BlockPool, tokens: usize, slots: usize) -> usize {
        let guarded = &self.blocks[self.guarded_positions(tokens, slots)];
        guarded.iter().filter(|&&block| pool.is_registered(block)).count()
    }

    /// Covers `slots`, after a check that the blocks are there. What it must not write to is replaced. Changes go to `changes`.
    pub(crate) fn grow(
        &mut self,
        tiers: &mut Tiers,
        tier: usize,
        tokens: usize,
        slots: usize,
        changes: &mut Vec<TableChange>,
    ) -> Result<(), TierError> {
        if self.guarded != NOT_GUARDED {
            self.unshare(tiers, tier, tokens, slots, changes)?;
        }
        match self.missing_for(slots) {
            0 => Ok(()),
            missing => self.allocate(tiers, tier, missing, changes),
        }
    }

    /// Puts so many new blocks behind those that it has.
    pub(crate) fn allocate(
        &mut self,
        tiers: &mut Tiers,
        tier: usize,
        n: usize,
        changes: &mut Vec<TableChange>,
    ) -> Result<(), TierError> {
        let (index, group) = (self.blocks.len(), self.group);
        tiers.pool_mut(tier)?.allocate_into(n, &mut self.blocks)?;
        let new = self.blocks[index..].iter().enumerate();
        changes.extend(new.map(|(at, &block)| TableChange { index: index + at, block, group }));
        Ok(())
    }

    /// Makes the blocks that a growth to `slots` may write to writable. A block behind the last token holds nothing to copy.
    #[cold]
    fn unshare(
        &mut self,
        tiers: &mut Tiers,
        tier: usize,
        tokens: usize,
        slots: usize,
        changes: &mut Vec<TableChange>,
    ) -> Result<(), TierError> {
        let guarded = self.guarded_positions(tokens, slots);
        for index in guarded.clone() {
            let shared = self.blocks[index];
            if tiers.is_writable(tier, shared)? {
                continue;
            }
            let own = if index * self.block_tokens < tokens {
                tiers.copy_on_write(tier, shared)?
            } else {
                let pool = tiers.pool_mut(tier)?;
                let fresh = pool.allocate(1)?[0];
                pool.release(&[shared])?;
                fresh
            };
            self.blocks[index] = own;
            changes.push(TableChange { index, block: own, group: self.group });
        }
        if !guarded.is_empty() {
            self.guard_from(guarded.end);
        }
        Ok(())
    }

    /// Registers the blocks up to `full` under the hashes of a chain in units of blocks. Returns how many; a collision ends it.
    pub(crate) fn publish(
        &mut self,
        pool: &mut BlockPool,
        cursor: &HashCursor,
        publishes: &mut bool,
        full: usize,
    ) -> Result<usize, PoolError> {
        let mut count = 0;
        while self.published < full && *publishes {
            // A fork that committed first has registered what both hold.
            let rest = &self.blocks[self.published..full];
            let known = rest.iter().take_while(|&&block| pool.is_registered(block)).count();
            self.published += known;
            let rest = &rest[known..];
            let new = rest.iter().position(|&block| pool.is_registered(block)).unwrap_or(rest.len());
            let registered = pool.register(&rest[..new], cursor.chain(), self.published)?;
            pool.mark_computed(&rest[..registered.blocks])?;
            self.published += registered.blocks;
            count += registered.blocks;
            *publishes = !registered.collided;
        }
        Ok(count)
    }

    /// Keeps the blocks of the first `tokens` tokens.
    pub(crate) fn truncate(
        &mut self,
        tiers: &mut Tiers,
        tier: usize,
        tokens: usize,
        until: Until,
    ) -> Result<(), TierError> {
        if self.layout != Layout::Positions {
            return Ok(());
        }
        let keep = tokens.div_ceil(self.block_tokens);
        let dropped = self.blocks.split_off(keep.min(self.blocks.len()));
        tiers.pool_mut(tier)?.release_table_until(&dropped, until)?;
        self.published = self.published.min(tokens / self.block_tokens);
        Ok(())
    }

    /// Notes that the block of the token behind the last one may be shared or registered from now on.
    pub(crate) fn guard(&mut self, tokens: usize) {
        if self.layout == Layout::Positions {
            self.guard_from(self.guarded.min(tokens / self.block_tokens));
        }
    }

    /// Blocks behind the table are its own once it has them.
    fn guard_from(&mut self, position: usize) {
        self.guarded = if position < self.blocks.len() { position } else { NOT_GUARDED };
    }

    /// Gives the first `dead` blocks up; the null block takes their places. Returns how many there were.
    pub(crate) fn trim(&mut self, pool: &mut BlockPool, dead: usize) -> Result<usize, PoolError> {
        let dead = dead.min(self.blocks.len());
        if dead <= self.trimmed || self.layout != Layout::Positions {
            return Ok(0);
        }
        let gone = self.trimmed..dead;
        pool.release_table(&self.blocks[gone.clone()])?;
        self.blocks[gone.clone()].fill(NULL_BLOCK);
        self.trimmed = dead;
        Ok(gone.len())
    }

    /// The blocks that it holds: those that are not trimmed.
    pub(crate) fn held(&self) -> &[BlockId] {
        &self.blocks[self.trimmed..]
    }

    /// Its blocks are given up.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        (self.published, self.trimmed, self.guarded) = (0, 0, NOT_GUARDED);
    }

    /// Takes the blocks that a completed swap moved it to.
    pub(crate) fn moved(&mut self, mapping: &HashMap<BlockId, BlockId>) {
        for block in &mut self.blocks[self.trimmed..] {
            *block = mapping.get(block).copied().unwrap_or(*block);
        }
    }

    /// S1 and S3. O(1).
    pub(crate) fn check_counts(
        &self,
        name: &dyn fmt::Display,
        computed: usize,
    ) -> Result<(), InvariantViolation> {
        let enough = computed <= self.covered_tokens() && self.trimmed <= self.blocks.len();
        ensure(enough, "S1 (a table covers all computed tokens)", || {
            format!(
                "{name} has {} blocks of group {} for {computed} computed tokens",
                self.blocks.len(),
                self.group
            )
        })?;
        let sound = self.layout != Layout::Positions || self.published * self.block_tokens <= computed;
        ensure(sound, "S3 (published blocks are computed)", || {
            format!("{name}: {} published in group {}, {computed} computed", self.published, self.group)
        })
    }
}
