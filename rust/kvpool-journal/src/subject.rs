//! The subjects on which journals are replayed, and self-contained operations with their answers.

use crate::{Journal, JournalConfig, JournalHeader};
use kvpool::{BlockPool, InvariantViolation};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::calls::{Moved, Slots, Words};
use crate::error::ReplayError;
use crate::observers::{Observed, Observers};
use crate::value::Answer;

/// A self-contained operation. It names requests by id, and prompts by all their blocks, so it can run
/// among other operations than those with which it was recorded.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<O> {
    /// Number of the operation in the journal.
    pub number: u64,
    /// The call and its arguments.
    pub operation: O,
    /// The epoch of the pool when it was recorded.
    pub epoch: u64,
    /// The recorded answer.
    pub answer: Answer,
}

/// A pool or a manager that is created from the header of a journal.
pub trait Subject: Sized {
    /// The calls of the subject.
    type Call: Words + Slots + std::fmt::Debug + PartialEq + Serialize + DeserializeOwned;

    /// Creates the subject in its state before the first operation.
    ///
    /// # Errors
    /// [`ReplayError::Settings`]
    fn new(header: &JournalHeader) -> Result<Self, ReplayError>;

    /// Creates the subject with a journal in memory.
    ///
    /// # Errors
    /// [`ReplayError::Settings`]
    fn recorded(header: &JournalHeader) -> Result<Self, ReplayError>;

    /// Adds observers, in addition to those of the journal.
    ///
    /// # Errors
    /// [`ReplayError::Settings`]
    fn watch(&mut self, header: &JournalHeader, observers: &Observers) -> Result<(), ReplayError>;

    /// Returns the subject, for reading.
    fn observed(&self) -> Observed<'_>;

    /// Ends the journal and returns its bytes; empty without a journal.
    fn take_image(&mut self) -> Vec<u8>;

    /// Runs an operation as it was recorded.
    ///
    /// # Errors
    /// [`ReplayError`] if the record is impossible, because the journal is not one of this subject.
    fn run(&mut self, operation: &Self::Call) -> Result<Answer, ReplayError>;

    /// Returns the self-contained form of an operation. Call it before the operation runs.
    ///
    /// # Errors
    /// Like [`Self::run`].
    fn resolve(&mut self, operation: &Self::Call) -> Result<Self::Call, ReplayError>;

    /// Runs a self-contained operation outside of the sequence in which it was recorded. Recorded
    /// blocks and swaps are replaced by those that the same operations returned here. A prompt of the
    /// epoch at the recording becomes a prompt of the present epoch.
    ///
    /// # Errors
    /// Like [`Self::run`].
    fn run_alone(&mut self, step: &Step<Self::Call>) -> Result<Answer, ReplayError> {
        let mut call = step.operation.clone();
        let epoch = self.epoch();
        self.moved().translate(call.slots(), step.epoch, epoch);
        let answer = self.run(&call)?;
        self.moved().learn(&step.answer, &answer);
        Ok(answer)
    }

    /// Returns the ids that differ from the recorded run, if calls run on their own.
    fn moved(&mut self) -> &mut Moved;

    /// Returns the pool of which images are taken.
    fn device(&self) -> &BlockPool;

    /// Whether no caller holds a block, so that an image contains everything that a new process needs.
    fn is_idle(&self) -> bool {
        let stats = self.device().stats();
        stats.active == 0 && stats.fenced == 0
    }

    /// Ends the subject, and restores a new one from its image, as another process does. Returns the
    /// number of restored blocks.
    ///
    /// # Errors
    /// [`ReplayError::Settings`] for a subject without an image: vLLM's pools, and those that verify
    /// hits.
    fn restart(&mut self, header: &JournalHeader) -> Result<usize, ReplayError>;

    /// The epoch of the pool.
    fn epoch(&self) -> u64;

    /// The digest of the state.
    fn digest(&mut self) -> u64;

    /// Checks all invariants by recounting.
    ///
    /// # Errors
    /// The first broken invariant.
    fn check(&mut self) -> Result<(), InvariantViolation>;
}

/// Creates a journal for self-contained steps: in memory, with a digest after every operation.
pub(crate) fn memory() -> Result<Journal, ReplayError> {
    const BYTES: usize = 1 << 30;
    Ok(Journal::ring(BYTES, JournalConfig { digest_every: 1, ..JournalConfig::default() })?)
}
