//! Handles the end of a task: a worker has finished it, or its deadline has passed.
//!
//! This module decides which job gets the result of the task, which objects can still be found, and
//! which slots and places become free. It also reports the result to the circuit breaker.

use std::time::Duration;

use super::Store;
use super::flights::{Flight, Kind};
use crate::ends::{Done, End};
use crate::error::Why;

use crate::object::{ObjectKey, Place};

impl Store {
    pub(super) fn process_end(&mut self, Done { id, end }: Done, now: Duration) {
        let Some(flight) = self.flights.remove(&id) else { return };
        let late = flight.report.is_none() && flight.kind != Kind::Clear;
        let end = match end {
            End::There(answers) => return self.answered(id, &flight, &answers, late, now),
            end => end,
        };
        let result = self.count_end(&flight, end, late, now);
        match (flight.kind, flight.place) {
            (Kind::Write, Some(place)) => {
                if let Some(key) = flight.key {
                    self.directory.written(place, key, result.is_ok(), self.next_task);
                }
            }
            (Kind::Read, Some(place)) => {
                if matches!(result, Err(Why::Damaged | Why::Absent)) && self.is_at(flight.key, place) {
                    self.directory.doom(place);
                }
                self.directory.unpin(place);
            }
            (Kind::Clear, Some(place)) => {
                self.clearing -= 1;
                self.directory.cleared(place, result.is_ok());
            }
            (Kind::Clear, None) => self.cleared_without_place(&flight),
            (Kind::Read, None) => {
                let there = match result {
                    Ok(()) => Some(true),
                    Err(Why::Damaged | Why::Absent) => Some(false),
                    Err(_) => None,
                };
                // Ignore a late result, because it may belong to an earlier namespace.
                if let (Some(key), Some(there), false) = (flight.key, there, late)
                    && self.answers.since(&key, id).is_none()
                {
                    self.record_answer(key, there, now);
                }
            }
            (Kind::Write | Kind::Probe, None) | (Kind::Probe, Some(_)) => {}
        }
        if matches!(flight.kind, Kind::Write | Kind::Clear) && result.is_ok() {
            self.removed(&flight.asked, now);
        }
        self.report(&flight, result);
    }

    /// Records that a shared back end has removed objects. From now on, its answers to earlier
    /// questions about these objects are ignored.
    fn removed(&mut self, keys: &[ObjectKey], now: Duration) {
        for &key in keys {
            if self.backend.is_shared() && self.directory.find(&key).is_none() {
                self.record_answer(key, false, now);
            }
        }
    }

    /// Processes the answers of a shared back end to the question whether objects exist. If an object
    /// that this store wrote no longer exists, it is removed from the index. Answers do not apply to
    /// objects that were written after the question.
    fn answered(&mut self, id: u64, flight: &Flight, answers: &[bool], late: bool, now: Duration) {
        if late {
            return;
        }
        self.breaker.succeeded();
        for (&key, at) in flight.asked.iter().zip(0..) {
            let since = self.answers.since(&key, id);
            let there = since.unwrap_or(answers.get(at) == Some(&true)) && !self.directory.is_leaving(&key);
            let found = self.directory.find(&key);
            let lost = found.filter(|found| found.held && found.held_from <= id && !there);
            if let Some(lost) = lost {
                self.stats.lost += 1;
                self.directory.doom(lost.place);
            }
            if since.is_none() && (found.is_none() || lost.is_some()) {
                self.record_answer(key, there, now);
            }
            if let Some((job, first)) = flight.report {
                self.settle(job, first + at, if there { Ok(()) } else { Err(Why::Absent) });
            }
        }
    }

    fn cleared_without_place(&mut self, flight: &Flight) {
        self.clearing -= 1;
        flight.asked.iter().for_each(|&key| self.directory.set_leaving(key, false));
    }

    /// Sets the result of the task for its objects in the job. Does nothing if the job already has
    /// results for them.
    fn report(&mut self, flight: &Flight, result: Result<(), Why>) {
        if let Some((job, first)) = flight.report {
            self.stats.misses += u64::from(flight.kind == Kind::Read && result.is_err());
            (first..first + flight.objects()).for_each(|at| self.settle(job, at, result));
        }
    }

    fn is_at(&self, key: Option<ObjectKey>, place: Place) -> bool {
        key.and_then(|key| self.directory.find(&key)).is_some_and(|found| found.place == place)
    }

    /// Updates the counters for a finished task, and reports its result to the circuit breaker. A task
    /// that is late was already reported there when its deadline passed.
    fn count_end(&mut self, flight: &Flight, end: End, late: bool, now: Duration) -> Result<(), Why> {
        let known = flight.place.is_some();
        let (counter, why, message) = match end {
            End::Success | End::There(_) => {
                let (count, bytes) = match flight.kind {
                    Kind::Write => (&mut self.stats.writes, &mut self.stats.written_bytes),
                    Kind::Read if !late => (&mut self.stats.loads, &mut self.stats.loaded_bytes),
                    Kind::Read | Kind::Clear | Kind::Probe => (&mut 0, &mut 0),
                };
                *count += 1;
                *bytes += u64::from(flight.len);
                if !late {
                    self.breaker.succeeded();
                }
                return Ok(());
            }
            End::Absent if known => (Some(&mut self.stats.lost), Why::Absent, None),
            End::Absent => (None, Why::Absent, None),
            End::Full => (Some(&mut self.stats.full), Why::Full, None),
            End::Damaged(mismatch) => {
                (Some(&mut self.stats.damaged), Why::Damaged, Some(mismatch.to_string()))
            }
            End::Failed(error) => (Some(&mut self.stats.failed), Why::Failed, Some(error)),
        };
        if let Some(counter) = counter {
            *counter += 1;
        }
        if message.is_some() {
            self.stats.last_error = message;
        }
        match why {
            _ if late => {}
            Why::Failed => self.breaker.failed(now),
            _ => self.breaker.succeeded(), // the back end answered
        }
        Err(why)
    }

    /// Ends the tasks whose deadline has passed. If no worker has begun such a task, withdraws it and
    /// releases its slot.
    pub(super) fn expire(&mut self, now: Duration) {
        while let Some(&(deadline, id)) = self.deadlines.front()
            && (deadline <= now || !self.flights.contains_key(&id))
        {
            self.deadlines.pop_front();
            let Some(flight) = self.flights.get_mut(&id) else { continue };
            if flight.staged_slot.as_ref().is_some_and(|staged_slot| staged_slot.take().is_none()) {
                continue; // the worker is copying the payload into the slot, and will end the task
            }
            let whole = flight.clone();
            flight.report = None;
            let flight = whole;
            self.stats.timed_out += 1;
            self.breaker.failed(now);
            let withdrawn = self.queue.withdraw(id).is_some();
            if withdrawn {
                self.flights.remove(&id);
            }
            match (flight.kind, flight.place) {
                (Kind::Write, Some(place)) if withdrawn => {
                    flight.key.into_iter().for_each(|key| self.directory.withdrawn(place, key));
                }
                (Kind::Write, Some(place)) => drop(self.directory.doom(place)),
                (Kind::Read, Some(place)) if withdrawn => self.directory.unpin(place),
                (Kind::Clear, Some(place)) if withdrawn => {
                    self.clearing -= 1;
                    self.directory.cleared(place, false);
                }
                (Kind::Clear, None) if withdrawn => self.cleared_without_place(&flight),
                _ => {}
            }
            self.report(&flight, Err(Why::TimedOut));
        }
    }
}
