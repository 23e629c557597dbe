//! `EvictionPolicy`: a policy that can be had by name.
//!
//! Owns: how its evictor is made. A pool's settings name one, of any crate. The core has `lru`, which
//! evicts what was released least recently and of one release the deepest of a chain; `kvpool-policies`
//! has the others, `lru` with retention, and the list of all.

use std::fmt;
use std::hash::{Hash, Hasher};

use super::{Evictor, LruEvictor, Policy};
use crate::error::PoolError;
use crate::retention::RetentionConfig;

type MakeOrder = fn(usize) -> Result<Box<dyn Policy>, PoolError>;
type MakeEvictor = fn(usize, Option<&RetentionConfig>) -> Result<Box<dyn Evictor>, PoolError>;

/// A policy by name. Two of the same name are the same policy: they compare, hash and print as their
/// names do.
///
/// ```
/// use kvpool::{EvictionPolicy, PoolConfig};
/// assert_eq!(PoolConfig::default().eviction, EvictionPolicy::LRU);
/// // The same without retention.
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
    /// Least recently used: see [`super::lru`]. It takes no retention, and is no order of its own:
    /// `kvpool_policies::LRU` is the same policy with both.
    pub const LRU: Self = Self::new("lru", None, |num_blocks, retention| match retention {
        None => Ok(Box::new(LruEvictor::new(num_blocks)?)),
        Some(_) => Err(PoolError::config(
            "retention",
            "set",
            "left out, since it ranks blocks, which the core's lru does not: use kvpool_policies::LRU",
        )),
    });

    /// A policy of a name, with what makes its order alone, if it is one, and its evictor. Both take
    /// all their memory when they are made, and fail if there is none.
    /// `kvpool_policies::eviction_policy!` is shorter.
    #[must_use]
    pub const fn new(name: &'static str, order: Option<MakeOrder>, build: MakeEvictor) -> Self {
        Self { name, order, build }
    }

    /// The policy's name, as users write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Whether it is an order of its own: all are but [`Self::LRU`] and those that the caller states.
    #[must_use]
    pub const fn has_order(self) -> bool {
        self.order.is_some()
    }

    /// The order of this policy alone, for blocks `1..num_blocks`: to simulate it. `None` if it is
    /// [none](Self::has_order).
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks.
    pub fn order(self, num_blocks: usize) -> Result<Option<Box<dyn Policy>>, PoolError> {
        self.order.map(|order| order(num_blocks)).transpose()
    }

    /// An empty evictor of this policy for blocks `1..num_blocks`, with all its memory taken.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`] if there is no memory for so many blocks, or for a retention that
    /// is not possible: limits that do not fit into the pool, or any with an order that the caller
    /// states.
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
