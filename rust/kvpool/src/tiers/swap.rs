//! Implements swaps, which move blocks from one tier to another in two phases. A swap moves each block
//! once, even if several block tables share it.
//!
//! [`Tiers::begin_swap`] allocates destinations and plans copies. After the copies are executed,
//! [`Tiers::complete_swap`] drops the source references. To undo a swap, [`Tiers::abort_swap`] releases
//! the destinations, and the sources remain as they were.
//!
//! A shared block remains shared after the move. Content that the destination tier already caches is
//! not copied. The destinations of registered blocks are registered, and the source blocks remain
//! cached until they are evicted.

use hashbrown::{HashMap, HashSet};

use super::{Place, Result, TierError, Tiers, out_of_blocks};
use crate::free_list::check_id;
use crate::{BlockId, BlockPool, PoolError};

/// Identifies an unfinished swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwapId(u64);

impl SwapId {
    /// Returns the number of the swap. Swaps are numbered from 0, and no number is used twice.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Makes the id of the swap with this number, for other languages, whose interfaces only pass
    /// numbers. If no swap has the number, calls with the id return an error.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// Tells whether enough blocks are available: now, later, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fit {
    /// The blocks are available.
    Ok,
    /// The blocks are not available now, but the tier is large enough.
    Later,
    /// The tier is too small for an admission with this chunk size, but large enough for smaller chunks
    /// ([`crate::Part::allocate_tokens`]).
    InChunks,
    /// The tier is too small.
    Never,
}

impl Fit {
    /// Returns whether `needed` blocks can be allocated if `reserve` blocks have to remain available.
    /// The pool has `usable` blocks, of which `available` are available now.
    #[must_use]
    pub(crate) const fn of(needed: usize, available: usize, usable: usize, reserve: usize) -> Self {
        if needed.saturating_add(reserve) <= available {
            Self::Ok
        } else if needed.saturating_add(reserve) > usable {
            Self::Never
        } else {
            Self::Later
        }
    }

    /// Returns the name of the value: `ok`, `later`, `in_chunks` or `never`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Later => "later",
            Self::InChunks => "in_chunks",
            Self::Never => "never",
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Moved {
    src: BlockId,
    dst: BlockId,
    /// Number of references that the swap moves from the source block to the destination block.
    references: u32,
    /// Whether the swap copies the block. False if the destination tier already had its content.
    copied: bool,
    /// Whether the source was registered and computed when the copy was planned. If another holder
    /// computes the source later, the copy may have been made before that, so the destination is not
    /// registered.
    registered: bool,
}

/// An unfinished swap.
#[derive(Clone, Debug)]
pub(crate) struct Swap {
    pub(crate) from: usize,
    pub(crate) to: usize,
    moved: Vec<Moved>,
    /// The numbers by which the caller identifies the requests whose block tables the swap moves.
    pub(crate) members: Vec<usize>,
}

impl Swap {
    /// Returns the destination blocks, each with the number of references that the swap holds to it.
    pub(super) fn destinations(&self) -> impl DoubleEndedIterator<Item = (Place, u32)> + '_ {
        self.moved.iter().map(|one| (Place { tier: self.to, block: one.dst }, one.references))
    }

    /// Returns the source blocks, each with the number of references that the swap will drop when it is
    /// completed.
    pub(super) fn sources(&self) -> impl DoubleEndedIterator<Item = (Place, u32)> + '_ {
        self.moved.iter().map(|one| (Place { tier: self.from, block: one.src }, one.references))
    }

    /// Returns the destination blocks that the swap's copies write. These copies may be planned or
    /// already executed.
    pub(super) fn copies(&self) -> impl Iterator<Item = Place> + '_ {
        let copied = self.moved.iter().filter(|one| one.copied);
        copied.map(|one| Place { tier: self.to, block: one.dst })
    }

    pub(crate) fn pairs(&self) -> Vec<(BlockId, BlockId)> {
        self.moved.iter().map(|one| (one.src, one.dst)).collect()
    }
}

fn tail_first(references: impl DoubleEndedIterator<Item = (Place, u32)>) -> Vec<BlockId> {
    references.rev().flat_map(|(place, n)| std::iter::repeat_n(place.block, n as usize)).collect()
}

/// Whether two tiers can have contents in common. They cannot if a caller has changed the epoch of only
/// one of them, or if their hash algorithms differ.
fn share_content(source: &BlockPool, target: &BlockPool) -> bool {
    let algorithms = source.algorithm().zip(target.algorithm());
    source.epoch() == target.epoch() && algorithms.is_none_or(|(source, target)| source == target)
}

pub(crate) struct StagedSwap {
    /// The distinct source blocks in order, each with the number of its references, and with the
    /// destination block that already caches its content, if there is one.
    sources: Vec<(BlockId, u32, Option<BlockId>)>,
    /// Number of destination blocks to allocate. Content that the destination tier already caches needs
    /// no new block.
    pub(crate) fresh: usize,
    /// Number of blocks that are available for these allocations. Cached destinations without
    /// references are not counted, because the swap acquires them.
    available: usize,
    /// Number of blocks that would be available for these allocations in an otherwise empty tier: all
    /// usable blocks except the distinct cached destinations.
    usable: usize,
}

impl StagedSwap {
    /// Whether enough blocks are available for the swap, if `reserve` blocks must remain available.
    pub(crate) const fn fit(&self, reserve: usize) -> Fit {
        Fit::of(self.fresh, self.available, self.usable, reserve)
    }
}

impl Tiers {
    pub(crate) fn stage_swap(&self, blocks: &[BlockId], from: usize, to: usize) -> Result<StagedSwap> {
        self.check_poison()?;
        let (source, target) = (self.pool(from)?, self.pool(to)?);
        if from == to {
            return Err(TierError::SameTier { tier: from });
        }
        let comparable = share_content(source, target);
        let mut at: HashMap<BlockId, usize> = HashMap::new();
        let (available, usable) = (target.num_available(), target.num_usable());
        let mut staged = StagedSwap { sources: Vec::new(), fresh: 0, available, usable };
        let mut cached = HashSet::new();
        for (position, &block) in blocks.iter().enumerate().filter(|(_, block)| !block.is_null()) {
            check_id(block, source.num_blocks(), "swapped")?;
            let index = *at.entry(block).or_insert_with(|| {
                let content = source.content_of(block).filter(|_| comparable);
                let found = content.and_then(|content| target.find_content(&content));
                // This skips a cached block that only has pins and that the policy has already chosen
                // for eviction. The contents before it in its chain may be evicted. If the swap
                // acquired the block and released it later, it would be cached without them.
                let found = found.filter(|&found| !target.is_overtaken(found));
                // If two sources have the same cached content, both move to the same block, which is
                // counted once.
                match found {
                    None => staged.fresh += 1,
                    Some(found) if cached.insert(found) => {
                        staged.usable -= 1;
                        staged.available -= usize::from(target.ref_count(found) == Some(0));
                    }
                    Some(_) => {}
                }
                staged.sources.push((block, 0, found));
                staged.sources.len() - 1
            });
            let references = &mut staged.sources[index].1;
            *references += 1;
            let leaving = self.leaving.get(&Place { tier: from, block }).copied().unwrap_or(0);
            let held = source.num_holders(block).saturating_sub(leaving);
            if *references > held {
                return Err(PoolError::NotHeld { block, held, operation: "swap it", position }.into());
            }
        }
        Ok(staged)
    }

    /// Returns whether enough blocks are available for a swap of these references, if `reserve` blocks
    /// of the destination must remain available. Changes nothing. O(n).
    ///
    /// # Errors
    /// As [`Self::begin_swap`], but missing blocks are no error.
    pub fn fit_swap(&self, blocks: &[BlockId], from: usize, to: usize, reserve: usize) -> Result<Fit> {
        Ok(self.stage_swap(blocks, from, to)?.fit(reserve))
    }

    /// Begins to move references from tier `from` to tier `to`. `blocks` has one entry per reference,
    /// so a block that two tables share appears twice. Null blocks are skipped. Allocates at most one
    /// destination block per distinct source block. O(n).
    ///
    /// The holders keep their source references, but must not release them before the swap has ended,
    /// because completing the swap drops them.
    ///
    /// ```
    /// use kvpool::{PoolConfig, Tiers};
    /// let config = PoolConfig { num_blocks: 8, block_size: 4, ..Default::default() };
    /// let mut tiers = Tiers::new(vec![config.clone(), config])?;
    /// let table = tiers.pool_mut(0)?.allocate(2)?;
    /// let swap = tiers.begin_swap(&table, 0, 1)?;
    /// assert_eq!(tiers.take_plan()?.len(), 2); // the engine executes the copies
    /// let moved = tiers.complete_swap(swap)?; // pairs of old and new blocks
    /// assert_eq!((moved.len(), tiers.pool(0)?.num_available()), (2, 7));
    /// # Ok::<(), kvpool::TierError>(())
    /// ```
    ///
    /// # Errors
    /// [`PoolError::OutOfBlocks`], [`PoolError::NotHeld`] for more entries than references,
    /// [`TierError::SameTier`], [`TierError::UnknownTier`], unknown ids.
    pub fn begin_swap(&mut self, blocks: &[BlockId], from: usize, to: usize) -> Result<SwapId> {
        self.begin_swap_of(Vec::new(), blocks, from, to, 0)
    }

    /// Like [`Self::begin_swap`], but stores the requests `members`, whose block tables move, and
    /// leaves `reserve` blocks of the destination available.
    pub(crate) fn begin_swap_of(
        &mut self,
        members: Vec<usize>,
        blocks: &[BlockId],
        from: usize,
        to: usize,
        reserve: usize,
    ) -> Result<SwapId> {
        let StagedSwap { sources, fresh, available, usable } = self.stage_swap(blocks, from, to)?;
        let target = self.pool_mut(to)?;
        let available = available.saturating_sub(reserve);
        if fresh > available {
            return Err(out_of_blocks(target, fresh, available, fresh <= usable).into());
        }
        // The cached destinations are acquired first, so that the allocation cannot evict them.
        sources
            .iter()
            .filter_map(|&(_, _, found)| found)
            .try_for_each(|found| target.acquire_by_id(&[found]))?;
        let mut fresh = target.allocate(fresh)?.into_iter();
        let id = SwapId(self.next_swap);
        self.next_swap += 1;
        let mut moved = Vec::with_capacity(sources.len());
        for (src, references, found) in sources {
            let Some(dst) = found.or_else(|| fresh.next()) else { continue };
            self.pools[to].acquire(&vec![dst; references as usize - 1])?;
            let (place, copied) = (Place { tier: from, block: src }, found.is_none());
            if copied {
                self.plan(self.resolve(place), Place { tier: to, block: dst }, Some(id));
            }
            *self.leaving.entry(place).or_default() += references;
            let registered = self.pools[from].content_of(src).is_some();
            moved.push(Moved { src, dst, references, copied, registered });
        }
        self.swaps.insert(id, Swap { from, to, moved, members });
        Ok(id)
    }

    pub(crate) fn swap(&self, id: SwapId) -> Result<&Swap> {
        self.check_poison()?;
        self.swaps.get(&id).ok_or(TierError::UnknownSwap { swap: id.0 })
    }

    pub(crate) fn num_swaps(&self) -> usize {
        self.swaps.len()
    }

    /// Returns one entry per source block of a swap, in order of first appearance: the source, the
    /// destination, and whether the swap copies the block's bytes.
    ///
    /// # Errors
    /// [`TierError::UnknownSwap`].
    pub fn swap_mapping(&self, id: SwapId) -> Result<Vec<(BlockId, BlockId, bool)>> {
        Ok(self.swap(id)?.moved.iter().map(|one| (one.src, one.dst, one.copied)).collect())
    }

    /// Returns an error if a caller has released references that belong to the swap, which it must not
    /// do.
    fn check_swap_holds(
        &self,
        references: impl Iterator<Item = (Place, u32)>,
        operation: &'static str,
    ) -> Result<()> {
        let mut needed: HashMap<BlockId, u32> = HashMap::new();
        for (position, (Place { tier, block }, references)) in references.enumerate() {
            let needed = needed.entry(block).or_default();
            *needed += references;
            let held = self.pool(tier)?.num_holders(block);
            if held < *needed {
                return Err(PoolError::NotHeld { block, held, operation, position }.into());
            }
        }
        Ok(())
    }

    /// Whether [`Tiers::take_plan`] has not yet returned the swap's copy to `dst`.
    fn is_planned(&self, id: SwapId, dst: Place) -> bool {
        self.pending.get(&dst).is_some_and(|pending| pending.swap == Some(id))
    }

    fn end_swap(&mut self, id: SwapId) -> Result<Swap> {
        let swap = self.swaps.remove(&id).ok_or(TierError::UnknownSwap { swap: id.0 })?;
        for (place, references) in swap.sources() {
            match self.leaving.get_mut(&place) {
                Some(count) if *count > references => *count -= references,
                _ => drop(self.leaving.remove(&place)),
            }
        }
        Ok(swap)
    }

    /// Ends a swap after its copies have been executed. The source references are dropped, as by a
    /// release of a block table. The requests now hold the destinations instead. Destinations of
    /// registered blocks are registered. Returns pairs of source and destination blocks, as in
    /// [`Self::swap_mapping`]. O(n).
    ///
    /// # Errors
    /// [`TierError::CopiesNotTaken`], [`TierError::UnknownSwap`].
    pub fn complete_swap(&mut self, id: SwapId) -> Result<Vec<(BlockId, BlockId)>> {
        Ok(self.complete_swap_of(id)?.pairs())
    }

    /// Does the work of [`Self::complete_swap`]. Returns the swap, which contains the requests that it
    /// moved.
    pub(crate) fn complete_swap_of(&mut self, id: SwapId) -> Result<Swap> {
        let swap = self.swap(id)?;
        self.check_swap_holds(swap.sources(), "complete its swap")?;
        self.check_swap_holds(swap.destinations(), "complete its swap")?;
        if swap.copies().any(|dst| self.is_planned(id, dst)) {
            return Err(TierError::CopiesNotTaken { swap: id.0 });
        }
        let swap = self.end_swap(id)?;
        let tiers = self.pools.len();
        let Ok([source, target]) = self.pools.get_disjoint_mut([swap.from, swap.to]) else {
            return Err(TierError::UnknownTier { tier: swap.to, tiers });
        };
        let comparable = share_content(source, target);
        for one in swap.moved.iter().filter(|one| one.copied && one.registered && comparable) {
            if target.is_registered(one.dst) {
                continue; // another holder has registered it meanwhile
            }
            if let Some(content) = source.content_of(one.src) {
                target.adopt_content(one.dst, &content)?;
            }
        }
        source.release(&tail_first(swap.sources()))?;
        Ok(swap)
    }

    /// Aborts a swap: its destinations are released, its planned copies are removed, and the sources
    /// remain as they were. If [`Self::take_plan`] has already returned its copies, the engine must no
    /// longer execute them. O(n).
    ///
    /// # Errors
    /// [`TierError::UnknownSwap`].
    pub fn abort_swap(&mut self, id: SwapId) -> Result<()> {
        self.abort_swap_of(id).map(drop)
    }

    /// Does the work of [`Self::abort_swap`]. Returns the swap, which contains the requests that it
    /// would have moved.
    pub(crate) fn abort_swap_of(&mut self, id: SwapId) -> Result<Swap> {
        self.check_swap_holds(self.swap(id)?.destinations(), "abort its swap")?;
        let swap = self.end_swap(id)?;
        for dst in swap.copies() {
            if self.is_planned(id, dst) {
                self.pending.remove(&dst);
            }
        }
        self.pool_mut(swap.to)?.release(&tail_first(swap.destinations()))?;
        Ok(swap)
    }
}
