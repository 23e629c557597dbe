//! Implements operations on block tables other than growth: forks, truncation, windows and preemption
//! by swap.

use hashbrown::{HashMap, HashSet};

use super::CacheManager;
use super::error::{ManagerError, Result};
use super::growth::check_length;
use super::hints::Scope;
use super::id::{RequestId, RequestRef, RequestState};
use super::request::Request;
use crate::tiers::{Fit, SwapId, TransferPlan, out_of_blocks};
use crate::{BlockId, PoolError, Until};

/// The number of the device's tier. The host's tier has number 1.
const DEVICE: usize = 0;
const HOST: usize = 1;

/// # Forks, truncation and windows
impl CacheManager {
    /// Makes a new request `child` that shares every block of a running request, for parallel sampling
    /// or beam search. The first of the two requests that writes to a shared block gets a copy.
    /// O(blocks + tokens).
    ///
    /// Execute the copies of [`Self::take_plan`] before each following step. Until then, the blocks of
    /// a planned copy count as `fenced` after their release, and [`Self::reset`] is refused.
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`], [`ManagerError::DuplicateRequest`],
    /// [`ManagerError::WrongState`]; [`ManagerError::OutOfBlocks`] if no block is available for the
    /// child's copy of a recurrent state.
    pub fn fork<'a>(&mut self, parent: impl Into<RequestRef<'a>>, child: impl Into<RequestId>) -> Result<()> {
        let child = child.into();
        let slot = self.slot_in(parent.into(), &[RequestState::Running], FORK)?;
        self.check_unknown(child.as_ref())?;
        self.check_fork(&[slot])?;
        self.fork_slot(slot, child)
    }

    /// Like [`Self::fork`], for a batch, all or nothing. A parent may appear several times, once per
    /// child. A step of beam search calls this, and then [`Self::release_batch`] for the beams that
    /// end.
    ///
    /// # Errors
    /// As [`Self::fork`]; [`ManagerError::NamedTwice`] for a child, [`ManagerError::LengthMismatch`].
    pub fn fork_batch(&mut self, parents: &[RequestRef<'_>], children: &[RequestRef<'_>]) -> Result<()> {
        self.check_poison()?;
        check_length(parents, children.len(), "children")?;
        let running = |&parent| self.slot_in(parent, &[RequestState::Running], FORK);
        let slots = parents.iter().map(running).collect::<Result<Vec<_>>>()?;
        let mut named = HashSet::with_capacity(children.len());
        for &child in children {
            self.check_unknown(child)?;
            if !named.insert(child) {
                return Err(ManagerError::NamedTwice { id: child.to_owned(), scope: "call" });
            }
        }
        self.check_fork(&slots)?;
        for (row, (slot, &child)) in slots.into_iter().zip(children).enumerate() {
            if let Err(error) = self.fork_slot(slot, child.to_owned()) {
                self.unfork(&children[..row])?;
                return Err(error);
            }
        }
        Ok(())
    }

    fn check_fork(&self, slots: &[usize]) -> Result<()> {
        if self.groups.is_none() {
            return Ok(());
        }
        let (mut needed, mut held) = (0, 0);
        for &slot in slots {
            let sequence = &self.requests.at(slot)?.sequence;
            needed += sequence.blocks_of_fork();
            held = held.max(sequence.num_held());
        }
        let pool = self.tiers.device();
        let available = pool.num_available();
        if needed <= available {
            return Ok(());
        }
        Err(out_of_blocks(pool, needed, available, held + needed <= pool.num_usable()).into())
    }

    fn unfork(&mut self, children: &[RequestRef<'_>]) -> Result<()> {
        self.stats.forks -= children.len() as u64;
        children.iter().try_for_each(|&child| self.release(child, Until::Now))
    }

    fn check_unknown(&self, child: RequestRef<'_>) -> Result<()> {
        match self.contains(child) {
            true => Err(ManagerError::DuplicateRequest { id: child.to_owned() }),
            false => Ok(()),
        }
    }

    fn fork_slot(&mut self, slot: usize, id: RequestId) -> Result<()> {
        let parent = self.requests.at_mut(slot)?;
        let sequence = parent.sequence.fork(&mut self.tiers)?;
        let own_from = sequence.main.published;
        let (cached_tokens, hints, state) = (parent.cached_tokens, parent.hints.clone(), parent.state);
        let (batch, external, leaving) = (0, None, None);
        let child = Request { id, state, sequence, cached_tokens, batch, hints, external, leaving, own_from };
        *self.gauge(state) += 1;
        self.version += 1;
        let child = self.requests.enter(child);
        self.stats.forks += 1;
        self.notify(|observer, manager| observer.forked(slot, child, manager));
        if self.groups.is_some() {
            self.notify_changed(Some(child)); // a fork may copy states to new blocks
        }
        Ok(())
    }

    /// Removes all but the first `num_tokens` tokens of a running request, for instance after drafts
    /// were rejected. At least one token has to remain. The blocks after these tokens are released,
    /// including lookahead slots. If `until` names a step or a ticket, they are fenced until the step
    /// completes or the ticket's fence ends. If the last remaining block is registered, the next append
    /// writes to a copy of it. O(blocks released).
    ///
    /// # Errors
    /// [`ManagerError::BadLength`], [`ManagerError::UnknownRequest`], [`ManagerError::WrongState`],
    /// [`crate::PoolError::UnknownTicket`].
    pub fn truncate<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        num_tokens: usize,
        until: impl Into<Until>,
    ) -> Result<()> {
        let (slot, until) = (self.slot_in(id.into(), &[RequestState::Running], TRUNCATE)?, until.into());
        self.tiers.device().check_until(until)?;
        check_length_of(self.requests.at(slot)?, num_tokens)?;
        self.truncate_slot(slot, num_tokens, until)
    }

    /// Like [`Self::truncate`], for a batch, all or nothing.
    ///
    /// # Errors
    /// As [`Self::truncate`]; [`ManagerError::NamedTwice`], [`ManagerError::LengthMismatch`].
    pub fn truncate_batch(
        &mut self,
        requests: &[RequestRef<'_>],
        num_tokens: &[usize],
        until: impl Into<Until>,
    ) -> Result<()> {
        let until = until.into();
        check_length(requests, num_tokens.len(), "lengths")?;
        self.tiers.device().check_until(until)?;
        self.resolve_batch(requests, &[RequestState::Running], TRUNCATE, |row, _, request, _| {
            check_length_of(request, num_tokens[row])
        })?;
        (0..requests.len()).try_for_each(|row| self.truncate_slot(self.rows[row], num_tokens[row], until))
    }

    fn truncate_slot(&mut self, slot: usize, num_tokens: usize, until: Until) -> Result<()> {
        let request = self.requests.at_mut(slot)?;
        request.sequence.truncate(&mut self.tiers, num_tokens, until)?;
        // From this position on, the request registers the blocks itself, even at positions where it
        // had hit blocks before.
        request.own_from = request.own_from.min(request.sequence.main.published);
        self.version += 1;
        Ok(())
    }

    /// Releases the blocks of a running request whose tokens are all more than `window` tokens before
    /// the end of its computed tokens. The null block replaces them in the table. Returns the number of
    /// released blocks. O(blocks released).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`], [`ManagerError::WrongState`]; [`PoolError::InvalidConfig`]
    /// with groups, because each group with a window releases its blocks at each commit.
    pub fn trim_window<'a>(&mut self, id: impl Into<RequestRef<'a>>, window: usize) -> Result<usize> {
        let slot = self.slot_in(id.into(), &[RequestState::Running], "trim it")?;
        if self.groups.is_some() {
            return Err(
                PoolError::config("window", window, "unset, because each group has its own window").into()
            );
        }
        let trimmed = self.requests.at_mut(slot)?.sequence.trim(&mut self.tiers, window)?;
        self.version += 1;
        Ok(trimmed)
    }
}

/// # Planned copies
///
/// Copy-on-write and swaps plan copies, which the engine executes before the step.
impl CacheManager {
    /// Returns all planned copies, for copy-on-write and for swaps, as one plan: see
    /// [`crate::Tiers::take_plan`].
    ///
    /// # Errors
    /// Only if a pool is poisoned.
    pub fn take_plan(&mut self) -> Result<TransferPlan> {
        let plan = self.tiers.take_plan()?;
        self.stats.copied_blocks += plan.len() as u64;
        // Until this call, planned copies pin their blocks. A pinned block that the policy chose for
        // eviction in that time loses its content now.
        self.contents_changed();
        Ok(plan)
    }
}

/// # Preemption by swap
///
/// A swap moves the blocks of requests between the device and the host tier, in two phases.
impl CacheManager {
    fn group(
        &self,
        ids: &[RequestRef<'_>],
        from: RequestState,
        operation: &'static str,
    ) -> Result<(Vec<usize>, Vec<BlockId>)> {
        self.check_poison()?;
        if self.tiers.len() <= HOST {
            return Err(ManagerError::NoHostTier);
        }
        if ids.is_empty() {
            return Err(ManagerError::EmptyGroup);
        }
        let (mut slots, mut references) = (Vec::with_capacity(ids.len()), Vec::new());
        let mut named = HashSet::new();
        for &id in ids {
            let slot = self.slot_in(id, &[from], operation)?;
            if !named.insert(slot) {
                return Err(ManagerError::NamedTwice { id: id.to_owned(), scope: "call" });
            }
            slots.push(slot);
            references.extend(self.requests.at(slot)?.sequence.held());
        }
        Ok((slots, references))
    }

    /// Whether the host tier has the blocks for [`Self::begin_swap_out`]. O(blocks).
    ///
    /// # Errors
    /// As [`Self::begin_swap_out`], but missing blocks are no error.
    pub fn fit_swap_out(&self, ids: &[RequestRef<'_>]) -> Result<Fit> {
        let (_, references) = self.group(ids, RequestState::Running, "swap it out")?;
        Ok(self.tiers.fit_swap(&references, DEVICE, HOST, 0)?)
    }

    /// Whether the device has the blocks for [`Self::begin_swap_in`]. O(blocks).
    ///
    /// # Errors
    /// As [`Self::begin_swap_in`], but missing blocks are no error.
    pub fn fit_swap_in(&self, ids: &[RequestRef<'_>]) -> Result<Fit> {
        let (_, references) = self.group(ids, RequestState::Swapped, "swap it in")?;
        let staged = self.tiers.stage_swap(&references, HOST, DEVICE)?;
        Ok(match staged.fit(self.reserve(self.num_active())) {
            _ if staged.fresh == 0 => Fit::Ok,
            // An admission or a swap has to leave blocks available (the watermark) only while other
            // requests run. So the swap may fit when they have ended.
            Fit::Never if staged.fit(0) != Fit::Never => Fit::Later,
            fit => fit,
        })
    }

    /// Begins to preempt running requests by swap: plans to move their blocks to the host tier, as in
    /// [`crate::Tiers::begin_swap`]. All or nothing. O(blocks).
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`] for the host tier, [`ManagerError::NoHostTier`],
    /// [`ManagerError::EmptyGroup`], [`ManagerError::NamedTwice`], [`ManagerError::UnknownRequest`],
    /// [`ManagerError::WrongState`].
    pub fn begin_swap_out(&mut self, ids: &[RequestRef<'_>]) -> Result<SwapId> {
        let (slots, references) = self.group(ids, RequestState::Running, "swap it out")?;
        let swap = self.tiers.begin_swap_of(slots.clone(), &references, DEVICE, HOST, 0)?;
        self.move_with(&slots, swap)?;
        Ok(swap)
    }

    /// Begins to bring swapped requests back to the device. Content that the device still caches is not
    /// copied. All or nothing. O(blocks).
    ///
    /// # Errors
    /// As [`Self::begin_swap_out`]; [`ManagerError::OutOfBlocks`] for the device. While other requests
    /// run, the swap also has to leave the blocks of `ManagerConfig::watermark` available.
    pub fn begin_swap_in(&mut self, ids: &[RequestRef<'_>]) -> Result<SwapId> {
        let (slots, references) = self.group(ids, RequestState::Swapped, "swap it in")?;
        let reserve = self.reserve(self.num_active());
        let swap = self.tiers.begin_swap_of(slots.clone(), &references, HOST, DEVICE, reserve)?;
        self.notify_changed(slots.first().copied());
        self.move_with(&slots, swap)?;
        Ok(swap)
    }

    /// Ends a swap after the engine has executed its copies. Requests that were swapped out wait in the
    /// host tier; requests that were swapped in run again. Returns pairs of old and new blocks.
    /// O(blocks).
    ///
    /// # Errors
    /// [`crate::TierError::CopiesNotTaken`], [`crate::TierError::UnknownSwap`].
    pub fn complete_swap(&mut self, swap: SwapId) -> Result<Vec<(BlockId, BlockId)>> {
        let swap = self.tiers.complete_swap_of(swap)?;
        self.notify_changed(None);
        let pairs = swap.pairs();
        let mapping: HashMap<BlockId, BlockId> = pairs.iter().copied().collect();
        for &slot in &swap.members {
            let sequence = &mut self.requests.at_mut(slot)?.sequence;
            sequence.moved(&mapping, swap.to);
            sequence.name_interior(&mut self.tiers)?;
            if self.arrive(slot, swap.to)? {
                // Applies the hints of each request to its blocks on the device. The swap has
                // registered or hit these blocks.
                self.apply_hints(slot, None, 0..usize::MAX, Scope::All)?;
            }
        }
        let counter = if swap.to == HOST { &mut self.stats.swapped_out } else { &mut self.stats.swapped_in };
        *counter += swap.members.len() as u64;
        Ok(pairs)
    }

    /// Aborts a swap: the requests return to the state and the blocks that they had before it.
    ///
    /// # Errors
    /// [`crate::TierError::UnknownSwap`].
    pub fn abort_swap(&mut self, swap: SwapId) -> Result<()> {
        let swap = self.tiers.abort_swap_of(swap)?;
        self.notify_changed(None);
        swap.members.iter().try_for_each(|&slot| {
            self.requests.at_mut(slot)?.sequence.swap = None;
            self.arrive(slot, swap.from).map(drop)
        })
    }

    /// Called at the end of a swap. Sets the state of a request, or completes its release if it was
    /// released meanwhile. Returns false if the request was removed.
    fn arrive(&mut self, slot: usize, tier: usize) -> Result<bool> {
        if let Some(leaving) = self.requests.at(slot)?.leaving {
            self.release_slot(slot, leaving)?;
            return Ok(false);
        }
        self.set_state(slot, if tier == DEVICE { RequestState::Running } else { RequestState::Swapped })?;
        Ok(true)
    }

    fn move_with(&mut self, slots: &[usize], swap: SwapId) -> Result<()> {
        slots.iter().try_for_each(|&slot| {
            self.requests.at_mut(slot)?.sequence.swap = Some(swap);
            self.set_state(slot, RequestState::Moving)
        })
    }
}

const FORK: &str = "fork it";

const TRUNCATE: &str = "truncate it";

/// Returns an error if a truncation to `asked` tokens is not possible: it would keep no token, more
/// tokens than the request has, or too few to leave the next token the blocks that it reads.
fn check_length_of(request: &Request, asked: usize) -> Result<()> {
    let (least, tokens) = request.sequence.lengths();
    let least = least.max(1);
    if (least..=tokens).contains(&asked) {
        return Ok(());
    }
    Err(ManagerError::BadLength { id: request.id.clone(), asked, least, tokens })
}
