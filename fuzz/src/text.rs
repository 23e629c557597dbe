//! Writes values as Rust expressions, for the tests that are made from cases.

/// Returns a list as Rust source text. An empty list has an explicit type.
pub(crate) fn list(values: &[usize]) -> String {
    if values.is_empty() { "Vec::<usize>::new()".into() } else { format!("{values:?}") }
}

/// Returns an optional list as Rust source text.
pub(crate) fn option(values: Option<&Vec<usize>>) -> String {
    values.map_or_else(|| "None".into(), |values| format!("Some(vec!{values:?})"))
}

/// Returns, as Rust source text, an assertion that a call succeeds, or that it is refused.
pub(crate) fn outcome(call: &str, fine: bool) -> String {
    format!("assert!({call}.{}());", if fine { "is_ok" } else { "is_err" })
}
