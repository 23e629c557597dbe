//! Steps of the engine: planned as a whole and committed, dropped or outdated, and completed later than they were begun.

use kvpool::{ManagerError, RequestId, RequestState, StepOutcome, StepPlan};

use super::books::Entry;
use super::content::{Drawn, token};
use super::driver::{Abort, Driver};
use super::meter::{Meter, Operation};
use super::{Sabotage, Wrong, ensure};

/// An operation of a plan, and what is known of it.
enum Planned {
    Admit { id: RequestId, drawn: Drawn, tags: Vec<u64>, cached: usize },
    Resume { key: usize, cached: usize },
    Append { key: usize, tokens: Vec<u32> },
    Preempt { key: usize, after: Option<u64> },
    Release { key: usize, after: Option<u64> },
}

impl Planned {
    const fn key(&self) -> Option<usize> {
        match self {
            Self::Admit { .. } => None,
            Self::Resume { key, .. }
            | Self::Append { key, .. }
            | Self::Preempt { key, .. }
            | Self::Release { key, .. } => Some(*key),
        }
    }
}

impl Driver {
    /// Plans a step of up to six operations.
    pub(super) fn plan_step(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        let before = self.observe(false);
        let mut plan = self.manager.plan_step();
        let mut planned = Vec::new();
        for _ in 0..self.chance.between(1, 6) {
            let operation = match self.chance.below(10) {
                0..3 => self.plan_admit(&mut plan, meter)?,
                3..5 => self.plan_resume(&mut plan, &planned, meter)?,
                5..7 => self.plan_append(&mut plan, &planned, meter)?,
                kind => self.plan_give_up(&mut plan, &planned, kind == 9, meter)?,
            };
            planned.extend(operation);
        }
        self.unchanged(&before, "a plan")?;
        ensure(plan.len() == planned.len(), || {
            format!("{} operations planned, {}", planned.len(), plan.len())
        })?;
        match self.chance.below(10) {
            0..2 => {
                drop(plan);
                self.aborts[Abort::PlanDropped as usize] += 1;
                self.unchanged(&before, "a plan that was dropped")
            }
            2 => {
                self.end_steps(self.completed, meter)?;
                let stale = meter.time(Operation::Invalid, || self.manager.commit_step(&mut plan));
                let refused = matches!(stale, Err(ManagerError::StaleStep));
                ensure(refused, || format!("a stale plan was committed: {stale:?}"))?;
                self.aborts[Abort::PlanStale as usize] += 1;
                self.unchanged(&before, "a plan that was stale")
            }
            _ => self.commit_step(&mut plan, planned, meter),
        }
    }

    /// A random request in a state that the plan does not name yet.
    fn pick_unnamed(&mut self, state: RequestState, planned: &[Planned]) -> Option<usize> {
        self.pick(state).filter(|&key| planned.iter().all(|operation| operation.key() != Some(key)))
    }

    /// `None` for what does not fit.
    fn fits<T>(result: Result<T, ManagerError>) -> Result<Option<T>, Wrong> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(ManagerError::OutOfBlocks(_)) => Ok(None),
            Err(error) => Err(Wrong(format!("a plan was refused: {error}"))),
        }
    }

    fn plan_admit(&mut self, plan: &mut StepPlan, meter: &mut Meter) -> Result<Option<Planned>, Wrong> {
        let drawn = self.library.draw(&mut self.chance, &mut self.tokens);
        let cursor = self.prepare(drawn.identity, meter)?;
        let (id, hints) = (self.fresh_id(), self.request_hints(drawn));
        let name = id.clone();
        let result =
            meter.time(Operation::PlanStep, || self.manager.plan_admit_with(plan, name, cursor, &hints));
        let cached = Self::fits(result.map_err(ManagerError::from))?;
        Ok(cached.map(|cached| Planned::Admit { id, drawn, tags: self.tags(drawn.identity), cached }))
    }

    fn plan_resume(
        &mut self,
        plan: &mut StepPlan,
        planned: &[Planned],
        meter: &mut Meter,
    ) -> Result<Option<Planned>, Wrong> {
        let Some(key) = self.pick_unnamed(RequestState::Preempted, planned) else { return Ok(None) };
        let id = self.books.get(key)?.id.as_ref();
        let result = meter.time(Operation::PlanStep, || self.manager.plan_resume(plan, id));
        Ok(Self::fits(result)?.map(|cached| Planned::Resume { key, cached }))
    }

    fn plan_append(
        &mut self,
        plan: &mut StepPlan,
        planned: &[Planned],
        meter: &mut Meter,
    ) -> Result<Option<Planned>, Wrong> {
        let Some(key) = self.pick_unnamed(RequestState::Running, planned) else { return Ok(None) };
        let more = self.chance.between(1, 8);
        let entry = self.books.get(key)?;
        let at = entry.tags.len();
        let tokens: Vec<_> = (at..at + more).map(|position| token(entry.stream, position)).collect();
        let id = entry.id.as_ref();
        let result = meter.time(Operation::PlanStep, || self.manager.plan_append(plan, id, &tokens, 0));
        Ok(Self::fits(result)?.map(|_| Planned::Append { key, tokens }))
    }

    fn plan_give_up(
        &mut self,
        plan: &mut StepPlan,
        planned: &[Planned],
        release: bool,
        meter: &mut Meter,
    ) -> Result<Option<Planned>, Wrong> {
        let states = if release {
            &[RequestState::Running, RequestState::Preempted, RequestState::Swapped][..]
        } else {
            &[RequestState::Running, RequestState::Swapped]
        };
        let state = states[self.chance.below(states.len())];
        let Some(key) = self.pick_unnamed(state, planned) else { return Ok(None) };
        let after = self.some_step();
        let id = self.books.get(key)?.id.as_ref();
        meter.time(Operation::PlanStep, || match release {
            true => self.manager.plan_release(plan, id, after),
            false => self.manager.plan_preempt(plan, id, after),
        })?;
        Ok(Some(if release { Planned::Release { key, after } } else { Planned::Preempt { key, after } }))
    }

    fn commit_step(
        &mut self,
        plan: &mut StepPlan,
        planned: Vec<Planned>,
        meter: &mut Meter,
    ) -> Result<(), Wrong> {
        for operation in &planned {
            if let Planned::Preempt { key, after } | Planned::Release { key, after } = operation {
                self.read_back(self.books.get(*key)?, false)?;
                self.note_fence(*key, *after)?;
            }
        }
        let outcomes = meter.time(Operation::CommitStep, || self.manager.commit_step(plan))?;
        ensure(outcomes.len() == planned.len(), || {
            format!("{} operations were planned, {} done", planned.len(), outcomes.len())
        })?;
        for (operation, outcome) in planned.into_iter().zip(outcomes) {
            match (operation, outcome) {
                (Planned::Admit { id, drawn, tags, cached }, StepOutcome::Admitted(admission)) => {
                    ensure(admission.cached_tokens == cached, || format!("{cached} planned, {admission:?}"))?;
                    let weights = self.weights;
                    self.seat_new(
                        Entry::new(id, drawn.identity, weights, drawn.stream, tags, cached),
                        &admission,
                    )?;
                }
                (Planned::Resume { key, cached }, StepOutcome::Admitted(admission)) => {
                    ensure(admission.cached_tokens == cached, || format!("{cached} planned, {admission:?}"))?;
                    self.seat_again(key, &admission)?;
                }
                (Planned::Append { key, tokens }, StepOutcome::Appended(changes)) => {
                    changes.iter().for_each(|change| self.store.wipe(0, change.block));
                    self.extend(key, &tokens, false)?;
                }
                (Planned::Preempt { key, .. }, StepOutcome::Preempted) => self.book_preemption(key)?,
                (Planned::Release { key, .. }, StepOutcome::Released) => {
                    self.books.strike(key)?;
                }
                (_, outcome) => return Err(Wrong(format!("a planned operation became {outcome:?}"))),
            }
        }
        Ok(())
    }

    /// A step begins, and one of those under way completes.
    pub(super) fn complete_step(&mut self, meter: &mut Meter) -> Result<(), Wrong> {
        self.step += 1;
        let lag = self.chance.below(4) as u64;
        self.end_steps(self.step.saturating_sub(lag).max(self.completed), meter)
    }

    /// Completes a step and all before it: their writes happen, then their fences end.
    pub(super) fn end_steps(&mut self, step: u64, meter: &mut Meter) -> Result<(), Wrong> {
        if !self.sabotaged(Sabotage::EarlyStep) {
            self.store.end_step(step);
        } else if let Some(earlier) = step.checked_sub(8) {
            self.store.end_step(earlier);
        }
        let ended = meter.time(Operation::CompleteStep, || self.manager.complete_step(step))?;
        let later = self.fences.split_off(&(step + 1));
        let expected: usize = std::mem::replace(&mut self.fences, later).into_values().sum();
        ensure(ended == expected, || {
            format!("step {step} ended {ended} fenced references, expected {expected}")
        })?;
        (self.completed, self.step) = (step, self.step.max(step + 1));
        Ok(())
    }
}
