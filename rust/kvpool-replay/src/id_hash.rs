//! A fast hash for maps with block ids as keys: two multiplications, with a secret key per map.
//!
//! Ids come from files, and an attacker must not be able to make a file with ids that collide. No
//! result depends on the key, because the code never iterates over such a map.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
};

/// Creates the hasher of a map with ids as keys, with an individual random key per map.
#[derive(Clone, Debug)]
pub(crate) struct IdHasherBuilder {
    key: u64,
}

impl Default for IdHasherBuilder {
    fn default() -> Self {
        // The standard library's random keys, drawn once per map.
        Self { key: RandomState::new().hash_one(0_u64) }
    }
}

impl BuildHasher for IdHasherBuilder {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher { state: self.key }
    }
}

/// Hashes one id. The key is added before the multiplication, and both halves of the 128-bit product
/// are used.
#[derive(Debug)]
pub(crate) struct IdHasher {
    state: u64,
}

/// 2^64 divided by the golden ratio, and a second odd constant without a regular pattern (both from
/// `SplitMix64`).
const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND: u64 = 0xbf58_476d_1ce4_e5b9;

impl Hasher for IdHasher {
    fn write_u64(&mut self, id: u64) {
        self.state = fold(fold(id ^ self.state, FIRST) ^ self.state.rotate_left(32), SECOND);
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn finish(&self) -> u64 {
        self.state
    }
}

/// Multiplies two 64-bit numbers, and combines the two halves of the product by XOR.
fn fold(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    (product >> 64) as u64 ^ product as u64
}
