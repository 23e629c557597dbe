//! `Grouped` is the part of a request's data ([`Sequence`]) that only models with several KV-cache
//! groups need.
//!
//! It contains the block tables of all groups but the first, and the token counts at which steps end
//! whose results are not yet committed. It also contains the lengths at which later requests are
//! expected to differ from this one ([`Boundaries`]). When tokens are committed, each group registers
//! the blocks that it keeps, and releases the blocks that no later token reads.
//!
//! Recurrent layers, such as Mamba's, have a state instead of the KV of each token. The state is stored
//! in one block, the first block of its table. Every step overwrites this block. A step that verifies
//! drafts uses one additional block per draft: block `i` gets the state after the `i`-th draft. When
//! accepted drafts are committed, the block of the last accepted draft becomes the first block. The
//! states after rejected drafts are overwritten by later steps.
//!
//! Only copies of a state remain cached: *checkpoints*. A checkpoint is made and registered when a
//! commit ends at a boundary that the group keeps ([`crate::groups::Keep`]). If a later step may
//! already have started, no checkpoint is made, because the block may then contain a later state. A
//! request that hits a checkpoint gets its own copy of the state to write to. A fork gets one, too. All
//! of these copies are part of the transfer plan, which the engine executes.
//!
//! Costs: O(1) for each table and block that a call uses.

use std::ops::Range;
use std::sync::Arc;

use super::staged::{Staged, StagedTable};
use super::table::{Layout, Table, TableChange};
use super::tables::Sequence;
use crate::groups::{Blocks, Boundaries, GroupSpec, Groups, Keep, Tokens};
use crate::hash::{BlockHash, HashCursor};
use crate::record::MAX_POSITIONS;
use crate::tiers::{TierError, Tiers};
use crate::{BlockId, BlockPool, Name, PoolError};

/// Describes where a scheduler step ends: the number of tokens that are computed then, and the number
/// of drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StepEnd {
    /// Number of the request's tokens, without drafts, that are computed when the step has ended.
    tokens: usize,
    /// Number of drafts that the step also computes, after these tokens.
    drafts: usize,
}

/// The groups of a model, and the tables of all groups but the first.
#[derive(Clone, Debug)]
pub(crate) struct Grouped {
    groups: Arc<Groups>,
    pub(super) others: Vec<Table>,
    boundaries: Boundaries,
    /// The end of the oldest uncommitted step, and in the next field the end of the latest one.
    oldest: StepEnd,
    latest: StepEnd,
    /// Number of tokens of the request that had blocks in the tables so far. A truncation lowers this
    /// number.
    covered: usize,
    /// The largest number of tokens whose recurrent state a step may already have written. A truncation
    /// does not lower this number, because it does not restore the earlier state.
    reached: usize,
    /// If the recurrent states are to be copied: the number of committed tokens that they belong to.
    /// `None` if no copy is due.
    due: Option<usize>,
}

impl Grouped {
    /// Makes the tables of all groups but the first, without blocks.
    pub(crate) fn new(groups: &Arc<Groups>) -> Box<Self> {
        let table = |(group, spec): (usize, &GroupSpec)| {
            Table::new(group as u16, Layout::of(spec.kind), spec.block_tokens)
        };
        Box::new(Self {
            groups: Arc::clone(groups),
            others: groups.specs().iter().enumerate().skip(1).map(table).collect(),
            boundaries: Boundaries::default(),
            oldest: StepEnd::default(),
            latest: StepEnd::default(),
            covered: 0,
            reached: 0,
            due: None,
        })
    }

    /// Returns the layout of the first group's table, and its tokens per block.
    pub(super) fn first(&self) -> (Layout, usize) {
        let spec = &self.groups.specs()[0];
        (Layout::of(spec.kind), spec.block_tokens)
    }

    /// Sets the step ends and the boundaries after a prompt of `tokens` tokens was admitted with the
    /// lookup result `staged`.
    pub(super) fn admitted(&mut self, tokens: usize, staged: &Staged) {
        let junction = (staged.full_tokens > staged.cached_tokens).then_some(Tokens(staged.full_tokens));
        self.boundaries = Boundaries { prompt: Tokens(tokens), junction };
        // If a connector loads tokens of the prompt, no step has started to compute tokens.
        let loads = staged.ready_tokens > staged.cached_tokens;
        let tokens = if loads { staged.ready_tokens } else { staged.covered_tokens };
        let first = StepEnd { tokens, drafts: 0 };
        (self.oldest, self.latest, self.due) = (first, first, None);
        (self.covered, self.reached) = (tokens, tokens);
    }

    /// Stores the blocks of an admission in the table of one group.
    pub(super) fn hold(&self, table: &mut Table, staged: &StagedTable, cached: usize) {
        let spec = self.spec(table);
        table.hold(staged.blocks.clone(), cached, spec.sink_blocks().0);
        let state = staged.source.zip((cached / table.block_tokens).checked_sub(1));
        table.left.extend(state.map(|(source, at)| (at, source)));
    }

    pub(super) fn units(&self, tokens: usize) -> usize {
        tokens / self.groups.unit()
    }

    fn spec(&self, table: &Table) -> &GroupSpec {
        &self.groups.specs()[usize::from(table.group)]
    }

    /// Whether the group of `table` is the first group, has full attention, and has one hash per block.
    /// Its blocks are then registered as in a model without groups.
    fn is_plain(&self, table: &Table) -> bool {
        let spec = self.spec(table);
        table.group == 0 && spec.kind.is_full() && spec.is_cached() && spec.block_tokens == self.groups.unit()
    }

    /// Number of tokens that every table has blocks for. A table of recurrent states counts as having
    /// room for all tokens and drafts of the steps that were started.
    pub(super) fn covered_tokens(&self, main: &Table) -> usize {
        let covered = |table: &Table| match (table.layout, table.blocks.len()) {
            (Layout::State, 1..) => self.covered.max(self.latest.tokens.saturating_add(self.latest.drafts)),
            _ => table.covered_tokens(),
        };
        self.others.iter().map(covered).fold(covered(main), usize::min)
    }

    /// Records that the next step may compute the first `slots` tokens and drafts of a request. The
    /// request has `tokens` tokens, of which `computed` are already computed.
    #[inline]
    pub(super) fn note_covered(&mut self, tokens: usize, slots: usize, computed: usize) {
        let settled = computed >= self.latest.tokens;
        let end = self.latest.tokens.max(slots.min(tokens));
        // If the call is repeated for the same step, the larger number of drafts counts.
        let before = if end == self.latest.tokens { self.latest.drafts } else { 0 };
        self.latest = StepEnd { tokens: end, drafts: slots.saturating_sub(end).max(before) };
        self.covered = self.covered.max(slots.min(tokens));
        self.reached = self.reached.max(end);
        if settled {
            self.oldest = self.latest;
        }
    }

    #[inline]
    pub(super) fn note_committed(&mut self, computed: usize) {
        if computed >= self.latest.tokens {
            // The commit has moved the state after the last accepted draft to the first block.
            self.latest = StepEnd { tokens: computed, drafts: 0 };
        }
        if computed >= self.oldest.tokens {
            self.oldest = self.latest;
        }
    }

    /// Sets the numbers of drafts of all uncommitted steps to 0. A fork needs this, because its table
    /// has no blocks for the states after drafts.
    const fn forget_drafts(&mut self) {
        (self.oldest.drafts, self.latest.drafts) = (0, 0);
    }

    /// Returns the position, in a table of recurrent states, of the block with the state after the
    /// first `computed` tokens, which are being committed. The position is the number of accepted
    /// drafts among these tokens.
    fn state_at(&self, table: &Table, computed: usize) -> usize {
        let step = if computed >= self.latest.tokens { self.latest } else { self.oldest };
        let drafts = computed.saturating_sub(step.tokens);
        if drafts <= step.drafts && drafts < table.blocks.len() { drafts } else { 0 }
    }

    /// Records that a truncation keeps only the first `tokens` tokens. Returns whether an uncommitted
    /// step still has drafts.
    pub(super) fn note_truncated(&mut self, tokens: usize) -> bool {
        let Self { oldest, latest, covered, .. } = self;
        *covered = tokens.min(*covered);
        if tokens <= oldest.tokens {
            (*oldest, *latest) = (StepEnd { tokens, drafts: 0 }, StepEnd { tokens, drafts: 0 });
        } else if tokens <= oldest.tokens + oldest.drafts {
            *latest = *oldest;
        } else if tokens <= latest.tokens {
            *latest = StepEnd { tokens, drafts: 0 };
        }
        oldest.drafts + latest.drafts > 0
    }

    /// Returns the positions of a table whose blocks are released when the first `computed` tokens are
    /// committed, because no later token reads them.
    pub(super) fn dying(&self, table: &Table, computed: usize) -> Range<usize> {
        table.dying(self.spec(table).dead(Tokens(computed)).0)
    }

    /// Whether the engine can compute the tokens after the first `tokens` tokens of a request. It can
    /// if the table still has the blocks that these tokens read and write. `loaded` means that the
    /// connector has loaded all tokens that it was to load.
    fn can_continue(&self, table: &Table, tokens: usize, loaded: bool) -> bool {
        let spec = self.spec(table);
        match table.layout {
            Layout::Positions => {
                let first = if spec.is_cached() {
                    spec.dead(Tokens(tokens))
                } else {
                    spec.full_blocks(Tokens(tokens))
                };
                table.nulls().end <= first.0
            }
            Layout::State => loaded || tokens == 0 || !spec.is_cached(),
            Layout::Encoder => true,
        }
    }

    /// Whether an append can be done without the pool: it takes, registers and releases no block, and
    /// completes no hash unit. After the append, the request has `tokens` tokens and room for `slots`,
    /// and `computed` tokens are computed. Before it, `before` are computed.
    pub(super) fn needs_no_pool(
        &self,
        main: &Table,
        (tokens, slots): (usize, usize),
        computed: Option<usize>,
        before: usize,
    ) -> bool {
        let quiet = |table: &Table| {
            computed.is_none_or(|computed| match table.layout {
                Layout::Positions => self.dying(table, computed).is_empty(),
                Layout::State => {
                    !computed.is_multiple_of(table.block_tokens) && self.state_at(table, computed) == 0
                }
                Layout::Encoder => true,
            })
        };
        computed.is_none_or(|computed| self.units(computed) == self.units(before))
            && quiet(main)
            && self.others.iter().all(|table| table.needs_no_pool(tokens, slots, computed) && quiet(table))
    }

    /// Returns the smallest number of tokens that a truncation can leave. The tables must still have
    /// the blocks that the next token reads, and a recurrent state cannot return to an earlier token.
    pub(super) fn least_length(&self, main: &Table, computed: usize) -> usize {
        let least = |table: &Table| match table.layout {
            Layout::Positions if !table.nulls().is_empty() => {
                let spec = self.spec(table);
                let from = spec.tokens(Blocks(table.trimmed));
                // In a group without caching, blocks that were already missing at the admission are not
                // needed.
                let needed = spec.is_cached() || table.trimmed > table.absent();
                if needed { spec.kind.rewind(from).max(from).0 } else { from.0 }
            }
            Layout::Positions | Layout::Encoder => 0,
            Layout::State => computed,
        };
        self.others.iter().map(least).fold(least(main), usize::max)
    }

    /// Returns the name of the content at a position of a table. `None` if the sequence does not yet
    /// have all tokens of that block.
    pub(super) fn name<'a>(&self, cursor: &'a HashCursor, table: &Table, at: usize) -> Option<Name<'a>> {
        let unit = self.groups.naming_unit(table.group.into(), Blocks(at))?;
        Some(Name { hash: cursor.chain().hashes().get(unit.0)?, group: table.group })
    }

    /// Returns the position in the hash chain of the block at a position of a table. It is counted in
    /// hash units, so positions of different groups can be compared.
    fn depth(&self, table: &Table, at: usize) -> u32 {
        let unit = self.groups.naming_unit(table.group.into(), Blocks(at));
        unit.map_or(0, |unit| u32::try_from(unit.0).unwrap_or(u32::MAX))
    }

    fn keeps(&self, table: &Table, at: usize) -> bool {
        self.groups.kept(table.group.into(), Blocks(at), self.boundaries)
    }

    /// Registers the full blocks of a table before position `full` that the group keeps cached. Returns
    /// the number of blocks registered.
    fn register(
        &self,
        pool: &mut BlockPool,
        cursor: &HashCursor,
        table: &Table,
        full: usize,
    ) -> Result<usize, PoolError> {
        let spec = self.spec(table);
        let chained = spec.kind.is_full();
        // If the group keeps every block, and each block is one hash unit, one call registers all
        // blocks.
        let whole = !chained && spec.keep == Keep::All && spec.block_tokens == self.groups.unit();
        let new = &table.blocks[table.published..full];
        let hashes = cursor.chain().hashes().get(table.published..full).filter(|_| whole);
        if let Some(hashes) =
            hashes.filter(|_| new.iter().all(|&block| !block.is_null() && !pool.is_registered(block)))
        {
            pool.register_stretch(new, hashes, table.group, self.depth(table, table.published))?;
            return Ok(new.len());
        }
        let kept = self.groups.kept_of(table.group.into(), self.boundaries);
        let mut count = 0;
        for at in table.published..full {
            let block = table.blocks[at];
            // A block may be registered already, by a fork that shares it and has committed first.
            if block.is_null()
                || pool.is_registered(block)
                || !kept.as_ref().is_some_and(|kept| kept.keeps(Blocks(at)))
            {
                continue;
            }
            let Some(name) = self.name(cursor, table, at) else { break };
            // A hit of full attention needs all earlier blocks. So the pool has to know the parent of
            // each block, to evict it after the block. In other groups, a hit needs only a few blocks,
            // so these blocks get no parents.
            let before = at.checked_sub(1).filter(|_| chained);
            // A caller may have removed the content of the previous block. The hash of that content is
            // still the parent.
            let hash = before.and_then(|before| self.name(cursor, table, before)).map(|name| *name.hash);
            let parent =
                before.map(|before| table.blocks[before]).filter(|&block| pool.hash_of(block) == hash);
            pool.register_behind_hash(block, name, self.depth(table, at), hash, parent)?;
            if let Some(inside) = self.interior(cursor, table, at) {
                pool.name_interior(block, inside, table.group)?;
            }
            count += 1;
        }
        Ok(count)
    }

    /// Returns the digests of the hash units inside a block, except its last unit. Hits can end after
    /// these units. `None` if the group has no partial hits, or there is no such digest. For a block
    /// that is not full, returns the digests of its full units.
    fn interior<'a>(&self, cursor: &'a HashCursor, table: &Table, at: usize) -> Option<&'a [BlockHash]> {
        let spec = Some(self.spec(table)).filter(|spec| spec.partial_hits)?;
        let per_block = spec.block_tokens / self.groups.unit();
        let (hashes, first) = (cursor.chain().hashes(), at.checked_mul(per_block)?);
        let inside = hashes.get(first..hashes.len().min(first + per_block - 1))?;
        (!inside.is_empty()).then_some(inside)
    }

    /// Called before a table is released. If hits can end inside a block, registers the computed units
    /// of the table's last, partly filled block. Only these units get names, not the block, because it
    /// is not full.
    fn register_tail(
        &self,
        pool: &mut BlockPool,
        cursor: &HashCursor,
        table: &Table,
        computed: usize,
    ) -> Result<(), PoolError> {
        let at = computed / table.block_tokens;
        let (Some(&tail), Some(inside)) = (table.blocks.get(at), self.interior(cursor, table, at)) else {
            return Ok(());
        };
        let units = computed % table.block_tokens / self.groups.unit();
        let Some(hash) = units.checked_sub(1).and_then(|last| inside.get(last)) else { return Ok(()) };
        // A block with another user is not registered, because that user would then have to copy it
        // before it writes to it.
        if at < MAX_POSITIONS && pool.num_users(tail) == 1 && !pool.is_registered(tail) {
            let parent = at.checked_sub(1).map(|before| table.blocks[before]);
            let depth = computed / self.groups.unit() - 1;
            pool.register_hidden(tail, hash, u32::try_from(depth).unwrap_or(u32::MAX), parent)?;
            pool.name_interior(tail, &inside[..units], table.group)?;
        }
        Ok(())
    }

    /// Returns the block position of the recurrent state after `computed` tokens, if a copy of this
    /// state should remain cached. `computed` has to be a multiple of the alignment, because hits end
    /// only at such lengths.
    fn checkpoint(&self, table: &Table, computed: usize) -> Option<usize> {
        let ends = table.layout == Layout::State && computed.is_multiple_of(self.groups.alignment().0);
        let at = (computed / table.block_tokens).checked_sub(1)?;
        (ends && at < MAX_POSITIONS && self.keeps(table, at)).then_some(at)
    }
}

impl Sequence {
    /// Does the work of [`Self::commit`] for all groups, after the number of computed tokens was set.
    /// If accepted drafts exchange blocks in a table of recurrent states, these changes are appended to
    /// `changes`.
    pub(super) fn commit_groups(
        &mut self,
        pool: &mut BlockPool,
        mut changes: Option<&mut Vec<TableChange>>,
    ) -> Result<usize, PoolError> {
        let Self { cursor, main, grouped, publishes, computed_tokens: computed, .. } = self;
        let Some(grouped) = grouped.as_deref_mut() else { return Ok(0) };
        let registers = *publishes && cursor.epoch() == pool.epoch();
        let mut others = std::mem::take(&mut grouped.others);
        let mut commit = |table: &mut Table| -> Result<(usize, bool), PoolError> {
            let dead = grouped.spec(table).dead(Tokens(*computed)).0;
            let (mut count, mut due) = (0, false);
            match table.layout {
                Layout::Positions => {
                    let full = (*computed / table.block_tokens).min(MAX_POSITIONS);
                    if registers && grouped.is_plain(table) {
                        count = table.publish(pool, cursor, publishes, full)?;
                    } else if registers && full > table.published {
                        count = grouped.register(pool, cursor, table, full)?;
                        table.published = full;
                    }
                    table.trim(pool, dead)?;
                }
                Layout::State => {
                    let drafts = grouped.state_at(table, *computed);
                    if drafts > 0 {
                        table.blocks.swap(0, drafts);
                        let moved =
                            |index| TableChange { index, block: table.blocks[index], group: table.group };
                        if let Some(changes) = changes.as_deref_mut() {
                            changes.extend([0, drafts].map(moved));
                        }
                    }
                    // A copy of the state is only made if no uncommitted step may have overwritten it
                    // with a later state.
                    let is_last = *computed == grouped.latest.tokens + drafts && *computed >= grouped.reached;
                    due = registers && is_last && grouped.checkpoint(table, *computed).is_some();
                }
                Layout::Encoder => {}
            }
            Ok((count, due))
        };
        let mut done = commit(main);
        for table in &mut others {
            done =
                done.and_then(|(count, due)| commit(table).map(|(more, also)| (count + more, due || also)));
        }
        grouped.others = others;
        let (count, due) = done?;
        grouped.due = due.then_some(*computed);
        grouped.note_committed(*computed);
        Ok(count)
    }

    /// Registers the hash units inside registered blocks again after a swap, because a swap keeps only
    /// the names of whole blocks.
    pub(crate) fn name_interior(&self, tiers: &mut Tiers) -> Result<(), TierError> {
        let Some(grouped) = self.grouped.as_deref().filter(|_| self.tier == 0) else { return Ok(()) };
        let pool = tiers.device_mut();
        for table in self.tables() {
            for (at, &block) in table.blocks.iter().enumerate().take(table.published) {
                let own = grouped.name(&self.cursor, table, at);
                let inside = grouped.interior(&self.cursor, table, at);
                if let Some(inside) = inside.filter(|_| own.is_some() && pool.name_of(block) == own) {
                    pool.name_interior(block, inside, table.group)?;
                }
            }
        }
        Ok(())
    }

    /// Called before the tables are released. Registers the computed units of the last, partly filled
    /// block of each table, so that hits can end inside these blocks.
    pub(super) fn keep_tails(&self, tiers: &mut Tiers) -> Result<(), TierError> {
        let Some(grouped) = self.grouped.as_deref().filter(|_| self.tier == 0) else { return Ok(()) };
        let pool = tiers.device_mut();
        if !self.publishes || self.cursor.epoch() != pool.epoch() {
            return Ok(());
        }
        let mut tables = self.tables();
        Ok(tables
            .try_for_each(|table| grouped.register_tail(pool, &self.cursor, table, self.computed_tokens))?)
    }

    /// Makes the checkpoints that the latest commit allows: copies each recurrent state to a new block
    /// and registers this block, as long as blocks are available. Returns the number of copies.
    pub(crate) fn keep_states(&mut self, tiers: &mut Tiers) -> Result<usize, TierError> {
        let Self { cursor, main, grouped, tier, .. } = self;
        let Some(grouped) = grouped.as_deref_mut() else { return Ok(0) };
        let Some(computed) = grouped.due.take() else { return Ok(0) };
        let mut count = 0;
        let mut others = std::mem::take(&mut grouped.others);
        for table in std::iter::once(main).chain(&mut others) {
            let Some(at) = grouped.checkpoint(table, computed) else { continue };
            let (Some(name), Some(&state)) = (grouped.name(cursor, table, at), table.blocks.first()) else {
                continue;
            };
            let pool = tiers.pool_mut(*tier)?;
            if pool.find_named(name).is_some() || pool.num_available() == 0 {
                continue;
            }
            pool.acquire(&[state])?;
            let copy = tiers.copy_on_write(*tier, state)?;
            let pool = tiers.pool_mut(*tier)?;
            pool.register_behind(copy, name, grouped.depth(table, at), None)?;
            pool.release(&[copy])?;
            table.left.push((at, copy));
            count += 1;
        }
        grouped.others = others;
        Ok(count)
    }

    /// Returns the next token count, above the number of computed tokens, at which a copy of a
    /// recurrent state should be kept.
    pub(crate) fn next_checkpoint(&self) -> Option<usize> {
        let grouped = self.grouped.as_deref()?;
        let states = self.tables().filter(|table| table.layout == Layout::State);
        let computed = Tokens(self.computed_tokens);
        let next = states
            .filter_map(|table| grouped.groups.next_kept(table.group.into(), computed, grouped.boundaries));
        next.min().map(|tokens| tokens.0)
    }

    /// Whether the engine can compute the tokens after the first `tokens` tokens, which are computed or
    /// were loaded by a connector. `loaded` means that the connector has loaded all tokens that it was
    /// to load.
    pub(crate) fn can_continue(&self, tokens: usize, loaded: bool) -> bool {
        let Some(grouped) = self.grouped.as_deref() else { return true };
        self.tables().all(|table| grouped.can_continue(table, tokens, loaded))
    }

    /// Records that the step after a load may compute the first `covered` tokens.
    pub(crate) fn note_covered(&mut self, covered: usize) {
        let (tokens, computed) = (self.num_tokens(), self.computed_tokens);
        if let Some(grouped) = &mut self.grouped {
            grouped.note_covered(tokens, covered, computed);
        }
    }

    /// Returns the number of table entries that change when the first `computed` tokens are committed.
    /// In each table of recurrent states with accepted drafts, two entries are exchanged.
    pub(crate) fn exchanged_by(&self, computed: usize) -> usize {
        let Some(grouped) = self.grouped.as_deref() else { return 0 };
        let moves = |table: &&Table| table.layout == Layout::State && grouped.state_at(table, computed) > 0;
        2 * self.tables().filter(moves).count()
    }

    /// Returns the number of blocks that a fork allocates: one for the copy of each recurrent state.
    pub(crate) fn blocks_of_fork(&self) -> usize {
        self.tables().filter(|table| table.layout == Layout::State).count()
    }

    /// Does the work of [`Self::fork`] for models with several groups. The caller has checked that
    /// [`Self::blocks_of_fork`] blocks are available. Plans copies of the states, because both
    /// sequences write to their states in the next step.
    pub(super) fn fork_groups(&mut self, tiers: &mut Tiers) -> Result<Self, TierError> {
        let mut child = self.guarded_clone();
        // The fork gets the state after the last token, but none of the states after drafts.
        let states = |table: &&mut Table| table.layout == Layout::State;
        child.tables_mut().filter(states).for_each(|table| table.blocks.truncate(1));
        if let Some(grouped) = &mut child.grouped {
            grouped.forget_drafts();
        }
        let held: Vec<BlockId> = child.held().collect();
        tiers.pool_mut(self.tier)?.acquire(&held)?;
        let tier = self.tier;
        for table in child.tables_mut().filter(states) {
            for state in &mut table.blocks {
                *state = tiers.copy_on_write(tier, *state)?;
            }
        }
        Ok(child)
    }

    /// Returns the number of blocks to allocate so that the tables of an encoder's output have room for
    /// `tokens` tokens.
    pub(crate) fn encoder_blocks_for(&self, tokens: usize) -> usize {
        self.tables().fold(0_usize, |sum, table| sum.saturating_add(table.encoder_missing_for(tokens)))
    }

    /// Allocates blocks so that the tables of an encoder's output have room for `tokens` tokens. The
    /// caller has checked that the blocks are available.
    pub(crate) fn grow_encoder(
        &mut self,
        tiers: &mut Tiers,
        tokens: usize,
        changes: &mut Vec<TableChange>,
    ) -> Result<(), TierError> {
        let tier = self.tier;
        self.tables_mut()
            .try_for_each(|table| table.allocate(tiers, tier, table.encoder_missing_for(tokens), changes))
    }
}
