//! Operations as text: the call and its arguments in one line, without tokens.
//!
//! A content is displayed as the first eight bytes of its digest, in the byte order of the digest, so
//! that users can find it in events and logs. Long lists are truncated.

use std::fmt::Write;

use crate::{
    AppendRecord, ChainRecord, ComputedRecord, CoveredRecord, EndedRecord, Filled, ForksRecord, Ids, Keys,
    LinkRecord, LoadedRecord, Name, OptionsRecord, PartRecord, PlanRecord, Planned, PromptRecord,
    RangeRecord, Rows, SignalRecord, TurnRecord, UntilRecord,
};
use kvpool::Part;
use kvpool::retention::{Keep, Retention, Then, Ttl};
use kvpool_vllm::Key;

/// Number of items of a list that the text contains. Later items are left out.
const SHOWN: usize = 8;

/// An operation that can be displayed as text.
pub trait Words {
    /// Returns the name of the method that was called.
    fn call(&self) -> &'static str;
    /// Returns the arguments of the call as text, which may be empty.
    fn words(&self) -> String;
}

/// Formats the first eight bytes of a digest, in the byte order that events and logs use.
pub(crate) fn key(key: u64) -> String {
    format!("{:016x}", key.swap_bytes())
}

pub(super) fn list<T: std::fmt::Display>(items: impl ExactSizeIterator<Item = T>) -> String {
    let left = items.len().saturating_sub(SHOWN);
    let mut text = String::new();
    for item in items.take(SHOWN) {
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

fn filled(filled: &Filled) -> String {
    match filled.keys.len() {
        0 => String::new(),
        blocks => format!(", fills {}: {}", counted(blocks, "block"), keys(&filled.keys)),
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

pub(super) fn name(name: &Name) -> String {
    match name {
        Name::Slot(slot) => format!("slot {slot}"),
        Name::Id(id) => id.to_string(),
    }
}

pub(super) fn at_most(max_blocks: usize) -> String {
    if max_blocks == usize::MAX { String::new() } else { format!(", at most {max_blocks}") }
}

pub(super) fn rows(rows: &Rows) -> String {
    match rows {
        Rows::Same => "the same batch".into(),
        Rows::Slots(slots) => format!("{}: {}", counted(slots.len(), "slot"), list(slots.iter())),
        Rows::Ids(ids) => {
            format!("{}: {}", counted(ids.len(), "request"), list(ids.iter().map(|id| &id.0)))
        }
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

pub(super) fn ended(record: SignalRecord) -> String {
    let signal = record.signal();
    let tokens = signal.output_tokens.map(|tokens| format!("{tokens} tokens of output"));
    let said: Vec<_> = signal.finish.reason().map(str::to_owned).into_iter().chain(tokens).collect();
    if said.is_empty() { "unknown".into() } else { said.join(", ") }
}

pub(super) fn ranges(records: &[RangeRecord]) -> String {
    let range = |record: &RangeRecord| {
        let range = record.range();
        let end = range.end.map_or_else(|| "end".into(), |end| end.to_string());
        format!("tokens {} to {end}: {}", range.start, retention(range.retention))
    };
    list(records.iter().map(range))
}

pub(super) fn part(record: PartRecord) -> String {
    let Part { allocate_tokens, external_tokens, compute_all } = record.part();
    let chunk = allocate_tokens.map(|tokens| format!("; a chunk of {tokens}")).unwrap_or_default();
    let external = if external_tokens > 0 { format!("; {external_tokens} external") } else { String::new() };
    let all = if compute_all { "; computes all" } else { "" };
    chunk + &external + all
}

pub(super) fn until(record: UntilRecord) -> String {
    match record {
        UntilRecord::Now => String::new(),
        UntilRecord::Step(step) => after(Some(step)),
        UntilRecord::Ticket(ticket) => format!(", until ticket {ticket} ends"),
    }
}

pub(super) fn options(record: &OptionsRecord) -> String {
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
        Planned::Admit { request, prompt, options: asked } => {
            format!("admit {}: {}{}", request.0, chain(prompt), options(asked))
        }
        Planned::Resume { request, part: asked, .. } => format!("resume {}{}", name(request), part(*asked)),
        Planned::Append { request, tokens, covered, filled: keys } => {
            let tokens = counted(*tokens, "token");
            format!("append {tokens} to {}, {covered} covered{}", name(request), filled(keys))
        }
        Planned::Preempt { request, until: end } => format!("preempt {}{}", name(request), until(*end)),
        Planned::Release { request, until: end } => format!("release {}{}", name(request), until(*end)),
    }
}

pub(super) fn plan(record: &PlanRecord) -> String {
    let stale = if record.stale { "stale; " } else { "" };
    let all = record.planned.iter().map(|one| format!("({})", planned(one)));
    format!("{stale}{}: {}", counted(record.planned.len(), "operation"), list(all))
}

pub(super) fn prompt(record: &PromptRecord) -> String {
    let foreign = if record.foreign { "; hashed by another hasher" } else { "" };
    format!("{}{foreign}", chain(&record.chain))
}

pub(super) fn rehashed(filled: &Option<Filled>) -> String {
    filled.as_ref().map_or_else(String::new, |_| ", hashed again".into())
}

pub(super) fn ending(EndedRecord { requests, signals }: &EndedRecord) -> String {
    let each = requests.iter().zip(signals);
    list(each.map(|(request, &signal)| format!("{} ({})", name(request), ended(signal))))
}

pub(super) fn forks(ForksRecord { parents, children }: &ForksRecord) -> String {
    list(children.iter().zip(parents).map(|(child, parent)| format!("{} of {}", child.0, name(parent))))
}

pub(super) fn loaded(record: &LoadedRecord) -> String {
    match record {
        LoadedRecord::All => "all loaded".into(),
        LoadedRecord::First(tokens) => format!("the first {} loaded", counted(*tokens, "token")),
        LoadedRecord::AllBut(ranges) => {
            format!("failed: {}", list(ranges.iter().map(|range| format!("{range:?}"))))
        }
    }
}

pub(super) fn append(record: &AppendRecord) -> String {
    let AppendRecord { rows: batch, tokens, offsets, computed, covered, filled: keys, .. } = record;
    let widths = offsets.windows(2).map(|ends| ends[1].saturating_sub(ends[0]));
    let each = if offsets.is_empty() { String::new() } else { format!(", each {}", list(widths)) };
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

pub(super) fn turn(TurnRecord { request, tokens, lookahead, filled: keys }: &TurnRecord) -> String {
    let ahead = if *lookahead > 0 { format!(", {lookahead} ahead") } else { String::new() };
    format!("{} to {}{ahead}{}", counted(*tokens, "token"), name(request), filled(keys))
}

pub(super) fn numbers(blocks: &[u32]) -> String {
    format!("{}: {}", counted(blocks.len(), "block"), list(blocks.iter()))
}

/// Formats the first bytes of a hash that vLLM has computed.
pub(super) fn hash(key: &Key) -> String {
    key.digest().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn hashes(keys: &[Option<Key>]) -> String {
    list(keys.iter().map(|key| key.as_ref().map_or_else(|| "none".into(), hash)))
}
