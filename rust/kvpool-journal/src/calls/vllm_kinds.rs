//! Kinds of arguments of vLLM's pool.

use kvpool_vllm::{Key, Pool, Start};

use super::kinds::copied;
use super::{Argument, Recorder, Slot, words};
use crate::StartRecord;
use crate::error::ReplayError;
use crate::journaled::Recordable;

copied! {
    /// A block, by id.
    Id: u32, u32, |n| n, |n| n, |n| n.to_string();
    /// A block, which Python passes as an object.
    Object: u32, u32, |n| n, |n| n, |n| n.to_string();
    /// Where the blocks of a table begin.
    At: StartRecord, Start, Start::into, StartRecord::into, |start| start.first.to_string();
    /// A key.
    Hash: Key, Key, |key| key, |key| key, |key| words::hash(&key);
    /// The number of tokens of a partial block.
    Tokens: Option<u32>, Option<u32>, |n| n, |n| n, |_| String::new();
    /// A position in a prompt.
    Depth: u32, u32, |n| n, |n| n, |n| n.to_string();
    /// A KV-cache group.
    Group: u32, u32, |n| n, |n| n, |n| n.to_string();
    /// A reference count.
    References: i32, i32, |n| n, |n| n, |n| n.to_string();
    /// Yes or no.
    Flag: bool, bool, |is| is, |is| is, |_| String::new();
    /// The front of the queue, or its back.
    QueueEnd: bool, bool, |is| is, |is| is, |is| if is { "front" } else { "back" }.into();
}

/// Kinds that are lent as slices: kind, item, words.
macro_rules! slices {
    ($($(#[$doc:meta])* $kind:ident: $item:ty, $words:path;)*) => { $(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $kind {}

        impl Argument<Pool> for $kind {
            type Record = Vec<$item>;
            type Live<'a> = &'a [$item];
            type Own = Vec<$item>;

            fn record(live: &[$item], _: &mut Recorder<'_, Pool>) -> Vec<$item> {
                live.to_vec()
            }

            fn own(record: &Vec<$item>, _: &mut ()) -> Result<Vec<$item>, ReplayError> {
                Ok(record.clone())
            }

            fn lend<R>(own: &Vec<$item>, call: impl FnOnce(&[$item]) -> R) -> R {
                call(own)
            }

            fn words(record: &Vec<$item>) -> String {
                $words(record)
            }

            fn slot(record: &mut Vec<$item>) -> Slot<'_> {
                Slot::$kind(record)
            }
        }
    )* };
}

slices! {
    /// Blocks by id.
    Numbers: u32, words::numbers;
    /// Blocks that exist, by id.
    Claimed: u32, words::numbers;
    /// Blocks, which Python passes as objects.
    Objects: u32, words::numbers;
    /// Blocks that are released, which Python passes as objects.
    Freed: u32, words::numbers;
    /// The keys of blocks.
    Hashes: Option<Key>, words::hashes;
}

/// The key of the block before.
#[derive(Debug)]
pub enum Parent {}

impl Argument<Pool> for Parent {
    type Record = Option<Key>;
    type Live<'a> = Option<&'a Key>;
    type Own = Option<Key>;

    fn record(live: Option<&Key>, _: &mut Recorder<'_, Pool>) -> Option<Key> {
        live.copied()
    }

    fn own(record: &Option<Key>, _: &mut ()) -> Result<Option<Key>, ReplayError> {
        Ok(*record)
    }

    fn lend<R>(own: &Option<Key>, call: impl FnOnce(Option<&Key>) -> R) -> R {
        call(own.as_ref())
    }

    fn words(record: &Option<Key>) -> String {
        record.as_ref().map_or_else(|| "nothing".into(), words::hash)
    }

    fn slot(record: &mut Option<Key>) -> Slot<'_> {
        Slot::Parent(record)
    }
}
