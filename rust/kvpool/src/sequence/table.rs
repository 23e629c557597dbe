//! `Table` is the block table of one KV-cache group of a sequence.
//!
//! It contains the table's block ids, and records which blocks may be shared, which are registered, and
//! which were released. The sequence ([`super::Sequence`]) counts the tokens and the computed tokens,
//! and passes these numbers as arguments.
//!
//! A slot is the room for one token in a block. The table *covers* a token if it has a slot for it.
//! Usually it covers all tokens of the sequence, and has slots for drafts after them. If a prompt is
//! admitted in chunks, it covers only the tokens up to the end of the next chunk.
//!
//! Invariants:
//! - S1: the table covers all computed tokens.
//! - S2: the first `trimmed` entries are the null block, except those of attention sinks. No other
//!   entry is the null block.
//! - S3: the first `published` blocks are full and computed.

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

/// The kind of data in the blocks of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// KV of the sequence's tokens: one block per `block_tokens` tokens, in order.
    Positions,
    /// Recurrent states: the first block contains the state after the computed tokens, which every step
    /// overwrites. Each further block contains the state after one draft.
    State,
    /// KV of an encoder's output: one block per `block_tokens` tokens. These tokens are not part of the
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

#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) blocks: Vec<BlockId>,
    /// Tokens per block.
    pub(crate) block_tokens: usize,
    pub(crate) group: u16,
    pub(crate) layout: Layout,
    /// Number of leading blocks that were matched at the admission or filled by committed tokens since.
    /// They are registered, unless the group does not keep them cached.
    pub(crate) published: usize,
    /// Number of leading blocks that no later token reads. It includes the blocks with attention sinks,
    /// although these are not released.
    pub(crate) trimmed: usize,
    /// Number of leading blocks with attention sinks (the first tokens, which every token reads). These
    /// blocks are not released while the request runs.
    sinks: usize,
    /// The value of `trimmed` at the admission: the request never had blocks at these positions.
    absent: usize,
    /// Positions and ids of blocks that the request has released since its admission, and that may
    /// still be cached.
    pub(crate) left: Vec<(usize, BlockId)>,
    /// After a fork or a truncation, the first position whose block may be shared or registered
    /// although a later token will be written to it. [`NOT_GUARDED`] if there is no such position.
    pub(crate) guarded: usize,
}

/// The value of `guarded` of a table without guarded positions.
pub(crate) const NOT_GUARDED: usize = usize::MAX;

/// The smallest number of entries by which the memory of a table grows.
const LEAST_GROWTH: usize = 32;

/// For each block, the number of references that other operations of the same step release before this
/// request grows. If only one user remains, the request writes to the block in place. The number is
/// negative if planned admissions take references, because they are committed first.
pub(crate) type GivenUp = HashMap<BlockId, i64>;

/// Returns the number of users that a block will have after the references in `given_up` are released.
/// A block must not be written to while it has several users.
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

    /// Stores the blocks of an admission. The first `cached` tokens were hit. Their blocks are
    /// registered; positions that need no block contain the null block. The first `sinks` blocks are
    /// not released while the request runs.
    pub(crate) fn hold(&mut self, blocks: Vec<BlockId>, cached: usize, sinks: usize) {
        // If the first entry is the null block, the table has no blocks for attention sinks.
        self.sinks = if blocks.first().is_some_and(|block| block.is_null()) { 0 } else { sinks };
        let nulls = blocks.iter().skip(self.sinks).take_while(|block| block.is_null()).count();
        self.trimmed = if nulls > 0 { self.sinks + nulls } else { 0 };
        self.absent = self.trimmed;
        self.published = if self.layout == Layout::Positions { cached / self.block_tokens } else { 0 };
        self.blocks = blocks;
    }

    #[inline]
    pub(crate) fn nulls(&self) -> Range<usize> {
        self.sinks.min(self.trimmed)..self.trimmed
    }

    /// Returns the number of leading positions that were already trimmed at admission.
    pub(crate) const fn absent(&self) -> usize {
        self.absent
    }

    #[inline]
    pub(crate) fn covered_tokens(&self) -> usize {
        match self.layout {
            Layout::Positions => self.blocks.len() * self.block_tokens,
            Layout::State if self.blocks.is_empty() => 0,
            Layout::State | Layout::Encoder => usize::MAX,
        }
    }

    /// Returns the number of blocks to allocate so that the table covers `slots` slots. The sequence
    /// will have `tokens` tokens; the slots after them are for drafts.
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

    /// Returns the number of blocks to allocate so that the table of an encoder's output has room for
    /// `tokens` tokens. 0 for other tables.
    pub(crate) fn encoder_missing_for(&self, tokens: usize) -> usize {
        match self.layout {
            Layout::Encoder => tokens.div_ceil(self.block_tokens).saturating_sub(self.blocks.len()),
            Layout::Positions | Layout::State => 0,
        }
    }

    /// Whether an append can be done without the pool: it needs no new block, registers none and copies
    /// none. After it, the sequence has `tokens` tokens and `slots` slots, and `computed` tokens are
    /// computed.
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

    /// Whether some of the table's blocks may be shared or registered although a later token will be
    /// written to them.
    #[inline]
    pub(crate) const fn is_guarded(&self) -> bool {
        self.guarded != NOT_GUARDED
    }

    /// Adds a new block at the end. The list grows by several blocks at a time, so that short tables
    /// are not moved at every few blocks.
    #[inline]
    pub(crate) fn push(&mut self, block: BlockId) {
        if self.blocks.len() == self.blocks.capacity() {
            self.blocks.reserve(LEAST_GROWTH);
        }
        self.blocks.push(block);
    }

    /// Whether the first `computed` tokens fill a block that is not registered yet.
    #[inline]
    pub(crate) fn completes_block(&self, computed: usize) -> bool {
        self.layout == Layout::Positions && computed >= (self.published + 1).saturating_mul(self.block_tokens)
    }

    /// Returns the positions whose blocks the slots from `tokens` to `slots` belong to, as far as these
    /// blocks may be shared or registered.
    #[inline]
    fn guarded_positions(&self, tokens: usize, slots: usize) -> Range<usize> {
        if self.guarded == NOT_GUARDED || slots <= tokens {
            return 0..0;
        }
        let end = slots.div_ceil(self.block_tokens).min(self.blocks.len());
        self.guarded.max(tokens / self.block_tokens).min(end)..end
    }

    /// Returns the shared or registered blocks that contain slots from `tokens` to `slots`. The request
    /// has to copy them before it writes to these slots.
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

    /// Returns the first token of the first block that must not be written to, because it is shared or
    /// registered. Only checks the blocks of the slots from `tokens` to `slots`.
    pub(crate) fn first_shared(&self, pool: &BlockPool, tokens: usize, slots: usize) -> Option<usize> {
        let none = GivenUp::default();
        let mut guarded = self.guarded_positions(tokens, slots);
        let shared =
            |&at: &usize| users(pool, self.blocks[at], &none) > 1 || pool.is_registered(self.blocks[at]);
        guarded.find(shared).map(|at| at * self.block_tokens)
    }

    /// Allocates blocks so that the table covers `slots` slots. The caller has checked that the blocks
    /// are available. The sequence has `tokens` tokens, and the next step writes the slots from
    /// `before` on. Shared or registered blocks among them are replaced by copies. Changes are appended
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

    /// Replaces the shared or registered blocks that contain slots from `tokens` to `slots`. If such a
    /// block contains no earlier tokens, a new block replaces it and nothing is copied.
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
    /// the number of blocks registered. A hash collision ends the call and sets `publishes` to false.
    pub(crate) fn publish(
        &mut self,
        pool: &mut BlockPool,
        cursor: &HashCursor,
        publishes: &mut bool,
        full: usize,
    ) -> Result<usize, PoolError> {
        let mut count = 0;
        while self.published < full && *publishes {
            // Blocks may be registered already, by a fork that shares them and has committed first.
            let rest = &self.blocks[self.published..full];
            let known = rest.iter().take_while(|&&block| pool.is_registered(block)).count();
            self.published += known;
            let rest = &rest[known..];
            let new = rest.iter().position(|&block| pool.is_registered(block)).unwrap_or(rest.len());
            let before = self.published.checked_sub(1).map(|last| self.blocks[last]);
            let registered = pool.register_after(before, &rest[..new], cursor.chain(), self.published)?;
            pool.mark_computed(&rest[..registered.blocks])?;
            self.published += registered.blocks;
            count += registered.blocks;
            *publishes = !registered.collided;
        }
        Ok(count)
    }

    /// Keeps the blocks of the first `tokens` tokens and releases the others. A table of recurrent
    /// states keeps the blocks for the states after drafts only with `has_drafts`.
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

    /// Records that the block of the next token and all later blocks may be shared or registered. Later
    /// growth then checks whether it has to copy them.
    pub(crate) fn guard(&mut self, tokens: usize) {
        if self.layout == Layout::Positions {
            self.guard_from(self.guarded.min(tokens / self.block_tokens));
        }
    }

    /// Sets `guarded` to `position`, if there is a block at this position. Blocks that the table gets
    /// later are not shared.
    fn guard_from(&mut self, position: usize) {
        self.guarded = if position < self.blocks.len() { position } else { NOT_GUARDED };
    }

    /// Returns the positions that [`Self::trim`] releases if no later token reads the first `dead`
    /// blocks.
    #[inline]
    pub(crate) fn dying(&self, dead: usize) -> Range<usize> {
        let (from, dead) = (self.trimmed.max(self.sinks), dead.min(self.blocks.len()));
        if self.layout == Layout::Positions && from < dead { from..dead } else { 0..0 }
    }

    /// Releases the first `dead` blocks, except those with attention sinks, and replaces them by the
    /// null block. Returns the number of released blocks.
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

    /// Returns the blocks of the table in two parts: before its null blocks, and after them.
    pub(crate) fn held_parts(&self) -> [&[BlockId]; 2] {
        let nulls = self.nulls();
        [&self.blocks[..nulls.start], &self.blocks[nulls.end..]]
    }

    pub(crate) fn held(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.held_parts().into_iter().flatten().copied()
    }

    pub(crate) fn num_held(&self) -> usize {
        self.blocks.len() - self.nulls().len()
    }

    /// Removes all entries. The caller has released the blocks.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
        self.left.clear();
        (self.published, self.trimmed, self.absent, self.guarded) = (0, 0, 0, NOT_GUARDED);
    }

    /// Replaces each block by the block of the other tier that a completed swap has copied it to.
    pub(crate) fn moved(&mut self, mapping: &HashMap<BlockId, BlockId>) {
        for block in self.blocks.iter_mut().filter(|block| !block.is_null()) {
            *block = mapping.get(block).copied().unwrap_or(*block);
        }
    }

    /// Checks that all computed tokens have blocks (S1), and that the first `published` blocks are full
    /// and computed (S3). O(1).
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
