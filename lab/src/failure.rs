//! Failures of runs.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Debug};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// A failure of a run. Two failures have the same cause if their kinds are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The name of the comparison or invariant that failed, or the source position of the panic.
    pub kind: String,
    /// The values that differ, or the message of the panic.
    pub what: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.what)
    }
}

impl Failure {
    /// Creates a failure from its kind and from a text with the values.
    pub fn new(kind: impl Into<String>, what: impl Into<String>) -> Self {
        Self { kind: kind.into(), what: what.into() }
    }
}

impl From<kvpool::InvariantViolation> for Failure {
    fn from(violation: kvpool::InvariantViolation) -> Self {
        let text = violation.to_string();
        let (kind, what) = text.split_once(" is broken: ").unwrap_or((&text, ""));
        Self::new(kind, what)
    }
}

/// Checks that both values are equal.
///
/// # Errors
/// A failure with the kind `kind` and both values, if they differ.
pub fn same<T: PartialEq + Debug>(kind: &str, found: &T, expected: &T) -> Result<(), Failure> {
    if found == expected {
        return Ok(());
    }
    Err(Failure::new(kind, format!("found {found:?}, expected {expected:?}")))
}

/// Checks that a condition, the argument `holds`, is true.
///
/// # Errors
/// A failure with the kind `kind`, if the condition is false.
pub fn holds(kind: &str, holds: bool, what: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::new(kind, what())) }
}

thread_local! {
    static GUARDED: Cell<bool> = const { Cell::new(false) };
    static PANICKED: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

/// Runs a function. Converts a panic to a failure. The kind of that failure is the source position of
/// the panic.
///
/// # Errors
/// The failure of `call`, or its panic.
pub fn guarded<T>(call: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !GUARDED.get() {
                before(panic);
                return;
            }
            let place =
                panic.location().map_or_else(String::new, |at| format!("{}:{}", at.file(), at.line()));
            let payload = panic.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
            PANICKED.set(Some(Failure::new(format!("panic at {place}"), text)));
        }));
    });
    let outer = GUARDED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    GUARDED.set(outer);
    result.unwrap_or_else(|_| Err(PANICKED.take().unwrap_or_else(|| Failure::new("panic", "no message"))))
}
