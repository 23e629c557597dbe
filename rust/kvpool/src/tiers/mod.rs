//! [`Tiers`] consists of one block pool per tier, and plans copies between their blocks.
//!
//! It stores the copies that are planned but not yet returned by [`Tiers::take_plan`], and the swaps
//! that have not ended.
//!
//! A copy is planned in the call that makes it necessary. Its source and destination are *pinned*: they
//! cannot be allocated to another request before [`Tiers::take_plan`] returns the copy. vLLM v0 had no
//! such pins, and lost copies. If a later copy would read a block that an earlier copy of the plan
//! writes, it reads the source of the earlier copy instead. So all copies of a plan read the contents
//! that blocks had before the plan.
//!
//! Invariants, besides those of the pools:
//! - T1: the source and the destination of every planned copy have a pin, or a reference of a swap.
//! - T2: no block is the destination of two planned copies.
//! - T3: a swap holds one destination reference for every source reference that it moves.
//!
//! Costs: O(1) per copied block, O(log n) per swap and per copy of a plan with n copies. No cost
//! depends on the size of a tier.

mod plan;
mod swap;

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::error::ensure;
use crate::pool::observe::PoolObserver;
use crate::{BlockId, BlockPool, Evictor, InvariantViolation, PoolConfig, PoolError, Refusal, Ticket};

pub use plan::{Place, PlanError, Run, Transfer, TransferPlan, runs};
use swap::Swap;
pub use swap::{Fit, SwapId};

type Result<T, E = TierError> = std::result::Result<T, E>;

/// The reason why [`Tiers`] refused a call. A refused call changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the error message explains each field")]
pub enum TierError {
    /// There is no tier with this number.
    #[error("tier {tier} does not exist: there are {tiers}")]
    UnknownTier { tier: usize, tiers: usize },
    /// A pool refused the operation.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The swap names the same tier as source and destination.
    #[error("a swap from tier {tier} to itself")]
    SameTier { tier: usize },
    /// No unfinished swap has this id: it was completed or aborted, or never begun.
    #[error("swap {swap} is not under way: it was completed or aborted, or never begun")]
    UnknownSwap { swap: u64 },
    /// The swap cannot be completed, because [`Tiers::take_plan`] has not yet returned its copies.
    #[error(
        "swap {swap} cannot be completed: its copies are still planned, take the plan and execute it first"
    )]
    CopiesNotTaken { swap: u64 },
    /// A reset was refused, because swapped requests or a swap hold blocks of another tier than the
    /// device.
    #[error(
        "{active} blocks of tier {tier} are active and {fenced} fenced: release or preempt what is swapped \
         out first, or bump the epoch, which always succeeds"
    )]
    InUse { tier: usize, active: usize, fenced: usize },
    /// The transfer plan is not valid.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// One planned copy.
#[derive(Clone, Copy, Debug)]
struct Pending {
    src: Place,
    /// The swap that the copy belongs to. `None` for copy-on-write.
    swap: Option<SwapId>,
    /// The number of copies that were planned before this copy. Plans list copies in this order.
    nth: u64,
}

/// Holds one pool per tier, and the planned copies between their blocks.
///
/// ```
/// use kvpool::{PoolConfig, Tiers};
/// let config = PoolConfig { num_blocks: 8, block_size: 4, ..Default::default() };
/// let mut tiers = Tiers::new(vec![config])?;
/// let table = tiers.pool_mut(0)?.allocate(1)?;
/// tiers.pool_mut(0)?.acquire(&table)?;                      // a fork: two holders
/// let own = tiers.copy_on_write(0, table[0])?;              // one of them writes
/// assert_ne!(own, table[0]);
/// assert_eq!(tiers.copy_on_write(0, table[0])?, table[0]);  // the other is alone now
/// let plan = tiers.take_plan()?;
/// assert_eq!((plan.len(), plan.transfers()[0].dst.block), (1, own));
/// # Ok::<(), kvpool::TierError>(())
/// ```
#[derive(Debug)]
pub struct Tiers {
    pools: Vec<BlockPool>,
    /// The planned copies, by the block that each of them writes.
    pending: HashMap<Place, Pending>,
    planned: u64,
    swaps: BTreeMap<SwapId, Swap>,
    /// For each block, the number of references that unfinished swaps will drop when they are
    /// completed.
    leaving: HashMap<Place, u32>,
    next_swap: u64,
}

impl Tiers {
    /// Makes one pool per configuration. The first pool is that of the device.
    ///
    /// # Errors
    /// [`PoolError::InvalidConfig`]; also if the tiers differ in block size or verification, or if
    /// there is no configuration.
    pub fn new(configs: Vec<PoolConfig>) -> Result<Self> {
        Self::assemble(configs, BlockPool::new)
    }

    /// Like [`Self::new`], but `evictor` decides which blocks of the device are evicted: see
    /// [`BlockPool::with_evictor`].
    ///
    /// # Errors
    /// As [`Self::new`]; also if `evictor` already holds blocks.
    pub fn with_evictor(configs: Vec<PoolConfig>, evictor: Box<dyn Evictor>) -> Result<Self> {
        Self::assemble(configs, |device| BlockPool::with_evictor(device, evictor))
    }

    fn assemble(
        configs: Vec<PoolConfig>,
        device: impl FnOnce(PoolConfig) -> Result<BlockPool, PoolError>,
    ) -> Result<Self> {
        let Some(PoolConfig { block_size, verify, .. }) = configs.first() else {
            return Err(PoolError::config("tiers", 0, "at least 1").into());
        };
        let alike = "the same in every tier";
        if let Some(other) = configs.iter().find(|config| config.block_size != *block_size) {
            return Err(PoolError::config("block_size", other.block_size, alike).into());
        }
        if let Some(other) = configs.iter().find(|config| config.verify != *verify) {
            return Err(PoolError::config("verify", other.verify, alike).into());
        }
        let mut configs = configs.into_iter();
        let device = configs.next().map(device);
        let pools = device.into_iter().chain(configs.map(BlockPool::new));
        let mut pools = pools.collect::<Result<Vec<_>, _>>()?;
        // A content moves between tiers together with its parent's hash. So if one pool needs the
        // hashes of parents, all pools store them.
        if pools.iter().any(BlockPool::keeps_parents) {
            pools.iter_mut().try_for_each(BlockPool::keep_parents)?;
        }
        Ok(Self {
            pools,
            pending: HashMap::new(),
            planned: 0,
            swaps: BTreeMap::new(),
            leaving: HashMap::new(),
            next_swap: 0,
        })
    }

    /// Sets the observer of one tier's pool: see [`BlockPool::observe`]. If the observer needs the
    /// hashes of parents, the pools of all tiers store them.
    ///
    /// # Errors
    /// [`TierError::UnknownTier`]; [`PoolError::InvalidConfig`] if there is no memory.
    pub fn observe(&mut self, tier: usize, observer: Box<dyn PoolObserver>) -> Result<()> {
        self.pool(tier)?;
        if observer.wants_parents() {
            self.pools.iter_mut().try_for_each(BlockPool::keep_parents)?;
        }
        self.pool_mut(tier)?.observe(observer)?;
        Ok(())
    }

    /// Number of tiers.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.pools.len()
    }

    /// Whether there is no tier. Always false.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// Returns the reason why a pool is poisoned, if one is. Then all tiers refuse every operation.
    #[must_use]
    pub fn poison_reason(&self) -> Option<&str> {
        self.pools.iter().find_map(BlockPool::poison_reason)
    }

    #[inline]
    pub(crate) fn check_poison(&self) -> Result<(), PoolError> {
        self.pools.iter().try_for_each(BlockPool::check_poison)
    }

    /// Returns the pool of a tier.
    ///
    /// # Errors
    /// [`TierError::UnknownTier`].
    pub fn pool(&self, tier: usize) -> Result<&BlockPool> {
        self.pools.get(tier).ok_or(TierError::UnknownTier { tier, tiers: self.len() })
    }

    /// Returns a mutable reference to the pool of a tier.
    ///
    /// # Errors
    /// [`TierError::UnknownTier`].
    pub fn pool_mut(&mut self, tier: usize) -> Result<&mut BlockPool> {
        let tiers = self.len();
        self.pools.get_mut(tier).ok_or(TierError::UnknownTier { tier, tiers })
    }

    pub(crate) fn pools(&self) -> &[BlockPool] {
        &self.pools
    }

    #[cfg(feature = "fault-injection")]
    pub(crate) fn pools_mut(&mut self) -> &mut [BlockPool] {
        &mut self.pools
    }

    pub(crate) fn device(&self) -> &BlockPool {
        &self.pools[0]
    }

    pub(crate) fn device_mut(&mut self) -> &mut BlockPool {
        &mut self.pools[0]
    }

    /// Returns whether a holder of `block` may write to it. The block must have no other holder, must
    /// not be fenced for a running step, and must not be registered.
    ///
    /// # Errors
    /// [`TierError::UnknownTier`]; [`PoolError::NotHeld`] for a block without holders.
    pub fn is_writable(&self, tier: usize, block: BlockId) -> Result<bool> {
        Ok(self.is_exclusive(tier, block)? && self.pool(tier)?.num_users(block) == 1)
    }

    /// Like [`Self::is_writable`], but allows blocks that are fenced for a running step.
    fn is_exclusive(&self, tier: usize, block: BlockId) -> Result<bool> {
        self.check_poison()?;
        let pool = self.pool(tier)?;
        match pool.num_holders(block) {
            0 => Err(PoolError::NotHeld { block, held: 0, operation: "write to it", position: 0 }.into()),
            holders => Ok(holders == 1 && !pool.is_registered(block)),
        }
    }

    /// Returns a block that a holder of `block` may write to. This is `block` itself if it is writable.
    /// Otherwise it is a new block. The call then plans a copy of `block` to the new block, and
    /// releases the caller's reference to `block`. The caller replaces `block` by the new block in its
    /// table. O(1).
    ///
    /// # Errors
    /// [`PoolError::OutOfBlocks`], [`PoolError::NotHeld`], [`TierError::UnknownTier`].
    pub fn copy_on_write(&mut self, tier: usize, block: BlockId) -> Result<BlockId> {
        if self.is_writable(tier, block)? { Ok(block) } else { self.copy(tier, block) }
    }

    /// Like [`Self::copy_on_write`], but ignores fences. This is for callers that use fences only to
    /// prevent allocations of blocks, and not to prevent their holders from writing.
    ///
    /// # Errors
    /// As [`Self::copy_on_write`].
    pub fn copy_if_shared(&mut self, tier: usize, block: BlockId) -> Result<BlockId> {
        if self.is_exclusive(tier, block)? { Ok(block) } else { self.copy(tier, block) }
    }

    /// Plans a copy to a new block, pins both blocks, and releases the reference to `block`.
    fn copy(&mut self, tier: usize, block: BlockId) -> Result<BlockId> {
        let src = self.resolve(Place { tier, block });
        if self.pool(src.tier)?.ref_count(src.block) == Some(u32::MAX) {
            return Err(PoolError::RefCountOverflow { block: src.block, held: u32::MAX }.into());
        }
        let fresh = self.pool_mut(tier)?.allocate(1)?;
        self.pool_mut(src.tier)?.pin(src.block)?;
        self.pool_mut(tier)?.pin(fresh[0])?;
        self.plan(src, Place { tier, block: fresh[0] }, None);
        self.pool_mut(tier)?.release(&[block])?;
        Ok(fresh[0])
    }

    /// Returns the block to read for the content of `place` before the plan is executed. If a copy to
    /// `place` is planned, this is the source of the copy. Otherwise it is `place` itself.
    fn resolve(&self, place: Place) -> Place {
        self.pending.get(&place).map_or(place, |pending| pending.src)
    }

    fn plan(&mut self, src: Place, dst: Place, swap: Option<SwapId>) {
        self.pending.insert(dst, Pending { src, swap, nth: self.planned });
        self.planned += 1;
    }

    /// Number of planned copies.
    #[must_use]
    pub fn num_planned(&self) -> usize {
        self.pending.len()
    }

    /// Returns the planned copies, in the order of planning. O(n log n).
    pub fn pending_copies(&self) -> impl Iterator<Item = Transfer> + '_ {
        let mut planned: Vec<_> = self.pending.iter().collect();
        planned.sort_unstable_by_key(|(_, pending)| pending.nth);
        planned.into_iter().map(|(&dst, pending)| Transfer { src: pending.src, dst })
    }

    /// Returns all planned copies as one plan, and ends their pins. Copies to blocks that are no longer
    /// needed are left out. The engine has to execute the plan before the step writes to any block,
    /// because the sources may be allocated from now on. O(n log n) for n copies.
    ///
    /// # Errors
    /// Only if a pool is poisoned ([`PoolError::Poisoned`]).
    pub fn take_plan(&mut self) -> Result<TransferPlan> {
        self.check_poison()?;
        if self.pending.is_empty() {
            return Ok(TransferPlan::default());
        }
        let plan =
            TransferPlan::new(self.pending_copies().filter(|copy| self.is_wanted(copy.dst)).collect())?;
        self.pending = HashMap::new(); // frees the memory of a large plan, unlike `clear`
        self.pools.iter_mut().try_for_each(BlockPool::unpin)?;
        Ok(plan)
    }

    /// Whether the destination of a copy is still needed. It is needed if it has a holder, or if it is
    /// computed, because a lookup may return it.
    fn is_wanted(&self, dst: Place) -> bool {
        let pool = &self.pools[dst.tier];
        pool.num_holders(dst.block) > 0 || pool.is_computed(dst.block)
    }

    /// Ends the fences of a step and of all earlier steps in every tier. Returns the number of
    /// references that they held.
    pub(crate) fn complete_step(&mut self, step: u64) -> Result<usize> {
        self.check_poison()?;
        self.pools.iter_mut().try_fold(0, |ended, pool| Ok(ended + pool.complete_step(step)?))
    }

    /// Starts a fence in every tier. Fences always start and end in all tiers together, so a ticket has
    /// the same number in every tier. See [`BlockPool::fence`].
    pub(crate) fn fence(&mut self) -> Result<Ticket> {
        self.check_poison()?;
        self.pools.iter_mut().rev().try_fold(Ticket::new(0), |_, pool| Ok(pool.fence()?))
    }

    /// Ends a fence in every tier. Returns the number of references that it held.
    pub(crate) fn end_fence(&mut self, ticket: Ticket) -> Result<usize> {
        self.check_poison()?;
        self.pools.iter().try_for_each(|pool| pool.check_until(ticket.into()))?;
        self.pools.iter_mut().try_fold(0, |ended, pool| Ok(ended + pool.end_fence(ticket)?))
    }

    /// Starts a new epoch in every tier: see [`BlockPool::bump_epoch`].
    ///
    /// # Errors
    /// Only if a pool is poisoned.
    pub fn bump_epoch(&mut self) -> Result<u64> {
        self.check_poison()?;
        self.pools.iter_mut().try_fold(0, |_, pool| Ok(pool.bump_epoch()?))
    }

    /// Removes all cached content of every tier. If one tier cannot be reset, no tier is, because a
    /// swap could bring the remaining content back. Returns the number of blocks that were registered.
    /// O(usable blocks).
    ///
    /// # Errors
    /// [`PoolError::InUse`] while blocks of the device are held, [`TierError::InUse`] while blocks of
    /// another tier are held. [`Self::bump_epoch`] always succeeds.
    pub fn reset(&mut self) -> Result<usize> {
        self.check_poison()?;
        for (tier, pool) in self.pools.iter().enumerate() {
            pool.check_idle().map_err(|error| match error {
                PoolError::InUse { active, fenced } if tier > 0 => TierError::InUse { tier, active, fenced },
                error => error.into(),
            })?;
        }
        self.pools.iter_mut().try_fold(0, |forgotten, pool| Ok(forgotten + pool.reset()?))
    }

    /// Checks all invariants: recounts every pool, the planned copies and the swaps from scratch.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.pools.iter().try_for_each(BlockPool::check_invariants)?;
        let copies = self.pending.iter().filter(|(_, pending)| pending.swap.is_none());
        for place in copies.flat_map(|(&dst, pending)| [pending.src, dst]) {
            ensure(
                self.pools[place.tier].is_pinned(place.block),
                "T1 (sources and destinations of planned copies are pinned)",
                || format!("{place:?} is not pinned"),
            )?;
        }
        let leaving = sums(self.swaps.values().flat_map(Swap::sources));
        ensure(leaving == self.leaving, "T3 (the references that swaps will drop are counted)", || {
            let first = leaving.iter().find(|(place, count)| self.leaving.get(*place) != Some(*count));
            format!(
                "{} places counted, {} in swaps, first difference {first:?}",
                self.leaving.len(),
                leaving.len()
            )
        })?;
        self.check_held(&leaving, "T3 (the source of a swap is held)")?;
        self.check_held(&self.swap_references(), "T3 (the destination of a swap is held)")
    }

    fn check_held(
        &self,
        references: &HashMap<Place, u32>,
        invariant: &'static str,
    ) -> Result<(), InvariantViolation> {
        references.iter().try_for_each(|(place, &references)| {
            let held = self.pools[place.tier].num_holders(place.block);
            ensure(held >= references, invariant, || {
                format!("{place:?} has {held} holders, {references} references of swaps")
            })
        })
    }

    /// Returns, for each block, the number of references that swaps hold because it is their
    /// destination. O(blocks of the swaps).
    pub(crate) fn swap_references(&self) -> HashMap<Place, u32> {
        sums(self.swaps.values().flat_map(Swap::destinations))
    }

    /// Checks that every reference of every block belongs to one of these entries of block tables, to a
    /// swap, to a fence or to a pin. O(blocks + entries).
    pub(crate) fn check_holders(
        &self,
        entries: impl Iterator<Item = (usize, BlockId)>,
        invariant: &'static str,
    ) -> Result<(), InvariantViolation> {
        let of_tables = entries.map(|(tier, block)| (Place { tier, block }, 1));
        let held = sums(of_tables.chain(self.swap_references()));
        for (tier, pool) in self.pools.iter().enumerate() {
            for block in (1..pool.num_blocks() as u32).map(BlockId::new) {
                let place = Place { tier, block };
                let (holders, known) = (pool.num_holders(block), held.get(&place).copied().unwrap_or(0));
                ensure(holders == known, invariant, || {
                    format!("{place:?} has {holders} holders, {known} are known")
                })?;
            }
        }
        Ok(())
    }
}

pub(crate) fn out_of_blocks(
    pool: &BlockPool,
    needed: usize,
    available: usize,
    can_ever_fit: bool,
) -> PoolError {
    PoolError::OutOfBlocks(Refusal::new(needed, available, pool.num_fenced(), can_ever_fit))
}

fn sums(references: impl Iterator<Item = (Place, u32)>) -> HashMap<Place, u32> {
    let mut sums = HashMap::new();
    references.for_each(|(place, references)| *sums.entry(place).or_default() += references);
    sums
}
