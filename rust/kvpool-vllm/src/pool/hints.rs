//! Hints about the future use of blocks, with vLLM's block ids: the retention of [`kvpool::BlockPool`],
//! and how requests ended.
//!
//! This module has no state. [`kvpool::retention`] defines what hints mean and when they end. A hint is
//! ignored for a block that has no hash, or whose hash is not in the core. A pool with retention orders
//! its cached blocks like a pool with another policy than `lru`: it [keeps a
//! history](Pool::keeps_history), and the order among these blocks may differ from vLLM's.
//!
//! Costs: O(1) per block, O(log blocks) with a time to live; nothing for a pool without retention.

use kvpool::retention::{HintReport, Retention, RetentionStats, TenantId};
use kvpool::{BlockId, Signal};

use crate::error::VllmError;
use crate::pool::Pool;

impl Pool {
    /// Sets the retention of blocks: how long they are worth keeping. The blocks may be in use or free.
    /// The null block is ignored.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`]; [`VllmError::Pool`] for the errors of
    /// [`kvpool::BlockPool::retain`].
    pub fn retain(&mut self, blocks: &[u32], retention: Retention) -> Result<HintReport, VllmError> {
        let mut ids = self.named(blocks)?;
        let given = ids.len();
        // A hidden content only marks a position in the queue, and cannot be hit.
        ids.retain(|&id| !self.core.is_hidden(id));
        let report = self.core.retain(&ids, retention).map_err(|error| self.refusal(error))?;
        Ok(HintReport { ignored: report.ignored + given - ids.len(), ..report })
    }

    /// Assigns blocks to a tenant. They count towards the limits of `tenant` as long as they are
    /// cached. A block that already has a tenant keeps it.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`]; [`VllmError::Pool`] without retention.
    pub fn assign_tenant(&mut self, blocks: &[u32], tenant: TenantId) -> Result<(), VllmError> {
        let ids = self.named(blocks)?;
        self.core.assign_tenant(&ids, tenant).map_err(|error| self.refusal(error))
    }

    /// Reports how a request ended, for its blocks. Call this before the request releases them: see
    /// [`kvpool::BlockPool::signal`].
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`]; [`VllmError::Pool`] for the errors of that method.
    pub fn signal(&mut self, blocks: &[u32], signal: Signal) -> Result<(), VllmError> {
        let ids = self.named(blocks)?;
        self.core.signal(&ids, signal).map_err(|error| self.refusal(error))
    }

    /// Whether the policy of this pool uses [`Self::signal`].
    #[must_use]
    pub fn wants_signals(&self) -> bool {
        self.core.wants_signals()
    }

    /// Sets the present time, in seconds, on a clock of the caller. Returns the number of retentions
    /// that have expired.
    ///
    /// # Errors
    /// [`VllmError::Pool`] for the errors of [`kvpool::BlockPool::advance_time`].
    pub fn advance_time(&mut self, now: f64) -> Result<usize, VllmError> {
        self.core.advance_time(now).map_err(|error| self.refusal(error))
    }

    /// Returns the number of retained blocks by kind of retention. `None` if the pool has no retention.
    #[must_use]
    pub fn retention_stats(&self) -> Option<RetentionStats> {
        self.core.retention_stats()
    }

    fn named(&self, blocks: &[u32]) -> Result<Vec<BlockId>, VllmError> {
        blocks.iter().try_for_each(|&block| self.check(block))?;
        Ok(blocks.iter().filter(|&&block| block != 0).map(|&block| BlockId::new(block)).collect())
    }
}
