//! Literals of two languages. All written text is ASCII. Characters that a terminal or a compiler could
//! interpret are escaped.

use std::fmt::Write as _;

use crate::value::Value;

/// The language of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// For `tests/` of a crate that depends on `kvpool`, or on `kvpool` and `kvpool-vllm`.
    Rust,
    /// For pytest.
    Python,
}

/// Joins arguments, without empty ones.
pub(super) fn listed(texts: impl IntoIterator<Item = String>) -> String {
    texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(", ")
}

/// A text as a literal of Rust.
pub(super) fn rust(text: &str) -> String {
    quoted(text, |letter| format!("\\u{{{:x}}}", u32::from(letter)))
}

/// Returns a text as a literal of Python. Escapes have a fixed length, so none includes the character
/// after it.
pub(super) fn python(text: &str) -> String {
    quoted(text, |letter| match u32::from(letter) {
        number @ 0..0x100 => format!("\\x{number:02x}"),
        number @ 0..0x1_0000 => format!("\\u{number:04x}"),
        number => format!("\\U{number:08x}"),
    })
}

fn quoted(text: &str, escape: impl Fn(char) -> String) -> String {
    let mut literal = String::with_capacity(text.len() + 2);
    literal.push('"');
    for letter in text.chars() {
        match letter {
            '"' | '\\' => literal.extend(['\\', letter]),
            ' '..='~' => literal.push(letter),
            other => literal.push_str(&escape(other)),
        }
    }
    literal.push('"');
    literal
}

/// The start of a text as a comment.
pub(super) fn remark(text: &str) -> String {
    const LONGEST: usize = 160;
    let mut remark = String::new();
    for letter in text.chars().take(LONGEST) {
        match letter {
            ' '..='~' => remark.push(letter),
            other => drop(write!(remark, "{}", other.escape_unicode())),
        }
    }
    remark
}

/// Returns a number of seconds, also one that is not a number.
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

/// Bytes, each as two digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes as a literal of Python.
pub(super) fn bytes(bytes: &[u8]) -> String {
    format!("bytes.fromhex(\"{}\")", hex(bytes))
}

/// An item, or `None`, in Python.
pub(super) fn or_none<T: std::fmt::Display>(item: Option<T>) -> String {
    item.map_or_else(|| "None".into(), |item| item.to_string())
}

/// A value as a literal of Python.
pub(super) fn value(answer: &Value) -> String {
    value_in(answer, false)
}

/// Like [`value`]. Changes of tables include their group if `grouped`.
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
