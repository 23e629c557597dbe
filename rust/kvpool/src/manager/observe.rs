//! Defines [`ManagerObserver`], which receives the notifications of a manager, and the calls that read
//! its requests.
//!
//! In addition, each pool of a manager may have an observer ([`crate::observe::PoolObserver`]). A
//! manager returns the same results with and without an observer. Without an observer, notifications
//! cost one branch per call.

use std::any::Any;
use std::fmt;
use std::ops::Range;

use super::hints::Hints;
use super::id::{RequestId, RequestState};
use super::request::Request;
use super::{CacheManager, ManagerError};
use crate::InvariantViolation;
use crate::groups::Tokens;
use crate::hash::HashCursor;
use crate::pool::observe::{Blocks, PoolObserver};
use crate::retention::TenantId;
use crate::tiers::TierError;

/// A read-only view of one request, for observers.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RequestView<'a> {
    /// The id of the request.
    pub id: &'a RequestId,
    /// The tokens of the request and their hash chain.
    pub cursor: &'a HashCursor,
    /// Whether the request is running: it holds blocks of the device.
    pub is_running: bool,
    /// Number of entries in all block tables of the request.
    pub num_blocks: usize,
    /// Number of leading blocks of the block table that the request has registered or hit. With
    /// KV-cache groups, it counts hash units (the tokens of one hash) that the request has computed or
    /// hit.
    pub num_published: usize,
    /// Whether commits of the request register its blocks. It becomes false after a hash collision.
    pub publishes: bool,
    /// The tenant of the request, for retention.
    pub tenant: Option<TenantId>,
}

/// The result of the prefix lookup when a request was admitted or resumed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Admitted<'a> {
    /// The slot of the request.
    pub slot: usize,
    /// Number of hash units that were looked up. Without KV-cache groups, a hash unit is a block.
    pub asked: usize,
    /// Number of leading hash units that were found.
    pub hits: usize,
    /// Whether a hash collision ended the lookup.
    pub collided: bool,
    /// Whether the request was resumed after a preemption. False for a new request.
    pub resumed: bool,
    /// Number of tokens that a hit could have if only the groups of full attention limited it. Without
    /// such groups, the largest number of tokens that a hit of the prompt could have.
    pub full_tokens: usize,
    /// For each group, the number of tokens that a hit could have if only this group limited it. Empty
    /// if the model has one group, or if [`ManagerObserver::wants_reach`] returns false.
    pub reach: &'a [Tokens],
}

/// Receives the notifications of a manager: see [`CacheManager::observe`]. Requests are identified by
/// their slots. The default of every method does nothing.
#[expect(unused_variables, reason = "the names document the arguments of the default methods")]
pub trait ManagerObserver: Any + fmt::Debug + Send + Sync {
    /// Whether the observer needs the number of tokens that each KV-cache group alone could hit
    /// ([`Admitted::reach`]). It costs one more lookup per group.
    fn wants_reach(&self) -> bool {
        false
    }

    /// Receives an admitted or resumed request, whose blocks are allocated. The allocation may have
    /// evicted contents that were still cached during the lookup.
    fn admitted(&mut self, admitted: &Admitted<'_>, manager: &CacheManager) {}

    /// Receives the positions of a request's table whose blocks the request has registered. With
    /// KV-cache groups, `positions` are hash units that the request has computed, and each group has
    /// registered the blocks that it keeps.
    fn published(&mut self, slot: usize, positions: Range<usize>, manager: &CacheManager) {}

    /// Receives that an operation may have added or removed cached contents. `slot` is the slot of the
    /// request that caused the operation, if there is one.
    fn changed(&mut self, slot: Option<usize>, manager: &CacheManager) {}

    /// Receives that a fork of the request `parent` has made the request in `slot`.
    fn forked(&mut self, parent: usize, slot: usize, manager: &CacheManager) {}

    /// Receives that the request in `slot` is about to be removed.
    fn released(&mut self, slot: usize, manager: &CacheManager) {}

    /// Receives that a step has completed. If the observer finds a fault here and calls
    /// [`CacheManager::poison`], the call fails.
    fn step_completed(&mut self, manager: &mut CacheManager) {}

    /// Receives the time that the caller has set for the manager and its device's pool, in seconds on
    /// the caller's clock.
    fn time_passed(&mut self, now: f64, manager: &mut CacheManager) {}

    /// Compares the observer's records with the manager. [`CacheManager::check_invariants`] calls this
    /// method.
    ///
    /// # Errors
    /// The first difference.
    fn check(&self, manager: &CacheManager) -> Result<(), InvariantViolation> {
        Ok(())
    }
}

/// # Observers
impl CacheManager {
    /// Sets the observer, which receives all notifications from now on. Returns the previous observer.
    pub fn observe(&mut self, observer: Box<dyn ManagerObserver>) -> Option<Box<dyn ManagerObserver>> {
        self.observer.replace(observer)
    }

    /// Sets the observer of one tier's pool: see [`crate::Tiers::observe`].
    ///
    /// # Errors
    /// [`TierError::UnknownTier`]; the errors of [`crate::BlockPool::observe`].
    pub fn observe_tier(&mut self, tier: usize, observer: Box<dyn PoolObserver>) -> Result<(), TierError> {
        self.tiers.observe(tier, observer)
    }

    /// Returns the observer, if it is of type `T`.
    #[must_use]
    pub fn observer<T: ManagerObserver>(&self) -> Option<&T> {
        let observer: &dyn Any = self.observer.as_deref()?;
        observer.downcast_ref()
    }

    /// Returns a mutable reference to the observer, if it is of type `T`.
    pub fn observer_mut<T: ManagerObserver>(&mut self) -> Option<&mut T> {
        let observer: &mut dyn Any = self.observer.as_deref_mut()?;
        observer.downcast_mut()
    }

    /// Returns the observer of a tier's pool, and a view of the tier's blocks, if the observer is of
    /// type `T`.
    pub fn tier_observer_mut<T: PoolObserver>(&mut self, tier: usize) -> Option<(&mut T, Blocks<'_>)> {
        self.tiers.pool_mut(tier).ok()?.observer_mut()
    }
}

/// # Requests by slot
///
/// Observers identify requests by their slots.
impl CacheManager {
    /// Returns the request in a slot, if there is one. A request keeps its slot until it is released.
    /// Then another request may get the slot. O(1).
    #[must_use]
    pub fn request_at(&self, slot: usize) -> Option<RequestView<'_>> {
        let Request { id, state, sequence, hints, .. } = self.requests.at(slot).ok()?;
        Some(RequestView {
            id,
            cursor: &sequence.cursor,
            is_running: *state == RequestState::Running,
            num_blocks: sequence.num_entries(),
            num_published: sequence.num_published(),
            publishes: sequence.publishes,
            tenant: hints.as_deref().and_then(Hints::tenant),
        })
    }

    /// Returns the tokens of the request in a slot, if there is one. O(1).
    #[inline]
    #[must_use]
    pub fn cursor_at(&self, slot: usize) -> Option<&HashCursor> {
        Some(&self.requests.at(slot).ok()?.sequence.cursor)
    }

    /// Number of slots, including those of released requests.
    #[must_use]
    pub const fn num_slots(&self) -> usize {
        self.requests.slots().len()
    }

    /// Number of requests in all states, including released requests whose blocks a swap or a load
    /// still uses.
    #[must_use]
    pub fn num_requests(&self) -> usize {
        self.requests.num_found()
    }

    /// Number of swaps that have begun and not ended.
    #[must_use]
    pub fn num_swaps(&self) -> usize {
        self.tiers.num_swaps()
    }
}

/// # Poisoning
impl CacheManager {
    /// Poisons the manager because of a broken invariant, so that it refuses all operations. Returns
    /// the error that those refusals return.
    #[cold]
    #[must_use]
    pub fn poison(&self, violation: &InvariantViolation) -> ManagerError {
        self.tiers.device().poison(violation).into()
    }

    #[inline]
    pub(super) fn notify(&mut self, what: impl FnOnce(&mut dyn ManagerObserver, &mut Self)) {
        if let Some(mut observer) = self.observer.take() {
            what(&mut *observer, self);
            self.observer = Some(observer);
        }
    }

    /// Notifies the observer that an operation may have added or removed cached contents.
    #[inline]
    pub(super) fn notify_changed(&mut self, slot: Option<usize>) {
        self.notify(|observer, manager| observer.changed(slot, manager));
    }
}
