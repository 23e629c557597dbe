//! What a journal is replayed on, and an operation with what it gave.

use kvpool::journal::JournalHeader;
use kvpool::{BlockId, InvariantViolation};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::ReplayError;

/// What an operation answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// The check of the whole answer.
    pub check: u32,
    /// Whether it was refused.
    pub refused: bool,
    /// Blocks that it handed out, in order.
    pub blocks: Vec<BlockId>,
    /// The swap that it began.
    pub swap: Option<u64>,
    /// The answer as a person reads it.
    pub told: String,
}

/// One operation on its own: it names requests by id and prompts by all their blocks, so it can be run among others than it was
/// recorded with.
#[derive(Clone, Debug, PartialEq)]
pub struct Step<O> {
    /// Its number in the journal.
    pub number: u64,
    /// What was asked.
    pub operation: O,
    /// What was answered when it was recorded.
    pub answer: Answer,
}

/// A pool or a manager made anew from a journal's header.
pub trait Subject: Sized {
    /// Its operations.
    type Operation: Clone + std::fmt::Debug + PartialEq + Serialize + DeserializeOwned;

    /// As it was before the first operation.
    ///
    /// # Errors
    /// [`ReplayError::Settings`].
    fn new(header: &JournalHeader) -> Result<Self, ReplayError>;

    /// Runs an operation as it was recorded.
    ///
    /// # Errors
    /// What is recorded cannot be: the journal is not one of this subject.
    fn run(&mut self, operation: &Self::Operation) -> Result<Answer, ReplayError>;

    /// The operation on its own. To be asked before it runs.
    ///
    /// # Errors
    /// As [`Self::run`].
    fn resolve(&mut self, operation: &Self::Operation) -> Result<Self::Operation, ReplayError>;

    /// Runs an operation on its own, among others than it was recorded with. What it names and does not exist makes it do less,
    /// or nothing: then `None`.
    ///
    /// # Errors
    /// As [`Self::run`].
    fn run_alone(&mut self, step: &Step<Self::Operation>) -> Result<Option<Answer>, ReplayError>;

    /// The digest of the state.
    fn digest(&mut self) -> u64;

    /// Recounts everything.
    ///
    /// # Errors
    /// The first broken invariant.
    fn check(&mut self) -> Result<(), InvariantViolation>;
}
