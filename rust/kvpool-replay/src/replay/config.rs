//! Settings of a replay, and why one cannot run.

use std::fmt::{self, Display};
use std::str::FromStr;

use kvpool::groups::Groups;
use kvpool::{EvictionPolicy, HashAlgorithm, ManagerError, Verify};

use crate::error::ExpandError;

/// A tier beneath the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TierConfig {
    /// Blocks that it holds. At least 1.
    pub blocks: usize,
    /// Milliseconds that one block takes from it to the tier above.
    pub load_ms_per_block: f64,
}

/// How requests are run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Each request looked up and stored at once.
    #[default]
    Lookup,
    /// Continuous batching in virtual time.
    Engine,
}

impl Mode {
    /// Every mode.
    pub const ALL: &'static [Self] = &[Self::Lookup, Self::Engine];

    /// The mode's name, as users write it.
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
#[derive(Clone, PartialEq)]
pub struct ReplayConfig {
    /// How requests are run.
    pub mode: Mode,
    /// Tokens per block of the pool.
    pub block_size: usize,
    /// KV-cache groups of a hybrid model, whose hash unit is `block_size`; `None` is one group of full
    /// attention. Lookup mode goes through the manager then: full blocks alone can hit, and the last
    /// token of a prompt is always computed.
    pub groups: Option<Groups>,
    /// Usable blocks of the pool, the null block not counted. At least 1.
    pub capacity_blocks: usize,
    /// How blocks are hashed.
    pub algorithm: HashAlgorithm,
    /// How hits are verified.
    pub verify: Verify,
    /// Seed of the hash algorithm, where it takes one.
    pub seed: Option<String>,
    /// Eviction policy.
    pub eviction: EvictionPolicy,
    /// Say of computed tokens why they had to be. Not in lookup mode without groups, which has no manager.
    pub explain: bool,
    /// Share of the pool that an admission leaves available while others run (engine mode).
    pub watermark: f64,
    /// Engine mode: requests that run at once, at most. At least 1.
    pub max_running: usize,
    /// Engine mode: tokens that one step computes, at most: one per decoding request, the rest prefill.
    /// At least 1. Of a hybrid model in lookup mode, tokens of a prompt that are computed at a time.
    pub step_tokens: usize,
    /// Engine mode: milliseconds of virtual time that a step takes, before its prefill tokens.
    pub step_ms: f64,
    /// Engine mode: prefill tokens per second of virtual time, added to `step_ms`.
    pub prefill_tokens_per_s: f64,
    /// Engine mode of one group: tiers beneath the device, from it down. What they hold is loaded, and
    /// not computed.
    pub tiers: Vec<TierConfig>,
    /// Threads that expand and hash prompts ahead of the replay, at most 1024; 0 chooses the number of cores.
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

/// The seed may be a secret: it is hidden.
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

/// Why a replay cannot run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// A setting out of range.
    #[error("{field} is {value}: must be {expected}")]
    InvalidConfig {
        /// The setting.
        field: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// The ids of a request do not give tokens.
    #[error("request {request}: {error}")]
    Expand {
        /// Number of the request, from 1.
        request: usize,
        /// Why.
        error: ExpandError,
    },
    /// The threads that hash ahead did not start, or one of them died.
    #[error("hashing ahead with {threads} threads: {reason}")]
    Threads {
        /// How many there were to be.
        threads: usize,
        /// What the system said.
        reason: String,
    },
    /// The manager or the pool refused.
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
