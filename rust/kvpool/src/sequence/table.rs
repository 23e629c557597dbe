//! `Table` is the block table of one KV-cache group of a sequence.
//!
//! It contains the entries, and records which of them may be shared, which are registered, and which
//! are released. The sequence ([`super::Sequence`]) has the numbers of tokens and of computed tokens,
//! and passes them as arguments.
//!
//! The table *covers* tokens that have slots in its blocks. Usually these are all tokens of the
//! sequence, and lookahead slots after them. If a prompt is admitted in chunks, only the tokens up to
//! the end of the next chunk are covered.
//!
//! Invariants:
//! - S1: the table covers all computed tokens.
//! - S2: the first `trimmed` entries are the null block, except those of attention sinks. No other
//!   entry is the null block.
//! - S3: `published` blocks are full and computed.

use std::fmt;
use std::ops::Range;

use hashbrown::HashMap;

use crate::error::ensure;
use crate::groups::GroupKind;
use crate::hash::HashCursor;
use crate::tiers::{TierError, Tiers};
use crate::{BlockId, BlockPool, InvariantViolation, NULL_BLOCK, PoolError, Until};

/// A change of one block table entry: a new block at the end, a copy that replaces a shared block, or a
/// cached block that replaces a block with the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableChange {
    /// The position in the block table.
    pub index: usize,
    /// The block that is now at this position.
    pub block: BlockId,
    /// The KV-cache group that the table belongs to. 0 if the model has only one group.
    pub group: u16,
}

/// The kind of a table, which determines the meaning of its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One block per `block_tokens` tokens, in order.
    Positions,
    /// The first block contains the recurrent state after the computed tokens, which every step
    /// overwrites. Each further block contains the state after one draft.
    State,
    /// One block per `block_tokens` tokens of an encoder's output. These tokens are not part of the
    /// sequence.
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

/// The block table of one group.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) blocks: Vec<BlockId>,
    /// Tokens per block.
    pub(crate) block_tokens: usize,
    pub(crate) group: u16,
    pub(crate) layout: Layout,
    /// Number of leading blocks that were matched at the admission or committed since. They are
    /// registered, except blocks that the group does not keep cached.
    pub(crate) published: usize,
    /// Number of leading blocks that no later token reads. Attention sinks among them are counted,
    /// although they are not released.
    pub(crate) trimmed: usize,
    /// Number of leading blocks with attention sinks. These blocks are not released while the request
    /// runs.
    sinks: usize,
    /// The value of `trimmed` at admission. The request never had these blocks.
    absent: usize,
    /// Blocks that the request released while it ran and that may still be cached, with their
    /// positions.
    pub(crate) left: Vec<(usize, BlockId)>,
    /// After a fork or a truncation, the first position whose block may be shared or registered
    /// although a later token will be written to it. [`NOT_GUARDED`] if there is no such position.
    pub(crate) guarded: usize,
}

/// The value of `guarded` of a table without guarded positions.
pub(crate) const NOT_GUARDED: usize = usize::MAX;

/// Number of references to each block that a step releases before a growth. A block that has only one
/// user after these releases is written in place. The number is negative if the admissions of a plan
/// take references, because they are committed first.
pub(crate) type GivenUp = HashMap<BlockId, i64>;

/// Returns the number of users of a block after the references in `given_up` are released. The block
/// must not change while it has other users.
pub(super) fn users(pool: &BlockPool, block: BlockId, given_up: &GivenUp) -> i64 {
    i64::from(pool.num_users(block)) - given_up.get(&block).copied().unwrap_or(0)
}

impl Table {
    pub(crate) const fn new(group: u16, layout: Layout, block_tokens: usize) -> Self {
        Self {
            blocks: Vec::new(),
            block_tokens,
            group,
            layout,
            published: 0,
            trimmed: 0,
            sinks: 0,
            absent: 0,
            left: Vec::new(),
            guarded: NOT_GUARDED,
        }
    }

    /// Stores the blocks of an admission. The first `cached` tokens were hit: their blocks are
    /// registered, or the null block at positions that need no block. The first `sinks` blocks are not
    /// released while the request runs.
    pub(crate) fn hold(&mut self, blocks: Vec<BlockId>, cached: usize, sinks: usize) {
        // If the hit starts with the null block, it contains no sinks.
        self.sinks = if blocks.first().is_some_and(|block| block.is_null()) { 0 } else { sinks };
        let nulls = blocks.iter().skip(self.sinks).take_while(|block| block.is_null()).count();
        self.trimmed = if nulls > 0 { self.sinks + nulls } else { 0 };
        self.absent = self.trimmed;
        self.published = if self.layout == Layout::Positions { cached / self.block_tokens } else { 0 };
        self.blocks = blocks;
    }

    /// Returns the positions that contain the null block.
    #[inline]
    pub(crate) fn nulls(&self) -> Range<usize> {
        self.sinks.min(self.trimmed)..self.trimmed
    }

    /// Returns the number of leading positions that were already trimmed at admission.
    pub(crate) const fn absent(&self) -> usize {
        self.absent
    }

    /// Returns the number of tokens for which the table has blocks.
    #[inline]
    pub(crate) fn covered_tokens(&self) -> usize {
        match self.layout {
            Layout::Positions => self.blocks.len() * self.block_tokens,
            Layout::State if self.blocks.is_empty() => 0,
            Layout::State | Layout::Encoder => usize::MAX,
        }
    }

    /// Returns the number of blocks that the table lacks to cover `slots` slots. After the growth, the
    /// sequence has `tokens` tokens; the slots after them are for drafts.
    #[inline]
    pub(crate) fn missing_for(&self, tokens: usize, slots: usize) -> usize {
        match self.layout {
            // In a decode step, most requests need no new block, and this comparison is cheaper than a
            // division.
            Layout::Positions if slots <= self.covered_tokens() => 0,
            Layout::Positions => slots.div_ceil(self.block_tokens).saturating_sub(self.blocks.len()),
            Layout::State => slots.saturating_sub(tokens).saturating_add(1).saturating_sub(self.blocks.len()),
            Layout::Encoder => 0,
        }
    }

    /// Returns the number of blocks that the table of an encoder's output lacks to cover `tokens`
    /// tokens. 0 for other tables.
    pub(crate) fn encoder_missing_for(&self, tokens: usize) -> usize {
        match self.layout {
            Layout::Encoder => tokens.div_ceil(self.block_tokens).saturating_sub(self.blocks.len()),
            Layout::Positions | Layout::State => 0,
        }
    }

    /// Whether a growth to `slots` slots neither takes a block nor registers one. After the growth, the
    /// sequence has `tokens` tokens, of which `computed` are computed.
    #[inline]
    pub(crate) fn needs_no_pool(&self, tokens: usize, slots: usize, computed: Option<usize>) -> bool {
        match self.layout {
            Layout::Positions => {
                self.guarded == NOT_GUARDED
                    && slots <= self.blocks.len() * self.block_tokens
                    && computed.is_none_or(|computed| {
                        computed < (self.published + 1).saturating_mul(self.block_tokens)
                    })
            }
            Layout::State | Layout::Encoder => self.missing_for(tokens, slots) == 0,
        }
    }

    /// Whether the first `computed` tokens fill a block that is not registered yet.
    #[inline]
    pub(crate) fn completes_block(&self, computed: usize) -> bool {
        self.layout == Layout::Positions && computed >= (self.published + 1).saturating_mul(self.block_tokens)
    }

    /// Returns the positions to which a growth from `tokens` tokens to `slots` slots may write, and
    /// whose blocks may be shared or registered.
    #[inline]
    fn guarded_positions(&self, tokens: usize, slots: usize) -> Range<usize> {
        if self.guarded == NOT_GUARDED || slots <= tokens {
            return 0..0;
        }
        let end = slots.div_ceil(self.block_tokens).min(self.blocks.len());
        self.guarded.max(tokens / self.block_tokens).min(end)..end
    }

    /// Returns the blocks that a growth to `slots` slots has to copy, because they are shared or
    /// registered.
    #[inline]
    pub(crate) fn copied<'a>(
        &'a self,
        pool: &'a BlockPool,
        tokens: usize,
        slots: usize,
        given_up: &'a GivenUp,
    ) -> impl Iterator<Item = BlockId> + 'a {
        let must = move |block: &BlockId| users(pool, *block, given_up) > 1 || pool.is_registered(*block);
        self.blocks[self.guarded_positions(tokens, slots)].iter().copied().filter(must)
    }

    /// Returns the start, in tokens, of the first block that must not be written to. Only checks blocks
    /// that contain slots after the first `tokens` tokens.
    pub(crate) fn first_shared(&self, pool: &BlockPool, tokens: usize, slots: usize) -> Option<usize> {
        let none = GivenUp::default();
        let mut guarded = self.guarded_positions(tokens, slots);
        let shared =
            |&at: &usize| users(pool, self.blocks[at], &none) > 1 || pool.is_registered(self.blocks[at]);
        guarded.find(shared).map(|at| at * self.block_tokens)
    }

    /// Allocates blocks so that the table covers `slots` slots. The caller has checked that the blocks
    /// are available. The sequence has `tokens` tokens, and the next step writes the slots after the
    /// first `before`. Blocks that must not be written to are replaced by copies. Changes are appended
    /// to `changes`.
    pub(crate) fn grow(
        &mut self,
        tiers: &mut Tiers,
        tier: usize,
        (before, tokens): (usize, usize),
        slots: usize,
        changes: &mut Vec<TableChange>,
    ) -> Result<(), TierError> {
        if self.guarded != NOT_GUARDED {
            self.unshare(tiers, tier, before, slots, changes)?;
        }
        match self.missing_for(tokens, slots) {
            0 => Ok(()),
            missing => self.allocate(tiers, tier, missing, changes),
        }
    }

    /// Appends `n` new blocks to the table.
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

    /// Replaces the shared or registered blocks that a growth to `slots` slots may write to. A block
    /// after the last token has no content, so it is replaced without a copy.
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

    /// Registers the blocks before position `full`, each under one hash of the cursor's chain. Returns
    /// the number of new registrations. A hash collision ends the call and clears `publishes`.
    pub(crate) fn publish(
        &mut self,
        pool: &mut BlockPool,
        cursor: &HashCursor,
        publishes: &mut bool,
        full: usize,
    ) -> Result<usize, PoolError> {
        let mut count = 0;
        while self.published < full && *publishes {
            // If a fork committed earlier, it may have registered blocks that both requests share.
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

    /// Keeps the blocks of the first `tokens` tokens and releases the others. A table of states keeps
    /// the blocks of drafts only if a step still has drafts.
    pub(crate) fn truncate(
        &mut self,
        tiers: &mut Tiers,
        tier: usize,
        (tokens, has_drafts): (usize, bool),
        until: Until,
    ) -> Result<(), TierError> {
        let keep = match self.layout {
            Layout::Positions => tokens.div_ceil(self.block_tokens),
            Layout::State if !has_drafts => 1,
            Layout::State | Layout::Encoder => return Ok(()),
        };
        let dropped = self.blocks.split_off(keep.min(self.blocks.len()));
        tiers.pool_mut(tier)?.release_table_until(&dropped, until)?;
        self.published = self.published.min(tokens / self.block_tokens);
        Ok(())
    }

    /// Records that the block of the next token may be shared or registered from now on.
    pub(crate) fn guard(&mut self, tokens: usize) {
        if self.layout == Layout::Positions {
            self.guard_from(self.guarded.min(tokens / self.block_tokens));
        }
    }

    /// Guards all positions from `position` on that have a block now: growth then checks whether they
    /// have to be copied. Blocks that the table gets later are not shared.
    fn guard_from(&mut self, position: usize) {
        self.guarded = if position < self.blocks.len() { position } else { NOT_GUARDED };
    }

    /// Returns the positions whose blocks [`Self::trim`] releases if the first `dead` blocks are no
    /// longer needed.
    #[inline]
    pub(crate) fn dying(&self, dead: usize) -> Range<usize> {
        let (from, dead) = (self.trimmed.max(self.sinks), dead.min(self.blocks.len()));
        if self.layout == Layout::Positions && from < dead { from..dead } else { 0..0 }
    }

    /// Releases the first `dead` blocks, except sinks, and replaces them by the null block. Returns the
    /// number of blocks that were released.
    pub(crate) fn trim(&mut self, pool: &mut BlockPool, dead: usize) -> Result<usize, PoolError> {
        let gone = self.dying(dead);
        if gone.is_empty() {
            return Ok(0);
        }
        pool.release_table(&self.blocks[gone.clone()])?;
        for at in gone.clone() {
            let block = std::mem::replace(&mut self.blocks[at], NULL_BLOCK);
            if pool.is_registered(block) {
                self.left.push((at, block));
            }
        }
        self.trimmed = gone.end;
        Ok(gone.len())
    }

    /// Returns the blocks that the table holds: those before its null blocks, and those after them.
    pub(crate) fn held_parts(&self) -> [&[BlockId]; 2] {
        let nulls = self.nulls();
        [&self.blocks[..nulls.start], &self.blocks[nulls.end..]]
    }

    /// Returns the blocks that the table holds.
    pub(crate) fn held(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.held_parts().into_iter().flatten().copied()
    }

    /// Returns the number of blocks that the table holds.
    pub(crate) fn num_held(&self) -> usize {
        self.blocks.len() - self.nulls().len()
    }

    /// Empties the table after its blocks were released.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.left.clear();
        (self.published, self.trimmed, self.absent, self.guarded) = (0, 0, 0, NOT_GUARDED);
    }

    /// Replaces each block by the block to which a completed swap moved it.
    pub(crate) fn moved(&mut self, mapping: &HashMap<BlockId, BlockId>) {
        for block in self.blocks.iter_mut().filter(|block| !block.is_null()) {
            *block = mapping.get(block).copied().unwrap_or(*block);
        }
    }

    /// Checks the invariants S1 and S3. O(1).
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
