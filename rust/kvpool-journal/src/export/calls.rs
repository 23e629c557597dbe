//! Which call of a pool or a manager an operation is, and with which arguments.

use crate::calls::{PoolCall, Slots, Words};
use crate::{ComputedRecord, CoveredRecord, ManagerOperation, Planned, Rows};

use super::arguments::{Argument as A, Arguments};
use super::source::Source;
use crate::error::ReplayError;
use crate::subject::Step;

pub(super) fn pool(source: &mut Source<'_>, step: &Step<PoolCall>) -> Result<(), ReplayError> {
    source.begin(step.number, &step.answer)?;
    let mut call = step.operation.clone();
    let name = match call {
        PoolCall::TakeEvents {} => return source.take_events(&step.answer.value),
        PoolCall::Match { tenant: Some(_), .. } => "match_and_acquire_for",
        _ => call.call(),
    };
    let mut arguments = source.arguments.of(call.slots());
    if name == "lookup_refreshing" && !source.is_rust() {
        arguments.push_str(", refresh=True");
    }
    source.call(name, &arguments, &step.answer)
}

pub(super) fn manager(source: &mut Source<'_>, step: &Step<ManagerOperation>) -> Result<(), ReplayError> {
    use ManagerOperation as O;
    source.begin(step.number, &step.answer)?;
    let (name, arguments) = match &step.operation {
        O::Admit { request, prompt, foreign, options } => {
            ("admit_with", vec![A::Request(request), A::Prompt(prompt, *foreign), A::Options(options)])
        }
        O::Resume { request, part, .. } => ("resume_with", vec![A::Name(request), A::Part(*part)]),
        O::Release { request, until } => ("release", vec![A::Name(request), A::End(*until)]),
        O::ReleaseBatch { requests, until } => ("release_batch", vec![A::Names(requests), A::End(*until)]),
        O::ReleaseBatchWith { requests, signals, until } => {
            ("release_batch_with", vec![A::Ended(requests, signals), A::End(*until)])
        }
        O::EndSession { request, until } => ("end_session", vec![A::Name(request), A::End(*until)]),
        O::Preempt { request, until } => ("preempt", vec![A::Name(request), A::End(*until)]),
        O::Append { rows, tokens, offsets, computed, covered, most_changes, filled, .. } => {
            let tokens = A::Sampled(rows, *tokens, offsets, filled);
            (
                "append_ragged",
                vec![A::Ragged(Box::new([A::Rows(rows), tokens]), offsets, computed, covered, *most_changes)],
            )
        }
        O::AppendTokens { request, tokens, lookahead, filled, .. } => (
            "append_tokens",
            vec![A::Name(request), A::Appended(request, *tokens, filled), A::Lookahead(*lookahead)],
        ),
        O::Commit { request, computed_tokens } => {
            ("commit", vec![A::Name(request), A::Number(*computed_tokens as u64)])
        }
        O::CommitBatch { rows, computed_tokens } => {
            ("commit_batch", vec![A::Rows(rows), A::Numbers(computed_tokens)])
        }
        O::Fork { parent, child } => ("fork", vec![A::Name(parent), A::Request(child)]),
        O::ForkBatch { parents, children } => ("fork_batch", vec![A::Names(parents), A::Requests(children)]),
        O::Truncate { request, tokens, until } => {
            ("truncate", vec![A::Name(request), A::Number(*tokens as u64), A::End(*until)])
        }
        O::TruncateBatch { rows, tokens, until } => {
            ("truncate_batch", vec![A::Rows(rows), A::Numbers(tokens), A::End(*until)])
        }
        O::Extend { request, tokens } => ("extend", vec![A::Name(request), A::Number(*tokens as u64)]),
        O::ExtendEncoder { request, tokens } => {
            ("extend_encoder", vec![A::Name(request), A::Number(*tokens as u64)])
        }
        O::ExternalDone { request, loaded } => ("external_done", vec![A::Name(request), A::Loaded(loaded)]),
        O::Fence => ("fence", vec![]),
        O::EndFence { ticket } => ("end_fence", vec![A::Ticket(*ticket)]),
        O::TrimWindow { request, window } => {
            ("trim_window", vec![A::Name(request), A::Number(*window as u64)])
        }
        O::TakePlan => ("take_plan", vec![]),
        O::BeginSwapOut { requests } => ("begin_swap_out", vec![A::Names(requests)]),
        O::BeginSwapIn { requests } => ("begin_swap_in", vec![A::Names(requests)]),
        O::CompleteSwap { swap } => ("complete_swap", vec![A::Swap(*swap)]),
        O::AbortSwap { swap } => ("abort_swap", vec![A::Swap(*swap)]),
        O::CommitStep { planned, stale } => {
            source.plan_step(*stale)?;
            // Of a stale plan nothing is looked at.
            for one in planned.iter().filter(|_| !stale) {
                plan(source, one)?;
            }
            ("commit_step", vec![A::Plan])
        }
        O::Retain { request, ranges } => ("retain", vec![A::Name(request), A::Ranges(ranges)]),
        O::SetTenant { request, tenant } => ("set_tenant", vec![A::Name(request), A::Tenant(*tenant)]),
        O::RetainPrefix { prompt, foreign, ranges } => {
            ("retain_prefix", vec![A::Borrowed(prompt, *foreign), A::Ranges(ranges)])
        }
        O::AdvanceTime { now } => ("advance_time", vec![A::Time(*now)]),
        O::CompleteStep { step } => ("complete_step", vec![A::Number(*step)]),
        O::BumpEpoch => ("bump_epoch", vec![]),
        O::Reset => ("reset", vec![]),
        O::Evict { blocks } => ("drop_cached", vec![A::Blocks(blocks)]),
        O::Resize { num_blocks } => ("resize", vec![A::Number(*num_blocks as u64)]),
        O::EvictNext { blocks } => ("evict", vec![A::Number(*blocks as u64)]),
        O::TakeEvents => return source.take_events(&step.answer.value),
    };
    let arguments = source.arguments.texts(&arguments);
    source.call(name, &arguments, &step.answer)?;
    note_lengths(&mut source.arguments, step);
    Ok(())
}

fn plan(source: &mut Source<'_>, planned: &Planned) -> Result<(), ReplayError> {
    let (name, arguments) = match planned {
        Planned::Admit { request, prompt, options } => {
            ("admit_with", vec![A::Plan, A::Request(request), A::Prompt(prompt, false), A::Options(options)])
        }
        Planned::Resume { request, part, .. } => {
            ("resume_with", vec![A::Plan, A::Name(request), A::Part(*part)])
        }
        Planned::Append { request, tokens, covered, filled, .. } => {
            let row =
                Box::new([A::Names(std::slice::from_ref(request)), A::Appended(request, *tokens, filled)]);
            let (offsets, covered) = ([0, *tokens], CoveredRecord::Each(vec![*covered]));
            let ragged = A::Ragged(row, &offsets, &ComputedRecord::Nothing, &covered, None);
            return source.plan("append_ragged", &[A::Plan, ragged]);
        }
        Planned::Preempt { request, until } => ("preempt", vec![A::Plan, A::Name(request), A::End(*until)]),
        Planned::Release { request, until } => ("release", vec![A::Plan, A::Name(request), A::End(*until)]),
    };
    source.plan(name, &arguments)
}

/// Notes how long requests are: it says where the tokens of later appends fill a block. A step names a request once.
fn note_lengths(lengths: &mut Arguments, step: &Step<ManagerOperation>) {
    use ManagerOperation as O;
    if step.answer.refused {
        return;
    }
    match &step.operation {
        O::Admit { request, prompt, .. } => lengths.set_length(request, prompt.tokens),
        O::Append { rows: Rows::Ids(ids), offsets, .. } => {
            for (row, id) in ids.iter().enumerate() {
                lengths.lengthen(id, offsets.get(row..row + 2).map_or(1, |ends| ends[1] - ends[0]));
            }
        }
        O::AppendTokens { request, tokens, .. } => lengths.lengthen_named(request, *tokens),
        O::Truncate { request, tokens, .. } => lengths.set_length_named(request, *tokens),
        O::TruncateBatch { rows: Rows::Ids(ids), tokens, .. } => {
            ids.iter().zip(tokens).for_each(|(id, &tokens)| lengths.set_length(id, tokens));
        }
        O::Fork { parent, child } => lengths.copy_length(parent, child),
        O::ForkBatch { parents, children } => {
            parents.iter().zip(children).for_each(|(parent, child)| lengths.copy_length(parent, child));
        }
        O::ReleaseBatch { requests, .. } | O::ReleaseBatchWith { requests, .. } => {
            requests.iter().for_each(|request| lengths.forget_length(request));
        }
        O::Release { request, .. } | O::EndSession { request, .. } => lengths.forget_length(request),
        O::CommitStep { planned, .. } => {
            for one in planned {
                match one {
                    Planned::Admit { request, prompt, .. } => lengths.set_length(request, prompt.tokens),
                    Planned::Append { request, tokens, .. } => lengths.lengthen_named(request, *tokens),
                    Planned::Release { request, .. } => lengths.forget_length(request),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}
