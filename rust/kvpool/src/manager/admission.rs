//! Admission: from a hashed prompt to a block table, in one atomic call; and the ways out again.

use super::error::{ManagerError, Refused};
use super::hints::{Hints, RequestHints};
use super::request::{Request, RequestId, RequestRef, RequestState};
use super::{CacheManager, ManagerStats};
use crate::block::BlockId;
use crate::error::Refusal;
use crate::hash::HashCursor;
use crate::pool::PrefixMatch;
use crate::sequence::Sequence;

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

/// A checked admission: the match, and how many blocks are to be allocated behind it.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) found: PrefixMatch,
    pub(super) new_blocks: usize,
}

impl CacheManager {
    /// Admits a request: finds the cached prefix of its prompt, acquires it, allocates the rest. Atomic. O(blocks).
    ///
    /// Every block of the prompt is allocated at once, so that chunked prefill cannot run out midway; how many tokens
    /// the engine computes per step is its own choice ([`Self::commit`]).
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
        let staged = self.check_new(&id, &cursor).and_then(|()| {
            let available = self.tiers.device().num_available();
            self.stage(&cursor, available, self.stats.running > 0)
        });
        match staged {
            Ok(mut staged) => {
                staged.found.tenant = hints.as_deref().and_then(Hints::tenant);
                let refused = |error| Refused { error, cursor: Box::new(cursor.clone()) };
                let found = self.tiers.device_mut().acquire_match(&staged.found, cursor.chain().hashes());
                found.map_err(|error| refused(error.into()))?;
                let blocks = self.fill(&staged).map_err(refused)?;
                Ok(self.install(id, cursor, &staged, blocks, hints))
            }
            Err(error) => {
                self.count_refusal(&error);
                Err(Refused { error, cursor: Box::new(cursor) })
            }
        }
    }

    /// Checks that a request can be new and its prompt belongs here.
    pub(super) fn check_new(&self, id: &RequestId, cursor: &HashCursor) -> Result<(), ManagerError> {
        self.check_poison()?;
        if self.slots.contains_key(id) {
            return Err(ManagerError::DuplicateRequest { id: id.clone() });
        }
        if cursor.num_tokens() == 0 {
            return Err(ManagerError::EmptyPrompt { id: id.clone() });
        }
        self.check_cursor(cursor)
    }

    /// Matches a prompt and checks that the rest fits into `available` blocks. Changes nothing.
    pub(super) fn stage(
        &self,
        cursor: &HashCursor,
        available: usize,
        others_run: bool,
    ) -> Result<Staged, ManagerError> {
        let found = self.tiers.device().find_prefix(cursor.chain(), self.reusable_blocks(cursor))?;
        let idle = found.idle;
        self.check_fit(cursor, found, idle, available, others_run)
    }

    /// The arithmetic of [`Self::stage`]: of the matched blocks, `idle` are among the `available` ones.
    pub(super) fn check_fit(
        &self,
        cursor: &HashCursor,
        found: PrefixMatch,
        idle: usize,
        available: usize,
        others_run: bool,
    ) -> Result<Staged, ManagerError> {
        let total = cursor.num_tokens().div_ceil(self.tiers.device().block_size());
        let new_blocks = total - found.blocks.len();
        let watermark = if others_run { self.watermark_blocks } else { 0 };
        let left = available.saturating_sub(idle).saturating_sub(watermark);
        if new_blocks > left {
            let can_ever_fit = total <= self.tiers.device().num_usable();
            let refusal = Refusal::new(new_blocks, left, self.tiers.device().num_fenced(), can_ever_fit);
            return Err(ManagerError::OutOfBlocks(refusal));
        }
        Ok(Staged { found, new_blocks })
    }

    /// Acquires the match of a request that resumes, with its tokens hashed again if they were.
    pub(super) fn acquire_resumed(
        &mut self,
        slot: usize,
        rebased: Option<&HashCursor>,
        staged: &Staged,
    ) -> Result<(), ManagerError> {
        let request = self.requests.get(slot).and_then(Option::as_ref).ok_or_else(super::lost_slot)?;
        let cursor = rebased.unwrap_or(&request.sequence.cursor);
        Ok(self.tiers.device_mut().acquire_match(&staged.found, cursor.chain().hashes())?)
    }

    /// Allocates the blocks behind a match, which was acquired before, so that this cannot evict it (vLLM #10507).
    pub(super) fn fill(&mut self, staged: &Staged) -> Result<Vec<BlockId>, ManagerError> {
        let mut blocks = Vec::with_capacity(staged.found.blocks.len() + staged.new_blocks);
        blocks.extend_from_slice(&staged.found.blocks);
        self.tiers.device_mut().allocate_into(staged.new_blocks, &mut blocks)?;
        Ok(blocks)
    }

    /// Enters an admitted request.
    pub(super) fn install(
        &mut self,
        id: RequestId,
        cursor: HashCursor,
        staged: &Staged,
        blocks: Vec<BlockId>,
        hints: Option<Box<Hints>>,
    ) -> Admission {
        let cached_blocks = staged.found.blocks.len();
        let cached_tokens = cached_blocks * self.tiers.device().block_size();
        let tokens = cursor.num_tokens() as u64;
        self.stats.admissions += 1;
        self.stats.prompt_tokens += tokens;
        self.stats.hit_tokens += cached_tokens as u64;
        self.stats.computed_tokens += tokens - cached_tokens as u64;
        self.stats.running += 1;
        self.version += 1;
        let admission = Admission { cached_tokens, cached_blocks, block_ids: blocks.clone() };
        let sequence = Sequence::new(cursor, blocks, cached_blocks, 0);
        let hinted = hints.is_some();
        let slot = self.enter(Request {
            id,
            state: RequestState::Running,
            sequence,
            cached_tokens,
            batch: 0,
            hints,
            own_from: cached_blocks,
        });
        self.tell_admitted(slot, &staged.found, false);
        if hinted {
            // Fails only if the pool is poisoned, which the next call says, too.
            let _poisoned = self.apply_hints(slot, 0..cached_blocks);
        }
        admission
    }

    /// Gives a new request a slot.
    pub(super) fn enter(&mut self, request: Request) -> usize {
        let id = request.id.clone();
        let slot = self.free_slots.pop().unwrap_or(self.requests.len());
        if slot == self.requests.len() {
            self.requests.push(Some(request));
        } else {
            self.requests[slot] = Some(request);
        }
        self.slots.insert(id, slot);
        slot
    }

    pub(super) fn count_refusal(&mut self, error: &ManagerError) {
        self.stats.refusals += u64::from(matches!(error, ManagerError::OutOfBlocks(_)));
    }

    /// Ends a request, finished or aborted: its blocks lose one reference each, tail first. What it committed stays
    /// cached; what it did not is never matched (TensorRT-LLM #15018). With `after_step` its blocks are fenced until
    /// that step completes. O(blocks).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`].
    pub fn release<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        after_step: Option<u64>,
    ) -> Result<(), ManagerError> {
        let slot = self.slot(id.into())?;
        self.release_slot(slot, after_step)
    }

    /// How many requests are in a state.
    pub(super) const fn gauge(&mut self, state: RequestState) -> &mut usize {
        match state {
            RequestState::Running => &mut self.stats.running,
            RequestState::Preempted => &mut self.stats.preempted,
            RequestState::Swapped => &mut self.stats.swapped,
            RequestState::Moving => &mut self.stats.moving,
        }
    }

    /// Refuses what a swap under way forbids.
    pub(super) fn check_settled(&self, slot: usize, operation: &'static str) -> Result<(), ManagerError> {
        let request = self.at(slot)?;
        if request.state != RequestState::Moving {
            return Ok(());
        }
        Err(ManagerError::WrongState { id: request.id.clone(), state: request.state, operation })
    }

    pub(super) fn release_slot(&mut self, slot: usize, after_step: Option<u64>) -> Result<(), ManagerError> {
        self.check_settled(slot, "release it: complete or abort the swap first")?;
        self.apply_ends(slot)?;
        let (sequence, tiers) = self.parts(slot)?;
        sequence.give_up(tiers, after_step)?;
        let state = self.at(slot)?.state;
        *self.gauge(state) -= 1;
        self.version += 1;
        self.tell_released(slot);
        if let Some(request) = self.requests.get_mut(slot).and_then(Option::take) {
            self.slots.remove(&request.id);
            self.free_slots.push(slot);
        }
        Ok(())
    }

    /// Preempts a running request, or one that is swapped out, by recompute: it gives up its blocks as in [`Self::release`], keeps its tokens, and
    /// waits for [`Self::resume`]. What it committed stays cached until evicted, so that resuming may find it again.
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`], [`ManagerError::WrongState`] if it is preempted already.
    pub fn preempt<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        after_step: Option<u64>,
    ) -> Result<(), ManagerError> {
        let slot = self.preemptible(id.into())?;
        self.preempt_slot(slot, after_step)
    }

    /// The slot of a request that holds blocks.
    pub(super) fn preemptible(&self, id: RequestRef<'_>) -> Result<usize, ManagerError> {
        let slot = self.slot(id)?;
        let request = self.at(slot)?;
        if matches!(request.state, RequestState::Running | RequestState::Swapped) {
            return Ok(slot);
        }
        let operation = "preempt it";
        Err(ManagerError::WrongState { id: request.id.clone(), state: request.state, operation })
    }

    pub(super) fn preempt_slot(&mut self, slot: usize, after_step: Option<u64>) -> Result<(), ManagerError> {
        let (state, computed) = (self.at(slot)?.state, self.at(slot)?.sequence.computed_tokens as u64);
        let (sequence, tiers) = self.parts(slot)?;
        sequence.give_up(tiers, after_step)?;
        let request = self.at_mut(slot)?;
        (request.state, request.cached_tokens) = (RequestState::Preempted, 0);
        *self.gauge(state) -= 1;
        self.stats.preempted += 1;
        self.stats.preemptions += 1;
        self.stats.preempted_tokens += computed;
        self.version += 1;
        Ok(())
    }

    /// Resumes a preempted request: an admission of all its tokens, appended ones included. O(blocks); after an epoch
    /// bump its tokens are hashed again, O(tokens).
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`], [`ManagerError::UnknownRequest`], [`ManagerError::WrongState`] if it runs.
    pub fn resume<'a>(&mut self, id: impl Into<RequestRef<'a>>) -> Result<Admission, ManagerError> {
        let slot = self.slot_in(id.into(), RequestState::Preempted, "resume it")?;
        let rebased = self.rebased(slot)?;
        let cursor = rebased.as_deref().unwrap_or(&self.at(slot)?.sequence.cursor);
        let available = self.tiers.device().num_available();
        let staged = self.stage(cursor, available, self.stats.running > 0);
        let mut staged = staged.inspect_err(|error| self.count_refusal(error))?;
        staged.found.tenant = self.at(slot)?.hints.as_deref().and_then(Hints::tenant);
        self.acquire_resumed(slot, rebased.as_deref(), &staged)?;
        let blocks = self.fill(&staged)?;
        self.reinstall(slot, rebased, &staged, blocks)
    }

    /// The request's tokens hashed again, if they were hashed before the last epoch bump. Changes nothing.
    pub(super) fn rebased(&self, slot: usize) -> Result<Option<Box<HashCursor>>, ManagerError> {
        let (cursor, epoch) = (&self.at(slot)?.sequence.cursor, self.tiers.device().epoch());
        if cursor.epoch() == epoch {
            return Ok(None);
        }
        let mut rebased = Box::new(cursor.clone());
        rebased.rebase(epoch)?;
        Ok(Some(rebased))
    }

    /// Makes a preempted request run again.
    pub(super) fn reinstall(
        &mut self,
        slot: usize,
        rebased: Option<Box<HashCursor>>,
        staged: &Staged,
        blocks: Vec<BlockId>,
    ) -> Result<Admission, ManagerError> {
        let cached_blocks = staged.found.blocks.len();
        let cached_tokens = cached_blocks * self.tiers.device().block_size();
        let request = self.at_mut(slot)?;
        let admission = Admission { cached_tokens, cached_blocks, block_ids: blocks.clone() };
        request.sequence.reinstate(rebased.map(|cursor| *cursor), blocks, cached_blocks);
        request.state = RequestState::Running;
        request.cached_tokens = cached_tokens;
        request.own_from = request.own_from.min(cached_blocks);
        let tokens = request.sequence.num_tokens() as u64;
        let ManagerStats { running, preempted, resumptions, resumed_tokens, resumed_hit_tokens, .. } =
            &mut self.stats;
        *running += 1;
        *preempted -= 1;
        *resumptions += 1;
        *resumed_tokens += tokens;
        *resumed_hit_tokens += cached_tokens as u64;
        self.version += 1;
        self.tell_admitted(slot, &staged.found, true);
        self.apply_hints(slot, 0..cached_blocks)?;
        Ok(admission)
    }
}
