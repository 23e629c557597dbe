//! Shortens text from callers in messages.

use std::borrow::Cow;

/// The largest number of characters of a caller's text that a message shows.
const SHOWN: usize = 64;

/// Returns the text if it is short, else its first 64 characters and its length. Without this, an error
/// could quote megabytes of text and fill a log.
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
