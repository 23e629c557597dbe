//! Steps: operations that are planned together, then committed or dropped.

use kvpool::{AdmitOptions, Computed, ExtraKeys, ManagerError, Part, Rows, StepOutcome};
use kvpool_testing::{ReferenceOutcome, ReferenceStep, writes_in_place};

use super::arguments::Room;
use super::operation::Planned;
use super::written::{options, rows_text, until_text};
use super::{Manager, admitted, flat, pairs};
use crate::case::{Failure, Script, holds, same};

impl Manager {
    /// Plans what fits, then commits it or drops it. That everything planned fits is the promise of a plan.
    pub(super) fn step(
        &mut self,
        operations: &[Planned],
        commit: bool,
        script: &mut Script,
    ) -> Result<bool, Failure> {
        script.line(|| "let mut plan = manager.plan_step();".into());
        let before = self.observe();
        let mut plan = self.manager.plan_step();
        let mut planned = Vec::new();
        for operation in operations {
            let manager = &self.manager;
            let (fits, step) = match operation {
                Planned::Admit(id, tokens, part) => {
                    script.line(|| {
                        let prompt = format!("prompt(&manager, &{tokens:?}, b\"\")");
                        match *part == Part::WHOLE {
                            true => format!("let _ = manager.plan_admit(&mut plan, {id}, {prompt});"),
                            false => format!(
                                "let _ = manager.plan_admit_with(&mut plan, {id}, {prompt}, &{});",
                                options(*part)
                            ),
                        }
                    });
                    let cursor = manager.prepare(tokens, ExtraKeys::default());
                    let cursor = cursor.map_err(|error| Failure::new("hashing", error.to_string()))?;
                    let options = AdmitOptions { part: *part, ..Default::default() };
                    let cached = manager.plan_admit_with(&mut plan, *id, cursor, &options).ok();
                    let (tokens, hit) = (tokens.clone(), cached.unwrap_or(0));
                    (cached.is_some(), vec![ReferenceStep::Admit(*id, tokens, Vec::new(), *part, hit)])
                }
                Planned::Resume(id, part) => {
                    script.line(|| match *part == Part::WHOLE {
                        true => format!("let _ = manager.plan_resume(&mut plan, {id});"),
                        false => format!("let _ = manager.plan_resume_with(&mut plan, {id}, {part:?});"),
                    });
                    let cached = manager.plan_resume_with(&mut plan, *id, *part).ok();
                    (cached.is_some(), vec![ReferenceStep::Resume(*id, *part, cached.unwrap_or(0))])
                }
                Planned::Append(id, tokens, lookahead) => {
                    script.line(|| {
                        format!("let _ = manager.plan_append(&mut plan, {id}, &{tokens:?}, {lookahead});")
                    });
                    let fits = manager.plan_append(&mut plan, *id, tokens, *lookahead).is_ok();
                    let in_place = writes_in_place(manager.planned(&plan)).pop().unwrap_or(false);
                    (fits, vec![ReferenceStep::Append(*id, tokens.clone(), *lookahead, None, in_place)])
                }
                Planned::AppendRagged(all, room) => {
                    let covered = room.covered();
                    script.line(|| {
                        let rows = rows_text(all, Computed::Nothing, covered, None);
                        format!("let _ = manager.plan_append_ragged(&mut plan, &{rows});")
                    });
                    let (requests, tokens, offsets) = flat(all);
                    let (requests, tokens, offsets) = (&requests[..], &tokens[..], &offsets[..]);
                    let rows = Rows { requests, tokens, offsets, covered, ..Rows::default() };
                    let fits = manager.plan_append_ragged(&mut plan, &rows).is_ok();
                    let in_place = writes_in_place(manager.planned(&plan));
                    let first = in_place.len().saturating_sub(all.len());
                    let step = |(row, (id, tokens)): (usize, &(i64, Vec<u32>))| {
                        let in_place = in_place.get(first + row).copied().unwrap_or(false);
                        let (lookahead, covered) = match room {
                            Room::Ahead(slots) => (*slots, None),
                            Room::Each(counts) => (0, Some(counts[row])),
                        };
                        ReferenceStep::Append(*id, tokens.clone(), lookahead, covered, in_place)
                    };
                    (fits, all.iter().enumerate().map(step).collect())
                }
                Planned::Preempt(id, until) => {
                    script.line(|| {
                        format!("let _ = manager.plan_preempt(&mut plan, {id}, {});", until_text(*until))
                    });
                    let fits = manager.plan_preempt(&mut plan, *id, *until).is_ok();
                    (fits, vec![ReferenceStep::Preempt(*id, *until)])
                }
                Planned::Release(id, until) => {
                    script.line(|| {
                        format!("let _ = manager.plan_release(&mut plan, {id}, {});", until_text(*until))
                    });
                    let fits = manager.plan_release(&mut plan, *id, *until).is_ok();
                    (fits, vec![ReferenceStep::Release(*id, *until)])
                }
            };
            if fits {
                planned.extend(step);
            }
        }
        same("what planning left", &self.observe(), &before)?;
        if !commit {
            script.line(|| "drop(plan);".into());
            return Ok(false);
        }
        script.line(|| "manager.commit_step(&mut plan).unwrap();".into());
        let outcomes = self.manager.commit_step(&mut plan);
        let outcomes = outcomes.map_err(|error| Failure::new("outcome of commit_step", error.to_string()))?;
        let stale = matches!(self.manager.commit_step(&mut plan), Err(ManagerError::StaleStep));
        holds("a plan is committed once", stale, || "it was committed again".into())?;
        let found: Vec<_> = outcomes.iter().map(outcome).collect();
        if let Some(model) = &mut self.model {
            let expected = model.commit_step(&planned);
            let expected = expected
                .ok_or_else(|| Failure::new("promise of a plan", format!("{planned:?} does not fit")))?;
            same("outcomes of commit_step", &found, &expected)?;
        }
        Ok(!planned.is_empty())
    }
}

fn outcome(outcome: &StepOutcome) -> ReferenceOutcome {
    match outcome {
        StepOutcome::Admitted(admission) => {
            let (blocks, cached) = admitted(admission);
            ReferenceOutcome::Admitted(blocks, cached)
        }
        StepOutcome::Appended(changes) => ReferenceOutcome::Appended(pairs(changes)),
        _ => ReferenceOutcome::Ended,
    }
}
