//! A world contains a subject, its model, the blocks that its callers hold, and the oracles that check
//! the subject.

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

/// A subject of the laboratory. The world also contains all data for drawing its calls and for checking
/// them.
pub trait World: Sized {
    /// The type of the subject on which a journal can be replayed.
    type Subject: Subject<Call: Slots + Simpler>;
    /// The settings of the subject and of the calls that are drawn for it.
    type Setting: Clone + Debug;
    /// The state that the arguments of one call share while they are drawn.
    type Draft: Default;
    /// The drawn data that calls refer to by a key, for example prompts.
    type Memory: Clone + Debug;

    /// Draws settings.
    fn setting(bytes: &mut Bytes<'_>) -> Self::Setting;

    /// Returns settings to try while shrinking, the simplest first.
    fn simpler(setting: &Self::Setting) -> Vec<Self::Setting>;

    /// Returns whether a Python test of these settings gives the same answers. Python hashes prompts,
    /// so its digests differ from artificial ones. The policy hazard decides by a few bits of the
    /// digests.
    fn is_of_python(setting: &Self::Setting) -> bool;

    /// Creates a world in which no call was made. With the memory of another world, it can make the
    /// calls of that world.
    ///
    /// # Errors
    /// The subject refuses the settings.
    fn new(setting: &Self::Setting, memory: Option<&Self::Memory>) -> Result<Self, Failure>;

    /// Returns the data that was drawn so far and that calls refer to.
    fn memory(&self) -> &Self::Memory;

    /// Returns the header of a journal of the subject.
    ///
    /// # Errors
    /// The settings are not valid for the subject.
    fn header(setting: &Self::Setting) -> Result<JournalHeader, Failure>;

    /// Returns how often each call is drawn.
    fn weights(&self) -> Weights;

    /// Returns the initial state that the arguments of a call share while they are drawn.
    fn draft(&self, _call: &'static str) -> Self::Draft {
        Self::Draft::default()
    }

    /// Draws an argument with which the call is possible. Returns false if there is none.
    fn fill(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>, draft: &mut Self::Draft) -> bool;

    /// Draws an argument that may be invalid. Returns false if the call must not be made.
    fn spoil(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>) -> bool;

    /// Adapts the arguments of a call from another history to this history, as far as a replay does not
    /// adapt them.
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
