//! Fingerprints: a second, independent check of every hit.
//!
//! A user who chooses the tokens of a prompt can find two prompts with the same non-cryptographic
//! digest. The fingerprint is SipHash-1-3 with 128 bits, under a key that such a user does not know.
//! Like the digest, it is chained from block to block. It covers the native encoding of the same blocks
//! and of *all* extra keys, including those that a vLLM encoding cannot represent. It has another
//! function, another key and another parent than the digest, so a collision of digests does not make
//! fingerprints equal.
//!
//! The key of the fingerprints is a hash of the configured key and seed and of a fixed tag. Because of
//! the tag, the key cannot be computed from other values that are derived from them. Without a
//! configured key and seed, the key is public, and the fingerprint detects only accidental collisions.
//!
//! Cost: SipHash-1-3 over about 93 bytes per text block of 16 tokens, and 16 bytes of memory per block.

use std::hash::Hasher;

use sha2::{Digest, Sha256};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::Fingerprint;
use super::config::HasherConfig;

const KEY_TAG: &[u8] = b"kvpool fingerprint key 1";

/// A function that computes fingerprints: SipHash-1-3 with its 128-bit key.
#[derive(Clone, Copy)]
pub(super) struct Fingerprinter {
    k0: u64,
    k1: u64,
}

impl Fingerprinter {
    /// Derives the key from the configuration. It is the first 16 bytes of the SHA-256 of the tag, the
    /// configured key and the seed. A byte before each of the last two shows whether it is present.
    pub(super) fn new(config: &HasherConfig) -> Self {
        let mut message = KEY_TAG.to_vec();
        match &config.key {
            None => message.push(0),
            Some(key) => {
                message.push(1);
                message.extend_from_slice(key);
            }
        }
        match &config.seed {
            None => message.push(0),
            Some(seed) => {
                message.push(1);
                message.extend_from_slice(&(seed.len() as u64).to_le_bytes());
                message.extend_from_slice(seed.as_bytes());
            }
        }
        let (k0, k1) = first_words(&message);
        Self { k0, k1 }
    }

    pub(super) fn hash(&self, message: &[u8]) -> Fingerprint {
        let mut hasher = SipHasher13::new_with_keys(self.k0, self.k1);
        hasher.write(message);
        hasher.finish128().as_u128()
    }
}

/// Returns the first 16 bytes of the SHA-256 of `message`, as two little-endian numbers.
pub(super) fn first_words(message: &[u8]) -> (u64, u64) {
    let digest = Sha256::digest(message);
    let word = |at: usize| {
        digest.iter().skip(at).take(8).rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte))
    };
    (word(0), word(8))
}
