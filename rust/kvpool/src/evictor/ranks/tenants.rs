//! `Tenants`: how many blocks each tenant with limits has, and which of them are idle.
//!
//! Owns: counts by tenant, the idle blocks of each in the order of their release, and the blocks set aside because their
//! tenant is not above its floor. It decides nothing: [`super::Ranks`] asks it.
//!
//! Costs: every operation O(1), but O(tenants) for a victim while one is above its ceiling; 18 bytes per block.

use crate::block::BlockId;
use crate::block_lists::BlockLists;
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::retention::{RetentionConfig, TenantId, TenantLimits};

/// No tenant with limits.
pub(super) const NOBODY: u8 = u8::MAX;

#[derive(Clone, Debug)]
pub(super) struct Tenants {
    /// Ascending by tenant.
    limits: Vec<TenantLimits>,
    counts: Vec<usize>,
    /// By tenant: its idle blocks, least recently released first; pinned ones apart.
    pub(super) idle: BlockLists,
    /// By tenant: those of them that were next and are under the floor.
    pub(super) sheltered: BlockLists,
    num_sheltered: usize,
    /// Tenants above their ceiling.
    num_above: usize,
}

impl Tenants {
    pub(super) fn new(config: &RetentionConfig, num_blocks: usize) -> Result<Option<Self>, PoolError> {
        if config.tenants.is_empty() {
            return Ok(None);
        }
        let mut limits = config.tenants.clone();
        limits.sort_unstable_by_key(|limits| limits.tenant);
        Ok(Some(Self {
            counts: vec![0; limits.len()],
            idle: BlockLists::new(limits.len(), num_blocks)?,
            sheltered: BlockLists::new(limits.len(), num_blocks)?,
            num_sheltered: 0,
            num_above: 0,
            limits,
        }))
    }

    pub(super) fn grow(&mut self, num_blocks: usize) -> Result<(), PoolError> {
        self.idle.grow(num_blocks)?;
        self.sheltered.grow(num_blocks)
    }

    /// The index of a tenant with limits.
    pub(super) fn find(&self, tenant: TenantId) -> u8 {
        self.limits.binary_search_by_key(&tenant, |limits| limits.tenant).map_or(NOBODY, |at| at as u8)
    }

    pub(super) fn count(&self, tenant: u8) -> usize {
        self.counts.get(usize::from(tenant)).copied().unwrap_or(0)
    }

    /// Counts a new block of `tenant`. Returns a block that no longer has to be set aside for it.
    pub(super) fn gain(&mut self, tenant: u8) -> Option<BlockId> {
        let at = usize::from(tenant);
        *self.counts.get_mut(at)? += 1;
        self.num_above +=
            usize::from(self.limits[at].ceiling.is_some_and(|most| self.counts[at] == most + 1));
        self.spare_another(tenant)
    }

    /// A tenant above its floor has one block less to give than it had, or one more than its floor: another one that was set
    /// aside does not have to be.
    pub(super) fn spare_another(&mut self, tenant: u8) -> Option<BlockId> {
        if self.is_under_floor(tenant) { None } else { self.unshelter_next(usize::from(tenant)) }
    }

    pub(super) fn lose(&mut self, tenant: u8) {
        let at = usize::from(tenant);
        if let Some(count) = self.counts.get_mut(at) {
            let was_above = self.limits[at].ceiling.is_some_and(|most| *count == most + 1);
            self.num_above -= usize::from(was_above);
            *count = count.saturating_sub(1);
        }
    }

    /// A victim of a tenant above its ceiling, left where it is.
    pub(super) fn above_ceiling(&self) -> Option<BlockId> {
        if self.num_above == 0 {
            return None;
        }
        (0..self.limits.len())
            .filter(|&at| self.limits[at].ceiling.is_some_and(|ceiling| self.counts[at] > ceiling))
            .find_map(|at| self.idle.front(at))
    }

    /// Whether blocks of `tenant` are to be spared while there are others.
    pub(super) fn is_under_floor(&self, tenant: u8) -> bool {
        let at = usize::from(tenant);
        self.limits.get(at).is_some_and(|limits| self.counts[at] <= limits.floor)
    }

    pub(super) fn shelter(&mut self, tenant: u8, block: BlockId) {
        self.num_sheltered += usize::from(self.sheltered.push_back(usize::from(tenant), block));
    }

    /// Whether `block` was set aside; it is not any more.
    pub(super) fn unshelter(&mut self, block: BlockId) -> bool {
        let was = self.sheltered.remove(block).is_some();
        self.num_sheltered = self.num_sheltered.wrapping_sub(usize::from(was));
        was
    }

    fn unshelter_next(&mut self, tenant: usize) -> Option<BlockId> {
        let block = self.sheltered.pop_front(tenant)?;
        self.num_sheltered = self.num_sheltered.wrapping_sub(1);
        Some(block)
    }

    /// Takes any block that was set aside.
    pub(super) fn pop_sheltered(&mut self) -> Option<BlockId> {
        if self.num_sheltered == 0 {
            return None;
        }
        (0..self.limits.len()).find_map(|at| self.unshelter_next(at))
    }

    pub(super) fn clear(&mut self) {
        self.counts.fill(0);
        self.idle.clear();
        self.sheltered.clear();
        self.num_sheltered = 0;
        self.num_above = 0;
    }

    /// R2 for one block, and for the null block what is counted. O(1), O(tenants) for the null block.
    pub(super) fn check_block(&self, block: BlockId) -> Result<(), InvariantViolation> {
        self.idle.check_block(block)?;
        self.sheltered.check_block(block)?;
        let aside = self.sheltered.list_of(block);
        let sheltered: usize = if block.is_null() {
            (0..self.limits.len()).map(|at| self.sheltered.len(at)).sum()
        } else {
            self.num_sheltered
        };
        let sound = sheltered == self.num_sheltered && (aside.is_none() || aside == self.idle.list_of(block));
        ensure(sound, "R2 (what is set aside is idle and counted)", || {
            format!("{block:?} is set aside for {aside:?}; {sheltered} of {} are", self.num_sheltered)
        })
    }

    pub(super) fn check_invariants(
        &self,
        tenant_of: impl Iterator<Item = u8>,
    ) -> Result<(), InvariantViolation> {
        self.idle.check_invariants()?;
        self.sheltered.check_invariants()?;
        let mut counts = vec![0; self.counts.len()];
        for tenant in tenant_of {
            if let Some(count) = counts.get_mut(usize::from(tenant)) {
                *count += 1;
            }
        }
        let sheltered: usize = (0..self.limits.len()).map(|at| self.sheltered.len(at)).sum();
        let above = (self.limits.iter().zip(&counts))
            .filter(|(limits, count)| limits.ceiling.is_some_and(|most| **count > most))
            .count();
        ensure(
            counts == self.counts && sheltered == self.num_sheltered && above == self.num_above,
            "R2 (tenants' blocks are counted)",
            || {
                format!(
                    "counted {:?}, {} set aside and {} above, found {counts:?}, {sheltered} and {above}",
                    self.counts, self.num_sheltered, self.num_above
                )
            },
        )?;
        let stray = (0..self.limits.len())
            .flat_map(|at| self.sheltered.iter(at).map(move |block| (at, block)))
            .find(|&(at, block)| self.idle.list_of(block) != Some(at));
        ensure(stray.is_none(), "R2 (what is set aside is idle)", || format!("{stray:?}"))
    }
}
