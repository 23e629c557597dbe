//! Requests by slot, and what a planned step consists of: what a record of a manager's calls names.
//!
//! Owns nothing, changes nothing. A slot is a small number that the manager gives a request at its admission, and gives again
//! after its release; a manager that makes the same calls gives the same ones.
//!
//! Costs: O(1), but for [`CacheManager::rehashed`].

#[cfg(feature = "replay")]
use std::sync::Arc;

use super::CacheManager;
#[cfg(feature = "replay")]
use super::ManagerConfig;
use super::error::ManagerError;
use super::hints::RequestHints;
use super::request::{RequestId, RequestRef};
use super::step::{Planned, StepPlan};
use crate::hash::HashCursor;
#[cfg(feature = "replay")]
use crate::hash::{BlockHasher, HashAlgorithm};

/// One operation of a [`StepPlan`].
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum PlannedOperation<'a> {
    /// [`CacheManager::plan_admit_with`]: so many blocks of the prompt are cached.
    Admit { id: &'a RequestId, cursor: &'a HashCursor, cached_blocks: usize, hints: Option<&'a RequestHints> },
    /// [`CacheManager::plan_resume`]: of a prompt that was hashed again, what it hashes to now.
    Resume { slot: usize, rehashed: Option<&'a HashCursor> },
    /// [`CacheManager::plan_append`].
    Append { slot: usize, tokens: usize },
    /// [`CacheManager::plan_preempt`].
    Preempt { slot: usize, after_step: Option<u64> },
    /// [`CacheManager::plan_release`].
    Release { slot: usize, after_step: Option<u64> },
}

impl<'a> From<&'a Planned> for PlannedOperation<'a> {
    fn from(planned: &'a Planned) -> Self {
        match planned {
            Planned::Admit { id, cursor, staged, said, .. } => {
                Self::Admit { id, cursor, cached_blocks: staged.found.blocks.len(), hints: said.as_deref() }
            }
            Planned::Resume { slot, rebased, .. } => {
                Self::Resume { slot: *slot, rehashed: rebased.as_deref() }
            }
            Planned::Append { slot, tokens } => Self::Append { slot: *slot, tokens: tokens.len() },
            Planned::Preempt { slot, after_step } => Self::Preempt { slot: *slot, after_step: *after_step },
            Planned::Release { slot, after_step } => Self::Release { slot: *slot, after_step: *after_step },
        }
    }
}

impl CacheManager {
    /// A new manager that hashes with `hasher` instead of one made from its settings: for replays, which look digests up.
    ///
    /// # Errors
    /// As [`Self::new`].
    #[cfg(feature = "replay")]
    pub fn with_hasher(config: ManagerConfig, hasher: Arc<BlockHasher>) -> Result<Self, ManagerError> {
        let own = ManagerConfig { key: None, seed: None, algorithm: HashAlgorithm::Sha256, ..config };
        Ok(Self { hasher, ..Self::new(own)? })
    }

    /// The slot of a request.
    #[must_use]
    pub fn slot_of<'a>(&self, id: impl Into<RequestRef<'a>>) -> Option<usize> {
        self.slots.get(&id.into()).copied()
    }

    /// A request's tokens and their hash chain.
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`].
    pub fn cursor<'a>(&self, id: impl Into<RequestRef<'a>>) -> Result<&HashCursor, ManagerError> {
        Ok(&self.at(self.slot(id.into())?)?.sequence.cursor)
    }

    /// The same by slot, of a manager that refuses work, too.
    #[doc(hidden)]
    #[must_use]
    pub fn cursor_at(&self, slot: usize) -> Option<&HashCursor> {
        self.at(slot).ok().map(|request| &request.sequence.cursor)
    }

    /// The slots of the latest batch ([`Self::append`], [`Self::commit_batch`]), in its order: all of them if the call
    /// succeeded, or was refused for want of blocks.
    #[doc(hidden)]
    #[must_use]
    pub fn batch_slots(&self) -> &[usize] {
        &self.rows
    }

    /// What a request's prompt hashes to now, if that is not what it hashed to: after an epoch bump. O(tokens) then.
    #[doc(hidden)]
    #[must_use]
    pub fn rehashed<'a>(&self, id: impl Into<RequestRef<'a>>) -> Option<Box<HashCursor>> {
        self.rebased(self.slot(id.into()).ok()?).ok()?
    }

    /// What a plan consists of, in the order of planning; nothing if it is stale.
    #[doc(hidden)]
    pub fn planned<'a>(&self, plan: &'a StepPlan) -> impl Iterator<Item = PlannedOperation<'a>> + use<'a> {
        let operations = if self.check_current(plan).is_ok() { &plan.operations[..] } else { &[] };
        operations.iter().map(PlannedOperation::from)
    }
}
