//! Worlds: a subject, its model, what the callers of the subject hold, and which oracles check it.

pub mod manager;
pub mod pool;
pub mod prompts;
pub mod requests;
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
    /// The subject, as a journal is replayed on it.
    type Subject: Subject<Call: Slots + Simpler>;
    /// The settings that the subject is made with, and those of the drawing.
    type Setting: Clone + Debug;
    /// The things that the arguments of one call have in common while they are drawn.
    type Draft: Default;
    /// The drawn things that calls hold by a key, for instance prompts.
    type Memory: Clone + Debug;

    /// Draws settings.
    fn setting(bytes: &mut Bytes<'_>) -> Self::Setting;

    /// Settings to try while shrinking, the simplest first.
    fn simpler(setting: &Self::Setting) -> Vec<Self::Setting>;

    /// Whether a test of Python gives the same answers. It hashes prompts, so its digests are others.
    /// The policy hazard remembers contents by a few bits of their digests.
    fn is_of_python(setting: &Self::Setting) -> bool;

    /// A world in which nothing was called. With a memory, calls of another world can be made.
    ///
    /// # Errors
    /// The subject refuses the settings.
    fn new(setting: &Self::Setting, memory: Option<&Self::Memory>) -> Result<Self, Failure>;

    /// The drawn things so far.
    fn memory(&self) -> &Self::Memory;

    /// The header of a journal of the subject.
    ///
    /// # Errors
    /// The settings cannot be those of a subject.
    fn header(setting: &Self::Setting) -> Result<JournalHeader, Failure>;

    /// How often each call is drawn.
    fn weights(&self) -> Weights;

    /// The state that the arguments of a call share, before the first is drawn.
    fn draft(&self, _call: &'static str) -> Self::Draft {
        Self::Draft::default()
    }

    /// Draws an argument that makes the call possible. Returns false if no argument does.
    fn fill(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>, draft: &mut Self::Draft) -> bool;

    /// Draws an argument without regard to what is possible. Returns false if the call must not be made.
    fn spoil(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>) -> bool;

    /// Makes the arguments of a call from another history those of this one, where a replay does not.
    fn fit(&mut self, _call: &mut Call<Self>) {}

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
