//! The errors of sizing: what was asked, and what is allowed.

use std::fmt::Display;

use thiserror::Error;

/// Why a trace could not be sized.
///
/// ```
/// use kvpool_replay::sizing::{KvBytes, SizingError};
///
/// let error = KvBytes::attention(32, 0, 128, 2).unwrap_err();
/// assert_eq!(error.to_string(), "kv_heads is 0; allowed: 1 or more");
/// assert!(matches!(error, SizingError::Setting { name: "kv_heads", .. }));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SizingError {
    /// A setting is out of range.
    #[error("{name} is {value}; allowed: {allowed}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// What it was.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// More than the 32-bit numbers of the reference table can count.
    #[error("{value} {what}; at most {limit} can be sized exactly, more by sampling the stream")]
    TooMany {
        /// What is counted: `requests` or `block references`.
        what: &'static str,
        /// How many there are.
        value: usize,
        /// How many there may be.
        limit: usize,
    },
    /// An id follows two different ids, or stands twice in a request: prefixes are then no chains, and
    /// no figure of this module would mean anything. Only traces read without the check of prefixes
    /// come here.
    #[error(
        "request {request}: id {id} at hash_ids[{position}] has another parent than before; read the trace with the check of prefixes to see where"
    )]
    BrokenPrefix {
        /// Number of the request, from 1.
        request: usize,
        /// The id.
        id: u64,
        /// Where it stands, from 0.
        position: usize,
    },
}

/// The error for a setting.
pub(super) fn setting(name: &'static str, value: impl Display + Copy, allowed: &'static str) -> SizingError {
    SizingError::Setting { name, value: value.to_string(), allowed }
}

/// The error for a capacity.
pub(super) fn too_many(capacity_blocks: usize) -> SizingError {
    setting(
        "capacity_blocks",
        capacity_blocks,
        "fewer than 2^32 - 3, and few enough for the policy's arrays to fit in memory",
    )
}
