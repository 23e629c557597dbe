//! Operations in words: the call, and what it was asked, in one line without tokens.
//!
//! Contents are shown as the first eight bytes of their digests, in the order of the digest's bytes, so they can be found in events
//! and logs. Long lists are cut.

use std::fmt::Write;

use crate::{
    ChainRecord, ComputedRecord, CoveredRecord, Ids, Keys, LinkRecord, LoadedRecord, ManagerOperation, Name,
    OptionsRecord, PartRecord, Planned, RangeRecord, Rows, SignalRecord, UntilRecord,
};
use kvpool::Part;
use kvpool::retention::{Keep, Retention, Then, Ttl};
use kvpool_vllm::Key;

/// Items of a list that are shown.
const SHOWN: usize = 8;

/// What can be said in words.
pub trait Words {
    /// The method that was called.
    fn call(&self) -> &'static str;
    /// What it was asked; may be empty.
    fn words(&self) -> String;
}

/// The start of a digest, as its bytes are written elsewhere.
pub(crate) fn key(key: u64) -> String {
    format!("{:016x}", key.swap_bytes())
}

fn list<T: std::fmt::Display>(items: impl ExactSizeIterator<Item = T>) -> String {
    let left = items.len().saturating_sub(SHOWN);
    let mut text = String::new();
    for item in items.take(SHOWN) {
        // Writing to a string cannot fail.
        let _ = write!(text, "{}{item}", if text.is_empty() { "" } else { " " });
    }
    if left > 0 {
        let _ = write!(text, " ... and {left} more");
    }
    text
}

pub(super) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

pub(super) fn blocks(ids: &Ids) -> String {
    let ids = ids.unpack();
    format!("{}: {}", counted(ids.len(), "block"), list(ids.iter().map(|block| block.get())))
}

fn keys(keys: &Keys) -> String {
    list(keys.unpack().map(key).collect::<Vec<_>>().into_iter())
}

fn filled(filled: &Keys) -> String {
    match filled.len() {
        0 => String::new(),
        blocks => format!(", fills {}: {}", counted(blocks, "block"), keys(filled)),
    }
}

pub(super) fn chain(chain: &ChainRecord) -> String {
    let mut text = format!("{}, {}", counted(chain.tokens, "token"), counted(chain.blocks(), "full block"));
    if let Some((blocks, (last, _))) = chain.known {
        let _ = write!(text, "; {blocks} known, to {}", key(last));
    }
    if !chain.keys.is_empty() {
        let _ = write!(text, "; {} new: {}", chain.keys.len(), keys(&chain.keys));
    }
    if chain.epoch > 0 {
        let _ = write!(text, "; epoch {}", chain.epoch);
    }
    text
}

pub(super) fn link(link: &LinkRecord) -> String {
    let parent = link.parent.map_or_else(|| "nothing".into(), key);
    format!("{} at depth {}, behind {parent}", key(link.key), link.depth)
}

fn name(name: &Name) -> String {
    match name {
        Name::Slot(slot) => format!("slot {slot}"),
        Name::Id(id) => id.to_string(),
    }
}

pub(super) fn at_most(max_blocks: usize) -> String {
    if max_blocks == usize::MAX { String::new() } else { format!(", at most {max_blocks}") }
}

fn rows(rows: &Rows) -> String {
    match rows {
        Rows::Same => "the same batch".into(),
        Rows::Slots(slots) => format!("{}: {}", counted(slots.len(), "slot"), list(slots.iter())),
        Rows::Ids(ids) => format!("{}: {}", counted(ids.len(), "request"), list(ids.iter())),
    }
}

fn after(step: Option<u64>) -> String {
    step.map_or_else(String::new, |step| format!(" after step {step}"))
}

pub(super) fn retention(retention: Retention) -> String {
    let mut text = match retention.keep {
        Keep::Priority(priority) => format!("priority {}", priority.get()),
        Keep::Pinned => "pinned".into(),
        Keep::Demoted => "demoted".into(),
    };
    match retention.ttl {
        Some(Ttl::Idle(seconds)) => drop(write!(text, " for {seconds} s idle")),
        Some(Ttl::Absolute(seconds)) => drop(write!(text, " for {seconds} s")),
        _ => {}
    }
    if retention.then == Then::Demote {
        text.push_str(", then demoted");
    }
    text
}

/// How a request ended.
pub(super) fn ended(record: SignalRecord) -> String {
    let signal = record.signal();
    let tokens = signal.output_tokens.map(|tokens| format!("{tokens} tokens of output"));
    let said: Vec<_> = signal.finish.reason().map(str::to_owned).into_iter().chain(tokens).collect();
    if said.is_empty() { "unknown".into() } else { said.join(", ") }
}

fn ranges(records: &[RangeRecord]) -> String {
    let range = |record: &RangeRecord| {
        let range = record.range();
        let end = range.end.map_or_else(|| "end".into(), |end| end.to_string());
        format!("tokens {} to {end}: {}", range.start, retention(range.retention))
    };
    list(records.iter().map(range))
}

fn part(record: PartRecord) -> String {
    let Part { allocate_tokens, external_tokens, compute_all } = record.part();
    let chunk = allocate_tokens.map(|tokens| format!("; a chunk of {tokens}")).unwrap_or_default();
    let external = if external_tokens > 0 { format!("; {external_tokens} external") } else { String::new() };
    let all = if compute_all { "; computes all" } else { "" };
    chunk + &external + all
}

fn until(record: UntilRecord) -> String {
    match record {
        UntilRecord::Now => String::new(),
        UntilRecord::Step(step) => after(Some(step)),
        UntilRecord::Ticket(ticket) => format!(", until ticket {ticket} ends"),
    }
}

fn options(record: &OptionsRecord) -> String {
    let options = record.options();
    let mut text = part(options.part.into());
    if let Some(tenant) = options.tenant {
        let _ = write!(text, "; tenant {}", tenant.0);
    }
    if options.no_cache {
        text.push_str("; no_cache");
    }
    for range in &options.ranges {
        let _ = write!(text, "; {}", ranges(&[RangeRecord::from(range)]));
    }
    text
}

fn planned(planned: &Planned) -> String {
    match planned {
        Planned::Admit { request, prompt, options: said } => {
            format!("admit {request}: {}{}", chain(prompt), options(said))
        }
        Planned::Resume { request, part: said, .. } => format!("resume {}{}", name(request), part(*said)),
        Planned::Append { request, tokens, covered, filled: keys, .. } => {
            let tokens = counted(*tokens, "token");
            format!("append {tokens} to {}, {covered} covered{}", name(request), filled(keys))
        }
        Planned::Preempt { request, until: end } => format!("preempt {}{}", name(request), until(*end)),
        Planned::Release { request, until: end } => format!("release {}{}", name(request), until(*end)),
    }
}

fn foreign(is: bool) -> &'static str {
    if is { "; hashed by another hasher" } else { "" }
}

impl Words for ManagerOperation {
    fn call(&self) -> &'static str {
        match self {
            Self::Admit { .. } => "admit",
            Self::Resume { .. } => "resume",
            Self::Release { .. } => "release",
            Self::ReleaseBatch { .. } => "release_batch",
            Self::ReleaseBatchWith { .. } => "release_batch_with",
            Self::EndSession { .. } => "end_session",
            Self::Preempt { .. } => "preempt",
            Self::Append { .. } => "append",
            Self::AppendTokens { .. } => "append_tokens",
            Self::Commit { .. } => "commit",
            Self::CommitBatch { .. } => "commit_batch",
            Self::Fork { .. } => "fork",
            Self::ForkBatch { .. } => "fork_batch",
            Self::Truncate { .. } => "truncate",
            Self::TrimWindow { .. } => "trim_window",
            Self::TakePlan => "take_plan",
            Self::BeginSwapOut { .. } => "begin_swap_out",
            Self::BeginSwapIn { .. } => "begin_swap_in",
            Self::CompleteSwap { .. } => "complete_swap",
            Self::AbortSwap { .. } => "abort_swap",
            Self::CommitStep { .. } => "commit_step",
            Self::Retain { .. } => "retain",
            Self::SetTenant { .. } => "set_tenant",
            Self::RetainPrefix { .. } => "retain_prefix",
            Self::AdvanceTime { .. } => "advance_time",
            Self::CompleteStep { .. } => "complete_step",
            Self::BumpEpoch => "bump_epoch",
            Self::Reset => "reset",
            Self::Evict { .. } => "drop_cached",
            Self::EvictNext { .. } => "evict",
            Self::Resize { .. } => "resize",
            Self::TakeEvents => "take_events",
            Self::TruncateBatch { .. } => "truncate_batch",
            Self::Extend { .. } => "extend",
            Self::ExtendEncoder { .. } => "extend_encoder",
            Self::ExternalDone { .. } => "external_done",
            Self::Fence => "fence",
            Self::EndFence { .. } => "end_fence",
        }
    }

    fn words(&self) -> String {
        match self {
            Self::Admit { request, prompt, foreign: is_foreign, options: said } => {
                format!("{request}: {}{}{}", chain(prompt), foreign(*is_foreign), options(said))
            }
            Self::Resume { request, part: said, rehashed } => {
                let again = if rehashed.is_some() { ", hashed again" } else { "" };
                format!("{}{}{again}", name(request), part(*said))
            }
            Self::Release { request, until: end }
            | Self::EndSession { request, until: end }
            | Self::Preempt { request, until: end } => format!("{}{}", name(request), until(*end)),
            Self::ReleaseBatch { requests, until: end } => {
                format!("{}{}", list(requests.iter().map(name)), until(*end))
            }
            Self::ReleaseBatchWith { requests, signals, until: end } => {
                let each = requests.iter().zip(signals);
                let each = each.map(|(request, &signal)| format!("{} ({})", name(request), ended(signal)));
                format!("{}{}", list(each), until(*end))
            }
            Self::Append { rows: batch, tokens, offsets, computed, covered, filled: keys, .. } => {
                let widths = offsets.windows(2).map(|ends| ends[1].saturating_sub(ends[0]));
                let each =
                    if offsets.is_empty() { String::new() } else { format!(", each {}", list(widths)) };
                let computed = match computed {
                    ComputedRecord::Nothing => String::new(),
                    ComputedRecord::AllButLast => ", all but the last computed".into(),
                    ComputedRecord::Counts(counts) => format!(", computed: {}", list(counts.iter())),
                };
                let covered = match covered {
                    CoveredRecord::All => String::new(),
                    CoveredRecord::Lookahead(slots) => format!(", {slots} ahead"),
                    CoveredRecord::Each(counts) => format!(", covered: {}", list(counts.iter())),
                };
                let tokens = counted(*tokens, "token");
                format!("{tokens} to {}{each}{computed}{covered}{}", rows(batch), filled(keys))
            }
            Self::AppendTokens { request, tokens, lookahead, filled: keys, .. } => {
                let ahead = if *lookahead > 0 { format!(", {lookahead} ahead") } else { String::new() };
                format!("{} to {}{ahead}{}", counted(*tokens, "token"), name(request), filled(keys))
            }
            Self::Commit { request, computed_tokens } => {
                format!("{}, {} computed", name(request), counted(*computed_tokens, "token"))
            }
            Self::CommitBatch { rows: batch, computed_tokens } => {
                format!("{}, computed: {}", rows(batch), list(computed_tokens.iter()))
            }
            Self::Fork { parent, child } => format!("{} of {}", child, name(parent)),
            Self::ForkBatch { parents, children } => {
                let pairs = children.iter().zip(parents);
                list(pairs.map(|(child, parent)| format!("{child} of {}", name(parent))))
            }
            Self::Truncate { request, tokens, until: end } => {
                format!("{} to {}{}", name(request), counted(*tokens, "token"), until(*end))
            }
            Self::TruncateBatch { rows: batch, tokens, until: end } => {
                format!("{} to tokens: {}{}", rows(batch), list(tokens.iter()), until(*end))
            }
            Self::Extend { request, tokens } | Self::ExtendEncoder { request, tokens } => {
                format!("{} to {}", name(request), counted(*tokens, "token"))
            }
            Self::ExternalDone { request, loaded } => {
                let what = match loaded {
                    LoadedRecord::All => "all loaded".into(),
                    LoadedRecord::First(tokens) => format!("the first {} loaded", counted(*tokens, "token")),
                    LoadedRecord::AllBut(ranges) => {
                        format!("failed: {}", list(ranges.iter().map(|range| format!("{range:?}"))))
                    }
                };
                format!("{}, {what}", name(request))
            }
            Self::EndFence { ticket } => format!("ticket {ticket}"),
            Self::TrimWindow { request, window } => {
                format!("{} to a window of {}", name(request), counted(*window, "token"))
            }
            Self::BeginSwapOut { requests } | Self::BeginSwapIn { requests } => {
                list(requests.iter().map(name))
            }
            Self::CompleteSwap { swap } | Self::AbortSwap { swap } => format!("swap {swap}"),
            Self::CommitStep { planned: operations, stale } => {
                let stale = if *stale { "stale; " } else { "" };
                let all = operations.iter().map(|one| format!("({})", planned(one)));
                format!("{stale}{}: {}", counted(operations.len(), "operation"), list(all))
            }
            Self::Retain { request, ranges: said } => format!("{}, {}", name(request), ranges(said)),
            Self::SetTenant { request, tenant } => format!("{}, tenant {tenant}", name(request)),
            Self::RetainPrefix { prompt, foreign: is_foreign, ranges: said } => {
                format!("{}{}; {}", chain(prompt), foreign(*is_foreign), ranges(said))
            }
            Self::AdvanceTime { now } => format!("to {now} s"),
            Self::CompleteStep { step } => format!("step {step}"),
            Self::Evict { blocks: ids } => blocks(ids),
            Self::EvictNext { blocks } => counted(*blocks, "block"),
            Self::Resize { num_blocks } => format!("to {}", counted(*num_blocks, "block")),
            Self::TakePlan | Self::BumpEpoch | Self::Reset | Self::TakeEvents | Self::Fence => String::new(),
        }
    }
}

pub(super) fn numbers(blocks: &[u32]) -> String {
    format!("{}: {}", counted(blocks.len(), "block"), list(blocks.iter()))
}

/// The start of vLLM's own hash.
pub(super) fn hash(key: &Key) -> String {
    key.digest().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn hashes(keys: &[Option<Key>]) -> String {
    list(keys.iter().map(|key| key.as_ref().map_or_else(|| "none".into(), hash)))
}
