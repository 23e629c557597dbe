//! The methods of the Python package that make the calls of a journal.

use std::borrow::Cow;

use crate::Kind;

/// Returns the method that makes a call in Python, and its arguments.
///
/// `name` and `arguments` are those of the call in the tables. Python has one name for an action on one
/// request and on a batch, and the calls that a step does not need are in facets.
pub(super) fn call<'a>(kind: Kind, name: &'a str, arguments: &'a str) -> (&'a str, Cow<'a, str>) {
    let plain = Cow::Borrowed(arguments);
    match (kind, name) {
        (Kind::VllmPool, _) => (stem(name), plain),
        (Kind::Pool, "release_table") => ("release", with(arguments, "tail_first=True")),
        (Kind::Pool, "release_after") => ("release", last_named(arguments, "after_step")),
        (Kind::Pool, "acquire_match" | "acquire_registered") => ("acquire", plain),
        (Kind::Pool, "assign_tenant") => ("retention.assign_tenant", plain),
        (Kind::Manager, "commit_step") => ("commit", plain),
        (Kind::Manager, "commit_batch") => ("commit", plain),
        (Kind::Manager, "truncate_batch") => ("truncate", plain),
        (Kind::Manager, "fork_batch") => ("fork", plain),
        (Kind::Manager, "release_batch" | "release_batch_with") => ("release", plain),
        (Kind::Manager, "append_tokens") => ("append", plain),
        (Kind::Manager, "extend_encoder") => ("extend", with(arguments, "encoder=True")),
        (Kind::Manager, "begin_swap_out") => ("swaps.begin_out", plain),
        (Kind::Manager, "begin_swap_in") => ("swaps.begin_in", plain),
        (Kind::Manager, "complete_swap") => ("swaps.complete", plain),
        (Kind::Manager, "abort_swap") => ("swaps.abort", plain),
        (Kind::Manager, "set_tenant") => ("retention.set_tenant", plain),
        (Kind::Manager, "end_session") => ("retention.end_session", plain),
        (_, "retain" | "retain_prefix") => ("retention.retain", plain),
        (_, "advance_time") => ("clock.advance", plain),
        _ => (stem(name), plain),
    }
}

/// The name of a call without the ending that a Rust method has for more arguments.
fn stem(name: &str) -> &str {
    ["_with", "_for", "_until", "_refreshing"].iter().fold(name, |name, ending| name.trim_end_matches(ending))
}

/// Adds an argument.
fn with<'a>(arguments: &str, more: &str) -> Cow<'a, str> {
    Cow::Owned(format!("{arguments}, {more}"))
}

/// Gives the last argument a name.
fn last_named<'a>(arguments: &'a str, name: &str) -> Cow<'a, str> {
    match arguments.rsplit_once(", ") {
        Some((before, last)) => Cow::Owned(format!("{before}, {name}={last}")),
        None => Cow::Borrowed(arguments),
    }
}
