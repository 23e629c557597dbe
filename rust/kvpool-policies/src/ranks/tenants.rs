//! `Tenants`: the blocks of each tenant that has limits.
//!
//! For each such tenant, this module stores the number of its blocks, and its idle blocks in the order
//! of their release. It also stores its blocks that are set aside because the tenant is not above its
//! floor. [`super::Ranks`] makes all decisions. In a pool without limits the module stores nothing.
//! Blocks without a tenant are on no list.
//!
//! Costs: every operation is O(1), except for O(tenants) per victim while a tenant is above its
//! ceiling. 18 bytes per block with limits.

use crate::block_lists::BlockLists;
use kvpool::parts::ensure;
use kvpool::retention::{TenantId, TenantLimits};
use kvpool::{BlockId, InvariantViolation, PoolError};

/// The index of a block's tenant if it has no tenant with limits.
pub(super) const NO_TENANT: u8 = u8::MAX;

#[derive(Clone, Debug)]
pub(super) struct Tenants {
    /// The limits of tenants, sorted by tenant.
    limits: Vec<TenantLimits>,
    counts: Vec<usize>,
    /// The idle blocks of each tenant, least recently released first. Pinned blocks are not included.
    pub(super) idle: BlockLists,
    /// The blocks of each tenant that are set aside: they would have been evicted, but the tenant is
    /// not above its floor.
    pub(super) sheltered: BlockLists,
    /// The number of tenants that have more blocks than their ceiling.
    num_above: usize,
}

impl Tenants {
    pub(super) fn new(mut limits: Vec<TenantLimits>) -> Result<Self, PoolError> {
        limits.sort_unstable_by_key(|limits| limits.tenant);
        Ok(Self {
            counts: vec![0; limits.len()],
            idle: BlockLists::new(limits.len(), 0)?,
            sheltered: BlockLists::new(limits.len(), 0)?,
            num_above: 0,
            limits,
        })
    }

    pub(super) fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        if self.limits.is_empty() {
            return Ok(());
        }
        self.idle.grow(num_blocks)?;
        self.sheltered.grow(num_blocks)
    }

    /// Returns the index of a tenant, or [`NO_TENANT`] if it has no limits.
    pub(super) fn find(&self, tenant: TenantId) -> u8 {
        self.limits.binary_search_by_key(&tenant, |limits| limits.tenant).map_or(NO_TENANT, |at| at as u8)
    }

    /// Returns the tenant with this index. `None` for [`NO_TENANT`].
    pub(super) fn id(&self, tenant: u8) -> Option<TenantId> {
        self.limits.get(usize::from(tenant)).map(|limits| limits.tenant)
    }

    pub(super) fn count(&self, tenant: u8) -> usize {
        self.counts.get(usize::from(tenant)).copied().unwrap_or(0)
    }

    fn is_above(&self, at: usize, count: usize) -> bool {
        self.limits[at].ceiling.is_some_and(|ceiling| count > ceiling)
    }

    /// Changes the number of blocks that `tenant` has.
    fn set_count(&mut self, tenant: u8, change: impl Fn(usize) -> usize) {
        let at = usize::from(tenant);
        let Some(&before) = self.counts.get(at) else { return };
        self.counts[at] = change(before);
        self.num_above += usize::from(self.is_above(at, self.counts[at]));
        self.num_above -= usize::from(self.is_above(at, before));
    }

    /// Counts a new block of `tenant`. If the tenant is now above its floor, returns one of its blocks
    /// that was set aside and no longer has to be.
    pub(super) fn gain(&mut self, tenant: u8) -> Option<BlockId> {
        self.set_count(tenant, |count| count + 1);
        self.spare_another(tenant)
    }

    pub(super) fn lose(&mut self, tenant: u8) {
        self.set_count(tenant, |count| count.saturating_sub(1));
    }

    /// Returns a block of `tenant` that was set aside and no longer has to be, because the tenant is
    /// above its floor. This is called after the tenant has gained a block, or has lost an idle one.
    pub(super) fn spare_another(&mut self, tenant: u8) -> Option<BlockId> {
        if self.is_under_floor(tenant) { None } else { self.sheltered.pop_front(usize::from(tenant)) }
    }

    /// Returns the next victim of a tenant above its ceiling, without removing it.
    pub(super) fn above_ceiling(&self) -> Option<BlockId> {
        if self.num_above == 0 {
            return None;
        }
        let mut above = (0..self.limits.len()).filter(|&at| self.is_above(at, self.counts[at]));
        above.find_map(|at| self.idle.front(at))
    }

    fn is_under_floor(&self, tenant: u8) -> bool {
        let at = usize::from(tenant);
        self.limits.get(at).is_some_and(|limits| self.counts[at] <= limits.floor)
    }

    /// Adds `block` to the idle blocks of `tenant`. If `first` is true, it becomes the next victim,
    /// otherwise the last.
    #[inline]
    pub(super) fn list(&mut self, tenant: u8, block: BlockId, first: bool) {
        if tenant == NO_TENANT {
            return;
        }
        if !first {
            self.idle.remove(block);
        }
        self.idle.push(tenant.into(), block, first);
    }

    /// Sets `block` aside if its tenant is not above its floor. Returns whether the block was set
    /// aside.
    pub(super) fn shelter(&mut self, tenant: u8, block: BlockId) -> bool {
        let shelters = self.is_under_floor(tenant);
        if shelters {
            self.sheltered.push_back(usize::from(tenant), block);
        }
        shelters
    }

    /// Removes and returns one of the blocks that were set aside.
    pub(super) fn pop_sheltered(&mut self) -> Option<BlockId> {
        if self.sheltered.num_linked() == 0 {
            return None;
        }
        (0..self.limits.len()).find_map(|at| self.sheltered.pop_front(at))
    }

    pub(super) fn clear(&mut self) {
        self.counts.fill(0);
        self.idle.clear();
        self.sheltered.clear();
        self.num_above = 0;
    }

    /// Checks R2 for one block in O(1). For the null block, checks it for all tenants in O(tenants).
    pub(super) fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.idle.check_block(block)?;
        self.sheltered.check_block(block)?;
        let aside = self.sheltered.list_of(block);
        let idle = aside.is_none() || aside == self.idle.list_of(block);
        ensure(idle, "R2 (blocks that are set aside are idle)", || {
            format!("{block:?} is set aside for {aside:?}")
        })
    }

    /// Checks the sums of R2. Together with calls of [`Self::check_block`] for all blocks, this checks
    /// R2 completely.
    pub(super) fn check_counts(&self, tenants: impl Iterator<Item = u8>) -> Result<(), InvariantViolation> {
        self.idle.check_invariants()?;
        self.sheltered.check_invariants()?;
        let mut counts = vec![0; self.counts.len()];
        for tenant in tenants {
            if let Some(count) = counts.get_mut(usize::from(tenant)) {
                *count += 1;
            }
        }
        let above = (0..counts.len()).filter(|&at| self.is_above(at, counts[at])).count();
        ensure(
            counts == self.counts && above == self.num_above,
            "R2 (the number of blocks of each tenant is correct)",
            || {
                format!(
                    "counted {:?}, {} tenants above their ceiling; found {counts:?}, {above}",
                    self.counts, self.num_above
                )
            },
        )
    }
}
