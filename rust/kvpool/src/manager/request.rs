//! Requests: what the manager keeps of each.

use super::error::{ManagerError, Result};
use super::hints::Hints;
use super::id::{RequestId, RequestState};
use crate::sequence::Sequence;
use crate::{Signal, Until};

/// What the manager keeps of a request.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: RequestId,
    pub(crate) state: RequestState,
    /// Its tokens and block table.
    pub(crate) sequence: Sequence,
    /// Tokens that were cached when it was last admitted.
    pub(crate) cached_tokens: usize,
    /// The number of the batch that named it last: finds an id named twice in one call in O(1).
    pub(crate) batch: u64,
    /// What was said of it.
    pub(crate) hints: Option<Box<Hints>>,
    /// What a connector loads into its blocks.
    pub(crate) external: Option<External>,
    /// How it is released, once that was asked: at once, or when what moves or loads has ended.
    pub(crate) leaving: Option<Leaving>,
    /// The first position of its table whose block it registered itself: what is before was hit, or is
    /// a parent's.
    pub(crate) own_from: usize,
}

impl Request {
    /// Refuses an operation in any other than these states.
    #[inline]
    pub(crate) fn check_state(&self, states: &[RequestState], operation: &'static str) -> Result<()> {
        if states.contains(&self.state) {
            return Ok(());
        }
        Err(ManagerError::WrongState { id: self.id.clone(), state: self.state, operation })
    }
}

pub(crate) const RELEASE: &str = "release it once more";

/// What a request can be released in.
pub(crate) const RELEASABLE: &[RequestState] = &[
    RequestState::Running,
    RequestState::Preempted,
    RequestState::Swapped,
    RequestState::Moving,
    RequestState::Loading,
];

pub(crate) const PREEMPT: &str = "preempt it";

/// What a request can be preempted in: it holds blocks.
pub(crate) const PREEMPTIBLE: &[RequestState] = &[RequestState::Running, RequestState::Swapped];

/// Tokens that are on their way into a request's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct External {
    /// The token behind the last of them; the first is behind the computed ones.
    pub(crate) end: usize,
    /// Tokens that the tables cover.
    pub(crate) covered: usize,
    /// Whether it was resumed with them.
    pub(crate) resumed: bool,
}

/// How a request is released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leaving {
    pub(crate) until: Until,
    pub(crate) end_of_life: bool,
    /// What is known of how it ended.
    pub(crate) signal: Signal,
}

/// What a scheduler may want to know of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestInfo {
    /// Whether it holds blocks.
    pub state: RequestState,
    /// Its tokens: prompt and appended ones.
    pub tokens: usize,
    /// Tokens whose KV is written, cached ones included.
    pub computed_tokens: usize,
    /// Tokens that were cached when it was last admitted.
    pub cached_tokens: usize,
    /// The token behind the last one that a connector loads; [`Self::computed_tokens`] if it loads none.
    pub external_end: usize,
    /// Blocks in its block table.
    pub blocks: usize,
    /// The tier whose blocks these are: 0, or 1 if it is swapped out.
    pub tier: usize,
}
