//! `Sequence` contains the tokens of one request, and one block table per KV-cache group. The last
//! block of a table can be written to.
//!
//! [`crate::CacheManager`] keeps one sequence per request. A method checks its arguments before it
//! changes anything. If the caller has to make these checks, the doc of the method states it.
//! [`super::grouped`] contains the parts that only several groups need.

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

/// The blocks that an append needs: new blocks, and copies of blocks that must not be written to.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    pub(crate) blocks: usize,
    /// The blocks that copies replace. The request releases them, because it must not write to them.
    pub(crate) copied: Vec<BlockId>,
    /// Number of `copied` blocks that are registered and have no other user. If too few blocks are
    /// available, the request writes to them in place, which removes their cached content.
    pub(crate) avoidable: usize,
    /// Registered blocks without another user that the request writes to in place, because the pool has
    /// no blocks for copies.
    pub(crate) overwritten: Vec<BlockId>,
}

/// The tokens of a request, and the blocks that contain their KV.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    /// The tokens, and the hash chain of the full blocks.
    pub(crate) cursor: HashCursor,
    pub(crate) main: Table,
    pub(crate) tier: usize,
    /// Number of tokens whose KV is written, including cached tokens.
    pub(crate) computed_tokens: usize,
    /// Whether commits register blocks. False after a hash collision, because no lookup can reach the
    /// blocks after the block that collided.
    pub(crate) publishes: bool,
    pub(crate) swap: Option<SwapId>,
    /// The data of the other groups. `None` if the model has only one group, of full attention.
    pub(crate) grouped: Option<Box<Grouped>>,
}

impl Sequence {
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

    #[inline]
    pub(crate) fn tables(&self) -> impl DoubleEndedIterator<Item = &Table> {
        std::iter::once(&self.main).chain(self.grouped.iter().flat_map(|grouped| &grouped.others))
    }

    pub(super) fn tables_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut Table> {
        std::iter::once(&mut self.main).chain(self.grouped.iter_mut().flat_map(|grouped| &mut grouped.others))
    }

    pub(crate) fn num_entries(&self) -> usize {
        self.tables().map(|table| table.blocks.len()).sum()
    }

    #[inline]
    pub(crate) fn num_tokens(&self) -> usize {
        self.cursor.num_tokens()
    }

    /// Returns the progress that observers get: the number of leading blocks that are registered. With
    /// several groups, the number of hash units whose KV is written.
    #[inline]
    pub(crate) fn num_published(&self) -> usize {
        match &self.grouped {
            None => self.main.published,
            Some(grouped) => grouped.units(self.computed_tokens),
        }
    }

    /// Returns the number of tokens for which every table has blocks.
    #[inline]
    pub(crate) fn covered_tokens(&self) -> usize {
        match &self.grouped {
            None => self.main.covered_tokens(),
            Some(grouped) => grouped.covered_tokens(&self.main),
        }
    }

    /// Returns the largest number of tokens and drafts that a step may have computed: those that have
    /// blocks. Drafts only count up to the first shared or registered block, because no step writes to
    /// it.
    pub(crate) fn computable_tokens(&self, pool: &BlockPool) -> usize {
        let (tokens, covered) = (self.num_tokens(), self.covered_tokens());
        let shared = self.tables().filter_map(|table| table.first_shared(pool, tokens, covered));
        covered.min(shared.min().map_or(covered, |first| first.max(tokens)))
    }

    /// Returns the number of slots to cover when `more` tokens are added and the caller wants `slots`
    /// slots. It is above `slots` if the existing blocks have room for more of the new tokens.
    #[inline]
    pub(crate) fn slots_for(&self, more: usize, slots: usize) -> usize {
        slots.max(self.covered_tokens().min(self.num_tokens() + more))
    }

    /// Whether an append can be done without the pool, because it changes only tokens and counts. After
    /// it, the sequence has `tokens` tokens and `slots` slots, and `computed` tokens are computed.
    #[inline]
    pub(crate) fn needs_no_pool(&self, tokens: usize, slots: usize, computed: Option<usize>) -> bool {
        let before = self.computed_tokens;
        self.main.needs_no_pool(tokens, slots, computed)
            && self
                .grouped
                .as_ref()
                .is_none_or(|grouped| grouped.needs_no_pool(&self.main, (tokens, slots), computed, before))
    }

    /// Appends tokens and sets the counts of slots and computed tokens. The caller has checked
    /// [`Self::needs_no_pool`].
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

    /// Returns the blocks that an append needs. After it, the sequence has `tokens` tokens and `slots`
    /// slots, and `computed` tokens are computed. `given_up` contains the references that other
    /// requests release before.
    #[inline]
    pub(crate) fn needs(
        &self,
        pool: &BlockPool,
        (tokens, computed): (usize, Option<usize>),
        slots: usize,
        given_up: &GivenUp,
    ) -> Needs {
        // The next step does not write the slots of accepted drafts, because an earlier step has
        // written them.
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

    /// Adds to `given_up` the references that are released when the first `computed` tokens are
    /// committed, because no later token reads these blocks.
    pub(crate) fn note_dying(&self, computed: usize, given_up: &mut GivenUp) {
        let Some(grouped) = &self.grouped else { return };
        for table in self.tables() {
            for &block in &table.blocks[grouped.dying(table, computed)] {
                *given_up.entry(block).or_default() += 1;
            }
        }
    }

    /// Whether an append would fit the pool if no other request held blocks. After it, the sequence has
    /// `tokens` tokens and `slots` slots, and `computed` tokens are computed.
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

    /// Checks that `available` blocks are enough for an append, after which the sequence has `tokens`
    /// tokens and `slots` slots. Returns the blocks that the append needs.
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

    /// Removes the cached contents of registered blocks that have no other user and contain slots from
    /// `before` to `slots`. The request then writes to these blocks in place and needs no copies.
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

    #[inline]
    pub(crate) fn append(&mut self, tokens: &[u32]) {
        self.cursor.append(tokens);
    }

    /// Allocates blocks so that the tables cover `slots` slots. The caller has checked that the blocks
    /// of [`Self::needs`] are available. The next step writes the slots from `before` on. Shared or
    /// registered blocks among them are replaced by copies. Changes of the tables are appended to
    /// `changes`.
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

    /// Sets the number of computed tokens, which the caller has checked, and registers the blocks that
    /// they fill. Returns the number of blocks registered. Blocks that a fork registered, or that were
    /// registered before a truncation, do not count. Blocks at positions from [`MAX_POSITIONS`] on are
    /// never registered. With several groups, a commit can exchange blocks in the tables of recurrent
    /// states; these changes are appended to `changes`.
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

    /// Returns the smallest number of tokens that a truncation can leave, and the current number of
    /// tokens. With fewer tokens than the smallest number, the next token would read blocks that were
    /// already released.
    pub(crate) fn lengths(&self) -> (usize, usize) {
        let least = match &self.grouped {
            None => self.main.trimmed * self.main.block_tokens,
            Some(grouped) => grouped.least_length(&self.main, self.computed_tokens),
        };
        (least, self.num_tokens())
    }

    /// Keeps the first `num_tokens` tokens, and releases the blocks after them. The caller has checked
    /// [`Self::lengths`].
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

    /// Records, in all tables, that the block of the next token and all later blocks may be shared or
    /// registered.
    fn guard(&mut self) {
        let tokens = self.num_tokens();
        self.tables_mut().for_each(|table| table.guard(tokens));
    }

    /// Releases the blocks whose tokens are all more than `window` tokens before the end of the
    /// computed tokens. Returns their number.
    pub(crate) fn trim(&mut self, tiers: &mut Tiers, window: usize) -> Result<usize, TierError> {
        let outside = self.computed_tokens.saturating_sub(window) / self.main.block_tokens;
        Ok(self.main.trim(tiers.pool_mut(self.tier)?, outside)?)
    }

    /// Makes a new sequence that shares every block of this one. The caller has checked that
    /// [`Self::blocks_of_fork`] blocks are available.
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

    /// Clones the sequence for a fork, and records in both that their blocks may be shared. The caller
    /// adds the references.
    pub(super) fn guarded_clone(&mut self) -> Self {
        self.guard();
        self.clone()
    }

    /// Returns the blocks of all tables, without null blocks. The sequence has one reference to each
    /// entry.
    pub(crate) fn held(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.tables().flat_map(Table::held)
    }

    /// Returns the number of entries of [`Self::held`]. O(groups).
    pub(crate) fn num_held(&self) -> usize {
        self.tables().map(Table::num_held).sum()
    }

    /// Releases all blocks, the last block first, or moves their references to a fence. The sequence
    /// keeps its tokens; when it gets blocks again, they are device blocks. The blocks of all groups
    /// enter the eviction order together: those at the highest positions of the chain are evicted
    /// first. At equal positions, the block of the first group is evicted last.
    pub(crate) fn give_up(&mut self, tiers: &mut Tiers, until: Until) -> Result<(), TierError> {
        self.keep_tails(tiers)?;
        let mut left = self.take_left(tiers)?;
        let pool = tiers.pool_mut(self.tier)?;
        // Until this call, the fence may have ended. Then the blocks are released at once.
        let until = if pool.holds_back(until) { until } else { Until::Now };
        if until != Until::Now {
            // The blocks in `left` need no fence, because no running step uses them.
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

    /// Acquires the cached blocks without references that the sequence has released since its
    /// admission. The caller releases them again together with the other blocks, so that blocks at
    /// higher positions of the chain are evicted first. Acquires nothing if the eviction policy stores
    /// the history of blocks itself.
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

    /// The name of the content at a position of a table. `None` until the sequence has all tokens of
    /// that block.
    fn name<'a>(&'a self, table: &Table, at: usize) -> Option<Name<'a>> {
        match &self.grouped {
            None => self.cursor.chain().hashes().get(at).map(Name::from),
            Some(grouped) => grouped.name(&self.cursor, table, at),
        }
    }

    /// Replaces the blocks by those blocks of tier `to` that a completed swap has copied them to.
    pub(crate) fn moved(&mut self, mapping: &HashMap<BlockId, BlockId>, to: usize) {
        self.tables_mut().for_each(|table| table.moved(mapping));
        self.tier = to;
        self.swap = None;
    }

    /// Checks S1 and S3 for all tables: all computed tokens have blocks, and registered blocks are full
    /// and computed. O(1).
    pub(crate) fn check_counts(&self, name: &dyn fmt::Display) -> Result<(), InvariantViolation> {
        let (tokens, computed) = (self.num_tokens(), self.computed_tokens);
        ensure(computed <= tokens, "S3 (published blocks are computed)", || {
            format!("{name}: {computed} computed of {tokens}")
        })?;
        self.tables().try_for_each(|table| table.check_counts(name, computed))
    }

    /// Returns the table and position of entry `at`. `at` counts the entries of all tables, one table
    /// after the other. O(groups).
    pub(crate) fn entry(&self, mut at: usize) -> Option<(&Table, usize)> {
        for table in self.tables() {
            if at < table.blocks.len() {
                return Some((table, at));
            }
            at -= table.blocks.len();
        }
        None
    }

    /// Returns a mutable reference to entry `at` of all tables, so that a test can overwrite it.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn entry_mut(&mut self, at: usize) -> Option<&mut BlockId> {
        self.tables_mut().flat_map(|table| &mut table.blocks).nth(at)
    }

    /// Checks entry `at` of all tables: it is the null block exactly if it was trimmed (S2), and its
    /// block has the hash of its tokens if it is registered (M3). O(groups).
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
        // The block need not be registered, because a caller may have removed its content. But it must
        // not have another hash.
        let (group, own) = (table.group, self.name(table, at));
        let wrong = pool.name_of(block).is_some_and(|name| Some(name) != own);
        ensure(!wrong, "M3 (a published block carries the hash of its tokens)", || {
            format!("{block:?} at {at} of group {group} of {name}")
        })
    }
}
