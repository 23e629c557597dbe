//! `Requests` stores the requests of a manager, and finds them by slot and by id.
//!
//! Each id is stored only once, in the slot of its request. The hash table stores slots, and compares
//! an id with the id of the request in the slot. A request never moves to another slot, and free slots
//! are reused.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::error::{ManagerError, Result};
use super::id::{Id, RequestRef};
use super::request::Request;
use crate::PoolError;

#[derive(Debug, Default)]
pub(super) struct Requests {
    slots: Vec<Option<Request>>,
    free: Vec<usize>,
    by_id: HashTable<usize>,
    hasher: DefaultHashBuilder,
    /// The slot that was found last. It makes the next lookup of the same request faster: recorders and
    /// metrics look the request up again after each call.
    latest: AtomicUsize,
}

impl Requests {
    #[inline]
    pub(super) fn find(&self, id: RequestRef<'_>) -> Result<usize> {
        self.slot_of(id).ok_or_else(|| ManagerError::UnknownRequest { id: id.to_owned() })
    }

    #[inline]
    pub(super) fn slot_of(&self, id: RequestRef<'_>) -> Option<usize> {
        let latest = self.latest.load(Ordering::Relaxed);
        if self.has_id(latest, id) {
            return Some(latest);
        }
        let slot = self.look_up(id)?;
        self.latest.store(slot, Ordering::Relaxed);
        Some(slot)
    }

    /// Does the work of [`Self::slot_of`], without the shortcut to the slot that was found last.
    pub(super) fn look_up(&self, id: RequestRef<'_>) -> Option<usize> {
        if self.by_id.is_empty() {
            return None;
        }
        self.by_id.find(self.hasher.hash_one(id), |&slot| self.has_id(slot, id)).copied()
    }

    #[inline]
    pub(super) fn has_id(&self, slot: usize, id: RequestRef<'_>) -> bool {
        let Some(Some(request)) = self.slots.get(slot) else { return false };
        match (&request.id, id) {
            (Id::Int(own), Id::Int(id)) => *own == id,
            (own, id) => own.as_ref() == id,
        }
    }

    #[inline]
    pub(super) fn at(&self, slot: usize) -> Result<&Request> {
        self.slots.get(slot).and_then(Option::as_ref).ok_or_else(lost_slot)
    }

    #[inline]
    pub(super) fn at_mut(&mut self, slot: usize) -> Result<&mut Request> {
        self.slots.get_mut(slot).and_then(Option::as_mut).ok_or_else(lost_slot)
    }

    pub(super) fn enter(&mut self, request: Request) -> usize {
        let slot = self.free.pop().unwrap_or(self.slots.len());
        let Self { slots, by_id, hasher, .. } = self;
        let hash_at = |&slot: &usize| {
            let request = slots.get(slot).and_then(Option::as_ref);
            request.map_or(0, |request| hasher.hash_one(request.id.as_ref()))
        };
        by_id.insert_unique(hasher.hash_one(request.id.as_ref()), slot, hash_at);
        if slot == slots.len() {
            slots.push(Some(request));
        } else {
            slots[slot] = Some(request);
        }
        slot
    }

    pub(super) fn leave(&mut self, slot: usize) {
        let Some(request) = self.slots.get_mut(slot).and_then(Option::take) else { return };
        let hash = self.hasher.hash_one(request.id.as_ref());
        if let Ok(found) = self.by_id.find_entry(hash, |&other| other == slot) {
            found.remove();
        }
        self.free.push(slot);
    }

    pub(super) const fn slots(&self) -> &[Option<Request>] {
        self.slots.as_slice()
    }

    /// Number of requests that can be found by their ids in the hash table.
    pub(super) fn num_found(&self) -> usize {
        self.by_id.len()
    }
}

/// Returns the error for a slot without a request, where the manager expects one. Only a bug of the
/// manager can cause it, and even then the call must not panic.
#[cold]
fn lost_slot() -> ManagerError {
    ManagerError::Pool(PoolError::Poisoned { reason: "M5: a request's slot is empty".into() })
}
