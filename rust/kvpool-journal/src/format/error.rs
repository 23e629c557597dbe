//! Errors of journals and of their files.

/// A journal that cannot be kept or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A setting is outside of its range.
    #[error("{field} is {value}: must be {expected}")]
    InvalidConfig {
        /// Name of the setting.
        field: &'static str,
        /// Value of the setting.
        value: usize,
        /// The allowed values.
        expected: String,
    },
    /// The file exists already.
    #[error("{path} exists: a journal overwrites nothing. Remove it, or give another path")]
    Exists {
        /// Path of the file.
        path: String,
    },
    /// The operating system returned an error.
    #[error("{0}")]
    Io(String),
    /// The bytes are not those of a journal.
    #[error("not a journal: it begins with {found:02x?} instead of {expected:02x?}")]
    NotAJournal {
        /// The first bytes.
        found: Vec<u8>,
        /// The first bytes of a journal.
        expected: [u8; 8],
    },
    /// This version of the crate does not read the version of the format.
    #[error("the journal has format version {found:?}: this version of kvpool reads {expected}")]
    Version {
        /// Version digits of the journal.
        found: String,
        /// Version digits that can be read.
        expected: String,
    },
    /// The first frame is damaged or missing, so the others are useless.
    #[error("the journal's header is damaged or cut off: nothing of it can be replayed")]
    NoHeader,
    /// A record cannot be read although its frame is complete.
    #[error("the record at operation {operation} cannot be read: {reason}")]
    BadRecord {
        /// Number of the operation.
        operation: u64,
        /// The reason.
        reason: String,
    },
    /// The frames are not consecutive: operations are written twice, or are missing.
    #[error(
        "the frame at byte {at} begins with operation {found}, and operation {expected} comes next: {}. \
         The first {at} bytes are a journal up to there", if found < expected {
            "operations are repeated, as if two processes had written to one file"
        } else {
            "operations are missing"
        }
    )]
    OutOfOrder {
        /// Position of the frame in bytes.
        at: usize,
        /// Number of the first operation in the frame.
        found: u64,
        /// Number of the operation that should be next.
        expected: u64,
    },
    /// The header names an eviction policy that only earlier versions had.
    #[error(
        "the journal was made with {field} {policy:?}, which kvpool no longer has: it has {known}. \
         Record a new journal with {instead}, or replay this one with the version that wrote it"
    )]
    RemovedPolicy {
        /// Name of the setting.
        field: &'static str,
        /// Name of the policy in the journal.
        policy: String,
        /// The policies that this reader knows.
        known: String,
        /// The policy with the most similar order of eviction.
        instead: &'static str,
    },
    /// This version of the crate does not know a setting in the header.
    #[error("the journal was made with {field} {value:?}, which this version of kvpool does not know")]
    UnknownSetting {
        /// Name of the setting.
        field: &'static str,
        /// Value of the setting.
        value: String,
    },
}
