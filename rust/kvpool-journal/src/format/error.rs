//! Errors of writing and reading journals and their files.

/// The reason why a journal cannot be written or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A setting of the journal is out of range.
    #[error("{field} is {value}: must be {expected}")]
    InvalidConfig {
        /// Name of the setting.
        field: &'static str,
        /// Value of the setting.
        value: usize,
        /// The allowed values.
        expected: String,
    },
    /// The file already exists, and is not overwritten.
    #[error("{path} exists: a journal overwrites nothing. Remove it, or give another path")]
    Exists {
        /// Path of the existing file.
        path: String,
    },
    /// The operating system returned an error.
    #[error("{0}")]
    Io(String),
    /// The bytes do not begin with the magic number of journals.
    #[error("not a journal: it begins with {found:02x?} instead of {expected:02x?}")]
    NotAJournal {
        /// The first bytes of the input.
        found: Vec<u8>,
        /// The first bytes that a journal has.
        expected: [u8; 8],
    },
    /// This crate cannot read this version of the format.
    #[error("the journal has format version {found:?}: this version of kvpool reads {expected}")]
    Version {
        /// Version digits that the journal has.
        found: String,
        /// Version digits that this crate can read.
        expected: String,
    },
    /// The first frame is damaged or missing, so the other frames cannot be used.
    #[error("the journal's header is damaged or cut off: nothing of it can be replayed")]
    NoHeader,
    /// A record cannot be read although its frame is complete.
    #[error("the record at operation {operation} cannot be read: {reason}")]
    BadRecord {
        /// Number of the operation whose record cannot be read.
        operation: u64,
        /// The reason.
        reason: String,
    },
    /// The numbers of the operations are not consecutive from one frame to the next, so some operations
    /// occur twice or are missing.
    #[error(
        "the frame at byte {at} begins with operation {found}, and operation {expected} comes next: {}. \
         The first {at} bytes are a journal up to there", if found < expected {
            "operations are repeated, as if two processes had written to one file"
        } else {
            "operations are missing"
        }
    )]
    OutOfOrder {
        /// Position of the frame in the journal, in bytes.
        at: usize,
        /// Number of the first operation in the frame.
        found: u64,
        /// Number of the first operation that the frame should have.
        expected: u64,
    },
    /// The header contains an eviction policy that only earlier versions had.
    #[error(
        "the journal was made with {field} {policy:?}, which kvpool no longer has: it has {known}. \
         Record a new journal with {instead}, or replay this one with the version that wrote it"
    )]
    RemovedPolicy {
        /// Name of the setting that contains the policy.
        field: &'static str,
        /// Name of the policy in the journal.
        policy: String,
        /// Names of the policies that this reader knows.
        known: String,
        /// Name of the policy with the most similar order of eviction.
        instead: &'static str,
    },
    /// The header contains a setting that this version of the crate does not know.
    #[error("the journal was made with {field} {value:?}, which this version of kvpool does not know")]
    UnknownSetting {
        /// Name of the unknown setting.
        field: &'static str,
        /// Value of the unknown setting.
        value: String,
    },
}
