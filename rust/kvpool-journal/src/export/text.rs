//! Converts values to literals of Rust and Python. All written text is ASCII. Characters that a terminal
//! or a compiler could interpret are escaped.

use std::fmt::Write as _;

use crate::value::Value;

/// The language of an exported test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// A Rust file for the folder `tests/` of a crate that depends on `kvpool`, `kvpool-journal`,
    /// `kvpool-observe` and `kvpool-policies`, and for a journal of vLLM's pool also on `kvpool-vllm`.
    Rust,
    /// A Python file that pytest runs.
    Python,
}

/// Joins the arguments of a call with commas. Leaves out empty arguments.
pub(super) fn listed(texts: impl IntoIterator<Item = String>) -> String {
    texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ")
}

/// The largest number of columns of a literal, without its quotes. A line with such a literal, its
/// indentation and its brackets is not too long.
const LITERAL: usize = 80;

/// Returns a text as a Rust string literal. A long text is split into several literals inside
/// `concat!`.
pub(super) fn rust(text: &str) -> String {
    let literals = quoted(text, "\", \"", |letter| format!("\\u{{{:x}}}", u32::from(letter)));
    let is_one = literals.len() <= LITERAL + 2;
    if is_one { literals } else { format!("concat!({literals})") }
}

/// Returns a text as a Python string literal. A long text is split into several adjacent literals.
/// Escapes have a fixed length, so the character after an escape is never part of it.
pub(super) fn python(text: &str) -> String {
    quoted(text, "\" \"", |letter| match u32::from(letter) {
        number @ 0..0x100 => format!("\\x{number:02x}"),
        number @ 0..0x1_0000 => format!("\\u{number:04x}"),
        number => format!("\\U{number:08x}"),
    })
}

/// Returns a text as literals of at most [`LITERAL`] columns. `between` separates two literals, and
/// includes the quote that ends the first and the quote that starts the second.
fn quoted(text: &str, between: &str, escape: impl Fn(char) -> String) -> String {
    let mut literals = String::with_capacity(text.len() + 2);
    literals.push('"');
    let mut start = literals.len();
    for letter in text.chars() {
        let end = literals.len();
        match letter {
            '"' | '\\' => literals.extend(['\\', letter]),
            ' '..='~' => literals.push(letter),
            other => literals.push_str(&escape(other)),
        }
        if literals.len() - start > LITERAL {
            literals.insert_str(end, between);
            start = end + between.len();
        }
    }
    literals.push('"');
    literals
}

/// Returns the start of a text as the content of a comment. Escapes characters that are not printable.
pub(super) fn remark(text: &str) -> String {
    const LONGEST: usize = 160;
    let mut remark = String::new();
    for letter in text.chars().take(LONGEST) {
        match letter {
            ' '..='~' => remark.push(letter),
            other => drop(write!(remark, "{}", other.escape_unicode())),
        }
    }
    if text.chars().nth(LONGEST).is_some() {
        remark.push_str("...");
    }
    remark
}

/// Returns a number of seconds as an expression. The number may be infinite or NaN.
pub(super) fn seconds(seconds: f64, is_rust: bool) -> String {
    let (name, sign) = if seconds.is_nan() {
        ("nan", "")
    } else if seconds.is_infinite() {
        ("inf", if seconds < 0.0 { "-" } else { "" })
    } else {
        return format!("{seconds:?}");
    };
    match (is_rust, name) {
        (true, "nan") => "f64::NAN".into(),
        (true, _) => format!("{sign}f64::INFINITY"),
        (false, name) => format!("float(\"{sign}{name}\")"),
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn bytes(bytes: &[u8]) -> String {
    format!("bytes.fromhex(\"{}\")", hex(bytes))
}

/// Returns the item in the `Option` as Python source text, or `None` for no item.
pub(super) fn or_none<T: std::fmt::Display>(item: Option<T>) -> String {
    item.map_or_else(|| "None".into(), |item| item.to_string())
}

pub(super) fn value(answer: &Value) -> String {
    value_in(answer, false)
}

/// Like [`value`]. If `grouped`, each change of a block table includes the number of its KV-cache
/// group.
pub(super) fn value_in(answer: &Value, grouped: bool) -> String {
    match answer {
        Value::Nothing => "None".into(),
        Value::Flag(true) => "True".into(),
        Value::Flag(false) => "False".into(),
        Value::Number(number) => number.to_string(),
        Value::Text(text) => python(text),
        Value::Bytes(given) => bytes(given),
        Value::List(values) => {
            let texts: Vec<String> = values.iter().map(|one| value_in(one, grouped)).collect();
            format!("[{}]", texts.join(", "))
        }
        Value::Change(numbers, group) => {
            let group = grouped.then_some(u64::from(*group));
            let texts: Vec<String> = numbers.iter().copied().chain(group).map(|n| n.to_string()).collect();
            format!("[{}]", texts.join(", "))
        }
    }
}
