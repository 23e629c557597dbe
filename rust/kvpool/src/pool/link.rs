//! Implements operations on single full blocks. One registers a block, or replaces it by a block that
//! already has the content. Others move content between the pools of tiers.

use super::BlockPool;
use super::observe::Lookup;
use crate::block::BlockId;
use crate::error::PoolError;
use crate::free_list::check_id;
use crate::hash::{ChainLink, LinkRef};
use crate::prefix_index::{Index, Inserted};
use crate::record::{ByBlock, Name};

/// # Single full blocks
///
/// These operations are for engines that register one block at a time.
impl BlockPool {
    fn check_link(&self, link: &ChainLink) -> Result<(), PoolError> {
        self.check_poison()?;
        if link.epoch() != self.epoch {
            return Err(PoolError::StaleEpoch { chain: link.epoch(), pool: self.epoch });
        }
        self.index.check_kind(link.algorithm(), link.tokens().len())?;
        Index::check_depth(link.depth() as usize)?;
        if self.verify() >= crate::hash::Verify::Fingerprint && link.as_ref().fingerprint.is_none() {
            return Err(PoolError::MissingVerification { verify: "fingerprints" });
        }
        Ok(())
    }

    /// Registers a held block that has become full. If another block already has the content, acquires
    /// that block and releases the given one. Returns the block that the caller holds afterwards. A
    /// hash collision is counted and leaves the block unchanged. O(1).
    ///
    /// The other block may not be computed yet. Sharing such a block is only correct if all of its
    /// holders compute it, as in vLLM v0. Lookups by [`Self::match_and_acquire`] never return
    /// uncomputed blocks.
    ///
    /// # Errors
    /// [`PoolError::NotHeld`], [`PoolError::AlreadyRegistered`], [`PoolError::RefCountOverflow`],
    /// unknown ids, and the errors of [`Self::match_and_acquire`] about chains.
    pub fn register_link(&mut self, block: BlockId, link: &ChainLink) -> Result<BlockId, PoolError> {
        self.check_link(link)?;
        check_id(block, self.num_blocks(), "registered")?;
        if self.num_holders(block) == 0 {
            return Err(PoolError::NotHeld { block, held: 0, operation: "register it", position: 0 });
        }
        if self.is_registered(block) {
            return Err(PoolError::AlreadyRegistered { block });
        }
        if let Some(shared) = self.acquire_link(&link.as_ref())? {
            self.release(&[block])?;
            return Ok(shared);
        }
        match self.index.insert(&mut self.records, block, &link.as_ref()) {
            Inserted::Collision => self.counters.collisions += 1,
            Inserted::Registered => {
                self.note_registered(block, &link.as_ref(), None);
                self.notify_registered(&[block], None);
            }
        }
        self.notify_changed(&[block]);
        Ok(block)
    }

    /// Acquires the block that is registered for the content of `link`, computed or not. Returns `None`
    /// if no block is registered for it, or if a block with the same hash has another content. The
    /// latter is counted as a collision. See [`Self::register_link`] for when a block that is not
    /// computed may be used. O(1).
    ///
    /// # Errors
    /// [`PoolError::RefCountOverflow`], and the errors of [`Self::match_and_acquire`] about chains.
    pub fn acquire_registered(&mut self, link: &ChainLink) -> Result<Option<BlockId>, PoolError> {
        self.check_link(link)?;
        let shared = self.acquire_link(&link.as_ref())?;
        self.counters.collisions +=
            u64::from(shared.is_none() && self.index.find_link(&self.records, &link.as_ref()).is_err());
        Ok(shared)
    }

    fn acquire_link(&mut self, link: &LinkRef<'_>) -> Result<Option<BlockId>, PoolError> {
        let Some(shared) = self.index.find_link(&self.records, link).ok().flatten() else {
            self.counters.misses += 1;
            self.notify_link(link, &[]);
            return Ok(None);
        };
        self.acquire_by_id(&[shared])?;
        self.counters.hits += 1;
        self.notify_link(link, &[shared]);
        Ok(Some(shared))
    }

    fn notify_link(&mut self, link: &LinkRef<'_>, blocks: &[BlockId]) {
        let LinkRef { hash, depth, parent, .. } = *link;
        let hits = blocks.len();
        self.notify_looked_up(&Lookup { hashes: &[hash], depth, parent, hits, blocks, tenant: None });
    }

    pub(crate) fn content_of(&self, block: BlockId) -> Option<TierContent<'_>> {
        let name = self.name_of(block).filter(|_| self.is_computed(block))?;
        let named = || {
            Some(Index::link(*name.hash, self.depth_of(block)?, self.index.parent_of(&self.records, block)))
        };
        let link = self.index.link_of(&self.records, block).or_else(named)?;
        Some(TierContent { link, group: name.group })
    }

    /// Returns the computed block of this pool that has the same content as a block of another tier's
    /// pool.
    pub(crate) fn find_content(&self, content: &TierContent<'_>) -> Option<BlockId> {
        let found = match *content {
            TierContent { ref link, group: 0 } => self.index.find_link(&self.records, link).ok().flatten()?,
            TierContent { link: LinkRef { ref hash, .. }, group } => self.find_named(Name { hash, group })?,
        };
        let record = self.records.at(found.get());
        // A block is not shared if its reference count is near the largest number that fits.
        (record.references < u32::MAX / 2 && record.is_computed()).then_some(found)
    }

    /// Registers a held block for a content that another tier's pool has, and marks it computed. A hash
    /// collision is counted, and the block remains unregistered.
    pub(crate) fn adopt_content(
        &mut self,
        block: BlockId,
        content: &TierContent<'_>,
    ) -> Result<(), PoolError> {
        let TierContent { ref link, group } = *content;
        if self.is_registered(block) {
            return Err(PoolError::AlreadyRegistered { block });
        }
        if group != 0 {
            let parent = link.parent.as_ref().and_then(|hash| self.find_named(Name { hash, group }));
            return self
                .register_behind_hash(
                    block,
                    Name { hash: &link.hash, group },
                    link.depth,
                    link.parent,
                    parent,
                )
                .map(drop);
        }
        if self.index.insert(&mut self.records, block, link) == Inserted::Collision {
            self.counters.collisions += 1;
            return Ok(());
        }
        self.note_registered(block, link, None);
        self.notify_registered(&[block], None);
        self.mark_computed(&[block])
    }
}

/// The content of a block in one tier's pool, with which a block of another tier's pool can be found or
/// registered.
pub(crate) struct TierContent<'a> {
    link: LinkRef<'a>,
    group: u16,
}

/// Returns the same content in group 0, because pools without groups use only group 0.
impl<'a> From<LinkRef<'a>> for TierContent<'a> {
    fn from(link: LinkRef<'a>) -> Self {
        Self { link, group: 0 }
    }
}
