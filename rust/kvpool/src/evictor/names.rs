//! Defines [`EvictionPolicy`], which selects an eviction policy by name.
//!
//! The settings of a pool contain one policy, which may be from any crate. This crate contains `lru`,
//! which evicts the blocks that were released least recently. If several blocks of a chain were
//! released together, it evicts the last block first. `kvpool-policies` contains the other policies,
//! `lru` with retention, and a list of all policies.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::{Evictor, LruEvictor, Policy};
use crate::error::PoolError;
use crate::retention::RetentionConfig;

type MakeOrder = fn(usize) -> Result<Box<dyn Policy>, PoolError>;
type MakeEvictor = fn(usize, Option<&RetentionConfig>) -> Result<Box<dyn Evictor>, PoolError>;

/// An eviction policy with its name. Two policies with the same name are equal, because comparison,
/// hash and debug output use only the name.
///
/// ```
/// use kvpool::{EvictionPolicy, PoolConfig};
/// assert_eq!(PoolConfig::default().eviction, EvictionPolicy::LRU);
/// // The same name, without support for retention.
/// assert_eq!(EvictionPolicy::LRU, kvpool_policies::LRU);
/// assert_ne!(EvictionPolicy::LRU, kvpool_policies::ARC);
/// ```
#[derive(Clone, Copy)]
pub struct EvictionPolicy {
    name: &'static str,
    order: Option<MakeOrder>,
    build: MakeEvictor,
}

impl EvictionPolicy {
    /// Least recently used: see [`super::lru`]. It supports neither retention nor simulations of its
    /// [`Policy`]. `kvpool_policies::LRU` is the same policy and supports both.
    pub const LRU: Self = Self::new("lru", None, |num_blocks, retention| match retention {
        None => Ok(Box::new(LruEvictor::new(num_blocks)?)),
        Some(_) => Err(PoolError::config(
            "retention",
            "set",
            "left out, since it ranks blocks, which the core's lru does not: use kvpool_policies::LRU",
        )),
    });

    /// Makes a policy with this name. `order` makes its [`Policy`], if it has one, and `build` makes
    /// its evictor. Both must allocate all memory when they are called, and return an error if there is
    /// not enough. The macro `kvpool_policies::eviction_policy!` is a shorter way to do this.
    #[must_use]
    pub const fn new(name: &'static str, order: Option<MakeOrder>, build: MakeEvictor) -> Self {
        Self { name, order, build }
    }

    /// Returns the name of the policy in settings and commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Whether simulations can use the policy, because it has a [`Policy`]. All policies have one
    /// except [`Self::LRU`], and `last-accessed`, which only uses the access times of the caller.
    #[must_use]
    pub const fn has_order(self) -> bool {
        self.order.is_some()
    }

    /// Makes only the [`Policy`] for blocks `1..num_blocks`, for simulations. `None` if the policy [has
    /// none](Self::has_order).
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for this number of blocks.
    pub fn order(self, num_blocks: usize) -> Result<Option<Box<dyn Policy>>, PoolError> {
        self.order.map(|order| order(num_blocks)).transpose()
    }

    /// Makes an empty evictor of this policy for blocks `1..num_blocks`, and allocates all of its
    /// memory.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for this number of blocks, or if the policy
    /// cannot implement the retention: its limits exceed the pool, or the policy is `last-accessed`,
    /// which has no retention.
    pub fn build(
        self,
        num_blocks: usize,
        retention: Option<&RetentionConfig>,
    ) -> Result<Box<dyn Evictor>, PoolError> {
        (self.build)(num_blocks, retention)
    }
}

impl PartialEq for EvictionPolicy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for EvictionPolicy {}

impl Hash for EvictionPolicy {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Debug for EvictionPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
