//! Decodes JSON records, and builds errors that describe what is wrong with an invalid record.
//!
//! A valid record is decoded directly into its struct. Only if that fails, the record is parsed again
//! as a JSON value, and its [`Field`]s are checked one by one, to build an exact error. So the quality
//! of the messages has no cost for valid records.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, Visitor},
};
use serde_json::{Map, Value};

use super::{Assumed, scan::Scanner};
use crate::error::TraceError;

pub(crate) const WHOLE_U32: &str = "a whole number from 0 to 4294967295";
pub(crate) const WHOLE_U64: &str = "a whole number from 0 to 18446744073709551615";
pub(crate) const POSITIVE_U32: &str = "a whole number from 1 to 4294967295";
pub(crate) const MILLISECONDS: &str = "ms, 0 or more";
pub(crate) const SECONDS: &str = "s, 0 or more";
pub(crate) const NAME: &str = "a string or a whole number";

/// A field of a record: its name, whether it is required, and the check of its value.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) needed: bool,
    pub(crate) check: fn(&Value, String, u64) -> Option<TraceError>,
}

impl Field {
    pub(crate) const fn needed(
        name: &'static str,
        check: fn(&Value, String, u64) -> Option<TraceError>,
    ) -> Self {
        Self { name, needed: true, check }
    }

    pub(crate) const fn optional(
        name: &'static str,
        check: fn(&Value, String, u64) -> Option<TraceError>,
    ) -> Self {
        Self { name, needed: false, check }
    }
}

/// Decodes one record into its struct. The record must be an object.
pub(crate) fn decode<'a, T: Deserialize<'a>>(
    text: &'a [u8],
    line: u64,
    assumed: Assumed,
    fields: &'static [Field],
) -> Result<T, TraceError> {
    // `serde_json` also decodes a struct from an array of its fields, but a record must be an object.
    if text.first() != Some(&b'{') {
        return Err(diagnose(text, line, assumed, fields, None));
    }
    serde_json::from_slice(text).map_err(|error| diagnose(text, line, assumed, fields, Some(&error)))
}

/// Builds the error for a record that could not be decoded, or that lacks a required field.
#[cold]
pub(crate) fn diagnose(
    text: &[u8],
    line: u64,
    assumed: Assumed,
    fields: &'static [Field],
    decoding: Option<&serde_json::Error>,
) -> TraceError {
    let value = match serde_json::from_slice::<Value>(text) {
        Ok(value) => value,
        Err(error) => return not_json(line, &error),
    };
    let problem = match &value {
        Value::Object(object) => check_fields(object, "", line, fields),
        _ => Some(TraceError::NotAnObject { line, found: kind(&value), needed: names(fields) }),
    };
    match problem {
        Some(problem @ (TraceError::MissingField { .. } | TraceError::NotAnObject { .. })) => {
            mixed(text, line, assumed).unwrap_or(problem)
        }
        Some(problem) => problem,
        // All fields are valid. So decoding failed because a field occurs twice. Decoding a struct refuses
        // this, while parsing a JSON value keeps the last of them.
        None => decoding.map_or_else(
            || TraceError::NotJson { line, column: 0, reason: "not a record".to_owned() },
            |error| not_json(line, error),
        ),
    }
}

/// Returns an error if the record looks like a record of another format than the first one.
pub(crate) fn mixed(text: &[u8], line: u64, assumed: Assumed) -> Option<TraceError> {
    let mut scanner = Scanner::default();
    scanner.feed(text);
    if scanner.is_array() {
        // Report no array. Records of some formats are arrays, so any array would look like a record of
        // those formats.
        return None;
    }
    let found = super::TraceFormat::detect(&scanner);
    // Detection returns Mooncake if no other format matches. Require Mooncake's own fields as well,
    // before the error names this format.
    let looks =
        found != super::TraceFormat::Mooncake || (scanner.has("timestamp") && scanner.has("hash_ids"));
    (found != assumed.format && looks && assumed.detected).then_some(TraceError::MixedFormats {
        line,
        found,
        assumed: assumed.format,
    })
}

/// Returns the first problem with the fields of an object. `path` is the prefix of the field names in
/// the error.
pub(crate) fn check_fields(
    object: &Map<String, Value>,
    path: &str,
    line: u64,
    fields: &'static [Field],
) -> Option<TraceError> {
    fields.iter().find_map(|field| match object.get(field.name) {
        None if field.needed => Some(TraceError::MissingField {
            line,
            field: format!("{path}{}", field.name),
            needed: names(fields),
        }),
        None => None,
        Some(Value::Null) if !field.needed => None,
        Some(value) => (field.check)(value, format!("{path}{}", field.name), line),
    })
}

fn names(fields: &[Field]) -> String {
    let needed: Vec<_> = fields.iter().filter(|field| field.needed).map(|field| field.name).collect();
    needed.join(", ")
}

pub(crate) fn not_json(line: u64, error: &serde_json::Error) -> TraceError {
    // Remove the line number at the end of the parser's message, because it counts from the first line
    // of the record.
    let reason = error.to_string();
    let reason = reason.split_once(" at line ").map_or(reason.as_str(), |(before, _)| before);
    let line = line + (error.line() as u64).saturating_sub(1);
    TraceError::NotJson { line, column: error.column(), reason: shorten(reason) }
}

pub(crate) fn check_ms(value: &Value, field: String, line: u64) -> Option<TraceError> {
    check_time(value, field, line, MILLISECONDS)
}

pub(crate) fn check_seconds(value: &Value, field: String, line: u64) -> Option<TraceError> {
    check_time(value, field, line, SECONDS)
}

fn check_time(value: &Value, field: String, line: u64, allowed: &'static str) -> Option<TraceError> {
    match value.as_f64() {
        Some(time) if time.is_finite() && time >= 0.0 => None,
        _ => Some(bad_value(value, field, line, allowed)),
    }
}

pub(crate) fn check_u32(value: &Value, field: String, line: u64) -> Option<TraceError> {
    let fits = value.as_u64().is_some_and(|number| u32::try_from(number).is_ok());
    (!fits).then(|| bad_value(value, field, line, WHOLE_U32))
}

pub(crate) fn check_size(value: &Value, field: String, line: u64) -> Option<TraceError> {
    let fits = value.as_u64().is_some_and(|number| number > 0 && u32::try_from(number).is_ok());
    (!fits).then(|| bad_value(value, field, line, POSITIVE_U32))
}

pub(crate) fn check_ids(value: &Value, field: String, line: u64) -> Option<TraceError> {
    let Value::Array(ids) = value else {
        let allowed = "an array of whole numbers, one per block";
        return Some(TraceError::WrongType { line, field, found: kind(value), allowed });
    };
    let (position, id) = ids.iter().enumerate().find(|(_, id)| id.as_u64().is_none())?;
    Some(bad_value(id, format!("{field}[{position}]"), line, WHOLE_U64))
}

pub(crate) fn check_name(value: &Value, field: String, line: u64) -> Option<TraceError> {
    let fits = value.is_string() || value.is_i64() || value.is_u64();
    (!fits).then(|| bad_value(value, field, line, NAME))
}

pub(crate) fn check_string(value: &Value, field: String, line: u64) -> Option<TraceError> {
    (!value.is_string()).then(|| bad_value(value, field, line, "a string"))
}

pub(crate) fn check_whole(value: &Value, field: String, line: u64) -> Option<TraceError> {
    value.as_i64().is_none().then(|| bad_value(value, field, line, "a whole number"))
}

/// Returns the error for a value that is not a number, or that is out of range.
pub(crate) fn bad_value(value: &Value, field: String, line: u64, allowed: &'static str) -> TraceError {
    match value {
        Value::Number(number) => {
            TraceError::BadNumber { line, field, value: shorten(&number.to_string()), allowed }
        }
        _ => TraceError::WrongType { line, field, found: kind(value), allowed },
    }
}

/// Describes the type of a JSON value.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The maximum number of characters of a value that an error quotes.
const MOST_QUOTED: usize = 80;

/// Formats a value for an error: its first 80 characters, with `...` if there are more. Control
/// characters, which would affect a terminal, are escaped as in Rust.
pub(crate) fn shorten(text: &str) -> String {
    let mut letters = text.chars();
    let mut quoted = String::new();
    for letter in letters.by_ref().take(MOST_QUOTED) {
        if letter.is_control() {
            quoted.extend(letter.escape_default());
        } else {
            quoted.push(letter);
        }
    }
    if letters.next().is_some() {
        quoted.push_str("...");
    }
    quoted
}

/// Converts seconds to ms, rounded to the microsecond, so that 61.114 s are exactly 61114 ms.
pub(crate) fn ms_of(seconds: f64, field: &str, line: u64) -> Result<f64, TraceError> {
    let ms = (seconds * 1e6).round() / 1e3;
    if ms.is_finite() && ms >= 0.0 {
        return Ok(ms);
    }
    Err(TraceError::BadNumber {
        line,
        field: field.to_owned(),
        value: shorten(&seconds.to_string()),
        allowed: SECONDS,
    })
}

/// A name in a record. It is a JSON string, or a number, which is converted to decimal text.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name(pub(crate) Box<str>);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(NAME)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Name, E> {
                Ok(Name(text.into()))
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Name, E> {
                Ok(Name(number.to_string().into()))
            }

            fn visit_i64<E: Error>(self, number: i64) -> Result<Name, E> {
                Ok(Name(number.to_string().into()))
            }
        }
        deserializer.deserialize_any(Text)
    }
}
