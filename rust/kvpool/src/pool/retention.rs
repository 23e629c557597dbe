//! The retention operations of [`BlockPool`]. [`crate::retention`] defines the hints.

use super::BlockPool;
use crate::block::BlockId;
use crate::error::PoolError;
use crate::evictor::Signal;
use crate::free_list::check_id;
use crate::record::ByBlock;
use crate::retention::{Hint, HintReport, Keep, Retain, Retention, RetentionStats, TenantId};

/// # Retention
///
/// Hints move blocks within the order of eviction: see [`crate::retention`].
impl BlockPool {
    /// Gives a hint about how long blocks, held or cached-free, are worth keeping. Blocks without a
    /// content are ignored. An end of life ([`Keep::Demoted`]) is also ignored for a block with several
    /// holders, because the others still use it. O(1) per block, O(log blocks) with a time to live.
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
            // A fence is not a holder: the request that released the block has finished with it.
            let shared = self.records.at(block.get()).holders() > 1;
            report.count(if retention.keep == Keep::Demoted && shared {
                Hint::Ignored
            } else {
                retainer.retain(block, retention)?
            });
        }
        Ok(report)
    }

    /// Assigns blocks to `tenant`: they count towards its limits as long as their content is cached. A
    /// block that already has a tenant keeps it. Blocks without a content, and tenants without limits,
    /// are ignored. O(1) per block.
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

    /// Sets the time, in seconds on a clock of the caller. Times to live that have run out end now.
    /// Eviction policies that measure ages use this clock. Returns the number of retentions that ran
    /// out. O(log blocks) for each.
    ///
    /// # Errors
    /// [`PoolError::NoRetention`] if the pool has neither retention nor such a policy;
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

    /// Whether [`Self::advance_time`] has an effect: the pool has retention, or a policy that measures
    /// ages.
    #[must_use]
    pub fn keeps_time(&self) -> bool {
        self.has_retention() || self.order.keeps_time()
    }

    /// Whether the policy of this pool uses [`Self::signal`].
    #[must_use]
    pub fn wants_signals(&self) -> bool {
        self.order.wants_signals()
    }

    /// Notifies the policy of the end of a request: `signal` describes how the request ended that is
    /// about to release these blocks. It is a hint for policies that use it (`hazard` of the crate
    /// `kvpool-policies`), and applies to the next release of the blocks. Blocks without a content are
    /// ignored. O(1) per block.
    ///
    /// # Errors
    /// Unknown ids.
    pub fn signal(&mut self, blocks: &[BlockId], signal: Signal) -> Result<(), PoolError> {
        self.check_named(blocks, "signalled")?;
        self.signal_held(blocks, signal);
        Ok(())
    }

    /// Like [`Self::signal`], for held blocks of the pool. The null block may be among them.
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

    /// Number of blocks per kind of retention. `None` without retention. O(1).
    #[must_use]
    pub fn retention_stats(&self) -> Option<RetentionStats> {
        self.order.retention().map(Retain::stats)
    }

    /// Whether the pool was made with retention.
    #[must_use]
    pub fn has_retention(&self) -> bool {
        self.order.retention().is_some()
    }

    /// The latest time passed to [`Self::advance_time`]. `None` before the first call, or without
    /// retention.
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
