//! The errors of sizing.

use std::fmt::Display;

use thiserror::Error;

/// The reason why the hits of a trace could not be computed.
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
        /// The value of the setting.
        value: String,
        /// The allowed values.
        allowed: &'static str,
    },
    /// There are more items than the 32-bit numbers of the reference table can count.
    #[error("{value} {what}; at most {limit} can be sized exactly, more by sampling the stream")]
    TooMany {
        /// The kind of item: `requests` or `block references`.
        what: &'static str,
        /// The number of items of this kind in the trace.
        value: usize,
        /// The maximum.
        limit: usize,
    },
    /// An id follows two different ids, or occurs twice in a request. Then ids do not identify
    /// prefixes, and no result of this module would be meaningful. This error occurs only for traces
    /// that were read without the check of prefixes.
    #[error(
        "request {request}: id {id} at hash_ids[{position}] has another parent than before; read the \
         trace with the check of prefixes to see where"
    )]
    BrokenPrefix {
        /// The number of the request, from 1.
        request: usize,
        /// The id.
        id: u64,
        /// The position of the id, from 0.
        position: usize,
    },
}

pub(super) fn setting(name: &'static str, value: impl Display + Copy, allowed: &'static str) -> SizingError {
    SizingError::Setting { name, value: value.to_string(), allowed }
}

pub(super) fn too_many(capacity_blocks: usize) -> SizingError {
    setting(
        "capacity_blocks",
        capacity_blocks,
        "fewer than 2^32 - 3, and few enough for the policy's arrays to fit in memory",
    )
}
