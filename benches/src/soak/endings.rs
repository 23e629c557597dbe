//! Requests that give up their blocks: released in every state, at once or after a step, twice; and preempted.

use kvpool::{ManagerError, RequestState};

use super::books::Entry;
use super::content::token;
use super::driver::{Abort, Driver};
use super::meter::{Meter, Operation};
use super::{Sabotage, Wrong, ensure};

impl Driver {
    /// Some step under way, or none: after which a request's blocks are to be given up.
    pub(super) fn some_step(&mut self) -> Option<u64> {
        self.chance
            .percent(40)
            .then(|| self.chance.between(self.completed as usize + 1, self.step as usize) as u64)
    }

    /// Notes that a request's blocks are to be fenced: references, and writes of the step that it was in.
    pub(super) fn note_fence(&mut self, key: usize, after: Option<u64>) -> Result<(), Wrong> {
        let Some(step) = after else { return Ok(()) };
        let entry = self.books.get(key)?;
        let table = self.manager.block_table(&entry.id)?;
        let held = table.iter().filter(|block| !block.is_null()).count();
        *self.fences.entry(step).or_default() += held;
        if entry.state == RequestState::Running {
            self.store.write_later(step, table, &entry.tags, entry.computed, entry.weights);
        }
        Ok(())
    }

    /// Ends a request, whatever it is doing.
    pub(super) fn release(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let states = [
            (RequestState::Running, 60),
            (RequestState::Preempted, 80),
            (RequestState::Swapped, 90),
            (RequestState::Moving, 100),
        ];
        let drawn = self.chance.below(100);
        let state =
            states.iter().find(|(_, up_to)| drawn < *up_to).map_or(RequestState::Running, |found| found.0);
        let Some(key) = self.pick(state) else {
            let running = self.pick(RequestState::Running);
            return running.map_or(Ok(()), |key| self.end_request(key, meter));
        };
        if state == RequestState::Moving { self.end_moving(key, meter) } else { self.end_request(key, meter) }
    }

    /// Releases a request that a swap moves: it keeps id and blocks until the swap ends, now and then at once.
    fn end_moving(&mut self, key: usize, meter: &mut Meter) -> Result<(), Wrong> {
        let until = self.some_step();
        let ending = self.preset.retention && self.chance.percent(20);
        let id = self.books.get(key)?.id.as_ref();
        if ending {
            meter.time(Operation::ReleaseMoving, || self.manager.end_session(id, until))?;
        } else {
            meter.time(Operation::ReleaseMoving, || self.manager.release(id, until))?;
        }
        self.aborts[Abort::Moving as usize] += 1;
        self.books.set_state(key, RequestState::Releasing)?;
        self.books.get_mut(key)?.until = until;
        let before = self.observe(false);
        let id = self.books.get(key)?.id.as_ref();
        let again = [self.manager.release(id, None), self.manager.preempt(id, None)];
        let refused = again.iter().all(|one| matches!(one, Err(ManagerError::WrongState { .. })));
        ensure(refused, || format!("a request that is releasing was released and preempted: {again:?}"))?;
        self.invalid += 2;
        self.unchanged(&before, "a second release of a request that is releasing")?;
        if self.chance.percent(30) { self.end_swap_of(key, meter) } else { Ok(()) }
    }

    /// The swap that moved a released request ends: its blocks are free now, or a fence has them.
    pub(super) fn note_left(&mut self, key: usize, held: usize) -> Result<(), Wrong> {
        let Entry { id, until, .. } = self.books.strike(key)?;
        if let Some(step) = until.filter(|&step| step > self.completed) {
            *self.fences.entry(step).or_default() += held;
        }
        ensure(!self.manager.contains(&id), || {
            format!("the swap of request {id} has ended, and it is still there")
        })
    }

    /// Releases a request that is not moving.
    pub(super) fn end_request(&mut self, key: usize, meter: &mut Meter) -> Result<(), Wrong> {
        let every_slot = self.chance.percent(10);
        let entry = self.books.get(key)?;
        self.read_back(entry, every_slot)?;
        let abort = match entry.state {
            RequestState::Preempted => Abort::Preempted,
            RequestState::Swapped => Abort::Swapped,
            _ if entry.computed < entry.tags.len() => Abort::Prefilling,
            _ => Abort::Decoding,
        };
        self.aborts[abort as usize] += 1;
        if self.sabotaged(Sabotage::ForgottenRelease) {
            self.books.strike(key)?;
            return Ok(());
        }
        let after = self.some_step();
        self.note_fence(key, after)?;
        let ending = self.preset.retention && self.chance.percent(20);
        let operation = match (ending, after) {
            (true, _) => Operation::ReleaseEnding,
            (false, Some(_)) => Operation::ReleaseFenced,
            (false, None) => Operation::Release,
        };
        let entry = self.books.strike(key)?;
        let id = entry.id.as_ref();
        if ending {
            meter.time(operation, || self.manager.end_session(id, after))?;
        } else {
            meter.time(operation, || self.manager.release(id, after))?;
        }
        if self.chance.percent(10) {
            let before = self.observe(false);
            let twice = meter.time(Operation::Invalid, || self.manager.release(id, after));
            let unknown = matches!(twice, Err(ManagerError::UnknownRequest { .. }));
            ensure(unknown, || format!("the second release of {id} gave {twice:?}"))?;
            self.invalid += 1;
            self.unchanged(&before, "a second release")?;
        }
        Ok(())
    }

    pub(super) fn preempt(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let state = if self.chance.percent(80) { RequestState::Running } else { RequestState::Swapped };
        self.pick(state).map_or(Ok(()), |key| self.preempt_one(key, meter))
    }

    pub(super) fn preempt_one(&mut self, key: usize, meter: &mut Meter) -> Result<(), Wrong> {
        self.read_back(self.books.get(key)?, false)?;
        let after = self.some_step();
        self.note_fence(key, after)?;
        let id = self.books.get(key)?.id.as_ref();
        meter.time(Operation::Preempt, || self.manager.preempt(id, after))?;
        self.book_preemption(key)?;
        if self.chance.percent(50) { self.sample_late(key, meter) } else { Ok(()) }
    }

    /// A preempted request takes the token that the step under way has sampled, and no block for it.
    fn sample_late(&mut self, key: usize, meter: &mut Meter) -> Result<(), Wrong> {
        let entry = self.books.get(key)?;
        let (id, token) = (entry.id.as_ref(), token(entry.stream, entry.tags.len()));
        let append = || self.manager.append(&[id], &[token], kvpool::Computed::Nothing);
        let changes = meter.time(Operation::Append, append)?;
        ensure(changes.is_empty(), || format!("a preempted request got blocks: {changes:?}"))?;
        self.extend(key, &[token], false)
    }

    pub(super) fn book_preemption(&mut self, key: usize) -> Result<(), Wrong> {
        self.books.set_state(key, RequestState::Preempted)?;
        let entry = self.books.get_mut(key)?;
        let computed = std::mem::take(&mut entry.computed) as u64;
        entry.trimmed = 0;
        self.books.expected.preemptions += 1;
        self.books.expected.preempted_tokens += computed;
        Ok(())
    }
}
