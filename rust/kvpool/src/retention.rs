//! Defines retention: hints of callers about the future use of blocks.
//!
//! Hints are priorities, times to live, pins, ends of life (a content will not be used again) and
//! tenants' limits. All of them are *advisory*: a hint only moves a block within the order of eviction.
//! An allocation succeeds as long as any block is evictable, regardless of the hints. No hint changes
//! the result of a lookup.
//!
//! A hint about a block ends when the content of the block is evicted or dropped. A new hint replaces
//! an earlier one. A hit ends a demotion, because the prediction of no further use was wrong. An
//! evictor that implements [`Retain`] applies the hints to the order of eviction, for instance `Closed`
//! of the crate `kvpool-policies`.
//!
//! Sources: priorities from 0 to 100, with the default 35 and a duration, are the same as in
//! TensorRT-LLM (`KvCacheRetentionConfig`). Pins have a budget, because pins without one caused
//! problems elsewhere (sglang #21045, mooncake #2909). There are two named kinds of time to live,
//! because in antfly #337 one kind was documented and the other implemented.

use crate::block::BlockId;
use crate::error::PoolError;

/// The priority of a block in the order of eviction, from 0 to 100. Blocks with higher priorities are
/// kept longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// The priority of blocks without a hint.
    pub const NORMAL: Self = Self(35);
    /// The highest priority. Only two kinds of blocks are evicted later: pinned blocks, and blocks that
    /// are reserved for a tenant.
    pub const MAX: Self = Self(100);

    /// Makes a priority from 0 to 100.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] above 100.
    pub fn new(priority: u8) -> Result<Self, PoolError> {
        if priority > Self::MAX.0 {
            return Err(PoolError::config("priority", priority, "0 to 100"));
        }
        Ok(Self(priority))
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// How a hint changes the position of a block in the order of eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The block is evicted before blocks without a hint, because it will not be used again.
    Demoted,
    /// The block is evicted after blocks of lower priority. Among blocks of [`Priority::NORMAL`], the
    /// eviction policy decides.
    Priority(Priority),
    /// The block is pinned: it is evicted after all blocks that are not pinned, as long as the number
    /// of pinned blocks is within the budget.
    Pinned,
}

/// The time after which a hint ends. An end that is too large for an `f64` is replaced by the largest
/// `f64`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ttl {
    /// Number of seconds that the block is cached without being in use. The time starts from 0 whenever
    /// the last request or fence releases the block. A hit stops it.
    Idle(f64),
    /// Number of seconds after the hint, regardless of how often the block is used.
    Absolute(f64),
}

/// The effect of a hint after its time to live has run out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Then {
    /// The block is treated like a block without a hint.
    #[default]
    Normal,
    /// The block is demoted, so that it is evicted before blocks without a hint.
    Demote,
}

/// A hint of a caller about a block.
///
/// ```
/// use kvpool::retention::{Keep, Priority, Retention, Then, Ttl};
/// // Kept with priority 80 for ten minutes, then evicted first.
/// let retention = Retention {
///     ttl: Some(Ttl::Absolute(600.0)),
///     then: Then::Demote,
///     ..Retention::of(Keep::Priority(Priority::new(80)?))
/// };
/// retention.check()?;
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retention {
    /// The position in the order of eviction.
    pub keep: Keep,
    /// The time to live of the hint. `None` means as long as the content is cached.
    pub ttl: Option<Ttl>,
    /// The effect of the hint after its time to live has run out: none, or a demotion.
    pub then: Then,
}

impl Retention {
    /// No hint. An earlier hint about the block is removed.
    pub const NORMAL: Self = Self::of(Keep::Priority(Priority::NORMAL));
    /// The block will not be used again, for instance because its session has ended, or its request was
    /// a scan or had `no_cache`.
    pub const END_OF_LIFE: Self = Self::of(Keep::Demoted);
    /// The block is kept as long as the pin budget allows it.
    pub const PINNED: Self = Self::of(Keep::Pinned);

    /// Makes a hint without a time to live.
    #[must_use]
    pub const fn of(keep: Keep) -> Self {
        Self { keep, ttl: None, then: Then::Normal }
    }

    /// Checks that the time to live is valid.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if the time to live is negative or not a finite number of seconds.
    pub fn check(&self) -> Result<(), PoolError> {
        match self.ttl {
            Some(Ttl::Idle(seconds) | Ttl::Absolute(seconds)) if !(seconds.is_finite() && seconds >= 0.0) => {
                Err(PoolError::config("ttl", seconds, "a number of seconds, not negative"))
            }
            _ => Ok(()),
        }
    }
}

/// Makes the error for a time to live that was given before the first call of `advance_time`.
#[must_use]
pub fn no_clock() -> PoolError {
    PoolError::config(
        "ttl",
        "a time to live",
        "given after the time is set (advance_time, in Python clock.advance)",
    )
}

/// Identifies a tenant. The blocks of a tenant are counted together. The caller chooses the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

/// The limits of a tenant: the number of blocks that are reserved for it, and the number above which
/// its blocks are evicted first.
///
/// ```
/// use kvpool::retention::{RetentionConfig, TenantId, TenantLimits};
/// let tenants = vec![TenantLimits { tenant: TenantId(7), floor: 1000, ceiling: Some(4000) }];
/// let config = RetentionConfig { pin_budget: 500, tenants };
/// assert_eq!(config.tenants[0].ceiling, Some(4000));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantLimits {
    /// The tenant.
    pub tenant: TenantId,
    /// Number of blocks that are reserved for the tenant. Other tenants do not evict them as long as
    /// any other block is evictable.
    pub floor: usize,
    /// Number of blocks above which the tenant's own blocks are evicted first. `None` means no ceiling.
    pub ceiling: Option<usize>,
}

/// The settings of retention.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionConfig {
    /// The largest number of blocks that can be pinned at the same time. Further pins only give the
    /// block [`Priority::MAX`].
    pub pin_budget: usize,
    /// The limits of each tenant. Tenants that are not listed have no limits.
    pub tenants: Vec<TenantLimits>,
}

impl RetentionConfig {
    /// The largest number of tenants with limits.
    pub const MAX_TENANTS: usize = 200;
}

/// The results of a hint: the number of blocks with each result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintReport {
    /// Number of blocks on which the hint took effect.
    pub accepted: usize,
    /// Number of blocks on which the hint took effect only in part: pins beyond the budget only give
    /// [`Priority::MAX`].
    pub clipped: usize,
    /// Number of blocks on which the hint had no effect, because the block is not cached, or because
    /// other requests hold it and the hint was that it will not be used again.
    pub ignored: usize,
}

/// The result of a hint for one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The hint took effect.
    Accepted,
    /// The hint took effect in part: the block got [`Priority::MAX`] instead of a pin.
    Clipped,
    /// The hint had no effect.
    Ignored,
}

impl HintReport {
    pub(crate) fn count(&mut self, hint: Hint) {
        match hint {
            Hint::Accepted => self.accepted += 1,
            Hint::Clipped => self.clipped += 1,
            Hint::Ignored => self.ignored += 1,
        }
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.accepted += more.accepted;
        self.clipped += more.clipped;
        self.ignored += more.ignored;
    }
}

/// Why a block was evicted: by the policy alone, or because of a hint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EvictionCause {
    /// The policy chose the block.
    #[default]
    Policy,
    /// The block's priority was not [`Priority::NORMAL`], or it had a pin, and this decided when it was
    /// evicted.
    Priority,
    /// The block was demoted, for instance by the end of a session or by `no_cache`.
    EndOfLife,
    /// The time to live of the block's hint had run out, and the block was not used since.
    Expired,
    /// The tenant of the block had more blocks than its ceiling.
    TenantCeiling,
}

/// Number of blocks per kind of retention, and number of hints that have run out so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionStats {
    /// Number of demoted blocks, which are evicted before others. Blocks in use are included.
    pub demoted: usize,
    /// Number of blocks below [`Priority::NORMAL`].
    pub below_normal: usize,
    /// Number of blocks above [`Priority::NORMAL`].
    pub above_normal: usize,
    /// Number of pinned blocks.
    pub pinned: usize,
    /// Number of blocks whose time to live is running. Idle times to live do not run while their blocks
    /// are in use.
    pub with_ttl: usize,
    /// Number of times to live that have run out so far.
    pub expired: u64,
}

/// The former name of [`SavedRetention`].
#[deprecated(since = "0.2.0", note = "use `SavedRetention`")]
pub type Said = SavedRetention;

/// The retention of a block in an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SavedRetention {
    /// The hint about the block. An absolute time to live is reduced to its remaining part.
    pub retention: Retention,
    /// Number of seconds until the time to live ends, if it is running.
    pub remaining: Option<f64>,
    /// The tenant of the block, if it has limits.
    pub tenant: Option<TenantId>,
}

/// The part of an evictor that applies retention hints. [`crate::BlockPool`] calls these methods for
/// one block at a time. The methods of `BlockPool` document the effects of hints.
pub trait Retain {
    /// Applies a hint to `block`, which is held by the evictor or in use. Ignores the hint if the block
    /// has no content.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for a time to live that is not a number of seconds, or is given
    /// before the first [`Self::advance_time`].
    fn retain(&mut self, block: BlockId, retention: Retention) -> Result<Hint, PoolError>;

    /// Assigns `block` to a tenant. A block that already has a tenant keeps it.
    fn assign(&mut self, block: BlockId, tenant: TenantId);

    /// Sets the time, in seconds. Returns the number of hints that ran out.
    ///
    /// # Errors
    /// [`PoolError::TimeBackwards`], [`PoolError::InvalidConfig`] if `now` is not a time. Nothing has
    /// changed then.
    fn advance_time(&mut self, now: f64) -> Result<usize, PoolError>;

    /// Returns the number of blocks of `tenant`.
    fn tenant_blocks(&self, tenant: TenantId) -> usize;

    /// Returns the latest time that was set. `None` if no time was set.
    fn now(&self) -> Option<f64>;

    /// Returns the number of blocks per kind of retention hint. O(1).
    fn stats(&self) -> RetentionStats;

    /// Returns the hint, the remaining time to live and the tenant of `block`, to save them in an
    /// image. `None` if it has none, or if the evictor does not support this.
    fn said(&self, _block: BlockId) -> Option<SavedRetention> {
        None
    }

    /// Sets the number of seconds until the running time to live of `block` ends, to restore an image.
    /// Has no effect if none is running.
    fn set_remaining(&mut self, _block: BlockId, _seconds: f64) {}
}
