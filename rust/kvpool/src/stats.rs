//! Counters and gauges of a pool.

/// What a pool holds now, and what it did since it was made. All in blocks unless the name says otherwise.
///
/// `free + cached_free + active + fenced == usable`, always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// All blocks but the null block.
    pub usable: usize,
    /// No cached content, nobody holds them.
    pub free: usize,
    /// Nobody holds them; a hit can take them, an allocation may evict them: what engines call evictable.
    pub cached_free: usize,
    /// Held by at least one block table.
    pub active: usize,
    /// Released, but a running step may still touch them.
    pub fenced: usize,
    /// Registered blocks, held or not.
    pub registered: usize,
    /// Of those, blocks with a reference, that of a fence or a pin included: what engines call
    /// protected. `registered` less `cached_free`.
    pub registered_active: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// The current epoch.
    pub epoch: u64,
    /// Blocks handed out.
    pub allocated: u64,
    /// Blocks whose cached content made way: for those, or by [`crate::BlockPool::evict`].
    pub evicted: u64,
    /// Blocks that matched and were acquired.
    pub hits: u64,
    /// Blocks that were looked up to be acquired and did not match.
    pub misses: u64,
    /// Hits refused, and registrations refused, because the content behind an equal hash was another.
    pub collisions: u64,
    /// Released duplicates that were freed at once because another copy was cached.
    pub duplicates_dropped: u64,
}

impl PoolStats {
    /// Blocks that an allocation can take: free and cached-free.
    #[must_use]
    pub const fn available(&self) -> usize {
        self.free + self.cached_free
    }

    /// Tokens that fit in `blocks` blocks.
    #[must_use]
    pub const fn tokens(&self, blocks: usize) -> usize {
        blocks * self.block_size
    }

    /// Share of the usable blocks that is held, 0.0 to 1.0.
    #[must_use]
    pub fn usage(&self) -> f64 {
        (self.active + self.fenced) as f64 / self.usable.max(1) as f64
    }
}
