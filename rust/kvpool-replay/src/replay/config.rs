//! The settings of a replay, and its errors.

use std::fmt::{self, Display};
use std::str::FromStr;

use kvpool::groups::Groups;
use kvpool::{EvictionPolicy, HashAlgorithm, ManagerError, Verify};

use crate::error::ExpandError;

/// A tier beneath the device.
///
/// ```
/// use kvpool_replay::replay::{Mode, ReplayConfig, TierConfig};
/// let host = TierConfig { blocks: 100_000, load_ms_per_block: 0.1 };
/// let config = ReplayConfig { mode: Mode::Engine, tiers: vec![host], ..ReplayConfig::default() };
/// assert_eq!(config.tiers[0].blocks, 100_000);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierConfig {
    /// The number of blocks of the tier. At least 1.
    pub blocks: usize,
    /// The time to move one block to the tier above, in milliseconds.
    pub load_ms_per_block: f64,
}

/// Whether a replay models time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Lookup mode: the replay looks up, stores and releases each request at once, without time.
    #[default]
    Lookup,
    /// A server with continuous batching, in virtual time.
    Engine,
}

impl Mode {
    /// Every mode.
    pub const ALL: &'static [Self] = &[Self::Lookup, Self::Engine];

    /// The name of the mode, as in options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lookup => "lookup",
            Self::Engine => "engine",
        }
    }
}

impl FromStr for Mode {
    type Err = ReplayError;

    fn from_str(name: &str) -> Result<Self, ReplayError> {
        Self::ALL.iter().copied().find(|mode| mode.name() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|mode| mode.name()).collect();
            ReplayError::InvalidConfig {
                field: "mode",
                value: format!("{name:?}"),
                expected: format!("one of {}", known.join(", ")),
            }
        })
    }
}

/// Settings of a replay.
///
/// ```
/// use std::sync::Arc;
/// use kvpool_replay::generate::{GeneratorConfig, generate};
/// use kvpool_replay::replay::{Mode, Replay, ReplayConfig};
/// let trace = generate(&GeneratorConfig { requests: 20, ..Default::default() })?;
/// let config = ReplayConfig { mode: Mode::Engine, block_size: 32, ..ReplayConfig::default() };
/// let mut replay = Replay::new(Arc::new(trace), config)?;
/// assert_eq!(replay.advance(usize::MAX)?, 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq)]
pub struct ReplayConfig {
    /// Whether requests run without time (lookup) or on a simulated server (engine).
    pub mode: Mode,
    /// The block size of the pool, in tokens.
    pub block_size: usize,
    /// The KV-cache groups of a hybrid model. Their hash unit is `block_size`. `None` means one group
    /// of full attention. With groups, lookup mode uses the manager: only full blocks can hit, and the
    /// last token of a prompt is always computed.
    pub groups: Option<Groups>,
    /// The number of usable blocks of the pool, without the null block. At least 1.
    pub capacity_blocks: usize,
    /// The algorithm of the block hashes.
    pub algorithm: HashAlgorithm,
    /// How the pool verifies that a hit has the same content as the prompt.
    pub verify: Verify,
    /// The seed of the hash algorithm, for algorithms that use one.
    pub seed: Option<String>,
    /// The eviction policy.
    pub eviction: EvictionPolicy,
    /// Whether to report why tokens had to be computed. Not supported in lookup mode without groups,
    /// which has no manager.
    pub explain: bool,
    /// Engine mode: while other requests run, a new request is admitted only if this share of the pool
    /// then remains available.
    pub watermark: f64,
    /// Engine mode: the maximum number of requests that run at once. At least 1.
    pub max_running: usize,
    /// Engine mode: the maximum number of tokens that one step computes. Each decoding request takes
    /// one, and the rest is used for prefill. At least 1. In lookup mode of a hybrid model, it is the
    /// number of prompt tokens that are computed at a time.
    pub step_tokens: usize,
    /// Engine mode: the virtual time of a step without prefill tokens, in milliseconds.
    pub step_ms: f64,
    /// Engine mode: prefill tokens per second of virtual time. Their time is added to `step_ms`.
    pub prefill_tokens_per_s: f64,
    /// Engine mode with one group: the tiers beneath the device, from the top down. Blocks that a tier
    /// has are loaded instead of computed.
    pub tiers: Vec<TierConfig>,
    /// The number of threads that expand and hash prompts in advance, at most 1024. 0 means one per
    /// core.
    pub threads: usize,
}

impl Default for ReplayConfig {
    fn default() -> Self {
        Self {
            mode: Mode::Lookup,
            block_size: 16,
            groups: None,
            capacity_blocks: 100_000,
            algorithm: HashAlgorithm::Sha256,
            verify: Verify::None,
            seed: None,
            eviction: EvictionPolicy::LRU,
            explain: false,
            watermark: 0.0,
            max_running: 256,
            step_tokens: 8192,
            step_ms: 20.0,
            prefill_tokens_per_s: 50_000.0,
            tiers: Vec::new(),
            threads: 0,
        }
    }
}

/// Does not print the seed, which may be a secret.
impl fmt::Debug for ReplayConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayConfig")
            .field("mode", &self.mode)
            .field("block_size", &self.block_size)
            .field("capacity_blocks", &self.capacity_blocks)
            .field("algorithm", &self.algorithm)
            .field("verify", &self.verify)
            .field("seed", &self.seed.as_ref().map(|_| "hidden"))
            .field("eviction", &self.eviction)
            .finish_non_exhaustive()
    }
}

/// The reason why a replay cannot run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A setting is out of range.
    #[error("{field} is {value}: must be {expected}")]
    InvalidConfig {
        /// The setting.
        field: &'static str,
        /// The value of the setting.
        value: String,
        /// The allowed values.
        expected: String,
    },
    /// The ids of a request cannot be expanded to tokens.
    #[error("request {request}: {error}")]
    Expand {
        /// The number of the request, from 1.
        request: usize,
        /// The error.
        error: ExpandError,
    },
    /// The threads that hash prompts in advance did not start, or one of them ended early.
    #[error("hashing ahead with {threads} threads: {reason}")]
    Threads {
        /// The number of threads that should have started.
        threads: usize,
        /// The error of the system.
        reason: String,
    },
    /// The manager or the pool returned an error.
    #[error(transparent)]
    Manager(#[from] ManagerError),
}

impl From<kvpool::PoolError> for ReplayError {
    fn from(error: kvpool::PoolError) -> Self {
        Self::Manager(error.into())
    }
}

pub(super) fn check(
    ok: bool,
    field: &'static str,
    value: impl Display + Copy,
    expected: &str,
) -> Result<(), ReplayError> {
    if ok {
        return Ok(());
    }
    Err(ReplayError::InvalidConfig { field, value: value.to_string(), expected: expected.into() })
}
