//! Admission: from a hashed prompt to a block table, in one atomic call; and the ways out again.

use super::CacheManager;
use super::error::{ManagerError, Refused, Result};
use super::hints::{Hints, RequestHints};
use super::observe::Admitted;
use super::request::{Request, RequestId, RequestRef, RequestState};
use super::step::StepPlan;
use crate::block::BlockId;
use crate::hash::HashCursor;
use crate::sequence::{Sequence, Staged};

/// What a request got.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Admission {
    /// Leading tokens whose KV is cached: the engine computes from here on. A multiple of the block size, and less than
    /// the prompt.
    pub cached_tokens: usize,
    /// Leading blocks of the table that are cached, shared, and not to be written.
    pub cached_blocks: usize,
    /// The whole block table.
    pub block_ids: Vec<BlockId>,
}

impl CacheManager {
    /// Admits a request: finds the cached prefix of its prompt, acquires it, allocates the rest. Atomic. O(blocks). The last
    /// token is always left to compute. Chunked prefill cannot run out midway: every block of the prompt is allocated at once.
    ///
    /// # Errors
    /// [`Refused`] hands the prompt back, with: [`ManagerError::OutOfBlocks`] (how many blocks are missing, and whether
    /// the request can ever fit), [`ManagerError::DuplicateRequest`], [`ManagerError::EmptyPrompt`],
    /// [`ManagerError::ForeignCursor`], [`crate::PoolError::StaleEpoch`]. Nothing has changed then.
    pub fn admit(&mut self, id: impl Into<RequestId>, cursor: HashCursor) -> Result<Admission, Refused> {
        self.admit_with(id, cursor, &RequestHints::default())
    }

    pub(super) fn admit_hinted(
        &mut self,
        id: RequestId,
        cursor: HashCursor,
        hints: Option<Box<Hints>>,
    ) -> Result<Admission, Refused> {
        let checked = self.check_new(&id, &cursor);
        let staged = checked.and_then(|()| self.stage(None, &cursor, hints.as_deref()));
        let taken = staged.and_then(|mut staged| {
            staged.take(self.tiers.device_mut(), &cursor)?;
            Ok(staged)
        });
        match taken {
            Ok(staged) => Ok(self.install(id, cursor, staged, hints)),
            Err(error) => {
                self.count_refusal(&error);
                Err(Refused { error, cursor: Box::new(cursor) })
            }
        }
    }

    /// Checks that a request can be new and its prompt belongs here.
    pub(super) fn check_new(&self, id: &RequestId, cursor: &HashCursor) -> Result<()> {
        self.check_poison()?;
        if self.slots.contains_key(id) {
            return Err(ManagerError::DuplicateRequest { id: id.clone() });
        }
        if cursor.num_tokens() == 0 {
            return Err(ManagerError::EmptyPrompt { id: id.clone() });
        }
        self.check_cursor(cursor)
    }

    /// Matches a prompt, and checks that the rest fits what `plan` leaves, or what there is. Changes nothing.
    pub(super) fn stage(
        &self,
        plan: Option<&StepPlan>,
        cursor: &HashCursor,
        hints: Option<&Hints>,
    ) -> Result<Staged> {
        let pool = self.tiers.device();
        let reserve = self.reserve(plan.map_or(self.stats.running, |plan| plan.running));
        let mut staged = Staged::new(pool, cursor, |found| {
            let left = plan.map_or_else(
                || pool.num_available().saturating_sub(found.idle),
                |plan| plan.left_behind(pool, found),
            );
            left.saturating_sub(reserve)
        })?;
        staged.found.tenant = hints.and_then(Hints::tenant);
        Ok(staged)
    }

    /// Blocks that an admission or a swap leaves available while others run.
    pub(super) fn reserve(&self, running: usize) -> usize {
        let usable = self.tiers.device().num_usable();
        if running > 0 { (self.watermark * usable as f64) as usize } else { 0 }
    }

    /// Enters a request with the blocks that it took.
    pub(super) fn install(
        &mut self,
        id: RequestId,
        cursor: HashCursor,
        staged: Staged,
        hints: Option<Box<Hints>>,
    ) -> Admission {
        let tokens = cursor.num_tokens() as u64;
        let cached_tokens = staged.cached * self.tiers.device().block_size();
        self.stats.admissions += 1;
        self.stats.prompt_tokens += tokens;
        self.stats.hit_tokens += cached_tokens as u64;
        self.stats.computed_tokens += tokens - cached_tokens as u64;
        let (state, own_from) = (RequestState::Running, staged.cached);
        let mut sequence = Sequence::new(cursor, 0);
        sequence.hold(staged.found.blocks.clone(), staged.cached);
        let slot = self.enter(Request { id, state, sequence, cached_tokens, batch: 0, hints, own_from });
        self.admitted(slot, staged, false)
    }

    /// Makes a preempted request run again, with the blocks that it took and its tokens hashed again, if they were.
    pub(super) fn reinstall(
        &mut self,
        slot: usize,
        rebased: Option<Box<HashCursor>>,
        staged: Staged,
    ) -> Result<Admission> {
        let cached_tokens = staged.cached * self.tiers.device().block_size();
        let request = self.at_mut(slot)?;
        if let Some(cursor) = rebased {
            request.sequence.cursor = *cursor;
        }
        request.sequence.hold(staged.found.blocks.clone(), staged.cached);
        request.cached_tokens = cached_tokens;
        request.own_from = request.own_from.min(staged.cached);
        let tokens = request.sequence.num_tokens() as u64;
        self.set_state(slot, RequestState::Running)?;
        self.stats.resumptions += 1;
        self.stats.resumed_tokens += tokens;
        self.stats.resumed_hit_tokens += cached_tokens as u64;
        Ok(self.admitted(slot, staged, true))
    }

    /// Says what a request got, and lets its hints take effect on what it hit.
    fn admitted(&mut self, slot: usize, staged: Staged, resumed: bool) -> Admission {
        let Staged { found, cached: hits, .. } = staged;
        let admitted = Admitted { slot, asked: found.asked, hits, collided: found.collided, resumed };
        self.tell(|observer, manager| observer.admitted(&admitted, manager));
        // Fails only if the pool is poisoned, which the next call says, too.
        let _poisoned = self.apply_hints(slot, 0..hits);
        let cached_tokens = hits * self.tiers.device().block_size();
        Admission { cached_tokens, cached_blocks: hits, block_ids: found.blocks }
    }

    /// Gives a new request, which runs, a slot.
    pub(super) fn enter(&mut self, request: Request) -> usize {
        let slot = self.free_slots.pop().unwrap_or(self.requests.len());
        self.slots.insert(request.id.clone(), slot);
        if slot == self.requests.len() {
            self.requests.push(Some(request));
        } else {
            self.requests[slot] = Some(request);
        }
        self.stats.running += 1;
        self.version += 1;
        slot
    }

    fn count_refusal(&mut self, error: &ManagerError) {
        self.stats.refusals += u64::from(matches!(error, ManagerError::OutOfBlocks(_)));
    }

    /// Ends a request, finished or aborted: its blocks lose one reference each, tail first. What it committed stays
    /// cached; what it did not is never matched (TensorRT-LLM #15018). With `after_step` its blocks are fenced until
    /// that step completes. O(blocks).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`]; [`ManagerError::WrongState`] while a swap moves it.
    pub fn release<'a>(&mut self, id: impl Into<RequestRef<'a>>, after_step: Option<u64>) -> Result<()> {
        let slot = self.releasable(id.into())?;
        self.apply_ends(slot)?;
        let (request, tiers) = self.parts(slot)?;
        request.sequence.give_up(tiers, after_step)?;
        let state = request.state;
        *self.gauge(state) -= 1;
        self.version += 1;
        self.tell(|observer, manager| observer.released(slot, manager));
        if let Some(request) = self.requests.get_mut(slot).and_then(Option::take) {
            self.slots.remove(&request.id);
            self.free_slots.push(slot);
        }
        Ok(())
    }

    /// The slot of a request that no swap moves.
    pub(super) fn releasable(&self, id: RequestRef<'_>) -> Result<usize> {
        use RequestState::{Preempted, Running, Swapped};
        self.slot_in(id, &[Running, Preempted, Swapped], "release it: complete or abort the swap first")
    }

    /// Preempts a running request, or one that is swapped out, by recompute: it gives up its blocks as in
    /// [`Self::release`], keeps its tokens, and waits for [`Self::resume`], which may find again what it committed.
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`], [`ManagerError::WrongState`] if it is preempted already.
    pub fn preempt<'a>(&mut self, id: impl Into<RequestRef<'a>>, after_step: Option<u64>) -> Result<()> {
        let slot = self.preemptible(id.into())?;
        let (request, tiers) = self.parts(slot)?;
        let computed = request.sequence.computed_tokens as u64;
        request.sequence.give_up(tiers, after_step)?;
        request.cached_tokens = 0;
        self.stats.preemptions += 1;
        self.stats.preempted_tokens += computed;
        self.set_state(slot, RequestState::Preempted)
    }

    /// The slot of a request that holds blocks.
    pub(super) fn preemptible(&self, id: RequestRef<'_>) -> Result<usize> {
        self.slot_in(id, &[RequestState::Running, RequestState::Swapped], "preempt it")
    }

    /// Resumes a preempted request: an admission of all its tokens, appended ones included. O(blocks); after an epoch
    /// bump its tokens are hashed again, O(tokens).
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`], [`ManagerError::UnknownRequest`], [`ManagerError::WrongState`] if it runs.
    pub fn resume<'a>(&mut self, id: impl Into<RequestRef<'a>>) -> Result<Admission> {
        let staged = self.stage_resumed(None, id.into());
        let (slot, rebased, mut staged) = staged.inspect_err(|error| self.count_refusal(error))?;
        let (request, tiers) = self.parts(slot)?;
        staged.take(tiers.device_mut(), rebased.as_deref().unwrap_or(&request.sequence.cursor))?;
        self.reinstall(slot, rebased, staged)
    }

    /// [`Self::stage`] of a preempted request: its slot, and its tokens hashed again, if they were hashed before the last epoch bump.
    pub(super) fn stage_resumed(
        &self,
        plan: Option<&StepPlan>,
        id: RequestRef<'_>,
    ) -> Result<(usize, Option<Box<HashCursor>>, Staged)> {
        let slot = self.slot_in(id, &[RequestState::Preempted], "resume it")?;
        let rebased = self.rebased(slot)?;
        let request = self.at(slot)?;
        let cursor = rebased.as_deref().unwrap_or(&request.sequence.cursor);
        let staged = self.stage(plan, cursor, request.hints.as_deref())?;
        Ok((slot, rebased, staged))
    }

    /// The request's tokens hashed again, if they were hashed before the last epoch bump. Changes nothing.
    fn rebased(&self, slot: usize) -> Result<Option<Box<HashCursor>>> {
        let (cursor, epoch) = (&self.at(slot)?.sequence.cursor, self.tiers.device().epoch());
        if cursor.epoch() == epoch {
            return Ok(None);
        }
        let mut rebased = Box::new(cursor.clone());
        rebased.rebase(epoch)?;
        Ok(Some(rebased))
    }

    /// What a request's prompt hashes to now, if that is not what it hashed to: after an epoch bump. O(tokens) then.
    #[doc(hidden)]
    #[must_use]
    pub fn rehashed<'a>(&self, id: impl Into<RequestRef<'a>>) -> Option<Box<HashCursor>> {
        self.rebased(self.slot(id.into()).ok()?).ok()?
    }
}
