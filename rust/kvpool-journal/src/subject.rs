//! The pools and managers on which journals are replayed, and self-contained operations with their
//! answers.

use crate::{Journal, JournalConfig, JournalHeader};
use kvpool::{BlockPool, InvariantViolation};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::calls::{Moved, Slots, Words};
use crate::error::ReplayError;
use crate::observers::{Observed, Observers};
use crate::value::Answer;

/// A recorded operation in self-contained form: it refers to requests by id, and contains all blocks of
/// its prompts. Therefore it can run without the other operations of its journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<O> {
    /// Number of the operation in its journal.
    pub number: u64,
    /// The call that was recorded, with its arguments.
    pub operation: O,
    /// The epoch of the pool at the time of the recording.
    pub epoch: u64,
    /// The recorded answer.
    pub answer: Answer,
}

/// A pool or a manager that is created from the header of a journal.
pub trait Subject: Sized {
    /// The type of the recorded calls.
    type Call: Words + Slots + std::fmt::Debug + PartialEq + Serialize + DeserializeOwned;

    /// Creates the pool or manager in its state before the first operation.
    ///
    /// # Errors
    /// [`ReplayError::Settings`]
    fn new(header: &JournalHeader) -> Result<Self, ReplayError>;

    /// Creates the pool or manager with a journal in memory.
    ///
    /// # Errors
    /// [`ReplayError::Settings`]
    fn recorded(header: &JournalHeader) -> Result<Self, ReplayError>;

    /// Adds observers, in addition to those of the journal.
    ///
    /// # Errors
    /// [`ReplayError::Settings`]
    fn watch(&mut self, header: &JournalHeader, observers: &Observers) -> Result<(), ReplayError>;

    /// Returns the pool or manager, which the caller can read but not change.
    fn observed(&self) -> Observed<'_>;

    /// Ends the journal and returns its bytes. Returns no bytes if there is no journal.
    fn take_image(&mut self) -> Vec<u8>;

    /// Runs an operation as it was recorded.
    ///
    /// # Errors
    /// [`ReplayError`] if the record is impossible, because the journal was recorded on something else,
    /// for example on a manager instead of a pool.
    fn run(&mut self, operation: &Self::Call) -> Result<Answer, ReplayError>;

    /// Converts an operation into its self-contained form. Call this before the operation runs.
    ///
    /// # Errors
    /// Like [`Self::run`].
    fn resolve(&mut self, operation: &Self::Call) -> Result<Self::Call, ReplayError>;

    /// Runs a self-contained operation outside of its recorded sequence. Recorded block ids and swaps
    /// are replaced by those that the same operations have returned in this run. A prompt that was
    /// hashed in the epoch of the recording is hashed in the present epoch.
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

    /// Returns the maps from recorded ids to those of this run. They are needed if only some of the
    /// recorded calls run, because the ids of the two runs then differ.
    fn moved(&mut self) -> &mut Moved;

    /// Returns the device pool, from whose images the pool or manager is restored.
    fn device(&self) -> &BlockPool;

    /// Whether no caller holds a block. An image then contains everything that a new process needs.
    fn is_idle(&self) -> bool {
        let stats = self.device().stats();
        stats.active == 0 && stats.fenced == 0
    }

    /// Replaces the pool or manager by a new one that is restored from its image, as after a restart of
    /// the process. Returns the number of restored blocks.
    ///
    /// # Errors
    /// [`ReplayError::Settings`] if it does not support images: vLLM's pools, and all pools that verify
    /// hits.
    fn restart(&mut self, header: &JournalHeader) -> Result<usize, ReplayError>;

    /// Returns the present epoch of the pool.
    fn epoch(&self) -> u64;

    /// Returns the digest of the present state.
    fn digest(&mut self) -> u64;

    /// Checks all invariants by recomputing every count.
    ///
    /// # Errors
    /// The first broken invariant.
    fn check(&mut self) -> Result<(), InvariantViolation>;
}

/// Creates a journal in memory for self-contained steps. It has a digest after every operation.
pub(crate) fn memory() -> Result<Journal, ReplayError> {
    const BYTES: usize = 1 << 30;
    Ok(Journal::ring(BYTES, JournalConfig { digest_every: 1, ..JournalConfig::default() })?)
}
