//! What a journal is replayed on, and an operation with what it gave.

use crate::{Journal, JournalConfig, JournalHeader};
use kvpool::{BlockPool, InvariantViolation};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::calls::{Moved, Slots, Words};
use crate::error::ReplayError;
use crate::observers::{Observed, Observers};
use crate::value::Answer;

/// One operation on its own: it names requests by id and prompts by all their blocks, so it can be run
/// among others than it was recorded with.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<O> {
    /// Its number in the journal.
    pub number: u64,
    /// What was asked.
    pub operation: O,
    /// The epoch of the pool when it was recorded.
    pub epoch: u64,
    /// The recorded answer.
    pub answer: Answer,
}

/// A pool or a manager made anew from a journal's header.
pub trait Subject: Sized {
    /// Its operations.
    type Call: Words + Slots + std::fmt::Debug + PartialEq + Serialize + DeserializeOwned;

    /// As it was before the first operation.
    ///
    /// # Errors
    /// [`ReplayError::Settings`].
    fn new(header: &JournalHeader) -> Result<Self, ReplayError>;

    /// The same with a journal in memory.
    ///
    /// # Errors
    /// [`ReplayError::Settings`].
    fn recorded(header: &JournalHeader) -> Result<Self, ReplayError>;

    /// Watches it from now on, beside what is part of the journal.
    ///
    /// # Errors
    /// [`ReplayError::Settings`].
    fn watch(&mut self, header: &JournalHeader, observers: &Observers) -> Result<(), ReplayError>;

    /// It, to look at.
    fn observed(&self) -> Observed<'_>;

    /// Ends the journal, and hands over what it holds; nothing without one.
    fn take_image(&mut self) -> Vec<u8>;

    /// Runs an operation as it was recorded.
    ///
    /// # Errors
    /// What is recorded cannot be: the journal is not one of this subject.
    fn run(&mut self, operation: &Self::Call) -> Result<Answer, ReplayError>;

    /// The operation on its own. To be asked before it runs.
    ///
    /// # Errors
    /// As [`Self::run`].
    fn resolve(&mut self, operation: &Self::Call) -> Result<Self::Call, ReplayError>;

    /// Runs an operation on its own, among others than it was recorded with. Blocks and swaps are those
    /// that the same operations give here; a prompt of the epoch that was current is one of the epoch
    /// that is.
    ///
    /// # Errors
    /// As [`Self::run`].
    fn run_alone(&mut self, step: &Step<Self::Call>) -> Result<Answer, ReplayError> {
        let mut call = step.operation.clone();
        let epoch = self.epoch();
        self.moved().translate(call.slots(), step.epoch, epoch);
        let answer = self.run(&call)?;
        self.moved().learn(&step.answer, &answer);
        Ok(answer)
    }

    /// The names of the recorded run that differ here, if calls run on their own.
    fn moved(&mut self) -> &mut Moved;

    /// The pool of which an image is taken.
    fn device(&self) -> &BlockPool;

    /// Whether no caller holds a block, so that an image contains everything that a new process needs.
    fn is_idle(&self) -> bool {
        let stats = self.device().stats();
        stats.active == 0 && stats.fenced == 0
    }

    /// Stops, and begins again as another process does. Returns how many blocks are warm.
    ///
    /// # Errors
    /// [`ReplayError::Settings`] of a subject that has no image: vLLM's pools, and those that verify hits.
    fn restart(&mut self, header: &JournalHeader) -> Result<usize, ReplayError>;

    /// The epoch of the pool.
    fn epoch(&self) -> u64;

    /// The digest of the state.
    fn digest(&mut self) -> u64;

    /// Recounts everything.
    ///
    /// # Errors
    /// The first broken invariant.
    fn check(&mut self) -> Result<(), InvariantViolation>;
}

/// A journal for what is run on its own: in memory, with a digest after every operation.
pub(crate) fn memory() -> Result<Journal, ReplayError> {
    const BYTES: usize = 1 << 30;
    Ok(Journal::ring(BYTES, JournalConfig { digest_every: 1, ..JournalConfig::default() })?)
}
