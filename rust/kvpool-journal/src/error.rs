//! The errors of a replay: the reasons why a journal cannot be replayed.

use crate::JournalError;
use kvpool::hash::HashError;
use kvpool::{ManagerError, PoolError};
use kvpool_vllm::VllmError;

/// The journal cannot be read, or contains an impossible record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The file cannot be read, or is not a journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The journal is a ring that has dropped its oldest frames.
    #[error(
        "the journal begins with operation {first}: the earlier operations are lost, so it can be shown, \
         but not replayed. Record to a file, or into a larger ring"
    )]
    NoBeginning {
        /// Number of the first operation that the journal still contains.
        first: u64,
    },
    /// The settings in the journal are invalid for a pool. The text is the reason.
    #[error("the journal's settings are refused: {0}")]
    Settings(String),
    /// The journal refers to a content that no record has introduced.
    #[error("the journal refers to a block {key:016x} that it has not named before")]
    UnknownContent {
        /// The first eight bytes of the content's digest.
        key: u64,
    },
    /// The journal refers to a slot that has no request.
    #[error("the journal names the request in slot {slot}, where there is none")]
    UnknownSlot {
        /// Number of the slot in the record.
        slot: u32,
    },
    /// The journal refers to an unknown hash algorithm.
    #[error("the journal names hash algorithm {number}, which this version of kvpool does not know")]
    UnknownAlgorithm {
        /// Number of the algorithm in the record.
        number: u8,
    },
    /// The number of tokens of a prompt does not match its number of blocks.
    #[error("the journal has a prompt of {tokens} tokens with another number of full blocks")]
    BadLength {
        /// Number of tokens of the prompt.
        tokens: usize,
    },
    /// The journal contains more than 2^32 distinct contents.
    #[error("the journal names more than 2^32 distinct blocks")]
    TooManyContents,
    /// A pool or a list does not fit in memory.
    #[error(
        "the journal needs {wanted} {what}, more than fit in the memory of this process: replay it \
         where there is more memory"
    )]
    NoMemory {
        /// Number of items for which memory was requested.
        wanted: usize,
        /// Name of the items that did not fit, such as blocks.
        what: &'static str,
    },
    /// A call has more tokens than any engine passes in one call.
    #[error("the journal has a call with {tokens} tokens: a replay makes up at most {limit} tokens per call")]
    TooManyTokens {
        /// Number of tokens that the recorded call has.
        tokens: usize,
        /// Largest number of tokens of a call that a replay accepts.
        limit: usize,
    },
    /// The journal has too many operations for an exported test.
    #[error(
        "the journal has {operations} operations, and a test has at most {limit}: bisect and \
         shrink it first, or raise the limit"
    )]
    TooLong {
        /// Number of operations in the journal.
        operations: u64,
        /// Largest number of operations that the caller allowed.
        limit: u64,
    },
    /// The language of the test cannot express an operation.
    #[error("operation {operation} has no call in Python: {reason}. Export it to Rust")]
    NoCall {
        /// Number of the operation in the journal.
        operation: u64,
        /// The reason.
        reason: &'static str,
    },
    /// The output of the test cannot be written.
    #[error("the test cannot be written: {0}")]
    Write(String),
    /// The hasher of the replay returned an error.
    #[error(transparent)]
    Hash(#[from] HashError),
    /// The caller's function `progress` stopped the replay.
    #[error("stopped")]
    Stopped,
}

/// Largest number of tokens per call in a replay (256 MiB). A record of a few bytes can contain any
/// number.
const MAX_TOKENS: usize = 1 << 26;

/// Returns a list of zeros for the tokens of a record, which may specify any number.
pub(crate) fn zeros(tokens: usize) -> Result<Vec<u32>, ReplayError> {
    if tokens > MAX_TOKENS {
        return Err(ReplayError::TooManyTokens { tokens, limit: MAX_TOKENS });
    }
    let mut items = Vec::new();
    let no_memory = |_| ReplayError::NoMemory { wanted: tokens, what: "tokens" };
    items.try_reserve_exact(tokens).map_err(no_memory)?;
    items.resize(tokens, 0);
    Ok(items)
}

impl From<PoolError> for ReplayError {
    fn from(error: PoolError) -> Self {
        Self::Settings(error.to_string())
    }
}

impl From<VllmError> for ReplayError {
    fn from(error: VllmError) -> Self {
        Self::Settings(error.to_string())
    }
}

impl From<ManagerError> for ReplayError {
    fn from(error: ManagerError) -> Self {
        Self::Settings(error.to_string())
    }
}

impl From<std::io::Error> for ReplayError {
    fn from(error: std::io::Error) -> Self {
        Self::Write(error.to_string())
    }
}
