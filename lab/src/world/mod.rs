//! A world contains a pool or manager under test (the subject), its model, the blocks that its callers
//! hold, and the oracles that check the subject.

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

/// A pool or manager that the laboratory tests, together with all data for drawing calls and for
/// checking them.
pub trait World: Sized {
    /// The type of the pool or manager under test, on which a journal can also be replayed.
    type Subject: Subject<Call: Slots + Simpler>;
    /// The settings of the pool or manager, and the settings that determine which calls are drawn for
    /// it.
    type Setting: Clone + Debug;
    /// Data that the arguments of a call share while the call is drawn, such as the prompt.
    type Draft: Default;
    /// Data that was drawn for a run and that its calls refer to by a key, for example prompts.
    type Memory: Clone + Debug;

    /// Draws settings.
    fn setting(bytes: &mut Bytes<'_>) -> Self::Setting;

    /// Returns simpler settings, which are tried while a failure is shrunk, the simplest first.
    fn simpler(setting: &Self::Setting) -> Vec<Self::Setting>;

    /// Returns whether a Python test of these settings gives the same answers. A Python test hashes its
    /// prompts, so its digests differ from the artificial ones. That changes the decisions of the
    /// policy `hazard`, which depend on a few bits of the digests.
    fn is_of_python(setting: &Self::Setting) -> bool;

    /// Creates a world in which no call was made. To make calls that were drawn in another world, pass
    /// the memory of that world.
    ///
    /// # Errors
    /// The pool or manager refuses the settings.
    fn new(setting: &Self::Setting, memory: Option<&Self::Memory>) -> Result<Self, Failure>;

    /// Returns the data that was drawn so far and that calls refer to.
    fn memory(&self) -> &Self::Memory;

    /// Returns the header of a journal of the pool or manager under test.
    ///
    /// # Errors
    /// The settings are not valid for it.
    fn header(setting: &Self::Setting) -> Result<JournalHeader, Failure>;

    /// Returns how often each call is drawn, relative to the others.
    fn weights(&self) -> Weights;

    /// Returns the initial data that the arguments of a call share while the call is drawn.
    fn draft(&self, _call: &'static str) -> Self::Draft {
        Self::Draft::default()
    }

    /// Draws a valid argument for a call. Returns false if none exists.
    fn fill(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>, draft: &mut Self::Draft) -> bool;

    /// Replaces an argument by one that may be invalid. Returns false if the call must not be made with
    /// it.
    fn spoil(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>) -> bool;

    /// Adapts the arguments of a call that was drawn in another run of this world. A replay has already
    /// replaced the block ids, swap ids and epochs.
    fn fit(&mut self, _call: &mut Call<Self>) {}

    /// Makes a call on the pool or manager and on the model, compares the answers, and runs the
    /// oracles.
    ///
    /// # Errors
    /// The first difference.
    fn make(&mut self, call: &Call<Self>) -> Result<Answer, Failure>;

    /// Returns the present epoch of the pool or manager under test.
    fn epoch(&self) -> u64;
}

/// The type of the calls of a world's pool or manager.
pub type Call<W> = <<W as World>::Subject as Subject>::Call;
