//! Block hashing for KV caches: computes the digests that identify blocks. This crate does not depend
//! on a pool.
//!
//! A block's hash identifies the block *and everything before it*. It is the digest of the parent
//! block's digest, the block's tokens and the extra keys (adapter, salt, tenant, epoch, user,
//! multimodal items). Requests with a common hash may share KV memory, so this is a security boundary,
//! not an optimisation: an attacker who can make two different prefixes with the same hash can read or
//! poison another user's cache.
//!
//! * [`BlockHasher`] combines hash function, encoding, keys and block size. It is immutable and shared
//!   by all threads.
//! * [`HashCursor`] hashes one sequence, which can be appended to and truncated. Its [`HashChain`]
//!   always contains the digests of its full blocks.
//! * [`ExtraKeys`] contains all inputs of a hash besides the tokens.
//! * [`HashAlgorithm`] is a hash function with its encoding. Three algorithms use kvpool's native
//!   encoding. Four compute vLLM's digests, bit for bit ([`vllm`]).
//! * [`Verify`] adds an independent keyed [`Fingerprint`] to each digest. It is meant for hash
//!   functions for which an attacker can find collisions.
//!
//! Digests depend only on the configuration and the input. They do not depend on the process, the host,
//! its byte order or the environment. `design/hash-specification.md` specifies all bytes.
//! `tests/data/hash_vectors.json` contains test vectors that an independent Python program computed.
//!
//! SHA-256, the default, is always compiled in. The other hash functions and vLLM's encodings are cargo
//! features. All names are known in every build. If an algorithm is not compiled in
//! ([`HashAlgorithm::is_compiled_in`]), making a hasher returns [`HashError::NotCompiledIn`], whose
//! message names the features to enable.
//!
//! | feature | algorithms |
//! |---|---|
//! | `sha256` | sha256, faster on processors without SHA instructions |
//! | `blake3` | blake3, keyed or not |
//! | `xxh3` | xxh3 |
//! | `vllm` (with `sha256`) | vllm-sha256, vllm-sha256-cbor; with `xxh3` vllm-xxhash, vllm-xxhash-cbor |
//! | `recorded` (not by default) | digests that are looked up, for replays, which have no tokens |
//!
//! ```
//! use std::sync::Arc;
//! use kvpool_hash::{BlockHasher, ExtraKeys, HashCursor, HasherConfig};
//!
//! let hasher = Arc::new(BlockHasher::new(HasherConfig::default())?);
//! let prompt: Vec<u32> = (0..40).collect();
//! let mut a = HashCursor::new(Arc::clone(&hasher), ExtraKeys::default())?;
//! assert_eq!(a.append(&prompt), 2);
//!
//! // Equal salts give equal hashes. Different salts have no hash in common.
//! let salted = |salt: &[u8]| ExtraKeys { salt: Some(salt.into()), ..ExtraKeys::default() };
//! let mut b = HashCursor::new(Arc::clone(&hasher), salted(b"b"))?;
//! b.append(&prompt);
//! let mut c = HashCursor::new(hasher, salted(b"b"))?;
//! c.append(&prompt);
//! assert_eq!(b.chain(), c.chain());
//! assert!(a.chain().hashes().iter().all(|hash| !b.chain().hashes().contains(hash)));
//! # Ok::<(), kvpool_hash::HashError>(())
//! ```

#![forbid(unsafe_code)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod algorithm;
mod block_hash;
mod canonical;
#[cfg(feature = "vllm")]
mod cbor;
mod chain;
mod config;
mod cursor;
#[cfg(feature = "vllm")]
mod encoder;
mod error;
mod extra;
mod fingerprint;
mod hasher;
mod known;
mod link;
#[cfg(feature = "vllm")]
mod pickle;
#[cfg(feature = "recorded")]
mod recorded;
mod sha256;
#[cfg(test)]
mod tests;
#[cfg(feature = "vllm")]
pub mod vllm;

pub use algorithm::{HashAlgorithm, Verify};
pub use block_hash::{BlockHash, Fingerprint};
pub use chain::HashChain;
pub use config::{HasherConfig, MAX_BLOCK_SIZE};
pub use cursor::HashCursor;
pub use error::HashError;
pub use extra::{Adapter, ExtraKeys, MultimodalItem};
pub use hasher::{BlockHasher, ChainState};
pub use known::{KnownBlocks, KnownStates};
pub use link::{ChainLink, LinkRef};
#[cfg(feature = "recorded")]
pub use recorded::RecordedHashes;

/// Lets `cargo test` run the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
