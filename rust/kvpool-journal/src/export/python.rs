//! Maps each recorded call to the method of the Python package that makes it.

use std::borrow::Cow;

use crate::Kind;

/// Returns the method that makes a call in Python, and its arguments.
///
/// `name` and `arguments` are those that the table of calls declares. A Python method accepts one
/// request or a batch, so it has one name for both. Methods that a scheduler does not need in every
/// step are methods of an attribute of the manager, such as `retention`.
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

/// Returns the name of a call without a suffix such as `_with`. A Rust method with such a suffix has
/// more arguments.
fn stem(name: &str) -> &str {
    ["_with", "_for", "_until", "_refreshing"].iter().fold(name, |name, ending| name.trim_end_matches(ending))
}

/// Appends an argument.
fn with<'a>(arguments: &str, more: &str) -> Cow<'a, str> {
    Cow::Owned(format!("{arguments}, {more}"))
}

/// Turns the last argument into a keyword argument with this name.
fn last_named<'a>(arguments: &'a str, name: &str) -> Cow<'a, str> {
    match arguments.rsplit_once(", ") {
        Some((before, last)) => Cow::Owned(format!("{before}, {name}={last}")),
        None => Cow::Borrowed(arguments),
    }
}
