//! Calls of a manager as lines of a Rust test.

use kvpool::{Computed, Covered, Part, Until};

use super::arguments::Rows;
use super::flat;
use crate::text;

/// When what is released can be used again.
pub(super) fn until_text(until: Until) -> String {
    match until {
        Until::Now => "None".into(),
        Until::Step(step) => format!("Some({step})"),
        Until::Ticket(ticket) => format!("Ticket::new({})", ticket.get()),
    }
}

/// How much of a prompt is admitted.
pub(super) fn options(part: Part) -> String {
    format!("AdmitOptions {{ part: {part:?}, ..Default::default() }}")
}

pub(super) fn rows_text(
    rows: &Rows,
    computed: Computed<'_>,
    covered: Covered<'_>,
    most: Option<usize>,
) -> String {
    let (_, tokens, offsets) = flat(rows);
    let ids: Vec<_> = rows.iter().map(|&(id, _)| id).collect();
    let computed = match computed {
        Computed::Counts(counts) => format!("Counts(&{counts:?})"),
        other => format!("{other:?}"),
    };
    let covered = match covered {
        Covered::Each(counts) => format!("Each(&{counts:?})"),
        other => format!("{other:?}"),
    };
    format!(
        "Rows {{ requests: &refs(&{ids:?}), tokens: &{tokens:?}, offsets: &{offsets:?}, computed: Computed::{computed}, covered: Covered::{covered}, most_changes: {most:?} }}"
    )
}

/// A call, compared with the model's answer if there is one.
pub(super) fn compared(call: &str, expected: Option<String>) -> String {
    expected.map_or_else(|| format!("let _ = {call};"), |expected| format!("assert_eq!({call}, {expected});"))
}

/// A call that succeeds, or is refused.
pub(super) fn answered(call: &str, expected: Option<bool>) -> String {
    expected.map_or_else(|| format!("let _ = {call};"), |fine| text::outcome(call, fine))
}

/// A call that gives an admission, compared by its table and its cached blocks.
pub(super) fn admission(call: &str, expected: Option<&Option<(Vec<usize>, usize)>>) -> String {
    let expected = expected.map(|expected| match expected {
        None => "None".to_owned(),
        Some((blocks, cached)) => format!("Some((vec!{blocks:?}, {cached}))"),
    });
    compared(&format!("{call}.ok().as_ref().map(table)"), expected)
}

pub(super) const PROMPT: &str = "
fn prompt(manager: &CacheManager, tokens: &[u32], salt: &[u8]) -> HashCursor {
    let salt = (!salt.is_empty()).then(|| salt.into());
    manager.prepare(tokens, ExtraKeys { salt, ..Default::default() }).unwrap()
}
";

pub(super) const REFS: &str = "
fn refs(ids: &[i64]) -> Vec<RequestRef<'_>> {
    ids.iter().map(|&id| RequestRef::Int(id)).collect()
}
";

pub(super) const TABLE: &str = "
fn table(admission: &Admission) -> (Vec<usize>, usize) {
    (indices(&admission.block_ids), admission.cached_blocks)
}
";
