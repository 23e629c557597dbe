//! Export: a journal as a test, in Rust or in Python, that makes the same calls.
//!
//! The test holds no recorded digest: its prompts are made-up tokens that are equal where the recorded ones were, hashed anew.
//! Block ids are those of the journal, which the same calls give again. After every call all invariants are recounted; answers
//! are told in comments, since those of a run that went wrong are no expectation.

use kvpool::journal::{
    JournalHeader, JournalReader, ManagerOperation, Planned, PoolOperation, Rows, Subject as Kind,
};

use crate::error::ReplayError;
use crate::manager::ManagerSubject;
use crate::pool::PoolSubject;
use crate::replay::{Options, steps};
use crate::source::{Argument as A, Source};
use crate::subject::Step;

/// The language of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// For `tests/` of a crate that depends on `kvpool`.
    Rust,
    /// For pytest.
    Python,
}

/// A journal as the text of a test.
///
/// # Errors
/// As [`crate::replay`].
pub fn export(bytes: &[u8], language: Language) -> Result<String, ReplayError> {
    let reader = JournalReader::new(bytes)?;
    if reader.header().subject == Kind::VllmPool {
        return Err(ReplayError::NoExport);
    }
    let mut source = Source::new(language, reader.header())?;
    match reader.header().subject {
        Kind::Pool => {
            for step in steps::<PoolSubject>(&reader, Options::default())? {
                pool_call(&mut source, &step);
            }
        }
        Kind::VllmPool => {}
        Kind::Manager => {
            for step in steps::<ManagerSubject>(&reader, Options::default())? {
                manager_call(&mut source, &step);
            }
        }
    }
    Ok(source.finish())
}

fn pool_call(source: &mut Source, step: &Step<PoolOperation>) {
    use PoolOperation as O;
    let (name, arguments) = match &step.operation {
        O::Allocate { blocks } => ("allocate", vec![A::Number(*blocks as u64)]),
        O::Acquire { blocks } => ("acquire", vec![A::Blocks(blocks)]),
        O::Release { blocks } => ("release", vec![A::Blocks(blocks)]),
        O::ReleaseTable { blocks } => ("release_table", vec![A::Blocks(blocks)]),
        O::ReleaseAfter { blocks, step } => ("release_after", vec![A::Blocks(blocks), A::Number(*step)]),
        O::CompleteStep { step } => ("complete_step", vec![A::Number(*step)]),
        O::Match { chain, max_blocks, tenant: None } => {
            ("match_and_acquire", vec![A::Chain(chain), A::Most(*max_blocks)])
        }
        O::Match { chain, max_blocks, tenant: Some(tenant) } => {
            ("match_and_acquire_for", vec![A::Chain(chain), A::Most(*max_blocks), A::Tenant(*tenant)])
        }
        O::Register { blocks, chain, start } => {
            ("register", vec![A::Blocks(blocks), A::Chain(chain), A::Number(*start as u64)])
        }
        O::MarkComputed { blocks } => ("mark_computed", vec![A::Blocks(blocks)]),
        O::Promote { block, link } => ("promote", vec![A::Block(*block), A::Link(link)]),
        O::AcquireRegistered { link } => ("acquire_registered", vec![A::Link(link)]),
        O::MarkAccessed { blocks, time } => ("mark_accessed", vec![A::Blocks(blocks), A::Time(*time)]),
        O::Evict { blocks } => ("evict", vec![A::Blocks(blocks)]),
        O::Reset => ("reset", vec![]),
        O::BumpEpoch => ("bump_epoch", vec![]),
        O::Resize { num_blocks } => ("resize", vec![A::Number(*num_blocks as u64)]),
        O::Retain { blocks, retention } => ("retain", vec![A::Blocks(blocks), A::Retention(*retention)]),
        O::AssignTenant { blocks, tenant } => ("assign_tenant", vec![A::Blocks(blocks), A::Tenant(*tenant)]),
        O::AdvanceTime { now } => ("advance_time", vec![A::Time(*now)]),
        O::TakeEvents => ("take_events", vec![]),
    };
    source.call(step.number, name, &arguments, &step.answer.told);
}

fn manager_call(source: &mut Source, step: &Step<ManagerOperation>) {
    use ManagerOperation as O;
    let (name, arguments) = match &step.operation {
        O::Admit { request, prompt, hints, .. } => {
            ("admit_with", vec![A::Request(request), A::Prompt(prompt), A::Hints(hints)])
        }
        O::Resume { request, .. } => ("resume", vec![A::Name(request)]),
        O::Release { request, after_step, end_of_life } => {
            ("release_with", vec![A::Name(request), A::After(*after_step), A::EndOfLife(*end_of_life)])
        }
        O::Preempt { request, after_step } => ("preempt", vec![A::Name(request), A::After(*after_step)]),
        O::Append { rows, tokens, commit_first, filled, .. } => {
            ("append", vec![A::Rows(rows), A::Sampled(rows, *tokens, filled), A::CommitFirst(*commit_first)])
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
        O::Truncate { request, tokens } => ("truncate", vec![A::Name(request), A::Number(*tokens as u64)]),
        O::TrimWindow { request, window } => {
            ("trim_window", vec![A::Name(request), A::Number(*window as u64)])
        }
        O::TakePlan => ("take_plan", vec![]),
        O::BeginSwapOut { requests } => ("begin_swap_out", vec![A::Names(requests)]),
        O::BeginSwapIn { requests } => ("begin_swap_in", vec![A::Names(requests)]),
        O::CompleteSwap { swap } => ("complete_swap", vec![A::Swap(*swap)]),
        O::AbortSwap { swap } => ("abort_swap", vec![A::Swap(*swap)]),
        O::CommitStep { planned, .. } => {
            source.begin_step();
            for one in planned {
                planned_call(source, step.number, one);
            }
            ("commit_step", vec![A::Plan])
        }
        O::Retain { request, ranges } => ("retain", vec![A::Name(request), A::Ranges(ranges)]),
        O::SetTenant { request, tenant } => ("set_tenant", vec![A::Name(request), A::Tenant(*tenant)]),
        O::RetainPrefix { prompt, ranges, .. } => {
            ("retain_prefix", vec![A::Borrowed(prompt), A::Ranges(ranges)])
        }
        O::AdvanceTime { now } => ("advance_time", vec![A::Time(*now)]),
        O::CompleteStep { step } => ("complete_step", vec![A::Number(*step)]),
        O::BumpEpoch => ("bump_epoch", vec![]),
        O::Reset => ("reset", vec![]),
        O::Evict { blocks } => ("evict", vec![A::Blocks(blocks)]),
        O::Resize { num_blocks } => ("resize", vec![A::Number(*num_blocks as u64)]),
        O::TakeEvents => ("take_events", vec![]),
    };
    source.call(step.number, name, &arguments, &step.answer.told);
    note_lengths(source, step);
}

fn planned_call(source: &mut Source, number: u64, planned: &Planned) {
    let (name, arguments) = match planned {
        Planned::Admit { request, prompt, hints } => {
            ("plan_admit_with", vec![A::Plan, A::Request(request), A::Prompt(prompt), A::Hints(hints)])
        }
        Planned::Resume { request, .. } => ("plan_resume", vec![A::Plan, A::Name(request)]),
        Planned::Append { request, tokens, filled, .. } => {
            ("plan_append", vec![A::Plan, A::Name(request), A::Appended(request, *tokens, filled)])
        }
        Planned::Preempt { request, after_step } => {
            ("plan_preempt", vec![A::Plan, A::Name(request), A::After(*after_step)])
        }
        Planned::Release { request, after_step } => {
            ("plan_release", vec![A::Plan, A::Name(request), A::After(*after_step)])
        }
    };
    source.call(number, name, &arguments, "");
}

/// Notes how long requests are: it says where the tokens of later appends fill a block.
fn note_lengths(source: &mut Source, step: &Step<ManagerOperation>) {
    use ManagerOperation as O;
    if step.answer.refused {
        return;
    }
    match &step.operation {
        O::Admit { request, prompt, .. } => source.set_length(request, prompt.tokens),
        O::Append { rows: Rows::Ids(ids), .. } => ids.iter().for_each(|id| source.lengthen(id, 1)),
        O::AppendTokens { request, tokens, .. } => source.lengthen_named(request, *tokens),
        O::Truncate { request, tokens } => source.set_length_named(request, *tokens),
        O::Fork { parent, child } => source.copy_length(parent, child),
        O::CommitStep { planned, .. } => {
            for one in planned {
                match one {
                    Planned::Admit { request, prompt, .. } => source.set_length(request, prompt.tokens),
                    Planned::Append { request, tokens, .. } => source.lengthen_named(request, *tokens),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// The settings of a journal, as they are written in both languages.
pub(crate) fn is_manager(header: &JournalHeader) -> bool {
    header.subject == Kind::Manager
}
