//! Counts of hits and misses for a bounded number of tenants.
//!
//! The first tenants are counted separately and all others together, because a metric with a label for
//! the tenant must have a bounded number of values. The advisor also counts tenants, but its counts are
//! halved periodically. The counts here only grow.

use kvpool::retention::TenantId;

/// The maximum number of tenants that are counted separately.
pub const MAX_TENANTS: usize = 64;

/// Hits and misses of one tenant, in blocks that lookups requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantHits {
    /// Requested blocks that lookups found and acquired.
    pub hits: u64,
    /// Requested blocks that lookups did not find.
    pub misses: u64,
}

impl TenantHits {
    const fn add(&mut self, hits: usize, misses: usize) {
        self.hits += hits as u64;
        self.misses += misses as u64;
    }
}

/// Hits and misses by tenant. With KV-cache groups, the unit is a hash unit instead of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantCounts {
    /// The tenants that are counted separately, sorted by id.
    known: Vec<(TenantId, TenantHits)>,
    /// The sums of all tenants that are not among the first [`MAX_TENANTS`].
    pub others: TenantHits,
    /// The blocks of lookups that were made without a tenant.
    pub nobody: TenantHits,
}

impl TenantCounts {
    pub(super) fn count(&mut self, tenant: Option<TenantId>, hits: usize, misses: usize) {
        let Some(tenant) = tenant else { return self.nobody.add(hits, misses) };
        match self.known.binary_search_by_key(&tenant, |&(known, _)| known) {
            Ok(at) => self.known[at].1.add(hits, misses),
            Err(_) if self.known.len() >= MAX_TENANTS => self.others.add(hits, misses),
            Err(at) => {
                let mut counts = TenantHits::default();
                counts.add(hits, misses);
                self.known.insert(at, (tenant, counts));
            }
        }
    }

    /// Iterates over the tenants that are counted separately, sorted by id.
    pub fn iter(&self) -> impl Iterator<Item = (TenantId, TenantHits)> + '_ {
        self.known.iter().copied()
    }
}
