//! Defines the settings of a manager, and its counters.

use std::fmt;

use crate::groups::Groups;
use crate::hash::{HashAlgorithm, HasherConfig, Verify};
use crate::retention::{HintReport, RetentionConfig, RetentionStats};
use crate::{DuplicatePolicy, EvictionPolicy, PoolConfig, PoolStats};

/// Settings of a [`CacheManager`](super::CacheManager).
///
/// ```
/// use kvpool::{CacheManager, ManagerConfig};
/// // Admissions leave 1 % of the blocks to running requests; swaps use 500 blocks of host memory.
/// let config = ManagerConfig {
///     num_blocks: 1000,
///     block_size: 16,
///     watermark: 0.01,
///     host_blocks: 500,
///     ..ManagerConfig::default()
/// };
/// let manager = CacheManager::new(config)?;
/// assert_eq!(manager.tiers().len(), 2);
/// # Ok::<(), kvpool::ManagerError>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct ManagerConfig {
    /// Number of blocks in the pool, including the null block. At least 2.
    pub num_blocks: usize,
    /// Tokens per block. At least 1.
    pub block_size: usize,
    /// The algorithm of block hashes.
    pub algorithm: HashAlgorithm,
    /// How a lookup checks that a cached block has the same tokens as the prompt, so that a hash
    /// collision does no harm. A non-cryptographic algorithm needs at least [`Verify::Fingerprint`].
    pub verify: Verify,
    /// The key for BLAKE3 and for fingerprints.
    pub key: Option<[u8; 32]>,
    /// The seed for XXH3, for fingerprints, and for the encodings that match vLLM's hashes.
    pub seed: Option<String>,
    /// Whether a released block remains cached if another block already caches the same content.
    pub duplicates: DuplicatePolicy,
    /// The eviction policy of the device's pool.
    pub eviction: EvictionPolicy,
    /// Settings of retention for the device's blocks: priorities, times to live, pins and tenants'
    /// limits. Retention needs an eviction policy of the crate `kvpool-policies`. `None` switches it
    /// off and costs nothing.
    pub retention: Option<RetentionConfig>,
    /// Share of the usable blocks, from 0.0 to below 1.0, that an admission leaves available while
    /// other requests run. The running requests need these blocks for the tokens that they append.
    pub watermark: f64,
    /// Number of blocks in the host tier, including the null block. Requests are swapped out to it. 0
    /// means that there is no host tier.
    pub host_blocks: usize,
    /// The KV-cache groups of a hybrid model. Their hash unit, the number of tokens per hash, has to be
    /// `block_size`. A request has one block table per group, and all groups take blocks from the same
    /// pool. `None` means one group of full attention. Hits of several groups are not verified, so they
    /// need [`Verify::None`] and a cryptographic hash.
    pub groups: Option<Groups>,
    /// Bytes of KV in one block, over all layers. 0 if unknown. Only reported in [`ManagerStats`].
    pub block_bytes: u64,
    /// Whether the device's pool keeps the tokens of registered blocks, so that
    /// [`CacheManager::prepare`](super::CacheManager::prepare) does not hash the cached beginning of a
    /// prompt: see [`PoolConfig::keep_tokens`], also for the memory. Digests and hits do not depend on
    /// it. With KV-cache groups, it only helps if the first group has full attention and one hash per
    /// block. On by default.
    pub keep_tokens: bool,
    /// More fields may be added. End struct literals with `..Default::default()`.
    #[doc(hidden)]
    pub more: (),
}

impl Default for ManagerConfig {
    fn default() -> Self {
        let PoolConfig { num_blocks, block_size, verify, duplicates, eviction, retention, more, .. } =
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
            keep_tokens: true,
            more,
        }
    }
}

impl ManagerConfig {
    /// Returns the settings of the device's pool.
    #[must_use]
    pub fn pool(&self) -> PoolConfig {
        PoolConfig {
            num_blocks: self.num_blocks,
            block_size: self.block_size,
            verify: self.verify,
            duplicates: self.duplicates,
            eviction: self.eviction,
            retention: self.retention.clone(),
            keep_tokens: self.keep_tokens,
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

/// Formats the settings without the key and the seed, like [`HasherConfig`] does.
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
/// `hit_tokens + external_tokens + computed_tokens == prompt_tokens` always holds. Each request is
/// counted once, at its first admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManagerStats {
    /// Number of requests that are running. They hold blocks of the device.
    pub running: usize,
    /// Number of preempted requests that wait to be resumed.
    pub preempted: usize,
    /// Number of requests whose blocks are in the host tier.
    pub swapped: usize,
    /// Number of requests whose blocks a swap is moving between the tiers.
    pub moving: usize,
    /// Number of requests whose external tokens are being loaded.
    pub loading: usize,
    /// Number of requests that were released while a swap was moving them or a connector was loading
    /// into them.
    pub releasing: usize,
    /// Number of requests admitted so far.
    pub admissions: u64,
    /// Number of prompt tokens of all admitted requests.
    pub prompt_tokens: u64,
    /// Number of prompt tokens whose KV was cached.
    pub hit_tokens: u64,
    /// Number of prompt tokens whose KV a connector loaded.
    pub external_tokens: u64,
    /// Number of prompt tokens that the engine had to compute. External tokens are counted here until
    /// they are loaded.
    pub computed_tokens: u64,
    /// Number of admissions and resumptions that were refused because blocks were missing.
    pub refusals: u64,
    /// Number of tokens that admitted and resumed requests could have hit in the groups of full
    /// attention, but did not hit, because another group lacked the blocks.
    pub unserved_tokens: u64,
    /// Number of copies of recurrent states that were made so that later requests can hit them.
    pub checkpoints: u64,
    /// Number of tokens appended to requests after their admission.
    pub appended_tokens: u64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Number of tokens of preempted requests that were computed at their preemption. Their KV may have
    /// remained cached.
    pub preempted_tokens: u64,
    /// Number of resumptions.
    pub resumptions: u64,
    /// Number of tokens that requests had when they were resumed.
    pub resumed_tokens: u64,
    /// Number of `resumed_tokens` whose KV was still cached.
    pub resumed_hit_tokens: u64,
    /// Number of `resumed_tokens` whose KV a connector loaded.
    pub resumed_external_tokens: u64,
    /// Number of requests made by forks.
    pub forks: u64,
    /// Number of requests swapped out. Requests of aborted swaps are not counted.
    pub swapped_out: u64,
    /// Number of requests swapped in.
    pub swapped_in: u64,
    /// Number of block copies that transfer plans have returned, for copy-on-write and for swaps.
    pub copied_blocks: u64,
    /// Bytes of KV per block. 0 if unknown.
    pub block_bytes: u64,
    /// The results of all retention hints so far, in blocks. The hints of a request are counted again
    /// each time that they take effect.
    pub hints: HintReport,
    /// Number of the device's blocks per kind of retention hint. `None` without retention.
    pub retention: Option<RetentionStats>,
    /// The statistics of the device's pool.
    pub pool: PoolStats,
}
