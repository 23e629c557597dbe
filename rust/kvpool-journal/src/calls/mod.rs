//! Declares every call that a journal records, once.
//!
//! Owns: the tables of calls (`calls!` in `table.rs`), one per subject, and the kinds of their
//! arguments. A kind defines how a journal stores an argument, how a replay makes it, and its text for
//! people. [`Slot`] has a variant for each kind. Code that shrinks, translates or exports arguments
//! matches on it.
//!
//! Invariant: the order of a table's calls, and of their arguments, is the format of journals. New
//! calls are added at the end.

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

/// The pool or manager and its journal, which are needed to record the arguments of a call.
#[derive(Debug)]
pub struct Recorder<'a, S> {
    subject: &'a S,
    journal: &'a mut Journal,
    /// Number of leading blocks of a chain that earlier records contain, so that this record omits
    /// them. The pool's index must contain the last of them. For the requests of a batch: 1 if the
    /// manager found all of them, otherwise 0.
    indexed: usize,
}

/// A kind of argument of the calls of `S`, which is a pool or a manager. A kind stands for a meaning,
/// not for a Rust type: for example, several kinds are lists of block ids.
pub trait Argument<S: Recordable> {
    /// The form of the argument that a journal stores. Its encoding is part of the format of journals.
    type Record;
    /// The form of the argument that the called method takes. It is borrowed, so that a call without a
    /// journal copies nothing.
    type Live<'a>: Copy;
    /// The form of the argument that a replay owns and lends to the called method.
    type Own;

    /// Makes the record of an argument that a call got.
    fn record(live: Self::Live<'_>, to: &mut Recorder<'_, S>) -> Self::Record;

    /// Makes an argument from its record.
    ///
    /// # Errors
    /// [`ReplayError`] if the record describes an impossible argument.
    fn own(record: &Self::Record, from: &mut S::Memory) -> Result<Self::Own, ReplayError>;

    /// Converts the argument to the borrowed form, and calls `call` with it.
    fn lend<R>(own: &Self::Own, call: impl FnOnce(Self::Live<'_>) -> R) -> R;

    /// Returns the recorded argument as readable text.
    fn words(record: &Self::Record) -> String;

    /// Returns the record as a [`Slot`], so that code can match on the kind of the argument.
    fn slot(record: &mut Self::Record) -> Slot<'_>;
}

/// A call whose arguments can be accessed by kind.
pub trait Slots: Clone {
    /// Names of the methods of all calls, in the order of the table.
    const NAMES: &'static [&'static str];

    /// Returns the arguments of the call, in order.
    fn slots(&mut self) -> Vec<Slot<'_>>;

    /// Returns the call at this position in the table, or `None` after the last call. Its arguments are
    /// zeros, empty lists and `None`, whose encodings consist of zero bytes.
    #[must_use]
    fn blank(position: u8) -> Option<Self>
    where
        Self: DeserializeOwned,
    {
        /// Zero bytes, from which the arguments of any call can be decoded. The encoded arguments of a
        /// call that are all zero or empty need at most 64 bytes.
        const ZEROS: [u8; 64] = [0; 64];
        postcard::from_bytes(&[&[position], &ZEROS[..]].concat()).ok()
    }
}

/// Converts the return value of a call into the recorded answer, with which a replay compares its own.
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
