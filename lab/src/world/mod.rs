//! Worlds: a subject, its model, the blocks that its callers hold, and the oracles that check it.

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

/// A subject of the laboratory, with everything from which its calls are drawn and with which they are
/// compared.
pub trait World: Sized {
    /// The subject, in the form on which a journal is replayed.
    type Subject: Subject<Call: Slots + Simpler>;
    /// The settings of the subject and of the drawing.
    type Setting: Clone + Debug;
    /// The state that the arguments of one call share while they are drawn.
    type Draft: Default;
    /// Drawn things that calls name by a key, for example prompts.
    type Memory: Clone + Debug;

    /// Draws settings.
    fn setting(bytes: &mut Bytes<'_>) -> Self::Setting;

    /// Returns settings to try while shrinking, the simplest first.
    fn simpler(setting: &Self::Setting) -> Vec<Self::Setting>;

    /// Returns whether a Python test gives the same answers. Python hashes prompts, so its digests
    /// differ. The policy hazard remembers contents by a few bits of their digests.
    fn is_of_python(setting: &Self::Setting) -> bool;

    /// Creates a world in which no call was made. With a memory, it can make calls of another world.
    ///
    /// # Errors
    /// The subject refuses the settings.
    fn new(setting: &Self::Setting, memory: Option<&Self::Memory>) -> Result<Self, Failure>;

    /// Returns the things that were drawn so far.
    fn memory(&self) -> &Self::Memory;

    /// Returns the header of a journal of the subject.
    ///
    /// # Errors
    /// The settings cannot be those of a subject.
    fn header(setting: &Self::Setting) -> Result<JournalHeader, Failure>;

    /// Returns how often each call is drawn.
    fn weights(&self) -> Weights;

    /// Returns the state that the arguments of a call share, before the first is drawn.
    fn draft(&self, _call: &'static str) -> Self::Draft {
        Self::Draft::default()
    }

    /// Draws an argument that makes the call possible. Returns false if no argument does.
    fn fill(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>, draft: &mut Self::Draft) -> bool;

    /// Draws an argument that may be invalid. Returns false if the call must not be made.
    fn spoil(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>) -> bool;

    /// Adapts the arguments of a call from another history to this one, if a replay does not do that.
    fn fit(&mut self, _call: &mut Call<Self>) {}

    /// Makes a call on the subject and on the model, and runs the oracles.
    ///
    /// # Errors
    /// The first difference.
    fn make(&mut self, call: &Call<Self>) -> Result<Answer, Failure>;

    /// Returns the epoch of the subject.
    fn epoch(&self) -> u64;
}

/// The calls of a world's subject.
pub type Call<W> = <<W as World>::Subject as Subject>::Call;
