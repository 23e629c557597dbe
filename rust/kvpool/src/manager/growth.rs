//! Growth: tokens appended by decode steps, and tokens committed as computed.

use super::CacheManager;
use super::error::ManagerError;
use super::request::{RequestRef, RequestState};
use crate::block::BlockId;
use crate::error::Refusal;
use crate::sequence::{GivenUp, TableChange};

/// A position of a request's block table that an append changed: a new block at the end, or a copy in the place of a shared
/// or registered one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewBlock {
    /// Position of the request in the call.
    pub row: usize,
    /// Position in its block table.
    pub index: usize,
    /// The block that is there now.
    pub block: BlockId,
}

impl CacheManager {
    /// Appends one token to each of `requests`, with blocks where a boundary is crossed: the decode step of a whole
    /// batch in one call, all or nothing. With `commit_first`, every token that these requests had is committed as
    /// computed first: the step that sampled the new tokens has written their KV. Returns the positions of block tables
    /// that changed, in call order. After a fork, whoever writes to a shared block first gets a copy, which is planned
    /// ([`Self::take_plan`]). O(requests); a token that completes no block touches neither hasher nor pool.
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`] for the batch as a whole, [`ManagerError::UnknownRequest`],
    /// [`ManagerError::WrongState`] for a preempted one, [`ManagerError::NamedTwice`], [`ManagerError::LengthMismatch`].
    pub fn append(
        &mut self,
        requests: &[RequestRef<'_>],
        tokens: &[u32],
        commit_first: bool,
    ) -> Result<Vec<NewBlock>, ManagerError> {
        let mut rows = std::mem::take(&mut self.rows);
        let result = self.append_rows(requests, tokens, commit_first, &mut rows);
        self.rows = rows;
        result
    }

    fn append_rows(
        &mut self,
        requests: &[RequestRef<'_>],
        tokens: &[u32],
        commit_first: bool,
        rows: &mut Vec<usize>,
    ) -> Result<Vec<NewBlock>, ManagerError> {
        if requests.len() != tokens.len() {
            return Err(ManagerError::LengthMismatch {
                requests: requests.len(),
                values: tokens.len(),
                what: "tokens",
            });
        }
        let needed = self.resolve_batch(requests, rows, "append to it")?;
        let available = self.tiers.device().num_available();
        if needed > available {
            let each_fits = rows.iter().all(|&slot| self.fits_alone(slot, 1).unwrap_or(false));
            self.check_growth(needed, available, each_fits)?;
        }
        let mut added = Vec::with_capacity(needed);
        for (row, (&slot, token)) in rows.iter().zip(tokens).enumerate() {
            if commit_first {
                let all = self.at(slot)?.sequence.num_tokens();
                self.commit_slot(slot, all)?;
            }
            for &TableChange { index, block } in self.extend(slot, std::slice::from_ref(token), 0)? {
                added.push(NewBlock { row, index, block });
            }
        }
        Ok(added)
    }

    /// Looks up every request of a batch and counts the blocks that one more token each needs.
    ///
    /// `rows` comes with the slots of the batch before: from one step to the next most rows stay the same request, and
    /// comparing its id there is cheaper than looking it up.
    fn resolve_batch(
        &mut self,
        requests: &[RequestRef<'_>],
        rows: &mut Vec<usize>,
        operation: &'static str,
    ) -> Result<usize, ManagerError> {
        self.check_poison()?;
        self.batch += 1;
        let batch = self.batch;
        let mut needed = 0;
        let mut given_up = GivenUp::default();
        for (row, &id) in requests.iter().enumerate() {
            let same =
                rows.get(row).filter(|&&slot| self.at(slot).is_ok_and(|request| request.id.as_ref() == id));
            let slot = same.map_or_else(|| self.slot(id), |&slot| Ok(slot))?;
            let Some(request) = self.requests.get_mut(slot).and_then(Option::as_mut) else {
                return Err(super::lost_slot());
            };
            if request.state != RequestState::Running {
                let (id, state) = (request.id.clone(), request.state);
                return Err(ManagerError::WrongState { id, state, operation });
            }
            if std::mem::replace(&mut request.batch, batch) == batch {
                return Err(ManagerError::NamedTwice { id: request.id.clone(), scope: "call" });
            }
            needed += request.sequence.blocks_needed(self.tiers.device(), 1, &mut given_up);
            if row < rows.len() {
                rows[row] = slot;
            } else {
                rows.push(slot);
            }
        }
        rows.truncate(requests.len());
        Ok(needed)
    }

    /// Appends several tokens to one request: a chunk of streamed input, or accepted drafts, and makes room for `lookahead`
    /// more. Returns the positions of its block table that changed. Atomic. O(tokens).
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn append_tokens<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        tokens: &[u32],
        lookahead: usize,
    ) -> Result<Vec<TableChange>, ManagerError> {
        let slot = self.slot_in(id.into(), RequestState::Running, "append to it")?;
        let needed = self.growth(slot, tokens.len(), lookahead, &mut GivenUp::default())?;
        let fits = self.fits_alone(slot, tokens.len().saturating_add(lookahead))?;
        self.check_growth(needed, self.tiers.device().num_available(), fits)?;
        Ok(self.extend(slot, tokens, lookahead)?.to_vec())
    }

    /// Whether a request with so many slots more would fit an otherwise empty pool.
    pub(super) fn fits_alone(&self, slot: usize, more: usize) -> Result<bool, ManagerError> {
        let pool = self.tiers.device();
        Ok(self.at(slot)?.sequence.blocks_alone(pool, more) <= pool.num_usable())
    }

    /// Blocks that an append takes; see [`crate::sequence::Sequence::blocks_needed`].
    pub(super) fn growth(
        &self,
        slot: usize,
        tokens: usize,
        lookahead: usize,
        given_up: &mut GivenUp,
    ) -> Result<usize, ManagerError> {
        let pool = self.tiers.device();
        let more = tokens.saturating_add(lookahead);
        if more / pool.block_size() > pool.num_usable() {
            self.check_growth(more / pool.block_size(), pool.num_available(), false)?;
        }
        Ok(self.at(slot)?.sequence.blocks_needed(pool, more, given_up))
    }

    /// Refuses growth by more blocks than are available.
    pub(super) fn check_growth(
        &self,
        needed: usize,
        available: usize,
        can_ever_fit: bool,
    ) -> Result<(), ManagerError> {
        if needed <= available {
            return Ok(());
        }
        let refusal = Refusal::new(needed, available, self.tiers.device().num_fenced(), can_ever_fit);
        Err(ManagerError::OutOfBlocks(refusal))
    }

    /// Appends tokens to a running request, after [`Self::check_growth`]. Returns the positions that changed.
    pub(super) fn extend(
        &mut self,
        slot: usize,
        tokens: &[u32],
        lookahead: usize,
    ) -> Result<&[TableChange], ManagerError> {
        let Some(request) = self.requests.get_mut(slot).and_then(Option::as_mut) else {
            return Err(super::lost_slot());
        };
        self.changes.clear();
        request.sequence.extend(&mut self.tiers, tokens, lookahead, &mut self.changes)?;
        self.stats.appended_tokens += tokens.len() as u64;
        self.version += 1;
        if !self.changes.is_empty() {
            self.tell_changed(Some(slot));
        }
        Ok(&self.changes)
    }

    /// Says that the engine has written the KV of the request's first `computed_tokens` tokens. Blocks that this fills
    /// are registered and can be hit from now on. Returns how many; a block that forks share is counted once, by whoever commits
    /// it first. Cannot fail for want of blocks: O(new full blocks), allocates nothing.
    ///
    /// Requests admitted before an epoch bump, and blocks behind a hash collision, are never published.
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`], [`ManagerError::WrongState`] for a preempted one,
    /// [`ManagerError::BadComputedCount`] for more than the request's tokens, or fewer than were computed before.
    pub fn commit<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        computed_tokens: usize,
    ) -> Result<usize, ManagerError> {
        let slot = self.slot_in(id.into(), RequestState::Running, "commit tokens of it")?;
        let request = self.at(slot)?;
        let (tokens, computed) = (request.sequence.num_tokens(), request.sequence.computed_tokens);
        if computed_tokens > tokens || computed_tokens < computed {
            let id = request.id.clone();
            return Err(ManagerError::BadComputedCount { id, asked: computed_tokens, tokens, computed });
        }
        self.commit_slot(slot, computed_tokens)
    }

    /// [`Self::commit`] for a batch, all or nothing.
    ///
    /// # Errors
    /// As [`Self::commit`], and [`ManagerError::LengthMismatch`].
    pub fn commit_batch(
        &mut self,
        requests: &[RequestRef<'_>],
        computed_tokens: &[usize],
    ) -> Result<usize, ManagerError> {
        let mut rows = std::mem::take(&mut self.rows);
        let result = self.commit_rows(requests, computed_tokens, &mut rows);
        self.rows = rows;
        result
    }

    fn commit_rows(
        &mut self,
        requests: &[RequestRef<'_>],
        computed_tokens: &[usize],
        rows: &mut Vec<usize>,
    ) -> Result<usize, ManagerError> {
        if requests.len() != computed_tokens.len() {
            let values = computed_tokens.len();
            return Err(ManagerError::LengthMismatch { requests: requests.len(), values, what: "counts" });
        }
        self.resolve_batch(requests, rows, "commit tokens of it")?;
        for (&slot, &asked) in rows.iter().zip(computed_tokens) {
            let request = self.at(slot)?;
            let (tokens, computed) = (request.sequence.num_tokens(), request.sequence.computed_tokens);
            if asked > tokens || asked < computed {
                let id = request.id.clone();
                return Err(ManagerError::BadComputedCount { id, asked, tokens, computed });
            }
        }
        rows.iter().zip(computed_tokens).try_fold(0, |sum, (&slot, &n)| Ok(sum + self.commit_slot(slot, n)?))
    }

    #[inline]
    fn commit_slot(&mut self, slot: usize, computed_tokens: usize) -> Result<usize, ManagerError> {
        let Some(request) = self.requests.get_mut(slot).and_then(Option::as_mut) else {
            return Err(super::lost_slot());
        };
        self.version += 1;
        let before = request.sequence.published;
        let registered = request.sequence.commit(self.tiers.device_mut(), computed_tokens, None)?;
        let published = before..request.sequence.published;
        if !published.is_empty() {
            let hinted = request.hints.is_some();
            self.tell_published(slot, published.clone());
            if hinted {
                self.apply_hints(slot, published)?;
            }
        }
        Ok(registered)
    }
}
