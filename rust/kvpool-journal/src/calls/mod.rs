//! Declares every call that a journal records, once.
//!
//! Owns: the tables of calls (`calls!` in `table.rs`), one per subject, and the kinds of their
//! arguments. A kind defines how a journal stores an argument, how a replay makes it, and its text for
//! people. Code that shrinks, renames or exports arguments matches on [`Slot`], which has a variant for
//! each kind.
//!
//! Invariant: the order of a table's calls and of their arguments is the format of journals. New calls
//! are added at the end.

mod kind;
pub mod kinds;
mod manager;
pub mod manager_kinds;
mod moved;
mod pool;
mod simpler;
mod slot;
mod table;
mod vllm;
pub mod vllm_kinds;
pub(crate) mod words;

pub use manager::{ManagerCall, ManagerCalls};
pub use moved::Moved;
pub use pool::{PoolCall, PoolCalls};
pub use simpler::Simpler;
pub use slot::{Mention, Slot};
pub use vllm::{Ids as VllmIds, VllmCall, VllmCalls};
pub use words::Words;

use serde::de::DeserializeOwned;

use crate::error::ReplayError;
use crate::journaled::Recordable;
use crate::value::Answer;
use crate::{Check, Journal};

/// The context in which the arguments of a call are recorded: its subject and its journal.
#[derive(Debug)]
pub struct Recorder<'a, S> {
    subject: &'a S,
    journal: &'a mut Journal,
    /// Number of blocks at the start of a chain that were recorded before, provided that the last of
    /// them is in the index. For a batch, 1 if the manager has looked up its requests.
    indexed: usize,
}

/// A kind of argument of the calls of `S`. A kind is a meaning, not a type: several kinds are lists of
/// block ids.
pub trait Argument<S: Recordable> {
    /// The form in a journal. Its encoding is the format.
    type Record;
    /// The form that a method takes. It is borrowed, so that a call without a journal copies nothing.
    type Live<'a>: Copy;
    /// The form that a replay owns, and lends to the method.
    type Own;

    /// The record of an argument.
    fn record(live: Self::Live<'_>, to: &mut Recorder<'_, S>) -> Self::Record;

    /// Makes the argument that a record describes.
    ///
    /// # Errors
    /// [`ReplayError`] if the record describes an impossible argument.
    fn own(record: &Self::Record, from: &mut S::Memory) -> Result<Self::Own, ReplayError>;

    /// Calls `call` with the argument.
    fn lend<R>(own: &Self::Own, call: impl FnOnce(Self::Live<'_>) -> R) -> R;

    /// The argument as readable text.
    fn words(record: &Self::Record) -> String;

    /// The record as a slot of its kind.
    fn slot(record: &mut Self::Record) -> Slot<'_>;
}

/// A call with access to its arguments by kind.
pub trait Slots: Clone {
    /// The methods of all calls, in the order of the table.
    const NAMES: &'static [&'static str];

    /// The arguments, in order.
    fn slots(&mut self) -> Vec<Slot<'_>>;

    /// Returns the call at this position of the table; `None` after the last. Its arguments are zeros,
    /// empty lists and `None`, which are encoded as zero bytes.
    #[must_use]
    fn blank(position: u8) -> Option<Self>
    where
        Self: DeserializeOwned,
    {
        /// More bytes than the arguments of any call need.
        const ZEROS: [u8; 64] = [0; 64];
        postcard::from_bytes(&[&[position], &ZEROS[..]].concat()).ok()
    }
}

/// Makes the answer that a replay compares.
pub(crate) fn answer(reply: &impl crate::value::Reply) -> Answer {
    Answer {
        check: Check::of(reply),
        refused: reply.refused(),
        blocks: reply.blocks(),
        swap: reply.swap(),
        told: reply.told(),
        value: reply.value(),
    }
}

#[cfg(test)]
mod tests {
    use super::{ManagerCall, PoolCall, Slots, VllmCall, Words};

    fn every_call_is_blank<C: Slots + Words + serde::de::DeserializeOwned>() {
        let blank = |at| C::blank(at).map(|call: C| call.call());
        let blanks: Vec<_> = (0..C::NAMES.len() as u8).filter_map(blank).collect();
        assert_eq!(blanks, C::NAMES);
        assert!(blank(C::NAMES.len() as u8).is_none());
    }

    #[test]
    fn zero_bytes_are_the_blank_call_of_each_position() {
        every_call_is_blank::<PoolCall>();
        every_call_is_blank::<VllmCall>();
        every_call_is_blank::<ManagerCall>();
    }
}
