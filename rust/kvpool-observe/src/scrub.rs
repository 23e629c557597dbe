//! The scrubber: checks a few blocks per call while the pool works. It compares everything that the
//! pool stores about a block.
//!
//! The scrubber stores only the position of its next check. It calls checks of the pool and of the
//! manager:
//!
//! - The pool checks a block ([`BlockPool::check_block`], [`BlockPool::check_sums`]).
//! - The manager checks requests and their tables ([`CacheManager::check_request_at`],
//!   [`CacheManager::check_entry`]). After all requests, it checks that tables, fences, pins and swaps
//!   account for every reference ([`CacheManager::check_references`]).
//! - With a digest ([`WatchConfig::digest`](crate::WatchConfig::digest)), the scrubber also checks that
//!   reference counts, fences and contents were changed only by operations (D1), and that the counters
//!   match the blocks (D2). Without a digest, it does not detect a reference count that was changed
//!   from one plausible number to another.
//!
//! A violation *poisons* the pool or the manager. From then on it refuses all work and reports the
//! reason, instead of serving wrong KV.
//!
//! Costs: O(1) per block checked (O(log blocks) with access times), and O(blocks changed since the last
//! digest) per call. A call that finishes the check of all requests takes O(requests) more.

use kvpool::{BlockId, BlockPool, CacheManager, InvariantViolation, ManagerError, PoolError};

use crate::watch::Watch;

/// The result of one call of a scrubber.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ScrubReport {
    /// The block at which the next call starts. For a manager, the block of the device tier.
    pub position: usize,
    /// The number of blocks that this call checked in all tiers, including null blocks.
    pub blocks: usize,
    /// The number of requests whose tables this call has finished; 0 for a pool.
    pub requests: usize,
    /// The number of times that the scrubber has checked the whole pool or manager.
    pub passes: u64,
}

/// The position of a pool's scrubber. If it is used with another pool, it continues at the same block
/// if that pool has the block, and otherwise at the first block.
///
/// ```
/// use kvpool::{BlockPool, PoolConfig};
/// use kvpool_observe::Scrubber;
/// let mut pool = BlockPool::new(PoolConfig { num_blocks: 100, ..PoolConfig::default() })?;
/// let mut scrubber = Scrubber::default();
/// pool.allocate(3)?;
/// assert_eq!(scrubber.scrub(&mut pool, 64)?.position, 64);
/// let report = scrubber.scrub(&mut pool, 64)?;
/// assert_eq!((report.position, report.passes), (28, 1));
/// # Ok::<(), kvpool::PoolError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Scrubber {
    at: u32,
    passes: u64,
}

impl Scrubber {
    /// Checks the next `blocks` blocks, each at most once, and the totals of the pool. Starts where the
    /// last call stopped, and wraps around.
    ///
    /// # Errors
    /// [`PoolError::Poisoned`] with the violated invariant and the details. All later calls return it
    /// too.
    pub fn scrub(&mut self, pool: &mut BlockPool, blocks: usize) -> Result<ScrubReport, PoolError> {
        pool.check_poison()?;
        if let Some((watch, blocks)) = pool.observer_mut::<Watch>() {
            watch.settle(blocks);
        }
        self.check(pool, blocks).map_err(|violation| pool.poison(&violation))
    }

    /// Like [`Self::scrub`]. The caller must already have brought the pool's digest up to date, if
    /// there is one.
    fn check(&mut self, pool: &BlockPool, blocks: usize) -> Result<ScrubReport, InvariantViolation> {
        let blocks = blocks.min(pool.num_blocks());
        let digest = pool.observer::<Watch>().and_then(Watch::digest);
        pool.check_sums()?;
        digest.map_or(Ok(()), |digest| digest.check_sums(pool))?;
        if self.at as usize >= pool.num_blocks() {
            self.at = 0; // the position was that of another pool
        }
        for _ in 0..blocks {
            let block = BlockId::new(self.at);
            pool.check_block(block)?;
            digest.map_or(Ok(()), |digest| digest.check_block(block, pool.blocks()))?;
            self.at += 1;
            if self.at as usize >= pool.num_blocks() {
                *self = Self { at: 0, passes: self.passes + 1 };
            }
        }
        Ok(ScrubReport { position: self.at as usize, blocks, requests: 0, passes: self.passes })
    }
}

/// The position of a manager's scrubber. It has one position per tier, and one in the block tables.
///
/// ```
/// use kvpool::{CacheManager, ExtraKeys, ManagerConfig};
/// use kvpool_observe::ManagerScrubber;
/// let mut manager = CacheManager::new(ManagerConfig { num_blocks: 64, ..Default::default() })?;
/// manager.admit("a", manager.prepare(&[1, 2, 3], ExtraKeys::default())?)?;
/// let report = ManagerScrubber::default().scrub(&mut manager, 64)?;
/// assert_eq!((report.blocks, report.requests, report.passes), (64, 1, 1));
/// # Ok::<(), kvpool::ManagerError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManagerScrubber {
    tiers: Vec<Scrubber>,
    slot: usize,
    position: usize,
    passes: u64,
}

impl ManagerScrubber {
    /// Checks the next `blocks` blocks of each tier, and the same number of entries of block tables.
    /// Call it once per step with the number of blocks that a step can afford, or set
    /// [`ManagerWatchConfig::scrub_blocks`](crate::ManagerWatchConfig::scrub_blocks). O(`blocks`).
    ///
    /// # Errors
    /// [`PoolError::Poisoned`] with the violated invariant and the details. All later calls return it
    /// too.
    pub fn scrub(&mut self, manager: &mut CacheManager, blocks: usize) -> Result<ScrubReport, ManagerError> {
        manager.check_poison()?;
        self.tiers.resize(manager.tiers().len(), Scrubber::default());
        let mut report = ScrubReport { passes: u64::MAX, ..ScrubReport::default() };
        for (tier, scrubber) in self.tiers.iter_mut().enumerate() {
            if let Some((watch, blocks)) = manager.tier_observer_mut::<Watch>(tier) {
                watch.settle(blocks);
            }
            let pool = manager.tiers().pool(tier)?;
            let scrubbed = scrubber.check(pool, blocks).map_err(|violation| pool.poison(&violation))?;
            report.blocks += scrubbed.blocks;
            report.passes = report.passes.min(scrubbed.passes);
            if tier == 0 {
                report.position = scrubbed.position;
            }
        }
        report.requests =
            self.check_tables(manager, blocks).map_err(|violation| manager.poison(&violation))?;
        report.passes = report.passes.min(self.passes);
        Ok(report)
    }

    /// Checks `entries` entries of block tables, each at most once. Returns the number of tables that
    /// it finished.
    fn check_tables(&mut self, manager: &CacheManager, entries: usize) -> Result<usize, InvariantViolation> {
        let (mut left, mut finished) = (entries, 0);
        // Visit one slot more than exist. If the first table is started in the middle, it is then
        // visited a second time, from its start.
        for _ in 0..=manager.num_slots() {
            if self.slot >= manager.num_slots() {
                manager.check_references()?;
                (self.slot, self.position, self.passes) = (0, 0, self.passes + 1);
                break;
            }
            if left == 0 {
                break;
            }
            let Some(request) = manager.request_at(self.slot) else {
                (self.slot, self.position) = (self.slot + 1, 0);
                continue;
            };
            manager.check_request_at(self.slot)?;
            let until = request.num_blocks.min(self.position.saturating_add(left));
            (self.position..until).try_for_each(|at| manager.check_entry(self.slot, at))?;
            left -= until.saturating_sub(self.position).max(1).min(left);
            if until == request.num_blocks {
                finished += 1;
                (self.slot, self.position) = (self.slot + 1, 0);
            } else {
                self.position = until;
            }
        }
        Ok(finished)
    }
}
