//! Two-phase swaps: blocks move from one tier to another, keyed by physical block.
//!
//! [`Tiers::begin_swap`] takes destination blocks and plans the copies; the sources stay as they are. When the plan has been
//! handed out and executed, [`Tiers::complete_swap`] drops the source references and the destination takes over;
//! [`Tiers::abort_swap`] gives the destination back, as if nothing had been begun. A block that several tables share moves
//! once and is shared there too; content that the destination caches already is not copied; registrations move along, and
//! the source stays cached until it is evicted.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use super::{Place, TierError, Tiers};
use crate::block::BlockId;
use crate::error::{InvariantViolation, PoolError, Refusal, ensure};
use crate::free_list::check_id;
use crate::pool::BlockPool;

/// Names a swap that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwapId(u64);

impl SwapId {
    /// Its number: swaps are numbered from 0, and no number is used twice.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The swap with this number, for languages without such types. A number that never was one names no swap.
    #[must_use]
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }
}

/// Whether blocks can be had: now, later, or never.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fit {
    /// They are available.
    Ok,
    /// They are not, but the tier is large enough.
    Later,
    /// The tier is too small.
    Never,
}

impl Fit {
    /// Whether `needed` blocks fit a pool that has `available` and at most `usable` ones, of which `reserve` are to be left.
    #[must_use]
    pub const fn of(needed: usize, available: usize, usable: usize, reserve: usize) -> Self {
        if needed.saturating_add(reserve) <= available {
            Self::Ok
        } else if needed.saturating_add(reserve) > usable {
            Self::Never
        } else {
            Self::Later
        }
    }

    /// Its name: ok, later, never.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Later => "later",
            Self::Never => "never",
        }
    }
}

/// One block of a swap.
#[derive(Clone, Copy, Debug)]
struct Moved {
    src: BlockId,
    dst: BlockId,
    /// References that move.
    references: u32,
    /// False if the destination held the content already.
    copied: bool,
    /// Whether the source was registered and computed when the copy was planned. What is computed later, by another holder,
    /// may come after the copy was made.
    registered: bool,
}

/// A swap under way.
#[derive(Clone, Debug)]
pub(super) struct Swap {
    from: usize,
    to: usize,
    moved: Vec<Moved>,
    /// Its copies that are planned and not handed out.
    planned: usize,
}

impl Swap {
    /// Its copies were handed out.
    pub(super) fn taken(&mut self) {
        self.planned = 0;
    }

    /// The references that it holds.
    pub(super) fn destinations(&self) -> impl Iterator<Item = (Place, u32)> + '_ {
        self.moved.iter().map(|one| (Place { tier: self.to, block: one.dst }, one.references))
    }

    /// Refuses to go on if somebody released references that are this swap's.
    fn check_held(
        pool: &BlockPool,
        references: impl Iterator<Item = (Place, u32)>,
        operation: &'static str,
    ) -> Result<(), TierError> {
        let mut needed: HashMap<BlockId, u32> = HashMap::new();
        for (position, (Place { block, .. }, references)) in references.enumerate() {
            let needed = needed.entry(block).or_default();
            *needed += references;
            let held = pool.num_holders(block);
            if held < *needed {
                return Err(PoolError::NotHeld { block, held, operation, position }.into());
            }
        }
        Ok(())
    }

    /// The references that it is to drop.
    pub(super) fn sources(&self) -> impl Iterator<Item = (Place, u32)> + '_ {
        self.moved.iter().map(|one| (Place { tier: self.from, block: one.src }, one.references))
    }

    pub(super) fn check_invariants(&self, pools: &[BlockPool]) -> Result<(), InvariantViolation> {
        let mut held: HashMap<BlockId, u32> = HashMap::new();
        for moved in &self.moved {
            *held.entry(moved.dst).or_default() += moved.references;
        }
        let lacking = held.iter().find(|&(&block, &count)| pools[self.to].num_holders(block) < count);
        ensure(lacking.is_none(), "T3 (the destination of a swap is held)", || format!("{lacking:?}"))
    }
}

/// Whether the contents of two tiers can be compared: pools that somebody moved to different epochs by hand, or filled with
/// digests of different algorithms, share none.
fn share_content(source: &BlockPool, target: &BlockPool) -> bool {
    let algorithms = source.algorithm().zip(target.algorithm());
    source.epoch() == target.epoch() && algorithms.is_none_or(|(source, target)| source == target)
}

/// What a swap would take.
struct Staged {
    /// Distinct sources in order, with their references and the cached destination, if there is one.
    sources: Vec<(BlockId, u32, Option<BlockId>)>,
    /// Destinations to allocate.
    fresh: usize,
    /// Cached destinations that nobody holds: available now, and not once acquired.
    idle: usize,
    /// Distinct cached destinations.
    found: usize,
}

impl Tiers {
    /// Checks the source references and looks the contents up in the destination tier.
    fn stage_swap(&self, blocks: &[BlockId], from: usize, to: usize) -> Result<Staged, TierError> {
        self.check_poison()?;
        let (source, target) = (self.pool(from)?, self.pool(to)?);
        if from == to {
            return Err(TierError::SameTier { tier: from });
        }
        let comparable = share_content(source, target);
        let mut at: HashMap<BlockId, usize> = HashMap::new();
        let mut staged = Staged { sources: Vec::new(), fresh: 0, idle: 0, found: 0 };
        let mut cached: BTreeMap<BlockId, ()> = BTreeMap::new();
        for (position, &block) in blocks.iter().enumerate() {
            if block.is_null() {
                continue;
            }
            check_id(block, source.num_blocks(), "swapped")?;
            let index = *at.entry(block).or_insert_with(|| {
                let content = source.content_of(block).filter(|_| comparable);
                let found = content.and_then(|content| target.find_content(&content));
                // Two sources with one content move to one block.
                match found {
                    None => staged.fresh += 1,
                    Some(found) if cached.insert(found, ()).is_none() => {
                        staged.found += 1;
                        staged.idle += usize::from(target.ref_count(found) == Some(0));
                    }
                    Some(_) => {}
                }
                staged.sources.push((block, 0, found));
                staged.sources.len() - 1
            });
            staged.sources[index].1 += 1;
            let leaving = self.leaving.get(&Place { tier: from, block }).copied().unwrap_or(0);
            let held = source.num_holders(block).saturating_sub(leaving);
            if staged.sources[index].1 > held {
                return Err(PoolError::NotHeld { block, held, operation: "swap it", position }.into());
            }
        }
        Ok(staged)
    }

    /// Whether a swap of these references would find its blocks, leaving `reserve` available in the destination. Changes
    /// nothing. O(n).
    ///
    /// # Errors
    /// As [`Self::begin_swap`], but for blocks that are lacking.
    pub fn fit_swap(
        &self,
        blocks: &[BlockId],
        from: usize,
        to: usize,
        reserve: usize,
    ) -> Result<Fit, TierError> {
        let staged = self.stage_swap(blocks, from, to)?;
        let target = self.pool(to)?;
        let available = target.num_available() - staged.idle;
        Ok(Fit::of(staged.fresh, available, target.num_usable() - staged.found, reserve))
    }

    /// Blocks that a swap of these references would take: content that the destination caches takes none.
    pub(crate) fn blocks_taken(
        &self,
        blocks: &[BlockId],
        from: usize,
        to: usize,
    ) -> Result<usize, TierError> {
        Ok(self.stage_swap(blocks, from, to)?.fresh)
    }

    /// Begins to move references from tier `from` to tier `to`: one entry of `blocks` per reference, so a block that two
    /// tables share is named twice. Null blocks are skipped. Takes at most one block per distinct source. O(n).
    ///
    /// The source references stay with their holders, and are the swap's to drop: they must not be released before the swap is
    /// over.
    ///
    /// # Errors
    /// [`PoolError::OutOfBlocks`], [`PoolError::NotHeld`] for more entries than references, [`TierError::SameTier`],
    /// [`TierError::UnknownTier`], unknown ids.
    pub fn begin_swap(&mut self, blocks: &[BlockId], from: usize, to: usize) -> Result<SwapId, TierError> {
        self.begin_swap_leaving(blocks, from, to, 0)
    }

    /// [`Self::begin_swap`], with `reserve` blocks to be left in the destination.
    pub(crate) fn begin_swap_leaving(
        &mut self,
        blocks: &[BlockId],
        from: usize,
        to: usize,
        reserve: usize,
    ) -> Result<SwapId, TierError> {
        let staged = self.stage_swap(blocks, from, to)?;
        let target = self.pool_mut(to)?;
        let available = (target.num_available() - staged.idle).saturating_sub(reserve);
        if staged.fresh > available {
            let can_ever_fit = staged.fresh + staged.found <= target.num_usable();
            let refusal = Refusal::new(staged.fresh, available, target.num_fenced(), can_ever_fit);
            return Err(PoolError::OutOfBlocks(refusal).into());
        }
        // Cached destinations first, so that no allocation evicts one.
        for &(_, references, found) in &staged.sources {
            if let Some(found) = found {
                target.hold(found)?;
                target.acquire(&vec![found; references as usize - 1])?;
            }
        }
        let mut fresh = target.allocate(staged.fresh)?.into_iter();
        let id = SwapId(self.next_swap);
        self.next_swap += 1;
        let mut moved = Vec::with_capacity(staged.sources.len());
        for (src, references, found) in staged.sources {
            let dst = match found {
                Some(found) => found,
                None => {
                    let Some(dst) = fresh.next() else { continue };
                    self.pools[to].acquire(&vec![dst; references as usize - 1])?;
                    let src = self.resolve(Place { tier: from, block: src });
                    self.enter(src, Place { tier: to, block: dst }, Some(id));
                    dst
                }
            };
            let registered = self.pools[from].content_of(src).is_some();
            moved.push(Moved { src, dst, references, copied: found.is_none(), registered });
        }
        let planned = moved.iter().filter(|one| one.copied).count();
        let swap = Swap { from, to, moved, planned };
        for (place, references) in swap.sources() {
            *self.leaving.entry(place).or_default() += references;
        }
        self.swaps.insert(id, swap);
        Ok(id)
    }

    /// Takes a swap out of the books.
    fn end_swap(&mut self, id: SwapId) -> Result<Swap, TierError> {
        let swap = self.swaps.remove(&id).ok_or(TierError::UnknownSwap { swap: id.0 })?;
        for (place, references) in swap.sources() {
            if let Some(count) = self.leaving.get_mut(&place) {
                *count -= references;
                if *count == 0 {
                    self.leaving.remove(&place);
                }
            }
        }
        Ok(swap)
    }

    fn swap(&self, id: SwapId) -> Result<&Swap, TierError> {
        self.swaps.get(&id).ok_or(TierError::UnknownSwap { swap: id.0 })
    }

    /// Source and destination blocks of a swap under way, in order of first appearance, and whether bytes are copied.
    ///
    /// # Errors
    /// [`TierError::UnknownSwap`].
    pub fn swap_mapping(&self, id: SwapId) -> Result<Vec<(BlockId, BlockId, bool)>, TierError> {
        self.check_poison()?;
        Ok(self.swap(id)?.moved.iter().map(|moved| (moved.src, moved.dst, moved.copied)).collect())
    }

    /// Ends a swap whose copies are done: the source references are dropped, as by a release of a block table, and whoever held
    /// them holds the destinations now. Destinations of registered blocks are registered. Returns the pairs of
    /// [`Self::swap_mapping`]. O(n).
    ///
    /// # Errors
    /// [`TierError::CopiesNotTaken`], [`TierError::UnknownSwap`].
    pub fn complete_swap(&mut self, id: SwapId) -> Result<Vec<(BlockId, BlockId)>, TierError> {
        self.check_poison()?;
        let swap = self.swap(id)?;
        Swap::check_held(self.pool(swap.from)?, swap.sources(), "complete its swap")?;
        Swap::check_held(self.pool(swap.to)?, swap.destinations(), "complete its swap")?;
        if swap.planned > 0 {
            return Err(TierError::CopiesNotTaken { swap: id.0 });
        }
        let Swap { from, to, moved, .. } = self.end_swap(id)?;
        let tiers = self.pools.len();
        let Ok([source, target]) = self.pools.get_disjoint_mut([from, to]) else {
            return Err(TierError::UnknownTier { tier: to, tiers });
        };
        let comparable = share_content(source, target);
        for one in moved.iter().filter(|one| one.copied && one.registered && comparable) {
            if target.is_registered(one.dst) {
                continue; // somebody who holds it has registered it meanwhile
            }
            if let Some(content) = source.content_of(one.src) {
                target.adopt_content(one.dst, &content)?;
            }
        }
        let references = moved.iter().rev().flat_map(|one| vec![one.src; one.references as usize]);
        source.release(&references.collect::<Vec<_>>())?;
        Ok(moved.iter().map(|one| (one.src, one.dst)).collect())
    }

    /// Takes a swap back: its destinations are released, its copies are planned no longer, the sources are as before. If its
    /// copies were handed out, their execution must have stopped. O(n), amortized.
    ///
    /// # Errors
    /// [`TierError::UnknownSwap`].
    pub fn abort_swap(&mut self, id: SwapId) -> Result<(), TierError> {
        self.check_poison()?;
        let swap = self.swap(id)?;
        Swap::check_held(self.pool(swap.to)?, swap.destinations(), "abort its swap")?;
        let Swap { to, moved, planned, .. } = self.end_swap(id)?;
        if planned > 0 {
            let copied = moved.iter().filter(|one| one.copied);
            self.cancel(copied.map(|one| Place { tier: to, block: one.dst }));
        }
        let references = moved.iter().rev().flat_map(|one| vec![one.dst; one.references as usize]);
        Ok(self.pool_mut(to)?.release(&references.collect::<Vec<_>>())?)
    }
}
