//! Growth: tokens appended by decode steps, and tokens committed as computed.

use super::CacheManager;
use super::error::ManagerError;
use super::request::{Request, RequestRef, RequestState};
use crate::block::BlockId;
use crate::error::Refusal;

/// A block that an append added to a request's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewBlock {
    /// Position of the request in the call.
    pub row: usize,
    /// The block.
    pub block: BlockId,
}

impl CacheManager {
    /// Appends one token to each of `requests`, with blocks where a boundary is crossed: the decode step of a whole
    /// batch in one call, all or nothing. With `commit_first`, every token that these requests had is committed as
    /// computed first: the step that sampled the new tokens has written their KV. Returns the blocks added, in call
    /// order. O(requests); a token that completes no block touches neither hasher nor pool.
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
        if requests.len() != tokens.len() {
            return Err(ManagerError::LengthMismatch {
                requests: requests.len(),
                values: tokens.len(),
                what: "tokens",
            });
        }
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
        let needed = self.resolve_batch(requests, rows, "append to it")?;
        let available = self.pool.num_available();
        if needed > available {
            let (usable, block_size) = (self.pool.num_usable(), self.pool.block_size());
            let fits = |request: &Request| {
                request.blocks.len() + request.blocks_missing_for(1, block_size) <= usable
            };
            let each_fits = rows.iter().all(|&slot| self.at(slot).is_ok_and(fits));
            self.check_growth(needed, available, each_fits)?;
        }
        let mut added = Vec::with_capacity(needed);
        for (row, (&slot, token)) in rows.iter().zip(tokens).enumerate() {
            if commit_first {
                let all = self.at(slot)?.cursor.num_tokens();
                self.commit_slot(slot, all)?;
            }
            for block in self.extend(slot, std::slice::from_ref(token))? {
                added.push(NewBlock { row, block: *block });
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
        self.batch += 1;
        let (batch, block_size) = (self.batch, self.pool.block_size());
        let mut needed = 0;
        for (row, &id) in requests.iter().enumerate() {
            let same =
                rows.get(row).filter(|&&slot| self.at(slot).is_ok_and(|request| request.id.as_ref() == id));
            let slot = same.map_or_else(|| self.slot(id), |&slot| Ok(slot))?;
            let request = self.at_mut(slot)?;
            if request.state != RequestState::Running {
                let (id, state) = (request.id.clone(), request.state);
                return Err(ManagerError::WrongState { id, state, operation });
            }
            if std::mem::replace(&mut request.batch, batch) == batch {
                return Err(ManagerError::NamedTwice { id: request.id.clone(), scope: "call" });
            }
            needed += request.blocks_missing_for(1, block_size);
            if row < rows.len() {
                rows[row] = slot;
            } else {
                rows.push(slot);
            }
        }
        rows.truncate(requests.len());
        Ok(needed)
    }

    /// Appends several tokens to one request: a chunk of streamed input, or accepted drafts. Returns the blocks added.
    /// Atomic. O(tokens).
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn append_tokens<'a>(
        &mut self,
        id: impl Into<RequestRef<'a>>,
        tokens: &[u32],
    ) -> Result<Vec<BlockId>, ManagerError> {
        let slot = self.slot_in(id.into(), RequestState::Running, "append to it")?;
        let request = self.at(slot)?;
        let needed = request.blocks_missing_for(tokens.len(), self.pool.block_size());
        let fits = request.blocks.len() + needed <= self.pool.num_usable();
        self.check_growth(needed, self.pool.num_available(), fits)?;
        Ok(self.extend(slot, tokens)?.to_vec())
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
        let refusal = Refusal::new(needed, available, self.pool.num_fenced(), can_ever_fit);
        Err(ManagerError::OutOfBlocks(refusal))
    }

    /// Appends tokens to a running request, after [`Self::check_growth`]. Returns the blocks added.
    pub(super) fn extend(&mut self, slot: usize, tokens: &[u32]) -> Result<&[BlockId], ManagerError> {
        let block_size = self.pool.block_size();
        let missing = self.at(slot)?.blocks_missing_for(tokens.len(), block_size);
        self.fresh.clear();
        if missing > 0 {
            self.pool.allocate_into(missing, &mut self.fresh)?;
        }
        self.stats.appended_tokens += tokens.len() as u64;
        self.version += 1;
        let Some(request) = self.requests.get_mut(slot).and_then(Option::as_mut) else {
            return Err(super::lost_slot());
        };
        request.cursor.append(tokens);
        request.blocks.extend_from_slice(&self.fresh);
        Ok(&self.fresh)
    }

    /// Says that the engine has written the KV of the request's first `computed_tokens` tokens. Blocks that this fills
    /// are registered and can be hit from now on. Returns how many. Cannot fail for want of blocks: O(new full blocks),
    /// allocates nothing.
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
        let (tokens, computed) = (request.cursor.num_tokens(), request.computed_tokens);
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
        if requests.len() != computed_tokens.len() {
            let values = computed_tokens.len();
            return Err(ManagerError::LengthMismatch { requests: requests.len(), values, what: "counts" });
        }
        let mut rows = std::mem::take(&mut self.rows);
        let checked = self.resolve_batch(requests, &mut rows, "commit tokens of it").and_then(|_| {
            for (&slot, &asked) in rows.iter().zip(computed_tokens) {
                let request = self.at(slot)?;
                let (tokens, computed) = (request.cursor.num_tokens(), request.computed_tokens);
                if asked > tokens || asked < computed {
                    let id = request.id.clone();
                    return Err(ManagerError::BadComputedCount { id, asked, tokens, computed });
                }
            }
            rows.iter()
                .zip(computed_tokens)
                .try_fold(0, |sum, (&slot, &n)| Ok(sum + self.commit_slot(slot, n)?))
        });
        self.rows = rows;
        checked
    }

    #[inline]
    fn commit_slot(&mut self, slot: usize, computed_tokens: usize) -> Result<usize, ManagerError> {
        let (block_size, epoch) = (self.pool.block_size(), self.pool.epoch());
        let Some(request) = self.requests.get_mut(slot).and_then(Option::as_mut) else {
            return Err(super::lost_slot());
        };
        request.computed_tokens = computed_tokens;
        self.version += 1;
        let full = computed_tokens / block_size;
        if full <= request.published || !request.publishes || request.cursor.epoch() != epoch {
            return Ok(0);
        }
        let blocks = &request.blocks[request.published..full];
        let registered = self.pool.register(blocks, request.cursor.chain(), request.published)?;
        self.pool.mark_computed(&blocks[..registered.blocks])?;
        request.publishes = !registered.collided;
        request.published += registered.blocks;
        Ok(registered.blocks)
    }
}
