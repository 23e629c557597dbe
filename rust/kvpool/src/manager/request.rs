//! Defines the manager's record of each request.

use super::error::{ManagerError, Result};
use super::hints::Hints;
use super::id::{RequestId, RequestState};
use crate::sequence::Sequence;
use crate::{Signal, Until};

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) id: RequestId,
    pub(crate) state: RequestState,
    pub(crate) sequence: Sequence,
    pub(crate) cached_tokens: usize,
    /// The number of the latest batch that contained the request. With it, the manager finds in O(1)
    /// that a batch contains an id twice.
    pub(crate) batch: u64,
    pub(crate) hints: Option<Box<Hints>>,
    pub(crate) external: Option<External>,
    /// The options of the request's release, if it waits until a swap or a load ends.
    pub(crate) leaving: Option<ReleaseOptions>,
    /// The first position of the block table whose block the request registers itself. The request hit
    /// the blocks before this position, or shares them with its parent.
    pub(crate) own_from: usize,
}

impl Request {
    #[inline]
    pub(crate) fn check_state(&self, states: &[RequestState], operation: &'static str) -> Result<()> {
        if states.contains(&self.state) {
            return Ok(());
        }
        Err(ManagerError::WrongState { id: self.id.clone(), state: self.state, operation })
    }
}

pub(crate) const RELEASE: &str = "release it once more";

pub(crate) const RELEASABLE: &[RequestState] = &[
    RequestState::Running,
    RequestState::Preempted,
    RequestState::Swapped,
    RequestState::Moving,
    RequestState::Loading,
];

pub(crate) const PREEMPT: &str = "preempt it";

/// The states in which a request can be preempted, because it holds blocks.
pub(crate) const PREEMPTIBLE: &[RequestState] = &[RequestState::Running, RequestState::Swapped];

/// An unfinished load of external tokens into a request's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct External {
    /// Number of leading tokens that are ready after the load. The load begins after the computed
    /// tokens.
    pub(crate) end: usize,
    pub(crate) covered: usize,
    /// Whether a resumption caused the load. False for an admission.
    pub(crate) resumed: bool,
}

/// The options of a release: until when its blocks are fenced, and how the request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReleaseOptions {
    pub(crate) until: Until,
    pub(crate) end_of_life: bool,
    /// How the request ended, as a hint for eviction, if that is known.
    pub(crate) signal: Signal,
}

/// What a scheduler can read about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RequestInfo {
    /// The state: whether and where the request holds blocks.
    pub state: RequestState,
    /// Number of tokens of the prompt plus appended tokens.
    pub tokens: usize,
    /// Number of tokens whose KV is written, including cached tokens.
    pub computed_tokens: usize,
    /// Number of tokens that were cached at the last admission or resumption.
    pub cached_tokens: usize,
    /// Number of leading tokens that are ready after a connector's load. Equal to
    /// [`Self::computed_tokens`] if nothing is being loaded.
    pub external_end: usize,
    /// Number of entries in the block table. With KV-cache groups, in the table of the first group.
    pub blocks: usize,
    /// The tier of the blocks: 0, or 1 if the request is swapped out.
    pub tier: usize,
}
