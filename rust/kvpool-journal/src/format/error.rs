//! What a journal cannot be, and what a file is not.

/// A journal that cannot be kept or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// A setting outside its range.
    #[error("{field} is {value}: must be {expected}")]
    InvalidConfig {
        /// The name of the setting.
        field: &'static str,
        /// Its value.
        value: usize,
        /// What is allowed.
        expected: String,
    },
    /// A file that is there already.
    #[error("{path} exists: a journal overwrites nothing. Remove it, or give another path")]
    Exists {
        /// The file.
        path: String,
    },
    /// The operating system refused.
    #[error("{0}")]
    Io(String),
    /// Other bytes than a journal's.
    #[error("not a journal: it begins with {found:02x?} instead of {expected:02x?}")]
    NotAJournal {
        /// The first bytes.
        found: Vec<u8>,
        /// What a journal begins with.
        expected: [u8; 8],
    },
    /// A version of the format that this version of the crate does not read.
    #[error("the journal has format version {found:?}: this version of kvpool reads {expected}")]
    Version {
        /// The digits of the journal.
        found: String,
        /// The digits that can be read.
        expected: String,
    },
    /// The first frame is damaged or missing: nothing can be made of the rest.
    #[error("the journal's header is damaged or cut off: nothing of it can be replayed")]
    NoHeader,
    /// A record that cannot be read although its frame is whole.
    #[error("the record at operation {operation} cannot be read: {reason}")]
    BadRecord {
        /// The number of the operation.
        operation: u64,
        /// Why.
        reason: String,
    },
    /// Frames that do not follow each other: operations that are written twice, or not at all.
    #[error(
        "the frame at byte {at} begins with operation {found}, and operation {expected} comes next: {}. \
         The first {at} bytes are a journal up to there", if found < expected {
            "operations are repeated, as if two processes had written to one file"
        } else {
            "operations are missing"
        }
    )]
    OutOfOrder {
        /// Where the frame begins.
        at: usize,
        /// The operation that it begins with.
        found: u64,
        /// The operation behind those before it.
        expected: u64,
    },
    /// An eviction policy in the header that earlier versions had.
    #[error(
        "the journal was made with {field} {policy:?}, which kvpool no longer has: it has {known}. \
         Record a new journal with {instead}, or replay this one with the version that wrote it"
    )]
    RemovedPolicy {
        /// The setting.
        field: &'static str,
        /// The policy of the journal.
        policy: String,
        /// The policies that the reader knows.
        known: String,
        /// The policy that evicts most alike.
        instead: &'static str,
    },
    /// A setting in the header that this version of the crate does not know.
    #[error("the journal was made with {field} {value:?}, which this version of kvpool does not know")]
    UnknownSetting {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: String,
    },
}
