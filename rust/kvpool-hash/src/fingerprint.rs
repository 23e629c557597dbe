//! Fingerprints: an independent second check of every hit.
//!
//! A user who chooses the tokens of a prompt can make a non-cryptographic digest collide. The
//! fingerprint is SipHash-1-3 with 128 bits, under a key that such a user does not know. It is chained
//! over the native encoding of the same blocks and of *all* extra keys, including those that a vLLM
//! encoding cannot represent. It has nothing in common with the digest: neither the function, nor the
//! key, nor the parent.
//!
//! The key is derived from the configured key and seed under its own domain tag, so that neither can be
//! computed from their other uses. Without a configured key and seed, the key is public, and the
//! fingerprint detects only accidental collisions.
//!
//! Cost: SipHash-1-3 over about 93 bytes per 16-token text block, and 16 bytes of memory.

use std::hash::Hasher;

use sha2::{Digest, Sha256};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::Fingerprint;
use super::config::HasherConfig;

const KEY_TAG: &[u8] = b"kvpool fingerprint key 1";

/// The keyed hash function.
#[derive(Clone, Copy)]
pub(super) struct Fingerprinter {
    k0: u64,
    k1: u64,
}

impl Fingerprinter {
    /// Derives the key: the first 16 bytes of SHA-256 over the tag, the key and the seed, each preceded
    /// by a byte that shows whether it is present.
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

    /// Computes the fingerprint of a message.
    pub(super) fn hash(&self, message: &[u8]) -> Fingerprint {
        let mut hasher = SipHasher13::new_with_keys(self.k0, self.k1);
        hasher.write(message);
        hasher.finish128().as_u128()
    }
}

/// The first two little-endian words of the SHA-256 of `message`.
pub(super) fn first_words(message: &[u8]) -> (u64, u64) {
    let digest = Sha256::digest(message);
    let word = |at: usize| {
        digest.iter().skip(at).take(8).rev().fold(0u64, |word, &byte| word << 8 | u64::from(byte))
    };
    (word(0), word(8))
}
