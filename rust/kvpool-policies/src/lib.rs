//! Eviction policies of kvpool, available by name, and retention around them.
//!
//! Each policy has its own file, which documents the block that it evicts, its paper, its cost, and
//! when not to use it. The core crate contains only plain LRU, and does not depend on this crate.
//!
//! A policy is a [`kvpool::Policy`]. [`Closed`] turns it into a prefix-closed evictor, with retention
//! if the pool is configured for it. [`LastAccessEvictor`], and LRU without retention, implement an
//! evictor directly.
//!
//! | name | evicts first | cost per block |
//! |---|---|---|
//! | `lru` | the block released longest ago; within one release the deepest | O(1) |
//! | `last-accessed` | the block with the earliest access time that the caller passed | O(log n) |
//! | `arc` | blocks used once or used again, balanced by recent premature evictions | O(1) |
//! | `s3-fifo` | recent blocks that were never used again; else the oldest not used lately | O(1) |
//! | `adaptive` | by recency and frequency, weighed by a sample of the current traffic | O(1) |
//! | `hazard` | the block least likely to be used again soon, learned by class | O(1) |
//!
//! With `hazard`, the first eviction after the time has changed takes O(classes).
//!
//! ```
//! use kvpool::{BlockPool, PoolConfig};
//! let pool = BlockPool::new(PoolConfig { eviction: kvpool_policies::ARC, ..PoolConfig::default() })?;
//! assert_eq!(kvpool_policies::by_name("arc")?, kvpool_policies::ARC);
//! # Ok::<(), kvpool::PoolError>(())
//! ```
#![forbid(unsafe_code)]

pub mod adaptive;
mod arc;
mod block_lists;
mod closed;
mod ghosts;
mod hazard;
mod last_access;
mod ranks;
mod recency;
mod s3_fifo;
mod slots;

use kvpool::{EvictionPolicy, LruEvictor, PoolError};

pub use adaptive::Adaptive;
pub use arc::AdaptiveReplacement;
pub use closed::Closed;
pub use closed::chains::Chained;
pub use hazard::Hazard;
pub use last_access::LastAccessEvictor;
pub use recency::Recency;
pub use s3_fifo::S3Fifo;

/// Makes an [`EvictionPolicy`] from a name and a constructor of a policy,
/// `fn(num_blocks) -> Result<impl Policy + Clone, PoolError>`. The result uses [`Closed`] with the type
/// of that policy, so it calls the policy's methods without dynamic dispatch.
///
/// ```
/// use kvpool::{EvictionPolicy, PoolConfig};
/// use kvpool_policies::{Recency, eviction_policy};
/// const MINE: EvictionPolicy = eviction_policy!("mine", Recency::new);
/// let config = PoolConfig { eviction: MINE, ..PoolConfig::default() };
/// assert_eq!(config.eviction.name(), "mine");
/// ```
#[macro_export]
macro_rules! eviction_policy {
    ($name:expr, $new:expr) => {
        $crate::parts::EvictionPolicy::new(
            $name,
            Some(|num_blocks| Ok(Box::new($new(num_blocks)?))),
            |num_blocks, retention| {
                Ok(Box::new($crate::Closed::new($new(num_blocks)?, num_blocks, retention)?))
            },
        )
    };
}

/// The policy `lru`: evicts the least recently used block. In a pool without retention it is
/// [`EvictionPolicy::LRU`], and in a pool with retention it uses [`Recency`].
pub const LRU: EvictionPolicy = EvictionPolicy::new(
    "lru",
    Some(|num_blocks| Ok(Box::new(Recency::new(num_blocks)?))),
    |num_blocks, retention| match retention {
        None => Ok(Box::new(LruEvictor::new(num_blocks)?)),
        Some(_) => Ok(Box::new(Closed::new(Recency::new(num_blocks)?, num_blocks, retention)?)),
    },
);
/// The policy `last-accessed`: evicts by access times that the caller passes, see
/// [`LastAccessEvictor`]. It is no [`kvpool::Policy`] and does not support retention.
pub const LAST_ACCESS: EvictionPolicy =
    EvictionPolicy::new("last-accessed", None, |num_blocks, retention| match retention {
        None => Ok(Box::new(LastAccessEvictor::new(num_blocks)?)),
        Some(_) => Err(PoolError::config(
            "retention",
            "set",
            "left out with the policy last-accessed, which evicts by the caller's access times",
        )),
    });
/// Keeps blocks in FIFO queues, and moves blocks with hits to a protected queue: see [`S3Fifo`].
pub const S3_FIFO: EvictionPolicy = eviction_policy!("s3-fifo", S3Fifo::new);
/// Adaptive replacement cache (ARC): see [`AdaptiveReplacement`].
pub const ARC: EvictionPolicy = eviction_policy!("arc", AdaptiveReplacement::new);
/// Chooses between recency and frequency according to the traffic: see [`adaptive`].
pub const ADAPTIVE: EvictionPolicy = eviction_policy!("adaptive", Adaptive::new);
/// Evicts the block that is least likely to be used again soon, from learned reuse times: see
/// [`Hazard`].
pub const HAZARD: EvictionPolicy = EvictionPolicy::new(
    "hazard",
    // `hazard` may choose a block that has cached descendants. [`Chained`] returns these first.
    Some(|num_blocks| Ok(Box::new(Chained::new(Hazard::new(num_blocks)?, num_blocks)?))),
    |num_blocks, retention| Ok(Box::new(Closed::new(Hazard::new(num_blocks)?, num_blocks, retention)?)),
);

/// Parts of the policies that kvpool's other crates also use. Engines do not need them. They may change
/// in any release.
#[doc(hidden)]
pub mod parts {
    pub use crate::block_lists::{Bare, BlockLists, Members};
    pub use crate::ghosts::Ghosts;
    pub use crate::slots::Slots;
    pub use kvpool::EvictionPolicy;
}

/// Every policy. New policies have to be added at the end, because inputs of fuzzers contain indices
/// into this list.
pub const ALL: &[EvictionPolicy] = &[LRU, LAST_ACCESS, S3_FIFO, ARC, ADAPTIVE, HAZARD];

/// The policies that the advisor and sizing runs compare by default.
pub const ADVISED: &[EvictionPolicy] = &[LRU, S3_FIFO, ARC, ADAPTIVE, HAZARD];

/// The names of policies that earlier versions had, each with the most similar policy of today.
const REMOVED: &[(&str, EvictionPolicy)] = &[
    ("fifo", LRU),
    ("lfu", S3_FIFO),
    ("lfu-da", ARC),
    ("sieve", S3_FIFO),
    ("2q", S3_FIFO),
    ("lrfu", ARC),
    ("gdsf", ARC),
];

/// Returns the policy that replaces a policy of an earlier version. `None` for a name that is not one
/// of these.
///
/// ```
/// assert_eq!(kvpool_policies::replacement("sieve"), Some(kvpool_policies::S3_FIFO));
/// assert_eq!(kvpool_policies::replacement("lru"), None);
/// ```
#[must_use]
pub fn replacement(name: &str) -> Option<EvictionPolicy> {
    REMOVED.iter().find(|(removed, _)| *removed == name).map(|&(_, instead)| instead)
}

/// Returns a policy with the same order that also supports retention. The core's own `lru` does not, so
/// the result for it is [`LRU`]. Any other policy is returned unchanged.
///
/// ```
/// use kvpool::EvictionPolicy;
/// assert!(!EvictionPolicy::LRU.has_order() && kvpool_policies::in_full(EvictionPolicy::LRU).has_order());
/// let last_access = kvpool_policies::in_full(kvpool_policies::LAST_ACCESS);
/// assert!(!last_access.has_order(), "the caller passes its times");
/// ```
#[must_use]
pub fn in_full(policy: EvictionPolicy) -> EvictionPolicy {
    if policy == LRU { LRU } else { policy }
}

/// Returns an error text for a policy that earlier versions had, which names its replacement. `None`
/// for any other name.
#[must_use]
pub fn removal(name: &str) -> Option<String> {
    replacement(name).map(|instead| format!("kvpool no longer has {name}, use {}", instead.name()))
}

/// Returns the policy with a name.
///
/// # Errors
/// [`PoolError::InvalidConfig`] for any other name. The error lists the policies, and adds the
/// [`removal`] of a policy that earlier versions had.
///
/// ```
/// let error = kvpool_policies::by_name("fifo").unwrap_err().to_string();
/// assert!(error.ends_with("hazard; kvpool no longer has fifo, use lru"));
/// ```
pub fn by_name(name: &str) -> Result<EvictionPolicy, PoolError> {
    ALL.iter().copied().find(|policy| policy.name() == name).ok_or_else(|| {
        let known: Vec<_> = ALL.iter().map(|policy| policy.name()).collect();
        let known = format!("one of {}", known.join(", "));
        let expected = removal(name).map_or_else(|| known.clone(), |removal| format!("{known}; {removal}"));
        PoolError::config("eviction", format!("{name:?}"), expected)
    })
}

/// Lets `cargo test` run the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
