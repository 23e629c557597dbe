//! Kinds of arguments of vLLM's pool.

use kvpool_vllm::{Key, Pool, Start};

use super::kind::{copied, kinds, slices};
use super::words;
use crate::StartRecord;

copied! {
    /// The id of a block.
    Id: u32, u32, |n| n, |n| n, |n| n.to_string();
    /// The id of a block that Python passes as an object.
    Object: u32, u32, |n| n, |n| n, |n| n.to_string();
    /// The position in a block table at which the blocks of the call begin.
    At: StartRecord, Start, Start::into, StartRecord::into, |start| start.first.to_string();
    /// A key.
    Hash: Key, Key, |key| key, |key| key, |key| words::hash(&key);
    /// The number of tokens that the hash of a partial block covers.
    Tokens: Option<u32>, Option<u32>, |n| n, |n| n, |_| String::new();
    /// A position in a prompt, in blocks.
    Depth: u32, u32, |n| n, |n| n, |n| n.to_string();
    /// A KV-cache group.
    Group: u32, u32, |n| n, |n| n, |n| n.to_string();
    /// A reference count.
    References: i32, i32, |n| n, |n| n, |n| n.to_string();
    /// A truth value.
    Flag: bool, bool, |is| is, |is| is, |_| String::new();
    /// The end of the free queue to which blocks are added: true is the front, false is the back.
    QueueEnd: bool, bool, |is| is, |is| is, |is| if is { "front" } else { "back" }.into();
}

slices! {
    /// A list of block ids.
    Numbers: u32, words::numbers;
    /// A list of ids of existing blocks.
    Claimed: u32, words::numbers;
    /// A list of ids of blocks that Python passes as objects.
    Objects: u32, words::numbers;
    /// A list of ids of blocks that are released, and that Python passes as objects.
    Freed: u32, words::numbers;
    /// The key of each block, or `None` for a block to skip.
    Hashes: Option<Key>, words::hashes;
}

kinds! { [] Pool;
    /// The key of the previous block of the prompt.
    Parent: Option<Key>, Option<&'a Key>, Option<Key>,
        |key, _| key.copied(), |key, _| Ok(*key), |key| key.as_ref(),
        |key: &Option<Key>| key.as_ref().map_or_else(|| "nothing".into(), words::hash);
}
