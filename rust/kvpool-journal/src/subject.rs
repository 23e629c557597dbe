//! What a journal is replayed on, and an operation with what it gave.

use crate::{Journal, JournalConfig, JournalHeader};
use kvpool::InvariantViolation;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::calls::Words;
use crate::error::ReplayError;
use crate::observers::{Observed, Observers};
use crate::value::Answer;

/// One operation on its own: it names requests by id and prompts by all their blocks, so it can be run among others than it was
/// recorded with.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<O> {
    /// Its number in the journal.
    pub number: u64,
    /// What was asked.
    pub operation: O,
    /// The epoch of the pool when it was recorded.
    pub epoch: u64,
    /// What was answered when it was recorded.
    pub answer: Answer,
}

/// A pool or a manager made anew from a journal's header.
pub trait Subject: Sized {
    /// Its operations.
    type Call: Words + Clone + std::fmt::Debug + PartialEq + Serialize + DeserializeOwned;

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

    /// Runs an operation on its own, among others than it was recorded with. Blocks and swaps are those that the same
    /// operations give here; a prompt of the epoch that was current is one of the epoch that is.
    ///
    /// # Errors
    /// As [`Self::run`].
    fn run_alone(&mut self, step: &Step<Self::Call>) -> Result<Answer, ReplayError>;

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
