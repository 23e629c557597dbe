//! Defines the errors of a manager.

use super::id::{RequestId, RequestState};
use crate::hash::{HashCursor, HashError};
use crate::tiers::TierError;
use crate::{PoolError, Refusal};

pub(super) type Result<T, E = ManagerError> = std::result::Result<T, E>;

/// The reason why a manager refused a call. A refused call changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the error message explains each field")]
pub enum ManagerError {
    /// The tiers refused the operation. The field is the reason.
    #[error(transparent)]
    Tier(TierError),
    /// A truncation would keep more tokens than the request has, fewer tokens than its trimmed window
    /// allows, or no token.
    #[error("cannot keep {asked} tokens of request {id}: from {least} to {tokens} can be kept")]
    BadLength { id: RequestId, asked: usize, least: usize, tokens: usize },
    /// A swap was requested for an empty list of requests.
    #[error("a swap needs at least one request")]
    EmptyGroup,
    /// The manager was made without a host tier.
    #[error("there is no host tier: give the manager host_blocks")]
    NoHostTier,
    /// Not enough blocks are available.
    #[error("{0}")]
    OutOfBlocks(Refusal),
    /// No request has this id.
    #[error("no request has the id {id}: admit it first")]
    UnknownRequest { id: RequestId },
    /// A request with this id already exists.
    #[error("request {id} is known already: release it before admitting it again")]
    DuplicateRequest { id: RequestId },
    /// The same request appears twice in one call or one step.
    #[error("request {id} is named twice in one {scope}")]
    NamedTwice { id: RequestId, scope: &'static str },
    /// The request is not in the state that the call needs.
    #[error("request {id} is {}: cannot {operation}", .state.name())]
    WrongState { id: RequestId, state: RequestState, operation: &'static str },
    /// The prompt has no tokens.
    #[error("request {id} has no tokens: a prompt has at least one")]
    EmptyPrompt { id: RequestId },
    /// The lists of a batch differ in length.
    #[error("{requests} requests but {values} {what}: one each is needed")]
    LengthMismatch { requests: usize, values: usize, what: &'static str },
    /// A commit sets a number of computed tokens that is too high or too low. It is above the request's
    /// tokens, above the tokens that its tables have blocks for, or below the previous number.
    #[error(
        "request {id} has {tokens} tokens, blocks for {covered}, {computed} computed: \
         cannot set computed to {asked}"
    )]
    BadComputedCount { id: RequestId, asked: usize, tokens: usize, computed: usize, covered: usize },
    /// The offsets of a batch do not ascend from 0 to the length of the token list.
    #[error("offset {offset} at position {position}: must be from {least} to {most}")]
    BadOffset { position: usize, offset: usize, least: usize, most: usize },
    /// The call would change more entries of block tables than the caller has room for.
    #[error("{needed} blocks change in the block tables, and there is room for {most}")]
    TooManyChanges { needed: usize, most: usize },
    /// The call names more external tokens than the prompt has or a connector loads, or fewer than are
    /// already cached.
    #[error("request {id}: {asked} external tokens, must be from {least} to {most}")]
    BadExternalCount { id: RequestId, asked: usize, least: usize, most: usize },
    /// The manager has changed since the step was planned.
    #[error("the manager has changed since this step was begun: begin a new one")]
    StaleStep,
    /// The prompt was hashed by a hasher with other settings than the manager's.
    #[error(
        "this prompt was hashed with other settings than the manager's: make it with the manager's own hasher"
    )]
    ForeignCursor,
    /// The pool refused the operation.
    #[error(transparent)]
    Pool(PoolError),
    /// The hasher refused the tokens or the extra keys.
    #[error(transparent)]
    Hash(#[from] HashError),
}

/// The error of a refused admission. It contains the hashed prompt, so that the caller does not have to
/// hash it again.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
pub struct Refused {
    /// The reason for the refusal.
    pub error: ManagerError,
    /// The prompt.
    pub cursor: Box<HashCursor>,
}

impl From<Refused> for ManagerError {
    fn from(refused: Refused) -> Self {
        refused.error
    }
}

impl From<PoolError> for ManagerError {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::OutOfBlocks(refusal) => Self::OutOfBlocks(refusal),
            other => Self::Pool(other),
        }
    }
}

impl From<TierError> for ManagerError {
    fn from(error: TierError) -> Self {
        match error {
            TierError::Pool(error) => error.into(),
            other => Self::Tier(other),
        }
    }
}
