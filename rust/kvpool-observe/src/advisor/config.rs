//! `AdvisorConfig`: the settings of an advisor.

use kvpool::EvictionPolicy;
use kvpool::PoolError;

/// Settings of the advisor of a pool.
///
/// The advisor follows only a sample of the blocks. The sampling rate is chosen so that the sample of a
/// cache of eight times the pool's size fits into [`max_sampled_blocks`](Self::max_sampled_blocks). The
/// rate is at most one in [`sample_every`](Self::sample_every).
///
/// ```
/// use kvpool_observe::AdvisorConfig;
/// let config = AdvisorConfig { sample_every: 10, max_tenants: 100, ..AdvisorConfig::default() };
/// config.check()?;
/// assert!(AdvisorConfig { sample_every: 0, ..config }.check().is_err());
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdvisorConfig {
    /// The maximum number of sampled blocks, 64 to 2^24. Use a multiple of 8, because the pool itself
    /// corresponds to an eighth of it. Default 16,384.
    pub max_sampled_blocks: usize,
    /// The sampling rate is at most one block in this number, 1 or more. A larger number means less
    /// work on a small pool. Default 1.
    pub sample_every: u32,
    /// Policies to compare. For each of them, the advisor simulates a cache of the pool's size. A
    /// policy may occur once, and must not need access times. Default: [`kvpool_policies::ADVISED`].
    pub policies: Vec<EvictionPolicy>,
    /// The maximum number of tenants that are counted separately at a time, 0 to 1,024. Default 8.
    pub max_tenants: usize,
    /// The number of references after which all counts are halved, 1 or more. `None` means 16 times the
    /// pool's size in hash units (usually blocks), and at least 65,536.
    pub window: Option<u64>,
    /// A seed that determines which blocks are sampled. All seeds are equally good. Default 0.
    pub seed: u64,
}

impl Default for AdvisorConfig {
    fn default() -> Self {
        Self {
            max_sampled_blocks: 16_384,
            sample_every: 1,
            policies: kvpool_policies::ADVISED.to_vec(),
            max_tenants: 8,
            window: None,
            seed: 0,
        }
    }
}

impl AdvisorConfig {
    /// Checks the settings. Constructing a pool's observer checks them too.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for a setting out of range, a policy that is listed twice, or one
    /// that needs access times.
    pub fn check(&self) -> Result<(), PoolError> {
        let invalid = |field, value: String, expected: &str| Err(PoolError::config(field, value, expected));
        if !(64..=1 << 24).contains(&self.max_sampled_blocks) {
            return invalid("max_sampled_blocks", self.max_sampled_blocks.to_string(), "64 to 16777216");
        }
        if self.sample_every == 0 {
            return invalid("sample_every", "0".into(), "1 or more");
        }
        if self.max_tenants > 1024 {
            return invalid("max_tenants", self.max_tenants.to_string(), "at most 1024");
        }
        if self.window == Some(0) {
            return invalid("window", "0".into(), "1 or more references");
        }
        for (index, &policy) in self.policies.iter().enumerate() {
            if !kvpool_policies::in_full(policy).has_order() {
                return invalid(
                    "policies",
                    policy.name().into(),
                    "policies that need no access times of the caller's",
                );
            }
            if self.policies[..index].contains(&policy) {
                return invalid("policies", format!("{} twice", policy.name()), "each policy once");
            }
        }
        Ok(())
    }

    /// Computes the sampling rate and the window for a pool of `usable` hash units (usually blocks).
    pub(super) fn scale(&self, usable: usize) -> Scale {
        let most = self.max_sampled_blocks / DEEPEST;
        let slots = (usable / self.sample_every as usize).clamp(1, most);
        let least_window = 16 * (usable as u64).max(1 << 12);
        Scale {
            usable: usable as u64,
            slots,
            rate: (slots as f64 / usable.max(1) as f64).min(1.0),
            window: self.window.unwrap_or(least_window),
        }
    }
}

/// The largest cache size that is estimated, as a multiple of the pool's size.
pub(super) const DEEPEST: usize = 8;

/// The sizes of an advisor's sample. They depend on the size of the pool.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Scale {
    /// The size of the pool in hash units: the pieces in which prompts are hashed. A hash unit is a
    /// block, unless a KV-cache group has larger blocks.
    pub(super) usable: u64,
    /// The size of the pool in sampled hash units, which is the size of the simulated caches.
    pub(super) slots: usize,
    /// The sampling rate: the field `slots` divided by the field `usable`.
    pub(super) rate: f64,
    /// The number of references after which all counts are halved.
    pub(super) window: u64,
}
