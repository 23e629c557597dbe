//! Grows requests: appends tokens, allocates blocks for them and for chunks of a prompt, and commits
//! computed tokens.

use super::CacheManager;
use super::error::{ManagerError, Result};
use super::hints::Scope;
use super::id::{RequestRef, RequestState};
use super::request::Request;
use crate::hash::MultimodalItem;
use crate::sequence::{GivenUp, TableChange};
use crate::tiers::out_of_blocks;
use crate::{BlockId, BlockPool};

/// One block table entry that an append has changed: a new block at the end, or a copy that replaces a
/// shared or registered block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewBlock {
    /// The position of the request in the list of the call.
    pub row: usize,
    /// The position in the block table of the request.
    pub index: usize,
    /// The block that is now at this position.
    pub block: BlockId,
    /// The KV-cache group that the table belongs to. 0 if the model has only one group.
    pub group: u16,
}

/// Which tokens the previous step has computed. The call commits them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Computed<'a> {
    /// The call commits no tokens. [`CacheManager::commit`] can commit them later.
    #[default]
    Nothing,
    /// All tokens but the last are computed, for each request that gets tokens in this call. The step
    /// that sampled the last token has written the KV of all tokens before it, including accepted
    /// drafts. Do not use this variant for tokens that no step sampled, such as the next turn of a
    /// chat.
    AllButLast,
    /// The first `counts[i]` tokens of request `i` are computed, including tokens of this call.
    /// Accepted drafts may be included, because they got slots in an earlier call
    /// ([`Covered::Lookahead`]).
    Counts(&'a [usize]),
}

/// Which tokens need blocks in the next step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Covered<'a> {
    /// All tokens of each request.
    #[default]
    All,
    /// All tokens of each request, and this number of additional slots for drafts.
    Lookahead(usize),
    /// At least the first `counts[i]` tokens and drafts of request `i`. Use this variant for chunks of
    /// a prompt, or for drafts of different lengths.
    Each(&'a [usize]),
}

/// The argument of [`CacheManager::append_ragged`]: for each request, the results of the last step, and
/// the blocks that the next step needs.
///
/// ```
/// use kvpool::{Computed, Covered, Rows};
/// // "a" gets two accepted drafts and a sampled token, "b" one token. Each gets slots for three drafts.
/// let requests = ["a".into(), "b".into()];
/// let rows = Rows {
///     requests: &requests,
///     tokens: &[7, 8, 9, 5],
///     offsets: &[0, 3, 4],
///     computed: Computed::AllButLast,
///     covered: Covered::Lookahead(3),
///     ..Rows::default()
/// };
/// assert_eq!(rows.offsets.len(), rows.requests.len() + 1);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Rows<'a> {
    /// The requests. Each may appear once.
    pub requests: &'a [RequestRef<'a>],
    /// The tokens of all requests, one request after the other.
    pub tokens: &'a [u32],
    /// The index in `tokens` at which the tokens of each request begin: request `i` gets
    /// `tokens[offsets[i]..offsets[i + 1]]`. The list has one entry more than `requests`. If it is
    /// empty, each request gets one token.
    pub offsets: &'a [usize],
    /// Which tokens the previous step has computed.
    pub computed: Computed<'a>,
    /// Which tokens need blocks in the next step.
    pub covered: Covered<'a>,
    /// The largest number of block table changes that the caller has room for. A call with more changes
    /// is refused ([`ManagerError::TooManyChanges`]).
    pub most_changes: Option<usize>,
}

impl<'a> Rows<'a> {
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

    /// Whether each request gets one token, and slots only for its tokens.
    const fn is_decode(&self) -> bool {
        self.offsets.is_empty()
            && matches!(self.covered, Covered::All | Covered::Lookahead(0))
            && !matches!(self.computed, Computed::Counts(_))
    }

    /// Makes the row of one request of the batch. The caller must have called [`Self::check`].
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

    #[inline]
    pub(super) fn tokens_of(&self, row: &Row) -> &'a [u32] {
        self.tokens.get(row.from..row.to).unwrap_or(&[])
    }
}

/// The part of one request in a batch: its new tokens and counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    /// The position of the request in the list of the call.
    at: usize,
    slot: usize,
    /// The request's new tokens are `from..to` in the token list of the call.
    from: usize,
    to: usize,
    /// Number of tokens of the request after the call.
    pub(super) all: usize,
    /// Number of slots, for tokens and drafts, that the request's tables have room for after the call.
    pub(super) slots: usize,
    /// Number of computed tokens that the call commits, if it commits any.
    computed: Option<usize>,
    /// Whether the request is running. If it is preempted, it only gets the tokens and no blocks.
    pub(super) runs: bool,
}

impl Row {
    /// Number of leading slots that the next step does not write. It includes accepted drafts, because
    /// a previous step has written their slots.
    fn written(&self) -> usize {
        (self.all - (self.to - self.from)).max(self.computed.unwrap_or(0))
    }
}

/// The requests of a step, one row each.
#[derive(Debug, Default)]
pub(super) struct Step {
    /// Rows that change only tokens and counts, and call no operation of the pool. Most rows are of
    /// this kind. A decode step leaves them out of both lists, and finds them by their positions.
    quiet: Vec<Row>,
    /// Rows that allocate, register or release blocks, and rows of preempted requests.
    busy: Vec<Row>,
    /// The blocks that the step has allocated.
    blocks: Vec<BlockId>,
}

/// # Steps: appended tokens
impl CacheManager {
    /// Appends one token to each of `requests`, all or nothing. This is the decode step of a whole
    /// batch. If the token of a request begins a new block, the request gets a block. Like
    /// [`Self::append_ragged`] with one token per request.
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

    /// Runs one scheduler step for a batch, all or nothing. The call commits the tokens that the
    /// previous step computed, appends the tokens that it sampled, and allocates blocks for the next
    /// step. Each request gets any number of tokens.
    ///
    /// One call can mix plain decode, decode with drafts, and chunks of prompts. With drafts, the
    /// tokens are the accepted drafts and the sampled token, and [`Covered::Lookahead`] allocates slots
    /// for the next drafts. A preempted request gets its tokens but no blocks; [`Self::resume`]
    /// allocates blocks for all of its tokens.
    ///
    /// Returns the changes of block tables, in call order. The first request that writes to a shared
    /// block gets a copy, and the copy is planned. O(requests + tokens). A token that does not fill a
    /// block needs no work of the hasher or the pool.
    ///
    /// ```
    /// use kvpool::{CacheManager, Computed, Covered, ExtraKeys, ManagerConfig, Rows};
    /// let config = ManagerConfig { num_blocks: 64, block_size: 4, ..Default::default() };
    /// let mut manager = CacheManager::new(config)?;
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
    /// // Two of the three drafts were accepted for "a", none for "b". The next step has three drafts, too.
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
    /// [`ManagerError::WrongState`] for a request that is neither running nor preempted,
    /// [`ManagerError::NamedTwice`], [`ManagerError::LengthMismatch`], [`ManagerError::BadOffset`],
    /// [`ManagerError::BadComputedCount`], [`ManagerError::TooManyChanges`].
    pub fn append_ragged(&mut self, rows: &Rows<'_>) -> Result<Vec<NewBlock>> {
        let mut added = Vec::new();
        self.append_into(rows, &mut added).map(|()| added)
    }

    /// Like [`Self::append_ragged`], but writes the changes to a buffer of the caller, whose previous
    /// contents are removed. After the first steps, this buffer and the manager's own buffers are large
    /// enough. A step then allocates memory only when a request's lists of tokens, hashes and blocks
    /// grow, which they do by many blocks at a time.
    ///
    /// ```
    /// use kvpool::{CacheManager, Computed, ExtraKeys, ManagerConfig, Rows};
    /// let config = ManagerConfig { num_blocks: 64, block_size: 4, ..Default::default() };
    /// let mut manager = CacheManager::new(config)?;
    /// manager.admit("a", manager.prepare(&[1, 2, 3, 4], ExtraKeys::default())?)?;
    /// let (requests, mut changes) = (["a".into()], Vec::with_capacity(8));
    /// for sampled in 0..4 {
    ///     let tokens = [sampled];
    ///     let mut rows = Rows { requests: &requests, tokens: &tokens, ..Rows::default() };
    ///     rows.computed = Computed::AllButLast;
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

    /// Does the work of [`Self::append_into`]. `step` contains the lists of rows, whose memory every
    /// step reuses.
    fn append_step(&mut self, rows: &Rows<'_>, step: &mut Step, added: &mut Vec<NewBlock>) -> Result<()> {
        let decodes = self.groups.is_none() && rows.is_decode();
        let (needed, exchanged, in_place) = self.check_step(rows, decodes, step)?;
        if let Some(most) = rows.most_changes.filter(|&most| needed + exchanged > most) {
            return Err(ManagerError::TooManyChanges { needed: needed + exchanged, most });
        }
        added.reserve(needed + exchanged);
        if decodes {
            self.append_in_place(rows, &step.busy)?;
        }
        for row in step.quiet.iter().filter(|_| !decodes) {
            let sequence = &mut self.requests.at_mut(row.slot)?.sequence;
            sequence.grow_in_place(rows.tokens_of(row), row.slots, row.computed);
        }
        // All commits come before all allocations. So blocks that a commit registers can be hit, and
        // blocks that it releases are available, when other requests need blocks.
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
        // Without requests, `tokens` may still contain tokens, which belong to no request. They are not
        // counted.
        let appended = if rows.requests.is_empty() { 0 } else { rows.tokens.len() };
        self.stats.appended_tokens += appended as u64;
        self.version += rows.requests.len() as u64;
        if self.grows_at_once(&step.busy) {
            self.grow_at_once(step, needed, added)?;
        } else {
            for row in step.busy.iter().filter(|row| row.runs) {
                self.grow(row.slot, row.written(), row.slots, in_place)?;
                note_changes(row.at, &self.changes, added);
            }
        }
        if exchanged > 0 {
            added.sort_by_key(|new| new.row);
        }
        // Copies of recurrent states are made last, so that they only use blocks that nothing else
        // needs. No step has overwritten the states since the commit.
        if self.groups.is_some() {
            (0..rows.requests.len()).try_for_each(|row| self.keep_states(self.rows[row]))?;
        }
        Ok(())
    }

    /// Appends the token of each row of a decode step that is not in `busy`, and commits its other
    /// tokens if the step commits tokens.
    #[inline]
    fn append_in_place(&mut self, rows: &Rows<'_>, busy: &[Row]) -> Result<()> {
        let commits = rows.computed == Computed::AllButLast;
        let mut busy = busy.iter().map(|row| row.at).peekable();
        for (at, (&slot, token)) in self.rows.iter().zip(rows.tokens).enumerate() {
            if busy.next_if_eq(&at).is_none() {
                let sequence = &mut self.requests.at_mut(slot)?.sequence;
                let before = sequence.num_tokens();
                sequence.grow_in_place(std::slice::from_ref(token), before + 1, commits.then_some(before));
            }
        }
        Ok(())
    }

    /// Whether one call of the pool can allocate the blocks of all rows. It cannot if some rows may need
    /// copies, or if an observer has to be notified of the changes of each request.
    fn grows_at_once(&self, rows: &[Row]) -> bool {
        let is_own =
            |row: &Row| self.requests.at(row.slot).is_ok_and(|request| !request.sequence.main.is_guarded());
        self.groups.is_none() && self.observer.is_none() && rows.iter().all(is_own)
    }

    /// Allocates the `needed` blocks of all rows, in the order in which [`Self::grow`] would allocate
    /// them row by row.
    fn grow_at_once(&mut self, step: &mut Step, needed: usize, added: &mut Vec<NewBlock>) -> Result<()> {
        step.blocks.clear();
        self.tiers.device_mut().allocate_into(needed, &mut step.blocks)?;
        let mut blocks = step.blocks.iter().copied();
        for row in step.busy.iter().filter(|row| row.runs) {
            let table = &mut self.requests.at_mut(row.slot)?.sequence.main;
            for block in blocks.by_ref().take(table.missing_for(row.all, row.slots)) {
                added.push(NewBlock { row: row.at, index: table.blocks.len(), block, group: table.group });
                table.push(block);
            }
        }
        Ok(())
    }

    /// Makes the rows of a step, and checks that the whole step is possible. Returns three values: the
    /// number of blocks that the step takes, the number of table entries that its commits exchange, and
    /// whether registered blocks are written in place. `decodes` is [`Rows::is_decode`] of a model with
    /// one group.
    fn check_step(
        &mut self,
        rows: &Rows<'_>,
        decodes: bool,
        step: &mut Step,
    ) -> Result<(usize, usize, bool)> {
        rows.check()?;
        let commits = rows.computed == Computed::AllButLast;
        step.quiet.clear();
        step.busy.clear();
        let mut given_up = GivenUp::default();
        let mut exchanged = 0;
        self.resolve_batch(rows.requests, APPENDABLE, "append to it", |at, slot, request, pool| {
            let sequence = &request.sequence;
            if decodes && request.state == RequestState::Running {
                let before = sequence.num_tokens();
                if sequence.main.needs_no_pool(before + 1, before + 1, commits.then_some(before)) {
                    return Ok(());
                }
            }
            let row = rows.row(at, slot, request);
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

    /// Checks that enough blocks for these rows are available after all commits of the step. `given_up`
    /// contains the references that the commits release. Returns the number of blocks to allocate, and
    /// whether registered blocks are written in place, because the pool has no blocks for copies of
    /// them.
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

    /// Looks up every request of a batch, stores its slot in `self.rows`, and calls `check` for it.
    /// Most batches contain the same requests as the previous one. So each id is first compared with
    /// the request at the same position of the previous batch, which is cheaper than a lookup.
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
            let slot = match known {
                Some(slot) => slot,
                None => {
                    let slot = requests.find(id)?;
                    match rows.get_mut(row) {
                        Some(known) => *known = slot,
                        None => rows.push(slot),
                    }
                    slot
                }
            };
            let request = requests.at_mut(slot)?;
            request.check_state(states, operation)?;
            if std::mem::replace(&mut request.batch, *batch) == *batch {
                return Err(ManagerError::NamedTwice { id: request.id.clone(), scope: "call" });
            }
            check(row, slot, request, tiers.device())?;
        }
        rows.truncate(named.len());
        Ok(())
    }

    /// Returns the slots of the requests in the latest batch ([`Self::append_ragged`],
    /// [`Self::commit_batch`], [`Self::truncate_batch`]), in its order. The list is complete if the
    /// call succeeded, or was refused because blocks were missing.
    #[doc(hidden)]
    #[must_use]
    pub fn batch_slots(&self) -> &[usize] {
        &self.rows
    }

    /// Appends several tokens to one request, for instance a chunk of streamed input or accepted
    /// drafts, and allocates slots for `lookahead` more tokens. Returns the changes of its block
    /// tables. All or nothing. O(tokens).
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

    /// Like [`Self::append_tokens`], for a turn that contains multimodal items: see
    /// [`crate::HashCursor::append_with`].
    ///
    /// # Errors
    /// As [`Self::append_tokens`]; [`ManagerError::Hash`] for items that begin before the end of the
    /// request's tokens, or that the hash algorithm cannot represent.
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

    /// Allocates blocks so that the tables of a running request cover its first `num_tokens` tokens.
    /// Use this call for the next chunk of a chunked prefill ([`crate::Part::allocate_tokens`]). If
    /// `num_tokens` is above the request's number of tokens, the remaining slots are for drafts. The
    /// call never shrinks the tables. Returns the changes of the block tables. All or nothing. O(new
    /// blocks).
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

    /// Allocates blocks for the first `num_tokens` tokens of an encoder's output, in groups of kind
    /// [`GroupKind::Cross`](crate::groups::GroupKind). These blocks are written once and never cached.
    /// The request holds them until it is preempted or released. Returns the changes of the block
    /// tables. All or nothing. O(new blocks).
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
        self.notify_changed(Some(slot));
        Ok(changes)
    }

    /// Appends tokens to one request. If the request is running, its tables have room for `slots`
    /// tokens and drafts afterwards.
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
        // `append_with` is the last check that can fail: multimodal items must not begin before the end
        // of the request's tokens.
        self.requests.at_mut(slot)?.sequence.cursor.append_with(&[], multimodal)?;
        self.append_checked(slot, tokens, slots, in_place)
    }

    /// Appends tokens after the checks of [`Self::append_slot`]. The caller has checked that the blocks
    /// are available. With `in_place`, the request writes to registered blocks that no other request
    /// holds, instead of copying them.
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

    /// Allocates blocks so that the tables of a running request have room for `slots` tokens and
    /// drafts. The caller has checked that the blocks are available. The engine will write all slots
    /// but the first `before`. With `in_place`, the request writes to registered blocks that no other
    /// request holds, instead of copying them. Stores the changes in `self.changes`.
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
            self.notify_changed(Some(slot));
        }
        Ok(())
    }
}

/// # Steps: computed tokens
impl CacheManager {
    /// Records that the engine has written the KV of the request's first `computed_tokens` tokens.
    /// Registers the blocks that have become full, so other requests can hit them. Blocks of requests
    /// that were admitted before an epoch bump, and blocks after a hash collision, are not registered.
    /// Returns the number of registered blocks. A block that several forks share is counted only for
    /// the request that commits it first. O(new full blocks), without memory allocations.
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`]; [`ManagerError::WrongState`] if the request is not running;
    /// [`ManagerError::BadComputedCount`] if `computed_tokens` is above the number of tokens or of
    /// covered tokens, or below the number of tokens that were computed before.
    pub fn commit<'a>(&mut self, id: impl Into<RequestRef<'a>>, computed_tokens: usize) -> Result<usize> {
        let slot = self.slot_in(id.into(), &[RequestState::Running], COMMIT)?;
        let request = self.requests.at(slot)?;
        check_computed(request, self.tiers.device(), computed_tokens, request.sequence.num_tokens())?;
        let registered = self.commit_slot(slot, computed_tokens, None)?;
        self.keep_states(slot)?;
        Ok(registered)
    }

    /// Makes the copies of recurrent states that the latest commit of a request allows, as long as
    /// blocks are available. Later requests can hit these copies.
    pub(super) fn keep_states(&mut self, slot: usize) -> Result<()> {
        let kept = self.requests.at_mut(slot)?.sequence.keep_states(&mut self.tiers)?;
        if kept > 0 {
            self.stats.checkpoints += kept as u64;
            self.contents_changed();
        }
        Ok(())
    }

    /// Like [`Self::commit`], for a batch, all or nothing.
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

    /// Commits tokens of the request in a slot. The caller has checked their number. With several
    /// groups, a commit can exchange blocks in the tables of recurrent states; these changes are
    /// appended to `changes`.
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
            self.notify(|observer, manager| observer.published(slot, seen, manager));
        }
        if !published.is_empty() {
            self.apply_hints(slot, None, published, Scope::All)?;
        }
        if moves {
            self.notify_changed(Some(slot));
        }
        Ok(registered)
    }
}

const COMMIT: &str = "commit tokens of it";

fn note_changes(row: usize, changes: &[TableChange], added: &mut Vec<NewBlock>) {
    let changes = changes.iter();
    added.extend(changes.map(|&TableChange { index, block, group }| NewBlock { row, index, block, group }));
}

/// The states in which a request can get tokens. A request may be preempted while a step runs that
/// samples a token for it, so preempted requests are included.
pub(super) const APPENDABLE: &[RequestState] = &[RequestState::Running, RequestState::Preempted];

pub(super) fn check_length(requests: &[RequestRef<'_>], values: usize, what: &'static str) -> Result<()> {
    if requests.len() == values {
        return Ok(());
    }
    Err(ManagerError::LengthMismatch { requests: requests.len(), values, what })
}

/// Checks a number of computed tokens to commit. It must not be above the number of tokens after the
/// call, or above the number of tokens that had blocks before the call, because no step can have
/// computed others. It must not be below the previous number.
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
