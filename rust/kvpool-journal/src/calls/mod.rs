//! Every call that a journal records, declared once.
//!
//! Owns: the tables of calls (`calls!` in `table.rs`), one per subject, and the kinds of their
//! arguments. A kind defines what a journal holds of an argument, how a replay makes one, and how a
//! person reads it. What shrinks, renames or exports arguments matches on [`Slot`], which has a variant
//! for each kind.
//!
//! Invariant: the order of a table's calls and of their arguments is the format of journals. New calls go to
//! the end.

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

/// The subject and the journal of a call whose arguments are recorded.
#[derive(Debug)]
pub struct Recorder<'a, S> {
    subject: &'a S,
    journal: &'a mut Journal,
    /// Blocks at the start of a chain that the journal knows, if the last of them is in the index. For a
    /// batch, 1 if the manager has looked up its requests.
    indexed: usize,
}

/// A kind of argument of calls of `S`: a meaning, not a type. Several kinds are lists of block ids.
pub trait Argument<S: Recordable> {
    /// What a journal holds. Its encoding is the format.
    type Record;
    /// What a method takes. It is borrowed, so that a call without a journal copies nothing.
    type Live<'a>: Copy;
    /// What a replay makes to lend it.
    type Own;

    /// The record of an argument.
    fn record(live: Self::Live<'_>, to: &mut Recorder<'_, S>) -> Self::Record;

    /// Makes the argument that a record describes.
    ///
    /// # Errors
    /// The record describes an argument that cannot be.
    fn own(record: &Self::Record, from: &mut S::Memory) -> Result<Self::Own, ReplayError>;

    /// Calls `call` with the argument.
    fn lend<R>(own: &Self::Own, call: impl FnOnce(Self::Live<'_>) -> R) -> R;

    /// The argument as a person reads it.
    fn words(record: &Self::Record) -> String;

    /// The record, by its kind.
    fn slot(record: &mut Self::Record) -> Slot<'_>;
}

/// A call whose arguments are known by their kinds.
pub trait Slots: Clone {
    /// The methods of all calls, in the order of the table.
    const NAMES: &'static [&'static str];

    /// The arguments, in order.
    fn slots(&mut self) -> Vec<Slot<'_>>;

    /// The call at this position of the table. Its arguments are zeros, empty lists and `None`: a
    /// record of zero bytes. Returns `None` behind the last call.
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

/// An answer, for a replay.
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
