//! `Advice`: the hit rates that an advisor estimates.

use kvpool::EvictionPolicy;
use kvpool::retention::TenantId;

/// Estimates of hit rates at other sizes, with other policies and by tenant, from the pool's own
/// traffic.
///
/// A reference is a block that a lookup requested. After every [`window`](Self::window) references all
/// counts are halved, so a reference of n windows ago counts 2^-n or less. Rates are shares of block
/// references, 0 to 1, and 0 if there were no references.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Advice {
    /// The number of usable blocks of the pool. Other policies are simulated at this size.
    pub capacity_blocks: u64,
    /// The share of all blocks that the advisor samples, 0 to 1.
    pub rate: f64,
    /// The number of block references after which all counts are halved.
    pub window: u64,
    /// The number of block references since the advisor was created. This count is never halved.
    pub seen: u64,
    /// The number of block references, halved at the end of each window like all counts.
    pub references: u64,
    /// The number of these references that are references to sampled blocks. The relative standard
    /// error of the estimates is a factor of about 0.5 to 1, divided by the square root of this number.
    /// With 100 sampled references the estimates have no meaning; with 10,000 the error is about one
    /// per cent.
    pub sampled_references: u64,
    /// The hit rate that the pool itself had, 0 to 1.
    pub hit_rate: f64,
    /// The estimated hit rates of LRU caches of other sizes, by size.
    pub curve: Vec<CurvePoint>,
    /// The estimated hit rates of other policies at the pool's size, in the order of the settings.
    pub policies: Vec<PolicyAdvice>,
    /// Estimates by tenant, sorted by tenant id.
    pub tenants: Vec<TenantAdvice>,
    /// The number of references of tenants that are not counted separately, because the settings limit
    /// the number of tenants.
    pub untracked_references: u64,
    /// The memory of the advisor, in bytes. It is fixed after construction, except for a resize of the
    /// pool.
    pub memory_bytes: usize,
}

/// The estimated hit rate of an LRU cache of one size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// The size of the simulated cache, in blocks.
    pub blocks: u64,
    /// The share of block references that hit, 0 to 1.
    pub block_hit_rate: f64,
}

/// The estimated hit rate of a policy at the pool's size.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct PolicyAdvice {
    /// The policy.
    pub policy: EvictionPolicy,
    /// The share of block references that hit, 0 to 1.
    pub block_hit_rate: f64,
    /// The size of the pool, in blocks.
    pub capacity_blocks: u64,
    /// The number of block references in the window since the simulated cache of this policy was last
    /// empty. A resize of the pool empties it.
    pub references: u64,
}

/// The estimated hit rates of one tenant.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TenantAdvice {
    /// The tenant.
    pub tenant: TenantId,
    /// The number of block references of the tenant in the window.
    pub references: u64,
    /// The number of the tenant's references that are references to sampled blocks.
    pub sampled_references: u64,
    /// The hit rate that the tenant had in the pool, 0 to 1.
    pub hit_rate: f64,
    /// The estimated hit rates of the tenant if the pool had other sizes, and all tenants continued to
    /// share it (LRU).
    pub curve: Vec<CurvePoint>,
    /// The estimated hit rates of the tenant if it had an LRU cache of its own, up to the pool's size.
    /// They show the effect of a smallest or largest number of blocks for the tenant.
    pub alone: Vec<CurvePoint>,
}
