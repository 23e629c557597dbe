//! The policies that come with the crate, by name.
//!
//! | name | evicts first | cost per block |
//! |---|---|---|
//! | `lru` | least recently released; of one release the deepest of a chain | O(1) |
//! | `last-accessed` | the earliest access time that the caller stated; of equal times the deepest | O(log n) |
//! | `fifo` | the oldest content | O(1) |
//! | `lfu` | the least often used since it came | O(log n) |
//! | `lfu-da` | the same, with an age that rises as the cache does | O(log n) |
//! | `sieve` | the oldest not used since the hand last passed | O(1) |
//! | `s3-fifo` | of what came lately and was never used again; else the oldest not used lately | O(1) |
//! | `arc` | used once or used again, by which of the two was lately evicted too early | O(1) |
//! | `2q` | of what came lately; what comes back soon after is kept by recency | O(1) |
//! | `lrfu` | the smallest count of uses, each halved with time; remembered after eviction | O(log n) |
//! | `gdsf` | the cheapest to compute again for how often it is used | O(log n) |
//! | `adaptive` | by recency and frequency, weighed as a sample of the traffic says at the time | O(1) |

use std::str::FromStr;

use super::policies::{
    Adaptive, AdaptiveReplacement, Fifo, Gdsf, Lfu, LfuDa, Lrfu, Recency, S3Fifo, Sieve, TwoQ,
};
use super::{Closed, Evictor, LastAccessEvictor, LruEvictor, Policy};
use crate::error::PoolError;
use crate::retention::RetentionConfig;

/// A policy that comes with the crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EvictionPolicy {
    /// Least recently used: see [`super::lru`].
    #[default]
    Lru,
    /// By access times that the caller states: see [`super::last_access`].
    LastAccess,
    /// First in, first out: see [`Fifo`].
    Fifo,
    /// Least frequently used: see [`Lfu`].
    Lfu,
    /// Least frequently used, with dynamic aging: see [`LfuDa`].
    LfuDa,
    /// See [`Sieve`].
    Sieve,
    /// Three FIFO queues: see [`S3Fifo`].
    S3Fifo,
    /// Adaptive replacement: see [`AdaptiveReplacement`].
    Arc,
    /// Two queues: see [`TwoQ`].
    TwoQ,
    /// Least recently and frequently used: see [`Lrfu`].
    Lrfu,
    /// Greedy dual, size and frequency: see [`Gdsf`].
    Gdsf,
    /// Chooses between recency and frequency for itself: see [`super::policies::adaptive`].
    Adaptive,
}

/// Calls `$make` with a policy's order; `$none` for the one that is no order of its own.
macro_rules! with_order {
    ($policy:expr, $num_blocks:expr, $make:ident($($more:expr),*), $none:expr) => {
        match $policy {
            EvictionPolicy::LastAccess => $none,
            EvictionPolicy::Lru => $make(Recency::new($num_blocks)?, $($more),*),
            EvictionPolicy::Fifo => $make(Fifo::new($num_blocks)?, $($more),*),
            EvictionPolicy::Lfu => $make(Lfu::new($num_blocks)?, $($more),*),
            EvictionPolicy::LfuDa => $make(LfuDa::new($num_blocks)?, $($more),*),
            EvictionPolicy::Sieve => $make(Sieve::new($num_blocks)?, $($more),*),
            EvictionPolicy::S3Fifo => $make(S3Fifo::new($num_blocks)?, $($more),*),
            EvictionPolicy::Arc => $make(AdaptiveReplacement::new($num_blocks)?, $($more),*),
            EvictionPolicy::TwoQ => $make(TwoQ::new($num_blocks)?, $($more),*),
            EvictionPolicy::Lrfu => $make(Lrfu::new($num_blocks)?, $($more),*),
            EvictionPolicy::Gdsf => $make(Gdsf::new($num_blocks)?, $($more),*),
            EvictionPolicy::Adaptive => $make(Adaptive::new($num_blocks)?, $($more),*),
        }
    };
}

impl EvictionPolicy {
    /// Every policy.
    pub const ALL: &'static [Self] = &[
        Self::Lru,
        Self::LastAccess,
        Self::Fifo,
        Self::Lfu,
        Self::LfuDa,
        Self::Sieve,
        Self::S3Fifo,
        Self::Arc,
        Self::TwoQ,
        Self::Lrfu,
        Self::Gdsf,
        Self::Adaptive,
    ];

    /// The policy's name, as users write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::LastAccess => "last-accessed",
            Self::Fifo => "fifo",
            Self::Lfu => "lfu",
            Self::LfuDa => "lfu-da",
            Self::Sieve => "sieve",
            Self::S3Fifo => "s3-fifo",
            Self::Arc => "arc",
            Self::TwoQ => "2q",
            Self::Lrfu => "lrfu",
            Self::Gdsf => "gdsf",
            Self::Adaptive => "adaptive",
        }
    }

    /// The order of this policy alone, for blocks `1..num_blocks`: to simulate it. `None` for access times, which are no
    /// order of their own.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks.
    pub fn order(self, num_blocks: usize) -> Result<Option<Box<dyn Policy>>, PoolError> {
        fn boxed<P: Policy + 'static>(policy: P) -> Option<Box<dyn Policy>> {
            Some(Box::new(policy))
        }
        Ok(with_order!(self, num_blocks, boxed(), None))
    }

    /// An empty evictor of this policy for blocks `1..num_blocks`, with all its memory taken.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks, or for a retention that is not possible:
    /// limits that do not fit into the pool, or any with access times, which are an order of their own.
    pub fn build(
        self,
        num_blocks: usize,
        retention: Option<&RetentionConfig>,
    ) -> Result<Box<dyn Evictor>, PoolError> {
        fn closed<P: Policy + Clone + 'static>(
            policy: P,
            num_blocks: usize,
            retention: Option<&RetentionConfig>,
        ) -> Result<Box<dyn Evictor>, PoolError> {
            Ok(Box::new(Closed::new(policy, num_blocks, retention)?))
        }
        match self {
            Self::Lru if retention.is_none() => return Ok(Box::new(LruEvictor::new(num_blocks)?)),
            Self::LastAccess if retention.is_some() => {
                return Err(PoolError::InvalidConfig {
                    field: "retention",
                    value: "set".into(),
                    expected: "left out with the policy last-accessed, whose order the caller states".into(),
                });
            }
            _ => {}
        }
        let last_access = || Ok(Box::new(LastAccessEvictor::new(num_blocks)?) as Box<dyn Evictor>);
        with_order!(self, num_blocks, closed(num_blocks, retention), last_access())
    }
}

impl FromStr for EvictionPolicy {
    type Err = PoolError;

    fn from_str(name: &str) -> Result<Self, PoolError> {
        Self::ALL.iter().copied().find(|policy| policy.name() == name).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|policy| policy.name()).collect();
            PoolError::InvalidConfig {
                field: "eviction",
                value: format!("{name:?}"),
                expected: format!("one of {}", known.join(", ")),
            }
        })
    }
}

/// By name, so that what was written outlives new policies.
impl serde::Serialize for EvictionPolicy {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> serde::Deserialize<'de> for EvictionPolicy {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
