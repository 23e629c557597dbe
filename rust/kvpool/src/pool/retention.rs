//! Implements the retention operations of [`BlockPool`]: hints about how long blocks are worth keeping,
//! tenants and time. See [`crate::retention`].

use super::BlockPool;
use crate::block::BlockId;
use crate::error::PoolError;
use crate::evictor::Signal;
use crate::free_list::check_id;
use crate::record::ByBlock;
use crate::retention::{Hint, HintReport, Keep, Retain, Retention, RetentionStats, TenantId};

/// # Retention
///
/// Hints change the positions of blocks in the order of eviction: see [`crate::retention`].
impl BlockPool {
    /// Gives a hint about how long blocks are worth keeping. The blocks may be held or cached-free;
    /// blocks without a content are ignored. The hint that a content will not be used again
    /// ([`Keep::Demoted`]) is also ignored for a block with several holders, because the other holders
    /// still use the block. O(1) per block, O(log blocks) with a time to live.
    ///
    /// ```
    /// use kvpool::retention::{Keep, Priority, Retention, RetentionConfig};
    /// use kvpool::{BlockPool, PoolConfig};
    /// let retention = Some(RetentionConfig { pin_budget: 1, ..RetentionConfig::default() });
    /// let eviction = kvpool_policies::LRU;
    /// let config = PoolConfig { num_blocks: 8, eviction, retention, ..PoolConfig::default() };
    /// let mut pool = BlockPool::new(config)?;
    /// let blocks = pool.allocate(2)?;
    /// // Nothing is cached yet, so nothing can be retained.
    /// assert_eq!(pool.retain(&blocks, Retention::PINNED)?.ignored, 2);
    /// # Ok::<(), kvpool::PoolError>(())
    /// ```
    ///
    /// # Errors
    /// [`PoolError::NoRetention`]; unknown ids; [`PoolError::InvalidConfig`] for a time to live that is
    /// not a number of seconds, or that is given before any [`Self::advance_time`].
    pub fn retain(&mut self, blocks: &[BlockId], retention: Retention) -> Result<HintReport, PoolError> {
        self.check_named(blocks, "retained")?;
        let retainer =
            self.order.retention_mut().ok_or(PoolError::NoRetention { operation: "retain blocks" })?;
        let mut report = HintReport::default();
        for &block in blocks {
            // A fence is not counted as a holder, because the request that released the block no longer
            // uses its content.
            let shared = self.records.at(block.get()).holders() > 1;
            report.count(if retention.keep == Keep::Demoted && shared {
                Hint::Ignored
            } else {
                retainer.retain(block, retention)?
            });
        }
        Ok(report)
    }

    /// Assigns blocks to `tenant`. The blocks count towards the tenant's limits as long as their
    /// content is cached. A block that already has a tenant keeps it. Blocks without a content, and
    /// tenants without limits, are ignored. O(1) per block.
    ///
    /// # Errors
    /// [`PoolError::NoRetention`]; unknown ids.
    pub fn assign_tenant(&mut self, blocks: &[BlockId], tenant: TenantId) -> Result<(), PoolError> {
        self.check_named(blocks, "assigned to a tenant")?;
        let retainer = self.retainer("assign tenants")?;
        for &block in blocks {
            retainer.assign(block, tenant);
        }
        Ok(())
    }

    /// Sets the time, in seconds on a clock of the caller. Hints whose time to live has run out lose
    /// their effect. Eviction policies that measure the age of blocks use this clock, too. Returns the
    /// number of hints that ran out. O(log blocks) for each of them.
    ///
    /// # Errors
    /// [`PoolError::NoRetention`] if the pool has neither retention nor a policy that measures ages;
    /// [`PoolError::TimeBackwards`]; [`PoolError::InvalidConfig`] if `now` is not a number.
    pub fn advance_time(&mut self, now: f64) -> Result<usize, PoolError> {
        self.check_poison()?;
        let ran_out = if self.order.retention().is_none() && self.order.keeps_time() {
            self.order.set_time(now)?;
            0
        } else {
            self.retainer("keep time")?.advance_time(now)?
        };
        self.notify_time(now);
        Ok(ran_out)
    }

    /// Whether [`Self::advance_time`] has an effect. It has one if the pool has retention, or a policy
    /// that measures ages.
    #[must_use]
    pub fn keeps_time(&self) -> bool {
        self.has_retention() || self.order.keeps_time()
    }

    /// Whether the policy of this pool uses [`Self::signal`].
    #[must_use]
    pub fn wants_signals(&self) -> bool {
        self.order.wants_signals()
    }

    /// Notifies the policy that a request has ended and is about to release these blocks. `signal`
    /// describes how the request ended. It is a hint for policies that use it, such as `hazard` of the
    /// crate `kvpool-policies`, and applies to the next release of the blocks. Blocks without a content
    /// are ignored. O(1) per block.
    ///
    /// # Errors
    /// Unknown ids.
    pub fn signal(&mut self, blocks: &[BlockId], signal: Signal) -> Result<(), PoolError> {
        self.check_named(blocks, "signalled")?;
        self.signal_held(blocks, signal);
        Ok(())
    }

    /// Like [`Self::signal`], but does not check the blocks: the caller knows that they are held. The
    /// list may contain the null block.
    pub(crate) fn signal_held(&mut self, blocks: &[BlockId], signal: Signal) {
        self.order.signal(blocks, signal);
    }

    /// Number of blocks of `tenant` that are cached or in use. 0 for tenants without limits.
    ///
    /// # Errors
    /// [`PoolError::NoRetention`].
    pub fn tenant_blocks(&self, tenant: TenantId) -> Result<usize, PoolError> {
        self.check_poison()?;
        let refused = PoolError::NoRetention { operation: "count a tenant's blocks" };
        Ok(self.order.retention().ok_or(refused)?.tenant_blocks(tenant))
    }

    /// Number of blocks per kind of retention hint. `None` if the pool has no retention. O(1).
    #[must_use]
    pub fn retention_stats(&self) -> Option<RetentionStats> {
        self.order.retention().map(Retain::stats)
    }

    /// Whether the pool was made with retention.
    #[must_use]
    pub fn has_retention(&self) -> bool {
        self.order.retention().is_some()
    }

    /// The latest time that was passed to [`Self::advance_time`]. `None` before the first call, or
    /// without retention.
    #[must_use]
    pub fn retention_time(&self) -> Option<f64> {
        self.order.retention()?.now()
    }

    pub(super) fn check_named(&self, blocks: &[BlockId], operation: &'static str) -> Result<(), PoolError> {
        self.check_poison()?;
        blocks.iter().try_for_each(|&block| check_id(block, self.num_blocks(), operation))
    }

    fn retainer(&mut self, operation: &'static str) -> Result<&mut dyn Retain, PoolError> {
        self.order.retention_mut().ok_or(PoolError::NoRetention { operation })
    }
}
