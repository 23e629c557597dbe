//! What an advisor has to say.

use kvpool::EvictionPolicy;
use kvpool::retention::TenantId;

/// What the pool's own traffic says about sizes, policies and tenants.
///
/// All counts and rates are of the window: what lies n windows back counts for 2^-n or less. Rates are
/// shares of block references, 0 to 1, and 0 where there were none.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Advice {
    /// Usable blocks of the pool: the size that ghost caches stand for.
    pub capacity_blocks: u64,
    /// Share of the blocks that is sampled.
    pub rate: f64,
    /// Block references after which all counts are halved.
    pub window: u64,
    /// Block references ever seen; nothing is halved here.
    pub seen: u64,
    /// Block references in the window.
    pub references: u64,
    /// Of those, references to sampled blocks. The estimates' standard error is some half to one of its
    /// square root, as a share: 100 say nothing, 10,000 about a per cent.
    pub sampled_references: u64,
    /// What the pool itself hit, measured.
    pub hit_rate: f64,
    /// What an LRU cache of other sizes would hit, by size.
    pub curve: Vec<CurvePoint>,
    /// What other policies would hit at the pool's size, in the order of the settings.
    pub policies: Vec<PolicyAdvice>,
    /// By number of the tenant.
    pub tenants: Vec<TenantAdvice>,
    /// References of tenants that are not counted apart, as there are more than the settings allow.
    pub untracked_references: u64,
    /// Memory that the advisor holds: fixed once it is made, but for a resize of the pool.
    pub memory_bytes: usize,
}

/// A hit rate at a size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// Blocks of the cache.
    pub blocks: u64,
    /// Share of block references that it hits, 0 to 1.
    pub block_hit_rate: f64,
}

/// What a policy would hit in the pool's place.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct PolicyAdvice {
    /// Which.
    pub policy: EvictionPolicy,
    /// Share of block references that it hits, 0 to 1.
    pub block_hit_rate: f64,
    /// At this size: that of the pool.
    pub capacity_blocks: u64,
    /// Block references in the window since its ghost cache was empty: after a resize it is filled anew.
    pub references: u64,
}

/// One tenant's part of the traffic.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TenantAdvice {
    /// Whose.
    pub tenant: TenantId,
    /// Its block references in the window.
    pub references: u64,
    /// Of those, references to sampled blocks.
    pub sampled_references: u64,
    /// What the pool hit of it, measured.
    pub hit_rate: f64,
    /// What it would hit in an LRU cache of other sizes that it shares with everybody, as now.
    pub curve: Vec<CurvePoint>,
    /// What it would hit in an LRU cache of its own, up to the pool's size: what a floor or a ceiling
    /// is worth to it.
    pub alone: Vec<CurvePoint>,
}
