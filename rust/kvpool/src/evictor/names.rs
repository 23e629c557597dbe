//! `EvictionPolicy`: an eviction policy, selected by name.
//!
//! Owns: the construction of evictors. The settings of a pool contain one policy, from any crate. The core
//! has `lru`, which evicts the blocks that were released least recently, and of one release the deepest
//! of a chain. `kvpool-policies` has the other policies, `lru` with retention, and the list of all.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::{Evictor, LruEvictor, Policy};
use crate::error::PoolError;
use crate::retention::RetentionConfig;

type MakeOrder = fn(usize) -> Result<Box<dyn Policy>, PoolError>;
type MakeEvictor = fn(usize, Option<&RetentionConfig>) -> Result<Box<dyn Evictor>, PoolError>;

/// An eviction policy by name. Two policies with the same name are equal: comparison, hash and debug
/// output use the name.
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
    /// Least recently used: see [`super::lru`]. It has no retention, and no [`Policy`] of its own.
    /// `kvpool_policies::LRU` is the same policy with both.
    pub const LRU: Self = Self::new("lru", None, |num_blocks, retention| match retention {
        None => Ok(Box::new(LruEvictor::new(num_blocks)?)),
        Some(_) => Err(PoolError::config(
            "retention",
            "set",
            "left out, since it ranks blocks, which the core's lru does not: use kvpool_policies::LRU",
        )),
    });

    /// Makes a policy with a name. `order` makes its [`Policy`], if it has one, and `build` its
    /// evictor. Both allocate all their memory when they are called, and return an error if there is
    /// none. `kvpool_policies::eviction_policy!` is shorter.
    #[must_use]
    pub const fn new(name: &'static str, order: Option<MakeOrder>, build: MakeEvictor) -> Self {
        Self { name, order, build }
    }

    /// The policy's name, as users write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Whether the policy has a [`Policy`] of its own. All have one except [`Self::LRU`] and
    /// `last-accessed`, whose order follows from the access times of the caller.
    #[must_use]
    pub const fn has_order(self) -> bool {
        self.order.is_some()
    }

    /// Makes the [`Policy`] alone, for blocks `1..num_blocks`, for simulations. `None` if the policy
    /// [has none](Self::has_order).
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for this number of blocks.
    pub fn order(self, num_blocks: usize) -> Result<Option<Box<dyn Policy>>, PoolError> {
        self.order.map(|order| order(num_blocks)).transpose()
    }

    /// Makes an empty evictor of this policy for blocks `1..num_blocks`, with all its memory.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for this number of blocks, or if the
    /// retention is not possible: limits that do not fit into the pool, or any retention with
    /// `last-accessed`.
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
