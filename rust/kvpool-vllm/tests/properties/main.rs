//! Tests that historical bugs do not occur in vLLM's pool on top of kvpool. Each bug is a property of
//! the list of 25 in `design/properties.md`, with its number. Here are those that apply to this crate.
//! `tests/properties` tests the parts that are in vLLM's Python code.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking, as tests do")]

mod p01_freed_twice;
mod p06_free_before_cached;
mod p11_stale_readers;
mod p15_event_lengths;
mod p17_superseded_partial;

use std::collections::{BTreeMap, BTreeSet};

use kvpool::EvictionPolicy;
use kvpool_vllm::{Key, Pool, Removed, Start, VllmError};
use proptest::prelude::*;

/// Tokens per block.
const B: usize = 4;

/// Returns the key of a prefix. Its digest begins with the prefix.
fn key(prefix: &[u8]) -> Key {
    let mut digest = [0; 32];
    digest[..prefix.len()].copy_from_slice(prefix);
    digest[31] = prefix.len() as u8;
    Key::new(&digest, 0).unwrap()
}

/// Every eviction policy, except the one that needs access times.
fn policies() -> impl Iterator<Item = EvictionPolicy> {
    kvpool_policies::ALL.iter().copied().filter(|&policy| policy != kvpool_policies::LAST_ACCESS)
}

fn take(pool: &mut Pool, n: usize) -> Vec<u32> {
    let mut blocks = Vec::new();
    pool.allocate(n, &mut blocks, None).unwrap();
    blocks
}

/// Caches `blocks` as the full blocks of `prompt`. Each token of the prompt is one byte. Returns the
/// keys that were removed.
fn cache(pool: &mut Pool, blocks: &[u32], prompt: &[u8]) -> Vec<Removed> {
    let mut removed = Vec::new();
    let key_of = |position: usize| Some(key(&prompt[..(position + 1) * B]));
    pool.cache_full(Start::at(0), blocks, key_of, B, &mut removed, None).unwrap();
    removed
}

fn order(pool: &Pool) -> Vec<u32> {
    pool.order().collect()
}
