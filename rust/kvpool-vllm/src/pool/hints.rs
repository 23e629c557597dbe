//! Hints about the future use of blocks: how long to retain them, which tenant they belong to, and how
//! requests ended.
//!
//! These calls take vLLM's block ids and pass the hints to [`kvpool::BlockPool`]. [`kvpool::retention`]
//! defines what hints mean and when they end. A hint is ignored for a block that has no hash, or whose
//! hash is not in the core. In a pool with retention, the order among cached blocks may differ from
//! vLLM's, as with any policy other than `lru` ([`Pool::keeps_history`]).
//!
//! Costs: O(1) per block, or O(log blocks) for hints with a time to live. A pool without retention has
//! no costs.

use kvpool::retention::{HintReport, Retention, RetentionStats, TenantId};
use kvpool::{BlockId, Signal};

use crate::error::VllmError;
use crate::pool::Pool;

impl Pool {
    /// Sets the retention of blocks, which determines how long they stay cached. The blocks may be in
    /// use or free. The null block is ignored.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`]; [`VllmError::Pool`] for the errors of
    /// [`kvpool::BlockPool::retain`].
    pub fn retain(&mut self, blocks: &[u32], retention: Retention) -> Result<HintReport, VllmError> {
        let mut ids = self.named(blocks)?;
        let given = ids.len();
        // Hidden contents are ignored, because no lookup can find them.
        ids.retain(|&id| !self.core.is_hidden(id));
        let report = self.core.retain(&ids, retention).map_err(|error| self.refusal(error))?;
        Ok(HintReport { ignored: report.ignored + given - ids.len(), ..report })
    }

    /// Assigns blocks to a tenant. While they are cached, they count towards the limits of `tenant`. A
    /// block that already has a tenant keeps it.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`] for an unknown id. [`VllmError::Pool`] if the pool has no retention.
    pub fn assign_tenant(&mut self, blocks: &[u32], tenant: TenantId) -> Result<(), VllmError> {
        let ids = self.named(blocks)?;
        self.core.assign_tenant(&ids, tenant).map_err(|error| self.refusal(error))
    }

    /// Notifies the policy how the request that holds these blocks ended. Call this before the request
    /// releases them: see [`kvpool::BlockPool::signal`].
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`] for an unknown id. [`VllmError::Pool`] for the errors of
    /// [`kvpool::BlockPool::signal`].
    pub fn signal(&mut self, blocks: &[u32], signal: Signal) -> Result<(), VllmError> {
        let ids = self.named(blocks)?;
        self.core.signal(&ids, signal).map_err(|error| self.refusal(error))
    }

    /// Whether the pool's eviction policy uses the notifications of [`Self::signal`].
    #[must_use]
    pub fn wants_signals(&self) -> bool {
        self.core.wants_signals()
    }

    /// Sets the present time, in seconds on any clock that the caller chooses. Returns the number of
    /// retentions that expired.
    ///
    /// # Errors
    /// [`VllmError::Pool`] for the errors of [`kvpool::BlockPool::advance_time`].
    pub fn advance_time(&mut self, now: f64) -> Result<usize, VllmError> {
        self.core.advance_time(now).map_err(|error| self.refusal(error))
    }

    /// Returns how many blocks are retained, by kind of retention. `None` if the pool has no retention.
    #[must_use]
    pub fn retention_stats(&self) -> Option<RetentionStats> {
        self.core.retention_stats()
    }

    fn named(&self, blocks: &[u32]) -> Result<Vec<BlockId>, VllmError> {
        blocks.iter().try_for_each(|&block| self.check(block))?;
        Ok(blocks.iter().filter(|&&block| block != 0).map(|&block| BlockId::new(block)).collect())
    }
}
