//! Growth: tokens appended by decode steps, and tokens committed as computed.

use super::error::{ManagerError, Result};
use super::request::{RequestRef, RequestState};
use super::{CacheManager, lost_slot};
use crate::block::BlockId;
use crate::sequence::{GivenUp, TableChange};
use crate::tiers::out_of_blocks;

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
    /// Appends one token to each of `requests`, with blocks where a boundary is crossed: the decode step of a whole batch, all
    /// or nothing. With `commit_first`, every token that these requests had is committed as computed first: the step that
    /// sampled the new tokens has written their KV. Returns what changed in block tables, in call order; whoever writes to a
    /// shared block first gets a copy, which is planned. O(requests); a token that completes no block touches neither hasher
    /// nor pool.
    ///
    /// # Errors
    /// [`ManagerError::OutOfBlocks`] for the batch as a whole, [`ManagerError::UnknownRequest`],
    /// [`ManagerError::WrongState`] for a preempted one, [`ManagerError::NamedTwice`], [`ManagerError::LengthMismatch`].
    pub fn append(
        &mut self,
        requests: &[RequestRef<'_>],
        tokens: &[u32],
        commit_first: bool,
    ) -> Result<Vec<NewBlock>> {
        let needed = self.resolve_batch(requests, tokens.len(), "tokens", "append to it")?;
        let pool = self.tiers.device();
        let available = pool.num_available();
        if needed > available {
            let fits =
                |&slot: &usize| self.at(slot).is_ok_and(|request| request.sequence.fits_alone(pool, 1));
            let can_ever_fit = self.rows.iter().all(fits);
            return Err(out_of_blocks(pool, needed, available, can_ever_fit).into());
        }
        let mut added = Vec::with_capacity(needed);
        for (row, token) in tokens.iter().enumerate() {
            let slot = self.rows[row];
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

    /// Looks up every request of a batch, whose slots go to `self.rows`, and counts the blocks that one more token each needs.
    /// From one step to the next most rows stay the same request: comparing its id is cheaper than looking it up.
    fn resolve_batch(
        &mut self,
        requests: &[RequestRef<'_>],
        values: usize,
        what: &'static str,
        operation: &'static str,
    ) -> Result<usize> {
        if requests.len() != values {
            return Err(ManagerError::LengthMismatch { requests: requests.len(), values, what });
        }
        self.check_poison()?;
        self.batch += 1;
        let batch = self.batch;
        let mut needed = 0;
        let mut given_up = GivenUp::default();
        for (row, &id) in requests.iter().enumerate() {
            let before = self.rows.get(row).copied();
            let same = before.filter(|&slot| self.at(slot).is_ok_and(|request| request.id.as_ref() == id));
            let slot = same.map_or_else(|| self.slot(id), Ok)?;
            self.check_state(slot, &[RequestState::Running], operation)?;
            let (request, tiers) = self.parts(slot)?;
            if std::mem::replace(&mut request.batch, batch) == batch {
                return Err(ManagerError::NamedTwice { id: request.id.clone(), scope: "call" });
            }
            needed += request.sequence.blocks_needed(tiers.device(), 1, &mut given_up);
            match self.rows.get_mut(row) {
                Some(known) => *known = slot,
                None => self.rows.push(slot),
            }
        }
        self.rows.truncate(requests.len());
        Ok(needed)
    }

    /// The slots of the latest batch ([`Self::append`], [`Self::commit_batch`]), in its order: all of them if the call
    /// succeeded, or was refused for want of blocks.
    #[doc(hidden)]
    #[must_use]
    pub fn batch_slots(&self) -> &[usize] {
        &self.rows
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
    ) -> Result<Vec<TableChange>> {
        let slot = self.slot_in(id.into(), &[RequestState::Running], "append to it")?;
        let (sequence, pool) = (&self.at(slot)?.sequence, self.tiers.device());
        let more = tokens.len().saturating_add(lookahead);
        sequence.check_growth(pool, more, pool.num_available(), &mut GivenUp::default())?;
        Ok(self.extend(slot, tokens, lookahead)?.to_vec())
    }

    /// Appends tokens to a running request, after a check that its blocks are available. Returns the positions that changed.
    fn extend(&mut self, slot: usize, tokens: &[u32], lookahead: usize) -> Result<&[TableChange]> {
        let Self { tiers, requests, changes, .. } = self;
        let request = requests.get_mut(slot).and_then(Option::as_mut).ok_or_else(lost_slot)?;
        changes.clear();
        request.sequence.extend(tiers, tokens, lookahead, changes)?;
        self.stats.appended_tokens += tokens.len() as u64;
        self.version += 1;
        if !self.changes.is_empty() {
            self.tell_changed(Some(slot));
        }
        Ok(&self.changes)
    }

    /// Says that the engine has written the KV of the request's first `computed_tokens` tokens. Blocks that this fills are
    /// registered and can be hit from now on, but for requests admitted before an epoch bump, and behind a hash collision.
    /// Returns how many; what forks share is counted once, by whoever commits it first. O(new full blocks), allocates nothing.
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`], [`ManagerError::WrongState`] for a preempted one,
    /// [`ManagerError::BadComputedCount`] for more than the request's tokens, or fewer than were computed before.
    pub fn commit<'a>(&mut self, id: impl Into<RequestRef<'a>>, computed_tokens: usize) -> Result<usize> {
        let slot = self.slot_in(id.into(), &[RequestState::Running], "commit tokens of it")?;
        self.check_computed(slot, computed_tokens)?;
        self.commit_slot(slot, computed_tokens)
    }

    /// [`Self::commit`] for a batch, all or nothing.
    ///
    /// # Errors
    /// As [`Self::commit`], and [`ManagerError::LengthMismatch`].
    pub fn commit_batch(&mut self, requests: &[RequestRef<'_>], computed_tokens: &[usize]) -> Result<usize> {
        self.resolve_batch(requests, computed_tokens.len(), "counts", "commit tokens of it")?;
        for (&slot, &asked) in self.rows.iter().zip(computed_tokens) {
            self.check_computed(slot, asked)?;
        }
        let rows = 0..computed_tokens.len();
        rows.zip(computed_tokens).try_fold(0, |sum, (row, &n)| Ok(sum + self.commit_slot(self.rows[row], n)?))
    }

    fn check_computed(&self, slot: usize, asked: usize) -> Result<()> {
        let request = self.at(slot)?;
        let (tokens, computed) = (request.sequence.num_tokens(), request.sequence.computed_tokens);
        if (computed..=tokens).contains(&asked) {
            return Ok(());
        }
        Err(ManagerError::BadComputedCount { id: request.id.clone(), asked, tokens, computed })
    }

    #[inline]
    fn commit_slot(&mut self, slot: usize, computed_tokens: usize) -> Result<usize> {
        let (request, tiers) = self.parts(slot)?;
        let before = request.sequence.published;
        let registered = request.sequence.commit(tiers.device_mut(), computed_tokens, None)?;
        let published = before..request.sequence.published;
        self.version += 1;
        if !published.is_empty() {
            self.tell(|observer, manager| observer.published(slot, published.clone(), manager));
            self.apply_hints(slot, published)?;
        }
        Ok(registered)
    }
}
