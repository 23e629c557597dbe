//! `Directory`: at which place of the back end each object is, and which object is evicted next.
//!
//! Owns: the index from keys to places, the states of the places, and the order of eviction, which one
//! of the core's policies determines. It moves no bytes and has no clock.
//!
//! States of a place:
//!
//! ```text
//!   free ── reserve ──▶ written ── ends ──▶ held ◀─ pin, unpin ─┐
//!    ▲                     │                 │ └── evicted: reserved for another object at once
//!    │                     │ failed, or      │ removed, damaged
//!    │                     ▼ removed         ▼
//!    └── cleared ──────── doomed: no longer found; cleared when no transfer uses it,
//!                         and again until clearing succeeds
//! ```
//!
//! Invariants: a key has at most one place. An object is evicted only if its write has ended (it is
//! *held*) and no transfer uses its place. A place is reused only if its object was evicted or its
//! bytes were cleared. An evicted object is overwritten by the next write to its place, so there are
//! never more objects than places.
//!
//! Cost: O(1) per object; about 150 bytes per place, plus the memory of the policy.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::{HashMap, HashSet};
use kvpool::evictor::Content;
use kvpool::{BlockId, EvictionPolicy, Policy, PoolError, Release};

use crate::namespace::NamespaceDigest;
use crate::object::{ObjectKey, ObjectName, Place};
use crate::offered::OfferedBlocks;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Written,
    Held,
    Doomed,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    state: State,
    /// Key of the object at this place, which is being written or was written.
    key: Option<ObjectKey>,
    len: u32,
    depth: u32,
    /// Number of transfers that read or write this place of the back end now.
    pins: u32,
    /// Number of the first task that the store sent after the write of the object had ended.
    held_from: u64,
    /// Namespace of the object that is being written, as an index into the list of namespaces.
    namespace: u32,
    /// Keys and namespaces of the objects whose bytes the back end may still have at this place.
    resident: Vec<(ObjectKey, u32)>,
}

/// The place of an object, and whether its write has ended (`held`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) place: Place,
    pub(crate) len: u32,
    pub(crate) held: bool,
    /// Number of the first task that the store sent after the write of the object had ended. The
    /// results of tasks with smaller numbers do not apply to this object.
    pub(crate) held_from: u64,
}

/// A place that is reserved for a new object, and the objects that the new object overwrites.
#[derive(Debug)]
pub(crate) struct Reserved {
    pub(crate) place: Place,
    pub(crate) replaces: Vec<ObjectName>,
    pub(crate) evicts: bool,
}

#[derive(Debug)]
pub(crate) struct Directory {
    entries: Vec<Entry>,
    by_key: HashMap<ObjectKey, Place>,
    order: Box<dyn Policy>,
    free: VecDeque<Place>,
    /// Places that no transfer uses, and whose bytes have to be cleared because their object was
    /// removed or damaged.
    to_clear: VecDeque<Place>,
    held: usize,
    /// Namespaces of the objects, oldest first. New objects belong to the last one.
    namespaces: Vec<NamespaceDigest>,
    /// Keys and namespaces of objects that the back end has not removed yet. A new object of the same
    /// name must wait, because the removal would also remove the new object.
    leaving: HashSet<(ObjectKey, u32)>,
    /// Keys of the objects that were evicted, removed or damaged since the last `take_gone`. `None` if
    /// the caller does not want these keys.
    gone: Option<Vec<ObjectKey>>,
    /// The blocks that were offered to the store, which the directory notifies of lost objects.
    offered: Arc<Mutex<OfferedBlocks>>,
}

/// Returns the block id that represents a place in the eviction policy. Block 0 is the null block, so
/// the ids begin at 1.
fn block(place: Place) -> BlockId {
    BlockId::new(place + 1)
}

/// Locks the offered blocks. A panic leaves them valid, because no call of them runs other code.
fn lock(offered: &Mutex<OfferedBlocks>) -> MutexGuard<'_, OfferedBlocks> {
    offered.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Directory {
    pub(crate) fn new(
        places: u32,
        eviction: EvictionPolicy,
        tell_gone: bool,
        namespace: NamespaceDigest,
    ) -> Result<Self, PoolError> {
        let order = kvpool_policies::in_full(eviction).order(places as usize + 1)?;
        let order = order.ok_or_else(|| no_order(eviction))?;
        let mut entries = Vec::new();
        kvpool::parts::try_reserve(&mut entries, places as usize)?;
        entries.resize_with(places as usize, Entry::default);
        let mut by_key = HashMap::new();
        by_key.try_reserve(places as usize).map_err(|_| no_memory(places))?;
        let gone = tell_gone.then(Vec::new);
        Ok(Self {
            entries,
            by_key,
            order,
            free: VecDeque::new(),
            to_clear: VecDeque::new(),
            held: 0,
            namespaces: vec![namespace],
            leaving: HashSet::new(),
            gone,
            offered: Arc::default(),
        })
    }

    /// The blocks that were offered to the store.
    pub(crate) const fn offered(&self) -> &Arc<Mutex<OfferedBlocks>> {
        &self.offered
    }

    /// Records that the store does not have, or will not have, an object that may have been offered.
    pub(crate) fn lose(&self, key: &ObjectKey) {
        if key.group == 0 {
            lock(&self.offered).lose(&key.hash);
        }
    }

    pub(crate) fn find(&self, key: &ObjectKey) -> Option<Found> {
        let &place = self.by_key.get(key)?;
        let entry = &self.entries[place as usize];
        let (held, held_from) = (entry.state == State::Held, entry.held_from);
        Some(Found { place, len: entry.len, held, held_from })
    }

    /// Returns the number of objects whose write has ended.
    pub(crate) const fn held(&self) -> usize {
        self.held
    }

    /// Returns the number of places that are not free, and therefore may contain an object.
    pub(crate) fn taken(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Adds an object that the back end reported when the store opened. If the key already has a place,
    /// marks the new place to be cleared and returns false.
    pub(crate) fn restore(&mut self, place: Place, key: ObjectKey, len: u32, depth: u32) -> bool {
        let Some(entry) = self.entries.get_mut(place as usize).filter(|entry| entry.state == State::Free)
        else {
            return false;
        };
        entry.resident.push((key, 0));
        if self.by_key.contains_key(&key) {
            entry.state = State::Doomed;
            self.to_clear.push_back(place);
            return false;
        }
        *entry = Entry { state: State::Held, key: Some(key), len, depth, ..std::mem::take(entry) };
        self.by_key.insert(key, place);
        self.held += 1;
        self.order.admit(block(place), Content { key: key.hash.key(), depth });
        self.order.release(block(place));
        true
    }

    /// Ends the sequence of `restore` calls, and makes all remaining places free. The places in
    /// `foreign` (ascending) contain objects of other namespaces. They are used last, because a store
    /// that is opened later may serve those namespaces again.
    pub(crate) fn restored(&mut self, foreign: &[Place]) {
        let free =
            (0..).zip(&self.entries).filter(|(_, entry)| entry.state == State::Free).map(|(place, _)| place);
        let (last, first): (Vec<_>, Vec<_>) = free.partition(|place| foreign.binary_search(place).is_ok());
        self.free = first.into_iter().chain(last).collect();
    }

    /// Reserves and pins a place for the write of a new object. If no place is free, evicts the first
    /// object in the order of eviction whose place no transfer uses. Returns `None` if transfers use
    /// all places.
    pub(crate) fn reserve(&mut self, key: ObjectKey, len: u32, depth: u32) -> Option<Reserved> {
        let (place, evicts) = match self.free.pop_front() {
            Some(place) => (place, false),
            None => (self.evict()?, true),
        };
        let entry = &mut self.entries[place as usize];
        let (state, namespace) = (State::Written, self.namespaces.len() as u32 - 1);
        let resident = std::mem::take(&mut entry.resident);
        *entry = Entry { state, key: Some(key), len, depth, pins: 1, held_from: 0, namespace, resident };
        let replaces = self.residents(place);
        self.by_key.insert(key, place);
        self.order.admit(block(place), Content { key: key.hash.key(), depth });
        Some(Reserved { place, replaces, evicts })
    }

    fn evict(&mut self) -> Option<Place> {
        let mut passed = Vec::new();
        let mut victim = None;
        while let Some(next) = self.order.pop() {
            let place = next.get() - 1;
            let entry = &self.entries[place as usize];
            if entry.pins == 0 && entry.state == State::Held {
                victim = Some(place);
                break;
            }
            passed.push(next);
        }
        passed.into_iter().rev().for_each(|block| self.order.unpop(block));
        let place = victim?;
        let entry = &mut self.entries[place as usize];
        let content = Content { key: entry.key.map_or(0, |key| key.hash.key()), depth: entry.depth };
        if let Some(key) = entry.key.take() {
            self.by_key.remove(&key);
            self.leaving.insert((key, entry.namespace));
            self.gone.iter_mut().for_each(|gone| gone.push(key));
            self.lose(&key);
        }
        self.order.evicted(block(place), content);
        self.held -= 1;
        Some(place)
    }

    /// Records one use of several objects at the same time. Objects marked as new enter the order of
    /// eviction here.
    pub(crate) fn touch(&mut self, places: &mut [(Place, bool)]) {
        places.sort_by_key(|&(place, _)| std::cmp::Reverse(self.entries[place as usize].depth));
        self.order.begin_release(&Release::default());
        for &mut (place, new) in places {
            if self.entries[place as usize].key.is_none() {
                continue; // the same call has evicted the object for another one
            }
            if !new {
                self.order.hit(block(place));
            }
            self.order.release(block(place));
        }
    }

    /// Returns the keys of the objects that were evicted, removed or damaged since the previous call.
    /// The list is empty unless the caller asked for these keys at construction.
    pub(crate) fn take_gone(&mut self) -> Vec<ObjectKey> {
        self.gone.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Prevents the eviction of an object while a transfer reads it.
    pub(crate) fn pin(&mut self, place: Place) {
        self.entries[place as usize].pins += 1;
    }

    /// Ends the pin of a transfer that has finished reading the place.
    pub(crate) fn unpin(&mut self, place: Place) {
        let entry = &mut self.entries[place as usize];
        entry.pins = entry.pins.saturating_sub(1);
        if entry.pins == 0 && entry.state == State::Doomed {
            self.to_clear.push_back(place);
        }
    }

    /// Records the end of the write of `key`. The object can be found from now on, unless the write
    /// failed or the object was removed meanwhile. `next` is the number of the task that the store will
    /// send next.
    pub(crate) fn written(&mut self, place: Place, key: ObjectKey, success: bool, next: u64) {
        let entry = &mut self.entries[place as usize];
        if success {
            for left in entry.resident.drain(..) {
                self.leaving.remove(&left);
            }
        }
        entry.resident.push((key, entry.namespace));
        if success && entry.state == State::Written {
            entry.state = State::Held;
            entry.held_from = next;
            self.held += 1;
        } else {
            self.doom(place);
        }
        self.unpin(place);
    }

    /// Cancels the write of `key`, which no worker has begun. The place still contains the evicted
    /// object that this write would have replaced, so the place is cleared.
    pub(crate) fn withdrawn(&mut self, place: Place, key: ObjectKey) {
        self.doom(place);
        let entry = &mut self.entries[place as usize];
        self.leaving.remove(&(key, entry.namespace));
        if entry.resident.is_empty() {
            *entry = Entry::default();
            self.free.push_back(place);
        } else {
            self.unpin(place);
        }
    }

    /// Removes the object at `place` from the index, and marks the place to be cleared. Returns false
    /// if there was no object.
    pub(crate) fn doom(&mut self, place: Place) -> bool {
        let entry = &mut self.entries[place as usize];
        let Some(key) = entry.key.take() else { return false };
        self.by_key.remove(&key);
        self.leaving.insert((key, entry.namespace));
        if entry.state == State::Held {
            self.held -= 1;
            self.gone.iter_mut().for_each(|gone| gone.push(key));
        }
        entry.state = State::Doomed;
        self.order.forget(block(place));
        if entry.pins == 0 {
            self.to_clear.push_back(place);
        }
        self.lose(&key);
        true
    }

    /// Removes all objects from the index. New objects belong to `namespace`.
    pub(crate) fn renew(&mut self, namespace: NamespaceDigest) {
        lock(&self.offered).forget_all();
        for place in 0..self.entries.len() as Place {
            self.doom(place);
        }
        self.namespaces.push(namespace);
        self.leaving.clear(); // removals cannot affect the new namespace
    }

    /// Returns the next place to clear, and the names of the objects that it may contain. The place
    /// remains pinned until `cleared` is called.
    pub(crate) fn next_to_clear(&mut self) -> Option<(Place, Vec<ObjectName>)> {
        let place = self.to_clear.pop_front()?;
        self.entries[place as usize].pins = 1;
        Some((place, self.residents(place)))
    }

    fn residents(&self, place: Place) -> Vec<ObjectName> {
        let resident = self.entries[place as usize].resident.iter();
        resident.map(|&(key, of)| ObjectName { namespace: self.namespaces[of as usize], key }).collect()
    }

    /// Records that the back end has cleared a place. If it failed, the place will be cleared again.
    pub(crate) fn cleared(&mut self, place: Place, success: bool) {
        let entry = &mut self.entries[place as usize];
        entry.pins = 0;
        if success {
            for left in std::mem::take(entry).resident {
                self.leaving.remove(&left);
            }
            self.free.push_back(place);
        } else {
            self.to_clear.push_back(place);
        }
    }

    /// Returns whether the back end has not yet removed an older object of this name.
    pub(crate) fn is_leaving(&self, key: &ObjectKey) -> bool {
        self.leaving.contains(&(*key, self.namespaces.len() as u32 - 1))
    }

    /// If `asked` is true, records that the back end was asked to remove an object that has no place in
    /// this store. If it is false, records that this removal has finished.
    pub(crate) fn set_leaving(&mut self, key: ObjectKey, asked: bool) {
        let name = (key, self.namespaces.len() as u32 - 1);
        if asked {
            self.leaving.insert(name);
        } else {
            self.leaving.remove(&name);
        }
    }

    /// Recomputes every count and compares it with the stored value.
    ///
    /// # Errors
    /// A text that describes the first inconsistency.
    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        let count = |state| self.entries.iter().filter(|entry| entry.state == state).count();
        let ensure = |sound: bool, what: &str| if sound { Ok(()) } else { Err(what.to_owned()) };
        ensure(count(State::Held) == self.held, "held objects are not counted")?;
        ensure(count(State::Free) == self.free.len(), "free places are not on the list of free places")?;
        ensure(
            self.by_key.len() == count(State::Held) + count(State::Written),
            "the index has another size",
        )?;
        for (place, entry) in self.entries.iter().enumerate() {
            let found = entry.key.and_then(|key| self.by_key.get(&key).copied());
            let indexed = matches!(entry.state, State::Held | State::Written);
            ensure(indexed == entry.key.is_some(), "a place has a key, or none, against its state")?;
            ensure(!indexed || found == Some(place as u32), "a key leads to another place")?;
            let blank = entry.pins == 0 && entry.resident.is_empty();
            ensure(entry.state != State::Free || blank, "a free place is pinned, or was not cleared")?;
            let waits = entry.state == State::Doomed && entry.pins == 0;
            ensure(waits == self.to_clear.contains(&(place as u32)), "a doomed place is not to be cleared")?;
        }
        self.order.check_invariants().map_err(|violation| violation.to_string())
    }
}

fn no_memory(places: u32) -> PoolError {
    PoolError::config("places", places, "few enough for the directory to fit in memory")
}

fn no_order(eviction: EvictionPolicy) -> PoolError {
    PoolError::config("eviction", eviction.name(), "a policy that defines an order of eviction")
}
