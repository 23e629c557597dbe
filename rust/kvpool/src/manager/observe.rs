//! `ManagerObserver`: what a manager tells whoever watches it, and its requests, to look at.
//!
//! Beside it each pool of a manager may have an observer ([`crate::observe::PoolObserver`]). The
//! manager gives the same answers with one and without, which costs one branch per call.

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

/// A request, to look at.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RequestView<'a> {
    /// Its id.
    pub id: &'a RequestId,
    /// Its tokens and their hash chain.
    pub cursor: &'a HashCursor,
    /// Whether it holds blocks of the device, and computes.
    pub is_running: bool,
    /// Entries of its tables.
    pub num_blocks: usize,
    /// Blocks of its table, from the first on, that it has registered or hit; with KV-cache groups,
    /// hash units that it has computed or hit.
    pub num_published: usize,
    /// Whether it registers what it computes: not behind a hash collision.
    pub publishes: bool,
    /// Whose it is, for retention.
    pub tenant: Option<TenantId>,
}

/// A request that was admitted, or resumed, on what a lookup found.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Admitted<'a> {
    /// Its slot.
    pub slot: usize,
    /// Hash units that the lookup asked for: blocks, where there are no KV-cache groups.
    pub asked: usize,
    /// Hash units that it found.
    pub hits: usize,
    /// Whether a hash collision ended it.
    pub collided: bool,
    /// Whether the request was resumed.
    pub resumed: bool,
    /// How far the groups of full attention alone would have gone, in tokens; the limit, if there are none.
    pub full_tokens: usize,
    /// By group, how far it alone would have gone: of a manager with groups, for
    /// [`ManagerObserver::wants_reach`].
    pub reach: &'a [Tokens],
}

/// Who watches a manager: see [`CacheManager::observe`]. Requests are named by their slots. All methods
/// do nothing unless they are written.
#[expect(unused_variables, reason = "what a method may use, by name")]
pub trait ManagerObserver: Any + fmt::Debug + Send + Sync {
    /// Whether it wants to know how far each KV-cache group alone would have served an admission
    /// ([`Admitted::reach`]): a lookup more for each group.
    fn wants_reach(&self) -> bool {
        false
    }

    /// A request was admitted, and its blocks are allocated: what these evicted was there when it looked.
    fn admitted(&mut self, admitted: &Admitted<'_>, manager: &CacheManager) {}

    /// A request has registered the blocks at some positions of its table; with KV-cache groups it has
    /// computed hash units, of which each group has registered what it keeps.
    fn published(&mut self, slot: usize, positions: Range<usize>, manager: &CacheManager) {}

    /// Contents may have come or gone, in an operation for a request, if for any.
    fn changed(&mut self, slot: Option<usize>, manager: &CacheManager) {}

    /// A request is a fork of `parent`.
    fn forked(&mut self, parent: usize, slot: usize, manager: &CacheManager) {}

    /// A request is about to be forgotten.
    fn released(&mut self, slot: usize, manager: &CacheManager) {}

    /// A step is completed. What is found wrong here fails the call ([`CacheManager::poison`]).
    fn step_completed(&mut self, manager: &mut CacheManager) {}

    /// The manager was told the time, and its device's pool with it: seconds, on the clock of its caller.
    fn time_passed(&mut self, now: f64, manager: &mut CacheManager) {}

    /// Compares what it noted with the manager: part of [`CacheManager::check_invariants`].
    ///
    /// # Errors
    /// The first thing that is wrong.
    fn check(&self, manager: &CacheManager) -> Result<(), InvariantViolation> {
        Ok(())
    }
}

impl CacheManager {
    /// Tells `observer` of everything from now on; returns who was told before.
    pub fn observe(&mut self, observer: Box<dyn ManagerObserver>) -> Option<Box<dyn ManagerObserver>> {
        self.observer.replace(observer)
    }

    /// Tells `observer` of what the pool of a tier does: see [`crate::Tiers::observe`].
    ///
    /// # Errors
    /// [`TierError::UnknownTier`]; as [`crate::BlockPool::observe`].
    pub fn observe_tier(&mut self, tier: usize, observer: Box<dyn PoolObserver>) -> Result<(), TierError> {
        self.tiers.observe(tier, observer)
    }

    /// The observer, if it is of this type.
    #[must_use]
    pub fn observer<T: ManagerObserver>(&self) -> Option<&T> {
        let observer: &dyn Any = self.observer.as_deref()?;
        observer.downcast_ref()
    }

    /// The same, to be changed.
    pub fn observer_mut<T: ManagerObserver>(&mut self) -> Option<&mut T> {
        let observer: &mut dyn Any = self.observer.as_deref_mut()?;
        observer.downcast_mut()
    }

    /// The observer of a tier's pool, if it is of this type, and the tier's blocks.
    pub fn tier_observer_mut<T: PoolObserver>(&mut self, tier: usize) -> Option<(&mut T, Blocks<'_>)> {
        self.tiers.pool_mut(tier).ok()?.observer_mut()
    }

    /// The request in a slot, if there is one. Slots are reused; a request keeps its own. O(1).
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

    /// The tokens of the request in a slot, if there is one. O(1).
    #[inline]
    #[must_use]
    pub fn cursor_at(&self, slot: usize) -> Option<&HashCursor> {
        Some(&self.requests.at(slot).ok()?.sequence.cursor)
    }

    /// Slots so far, of requests that there are and that there were.
    #[must_use]
    pub const fn num_slots(&self) -> usize {
        self.requests.slots().len()
    }

    /// Requests that there are: running, preempted and swapped out.
    #[must_use]
    pub fn num_requests(&self) -> usize {
        self.requests.num_found()
    }

    /// Swaps that are begun and not over.
    #[must_use]
    pub fn num_swaps(&self) -> usize {
        self.tiers.num_swaps()
    }

    /// Poisons the manager for an invariant that somebody found broken: it refuses all work from now
    /// on. Returns the refusal.
    #[cold]
    #[must_use]
    pub fn poison(&self, violation: &InvariantViolation) -> ManagerError {
        self.tiers.device().poison(violation).into()
    }

    #[inline]
    pub(super) fn tell(&mut self, what: impl FnOnce(&mut dyn ManagerObserver, &mut Self)) {
        if let Some(mut observer) = self.observer.take() {
            what(&mut *observer, self);
            self.observer = Some(observer);
        }
    }

    /// Says that contents may have come or gone.
    #[inline]
    pub(super) fn tell_changed(&mut self, slot: Option<usize>) {
        self.tell(|observer, manager| observer.changed(slot, manager));
    }
}
