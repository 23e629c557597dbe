//! `Sequence`: tokens, and a block table per KV-cache group with a mutable tail.
//!
//! The tokens and tables of one request of [`crate::CacheManager`]. A method checks before it changes
//! anything; a method whose doc says "after a check" relies on the check of its caller.
//! [`super::grouped`] adds what several groups need.

use std::fmt;

use hashbrown::HashMap;

use super::grouped::Grouped;
use super::staged::Staged;
use super::table::{GivenUp, Layout, NOT_GUARDED, Table, TableChange, users};
use crate::error::ensure;
use crate::hash::HashCursor;
use crate::record::MAX_POSITIONS;
use crate::tiers::{SwapId, TierError, Tiers, out_of_blocks};
use crate::{BlockId, BlockPool, InvariantViolation, Name, PoolError, Until};

/// What a growth takes.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    /// Blocks: missing ones, and copies.
    pub(crate) blocks: usize,
    /// Blocks that are copied, for they must not be written to. The growth gives them up.
    pub(crate) copied: Vec<BlockId>,
    /// So many of them are registered, and nobody else holds them.
    pub(crate) avoidable: usize,
    /// Such blocks that are written to in place instead, because there are no blocks for copies.
    pub(crate) overwritten: Vec<BlockId>,
}

/// Tokens and where their KV is.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    /// Its tokens and the hash chain of its full blocks.
    pub(crate) cursor: HashCursor,
    /// The block table of the first group.
    pub(crate) main: Table,
    /// The tier whose blocks these are.
    pub(crate) tier: usize,
    /// Tokens whose KV is written, cached ones included.
    pub(crate) computed_tokens: usize,
    /// False after a hash collision: nothing behind the colliding block can be reached by a lookup.
    pub(crate) publishes: bool,
    /// The swap that moves it now.
    pub(crate) swap: Option<SwapId>,
    /// The other groups, and what each of them keeps; `None` with one group of full attention.
    pub(crate) grouped: Option<Box<Grouped>>,
}

impl Sequence {
    /// A sequence without blocks.
    pub(crate) fn new(cursor: HashCursor, grouped: Option<Box<Grouped>>) -> Self {
        let (layout, block_tokens) = match &grouped {
            Some(grouped) => grouped.first(),
            None => (Layout::Positions, cursor.hasher().block_size()),
        };
        Self {
            cursor,
            main: Table::new(0, layout, block_tokens),
            tier: 0,
            computed_tokens: 0,
            publishes: true,
            swap: None,
            grouped,
        }
    }

    /// Holds the blocks of an admission.
    pub(crate) fn hold(&mut self, staged: &Staged) {
        self.computed_tokens = staged.cached_tokens;
        match (&mut self.grouped, staged.tables.split_first()) {
            (Some(grouped), Some((first, others))) => {
                grouped.hold(&mut self.main, first, staged.cached_tokens);
                let mut tables = std::mem::take(&mut grouped.others);
                for (table, staged_table) in tables.iter_mut().zip(others) {
                    grouped.hold(table, staged_table, staged.cached_tokens);
                }
                grouped.others = tables;
                grouped.admitted(self.cursor.num_tokens(), staged);
            }
            _ => self.main.hold(staged.found.blocks.clone(), staged.cached_tokens, 0),
        }
    }

    /// Its tables, in the order of the groups.
    #[inline]
    pub(crate) fn tables(&self) -> impl DoubleEndedIterator<Item = &Table> {
        std::iter::once(&self.main).chain(self.grouped.iter().flat_map(|grouped| &grouped.others))
    }

    pub(super) fn tables_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Table> {
        std::iter::once(&mut self.main).chain(self.grouped.iter_mut().flat_map(|grouped| &mut grouped.others))
    }

    /// Entries of all tables together.
    pub(crate) fn num_entries(&self) -> usize {
        self.tables().map(|table| table.blocks.len()).sum()
    }

    #[inline]
    pub(crate) fn num_tokens(&self) -> usize {
        self.cursor.num_tokens()
    }

    /// What an observer counts of it: blocks that are published; with several groups hash units whose
    /// KV is written.
    #[inline]
    pub(crate) fn num_published(&self) -> usize {
        match &self.grouped {
            None => self.main.published,
            Some(grouped) => grouped.units(self.computed_tokens),
        }
    }

    /// Tokens that every table has blocks for.
    #[inline]
    pub(crate) fn covered_tokens(&self) -> usize {
        match &self.grouped {
            None => self.main.covered_tokens(),
            Some(grouped) => grouped.covered_tokens(&self.main),
        }
    }

    /// Tokens that a step may have computed: those that have blocks, drafts in blocks that nobody else
    /// may see change.
    pub(crate) fn computable_tokens(&self, pool: &BlockPool) -> usize {
        let (tokens, covered) = (self.num_tokens(), self.covered_tokens());
        let shared = self.tables().filter_map(|table| table.first_shared(pool, tokens, covered));
        covered.min(shared.min().map_or(covered, |first| first.max(tokens)))
    }

    /// Slots that a growth to `slots` covers, with `more` tokens: whatever falls into blocks that there
    /// are is covered.
    #[inline]
    pub(crate) fn slots_for(&self, more: usize, slots: usize) -> usize {
        slots.max(self.covered_tokens().min(self.num_tokens() + more))
    }

    /// Whether a growth to `slots`, with so many tokens and so many of them computed then, changes
    /// nothing but tokens and counts.
    #[inline]
    pub(crate) fn needs_no_pool(&self, tokens: usize, slots: usize, computed: Option<usize>) -> bool {
        let before = self.computed_tokens;
        self.main.needs_no_pool(tokens, slots, computed)
            && self
                .grouped
                .as_ref()
                .is_none_or(|grouped| grouped.needs_no_pool(&self.main, (tokens, slots), computed, before))
    }

    /// That growth.
    #[inline]
    pub(crate) fn grow_in_place(&mut self, tokens: &[u32], slots: usize, computed: Option<usize>) {
        self.cursor.append(tokens);
        if let Some(grouped) = &mut self.grouped {
            let all = self.cursor.num_tokens();
            if let Some(computed) = computed {
                grouped.note_committed(computed);
            }
            grouped.note_covered(all, slots, computed.unwrap_or(self.computed_tokens));
        }
        self.computed_tokens = computed.unwrap_or(self.computed_tokens);
    }

    /// What a growth to `slots` takes, with so many tokens then, and of these `computed`. `given_up`
    /// are references that others give up before.
    #[inline]
    pub(crate) fn needs(
        &self,
        pool: &BlockPool,
        (tokens, computed): (usize, Option<usize>),
        slots: usize,
        given_up: &GivenUp,
    ) -> Needs {
        // What accepted drafts have written is not written again.
        let before = self.num_tokens().max(computed.unwrap_or(0));
        let mut needs = Needs::default();
        for table in self.tables() {
            needs.blocks = needs.blocks.saturating_add(table.missing_for(tokens, slots));
            if table.guarded != NOT_GUARDED {
                let first = needs.copied.len();
                needs.copied.extend(table.copied(pool, before, slots, given_up));
                let alone = |block: &&BlockId| users(pool, **block, given_up) == 1;
                needs.avoidable += needs.copied[first..].iter().filter(alone).count();
            }
        }
        needs.blocks = needs.blocks.saturating_add(needs.copied.len());
        needs
    }

    /// Notes the references that a commit of so many tokens gives up.
    pub(crate) fn note_dying(&self, computed: usize, given_up: &mut GivenUp) {
        let Some(grouped) = &self.grouped else { return };
        for table in self.tables() {
            for &block in &table.blocks[grouped.dying(table, computed)] {
                *given_up.entry(block).or_default() += 1;
            }
        }
    }

    /// Whether a growth to `slots`, with so many tokens and so many of them computed then, would fit a
    /// pool that has nothing else to hold.
    pub(crate) fn fits_alone(
        &self,
        pool: &BlockPool,
        tokens: usize,
        slots: usize,
        computed: Option<usize>,
    ) -> bool {
        let all = self.tables().fold(0_usize, |sum, table| {
            let dying = self.grouped.as_ref().zip(computed);
            let dying = dying.map_or(0, |(grouped, computed)| grouped.dying(table, computed).len());
            sum.saturating_add(table.missing_for(tokens, slots)).saturating_add(table.num_held() - dying)
        });
        all <= pool.num_usable()
    }

    /// Checks that what a growth to `slots`, with so many tokens then, takes is among `available`
    /// blocks. Returns what it takes.
    pub(crate) fn check_growth(
        &self,
        pool: &BlockPool,
        tokens: usize,
        slots: usize,
        available: usize,
        given_up: &GivenUp,
    ) -> Result<Needs, PoolError> {
        let mut needs = self.needs(pool, (tokens, None), slots, given_up);
        if needs.blocks <= available {
            return Ok(needs);
        }
        if needs.blocks - needs.avoidable > available {
            let fits = self.fits_alone(pool, tokens, slots, None);
            return Err(out_of_blocks(pool, needs.blocks - needs.avoidable, available, fits));
        }
        let copied = std::mem::take(&mut needs.copied).into_iter();
        (needs.copied, needs.overwritten) = copied.partition(|&block| users(pool, block, given_up) > 1);
        needs.blocks -= needs.avoidable;
        Ok(needs)
    }

    /// Forgets the contents of registered blocks that a growth to `slots`, behind `before` tokens,
    /// writes to and nobody else holds: it needs no copies of them.
    pub(crate) fn forget_guarded(
        &self,
        pool: &mut BlockPool,
        before: usize,
        slots: usize,
    ) -> Result<(), PoolError> {
        let none = GivenUp::default();
        let guarded = |table: &Table| table.copied(pool, before, slots, &none).collect::<Vec<_>>();
        let mut own: Vec<_> = self.tables().flat_map(guarded).collect();
        own.retain(|&block| pool.num_users(block) == 1);
        pool.drop_cached(&own).map(drop)
    }

    /// Appends tokens, which have no blocks yet.
    #[inline]
    pub(crate) fn append(&mut self, tokens: &[u32]) {
        self.cursor.append(tokens);
    }

    /// Covers `slots`, after a check that the blocks of [`Self::needs`] are available, of a sequence
    /// whose slots behind the first `before` are to be written. What it must not write to is replaced.
    /// Changes of the tables go to `changes`.
    pub(crate) fn grow(
        &mut self,
        tiers: &mut Tiers,
        before: usize,
        slots: usize,
        changes: &mut Vec<TableChange>,
    ) -> Result<(), TierError> {
        let (tier, tokens) = (self.tier, (before, self.num_tokens()));
        self.main.grow(tiers, tier, tokens, slots, changes)?;
        if let Some(grouped) = &mut self.grouped {
            grouped
                .others
                .iter_mut()
                .try_for_each(|table| table.grow(tiers, tier, tokens, slots, changes))?;
            grouped.note_covered(tokens.1, slots, self.computed_tokens);
        }
        Ok(())
    }

    /// Sets the number of computed tokens, after a check, and registers the blocks that they fill.
    /// Returns how many blocks it registered: not those that a fork registered, or that were registered
    /// before a truncation. Positions that no index can note are never published. With several groups,
    /// `changes` gets the entries of tables of states that moved.
    #[inline]
    pub(crate) fn commit(
        &mut self,
        pool: &mut BlockPool,
        computed_tokens: usize,
        changes: Option<&mut Vec<TableChange>>,
    ) -> Result<usize, PoolError> {
        self.computed_tokens = computed_tokens;
        if self.grouped.is_some() {
            return self.commit_groups(pool, changes);
        }
        if !self.main.completes_block(computed_tokens) {
            return Ok(0);
        }
        let full = (computed_tokens / self.main.block_tokens).min(MAX_POSITIONS);
        if full <= self.main.published || !self.publishes || self.cursor.epoch() != pool.epoch() {
            return Ok(0);
        }
        self.main.publish(pool, &self.cursor, &mut self.publishes, full)
    }

    /// The fewest tokens that it can keep, for what those behind would read is given up, and how many
    /// there are.
    pub(crate) fn lengths(&self) -> (usize, usize) {
        let least = match &self.grouped {
            None => self.main.trimmed * self.main.block_tokens,
            Some(grouped) => grouped.least_length(&self.main, self.computed_tokens),
        };
        (least, self.num_tokens())
    }

    /// Keeps the first `num_tokens` tokens, after a check of [`Self::lengths`], and releases the blocks
    /// behind them.
    pub(crate) fn truncate(
        &mut self,
        tiers: &mut Tiers,
        num_tokens: usize,
        until: Until,
    ) -> Result<(), TierError> {
        let tier = self.tier;
        let has_drafts = self.grouped.as_mut().is_some_and(|grouped| grouped.note_truncated(num_tokens));
        self.tables_mut()
            .try_for_each(|table| table.truncate(tiers, tier, (num_tokens, has_drafts), until))?;
        self.cursor.truncate(num_tokens).map_err(PoolError::from)?;
        self.computed_tokens = self.computed_tokens.min(num_tokens);
        self.guard();
        Ok(())
    }

    /// Notes that the blocks of the next token may be shared or registered from now on.
    fn guard(&mut self) {
        let tokens = self.num_tokens();
        self.tables_mut().for_each(|table| table.guard(tokens));
    }

    /// Releases the blocks that lie wholly more than `window` tokens before the computed end. Returns
    /// how many.
    pub(crate) fn trim(&mut self, tiers: &mut Tiers, window: usize) -> Result<usize, TierError> {
        let outside = self.computed_tokens.saturating_sub(window) / self.main.block_tokens;
        Ok(self.main.trim(tiers.pool_mut(self.tier)?, outside)?)
    }

    /// A second sequence that shares every block, after a check of [`Self::blocks_of_fork`].
    pub(crate) fn fork(&mut self, tiers: &mut Tiers) -> Result<Self, TierError> {
        if self.grouped.is_some() {
            return self.fork_groups(tiers);
        }
        for held in self.main.held_parts() {
            tiers.pool_mut(self.tier)?.acquire(held)?;
        }
        self.guard();
        Ok(self.clone())
    }

    /// The other sequence of a fork that holds what it shares.
    pub(super) fn guarded_clone(&mut self) -> Self {
        self.guard();
        self.clone()
    }

    /// The blocks that it holds, one entry per reference: those that are not trimmed.
    pub(crate) fn held(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.tables().flat_map(Table::held)
    }

    /// How many there are. O(groups).
    pub(crate) fn num_held(&self) -> usize {
        self.tables().map(Table::num_held).sum()
    }

    /// Gives up all blocks, tail first, or hands them to a fence; the tokens stay, and get blocks of
    /// the device next. Blocks of all groups are ordered as one table: the deepest goes first, of
    /// blocks at the same depth that of the first group last.
    pub(crate) fn give_up(&mut self, tiers: &mut Tiers, until: Until) -> Result<(), TierError> {
        self.keep_tails(tiers)?;
        let mut left = self.take_left(tiers)?;
        let pool = tiers.pool_mut(self.tier)?;
        // A ticket may have ended since it was noted.
        let until = if pool.holds_back(until) { until } else { Until::Now };
        if until != Until::Now {
            // A fence holds back what a step may touch, and that is none of these.
            pool.release_table(&left)?;
            left.clear();
        }
        match self.main.held_parts() {
            [[], held] if self.grouped.is_none() && left.is_empty() => {
                pool.release_table_until(held, until)?;
            }
            _ => {
                let mut all: Vec<_> = self.held().collect();
                all.extend(left);
                pool.release_table_until(&all, until)?;
            }
        }
        self.tables_mut().for_each(Table::clear);
        (self.tier, self.computed_tokens, self.publishes) = (0, 0, true);
        Ok(())
    }

    /// Takes a reference to each block that the sequence gave up while it ran, and that is cached still
    /// and held by nobody: what is released together is ordered together. None where a policy has an
    /// order of its own.
    fn take_left(&self, tiers: &mut Tiers) -> Result<Vec<BlockId>, TierError> {
        let pool = tiers.device_mut();
        if self.tier != 0 || pool.keeps_history() || self.cursor.epoch() != pool.epoch() {
            return Ok(Vec::new());
        }
        let mut left = Vec::new();
        for table in self.tables() {
            let is_own = |&&(at, block): &&(usize, BlockId)| {
                pool.ref_count(block) == Some(0)
                    && pool.name_of(block).is_some()
                    && pool.name_of(block) == self.name(table, at)
            };
            left.extend(table.left.iter().filter(is_own).map(|&(_, block)| block));
        }
        if !left.is_empty() {
            pool.acquire_by_id(&left)?;
        }
        Ok(left)
    }

    /// The name of what a block at a position of a table holds, once its tokens are there.
    fn name<'a>(&'a self, table: &Table, at: usize) -> Option<Name<'a>> {
        match &self.grouped {
            None => self.cursor.chain().hashes().get(at).map(Name::from),
            Some(grouped) => grouped.name(&self.cursor, table, at),
        }
    }

    /// Takes the blocks that a completed swap moved it to.
    pub(crate) fn moved(&mut self, mapping: &HashMap<BlockId, BlockId>, to: usize) {
        self.tables_mut().for_each(|table| table.moved(mapping));
        self.tier = to;
        self.swap = None;
    }

    /// S1 and S3. O(1).
    pub(crate) fn check_counts(&self, name: &dyn fmt::Display) -> Result<(), InvariantViolation> {
        let (tokens, computed) = (self.num_tokens(), self.computed_tokens);
        ensure(computed <= tokens, "S3 (published blocks are computed)", || {
            format!("{name}: {computed} computed of {tokens}")
        })?;
        self.tables().try_for_each(|table| table.check_counts(name, computed))
    }

    /// The entry of a table at a position, of all tables' one after the other. O(groups).
    pub(crate) fn entry(&self, mut at: usize) -> Option<(&Table, usize)> {
        for table in self.tables() {
            if at < table.blocks.len() {
                return Some((table, at));
            }
            at -= table.blocks.len();
        }
        None
    }

    /// The same, to be changed behind the sequence's back.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn entry_mut(&mut self, at: usize) -> Option<&mut BlockId> {
        self.tables_mut().flat_map(|table| &mut table.blocks).nth(at)
    }

    /// S2 and M3 of one entry. O(groups).
    pub(crate) fn check_entry(
        &self,
        pool: &BlockPool,
        at: usize,
        name: &dyn fmt::Display,
    ) -> Result<(), InvariantViolation> {
        let Some((table, at)) = self.entry(at) else { return Ok(()) };
        let block = table.blocks[at];
        ensure(table.nulls().contains(&at) == block.is_null(), "S2 (trimmed blocks are null)", || {
            format!("{block:?} at {at} of {name}, {} trimmed", table.trimmed)
        })?;
        if at >= table.published || self.cursor.epoch() != pool.epoch() {
            return Ok(());
        }
        // Dropped by id since, perhaps; never under another hash.
        let (group, own) = (table.group, self.name(table, at));
        let wrong = pool.name_of(block).is_some_and(|name| Some(name) != own);
        ensure(!wrong, "M3 (a published block carries the hash of its tokens)", || {
            format!("{block:?} at {at} of group {group} of {name}")
        })
    }
}
