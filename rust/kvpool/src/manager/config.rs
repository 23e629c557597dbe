//! What a manager is made of, and what it counts.

use std::fmt;

use crate::groups::Groups;
use crate::hash::{HashAlgorithm, HasherConfig, Verify};
use crate::retention::{HintReport, RetentionConfig, RetentionStats};
use crate::{DuplicatePolicy, EvictionPolicy, PoolConfig, PoolStats};

/// Settings of a [`CacheManager`](super::CacheManager).
#[derive(Clone, PartialEq)]
pub struct ManagerConfig {
    /// Blocks of the pool, null block included. At least 2.
    pub num_blocks: usize,
    /// Tokens per block. At least 1.
    pub block_size: usize,
    /// How blocks are hashed.
    pub algorithm: HashAlgorithm,
    /// How hits are verified. A non-cryptographic algorithm needs at least [`Verify::Fingerprint`].
    pub verify: Verify,
    /// Key of BLAKE3 and of fingerprints.
    pub key: Option<[u8; 32]>,
    /// Seed of XXH3, of fingerprints, and of vLLM's encodings.
    pub seed: Option<String>,
    /// What happens to released duplicates.
    pub duplicates: DuplicatePolicy,
    /// Which cached-free block is reused first.
    pub eviction: EvictionPolicy,
    /// Priorities, times to live, pins and tenants' limits of the device's blocks, for a policy of the
    /// crate `kvpool-policies`. `None` has none of it, and costs nothing.
    pub retention: Option<RetentionConfig>,
    /// Share of the usable blocks, 0.0 to below 1.0, that an admission leaves available while other
    /// requests run, so that these can go on appending.
    pub watermark: f64,
    /// Blocks of the host tier, null block included: where requests are swapped out to. 0 for none.
    pub host_blocks: usize,
    /// The KV-cache groups of a hybrid model, whose hash unit is `block_size`: a request has a block
    /// table in each of them, all with blocks of one pool. `None` is one group of full attention. Hits
    /// of several groups are not verified: they need [`Verify::None`] and a cryptographic hash.
    pub groups: Option<Groups>,
    /// Bytes of KV that one block holds over all layers; 0 if unknown. Only for [`ManagerStats`].
    pub block_bytes: u64,
    /// Fields may come: end a literal with `..Default::default()`.
    #[doc(hidden)]
    pub more: (),
}

impl Default for ManagerConfig {
    fn default() -> Self {
        let PoolConfig { num_blocks, block_size, verify, duplicates, eviction, retention, more } =
            PoolConfig::default();
        Self {
            num_blocks,
            block_size,
            algorithm: HashAlgorithm::Sha256,
            verify,
            key: None,
            seed: None,
            duplicates,
            eviction,
            retention,
            watermark: 0.0,
            host_blocks: 0,
            groups: None,
            block_bytes: 0,
            more,
        }
    }
}

impl ManagerConfig {
    /// The settings of the device's pool.
    #[must_use]
    pub fn pool(&self) -> PoolConfig {
        PoolConfig {
            num_blocks: self.num_blocks,
            block_size: self.block_size,
            verify: self.verify,
            duplicates: self.duplicates,
            eviction: self.eviction,
            retention: self.retention.clone(),
            more: self.more,
        }
    }

    pub(super) fn hasher(&self) -> HasherConfig {
        HasherConfig {
            algorithm: self.algorithm,
            block_size: self.block_size,
            verify: self.verify,
            key: self.key,
            seed: self.seed.clone(),
        }
    }
}

/// Key and seed are hidden, as in [`HasherConfig`].
impl fmt::Debug for ManagerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagerConfig")
            .field("pool", &self.pool())
            .field("hasher", &self.hasher())
            .field("watermark", &self.watermark)
            .field("host_blocks", &self.host_blocks)
            .field("groups", &self.groups)
            .field("block_bytes", &self.block_bytes)
            .finish()
    }
}

/// Counters and gauges of a manager.
///
/// `hit_tokens + external_tokens + computed_tokens == prompt_tokens`, always: each request counts once,
/// at its first admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManagerStats {
    /// Requests that hold blocks now.
    pub running: usize,
    /// Requests that wait to be resumed.
    pub preempted: usize,
    /// Requests whose blocks are in the host tier.
    pub swapped: usize,
    /// Requests that a swap moves now.
    pub moving: usize,
    /// Requests whose external tokens are on their way.
    pub loading: usize,
    /// Requests that were released while they were moving or loading.
    pub releasing: usize,
    /// Requests admitted so far.
    pub admissions: u64,
    /// Prompt tokens of those requests.
    pub prompt_tokens: u64,
    /// Of those, tokens whose KV was cached.
    pub hit_tokens: u64,
    /// Of those, tokens whose KV a connector brought.
    pub external_tokens: u64,
    /// Of those, tokens that the engine had to compute; external ones until they are there.
    pub computed_tokens: u64,
    /// Admissions refused for want of blocks, resumptions included.
    pub refusals: u64,
    /// Tokens of prompts, and of resumed requests, that every group of full attention had cached, and
    /// another group could not serve.
    pub unserved_tokens: u64,
    /// States of recurrent groups that were copied to be kept.
    pub checkpoints: u64,
    /// Tokens appended after admission.
    pub appended_tokens: u64,
    /// Requests preempted.
    pub preemptions: u64,
    /// Computed tokens that preemptions gave up, cached again or not.
    pub preempted_tokens: u64,
    /// Requests resumed.
    pub resumptions: u64,
    /// Tokens of resumed requests.
    pub resumed_tokens: u64,
    /// Of those, tokens whose KV was still cached.
    pub resumed_hit_tokens: u64,
    /// Of those, tokens whose KV a connector brought.
    pub resumed_external_tokens: u64,
    /// Requests forked from others.
    pub forks: u64,
    /// Requests swapped out, swaps that were aborted not counted.
    pub swapped_out: u64,
    /// Requests swapped in.
    pub swapped_in: u64,
    /// Blocks handed out to be copied: by copy-on-write and by swaps.
    pub copied_blocks: u64,
    /// Bytes of KV per block; 0 if unknown.
    pub block_bytes: u64,
    /// What became of the hints so far, by blocks: those of requests once for each time that they took
    /// effect.
    pub hints: HintReport,
    /// How many blocks are retained how; `None` without retention.
    pub retention: Option<RetentionStats>,
    /// The pool's own figures.
    pub pool: PoolStats,
}
