//! Forks, roll-back, windows and preemption by swap: what a scheduler does with block tables beside growing them.

use hashbrown::HashMap;

use super::error::ManagerError;
use super::request::{Request, RequestId, RequestRef, RequestState};
use super::{CacheManager, lost_slot};
use crate::block::BlockId;
use crate::sequence::Sequence;
use crate::tiers::{Fit, SwapId, Tiers, TransferPlan};

/// The device's tier, and the host's.
const DEVICE: usize = 0;
const HOST: usize = 1;

/// A swap under way.
#[derive(Debug)]
pub(super) struct Move {
    slots: Vec<usize>,
    to: usize,
}

impl CacheManager {
    pub(super) fn parts(&mut self, slot: usize) -> Result<(&mut Sequence, &mut Tiers), ManagerError> {
        let request = self.requests.get_mut(slot).and_then(Option::as_mut).ok_or_else(lost_slot)?;
        Ok((&mut request.sequence, &mut self.tiers))
    }

    /// Makes `child` a second sequence over the blocks of a running request: parallel sampling, beam search. It shares every
    /// block; whoever writes to a shared one first gets a copy. O(blocks + tokens).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`], [`ManagerError::DuplicateRequest`], [`ManagerError::WrongState`].
    pub fn fork<'a>(
        &mut self,
        parent: impl Into<RequestRef<'a>>,
        child: impl Into<RequestId>,
    ) -> Result<(), ManagerError> {
        let id = child.into();
        let slot = self.slot_in(parent.into(), RequestState::Running, "fork it")?;
        if self.slots.contains_key(&id) {
            return Err(ManagerError::DuplicateRequest { id });
        }
        let (cached_tokens, hints) = (self.at(slot)?.cached_tokens, self.at(slot)?.hints.clone());
        let (sequence, tiers) = self.parts(slot)?;
        let sequence = sequence.fork(tiers)?;
        self.stats.forks += 1;
        self.stats.running += 1;
        self.version += 1;
        let own_from = sequence.published;
        let state = RequestState::Running;
        let fork = self.enter(Request { id, state, sequence, cached_tokens, batch: 0, hints, own_from });
        self.tell_forked(slot, fork);
        Ok(())
    }

    /// Keeps the first `num_tokens` tokens of a running request, at least one, for instance after drafts were rejected; blocks
    /// behind are released, lookahead included. A registered tail is copied by the next append. O(blocks released).
    ///
    /// # Errors
    /// [`ManagerError::BadLength`], [`ManagerError::UnknownRequest`], [`ManagerError::WrongState`].
    pub fn truncate<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        num_tokens: usize,
    ) -> Result<(), ManagerError> {
        let slot = self.slot_in(id.into(), RequestState::Running, "truncate it")?;
        let request = self.at(slot)?;
        let least = (request.sequence.trimmed * self.tiers.device().block_size()).max(1);
        let tokens = request.sequence.num_tokens();
        if !(least..=tokens).contains(&num_tokens) {
            return Err(ManagerError::BadLength { id: request.id.clone(), asked: num_tokens, least, tokens });
        }
        let (sequence, tiers) = self.parts(slot)?;
        sequence.truncate(tiers, num_tokens)?;
        let published = sequence.published;
        // What it registers from here on is its own, whatever was hit there before.
        let request = self.at_mut(slot)?;
        request.own_from = request.own_from.min(published);
        self.version += 1;
        Ok(())
    }

    /// Releases the blocks of a running request that lie wholly more than `window` tokens before its computed end; the null
    /// block takes their places. Returns how many. O(blocks released).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`], [`ManagerError::WrongState`].
    pub fn trim_window<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        window: usize,
    ) -> Result<usize, ManagerError> {
        let slot = self.slot_in(id.into(), RequestState::Running, "trim it")?;
        let (sequence, tiers) = self.parts(slot)?;
        let trimmed = sequence.trim(tiers, window)?;
        self.version += 1;
        Ok(trimmed)
    }

    /// Hands out all planned copies, of copy-on-write and of swaps, as one plan: to be executed before the step writes KV. See
    /// [`Tiers::take_plan`].
    ///
    /// # Errors
    /// Only if a pool is poisoned.
    pub fn take_plan(&mut self) -> Result<TransferPlan, ManagerError> {
        let plan = self.tiers.take_plan()?;
        self.stats.copied_blocks += plan.len() as u64;
        self.version += 1;
        Ok(plan)
    }

    /// The slots of a group, its references, and where it is to go.
    fn group(
        &self,
        ids: &[RequestRef<'_>],
        from: RequestState,
        operation: &'static str,
    ) -> Result<(Vec<usize>, Vec<BlockId>), ManagerError> {
        self.check_poison()?;
        if self.tiers.len() <= HOST {
            return Err(ManagerError::NoHostTier);
        }
        if ids.is_empty() {
            return Err(ManagerError::EmptyGroup);
        }
        let (mut slots, mut references) = (Vec::with_capacity(ids.len()), Vec::new());
        let mut named = hashbrown::HashSet::new();
        for &id in ids {
            let slot = self.slot_in(id, from, operation)?;
            if !named.insert(slot) {
                return Err(ManagerError::NamedTwice { id: id.to_owned(), scope: "call" });
            }
            slots.push(slot);
            references.extend_from_slice(self.at(slot)?.sequence.held());
        }
        Ok((slots, references))
    }

    /// Whether [`Self::begin_swap_out`] would find its blocks in the host tier. O(blocks).
    ///
    /// # Errors
    /// As [`Self::begin_swap_out`], but for blocks that are lacking.
    pub fn fit_swap_out(&self, ids: &[RequestRef<'_>]) -> Result<Fit, ManagerError> {
        let (_, references) = self.group(ids, RequestState::Running, "swap it out")?;
        Ok(self.tiers.fit_swap(&references, DEVICE, HOST, 0)?)
    }

    /// Whether [`Self::begin_swap_in`] would find its blocks on the device, the watermark respected while others run.
    /// O(blocks).
    ///
    /// # Errors
    /// As [`Self::begin_swap_in`], but for blocks that are lacking.
    pub fn fit_swap_in(&self, ids: &[RequestRef<'_>]) -> Result<Fit, ManagerError> {
        let (_, references) = self.group(ids, RequestState::Swapped, "swap it in")?;
        // What takes no block needs none left.
        if self.tiers.blocks_taken(&references, HOST, DEVICE)? == 0 {
            return Ok(Fit::Ok);
        }
        let fit = self.tiers.fit_swap(&references, HOST, DEVICE, self.reserve())?;
        // The watermark is no obstacle for ever: it holds while others run.
        let alone = self.tiers.fit_swap(&references, HOST, DEVICE, 0)?;
        Ok(if fit == Fit::Never && alone != Fit::Never { Fit::Later } else { fit })
    }

    fn reserve(&self) -> usize {
        if self.stats.running > 0 { self.watermark_blocks } else { 0 }
    }

    /// Begins to preempt running requests by swap: their blocks move to the host tier, and with them what they share. The
    /// copies are planned ([`Self::take_plan`]); when they are done, [`Self::complete_swap`] frees the device's blocks. Atomic.
    /// O(blocks).
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`] of the host, [`ManagerError::NoHostTier`], [`ManagerError::EmptyGroup`],
    /// [`ManagerError::NamedTwice`], [`ManagerError::UnknownRequest`], [`ManagerError::WrongState`].
    pub fn begin_swap_out(&mut self, ids: &[RequestRef<'_>]) -> Result<SwapId, ManagerError> {
        let (slots, references) = self.group(ids, RequestState::Running, "swap it out")?;
        let swap = self.tiers.begin_swap(&references, DEVICE, HOST)?;
        self.depart(swap, Move { slots, to: HOST })
    }

    /// Begins to bring swapped requests back. Content that the device still caches is not copied. Atomic. O(blocks).
    ///
    /// # Errors
    /// As [`Self::begin_swap_out`]; [`ManagerError::OutOfBlocks`] of the device, the watermark respected while others run.
    pub fn begin_swap_in(&mut self, ids: &[RequestRef<'_>]) -> Result<SwapId, ManagerError> {
        let (slots, references) = self.group(ids, RequestState::Swapped, "swap it in")?;
        let swap = self.tiers.begin_swap_leaving(&references, HOST, DEVICE, self.reserve())?;
        self.tell_changed(slots.first().copied());
        self.depart(swap, Move { slots, to: DEVICE })
    }

    fn depart(&mut self, swap: SwapId, group: Move) -> Result<SwapId, ManagerError> {
        for &slot in &group.slots {
            self.set_state(slot, RequestState::Moving)?;
            self.at_mut(slot)?.sequence.swap = Some(swap);
        }
        self.swaps.insert(swap, group);
        self.version += 1;
        Ok(swap)
    }

    fn set_state(&mut self, slot: usize, state: RequestState) -> Result<(), ManagerError> {
        let before = std::mem::replace(&mut self.at_mut(slot)?.state, state);
        *self.gauge(before) -= 1;
        *self.gauge(state) += 1;
        Ok(())
    }

    /// Ends a swap whose copies are done: requests swapped out wait in the host tier, requests swapped in run again. Returns the
    /// pairs of blocks, old and new. O(blocks).
    ///
    /// # Errors
    /// [`crate::TierError::CopiesNotTaken`], [`crate::TierError::UnknownSwap`].
    pub fn complete_swap(&mut self, swap: SwapId) -> Result<Vec<(BlockId, BlockId)>, ManagerError> {
        let pairs = self.tiers.complete_swap(swap)?;
        self.tell_changed(None);
        let mapping: HashMap<BlockId, BlockId> = pairs.iter().copied().collect();
        let Some(Move { slots, to }) = self.swaps.remove(&swap) else { return Ok(pairs) };
        for &slot in &slots {
            self.at_mut(slot)?.sequence.moved(&mapping, to);
            self.set_state(slot, if to == HOST { RequestState::Swapped } else { RequestState::Running })?;
            self.apply_hints(slot, 0..usize::MAX)?; // on the device its content is new, or was hit
        }
        let counter = if to == HOST { &mut self.stats.swapped_out } else { &mut self.stats.swapped_in };
        *counter += slots.len() as u64;
        self.version += 1;
        Ok(pairs)
    }

    /// Takes a swap back: everything is as before it was begun.
    ///
    /// # Errors
    /// [`crate::TierError::UnknownSwap`].
    pub fn abort_swap(&mut self, swap: SwapId) -> Result<(), ManagerError> {
        self.tiers.abort_swap(swap)?;
        let Some(Move { slots, to }) = self.swaps.remove(&swap) else { return Ok(()) };
        for slot in slots {
            self.at_mut(slot)?.sequence.swap = None;
            self.set_state(slot, if to == HOST { RequestState::Running } else { RequestState::Swapped })?;
        }
        self.version += 1;
        Ok(())
    }
}
