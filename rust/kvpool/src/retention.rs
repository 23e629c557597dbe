//! Retention: what callers know of the future of blocks, and what it is worth.
//!
//! Owns: the words for priorities, times to live, pins, ends of life and tenants' limits, per cached
//! block. All of it is *advisory*: it moves a block within the order of eviction. While anything is
//! evictable an allocation succeeds, whatever was asked for; no hint changes what a lookup returns.
//!
//! Retention belongs to a content: it ends when the content is evicted or dropped. The last hint wins.
//! A hit ends a demotion: the hint was wrong. In which order blocks go is for the evictor to say that
//! [retains](Retain): `Closed` of the crate `kvpool-policies`.
//!
//! Sources: priorities 0 to 100 with 35 as the default and a duration are TensorRT-LLM's
//! (`KvCacheRetentionConfig`); budgets instead of hard pins follow what pins without one did elsewhere
//! (sglang #21045, mooncake #2909); two named kinds of time to live follow antfly #337, where one was
//! documented and the other implemented.

use crate::block::BlockId;
use crate::error::PoolError;

/// How much a block is worth keeping: 0 to 100.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Priority(u8);

impl Priority {
    /// What blocks have that nobody said anything of.
    pub const NORMAL: Self = Self(35);
    /// Evicted last, pinned blocks and floors apart.
    pub const MAX: Self = Self(100);

    /// A priority of 0 to 100.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] above 100.
    pub fn new(priority: u8) -> Result<Self, PoolError> {
        if priority > Self::MAX.0 {
            return Err(PoolError::config("priority", priority, "0 to 100"));
        }
        Ok(Self(priority))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Where in the order of eviction a block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// First to go: it will not be used again.
    Demoted,
    /// By priority; [`Priority::NORMAL`] leaves it to the policy.
    Priority(Priority),
    /// Last to go, within the budget.
    Pinned,
}

/// When retention ends by itself. A time that ends beyond the largest number ends with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ttl {
    /// So many seconds of being cached without being in use. A hit ends it; the release that leaves the
    /// block without holders, fences included, starts it anew. Said of a block in use it starts with
    /// its release.
    Idle(f64),
    /// So many seconds after the hint, however often it is used.
    Absolute(f64),
}

/// What a block is when its time to live has run out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Then {
    /// As one of which nothing was said.
    #[default]
    Normal,
    /// Demoted: a cache with a stated time to live forgets.
    Demote,
}

/// What a caller says of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retention {
    /// Where it stands.
    pub keep: Keep,
    /// Until when; `None` is as long as the content is cached.
    pub ttl: Option<Ttl>,
    /// What comes after.
    pub then: Then,
}

impl Retention {
    /// Nothing is said of the block: what it was told before is taken back.
    pub const NORMAL: Self = Self::of(Keep::Priority(Priority::NORMAL));
    /// The block will not come back: the end of a session, a scan, `no_cache`.
    pub const END_OF_LIFE: Self = Self::of(Keep::Demoted);
    /// Kept as long as the budget allows.
    pub const PINNED: Self = Self::of(Keep::Pinned);

    /// Without an end.
    #[must_use]
    pub const fn of(keep: Keep) -> Self {
        Self { keep, ttl: None, then: Then::Normal }
    }

    /// Checks the numbers of it.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for a time to live that is not a number of seconds.
    pub fn check(&self) -> Result<(), PoolError> {
        match self.ttl {
            Some(Ttl::Idle(seconds) | Ttl::Absolute(seconds)) if !(seconds.is_finite() && seconds >= 0.0) => {
                Err(PoolError::config("ttl", seconds, "a number of seconds, not negative"))
            }
            _ => Ok(()),
        }
    }
}

/// What a time to live is refused with before any time has passed.
#[must_use]
pub fn no_clock() -> PoolError {
    PoolError::config("ttl", "a time to live", "a clock: call advance_time(now) first")
}

/// A tenant: whoever's blocks are counted together. The number is the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u32);

/// What a tenant may count on, and what it may take while others need blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantLimits {
    /// Whose.
    pub tenant: TenantId,
    /// Blocks that others do not evict while anything else is evictable.
    pub floor: usize,
    /// Blocks above which its own are evicted first; `None` is no ceiling.
    pub ceiling: Option<usize>,
}

/// Settings of retention.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetentionConfig {
    /// The most blocks that are pinned at once; pins beyond it are clipped to [`Priority::MAX`].
    pub pin_budget: usize,
    /// Limits by tenant. Tenants that are not named have none.
    pub tenants: Vec<TenantLimits>,
}

impl RetentionConfig {
    /// The most tenants with limits.
    pub const MAX_TENANTS: usize = 200;
}

/// What became of a hint, by blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HintReport {
    /// Took effect as asked.
    pub accepted: usize,
    /// Took effect in part: pins beyond the budget are kept at [`Priority::MAX`].
    pub clipped: usize,
    /// Had no effect: the block is not cached, or an end of life was said of it while others hold it.
    pub ignored: usize,
}

/// What became of a hint about one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// As asked.
    Accepted,
    /// In part.
    Clipped,
    /// Not at all.
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

/// Why a block was evicted, as far as retention has a say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EvictionCause {
    /// The policy chose it.
    #[default]
    Policy,
    /// A priority of its own, or a pin, put it where its turn came.
    Priority,
    /// It was demoted: the end of a session, `no_cache`.
    EndOfLife,
    /// Its time to live had run out, and it was not used since.
    Expired,
    /// Its tenant was above its ceiling.
    TenantCeiling,
}

/// How many blocks are retained how, now; and how many retentions have run out so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetentionStats {
    /// Blocks demoted, held ones included.
    pub demoted: usize,
    /// Blocks below [`Priority::NORMAL`].
    pub below_normal: usize,
    /// Blocks above.
    pub above_normal: usize,
    /// Blocks pinned.
    pub pinned: usize,
    /// Times to live that are running: idle ones of blocks in use are not.
    pub with_ttl: usize,
    /// Times to live that have run out.
    pub expired: u64,
}

/// What was said of a block, for an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Said {
    /// How long it is worth keeping. An absolute time to live is what is left of it.
    pub retention: Retention,
    /// Seconds that are left of the time to live, if it is running.
    pub remaining: Option<f64>,
    /// Whose it is, if that is a tenant with limits.
    pub tenant: Option<TenantId>,
}

/// The retention of an evictor, as the pool drives it: what [`crate::BlockPool`] says of its methods,
/// of one block.
pub trait Retain {
    /// Says something of `block`, held here or in use; ignored if it has no content.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] for a time to live that is not a number of seconds, or before any
    /// [`Self::advance_time`].
    fn retain(&mut self, block: BlockId, retention: Retention) -> Result<Hint, PoolError>;

    /// Says whose `block` is; the first to say it counts.
    fn assign(&mut self, block: BlockId, tenant: TenantId);

    /// Lets time pass; how many retentions ran out.
    ///
    /// # Errors
    /// [`PoolError::TimeBackwards`], [`PoolError::InvalidConfig`] for what is not a time; then nothing
    /// has changed.
    fn advance_time(&mut self, now: f64) -> Result<usize, PoolError>;

    /// Blocks of `tenant`.
    fn tenant_blocks(&self, tenant: TenantId) -> usize;

    /// The latest time that was passed; `None` before any was.
    fn now(&self) -> Option<f64>;

    /// Gauges. O(1).
    fn stats(&self) -> RetentionStats;

    /// What was said of `block`; `None` if nothing was, or if it is not told.
    fn said(&self, _block: BlockId) -> Option<Said> {
        None
    }

    /// The time to live of `block` that is running ends in so many seconds; ignored if none is. For an image.
    fn set_remaining(&mut self, _block: BlockId, _seconds: f64) {}
}
