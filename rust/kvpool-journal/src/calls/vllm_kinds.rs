//! Kinds of arguments of vLLM's pool.

use kvpool_vllm::{Key, Pool, Start};

use super::kind::{copied, kinds, slices};
use super::words;
use crate::StartRecord;

copied! {
    /// A block, by id.
    Id: u32, u32, |n| n, |n| n, |n| n.to_string();
    /// A block, which Python passes as an object.
    Object: u32, u32, |n| n, |n| n, |n| n.to_string();
    /// Position at which the blocks of a table begin.
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

kinds! { [] Pool;
    /// The key of the block before.
    Parent: Option<Key>, Option<&'a Key>, Option<Key>,
        |key, _| key.copied(), |key, _| Ok(*key), |key| key.as_ref(),
        |key: &Option<Key>| key.as_ref().map_or_else(|| "nothing".into(), words::hash);
}
