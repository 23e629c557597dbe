//! Rust expressions of values, for the tests that are written of cases.

use std::fmt::Debug;

use kvpool::{DuplicatePolicy, EvictionPolicy, Verify};

/// A list; an empty one is typed.
pub(crate) fn list(values: &[usize]) -> String {
    if values.is_empty() { "Vec::<usize>::new()".into() } else { format!("{values:?}") }
}

/// An option of a list.
pub(crate) fn option(values: Option<&Vec<usize>>) -> String {
    values.map_or_else(|| "None".into(), |values| format!("Some(vec!{values:?})"))
}

/// A call that succeeds, or is refused.
pub(crate) fn outcome(call: &str, fine: bool) -> String {
    format!("assert!({call}.{}());", if fine { "is_ok" } else { "is_err" })
}

/// Bytes of a salt.
pub(crate) fn salt(salt: &[u8]) -> String {
    format!("b\"{}\"", salt.escape_ascii())
}

/// Fields of a pool's or a manager's settings that are not the default ones.
pub(crate) fn settings(
    verify: Verify,
    duplicates: DuplicatePolicy,
    eviction: EvictionPolicy,
    retention: bool,
) -> String {
    let mut fields = String::new();
    let mut field = |name: &str, value: &dyn Debug, default: bool, kind: &str| {
        if !default {
            fields.push_str(&format!("{name}: {kind}{value:?}, "));
        }
    };
    field("verify", &verify, verify == Verify::None, "Verify::");
    field("duplicates", &duplicates, duplicates == DuplicatePolicy::Keep, "DuplicatePolicy::");
    // The default's LRU has no retention.
    if retention || eviction != kvpool_policies::LRU {
        fields.push_str(&format!("eviction: kvpool_policies::by_name({:?}).unwrap(), ", eviction.name()));
    }
    fields
}

/// What is imported where something is watched.
pub(crate) const OBSERVE: &str = "use kvpool_observe::*;\n";

/// A manager's events are kept from the start.
pub(crate) const MANAGER_EVENTS: &str =
    ".watched(&ManagerWatchConfig { event_capacity: 1000, ..Default::default() }).unwrap()";

/// Fails if a block is cached and its parent is not.
pub(crate) const CLOSED: &str = "
fn closed(batch: EventBatch) {
    let mut cached = std::collections::BTreeMap::new();
    for event in batch.events {
        match event {
            BlockEvent::Stored { hash, parent, .. } => drop(cached.insert(hash, parent)),
            BlockEvent::Removed { hash, .. } => drop(cached.remove(&hash)),
            _ => cached.clear(),
        }
    }
    assert!(cached.values().flatten().all(|parent| cached.contains_key(parent)));
}
";
