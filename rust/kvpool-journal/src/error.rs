//! Why a journal cannot be replayed.

use crate::JournalError;
use kvpool::hash::HashError;
use kvpool::{ManagerError, PoolError};
use kvpool_vllm::VllmError;

/// A journal that cannot be read, or that says what cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The file.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A ring that has dropped its oldest frames.
    #[error(
        "the journal begins with operation {first}: what led there is gone, so it can be shown and not replayed. \
         Record to a file, or into a larger ring"
    )]
    NoBeginning {
        /// The first operation that it holds.
        first: u64,
    },
    /// Settings that no pool has.
    #[error("the journal's settings are refused: {0}")]
    Settings(String),
    /// A content that was not recorded.
    #[error("the journal refers to a block {key:016x} that it has not named before")]
    UnknownContent {
        /// The first eight bytes of its digest.
        key: u64,
    },
    /// A slot without a request.
    #[error("the journal names the request in slot {slot}, where there is none")]
    UnknownSlot {
        /// The slot.
        slot: u32,
    },
    /// A number that stands for no algorithm.
    #[error("the journal names hash algorithm {number}, which this version of kvpool does not know")]
    UnknownAlgorithm {
        /// The number.
        number: u8,
    },
    /// Tokens and blocks of a prompt that do not fit each other.
    #[error("the journal has a prompt of {tokens} tokens with another number of full blocks")]
    BadLength {
        /// Its tokens.
        tokens: usize,
    },
    /// More than 2^32 distinct blocks.
    #[error("the journal names more than 2^32 distinct blocks")]
    TooManyContents,
    /// A pool that does not fit in memory, or a list that does not.
    #[error(
        "the journal asks for {wanted} {what}, more than this process can have: replay it where there is more memory"
    )]
    NoMemory {
        /// How many.
        wanted: usize,
        /// Of what.
        what: &'static str,
    },
    /// A call with more tokens than any engine makes at once.
    #[error("the journal has a call with {tokens} tokens: a replay spells at most {limit} at once")]
    TooManyTokens {
        /// Its tokens.
        tokens: usize,
        /// The limit.
        limit: usize,
    },
    /// A journal that is too long to be a test.
    #[error(
        "the journal has {operations} operations, and a test has at most {limit}: bisect and shrink it first, or raise the limit"
    )]
    TooLong {
        /// Its operations.
        operations: u64,
        /// The limit.
        limit: u64,
    },
    /// An operation that a language has no call for.
    #[error("operation {operation} has no call in Python: {reason}. Export it to Rust")]
    NoCall {
        /// The operation.
        operation: u64,
        /// Why.
        reason: &'static str,
    },
    /// What a test is written to refused it.
    #[error("the test cannot be written: {0}")]
    Write(String),
    /// The hasher refused.
    #[error(transparent)]
    Hash(#[from] HashError),
    /// The caller stopped it.
    #[error("stopped")]
    Stopped,
}

/// The most tokens of one call in a replay: 256 MiB. A record names a number of tokens in a few bytes.
const MAX_TOKENS: usize = 1 << 26;

/// Tokens that a record asks for: a record may contain any number.
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
