//! Worlds: a subject, its model, what the callers of the subject hold, and which oracles check it.

pub mod pool;
pub mod prompts;
pub mod vllm;
pub mod vllm_keys;

use std::fmt::Debug;

use kvpool_journal::calls::{Simpler, Slot, Slots};
use kvpool_journal::{Answer, JournalHeader, Subject};

use crate::Failure;
use crate::bytes::Bytes;
use crate::draw::Weights;

/// A subject of the laboratory and everything that calls of it are drawn from and compared with.
pub trait World: Sized {
    /// What a journal is replayed on: it runs calls.
    type Subject: Subject<Call: Slots + Simpler>;
    /// The settings that the subject is made with, and those of the drawing.
    type Setting: Clone + Debug;
    /// What the arguments of one call have in common, as far as they are drawn.
    type Draft: Default;
    /// What was drawn, by the keys that calls hold of it.
    type Memory: Clone + Debug;

    /// Draws settings.
    fn setting(bytes: &mut Bytes<'_>) -> Self::Setting;

    /// Settings to try while shrinking, the simplest first.
    fn simpler(setting: &Self::Setting) -> Vec<Self::Setting>;

    /// A world in which nothing was called. With a memory, calls of another world can be made.
    ///
    /// # Errors
    /// The subject refuses the settings.
    fn new(setting: &Self::Setting, memory: Option<&Self::Memory>) -> Result<Self, Failure>;

    /// What was drawn so far.
    fn memory(&self) -> &Self::Memory;

    /// The header of a journal of the subject.
    ///
    /// # Errors
    /// The settings cannot be those of a subject.
    fn header(setting: &Self::Setting) -> Result<JournalHeader, Failure>;

    /// How often each call is drawn.
    fn weights(&self) -> Weights;

    /// Draws an argument that makes the call possible. Returns false if there is none.
    fn fill(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>, draft: &mut Self::Draft) -> bool;

    /// Draws an argument without regard to what is possible. Returns false where this world has no wrong arguments.
    fn spoil(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>) -> bool;

    /// Makes a call on the subject and on the model, and asks the oracles.
    ///
    /// # Errors
    /// The first difference.
    fn make(&mut self, call: &Call<Self>) -> Result<Answer, Failure>;

    /// The epoch of the subject.
    fn epoch(&self) -> u64;
}

/// The calls of a world's subject.
pub type Call<W> = <<W as World>::Subject as Subject>::Call;
