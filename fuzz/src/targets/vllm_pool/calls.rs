//! Calls of vLLM's pool with keys by number, and what can be seen of it. Tests that are written of cases make these calls, too: their
//! place is `fuzz/tests`.

use std::fmt::Debug;

use kvpool::Name;
use kvpool_vllm::{Key, Pool, Removed, Start, VllmError};

use super::model::{Block, Entry, Removal, Stored};

/// Keys that there are.
pub const KEYS: usize = 14;
/// The first of them differ in their digest alone, or in their group alone.
pub const PLAIN_KEYS: usize = 6;
/// Groups of lookups.
pub const GROUPS: [u32; 5] = [0, 1, Name::MAX_GROUP as u32, Name::MAX_GROUP as u32 + 1, u32::MAX];

/// A key by its number. Further ones have digests of other lengths, which the core takes one of, or groups that it just knows, or just
/// does not. What all of them begin with is padded to the same.
#[must_use]
#[expect(clippy::unwrap_used, clippy::missing_panics_doc, reason = "none is too long")]
pub fn key(number: usize) -> Key {
    match number {
        0..PLAIN_KEYS => Key::new(&[number as u8 / 2; 32], GROUPS[number % 2]),
        6 => Key::new(&[0; 16], 0),
        7 => Key::new(&[1; 16], 0),
        8..=10 => Key::new(&[0; 32], GROUPS[number - 6]),
        11 => Key::new(&[0; 35], 0),
        12 => Key::new(&[], 0),
        _ => Key::from_bytes(&[0; 3]),
    }
    .unwrap()
}

/// The number of a key; [`KEYS`] for any other.
#[must_use]
pub fn number(wanted: &Key) -> usize {
    (0..KEYS).find(|&number| key(number) == *wanted).unwrap_or(KEYS)
}

/// What an answer is, in words.
pub fn said(answer: impl Debug) -> String {
    format!("{answer:?}")
}

fn numbered(removed: &[Removed]) -> Vec<Removal> {
    removed.iter().map(|one| (one.block, number(&one.key), one.last_copy)).collect()
}

/// The number of the key of a key's digest in a group.
#[must_use]
pub fn in_group(of: usize, group: u32) -> usize {
    Key::new(key(of).digest(), group).map_or(KEYS, |key| number(&key))
}

/// What a call told, unless it was refused: then it should have told nothing.
fn told<T: Default + Debug + PartialEq>(result: Result<(), VllmError>, told: T) -> Result<T, VllmError> {
    if result.is_err() {
        assert_eq!(told, T::default(), "told by a call that is refused");
    }
    result.map(|()| told)
}

/// [`Pool::allocate`]: the blocks, and what was removed for them.
///
/// # Errors
/// As there.
pub fn allocate(pool: &mut Pool, n: usize) -> Result<(Vec<u32>, Vec<Removal>), VllmError> {
    let (mut out, mut removed) = (Vec::new(), Vec::new());
    let result = pool.allocate(n, &mut out, Some(&mut removed));
    told(result, (out, numbered(&removed)))
}

/// [`Pool::cache_full`]: what was removed, and which keys are new.
///
/// # Errors
/// As there.
pub fn cache_full(
    pool: &mut Pool,
    (first, before): (usize, Option<u32>),
    blocks: &[u32],
    keys: &[Option<usize>],
    block_size: usize,
) -> Result<(Vec<Removal>, Vec<Stored>), VllmError> {
    let (mut removed, mut stored) = (Vec::new(), Vec::new());
    let key_of = |position: usize| keys[position].map(key);
    let start = Start { first, before };
    let result = pool.cache_full(start, blocks, key_of, block_size, &mut removed, Some(&mut stored));
    told(result, (numbered(&removed), stored))
}

/// [`Pool::claim`]: what was removed.
///
/// # Errors
/// As there.
pub fn claim(pool: &mut Pool, blocks: &[u32]) -> Result<Vec<Removal>, VllmError> {
    let mut removed = Vec::new();
    let result = pool.claim(blocks, Some(&mut removed));
    told(result, numbered(&removed))
}

/// [`Pool::evict`]: what was removed.
///
/// # Errors
/// As there.
pub fn evict(pool: &mut Pool, block: u32, reuse_first: bool) -> Result<Vec<Removal>, VllmError> {
    pool.evict(block, reuse_first).map(|removed| numbered(&removed))
}

/// [`Pool::remove_hashes`]: what was removed.
pub fn remove_hashes(pool: &mut Pool, block: u32) -> Vec<Removal> {
    numbered(&pool.remove_hashes(block))
}

/// [`Pool::find_run`] of the digests of these keys, in one group.
#[must_use]
pub fn find_run(pool: &Pool, keys: &[usize], group: u32) -> Vec<u32> {
    let keys: Vec<Key> = keys.iter().map(|&number| key(number)).collect();
    let mut found = Vec::new();
    pool.find_run(keys.iter().map(Key::digest), group, &mut found);
    found
}

/// Whether [`Pool::set_num_free`] is not refused.
pub fn set_num_free(pool: &mut Pool, count: usize) -> bool {
    pool.set_num_free(count).is_ok()
}

/// What the blocks are.
#[must_use]
pub fn blocks(pool: &Pool) -> Vec<Block> {
    let keys = pool.keys();
    let block = |id| Block {
        refs: pool.ref_count(id),
        hash: keys.hash_of(id).map(|(key, tokens)| (number(&key), tokens)),
        further: keys.further_keys(id).iter().map(number).collect(),
    };
    (0..pool.num_blocks() as u32).map(block).collect()
}

/// What keys lead to, of those that lead somewhere.
#[must_use]
pub fn entries(pool: &Pool) -> Vec<(usize, Entry)> {
    let keys = pool.keys();
    let entry = |key| Entry { copies: keys.copies(&key), was_shared: keys.was_shared(&key) };
    let all = (0..KEYS).map(|number| (number, entry(key(number))));
    all.filter(|(_, entry)| *entry != Entry::default()).collect()
}
