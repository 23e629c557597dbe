//! Admits requests: one atomic call finds the cached blocks of a hashed prompt and allocates the
//! others. Also releases, preempts and resumes requests.

use super::CacheManager;
use super::answers::{Admission, AdmissionFit, GroupFit};
use super::error::{ManagerError, Refused, Result};
use super::hints::{AdmitOptions, Hints, Scope};
use super::id::{RequestId, RequestRef, RequestState};
use super::observe::Admitted;
use super::request::{External, PREEMPT, PREEMPTIBLE, RELEASABLE, RELEASE, ReleaseOptions, Request};
use super::step::StepPlan;
use crate::groups::{GroupKind, Groups, Tokens};
use crate::hash::HashCursor;
use crate::retention::HintReport;
use crate::sequence::{Grouped, Part, Room, Sequence, Staged, StagedTable, Table};
use crate::tiers::Fit;
use crate::{BlockId, PoolError, Signal, Until};

/// # Admission
///
/// An admission makes a running request from a hashed prompt, in one atomic call.
impl CacheManager {
    /// Admits a request: finds the cached prefix of its prompt, acquires these blocks, and allocates
    /// the rest, all or nothing. O(blocks). The engine always has to compute the last token of the
    /// prompt. Every block of the prompt is allocated at once, so a chunked prefill cannot run out of
    /// blocks later. [`Self::admit_with`] can allocate chunk by chunk ([`Part::allocate_tokens`]).
    ///
    /// # Errors
    /// [`Refused`] contains the prompt and one of these errors: [`ManagerError::OutOfBlocks`] (the
    /// number of missing blocks, whether the request can ever fit, and how many of its tokens would fit
    /// now), [`ManagerError::DuplicateRequest`], [`ManagerError::EmptyPrompt`],
    /// [`ManagerError::ForeignCursor`], [`crate::PoolError::StaleEpoch`]. Nothing has changed then.
    pub fn admit(&mut self, id: impl Into<RequestId>, cursor: HashCursor) -> Result<Admission, Refused> {
        self.admit_with(id, cursor, &AdmitOptions::default())
    }

    /// Returns how many tokens of a prompt are cached, and how many would get blocks now, without
    /// admitting the prompt. Changes nothing. O(blocks matched).
    ///
    /// # Errors
    /// As [`Self::admit`], but missing blocks are no error; [`PoolError::InvalidConfig`] for a prompt
    /// that has no tokens, or only external ones.
    pub fn fit(&self, cursor: &HashCursor, part: Part) -> Result<AdmissionFit> {
        let staged = self.find(cursor, part)?;
        let pool = self.tiers.device();
        let fit = match staged.refusal(pool, self.groups()) {
            None => Fit::Ok,
            Some(refusal) if refusal.can_ever_fit => Fit::Later,
            Some(refusal) if refusal.fits_in_chunks => Fit::InChunks,
            Some(_) => Fit::Never,
        };
        let can_ever_fit = staged.can_ever_fit(pool, self.groups());
        let Staged { cached_tokens, new_blocks, fitting_tokens, .. } = staged;
        Ok(AdmissionFit { fit, cached_tokens, new_blocks, fitting_tokens, can_ever_fit })
    }

    /// Returns the number of entries that the block table of the first group would have after an
    /// admission. A buffer for [`Admission::block_ids`] needs this size. Changes nothing. O(1) for a
    /// whole prompt; with [`Part::allocate_tokens`] O(blocks matched).
    ///
    /// # Errors
    /// As [`Self::fit`].
    pub fn admitted_entries(&self, cursor: &HashCursor, part: Part) -> Result<usize> {
        let covered = match part.allocate_tokens {
            None => cursor.num_tokens(),
            Some(_) => self.find(cursor, part)?.covered_tokens,
        };
        let Some(groups) = self.groups() else {
            return Ok(covered.div_ceil(self.tiers.device().block_size()));
        };
        let first = groups.specs()[0];
        Ok(match first.kind {
            GroupKind::State => 1,
            GroupKind::Cross => 0,
            _ => first.covering(Tokens(covered)).0,
        })
    }

    /// Looks a prompt up for [`Self::fit`] and similar calls, after it has checked their arguments.
    fn find(&self, cursor: &HashCursor, part: Part) -> Result<Staged> {
        self.check_poison()?;
        self.check_cursor(cursor)?;
        let tokens = cursor.num_tokens();
        if tokens == 0 {
            return Err(PoolError::config("tokens", 0, "at least 1").into());
        }
        if part.external_tokens >= tokens {
            let expected = format!("fewer than the prompt's {tokens}");
            return Err(PoolError::config("external_tokens", part.external_tokens, expected).into());
        }
        Ok(Staged::find(self.tiers.device(), self.groups(), cursor, part, self.room_for(None))?)
    }

    /// Returns, for each KV-cache group, how many tokens of a prompt this group alone could hit, and
    /// how many blocks an admission would allocate in it. The group with the fewest tokens limits the
    /// hit. Changes nothing. O(blocks) per group.
    ///
    /// # Errors
    /// As [`Self::fit`].
    pub fn fit_groups(&self, cursor: &HashCursor, part: Part) -> Result<Vec<GroupFit>> {
        let Staged { tables, cached_tokens, new_blocks, .. } = self.find(cursor, part)?;
        let Some(groups) = self.groups() else {
            return Ok(vec![GroupFit { reach_tokens: cached_tokens, new_blocks }]);
        };
        let reach = self.reach_of(groups, cursor)?.into_iter();
        let fit = |(Tokens(reach_tokens), table): (_, &StagedTable)| GroupFit {
            reach_tokens,
            new_blocks: table.new_blocks,
        };
        Ok(reach.zip(&tables).map(fit).collect())
    }

    /// Returns, for each KV-cache group, the number of tokens of a prompt that this group alone could
    /// hit.
    fn reach_of(&self, groups: &Groups, cursor: &HashCursor) -> Result<Vec<Tokens>> {
        let limit = Tokens(cursor.num_tokens().saturating_sub(1));
        Ok(self.tiers.device().reach_of_groups(groups, cursor.chain(), limit)?)
    }

    /// Checks an admission, then acquires the matched blocks and allocates the others. Returns the
    /// lookup result, which contains these blocks, and the stored hints. A refused admission changes
    /// nothing.
    pub(super) fn take_admission(
        &mut self,
        id: &RequestId,
        cursor: &HashCursor,
        options: &AdmitOptions,
    ) -> Result<(Staged, Option<Box<Hints>>)> {
        let hints = self.check_hints(options)?;
        self.check_new(id, cursor, options.part)?;
        let mut staged = self.stage(None, cursor, options.part, hints.as_deref())?;
        staged.acquire(self.tiers.device_mut(), cursor)?;
        staged.allocate(&mut self.tiers)?;
        Ok((staged, hints))
    }

    /// Checks that the id is new, that the prompt was hashed for this manager, and that the prompt has
    /// more tokens than a connector is to load.
    pub(super) fn check_new(&self, id: &RequestId, cursor: &HashCursor, part: Part) -> Result<()> {
        self.check_poison()?;
        if self.contains(id) {
            return Err(ManagerError::DuplicateRequest { id: id.clone() });
        }
        if cursor.num_tokens() == 0 {
            return Err(ManagerError::EmptyPrompt { id: id.clone() });
        }
        Self::check_part(id, cursor, part)?;
        self.check_cursor(cursor)
    }

    /// Refuses a number of external tokens that includes the prompt's last token, because the engine
    /// always computes that token.
    fn check_part(id: &RequestId, cursor: &HashCursor, part: Part) -> Result<()> {
        let (asked, most) = (part.external_tokens, cursor.num_tokens().saturating_sub(1));
        if asked <= most {
            return Ok(());
        }
        Err(ManagerError::BadExternalCount { id: id.clone(), asked, least: 0, most })
    }

    /// Looks a prompt up, and checks that enough blocks are available for the rest of it. With `plan`,
    /// these are the blocks that the planned operations leave available. Changes nothing.
    pub(super) fn stage(
        &self,
        plan: Option<&StepPlan>,
        cursor: &HashCursor,
        part: Part,
        hints: Option<&Hints>,
    ) -> Result<Staged> {
        let pool = self.tiers.device();
        let mut staged = Staged::find(pool, self.groups(), cursor, part, self.room_for(plan))?;
        if let Some(refusal) = staged.refusal(pool, self.groups()) {
            return Err(ManagerError::OutOfBlocks(refusal));
        }
        staged.found.tenant = hints.and_then(Hints::tenant);
        if let Some(groups) = self.groups()
            && self.observer.as_ref().is_some_and(|observer| observer.wants_reach())
        {
            staged.reach = self.reach_of(groups, cursor)?;
        }
        Ok(staged)
    }

    /// Returns a function from the matched blocks of a prompt to the number of blocks that its
    /// admission may allocate in addition. With `plan`, they come from the blocks that the planned
    /// operations leave available.
    fn room_for(&self, plan: Option<&StepPlan>) -> impl Fn(&[BlockId]) -> Room {
        let pool = self.tiers.device();
        let reserve = self.reserve(plan.map_or_else(|| self.num_active(), |plan| plan.running));
        move |found| match plan {
            None => Room::behind(pool.num_idle(found), pool.num_available(), reserve),
            Some(plan) => Room::behind(plan.idle(pool, found), plan.available_blocks(), reserve),
        }
    }

    /// Number of requests that run now, or will run when a connector has loaded their external tokens.
    pub(super) const fn num_active(&self) -> usize {
        self.stats.running + self.stats.loading
    }

    /// Returns the number of blocks that an admission or a swap has to leave available, because
    /// `running` requests will append tokens.
    pub(super) fn reserve(&self, running: usize) -> usize {
        let usable = self.tiers.device().num_usable();
        if running > 0 { (self.watermark * usable as f64) as usize } else { 0 }
    }

    pub(super) fn install(
        &mut self,
        id: RequestId,
        cursor: HashCursor,
        staged: Staged,
        hints: Option<Box<Hints>>,
    ) -> Admission {
        let tokens = cursor.num_tokens() as u64;
        let cached_tokens = staged.cached_tokens;
        self.stats.admissions += 1;
        self.stats.prompt_tokens += tokens;
        self.stats.hit_tokens += cached_tokens as u64;
        self.stats.computed_tokens += tokens - cached_tokens as u64;
        let own_from = staged.cached;
        let external = external_of(&staged, cached_tokens, false);
        let state = if external.is_some() { RequestState::Loading } else { RequestState::Running };
        let mut sequence = Sequence::new(cursor, self.groups.as_ref().map(Grouped::new));
        sequence.hold(&staged);
        let (batch, leaving) = (0, None);
        let request =
            Request { id, state, sequence, cached_tokens, batch, hints, external, leaving, own_from };
        *self.gauge(state) += 1;
        self.version += 1;
        let slot = self.requests.enter(request);
        self.admitted(slot, staged, false)
    }

    /// Makes a preempted request run again, with the blocks that its resumption acquired and allocated.
    /// `rebased` contains its tokens if they were hashed again, after an epoch bump.
    pub(super) fn reinstall(
        &mut self,
        slot: usize,
        rebased: Option<Box<HashCursor>>,
        staged: Staged,
    ) -> Result<Admission> {
        let cached_tokens = staged.cached_tokens;
        let request = self.requests.at_mut(slot)?;
        if let Some(cursor) = rebased {
            request.sequence.cursor = *cursor;
        }
        request.sequence.hold(&staged);
        request.cached_tokens = cached_tokens;
        request.own_from = request.own_from.min(staged.cached);
        request.external = external_of(&staged, cached_tokens, true);
        let tokens = request.sequence.num_tokens() as u64;
        let loads = request.external.is_some();
        self.set_state(slot, if loads { RequestState::Loading } else { RequestState::Running })?;
        self.stats.resumptions += 1;
        self.stats.resumed_tokens += tokens;
        self.stats.resumed_hit_tokens += cached_tokens as u64;
        Ok(self.admitted(slot, staged, true))
    }

    /// Applies the hints of a request to the blocks that it hit, notifies the observer, and makes the
    /// result of the call.
    fn admitted(&mut self, slot: usize, staged: Staged, resumed: bool) -> Admission {
        let unit = self.tiers.device().block_size();
        let asked = staged.limit() / unit;
        let Staged { found, tables, cached: blocks, cached_tokens, full_tokens, reach, ready_tokens, .. } =
            staged;
        self.stats.unserved_tokens += (full_tokens - cached_tokens) as u64;
        let (hits, collided) = (cached_tokens / unit, found.collided);
        let admitted = Admitted { slot, asked, hits, collided, resumed, full_tokens, reach: &reach };
        self.notify(|observer, manager| observer.admitted(&admitted, manager));
        // Here only a poisoned pool can return an error. It is ignored, because the next call returns
        // it.
        let _poisoned = self.apply_hints(slot, None, 0..blocks, Scope::All);
        let external_tokens = ready_tokens - cached_tokens;
        let mut tables = tables.into_iter().map(|table| table.blocks);
        let block_ids = tables.next().unwrap_or(found.blocks);
        let other_tables = tables.collect();
        Admission {
            cached_tokens,
            cached_blocks: blocks,
            external_tokens,
            block_ids,
            other_tables,
            full_tokens,
        }
    }

    pub(super) fn count_refusal(&mut self, error: &ManagerError) {
        self.stats.refusals += u64::from(matches!(error, ManagerError::OutOfBlocks(_)));
    }
}

/// # Release
///
/// Releases finished and aborted requests.
impl CacheManager {
    /// Ends a finished or aborted request: removes one reference from each of its blocks, the last
    /// block first. Blocks with committed tokens remain cached; the other blocks are never matched
    /// (TensorRT-LLM #15018). If `until` names a step or a ticket, the blocks are fenced until the step
    /// completes or the ticket's fence ends. O(blocks).
    ///
    /// While a swap moves the request, or a connector loads into its blocks, the blocks cannot be
    /// released yet. The request is then releasing. It releases its blocks when
    /// [`Self::complete_swap`], [`Self::abort_swap`] or [`Self::external_done`] is called.
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`]; [`ManagerError::WrongState`] if the request is already
    /// releasing; [`crate::PoolError::UnknownTicket`].
    pub fn release<'a>(&mut self, id: impl Into<RequestRef<'a>>, until: impl Into<Until>) -> Result<()> {
        let leaving = ReleaseOptions { until: until.into(), ..ReleaseOptions::default() };
        let slot = self.slot_in(id.into(), RELEASABLE, RELEASE)?;
        self.tiers.device().check_until(leaving.until)?;
        self.release_slot(slot, leaving).map(drop)
    }

    /// Like [`Self::release`], for a batch: releases requests in the order of the list, all or nothing.
    /// An engine can pass all requests that finished in a step.
    ///
    /// # Errors
    /// As [`Self::release`]; [`ManagerError::NamedTwice`].
    pub fn release_batch(&mut self, ids: &[RequestRef<'_>], until: impl Into<Until>) -> Result<()> {
        let until = until.into();
        let leaving = ReleaseOptions { until, ..ReleaseOptions::default() };
        let slots = self.releasable_batch(ids, until)?;
        slots.into_iter().try_for_each(|slot| self.release_slot(slot, leaving).map(drop))
    }

    /// Like [`Self::release_batch`], with a signal about how each request ended. The signal is a hint
    /// for eviction policies that use it, such as `hazard` of the crate `kvpool-policies`. It applies
    /// to the device blocks that this call releases.
    ///
    /// # Errors
    /// As [`Self::release_batch`].
    pub fn release_batch_with(
        &mut self,
        ended: &[(RequestRef<'_>, Signal)],
        until: impl Into<Until>,
    ) -> Result<()> {
        let until = until.into();
        let ids: Vec<_> = ended.iter().map(|&(id, _)| id).collect();
        let slots = self.releasable_batch(&ids, until)?;
        slots.into_iter().zip(ended).try_for_each(|(slot, &(_, signal))| {
            let leaving = ReleaseOptions { until, signal, ..ReleaseOptions::default() };
            self.release_slot(slot, leaving).map(drop)
        })
    }

    /// Returns the slots of a batch of requests, and checks that each of them can be released.
    fn releasable_batch(&mut self, ids: &[RequestRef<'_>], until: Until) -> Result<Vec<usize>> {
        self.tiers.device().check_until(until)?;
        // `self.rows` keeps the requests of the last decode step, because the next decode step contains
        // mostly the same requests.
        let step = std::mem::take(&mut self.rows);
        let known = self.resolve_batch(ids, RELEASABLE, RELEASE, |_, _, _, _| Ok(()));
        let slots = std::mem::replace(&mut self.rows, step);
        known.map(|()| slots)
    }

    /// Releases the blocks of a request, whose state the caller has checked, and removes the request.
    /// While a swap or a load uses the blocks, only stores `leaving`; the release happens when the swap
    /// or load ends.
    pub(super) fn release_slot(&mut self, slot: usize, leaving: ReleaseOptions) -> Result<HintReport> {
        let request = self.requests.at_mut(slot)?;
        if matches!(request.state, RequestState::Moving | RequestState::Loading) {
            request.leaving = Some(leaving);
            self.set_state(slot, RequestState::Releasing)?;
            return Ok(HintReport::default());
        }
        let report = if leaving.end_of_life { self.end_life(slot)? } else { HintReport::default() };
        // Applies the hints that tokens will not be used again. When they were given, other requests
        // may have held some of these blocks, and may have released them since.
        self.apply_hints(slot, None, 0..usize::MAX, Scope::Ends)?;
        let request = self.requests.at_mut(slot)?;
        if leaving.signal != Signal::default() && request.sequence.tier == 0 {
            request
                .sequence
                .tables()
                .flat_map(Table::held_parts)
                .for_each(|held| self.tiers.device_mut().signal_held(held, leaving.signal));
        }
        request.sequence.give_up(&mut self.tiers, leaving.until)?;
        let state = request.state;
        *self.gauge(state) -= 1;
        self.version += 1;
        self.notify(|observer, manager| observer.released(slot, manager));
        self.requests.leave(slot);
        Ok(report)
    }
}

/// # Preemption by recompute
///
/// A preempted request releases its blocks and keeps its tokens, so that it can be resumed.
impl CacheManager {
    /// Preempts a request that is running or swapped out. Its tokens have to be computed again. The
    /// request releases its blocks as in [`Self::release`], keeps its tokens, and waits for
    /// [`Self::resume`], which may hit the blocks that it committed.
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`]; [`ManagerError::WrongState`] if the request is already
    /// preempted, moving or loading; [`crate::PoolError::UnknownTicket`].
    pub fn preempt<'a>(&mut self, id: impl Into<RequestRef<'a>>, until: impl Into<Until>) -> Result<()> {
        let until = until.into();
        let slot = self.slot_in(id.into(), PREEMPTIBLE, PREEMPT)?;
        self.tiers.device().check_until(until)?;
        self.preempt_slot(slot, until)
    }

    /// Preempts the request in a slot. The caller has checked its state and `until`.
    pub(super) fn preempt_slot(&mut self, slot: usize, until: Until) -> Result<()> {
        let request = self.requests.at_mut(slot)?;
        let computed = request.sequence.computed_tokens as u64;
        request.sequence.give_up(&mut self.tiers, until)?;
        request.cached_tokens = 0;
        self.stats.preemptions += 1;
        self.stats.preempted_tokens += computed;
        self.set_state(slot, RequestState::Preempted)
    }

    /// Resumes a preempted request: admits all of its tokens again, including appended tokens.
    /// O(blocks). After an epoch bump, this call also hashes the tokens again, which costs O(tokens).
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`]; [`ManagerError::UnknownRequest`]; [`ManagerError::WrongState`] if
    /// the request is not preempted.
    pub fn resume<'a>(&mut self, id: impl Into<RequestRef<'a>>) -> Result<Admission> {
        self.resume_with(id, Part::WHOLE)
    }

    /// Like [`Self::resume`], but can allocate blocks chunk by chunk, or for external tokens.
    ///
    /// # Errors
    /// As [`Self::resume`]; [`ManagerError::BadExternalCount`].
    pub fn resume_with<'a>(&mut self, id: impl Into<RequestRef<'a>>, part: Part) -> Result<Admission> {
        let staged = self.stage_resumed(None, id.into(), part);
        let (slot, rebased, mut staged) = staged.inspect_err(|error| self.count_refusal(error))?;
        let cursor = rebased.as_deref().unwrap_or(&self.requests.at(slot)?.sequence.cursor);
        staged.acquire(self.tiers.device_mut(), cursor)?;
        staged.allocate(&mut self.tiers)?;
        self.reinstall(slot, rebased, staged)
    }

    /// Looks up the tokens of a preempted request and checks that enough blocks are available, as
    /// [`Self::stage`] does for a new prompt. Returns the request's slot and the result. If the tokens
    /// were hashed before the last epoch bump, also returns them hashed again.
    pub(super) fn stage_resumed(
        &self,
        plan: Option<&StepPlan>,
        id: RequestRef<'_>,
        part: Part,
    ) -> Result<(usize, Option<Box<HashCursor>>, Staged)> {
        let slot = self.slot_in(id, &[RequestState::Preempted], "resume it")?;
        let rebased = self.rebased(slot)?;
        let request = self.requests.at(slot)?;
        let cursor = rebased.as_deref().unwrap_or(&request.sequence.cursor);
        Self::check_part(&request.id, cursor, part)?;
        let staged = self.stage(plan, cursor, part, request.hints.as_deref())?;
        Ok((slot, rebased, staged))
    }

    /// Hashes the request's tokens again and returns them, if they were hashed before the last epoch
    /// bump. Changes nothing.
    fn rebased(&self, slot: usize) -> Result<Option<Box<HashCursor>>> {
        let (cursor, epoch) = (&self.requests.at(slot)?.sequence.cursor, self.tiers.device().epoch());
        if cursor.epoch() == epoch {
            return Ok(None);
        }
        let mut rebased = Box::new(cursor.clone());
        rebased.rebase(epoch)?;
        Ok(Some(rebased))
    }

    /// Hashes the request's tokens again and returns them, if they were hashed before the last epoch
    /// bump. O(tokens) in that case.
    #[doc(hidden)]
    #[must_use]
    pub fn rehashed<'a>(&self, id: impl Into<RequestRef<'a>>) -> Option<Box<HashCursor>> {
        self.rebased(self.slot(id.into()).ok()?).ok()?
    }
}

/// Returns the load of external tokens that follows an admission, or `None` if all external tokens are
/// cached.
fn external_of(staged: &Staged, cached_tokens: usize, resumed: bool) -> Option<External> {
    let (end, covered) = (staged.ready_tokens, staged.covered_tokens);
    (end > cached_tokens).then_some(External { end, covered, resumed })
}
