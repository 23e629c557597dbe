//! Requests: what the manager keeps of each.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::error::{ManagerError, Result};
use super::hints::Hints;
use super::id::{RequestId, RequestRef, RequestState};
use crate::sequence::Sequence;
use crate::{Signal, Until};

/// What the manager keeps of a request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: RequestId,
    pub(crate) state: RequestState,
    /// Its tokens and block table.
    pub(crate) sequence: Sequence,
    /// Tokens that were cached when it was last admitted.
    pub(crate) cached_tokens: usize,
    /// The number of the batch that named it last: finds an id named twice in one call in O(1).
    pub(crate) batch: u64,
    /// What was said of it.
    pub(crate) hints: Option<Box<Hints>>,
    /// What a connector loads into its blocks.
    pub(crate) external: Option<External>,
    /// How it is released, once that was asked: at once, or when what moves or loads has ended.
    pub(crate) leaving: Option<Leaving>,
    /// The first position of its table whose block it registered itself: what is before was hit, or is a parent's.
    pub(crate) own_from: usize,
}

impl Request {
    /// Refuses an operation in any other than these states.
    #[inline]
    pub(crate) fn check_state(&self, states: &[RequestState], operation: &'static str) -> Result<()> {
        if states.contains(&self.state) {
            return Ok(());
        }
        Err(ManagerError::WrongState { id: self.id.clone(), state: self.state, operation })
    }
}

/// Where the requests are, by their ids. A request has its id; here are slots alone.
#[derive(Debug, Default)]
pub(super) struct Slots {
    table: HashTable<usize>,
    hasher: DefaultHashBuilder,
    /// What was found last. A call that is measured or recorded names its request again.
    latest: AtomicUsize,
}

impl Slots {
    /// The slot of the request with an id, if there is one.
    #[inline]
    pub(super) fn find(&self, requests: &[Option<Request>], id: RequestRef<'_>) -> Option<usize> {
        let latest = self.latest.load(Ordering::Relaxed);
        if has_id(requests, latest, id) {
            return Some(latest);
        }
        let slot = self.look_up(requests, id)?;
        self.latest.store(slot, Ordering::Relaxed);
        Some(slot)
    }

    /// The same, whatever was found last.
    pub(super) fn look_up(&self, requests: &[Option<Request>], id: RequestRef<'_>) -> Option<usize> {
        if self.table.is_empty() {
            return None;
        }
        self.table.find(self.hasher.hash_one(id), |&slot| has_id(requests, slot, id)).copied()
    }

    /// Enters the slot of a request whose id is new.
    pub(super) fn insert(&mut self, requests: &[Option<Request>], id: RequestRef<'_>, slot: usize) {
        let id_at = |slot: &usize| requests.get(*slot).and_then(Option::as_ref).map(|it| it.id.as_ref());
        let hash = |slot: &usize| id_at(slot).map_or(0, |id| self.hasher.hash_one(id));
        self.table.insert_unique(self.hasher.hash_one(id), slot, hash);
    }

    /// Forgets the slot of a request.
    pub(super) fn remove(&mut self, id: RequestRef<'_>, slot: usize) {
        if let Ok(found) = self.table.find_entry(self.hasher.hash_one(id), |&other| other == slot) {
            found.remove();
        }
    }

    /// How many requests there are.
    pub(super) fn len(&self) -> usize {
        self.table.len()
    }
}

/// Whether the request in a slot has this id.
#[inline]
pub(super) fn has_id(requests: &[Option<Request>], slot: usize, id: RequestRef<'_>) -> bool {
    matches!(requests.get(slot), Some(Some(request)) if request.id.as_ref() == id)
}

/// Tokens that are on their way into a request's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct External {
    /// The token behind the last of them; the first is behind the computed ones.
    pub(crate) end: usize,
    /// Tokens that the tables cover.
    pub(crate) covered: usize,
    /// Whether it was resumed with them.
    pub(crate) resumed: bool,
}

/// How a request is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leaving {
    pub(crate) until: Until,
    pub(crate) end_of_life: bool,
    /// What is known of how it ended.
    pub(crate) signal: Signal,
}

/// What a scheduler may want to know of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestInfo {
    /// Whether it holds blocks.
    pub state: RequestState,
    /// Its tokens: prompt and appended ones.
    pub tokens: usize,
    /// Tokens whose KV is written, cached ones included.
    pub computed_tokens: usize,
    /// Tokens that were cached when it was last admitted.
    pub cached_tokens: usize,
    /// The token behind the last one that a connector loads; [`Self::computed_tokens`] if it loads none.
    pub external_end: usize,
    /// Blocks in its block table.
    pub blocks: usize,
    /// The tier whose blocks these are: 0, or 1 if it is swapped out.
    pub tier: usize,
}
