//! Checks that each counter of a manager equals the sum of the amounts that the model expects from each
//! call. Also checks that a swap begins if, and only if, the manager has reported that it fits.

use std::collections::BTreeMap;

use kvpool::{CacheManager, Fit, ManagerStats, PlannedOperation, RequestId, RequestState};
use kvpool_journal::{Answer, ManagerCall as C, Name, Value};

use crate::Failure;
use crate::failure::same;
use crate::model::manager::numbers;
use crate::world::requests::{counted, id, named};

/// The counters that a manager must report.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    expected: ManagerStats,
    /// The swaps that are not completed, by number: whether the swap moves to the host, and its number
    /// of requests.
    swaps: BTreeMap<u64, (bool, u64)>,
}

/// What a call is expected to add to the counters, computed from the state before the call.
#[derive(Debug)]
pub(crate) struct Before {
    /// The amounts that the call adds to the counters if it succeeds.
    added: ManagerStats,
    /// The kind of each operation of a step: an admission, a resumption, or neither.
    planned: Vec<Option<Seat>>,
    fit: Option<Fit>,
}

#[derive(Clone, Copy, Debug)]
enum Seat {
    Admitted,
    Resumed,
}

fn number(value: Option<&Value>) -> u64 {
    if let Some(Value::Number(n)) = value { *n } else { 0 }
}

/// Returns the first number of an answer that is a list. In the answer of an admission, this is the
/// number of cached tokens.
fn first(value: &Value) -> u64 {
    if let Value::List(list) = value { number(list.first()) } else { 0 }
}

impl Before {
    pub(crate) fn of(manager: &CacheManager, call: &C, planned: &[PlannedOperation]) -> Self {
        let mut before = Self { added: ManagerStats::default(), planned: Vec::new(), fit: None };
        let added = &mut before.added;
        match call {
            C::Admit { prompt, .. } => admit(added, prompt.chain.tokens),
            C::Resume { request, .. } => resume(added, manager, &id(named(request))),
            C::Preempt { request, .. } => preempt(added, manager, &id(named(request))),
            C::Append { append } => {
                let tokens = counted(append).into_iter().map(|(_, count)| count as u64).sum::<u64>();
                added.appended_tokens = tokens;
            }
            C::AppendTokens { turn } => added.appended_tokens = turn.tokens as u64,
            C::Fork { .. } => added.forks = 1,
            C::ForkBatch { forks } => added.forks = forks.children.len() as u64,
            C::BeginSwapOut { requests } => before.fit = fit(manager, requests, true),
            C::BeginSwapIn { requests } => before.fit = fit(manager, requests, false),
            C::CommitStep { .. } => {
                for one in planned {
                    before.planned.push(match one {
                        PlannedOperation::Admit { cursor, .. } => {
                            admit(added, cursor.num_tokens());
                            Some(Seat::Admitted)
                        }
                        PlannedOperation::Resume { id, .. } => {
                            resume(added, manager, id);
                            Some(Seat::Resumed)
                        }
                        PlannedOperation::Append { tokens, .. } => {
                            added.appended_tokens += tokens.len() as u64;
                            None
                        }
                        PlannedOperation::Preempt { id, .. } => {
                            preempt(added, manager, id);
                            None
                        }
                        PlannedOperation::Release { .. } => None,
                    });
                }
            }
            _ => {}
        }
        before
    }
}

fn admit(added: &mut ManagerStats, tokens: usize) {
    added.admissions += 1;
    added.prompt_tokens += tokens as u64;
}

fn resume(added: &mut ManagerStats, manager: &CacheManager, id: &RequestId) {
    added.resumptions += 1;
    added.resumed_tokens += manager.request(id).map_or(0, |info| info.tokens as u64);
}

fn preempt(added: &mut ManagerStats, manager: &CacheManager, id: &RequestId) {
    added.preemptions += 1;
    added.preempted_tokens += manager.request(id).map_or(0, |info| info.computed_tokens as u64);
}

fn fit(manager: &CacheManager, requests: &[Name], out: bool) -> Option<Fit> {
    let ids: Vec<RequestId> = numbers(requests).into_iter().map(id).collect();
    let ids: Vec<_> = ids.iter().map(RequestId::as_ref).collect();
    if out { manager.fit_swap_out(&ids).ok() } else { manager.fit_swap_in(&ids).ok() }
}

impl Counters {
    /// Adds to the expected counters what a call has changed. `arrived` is the number of tokens that a
    /// request has after its load, if this is known.
    pub(crate) fn note(
        &mut self,
        before: Before,
        call: &C,
        answer: &Answer,
        (manager, arrived): (&CacheManager, Option<usize>),
    ) -> Result<(), Failure> {
        let Before { mut added, planned, fit } = before;
        if let C::BeginSwapOut { requests } | C::BeginSwapIn { requests } = call {
            same("a swap that fits", &!answer.refused, &(fit == Some(Fit::Ok)))?;
            let swap = (matches!(call, C::BeginSwapOut { .. }), requests.len() as u64);
            self.swaps.extend(answer.swap.map(|id| (id, swap)));
        }
        if answer.refused {
            return Ok(());
        }
        match (call, &answer.value) {
            (C::Admit { .. }, value) => added.hit_tokens = first(value),
            (C::Resume { .. }, value) => added.resumed_hit_tokens = first(value),
            (C::CommitStep { .. }, Value::List(outcomes)) => {
                for (seat, outcome) in planned.into_iter().zip(outcomes) {
                    match seat {
                        Some(Seat::Admitted) => added.hit_tokens += first(outcome),
                        Some(Seat::Resumed) => added.resumed_hit_tokens += first(outcome),
                        None => {}
                    }
                }
            }
            // If the load of a state fails, the request has no state from which it can continue.
            (C::ExternalDone { request, .. }, _) => {
                let info = manager.request(&id(named(request)));
                if info.is_ok_and(|info| info.state == RequestState::Preempted) {
                    added.preemptions = 1;
                    let more =
                        || manager.stats().preempted_tokens.saturating_sub(self.expected.preempted_tokens);
                    added.preempted_tokens = arrived.map_or_else(more, |tokens| tokens as u64);
                }
            }
            (C::TakePlan {}, Value::List(copies)) => added.copied_blocks = copies.len() as u64,
            (C::CompleteSwap { swap }, _) => {
                let (out, requests) = self.swaps.remove(swap).unwrap_or_default();
                if out { added.swapped_out = requests } else { added.swapped_in = requests }
            }
            (C::AbortSwap { swap }, _) => drop(self.swaps.remove(swap)),
            _ => {}
        }
        let expected = &mut self.expected;
        for (sum, more) in [
            (&mut expected.admissions, added.admissions),
            (&mut expected.prompt_tokens, added.prompt_tokens),
            (&mut expected.hit_tokens, added.hit_tokens),
            (&mut expected.appended_tokens, added.appended_tokens),
            (&mut expected.preemptions, added.preemptions),
            (&mut expected.preempted_tokens, added.preempted_tokens),
            (&mut expected.resumptions, added.resumptions),
            (&mut expected.resumed_tokens, added.resumed_tokens),
            (&mut expected.resumed_hit_tokens, added.resumed_hit_tokens),
            (&mut expected.forks, added.forks),
            (&mut expected.swapped_out, added.swapped_out),
            (&mut expected.swapped_in, added.swapped_in),
            (&mut expected.copied_blocks, added.copied_blocks),
        ] {
            *sum += more;
        }
        Ok(())
    }

    /// Compares the manager's counters with the expected ones.
    pub(crate) fn check(&self, manager: &CacheManager) -> Result<(), Failure> {
        let (found, expected) = (manager.stats(), &self.expected);
        let split = found.hit_tokens + found.external_tokens + found.computed_tokens;
        let gauges = found.running + found.preempted + found.swapped + found.moving + found.loading;
        for (name, found, expected) in [
            ("hit, external and computed tokens", split, expected.prompt_tokens),
            ("requests", (gauges + found.releasing) as u64, manager.num_requests() as u64),
            ("admissions", found.admissions, expected.admissions),
            ("prompt tokens", found.prompt_tokens, expected.prompt_tokens),
            ("hit tokens", found.hit_tokens, expected.hit_tokens),
            ("appended tokens", found.appended_tokens, expected.appended_tokens),
            ("preemptions", found.preemptions, expected.preemptions),
            ("preempted tokens", found.preempted_tokens, expected.preempted_tokens),
            ("resumptions", found.resumptions, expected.resumptions),
            ("resumed tokens", found.resumed_tokens, expected.resumed_tokens),
            ("resumed hit tokens", found.resumed_hit_tokens, expected.resumed_hit_tokens),
            ("forks", found.forks, expected.forks),
            ("requests swapped out", found.swapped_out, expected.swapped_out),
            ("requests swapped in", found.swapped_in, expected.swapped_in),
            ("copied blocks", found.copied_blocks, expected.copied_blocks),
        ] {
            same(&format!("counter of {name}"), &found, &expected)?;
        }
        Ok(())
    }
}
