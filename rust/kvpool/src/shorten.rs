//! Text of somebody else's in a message.

use std::borrow::Cow;

/// Characters that are shown.
const SHOWN: usize = 64;

/// The text, or its first 64 characters and how many it has: an error that quotes ten megabytes helps
/// nobody, and fills a log.
///
/// ```
/// assert_eq!(kvpool::shorten("chat-17"), "chat-17");
/// assert_eq!(kvpool::shorten(&"x".repeat(1000)), format!("{}... (1000 characters)", "x".repeat(64)));
/// ```
#[must_use]
pub fn shorten(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(SHOWN) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}... ({} characters)", &text[..end], text.chars().count())),
    }
}
