//! Growth: tokens appended by decode steps, blocks for chunks of a prompt, and tokens committed as computed.

use super::CacheManager;
use super::error::{ManagerError, Result};
use super::hints::Scope;
use super::id::{RequestRef, RequestState};
use super::request::Request;
use crate::hash::MultimodalItem;
use crate::sequence::{GivenUp, TableChange};
use crate::tiers::out_of_blocks;
use crate::{BlockId, BlockPool};

/// A position of a request's block table that an append changed: a new block at the end, or a copy in
/// the place of a shared or registered one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewBlock {
    /// Position of the request in the call.
    pub row: usize,
    /// Position in its block table.
    pub index: usize,
    /// The block that is there now.
    pub block: BlockId,
    /// The KV-cache group whose table that is: 0 where there is one.
    pub group: u16,
}

/// Which tokens the step before has computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Computed<'a> {
    /// Nothing: [`CacheManager::commit`] commits.
    #[default]
    Nothing,
    /// Of each request that gets tokens, all but the last one: the step that sampled it has written the
    /// KV of all before, accepted drafts included. For tokens that no step sampled it is wrong.
    AllButLast,
    /// Of each request its first so many tokens, those of this call included: accepted drafts, which
    /// had slots before ([`Covered::Lookahead`]).
    Counts(&'a [usize]),
}

/// Which tokens the next step has blocks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Covered<'a> {
    /// Of each request all.
    #[default]
    All,
    /// All, and so many more: slots for drafts.
    Lookahead(usize),
    /// Of each request at least its first so many: chunks of a prompt, or drafts of different lengths.
    Each(&'a [usize]),
}

/// What a step did and what the next one needs, request by request: see [`CacheManager::append_ragged`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Rows<'a> {
    /// The requests, each named once.
    pub requests: &'a [RequestRef<'a>],
    /// The tokens of all of them, one after the other.
    pub tokens: &'a [u32],
    /// `tokens[offsets[i]..offsets[i + 1]]` are request i's: one more than requests. Empty: each has
    /// one token.
    pub offsets: &'a [usize],
    /// What is computed.
    pub computed: Computed<'a>,
    /// What is to have blocks.
    pub covered: Covered<'a>,
    /// Refuse more changes of block tables than so many, for whom they are written to a buffer of that
    /// length.
    pub most_changes: Option<usize>,
}

impl<'a> Rows<'a> {
    /// Refuses lists that do not fit each other.
    pub(super) fn check(&self) -> Result<()> {
        let requests = self.requests.len();
        let same = |values, what| check_length(self.requests, values, what);
        if let Computed::Counts(counts) = self.computed {
            same(counts.len(), "counts")?;
        }
        if let Covered::Each(counts) = self.covered {
            same(counts.len(), "covered counts")?;
        }
        if self.offsets.is_empty() {
            return same(self.tokens.len(), "tokens");
        }
        same(self.offsets.len() - 1, "stretches of tokens, by offsets")?;
        let mut least = 0;
        for (position, &offset) in self.offsets.iter().enumerate() {
            let most = if position == 0 { 0 } else { self.tokens.len() };
            let least_here = if position == requests { most } else { least };
            if !(least_here..=most).contains(&offset) {
                return Err(ManagerError::BadOffset { position, offset, least: least_here, most });
            }
            least = offset;
        }
        Ok(())
    }

    /// A row of a request in a slot, after a check.
    #[inline]
    pub(super) fn row(&self, at: usize, slot: usize, request: &Request) -> Row {
        let (from, to) = match (self.offsets.get(at), self.offsets.get(at + 1)) {
            (Some(&from), Some(&to)) => (from, to),
            _ => (at, at + 1),
        };
        let sequence = &request.sequence;
        let all = sequence.num_tokens() + (to - from);
        let slots = match self.covered {
            Covered::All => all,
            Covered::Lookahead(slots) => all.saturating_add(slots),
            Covered::Each(counts) => counts.get(at).copied().unwrap_or(all),
        };
        let computed = match self.computed {
            Computed::Nothing => None,
            Computed::AllButLast => (from < to).then(|| all - 1),
            Computed::Counts(counts) => counts.get(at).copied(),
        };
        let runs = request.state == RequestState::Running;
        Row { at, slot, from, to, all, slots: sequence.slots_for(to - from, slots), computed, runs }
    }

    /// The tokens of a row.
    #[inline]
    pub(super) fn tokens_of(&self, row: &Row) -> &'a [u32] {
        self.tokens.get(row.from..row.to).unwrap_or(&[])
    }
}

/// What a row asks of its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// Its place in the call.
    at: usize,
    /// The slot of its request.
    slot: usize,
    /// Where its tokens are.
    from: usize,
    to: usize,
    /// Tokens that the request has with these.
    pub(super) all: usize,
    /// Tokens that its table is to cover.
    pub(super) slots: usize,
    /// How many of its tokens are computed, if something is said.
    computed: Option<usize>,
    /// Whether it runs. A preempted request gets its tokens, and nothing else.
    pub(super) runs: bool,
}

impl Row {
    /// Tokens that are written before those that its growth makes room for: accepted drafts are not
    /// written again.
    fn written(&self) -> usize {
        (self.all - (self.to - self.from)).max(self.computed.unwrap_or(0))
    }
}

/// The rows of a step.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// Those of which only tokens and counts change: most of them.
    quiet: Vec<Row>,
    /// The others.
    busy: Vec<Row>,
}

impl CacheManager {
    /// Appends one token to each of `requests`, with blocks where a boundary is crossed: the decode
    /// step of a whole batch, all or nothing. [`Self::append_ragged`] with one token each.
    ///
    /// # Errors
    /// As [`Self::append_ragged`].
    pub fn append(
        &mut self,
        requests: &[RequestRef<'_>],
        tokens: &[u32],
        computed: Computed<'_>,
    ) -> Result<Vec<NewBlock>> {
        self.append_ragged(&Rows { requests, tokens, computed, ..Rows::default() })
    }

    /// A whole step of a batch, all or nothing: commits what the step before has computed, appends what
    /// it sampled, any number of tokens to each request, and makes room for what the next one computes.
    /// Plain decode, decode with drafts (tokens are the accepted ones and the one sampled,
    /// [`Covered::Lookahead`] has room for the next drafts) and chunks of prompts go into one call. A
    /// preempted request gets its tokens too, and no blocks: [`Self::resume`] has blocks for all of
    /// them.
    ///
    /// Returns what changed in block tables, in call order; whoever writes to a shared block first gets
    /// a copy, which is planned. O(requests + tokens); a token that completes no block touches neither
    /// hasher nor pool.
    ///
    /// ```
    /// use kvpool::{CacheManager, Computed, Covered, ExtraKeys, ManagerConfig, Rows};
    /// let mut manager = CacheManager::new(ManagerConfig { num_blocks: 64, block_size: 4, ..Default::default() })?;
    /// for (id, prompt) in [("a", 0..4), ("b", 10..17)] {
    ///     let prompt = manager.prepare(&prompt.collect::<Vec<u32>>(), ExtraKeys::default())?;
    ///     manager.admit(id, prompt)?;
    /// }
    /// // The step samples a token for each prompt; the next one verifies three drafts of each.
    /// let requests = ["a".into(), "b".into()];
    /// let (computed, covered) = (Computed::AllButLast, Covered::Lookahead(3));
    /// let changes = manager.append_ragged(&Rows {
    ///     requests: &requests,
    ///     tokens: &[69, 79],
    ///     computed,
    ///     covered,
    ///     ..Rows::default()
    /// })?;
    /// assert_eq!(changes.iter().map(|new| (new.row, new.index)).collect::<Vec<_>>(), [(0, 1), (1, 2)]);
    /// // Of three drafts two were accepted for "a", none for "b"; three more are to be tried.
    /// let rows = Rows {
    ///     requests: &requests,
    ///     tokens: &[70, 71, 72, 80],
    ///     offsets: &[0, 3, 4],
    ///     computed,
    ///     covered,
    ///     ..Rows::default()
    /// };
    /// let changes = manager.append_ragged(&rows)?;
    /// assert_eq!(changes.iter().map(|new| (new.row, new.index)).collect::<Vec<_>>(), [(0, 2)]);
    /// assert_eq!(manager.request("a")?.computed_tokens, 7);
    /// # Ok::<(), kvpool::ManagerError>(())
    /// ```
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`] for the batch as a whole, [`ManagerError::UnknownRequest`],
    /// [`ManagerError::WrongState`] for a request that neither runs nor is preempted,
    /// [`ManagerError::NamedTwice`], [`ManagerError::LengthMismatch`], [`ManagerError::BadOffset`],
    /// [`ManagerError::BadComputedCount`], [`ManagerError::TooManyChanges`].
    pub fn append_ragged(&mut self, rows: &Rows<'_>) -> Result<Vec<NewBlock>> {
        let mut added = Vec::new();
        self.append_into(rows, &mut added).map(|()| added)
    }

    /// [`Self::append_ragged`] into a buffer of the caller's, whose content it replaces. Once the buffer and
    /// those of the manager have grown, a step allocates only where a request's own lists of tokens, hashes
    /// and blocks grow.
    ///
    /// ```
    /// use kvpool::{CacheManager, Computed, ExtraKeys, ManagerConfig, Rows};
    /// let mut manager = CacheManager::new(ManagerConfig { num_blocks: 64, block_size: 4, ..Default::default() })?;
    /// manager.admit("a", manager.prepare(&[1, 2, 3, 4], ExtraKeys::default())?)?;
    /// let (requests, mut changes) = (["a".into()], Vec::with_capacity(8));
    /// for sampled in 0..4 {
    ///     let rows = Rows { requests: &requests, tokens: &[sampled], computed: Computed::AllButLast, ..Rows::default() };
    ///     manager.append_into(&rows, &mut changes)?;
    ///     assert_eq!(changes.len(), usize::from(sampled == 0)); // the first token needs a block
    /// }
    /// # Ok::<(), kvpool::ManagerError>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::append_ragged`].
    pub fn append_into(&mut self, rows: &Rows<'_>, changes: &mut Vec<NewBlock>) -> Result<()> {
        changes.clear();
        let mut step = std::mem::take(&mut self.step);
        let done = self.append_step(rows, &mut step, changes);
        self.step = step;
        done
    }

    /// The same with memory for the rows.
    fn append_step(&mut self, rows: &Rows<'_>, step: &mut Step, added: &mut Vec<NewBlock>) -> Result<()> {
        let (needed, exchanged, in_place) = self.check_step(rows, step)?;
        if let Some(most) = rows.most_changes.filter(|&most| needed + exchanged > most) {
            return Err(ManagerError::TooManyChanges { needed: needed + exchanged, most });
        }
        added.reserve(needed + exchanged);
        for row in &step.quiet {
            let sequence = &mut self.requests.at_mut(row.slot)?.sequence;
            sequence.grow_in_place(rows.tokens_of(row), row.slots, row.computed);
        }
        // All that is committed first, and what that gives up: it is in the index when blocks are
        // evicted for others.
        for row in &step.busy {
            self.requests.at_mut(row.slot)?.sequence.append(rows.tokens_of(row));
            match row.computed.filter(|_| row.runs) {
                Some(computed) if exchanged > 0 => {
                    let mut moved = Vec::new();
                    self.commit_slot(row.slot, computed, Some(&mut moved))?;
                    note_changes(row.at, &moved, added);
                }
                Some(computed) => drop(self.commit_slot(row.slot, computed, None)?),
                None => {}
            }
        }
        // With one offset and no request, there may be tokens of no request.
        let appended = if rows.requests.is_empty() { 0 } else { rows.tokens.len() };
        self.stats.appended_tokens += appended as u64;
        self.version += rows.requests.len() as u64;
        for row in step.busy.iter().filter(|row| row.runs) {
            self.grow(row.slot, row.written(), row.slots, in_place)?;
            note_changes(row.at, &self.changes, added);
        }
        if exchanged > 0 {
            added.sort_by_key(|new| new.row);
        }
        // With what is left: no step has written to a state since.
        if self.groups.is_some() {
            (0..rows.requests.len()).try_for_each(|row| self.keep_states(self.rows[row]))?;
        }
        Ok(())
    }

    /// Looks up the rows of a step, and checks that all of it can be done. Returns the blocks that it
    /// takes, the entries of tables that its commits exchange, and whether registered blocks are
    /// written to in place.
    fn check_step(&mut self, rows: &Rows<'_>, step: &mut Step) -> Result<(usize, usize, bool)> {
        rows.check()?;
        step.quiet.clear();
        step.busy.clear();
        let mut given_up = GivenUp::default();
        let mut exchanged = 0;
        self.resolve_batch(rows.requests, APPENDABLE, "append to it", |at, slot, request, pool| {
            let row = rows.row(at, slot, request);
            let sequence = &request.sequence;
            if !row.runs {
                step.busy.push(row);
                return Ok(());
            }
            if let Some(asked) = row.computed {
                check_computed(request, pool, asked, row.all)?;
            }
            if sequence.needs_no_pool(row.all, row.slots, row.computed) {
                step.quiet.push(row);
                return Ok(());
            }
            step.busy.push(row);
            if let Some(computed) = row.computed {
                sequence.note_dying(computed, &mut given_up);
                exchanged += sequence.exchanged_by(computed);
            }
            Ok(())
        })?;
        let (needed, in_place) = self.check_rows(&step.busy, given_up)?;
        Ok((needed, exchanged, in_place))
    }

    /// Checks that the blocks are there which these rows take, once all of the step is committed.
    /// `given_up` are the references that this gives up. Returns how many blocks, and whether
    /// registered blocks are written to in place: there are none for copies.
    fn check_rows(&self, rows: &[Row], mut given_up: GivenUp) -> Result<(usize, bool)> {
        let pool = self.tiers.device();
        let is_freed =
            |&(block, &count): &(&BlockId, &i64)| pool.ref_count(*block).map(i64::from) == Some(count);
        let freed = given_up.iter().filter(is_freed).count();
        let available = pool.num_available() + freed;
        let running = || rows.iter().filter(|row| row.runs);
        let (mut needed, mut avoidable) = (0_usize, 0);
        for &Row { slot, all, slots, computed, .. } in running() {
            let needs = self.requests.at(slot)?.sequence.needs(pool, (all, computed), slots, &given_up);
            needs.copied.into_iter().for_each(|block| *given_up.entry(block).or_default() += 1);
            needed = needed.saturating_add(needs.blocks);
            avoidable += needs.avoidable;
        }
        if needed <= available {
            return Ok((needed, false));
        }
        let least = needed - avoidable;
        if least <= available {
            return Ok((least, true));
        }
        let fits = |&Row { slot, all, slots, computed, .. }: &Row| {
            self.requests
                .at(slot)
                .is_ok_and(|request| request.sequence.fits_alone(pool, all, slots, computed))
        };
        Err(out_of_blocks(pool, least, available, running().all(fits)).into())
    }

    /// Looks up every request of a batch, whose slots go to `self.rows`, and lets `check` look at each.
    /// From one step to the next most rows stay the same request: comparing its id is cheaper than
    /// looking it up.
    #[inline]
    pub(super) fn resolve_batch(
        &mut self,
        named: &[RequestRef<'_>],
        states: &[RequestState],
        operation: &'static str,
        mut check: impl FnMut(usize, usize, &Request, &BlockPool) -> Result<()>,
    ) -> Result<()> {
        self.check_poison()?;
        self.batch += 1;
        let Self { requests, rows, tiers, batch, .. } = self;
        for (row, &id) in named.iter().enumerate() {
            let known = rows.get(row).copied().filter(|&slot| requests.has_id(slot, id));
            let slot = known.map_or_else(|| requests.find(id), Ok)?;
            let request = requests.at_mut(slot)?;
            request.check_state(states, operation)?;
            if std::mem::replace(&mut request.batch, *batch) == *batch {
                return Err(ManagerError::NamedTwice { id: request.id.clone(), scope: "call" });
            }
            check(row, slot, request, tiers.device())?;
            match rows.get_mut(row) {
                Some(known) => *known = slot,
                None => rows.push(slot),
            }
        }
        rows.truncate(named.len());
        Ok(())
    }

    /// The slots of the latest batch ([`Self::append_ragged`], [`Self::commit_batch`],
    /// [`Self::truncate_batch`]), in its order: all of them if the call succeeded, or was refused for
    /// want of blocks.
    #[doc(hidden)]
    #[must_use]
    pub fn batch_slots(&self) -> &[usize] {
        &self.rows
    }

    /// Appends several tokens to one request: a chunk of streamed input, or accepted drafts, and makes
    /// room for `lookahead` more. Returns the positions of its block table that changed. Atomic.
    /// O(tokens).
    ///
    /// # Errors
    /// As [`Self::append_ragged`].
    pub fn append_tokens<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        tokens: &[u32],
        lookahead: usize,
    ) -> Result<Vec<TableChange>> {
        self.append_turn(id, tokens, &[], lookahead)
    }

    /// [`Self::append_tokens`] of a turn that brings multimodal items: see
    /// [`crate::HashCursor::append_with`].
    ///
    /// # Errors
    /// As [`Self::append_tokens`]; [`ManagerError::Hash`] for items that begin before the end of the
    /// tokens so far, or that the algorithm cannot represent.
    pub fn append_turn<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        tokens: &[u32],
        multimodal: &[MultimodalItem],
        lookahead: usize,
    ) -> Result<Vec<TableChange>> {
        let slot = self.slot_in(id.into(), APPENDABLE, "append to it")?;
        let sequence = &self.requests.at(slot)?.sequence;
        let all = sequence.num_tokens().saturating_add(tokens.len());
        self.append_slot(slot, tokens, multimodal, all.saturating_add(lookahead))
    }

    /// Makes the table of a running request cover its first `num_tokens` tokens, or slots behind its
    /// last one: the next chunk of a chunked prefill ([`crate::Part::allocate_tokens`]). Covers no less
    /// than before. Returns the positions that changed. Atomic. O(new blocks).
    ///
    /// # Errors
    /// As [`Self::append_ragged`].
    pub fn extend<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        num_tokens: usize,
    ) -> Result<Vec<TableChange>> {
        let slot = self.slot_in(id.into(), &[RequestState::Running], "extend it")?;
        self.append_slot(slot, &[], &[], num_tokens)
    }

    /// Makes the tables of an encoder's output cover its first `num_tokens` tokens, in groups of kind
    /// [`GroupKind::Cross`](crate::groups::GroupKind): they are written once, nothing of them is
    /// cached, and the request holds them until it is preempted or released. Returns the positions that
    /// changed. Atomic. O(new blocks).
    ///
    /// # Errors
    /// As [`Self::append_ragged`].
    pub fn extend_encoder<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        num_tokens: usize,
    ) -> Result<Vec<TableChange>> {
        let slot = self.slot_in(id.into(), &[RequestState::Running], "extend it")?;
        let Self { requests, tiers, .. } = self;
        let (request, pool) = (requests.at_mut(slot)?, tiers.device());
        let needed = request.sequence.encoder_blocks_for(num_tokens);
        let available = pool.num_available();
        if needed > available {
            let can_ever_fit = request.sequence.num_held().saturating_add(needed) <= pool.num_usable();
            return Err(out_of_blocks(pool, needed, available, can_ever_fit).into());
        }
        let mut changes = Vec::new();
        request.sequence.grow_encoder(tiers, num_tokens, &mut changes)?;
        self.version += 1;
        self.tell_changed(Some(slot));
        Ok(changes)
    }

    /// Appends tokens to one request, and covers `slots` if it runs.
    pub(super) fn append_slot(
        &mut self,
        slot: usize,
        tokens: &[u32],
        multimodal: &[MultimodalItem],
        slots: usize,
    ) -> Result<Vec<TableChange>> {
        let (request, pool) = (self.requests.at(slot)?, self.tiers.device());
        let (sequence, slots) = (&request.sequence, request.sequence.slots_for(tokens.len(), slots));
        let mut in_place = false;
        if request.state == RequestState::Running {
            let (all, available) = (sequence.num_tokens() + tokens.len(), pool.num_available());
            let needs = sequence.check_growth(pool, all, slots, available, &GivenUp::default())?;
            in_place = !needs.overwritten.is_empty();
        }
        // The last that can fail: items may lie ahead of their tokens.
        self.requests.at_mut(slot)?.sequence.cursor.append_with(&[], multimodal)?;
        self.append_checked(slot, tokens, slots, in_place)
    }

    /// The same, after a check that the blocks are available. With `in_place`, it writes to registered
    /// blocks that nobody else holds.
    pub(super) fn append_checked(
        &mut self,
        slot: usize,
        tokens: &[u32],
        slots: usize,
        in_place: bool,
    ) -> Result<Vec<TableChange>> {
        let request = self.requests.at_mut(slot)?;
        let (runs, before) = (request.state == RequestState::Running, request.sequence.num_tokens());
        request.sequence.append(tokens);
        self.note_appended(tokens);
        if !runs {
            return Ok(Vec::new());
        }
        self.grow(slot, before, slots, in_place)?;
        Ok(self.changes.clone())
    }

    #[inline]
    fn note_appended(&mut self, tokens: &[u32]) {
        self.stats.appended_tokens += tokens.len() as u64;
        self.version += 1;
    }

    /// Covers `slots` of a running request, whose slots behind the first `before` are to be written,
    /// after a check that its blocks are available. With `in_place`, it writes to registered blocks
    /// that nobody else holds. The positions that changed are in `self.changes` then.
    fn grow(&mut self, slot: usize, before: usize, slots: usize, in_place: bool) -> Result<()> {
        let Self { tiers, requests, changes, .. } = self;
        let request = requests.at_mut(slot)?;
        changes.clear();
        if in_place {
            request.sequence.forget_guarded(tiers.device_mut(), before, slots)?;
        }
        request.sequence.grow(tiers, before, slots, changes)?;
        if in_place {
            self.contents_changed();
        }
        if !self.changes.is_empty() {
            self.tell_changed(Some(slot));
        }
        Ok(())
    }

    /// Says that the engine has written the KV of the request's first `computed_tokens` tokens. Blocks
    /// that this fills are registered and can be hit from now on, but for requests admitted before an
    /// epoch bump, and behind a hash collision. Returns how many; what forks share is counted once, by
    /// whoever commits it first. O(new full blocks), allocates nothing.
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`], [`ManagerError::WrongState`] for one that does not run,
    /// [`ManagerError::BadComputedCount`] for more than the request's tokens, or than its table covers,
    /// or fewer than were computed before.
    pub fn commit<'a>(&mut self, id: impl Into<RequestRef<'a>>, computed_tokens: usize) -> Result<usize> {
        let slot = self.slot_in(id.into(), &[RequestState::Running], COMMIT)?;
        let request = self.requests.at(slot)?;
        check_computed(request, self.tiers.device(), computed_tokens, request.sequence.num_tokens())?;
        let registered = self.commit_slot(slot, computed_tokens, None)?;
        self.keep_states(slot)?;
        Ok(registered)
    }

    /// Keeps the states that the latest commit of a request ended at, as far as there are blocks.
    pub(super) fn keep_states(&mut self, slot: usize) -> Result<()> {
        let kept = self.requests.at_mut(slot)?.sequence.keep_states(&mut self.tiers)?;
        if kept > 0 {
            self.stats.checkpoints += kept as u64;
            self.contents_changed();
        }
        Ok(())
    }

    /// [`Self::commit`] for a batch, all or nothing.
    ///
    /// # Errors
    /// As [`Self::commit`], and [`ManagerError::LengthMismatch`].
    pub fn commit_batch(&mut self, requests: &[RequestRef<'_>], computed_tokens: &[usize]) -> Result<usize> {
        check_length(requests, computed_tokens.len(), "counts")?;
        self.resolve_batch(requests, &[RequestState::Running], COMMIT, |row, _, request, pool| {
            check_computed(request, pool, computed_tokens[row], request.sequence.num_tokens())
        })?;
        let rows = 0..computed_tokens.len();
        let registered = rows.clone().zip(computed_tokens).try_fold(0, |sum, (row, &n)| {
            Ok::<_, ManagerError>(sum + self.commit_slot(self.rows[row], n, None)?)
        })?;
        if self.groups.is_some() {
            rows.into_iter().try_for_each(|row| self.keep_states(self.rows[row]))?;
        }
        Ok(registered)
    }

    /// Commits tokens of the request in a slot, after a check. With several groups, `changes` gets the
    /// entries of tables of states that moved.
    #[inline]
    pub(super) fn commit_slot(
        &mut self,
        slot: usize,
        computed_tokens: usize,
        changes: Option<&mut Vec<TableChange>>,
    ) -> Result<usize> {
        let sequence = &mut self.requests.at_mut(slot)?.sequence;
        let moves = self.groups.is_some() && sequence.exchanged_by(computed_tokens) > 0;
        let (before, seen) = (sequence.main.published, sequence.num_published());
        let registered = sequence.commit(self.tiers.device_mut(), computed_tokens, changes)?;
        let published = before..sequence.main.published;
        let seen = seen..sequence.num_published();
        self.version += 1;
        if !seen.is_empty() {
            self.tell(|observer, manager| observer.published(slot, seen, manager));
        }
        if !published.is_empty() {
            self.apply_hints(slot, None, published, Scope::All)?;
        }
        if moves {
            self.tell_changed(Some(slot));
        }
        Ok(registered)
    }
}

const COMMIT: &str = "commit tokens of it";

/// Adds the positions of a row's tables that changed to those of a batch.
fn note_changes(row: usize, changes: &[TableChange], added: &mut Vec<NewBlock>) {
    let changes = changes.iter();
    added.extend(changes.map(|&TableChange { index, block, group }| NewBlock { row, index, block, group }));
}

/// A preempted request waits for blocks, but not for tokens: the step that was under way may have
/// sampled one.
pub(super) const APPENDABLE: &[RequestState] = &[RequestState::Running, RequestState::Preempted];

/// Refuses a batch whose lists differ in length.
pub(super) fn check_length(requests: &[RequestRef<'_>], values: usize, what: &'static str) -> Result<()> {
    if requests.len() == values {
        return Ok(());
    }
    Err(ManagerError::LengthMismatch { requests: requests.len(), values, what })
}

/// Refuses more computed tokens than there are then, or than had blocks until now: no step can have
/// computed those. And fewer than before.
#[inline]
fn check_computed(request: &Request, pool: &BlockPool, asked: usize, tokens: usize) -> Result<()> {
    let (sequence, computed) = (&request.sequence, request.sequence.computed_tokens);
    let is_draft = asked > sequence.num_tokens();
    let covered = if is_draft { sequence.computable_tokens(pool) } else { sequence.covered_tokens() };
    if asked >= computed && asked <= tokens && asked <= covered {
        return Ok(());
    }
    let id = request.id.clone();
    Err(ManagerError::BadComputedCount { id, asked, tokens, computed, covered: covered.min(tokens) })
}
