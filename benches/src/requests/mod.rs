//! Runs whole requests through kvpool and through two yardsticks, simple managers for comparison.
//!
//! A [`Manager`] runs requests from the tokens of a prompt to their release. Three types implement it:
//!
//! - [`Kvpool`] calls [`kvpool::CacheManager`] as a program that embeds kvpool does: with SHA-256, or
//!   with XXH3 verified by tokens.
//! - [`Radix`] compares tokens in a radix tree. It has no hashes.
//! - [`Map`] looks up chained 64-bit hashes in a hash map. It verifies nothing.
//!
//! The yardsticks have the designs of other managers: TGI and SGLang keep a radix tree, and others key
//! each block by a chained hash. They are written for this crate, contain no code of those projects,
//! and do only the work of a request. They have no tiers, groups, events, tenants, typed errors or
//! checks of their callers. So the cost of a yardstick is a lower bound for its design: a product of
//! the same design costs more.
//!
//! The tests in `benches/tests/yardsticks.rs` compare all three with one reference model.

mod kvpool_manager;
mod map;
pub mod measure;
mod radix;

use std::hash::{BuildHasherDefault, Hasher};

pub use kvpool_manager::Kvpool;
pub use map::Map;
pub use radix::Radix;

use kvpool::RequestRef;

/// Runs requests: admission, commit, decode steps, release.
///
/// A manager has the blocks 1 to `num_blocks` - 1. As in kvpool, block 0 is the null block. A hit
/// covers full blocks and leaves at least one token to compute. Blocks of a released request remain
/// cached until the manager evicts them.
pub trait Manager {
    /// Admits a request with its prompt, and returns the number of cached blocks. The time of this call
    /// includes hashing. If the available blocks do not suffice, returns `None` and admits nothing.
    fn admit(&mut self, id: i64, prompt: &[u32]) -> Option<usize>;

    /// Registers the full blocks of the first `computed` tokens of a request.
    fn commit(&mut self, id: i64, computed: usize);

    /// Appends one token to each request of a batch. All earlier tokens are computed. Returns false if
    /// too few blocks are available. In that case a yardstick may have appended tokens to the first
    /// requests of the batch.
    fn decode(&mut self, batch: &Batch, tokens: &[u32]) -> bool;

    /// Releases a request with all of its blocks.
    fn release(&mut self, id: i64);

    /// Returns the block table of a request.
    fn table(&self, id: i64) -> Vec<u32>;

    /// Returns the number of blocks that an allocation can take: free blocks, and cached ones without
    /// references.
    fn available(&self) -> usize;

    /// Removes all cached content. No request may hold blocks.
    fn reset(&mut self);
}

/// The requests that take part in a decode step.
#[derive(Debug)]
pub struct Batch {
    ids: Vec<i64>,
    /// The request ids in the type that kvpool's calls take.
    requests: Vec<RequestRef<'static>>,
}

impl Batch {
    /// Creates a batch of these requests.
    #[must_use]
    pub fn new(ids: Vec<i64>) -> Self {
        let requests = ids.iter().map(|&id| RequestRef::Int(id)).collect();
        Self { ids, requests }
    }
}

/// Hashes a number by one multiplication. This is fast, but does not protect against chosen keys.
#[derive(Clone, Copy, Debug, Default)]
struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

type NumberMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<Multiply>>;
