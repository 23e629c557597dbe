//! Defines the counters and gauges of a pool.

/// The gauges of a pool, and counters since the pool was made. All values are numbers of blocks unless
/// the name contains another unit.
///
/// `free + cached_free + active + fenced == usable` always holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// All blocks except the null block.
    pub usable: usize,
    /// Blocks without cached content and without references.
    pub free: usize,
    /// Blocks with cached content and without references. A hit can take them, and an allocation may
    /// evict them. Some engines call these blocks evictable.
    pub cached_free: usize,
    /// Blocks that at least one block table holds.
    pub active: usize,
    /// Blocks that are released, but may still be used by a running step.
    pub fenced: usize,
    /// Blocks that are registered, with or without references.
    pub registered: usize,
    /// Registered blocks with a reference, including those of fences and pins:
    /// `registered - cached_free`. Some engines call these blocks protected.
    pub registered_active: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// The current epoch.
    pub epoch: u64,
    /// Number of blocks allocated so far.
    pub allocated: u64,
    /// Number of blocks whose cached content was evicted, by allocations or by
    /// [`crate::BlockPool::evict`].
    pub evicted: u64,
    /// Number of blocks that lookups found and acquired.
    pub hits: u64,
    /// Number of blocks that lookups asked for and did not find.
    pub misses: u64,
    /// Number of hits and registrations that were refused because another content has the same hash.
    pub collisions: u64,
    /// Number of released duplicates that were freed at once because another block with the same
    /// content was cached.
    pub duplicates_dropped: u64,
}

impl PoolStats {
    /// Number of blocks that an allocation can take: free and cached-free.
    #[must_use]
    pub const fn available(&self) -> usize {
        self.free + self.cached_free
    }

    /// Number of tokens that fit in `blocks` blocks.
    #[must_use]
    pub const fn tokens(&self, blocks: usize) -> usize {
        blocks * self.block_size
    }

    /// Share of the usable blocks that have references, from 0.0 to 1.0.
    #[must_use]
    pub fn usage(&self) -> f64 {
        (self.active + self.fenced) as f64 / self.usable.max(1) as f64
    }
}
