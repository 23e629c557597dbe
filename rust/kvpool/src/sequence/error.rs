//! What sequences refuse, and why.

use super::SequenceId;
use crate::hash::HashError;
use crate::tiers::{PlanError, TierError};
use crate::{PoolError, Refusal};

/// A typed refusal. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "its message says what a field is")]
pub enum SequenceError {
    /// The handle's sequence was freed, or there never was one.
    #[error("{handle} is stale: its sequence was freed, or there never was one")]
    Stale { handle: SequenceId },
    /// One call names a sequence twice.
    #[error("{handle} is named twice in one call")]
    NamedTwice { handle: SequenceId },
    /// The sequence is being swapped: complete or abort the swap first.
    #[error("{handle} is being swapped: complete or abort the swap first")]
    Moving { handle: SequenceId },
    /// The sequences of one swap are in several tiers, or there are none.
    #[error("a swap needs at least one sequence, and all of them in one tier")]
    NotOneTier,
    /// A prompt without tokens.
    #[error("a sequence has at least one token")]
    Empty,
    /// The prompt was hashed with other settings.
    #[error(
        "this prompt was hashed with other settings than these sequences': make it with their own hasher"
    )]
    ForeignCursor,
    /// More computed tokens than tokens, or fewer than before.
    #[error("{handle} has {tokens} tokens, {computed} of them computed: cannot set computed to {asked}")]
    BadComputedCount { handle: SequenceId, asked: usize, tokens: usize, computed: usize },
    /// More tokens are to be kept than there are, or fewer than the window has left.
    #[error("cannot keep {asked} tokens of {handle}: from {least} to {tokens} can be kept")]
    BadLength { handle: SequenceId, asked: usize, least: usize, tokens: usize },
    /// Not enough blocks.
    #[error("{0}")]
    OutOfBlocks(Refusal),
    /// A tier refused.
    #[error(transparent)]
    Tier(TierError),
    /// The tokens cannot be hashed.
    #[error(transparent)]
    Hash(#[from] HashError),
}

impl From<TierError> for SequenceError {
    fn from(error: TierError) -> Self {
        match error {
            TierError::Pool(PoolError::OutOfBlocks(refusal)) => Self::OutOfBlocks(refusal),
            other => Self::Tier(other),
        }
    }
}

impl From<PoolError> for SequenceError {
    fn from(error: PoolError) -> Self {
        TierError::from(error).into()
    }
}

impl From<PlanError> for SequenceError {
    fn from(error: PlanError) -> Self {
        Self::Tier(error.into())
    }
}
