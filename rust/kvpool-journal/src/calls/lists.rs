//! Kinds of arguments that are lists of block ids. A journal holds all of them alike.

use kvpool::BlockId;

use super::{Argument, Recorder, Slot, words};
use crate::Ids;
use crate::error::ReplayError;
use crate::journaled::Recordable;

macro_rules! lists {
    ($($(#[$doc:meta])* $kind:ident),*) => { $(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $kind {}

        impl<S: Recordable> Argument<S> for $kind {
            type Record = Ids;
            type Live<'a> = &'a [BlockId];
            type Own = Vec<BlockId>;

            fn record(live: &[BlockId], _: &mut Recorder<'_, S>) -> Ids {
                Ids::pack(live)
            }

            fn own(record: &Ids, _: &mut S::Memory) -> Result<Vec<BlockId>, ReplayError> {
                Ok(record.unpack())
            }

            fn lend<R>(own: &Vec<BlockId>, call: impl FnOnce(&[BlockId]) -> R) -> R {
                call(own)
            }

            fn words(record: &Ids) -> String {
                words::blocks(record)
            }

            fn slot(record: &mut Ids) -> Slot<'_> {
                Slot::$kind(record)
            }
        }
    )* };
}

lists! {
    /// Blocks that the caller holds.
    Held,
    /// Blocks that the caller holds, of a prompt, from a position on.
    Part,
    /// All blocks of a table.
    Table,
    /// Any blocks.
    Named,
    /// Free blocks.
    Free
}
