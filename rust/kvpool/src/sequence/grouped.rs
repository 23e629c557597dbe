//! `Grouped` is the part of a sequence that only models with several KV-cache groups need.
//!
//! It contains the block tables of all groups but the first, and the numbers of tokens that uncommitted
//! steps compute. It also contains the lengths at which later requests are expected to differ from this
//! one ([`Boundaries`]). When tokens are committed, each group registers the blocks that it keeps, and
//! releases the blocks that no later token reads.
//!
//! A recurrent state is stored in one block, the first block of its table. Every step overwrites this
//! block. A step that verifies drafts uses one additional block per draft: block `i` gets the state
//! after the `i`-th draft. When accepted drafts are committed, the block of the last accepted draft
//! becomes the first block. Later steps overwrite the states after rejected drafts.
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

/// The end of a step, as numbers of tokens and drafts that it computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StepEnd {
    /// Number of tokens that are computed when the step has ended, without drafts.
    tokens: usize,
    /// Number of drafts that the step computes after those tokens.
    drafts: usize,
}

/// The groups of a model, and the tables of all groups but the first.
#[derive(Clone, Debug)]
pub(crate) struct Grouped {
    groups: Arc<Groups>,
    pub(super) others: Vec<Table>,
    boundaries: Boundaries,
    /// The ends of the oldest and of the latest uncommitted step.
    oldest: StepEnd,
    latest: StepEnd,
    /// Number of tokens of the request that the tables have covered. A truncation lowers this number.
    covered: usize,
    /// The largest number of tokens after which a step may have written the state. A truncation does
    /// not lower this number, because the state is not restored.
    reached: usize,
    /// Number of committed tokens after which the states are to be copied. `None` if no copy is due.
    due: Option<usize>,
}

impl Grouped {
    /// Makes tables without blocks.
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

    /// Records the result of the lookup when a prompt of `tokens` tokens is admitted.
    pub(super) fn admitted(&mut self, tokens: usize, staged: &Staged) {
        let junction = (staged.full_tokens > staged.cached_tokens).then_some(Tokens(staged.full_tokens));
        self.boundaries = Boundaries { prompt: Tokens(tokens), junction };
        // A connector loads some tokens of the prompt, so no step computes them.
        let loads = staged.ready_tokens > staged.cached_tokens;
        let tokens = if loads { staged.ready_tokens } else { staged.covered_tokens };
        let first = StepEnd { tokens, drafts: 0 };
        (self.oldest, self.latest, self.due) = (first, first, None);
        (self.covered, self.reached) = (tokens, tokens);
    }

    /// Stores the blocks of an admission in a table.
    pub(super) fn hold(&self, table: &mut Table, staged: &StagedTable, cached: usize) {
        let spec = self.spec(table);
        table.hold(staged.blocks.clone(), cached, spec.sink_blocks().0);
        let state = staged.source.zip((cached / table.block_tokens).checked_sub(1));
        table.left.extend(state.map(|(source, at)| (at, source)));
    }

    /// Returns the number of hash units that `tokens` tokens fill.
    pub(super) fn units(&self, tokens: usize) -> usize {
        tokens / self.groups.unit()
    }

    fn spec(&self, table: &Table) -> &GroupSpec {
        &self.groups.specs()[usize::from(table.group)]
    }

    /// Whether the group of `table` registers and finds its blocks like a model without groups.
    fn is_plain(&self, table: &Table) -> bool {
        let spec = self.spec(table);
        table.group == 0 && spec.kind.is_full() && spec.is_cached() && spec.block_tokens == self.groups.unit()
    }

    /// Number of tokens that every table has blocks for. A table of recurrent states covers all tokens
    /// and drafts that steps have been started for.
    pub(super) fn covered_tokens(&self, main: &Table) -> usize {
        let covered = |table: &Table| match (table.layout, table.blocks.len()) {
            (Layout::State, 1..) => self.covered.max(self.latest.tokens.saturating_add(self.latest.drafts)),
            _ => table.covered_tokens(),
        };
        self.others.iter().map(covered).fold(covered(main), usize::min)
    }

    /// Records that the next step may compute `slots` slots of a request with `tokens` tokens, of which
    /// `computed` are already computed.
    #[inline]
    pub(super) fn note_covered(&mut self, tokens: usize, slots: usize, computed: usize) {
        let settled = computed >= self.latest.tokens;
        let end = self.latest.tokens.max(slots.min(tokens));
        // A call for the same step again does not reduce its number of drafts.
        let before = if end == self.latest.tokens { self.latest.drafts } else { 0 };
        self.latest = StepEnd { tokens: end, drafts: slots.saturating_sub(end).max(before) };
        self.covered = self.covered.max(slots.min(tokens));
        self.reached = self.reached.max(end);
        if settled {
            self.oldest = self.latest;
        }
    }

    /// Records that the first `computed` tokens are committed.
    #[inline]
    pub(super) fn note_committed(&mut self, computed: usize) {
        if computed >= self.latest.tokens {
            // The state after the last accepted draft has moved to the first block.
            self.latest = StepEnd { tokens: computed, drafts: 0 };
        }
        if computed >= self.oldest.tokens {
            self.oldest = self.latest;
        }
    }

    /// Removes the drafts of all steps from the records, because the table of a fork has no blocks for
    /// their states.
    const fn forget_drafts(&mut self) {
        (self.oldest.drafts, self.latest.drafts) = (0, 0);
    }

    /// Returns the position, in a table of states, of the state after the first `computed` tokens, when
    /// these tokens are being committed. The position is the number of accepted drafts among them.
    fn state_at(&self, table: &Table, computed: usize) -> usize {
        let step = if computed >= self.latest.tokens { self.latest } else { self.oldest };
        let drafts = computed.saturating_sub(step.tokens);
        if drafts <= step.drafts && drafts < table.blocks.len() { drafts } else { 0 }
    }

    /// Records that the request keeps only its first `tokens` tokens. Returns whether an uncommitted
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

    /// Returns the positions of a table whose blocks a commit of the first `computed` tokens releases.
    pub(super) fn dying(&self, table: &Table, computed: usize) -> Range<usize> {
        table.dying(self.spec(table).dead(Tokens(computed)).0)
    }

    /// Whether a request can continue after `tokens` tokens. It can if the table still has the blocks
    /// that later tokens read, and blocks for the later tokens. `loaded` means that the connector has
    /// loaded all tokens that it was to load.
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

    /// Whether a growth to `slots` takes, registers and releases no block, and fills no hash unit.
    /// After the growth, the request has `tokens` tokens, of which `computed` are computed. Before the
    /// growth, `before` are computed.
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
                // A group without caching does not need the blocks that were already missing at the
                // admission.
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

    /// Returns the depth in the chain of the block at a position of a table. The depth is in hash
    /// units, so depths of different groups can be compared.
    fn depth(&self, table: &Table, at: usize) -> u32 {
        let unit = self.groups.naming_unit(table.group.into(), Blocks(at));
        unit.map_or(0, |unit| u32::try_from(unit.0).unwrap_or(u32::MAX))
    }

    fn keeps(&self, table: &Table, at: usize) -> bool {
        self.groups.kept(table.group.into(), Blocks(at), self.boundaries)
    }

    /// Registers the blocks of a table before position `full` that its group keeps. Returns the number
    /// of new registrations.
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
            // If a fork committed earlier, it may have registered a block that both requests share.
            if block.is_null()
                || pool.is_registered(block)
                || !kept.as_ref().is_some_and(|kept| kept.keeps(Blocks(at)))
            {
                continue;
            }
            let Some(name) = self.name(cursor, table, at) else { break };
            // A hit of full attention needs all earlier blocks. So the pool has to know the parent of a
            // block, and evicts the parent later. A hit of any other group needs only the blocks that
            // this group holds, so these blocks have no parents.
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

    /// Returns the digests of the hash units inside a block after which a hit can end, if the group has
    /// partial hits. A block that is not full has fewer such units.
    fn interior<'a>(&self, cursor: &'a HashCursor, table: &Table, at: usize) -> Option<&'a [BlockHash]> {
        let spec = Some(self.spec(table)).filter(|spec| spec.partial_hits)?;
        let per_block = spec.block_tokens / self.groups.unit();
        let (hashes, first) = (cursor.chain().hashes(), at.checked_mul(per_block)?);
        let inside = hashes.get(first..hashes.len().min(first + per_block - 1))?;
        (!inside.is_empty()).then_some(inside)
    }

    /// Before a table is released, registers the computed part of its last, partly filled block, if
    /// hits can end inside the block. Only units inside of the block get names. The block itself gets
    /// none, because it is not full.
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
        // If the block has another user, it is not registered, because that user would then have to
        // copy it before writing to it.
        if at < MAX_POSITIONS && pool.num_users(tail) == 1 && !pool.is_registered(tail) {
            let parent = at.checked_sub(1).map(|before| table.blocks[before]);
            let depth = computed / self.groups.unit() - 1;
            pool.register_hidden(tail, hash, u32::try_from(depth).unwrap_or(u32::MAX), parent)?;
            pool.name_interior(tail, &inside[..units], table.group)?;
        }
        Ok(())
    }

    /// Returns the position of the state that is worth keeping when `computed` tokens are computed, if
    /// there is one. `computed` has to be a multiple of the alignment, because hits end only at such
    /// lengths.
    fn checkpoint(&self, table: &Table, computed: usize) -> Option<usize> {
        let ends = table.layout == Layout::State && computed.is_multiple_of(self.groups.alignment().0);
        let at = (computed / table.block_tokens).checked_sub(1)?;
        (ends && at < MAX_POSITIONS && self.keeps(table, at)).then_some(at)
    }
}

impl Sequence {
    /// Does the work of [`Self::commit`] for all groups, after the number of computed tokens was set.
    /// Changes of tables of states are appended to `changes`.
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
                    // No uncommitted step may have overwritten this state with a later one.
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

    /// Registers the names of hash units inside registered blocks again after a swap, because a
    /// transfer between tiers keeps only the names of whole blocks.
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

    /// Before the tables are released, registers the computed part of the last, partly filled block of
    /// each table.
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

    /// Copies the states at which the latest commit ended to new blocks and registers these blocks, as
    /// long as blocks are available. Returns the number of copies.
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

    /// Returns the next number of tokens, above the number of computed tokens, at which the state of a
    /// group is worth keeping.
    pub(crate) fn next_checkpoint(&self) -> Option<usize> {
        let grouped = self.grouped.as_deref()?;
        let states = self.tables().filter(|table| table.layout == Layout::State);
        let computed = Tokens(self.computed_tokens);
        let next = states
            .filter_map(|table| grouped.groups.next_kept(table.group.into(), computed, grouped.boundaries));
        next.min().map(|tokens| tokens.0)
    }

    /// Whether the sequence can continue after its first `tokens` tokens, which are computed or were
    /// loaded by a connector. `loaded` means that the connector has loaded all tokens that it was to
    /// load.
    pub(crate) fn can_continue(&self, tokens: usize, loaded: bool) -> bool {
        let Some(grouped) = self.grouped.as_deref() else { return true };
        self.tables().all(|table| grouped.can_continue(table, tokens, loaded))
    }

    /// Records that the step after a load computes the tokens up to `covered`.
    pub(crate) fn note_covered(&mut self, covered: usize) {
        let (tokens, computed) = (self.num_tokens(), self.computed_tokens);
        if let Some(grouped) = &mut self.grouped {
            grouped.note_covered(tokens, covered, computed);
        }
    }

    /// Returns the number of table entries that a commit of `computed` tokens changes. In each table of
    /// states with accepted drafts, two entries are exchanged.
    pub(crate) fn exchanged_by(&self, computed: usize) -> usize {
        let Some(grouped) = self.grouped.as_deref() else { return 0 };
        let moves = |table: &&Table| table.layout == Layout::State && grouped.state_at(table, computed) > 0;
        2 * self.tables().filter(moves).count()
    }

    /// Returns the number of blocks that a fork takes: one for each recurrent state.
    pub(crate) fn blocks_of_fork(&self) -> usize {
        self.tables().filter(|table| table.layout == Layout::State).count()
    }

    /// Does the work of [`Self::fork`] for several groups. The caller has checked that
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

    /// Returns the number of blocks that the tables of an encoder's output lack to cover `tokens`
    /// tokens.
    pub(crate) fn encoder_blocks_for(&self, tokens: usize) -> usize {
        self.tables().fold(0_usize, |sum, table| sum.saturating_add(table.encoder_missing_for(tokens)))
    }

    /// Allocates blocks so that the tables of an encoder's output cover `tokens` tokens. The caller has
    /// checked that the blocks are available.
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
