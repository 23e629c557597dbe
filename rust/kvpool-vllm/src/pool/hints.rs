//! What somebody knows of the future of blocks: the retention of [`kvpool::BlockPool`], and how
//! requests ended, for vLLM's ids.
//!
//! Owns nothing: what hints mean, and where they end, is [`kvpool::retention`]'s. Blocks without a hash
//! are ignored, and so are those whose hash is no content of the core's. A pool with retention orders
//! its cached blocks as one with another policy than `lru` does: it [keeps a
//! history](Pool::keeps_history), and vLLM's order among them is not kept to the block.
//!
//! Costs: O(1) per block, O(log blocks) with a time to live; a pool without retention has none of it.

use kvpool::retention::{HintReport, Retention, RetentionStats, TenantId};
use kvpool::{BlockId, Signal};

use crate::error::VllmError;
use crate::pool::Pool;

impl Pool {
    /// Says how long blocks, held or free, are worth keeping. Of the null block nothing is said.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`]; [`VllmError::Pool`] for what [`kvpool::BlockPool::retain`] refuses.
    pub fn retain(&mut self, blocks: &[u32], retention: Retention) -> Result<HintReport, VllmError> {
        let mut ids = self.named(blocks)?;
        let said = ids.len();
        // A content that is hidden is a place in the queue and nothing that can be hit.
        ids.retain(|&id| !self.core.is_hidden(id));
        let report = self.core.retain(&ids, retention).map_err(|error| self.refusal(error))?;
        Ok(HintReport { ignored: report.ignored + said - ids.len(), ..report })
    }

    /// Says whose blocks are: they count towards the limits of `tenant` as long as they are cached. The
    /// first to say it counts.
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`]; [`VllmError::Pool`] without retention.
    pub fn assign_tenant(&mut self, blocks: &[u32], tenant: TenantId) -> Result<(), VllmError> {
        let ids = self.named(blocks)?;
        self.core.assign_tenant(&ids, tenant).map_err(|error| self.refusal(error))
    }

    /// Says of blocks in use how the request that is about to give them back ended: see
    /// [`kvpool::BlockPool::signal`].
    ///
    /// # Errors
    /// [`VllmError::UnknownBlock`]; [`VllmError::Pool`] for what that refuses.
    pub fn signal(&mut self, blocks: &[u32], signal: Signal) -> Result<(), VllmError> {
        let ids = self.named(blocks)?;
        self.core.signal(&ids, signal).map_err(|error| self.refusal(error))
    }

    /// Whether [`Self::signal`] is a hint to the policy of this pool.
    #[must_use]
    pub fn wants_signals(&self) -> bool {
        self.core.wants_signals()
    }

    /// Lets time pass, in seconds on a clock of the caller's. Returns how many retentions ran out.
    ///
    /// # Errors
    /// [`VllmError::Pool`] for what [`kvpool::BlockPool::advance_time`] refuses.
    pub fn advance_time(&mut self, now: f64) -> Result<usize, VllmError> {
        self.core.advance_time(now).map_err(|error| self.refusal(error))
    }

    /// How many blocks are retained how; `None` without retention.
    #[must_use]
    pub fn retention_stats(&self) -> Option<RetentionStats> {
        self.core.retention_stats()
    }

    fn named(&self, blocks: &[u32]) -> Result<Vec<BlockId>, VllmError> {
        blocks.iter().try_for_each(|&block| self.check(block))?;
        Ok(blocks.iter().filter(|&&block| block != 0).map(|&block| BlockId::new(block)).collect())
    }
}
