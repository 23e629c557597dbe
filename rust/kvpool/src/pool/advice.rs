//! The advisor's part of [`BlockPool`]: what it is told, and what it says. What it does is stated in [`crate::advisor`].

use super::{BlockPool, PrefixMatch};
use crate::advisor::{Advice, Lookup, Sample};
use crate::block::BlockId;
use crate::error::PoolError;
use crate::hash::{HashChain, LinkRef};
use crate::retention::TenantId;

impl BlockPool {
    /// What the pool's own traffic says about other sizes, other policies, and tenants; `None` without an advisor. Some 50 us.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use kvpool::{AdvisorConfig, BlockHasher, BlockPool, ExtraKeys, HashCursor, HasherConfig, PoolConfig};
    /// let hasher = Arc::new(BlockHasher::new(HasherConfig { block_size: 1, ..Default::default() })?);
    /// let advisor = Some(AdvisorConfig::default());
    /// let mut pool = BlockPool::new(PoolConfig { num_blocks: 9, block_size: 1, advisor, ..Default::default() })?;
    /// // Three prompts of four blocks in turn: too many for eight blocks, and a loop never hits in LRU.
    /// for turn in [0, 100, 200].repeat(50) {
    ///     let mut prompt = HashCursor::new(hasher.clone(), ExtraKeys::default())?;
    ///     prompt.append(&[turn, turn + 1, turn + 2, turn + 3]);
    ///     let mut table = pool.match_and_acquire(prompt.chain(), usize::MAX)?;
    ///     let hits = table.len();
    ///     pool.allocate_into(4 - hits, &mut table)?;
    ///     pool.register(&table[hits..], prompt.chain(), hits)?;
    ///     pool.mark_computed(&table[hits..])?;
    ///     pool.release_table(&table)?;
    /// }
    /// let advice = pool.advice().unwrap();
    /// assert!(advice.standing == 0.0);
    /// let twelve = advice.curve.iter().find(|point| point.blocks == 12).unwrap();
    /// assert!(twelve.block_hit_rate == 0.98); // all but the first 12 of 600
    /// # Ok::<(), kvpool::PoolError>(())
    /// ```
    #[must_use]
    pub fn advice(&self) -> Option<Advice> {
        self.advisor.as_ref().map(|advisor| advisor.advice())
    }

    /// [`Self::match_and_acquire`] on behalf of a tenant, whom the advisor counts it for. Without an advisor it is the same.
    ///
    /// # Errors
    /// As [`Self::match_and_acquire`].
    pub fn match_and_acquire_for(
        &mut self,
        chain: &HashChain,
        max_blocks: usize,
        tenant: TenantId,
    ) -> Result<Vec<BlockId>, PoolError> {
        self.look_up(chain, max_blocks, Some(tenant))
    }

    /// A match was acquired.
    pub(super) fn advise(&mut self, found: &PrefixMatch) {
        let Some(advisor) = &mut self.advisor else { return };
        advisor.refer(&Lookup {
            sample: &found.sample,
            parent: None,
            asked: found.asked,
            hits: found.blocks.len(),
            tenant: found.tenant,
        });
    }

    /// A single block was looked for, to be acquired.
    pub(super) fn advise_link(&mut self, link: &LinkRef<'_>, hit: bool) {
        let Some(advisor) = &mut self.advisor else { return };
        let mut sample = Sample::default();
        advisor.sample(&[link.hash], link.depth, &mut sample);
        let hits = usize::from(hit);
        advisor.refer(&Lookup { sample: &sample, parent: link.parent, asked: 1, hits, tenant: None });
    }

    /// The chain's blocks `start..end` were registered.
    pub(super) fn advise_registered(&mut self, chain: &HashChain, start: usize, end: usize) {
        if let Some(advisor) = &mut self.advisor {
            advisor.registered(chain.hashes(), start, end);
        }
    }
}
