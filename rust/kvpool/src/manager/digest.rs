//! One number for the state of a manager: the digests of its pools, and its own counters.
//!
//! The specification: `take_in` of the pool's `digest` module, from 0, of every tier's digest in order, then of
//! `CacheManager::scalars` in theirs. Which request holds a block is not in it: a block table that went another way shows in
//! the references that it gives up.

use super::{CacheManager, ManagerStats};
use crate::pool::BlockPool;
use crate::pool::digest::take_in;

impl CacheManager {
    /// One number for the state of the manager, after any operation: see
    /// [`ManagerConfig::digest`](super::ManagerConfig::digest). `None` without it. Equal histories give equal digests, on any
    /// host. O(blocks that changed since the last call).
    ///
    /// ```
    /// use kvpool::{CacheManager, ExtraKeys, ManagerConfig};
    /// let mut manager = CacheManager::new(ManagerConfig { num_blocks: 64, digest: true, ..Default::default() })?;
    /// let empty = manager.state_digest();
    /// manager.admit("a", manager.prepare(&[1, 2, 3], ExtraKeys::default())?)?;
    /// assert_ne!(manager.state_digest(), empty);
    /// assert_eq!(manager.state_digest(), Some(manager.state_digest_from_scratch()));
    /// # Ok::<(), kvpool::ManagerError>(())
    /// ```
    pub fn state_digest(&mut self) -> Option<u64> {
        let mut digest = 0;
        for pool in self.tiers.pools_mut() {
            digest = take_in(digest, [pool.state_digest()?]);
        }
        Some(take_in(digest, self.scalars()))
    }

    /// What [`Self::state_digest`] gives, counted anew from every block of every tier, whether the manager was made with
    /// digests or not. O(blocks).
    #[must_use]
    pub fn state_digest_from_scratch(&self) -> u64 {
        let pools = self.tiers.pools().iter().map(BlockPool::state_digest_from_scratch);
        take_in(take_in(0, pools), self.scalars())
    }

    /// What the digest knows beside the pools. Part of the specification: never changes its order.
    fn scalars(&self) -> [u64; 25] {
        let ManagerStats {
            running,
            preempted,
            swapped,
            moving,
            admissions,
            prompt_tokens,
            hit_tokens,
            computed_tokens,
            refusals,
            appended_tokens,
            preemptions,
            preempted_tokens,
            resumptions,
            resumed_tokens,
            resumed_hit_tokens,
            forks,
            swapped_out,
            swapped_in,
            copied_blocks,
            hints,
            // Settings, and what the pools' digests and the policy have of their own.
            block_bytes: _,
            retention: _,
            pool: _,
            // What prompts missed is told from tokens, which a journal does not have.
            misses: _,
        } = self.stats;
        [
            running as u64,
            preempted as u64,
            swapped as u64,
            moving as u64,
            admissions,
            prompt_tokens,
            hit_tokens,
            computed_tokens,
            refusals,
            appended_tokens,
            preemptions,
            preempted_tokens,
            resumptions,
            resumed_tokens,
            resumed_hit_tokens,
            forks,
            swapped_out,
            swapped_in,
            copied_blocks,
            hints.accepted as u64,
            hints.clipped as u64,
            hints.ignored as u64,
            self.slots.len() as u64,
            self.swaps.len() as u64,
            self.tiers.num_planned() as u64,
        ]
    }
}
