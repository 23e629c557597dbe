//! Writes the lines of an exported test. No line has more than [`COLUMNS`] columns.
//!
//! All text is ASCII, so a byte is a column.

use std::io::{Result, Write};

/// The largest number of columns of a line of an exported test.
pub(super) const COLUMNS: usize = 110;

/// Writes a line of code. A line that is too long continues on lines with four more columns of indent.
///
/// Breaks are after a comma, after an opening bracket, or between two adjacent literals. They are legal in
/// both languages, because in Python commas and adjacent literals occur only inside brackets.
pub(super) fn code(out: &mut dyn Write, line: &str) -> Result<()> {
    let indent = line.len() - line.trim_start().len();
    let mut depth = 0;
    broken(out, line, &" ".repeat(indent + 4), |rest, room| {
        let (new_depth, end) = outermost_break(rest, room, depth)?;
        depth = new_depth;
        Some(end)
    })
}

/// Writes a line that is a comment. A comment that is too long is broken between words, or inside a word
/// that is longer than a line. `next` is the beginning of the following lines.
pub(super) fn comment(out: &mut dyn Write, line: &str, next: &str) -> Result<()> {
    broken(out, line, next, |rest, room| rest[..=room].rfind(' ').or(Some(room)))
}

/// Writes a text as several lines. `cut` receives the remaining text and the number of columns that fit
/// into the next line, and returns where to break. If it finds no break, the remaining text becomes one
/// line.
fn broken(
    out: &mut dyn Write,
    line: &str,
    next: &str,
    mut cut: impl FnMut(&str, usize) -> Option<usize>,
) -> Result<()> {
    let (mut rest, mut room) = (line, COLUMNS);
    while rest.len() > room {
        let Some(end) = cut(rest, room) else { break };
        write!(out, "{}\n{next}", &rest[..end])?;
        rest = rest[end..].trim_start();
        room = COLUMNS - next.len();
    }
    writeln!(out, "{}", rest.trim_end())
}

/// Finds a position for a line break in the first `room` columns of the code `rest`. Its first column
/// is inside `depth` nested brackets.
///
/// Returns the number of brackets around the position, and its column. Prefers the position inside the
/// fewest brackets, and among equal ones the last. Breaks after an opening bracket only if no other
/// position is legal.
fn outermost_break(rest: &str, room: usize, depth: usize) -> Option<(usize, usize)> {
    let is_break = |at: usize| {
        let before = &rest[..at];
        before.ends_with(',') || (before.ends_with('"') && rest[at + 1..].starts_with('"'))
    };
    let (mut depth, mut in_literal, mut is_escaped) = (depth, false, false);
    let (mut best, mut after_bracket): (Option<(usize, usize)>, _) = (None, None);
    for (at, letter) in rest.bytes().enumerate().take(room + 1) {
        match letter {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => in_literal = !in_literal,
            _ if in_literal => {}
            b'(' | b'[' | b'{' => {
                depth += 1;
                if after_bracket.is_none() && at < room {
                    after_bracket = Some((depth, at + 1));
                }
            }
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            b' ' if is_break(at) && best.is_none_or(|(least, _)| depth <= least) => best = Some((depth, at)),
            _ => {}
        }
    }
    best.or(after_bracket)
}
