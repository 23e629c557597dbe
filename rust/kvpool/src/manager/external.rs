//! Handles external tokens, and releases of requests whose blocks a swap or a load still uses.
//!
//! External tokens are tokens whose KV is outside of the pool. A connector, for P/D disaggregation or a
//! store, has the KV of a prompt's first tokens and loads it. [`CacheManager::admit_with`] allocates
//! blocks for the external tokens that are not cached on the device. The state of the request is then
//! [`RequestState::Loading`]. Until [`CacheManager::external_done`] is called, lookups do not find
//! these blocks, and nothing is computed in them.
//!
//! The engine computes the tokens whose load failed and all tokens after them, because the computed
//! tokens of a request have to be contiguous. A group with a window or a recurrent state only has
//! blocks for the tokens that the first token after the load reads. If some of these were not loaded,
//! the request releases its blocks and is preempted.
//!
//! Blocks that a swap or a connector still writes to are never released: a release waits until the swap
//! or load ends. Otherwise a block could get a new owner while a transfer still writes another
//! request's KV to it (dynamo #15079).

use std::ops::Range;

use super::CacheManager;
use super::error::{ManagerError, Result};
use super::id::{RequestRef, RequestState};
use super::request::External;
use crate::Until;

/// Says which external tokens were loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loaded<'a> {
    /// All external tokens.
    All,
    /// The KV of this number of leading prompt tokens is available.
    First(usize),
    /// All external tokens were loaded, except those in these ranges of prompt tokens. Tokens in the
    /// ranges that are not external are ignored.
    AllBut(&'a [Range<usize>]),
}

impl Loaded<'_> {
    /// Returns the number of leading prompt tokens whose KV can be used after the load. `computed..end`
    /// are the external tokens.
    fn until(&self, computed: usize, end: usize) -> usize {
        match self {
            Loaded::All => end,
            Loaded::First(tokens) => *tokens,
            Loaded::AllBut(ranges) => {
                let failed = ranges.iter().map(|range| range.start.max(computed)..range.end.min(end));
                failed.filter(|range| !range.is_empty()).map(|range| range.start).min().unwrap_or(end)
            }
        }
    }
}

/// # External tokens
///
/// A connector loads the KV of external tokens, for P/D disaggregation or from a store.
impl CacheManager {
    /// Ends the load of a request's external tokens. `loaded` names the tokens that arrived. Their KV
    /// counts as computed, their full blocks are registered, and the request runs. The engine computes
    /// the remaining tokens, including those whose load failed. Returns the number of registered
    /// blocks. If the request was released meanwhile, the call completes the release. O(blocks).
    ///
    /// If the loaded tokens are not enough to continue from, the request is preempted
    /// ([`RequestState::Preempted`]). This happens with groups that have a window, a chunk or a state,
    /// because they only have blocks for the tokens that the first token after the load reads.
    /// [`Self::resume`] then makes the engine compute the missing tokens.
    ///
    /// ```
    /// use kvpool::{AdmitOptions, CacheManager, ExtraKeys, Loaded, ManagerConfig, Part};
    /// let config = ManagerConfig { num_blocks: 64, block_size: 4, ..Default::default() };
    /// let mut manager = CacheManager::new(config)?;
    /// let prompt: Vec<u32> = (0..19).collect();
    /// let part = Part { external_tokens: 16, ..Part::WHOLE };
    /// let options = AdmitOptions { part, ..AdmitOptions::default() };
    /// let admission = manager.admit_with("a", manager.prepare(&prompt, ExtraKeys::default())?, &options)?;
    /// assert_eq!((admission.external_tokens, admission.block_ids.len()), (16, 5));
    /// manager.external_done("a", Loaded::AllBut(&[8..12]))?;       // the third block failed
    /// assert_eq!(manager.request("a")?.computed_tokens, 8);        // the engine continues there
    /// # Ok::<(), kvpool::ManagerError>(())
    /// ```
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`]; [`ManagerError::WrongState`] if the request is not loading;
    /// [`ManagerError::BadExternalCount`] if `loaded` names more tokens than were to be loaded, or
    /// fewer than were cached.
    pub fn external_done<'a>(&mut self, id: impl Into<RequestRef<'a>>, loaded: Loaded<'_>) -> Result<usize> {
        const OPERATION: &str = "end its load";
        let slot = self.slot_in(id.into(), &[RequestState::Loading, RequestState::Releasing], OPERATION)?;
        let request = self.requests.at(slot)?;
        let Some(External { end, covered, resumed }) = request.external else {
            let (id, state) = (request.id.clone(), request.state);
            return Err(ManagerError::WrongState { id, state, operation: OPERATION });
        };
        let computed = request.sequence.computed_tokens;
        let loaded = loaded.until(computed, end);
        if !(computed..=end).contains(&loaded) {
            let id = request.id.clone();
            return Err(ManagerError::BadExternalCount { id, asked: loaded, least: computed, most: end });
        }
        let request = self.requests.at_mut(slot)?;
        request.external = None;
        if let Some(leaving) = request.leaving {
            self.release_slot(slot, leaving)?;
            return Ok(0);
        }
        if !request.sequence.can_continue(loaded, loaded == end) {
            self.set_state(slot, RequestState::Running)?;
            let registered = self.commit_slot(slot, loaded, None)?;
            self.preempt_slot(slot, Until::Now)?;
            return Ok(registered);
        }
        let brought = (loaded - computed) as u64;
        if resumed {
            self.stats.resumed_external_tokens += brought;
        } else {
            self.stats.external_tokens += brought;
            self.stats.computed_tokens -= brought;
        }
        self.set_state(slot, RequestState::Running)?;
        let registered = self.commit_slot(slot, loaded, None)?;
        self.keep_states(slot)?;
        self.requests.at_mut(slot)?.sequence.note_covered(covered);
        Ok(registered)
    }
}
