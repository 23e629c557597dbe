//! Writes the calls of pools and managers into an exported test. The names of some methods differ from
//! the names of the recorded calls.

use kvpool::RequestId;
use kvpool::hash::HashCursor;

use super::slots::unmade;
use super::source::Source;
use crate::calls::{ManagerCall, PoolCall, Slots, Words};
use crate::error::ReplayError;
use crate::manager::ManagerSubject;
use crate::pool::PoolSubject;
use crate::subject::Step;

pub(super) fn pool(
    source: &mut Source<'_>,
    step: &Step<PoolCall>,
    _: &PoolSubject,
) -> Result<(), ReplayError> {
    source.begin(step.number, &step.answer)?;
    let mut call = step.operation.clone();
    let name = match call {
        PoolCall::TakeEvents {} => return source.take_events(&step.answer.value),
        PoolCall::Match { tenant: Some(_), .. } => "match_and_acquire_for",
        _ => call.call(),
    };
    if let Some(reason) = unmade(call.slots()).filter(|_| !source.is_rust()) {
        return source.leave_out(step.number, &step.answer, reason);
    }
    let mut arguments = source.arguments.of(call.slots(), &|_, _| 0);
    if name == "lookup_refreshing" && !source.is_rust() {
        arguments.push_str(", refresh=True");
    }
    source.call(name, &arguments, &step.answer)
}

/// Writes one call of a manager. `manager` is the replayed manager, in its state after the call.
pub(super) fn manager(
    source: &mut Source<'_>,
    step: &Step<ManagerCall>,
    manager: &ManagerSubject,
) -> Result<(), ReplayError> {
    source.begin(step.number, &step.answer)?;
    let length = |id: &RequestId, appended: usize| {
        let tokens = manager.manager().cursor(id).map_or(0, HashCursor::num_tokens);
        if step.answer.refused { tokens } else { tokens.saturating_sub(appended) }
    };
    let mut call = step.operation.clone();
    let name = match &call {
        ManagerCall::TakeEvents {} => return source.take_events(&step.answer.value),
        ManagerCall::Admit { .. } => "admit_with",
        ManagerCall::Resume { .. } => "resume_with",
        ManagerCall::Append { .. } => "append_ragged",
        ManagerCall::CommitStep { plan } => {
            source.plan_step(plan.stale)?;
            // A stale plan was made for an earlier state of the manager. The manager refuses it, so the
            // test need not contain its operations.
            for one in plan.planned.iter().filter(|_| !plan.stale) {
                let (name, arguments) = source.arguments.planned(one, &length);
                source.plan(name, &arguments)?;
            }
            "commit_step"
        }
        _ => call.call(),
    };
    if let Some(reason) = unmade(call.slots()).filter(|_| !source.is_rust()) {
        return source.leave_out(step.number, &step.answer, reason);
    }
    let mut arguments = source.arguments.of(call.slots(), &length);
    if name == "retain_prefix" && source.is_rust() {
        arguments.insert(0, '&');
    }
    source.call(name, &arguments, &step.answer)
}
