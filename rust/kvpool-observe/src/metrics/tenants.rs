//! Hits by tenant, of a bounded number of them.
//!
//! Owns: the counts. Who comes first is counted apart, the rest together: a label of a metric must not
//! have as many values as a caller likes. The advisor counts tenants, too, in a window that forgets;
//! what is here only grows.

use kvpool::retention::TenantId;

/// Tenants that are counted apart.
pub const MAX_TENANTS: usize = 64;

/// Blocks that lookups asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TenantHits {
    /// Found and acquired.
    pub hits: u64,
    /// Not found.
    pub misses: u64,
}

impl TenantHits {
    const fn add(&mut self, hits: usize, misses: usize) {
        self.hits += hits as u64;
        self.misses += misses as u64;
    }
}

/// The same by tenant. With KV-cache groups, hash units in the place of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TenantCounts {
    /// By tenant, in their order.
    known: Vec<(TenantId, TenantHits)>,
    /// Of all tenants behind the first [`MAX_TENANTS`].
    pub others: TenantHits,
    /// Of lookups on nobody's behalf.
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

    /// Tenants that are counted apart, in order.
    pub fn iter(&self) -> impl Iterator<Item = (TenantId, TenantHits)> + '_ {
        self.known.iter().copied()
    }
}
