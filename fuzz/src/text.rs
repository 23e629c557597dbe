//! Rust expressions of values, for the tests that are written of cases.

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
