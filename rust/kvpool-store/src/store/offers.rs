//! Handles `put` and `get`: some objects become tasks for workers, and the others get their result
//! immediately.

use std::time::Duration;

use super::Store;
use super::flights::{Flight, Kind};
use crate::calls::{Get, JobId, Put};
use crate::error::{StoreError, Why};
use crate::object::ObjectKey;
use crate::queue::{StagedSlot, Target, Work};

impl Store {
    /// Offers objects to the store, which writes those that it admits. Until the write of an object has
    /// ended, its slot can be read but not written to.
    ///
    /// If the store already has an object, it does not write the object again, and does not check the
    /// stored bytes. If these bytes were damaged meanwhile, the next load misses, and a later offer
    /// writes the object.
    ///
    /// # Errors
    /// [`StoreError`] for an unknown or busy slot, or a wrong length. The call has then done nothing.
    pub fn put(&mut self, objects: &[Put], now: Duration) -> Result<JobId, StoreError> {
        objects.iter().try_for_each(|object| self.check_len(object.len))?;
        let guards: Result<Vec<_>, _> = objects.iter().map(|object| self.arena.read(object.slot)).collect();
        let guards = guards?;
        let job = self.begin(objects.len());
        let mut touched = Vec::with_capacity(objects.len());
        for (at, (object, from)) in objects.iter().zip(guards).enumerate() {
            if let Some(found) = self.directory.find(&object.key) {
                self.stats.known += 1;
                touched.push((found.place, false));
                self.settle(job, at, Ok(()));
                continue;
            }
            if self.answers.of(&object.key, now) == Some(true) {
                self.stats.known += 1; // another store has written it
                self.settle(job, at, Ok(()));
                continue;
            }
            if self.backend.is_shared() && self.directory.is_leaving(&object.key) {
                self.stats.busy += 1;
                self.refuse(job, at, &object.key, Why::Busy);
                continue;
            }
            if let Err(why) = self.has_room(now) {
                self.refuse(job, at, &object.key, why);
                continue;
            }
            if !self.admission.admits(&object.key, object.admit.unwrap_or(self.config.admission)) {
                self.stats.not_admitted += 1;
                self.refuse(job, at, &object.key, Why::NotAdmitted);
                continue;
            }
            let &Put { key, tokens, len, .. } = object;
            let Some(reserved) = self.directory.reserve(key, len, tokens.depth()) else {
                self.refuse(job, at, &object.key, Why::NoRoom);
                continue;
            };
            self.breaker.pass(now);
            self.answers.forget(&key);
            self.stats.evicted += u64::from(reserved.evicts);
            touched.push((reserved.place, true));
            let place = reserved.place;
            let report = Some((job, at));
            let asked = reserved.replaces.iter().map(|name| name.key).collect();
            let flight =
                Flight { key: Some(key), asked, place: Some(place), len, report, ..Flight::of(Kind::Write) };
            self.send(
                flight,
                now,
                Work::Write {
                    place,
                    key,
                    replaces: reserved.replaces,
                    tokens,
                    len,
                    from,
                    staged: self.staged,
                },
            );
        }
        self.directory.touch(&mut touched);
        Ok(job)
    }

    /// Sets the result of an offer for which nothing is written.
    fn refuse(&mut self, job: JobId, at: usize, key: &ObjectKey, why: Why) {
        self.directory.lose(key);
        self.settle(job, at, Err(why));
    }

    /// Loads objects. When the job has ended, each loaded object is in its slot. The content of a slot
    /// whose object missed is undefined. The slot of a load that timed out remains in use until the
    /// back end has finished.
    ///
    /// # Errors
    /// [`StoreError`] for an unknown or busy slot, or a wrong length. The call has then done nothing.
    pub fn get(&mut self, objects: &[Get], now: Duration) -> Result<JobId, StoreError> {
        objects.iter().try_for_each(|object| self.check_len(object.len))?;
        let guards: Result<Vec<_>, _> = objects.iter().map(|object| self.arena.write(object.slot)).collect();
        let guards = guards?;
        let job = self.begin(objects.len());
        let mut touched = Vec::with_capacity(objects.len());
        for (at, (&Get { key, len, .. }, into)) in objects.iter().zip(guards).enumerate() {
            let found = self.directory.find(&key);
            let place = match found {
                Some(found) if !found.held => Err(Why::Pending),
                Some(found) => Ok(Some(found.place)),
                None if !self.backend.is_shared() => Err(Why::Absent),
                None if self.directory.is_leaving(&key) || self.answers.of(&key, now) == Some(false) => {
                    self.stats.known_absent += 1;
                    Err(Why::Absent)
                }
                None => Ok(None),
            };
            let place = match place.and_then(|place| self.has_room(now).map(|()| place)) {
                Ok(place) => place,
                Err(why) => {
                    self.stats.misses += 1;
                    self.settle(job, at, Err(why));
                    continue;
                }
            };
            self.breaker.pass(now);
            if let Some(place) = place {
                touched.push((place, false));
                self.directory.pin(place);
            }
            let (staged_slot, into) = if self.staged {
                let staged_slot = StagedSlot::new(into);
                (Some(staged_slot.clone()), Target::Staged(staged_slot))
            } else {
                (None, Target::Slot(into))
            };
            let report = Some((job, at));
            let flight = Flight { key: Some(key), place, len, report, staged_slot, ..Flight::of(Kind::Read) };
            self.send(flight, now, Work::Read { place, key, len, into });
        }
        self.directory.touch(&mut touched);
        Ok(job)
    }
}
