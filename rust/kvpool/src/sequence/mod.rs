//! `Sequences`: block tables by handle, over the pools of one or more tiers.
//!
//! For engines that name their sequences themselves. Scheduling, request ids and statistics are [`crate::CacheManager`]'s,
//! which shares the block tables ([`table`]).
//!
//! A [`SequenceId`] carries a generation: a handle kept after [`Sequences::free`] is refused, it never names the sequence that
//! took its place (vLLM v0's recycled block objects did).
//!
//! Order within a step: appends; [`Sequences::take_plan`], executed before the step writes KV; the tokens from
//! `computed_tokens` on are computed, by every sequence for itself; [`Sequences::commit`].
//!
//! Invariants, beside those of tiers and tables: S4: the holders of a block are the tables that name it, and swaps.
//!
//! Costs: O(1) per block touched; a fork O(blocks + tokens), without recursion.
//!
//! ```
//! use std::sync::Arc;
//! use kvpool::{BlockHasher, ExtraKeys, HashCursor, HasherConfig, PoolConfig, Sequences, Tiers, Until};
//! let hasher = Arc::new(BlockHasher::new(HasherConfig { block_size: 4, ..Default::default() })?);
//! let tier = |num_blocks| PoolConfig { num_blocks, block_size: 4, ..Default::default() };
//! let mut sequences = Sequences::new(Tiers::new(vec![tier(16), tier(16)])?, Arc::clone(&hasher))?;
//! let mut prompt = HashCursor::new(hasher, ExtraKeys::default())?;
//! prompt.append(&[1, 2, 3, 4, 5, 6]);
//!
//! let a = sequences.admit(prompt, 0)?;
//! let b = sequences.fork(a)?;                               // shares both blocks
//! let changes = sequences.append(a, &[7], 0)?;              // copy-on-write: `a` has a tail of its own
//! assert_eq!(changes[0].index, 1);
//! assert_eq!(sequences.take_plan()?.len(), 1);
//!
//! let swap = sequences.begin_swap(&[a, b], 1)?;             // three blocks move; the shared one once
//! assert_eq!(sequences.take_plan()?.len(), 3);
//! sequences.complete_swap(swap)?;
//! assert_eq!(sequences.info(b)?.tier, 1);
//! sequences.free(a, Until::Now)?;
//! assert!(sequences.fork(a).is_err());                      // a stale handle
//! # Ok::<(), kvpool::SequenceError>(())
//! ```

mod error;
mod grouped;
mod staged;
mod table;
mod tables;

use std::fmt;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::error::ensure;
use crate::hash::{BlockHasher, HashCursor, Verify};
use crate::pool::observe::{Blocks, PoolObserver};
use crate::tiers::{Fit, SwapId, Tiers, TransferPlan};
use crate::{BlockId, InvariantViolation, PoolError, Until};

pub use error::SequenceError;
pub(crate) use grouped::Grouped;
pub use staged::Part;
pub(crate) use staged::{Room, Staged, StagedTable, reusable_blocks};
pub(crate) use table::GivenUp;
pub(crate) use table::Table;
pub use table::TableChange;
pub(crate) use tables::{Needs, Sequence};

type Result<T, E = SequenceError> = std::result::Result<T, E>;

/// A handle: a slot and how often it has been used before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId {
    slot: u32,
    generation: u32,
}

impl SequenceId {
    /// The handle as one number, for languages without such types.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        (self.generation as u64) << 32 | self.slot as u64
    }

    /// The handle that [`Self::to_bits`] made a number of. A number that never was one gives a stale handle.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self { slot: bits as u32, generation: (bits >> 32) as u32 }
    }
}

impl fmt::Debug for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sequence {}.{}", self.slot, self.generation)
    }
}

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What is known of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SequenceInfo {
    /// Its tokens.
    pub tokens: usize,
    /// Tokens whose KV is written, cached ones included.
    pub computed_tokens: usize,
    /// Blocks in its table, trimmed and lookahead ones included.
    pub blocks: usize,
    /// Leading blocks that are registered.
    pub registered_blocks: usize,
    /// Leading blocks that are trimmed: the null block.
    pub trimmed_blocks: usize,
    /// The tier whose blocks these are.
    pub tier: usize,
    /// The swap that moves it now.
    pub swap: Option<SwapId>,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    generation: u32,
    sequence: Option<Sequence>,
}

/// Block tables by handle.
#[derive(Debug)]
pub struct Sequences {
    tiers: Tiers,
    hasher: Arc<BlockHasher>,
    slots: Vec<Slot>,
    free_slots: Vec<u32>,
}

impl Sequences {
    /// No sequences yet, over empty tiers.
    ///
    /// # Errors
    /// [`SequenceError::Tier`] if hasher and pools differ in block size, or the pools compare fingerprints that it does not make.
    pub fn new(tiers: Tiers, hasher: Arc<BlockHasher>) -> Result<Self> {
        let device = tiers.pool(0)?;
        let (chain, pool) = (hasher.block_size(), device.block_size());
        if chain != pool {
            return Err(PoolError::BlockSizeMismatch { chain, pool }.into());
        }
        if device.verify() >= Verify::Fingerprint && !hasher.has_fingerprints() {
            return Err(PoolError::MissingVerification { verify: "fingerprints" }.into());
        }
        Ok(Self { tiers, hasher, slots: Vec::new(), free_slots: Vec::new() })
    }

    /// The tiers: to look at. Their blocks are the sequences'.
    #[must_use]
    pub const fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// The hasher of the prompts.
    #[must_use]
    pub const fn hasher(&self) -> &Arc<BlockHasher> {
        &self.hasher
    }

    fn at(&self, id: SequenceId) -> Result<&Sequence> {
        self.tiers.check_poison()?;
        let slot = self.slots.get(id.slot as usize).filter(|slot| slot.generation == id.generation);
        slot.and_then(|slot| slot.sequence.as_ref()).ok_or(SequenceError::Stale { handle: id })
    }

    /// A sequence that is not being swapped.
    fn settled(&self, id: SequenceId) -> Result<&Sequence> {
        let sequence = self.at(id)?;
        if sequence.swap.is_some() { Err(SequenceError::Moving { handle: id }) } else { Ok(sequence) }
    }

    /// The same, to be changed, with the tiers.
    fn parts(&mut self, id: SequenceId) -> Result<(&mut Sequence, &mut Tiers)> {
        self.settled(id)?;
        let sequence = self.slots.get_mut(id.slot as usize).and_then(|slot| slot.sequence.as_mut());
        Ok((sequence.ok_or(SequenceError::Stale { handle: id })?, &mut self.tiers))
    }

    fn enter(&mut self, sequence: Sequence) -> SequenceId {
        let slot = self.free_slots.pop().unwrap_or(self.slots.len() as u32);
        if slot as usize == self.slots.len() {
            self.slots.push(Slot::default());
        }
        let entry = &mut self.slots[slot as usize];
        entry.sequence = Some(sequence);
        SequenceId { slot, generation: entry.generation }
    }

    /// Admits a sequence into a tier: acquires the cached prefix of its prompt and allocates the rest; its last token is
    /// always left to compute. O(blocks).
    ///
    /// # Errors
    /// [`SequenceError::OutOfBlocks`], [`SequenceError::Empty`], [`SequenceError::ForeignCursor`],
    /// [`PoolError::StaleEpoch`], [`crate::TierError::UnknownTier`].
    pub fn admit(&mut self, prompt: HashCursor, tier: usize) -> Result<SequenceId> {
        self.tiers.check_poison()?;
        if prompt.num_tokens() == 0 {
            return Err(SequenceError::Empty);
        }
        if !Arc::ptr_eq(prompt.hasher(), &self.hasher) && prompt.hasher().config() != self.hasher.config() {
            return Err(SequenceError::ForeignCursor);
        }
        let pool = self.tiers.pool(tier)?;
        let room = |found: &[BlockId]| Room::behind(pool.num_idle(found), pool.num_available(), 0);
        let mut staged = Staged::new(pool, None, &prompt, Part::WHOLE, room)?;
        staged.take(&mut self.tiers, tier, &prompt)?;
        let mut sequence = Sequence::new(prompt, tier, None);
        sequence.hold(&staged);
        Ok(self.enter(sequence))
    }

    /// Whether a prompt of `tokens` tokens, nothing of it cached, could be admitted now. O(1).
    ///
    /// # Errors
    /// [`crate::TierError::UnknownTier`].
    pub fn fit(&self, tokens: usize, tier: usize, reserve: usize) -> Result<Fit> {
        self.tiers.check_poison()?;
        let pool = self.tiers.pool(tier)?;
        let needed = tokens.div_ceil(pool.block_size());
        Ok(Fit::of(needed, pool.num_available(), pool.num_usable(), reserve))
    }

    /// Appends tokens and makes room for `lookahead` more; a shared or registered tail is replaced by a copy first, which is
    /// planned. Returns what changed in the table. Atomic. O(tokens).
    ///
    /// # Errors
    /// [`SequenceError::OutOfBlocks`], [`SequenceError::Stale`], [`SequenceError::Moving`].
    pub fn append(&mut self, id: SequenceId, tokens: &[u32], lookahead: usize) -> Result<Vec<TableChange>> {
        let (sequence, tiers) = self.parts(id)?;
        let pool = tiers.pool(sequence.tier)?;
        let (before, all) = (sequence.num_tokens(), sequence.num_tokens().saturating_add(tokens.len()));
        let slots = all.saturating_add(lookahead);
        let (_, in_place) =
            sequence.check_growth(pool, all, slots, pool.num_available(), &GivenUp::default())?;
        if in_place {
            sequence.forget_guarded(tiers.pool_mut(sequence.tier)?, before, slots)?;
        }
        let mut changes = Vec::new();
        sequence.append(tokens);
        sequence.grow(tiers, before, slots, &mut changes)?;
        Ok(changes)
    }

    /// Says that the KV of the first `computed_tokens` tokens is written; blocks that this fills are registered. O(new full blocks).
    ///
    /// # Errors
    /// [`SequenceError::BadComputedCount`], [`SequenceError::Stale`], [`SequenceError::Moving`].
    pub fn commit(&mut self, id: SequenceId, computed_tokens: usize) -> Result<()> {
        self.commit_to(id, computed_tokens, None)
    }

    /// [`Self::commit`]; blocks whose content is cached already are exchanged for the cached ones. Returns those positions.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub fn commit_deduped(&mut self, id: SequenceId, computed_tokens: usize) -> Result<Vec<TableChange>> {
        let mut changes = Vec::new();
        self.commit_to(id, computed_tokens, Some(&mut changes))?;
        Ok(changes)
    }

    fn commit_to(
        &mut self,
        id: SequenceId,
        computed_tokens: usize,
        changes: Option<&mut Vec<TableChange>>,
    ) -> Result<()> {
        let (sequence, tiers) = self.parts(id)?;
        let (tokens, computed) = (sequence.num_tokens(), sequence.computed_tokens);
        if !(computed..=tokens).contains(&computed_tokens) {
            let asked = computed_tokens;
            return Err(SequenceError::BadComputedCount { handle: id, asked, tokens, computed });
        }
        sequence.commit(tiers.pool_mut(sequence.tier)?, computed_tokens, changes)?;
        Ok(())
    }

    /// Keeps the first `num_tokens` tokens, for instance after drafts were rejected; blocks behind are released, lookahead
    /// included. A tail that was registered is copied by the next append. O(blocks released).
    ///
    /// # Errors
    /// [`SequenceError::BadLength`], [`SequenceError::Stale`], [`SequenceError::Moving`].
    pub fn truncate(&mut self, id: SequenceId, num_tokens: usize) -> Result<()> {
        let (sequence, tiers) = self.parts(id)?;
        let (least, tokens) = sequence.lengths();
        if !(least..=tokens).contains(&num_tokens) {
            return Err(SequenceError::BadLength { handle: id, asked: num_tokens, least, tokens });
        }
        Ok(sequence.truncate(tiers, num_tokens, Until::Now)?)
    }

    /// Releases the blocks that lie wholly more than `window` tokens before the computed end; the null block takes their
    /// places. Returns how many. O(blocks released).
    ///
    /// # Errors
    /// [`SequenceError::Stale`], [`SequenceError::Moving`].
    pub fn trim_window(&mut self, id: SequenceId, window: usize) -> Result<usize> {
        let (sequence, tiers) = self.parts(id)?;
        Ok(sequence.trim(tiers, window)?)
    }

    /// A second sequence that shares every block. Whichever writes to a shared block first gets a copy. O(blocks + tokens).
    ///
    /// # Errors
    /// [`SequenceError::Stale`], [`SequenceError::Moving`], [`PoolError::RefCountOverflow`].
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId> {
        let (sequence, tiers) = self.parts(id)?;
        let child = sequence.fork(tiers)?;
        Ok(self.enter(child))
    }

    /// Ends a sequence: its blocks lose one reference each, tail first; at once, or when a step completes. The handle is stale
    /// from now on. O(blocks).
    ///
    /// # Errors
    /// [`SequenceError::Stale`], [`SequenceError::Moving`], [`PoolError::UnknownTicket`].
    pub fn free(&mut self, id: SequenceId, until: impl Into<Until>) -> Result<()> {
        let (sequence, tiers) = self.parts(id)?;
        sequence.give_up(tiers, until.into())?;
        if let Some(slot) = self.slots.get_mut(id.slot as usize) {
            *slot = Slot { generation: slot.generation.wrapping_add(1), sequence: None };
            self.free_slots.push(id.slot);
        }
        Ok(())
    }

    /// What is known of a sequence. O(1).
    ///
    /// # Errors
    /// [`SequenceError::Stale`].
    pub fn info(&self, id: SequenceId) -> Result<SequenceInfo> {
        let sequence = self.at(id)?;
        Ok(SequenceInfo {
            tokens: sequence.num_tokens(),
            computed_tokens: sequence.computed_tokens,
            blocks: sequence.main.blocks.len(),
            registered_blocks: sequence.main.published,
            trimmed_blocks: sequence.main.trimmed,
            tier: sequence.tier,
            swap: sequence.swap,
        })
    }

    /// The block table; trimmed blocks are the null block. O(1).
    ///
    /// # Errors
    /// [`SequenceError::Stale`].
    pub fn block_table(&self, id: SequenceId) -> Result<&[BlockId]> {
        Ok(&self.at(id)?.main.blocks)
    }

    /// The sequence's tokens and hash chain. O(1).
    ///
    /// # Errors
    /// [`SequenceError::Stale`].
    pub fn cursor(&self, id: SequenceId) -> Result<&HashCursor> {
        Ok(&self.at(id)?.cursor)
    }

    /// Sequences there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len() - self.free_slots.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The slots of a group, its references, one entry each, and its tier.
    fn group(&self, ids: &[SequenceId]) -> Result<(Vec<usize>, Vec<BlockId>, usize)> {
        let (mut slots, mut references) = (Vec::with_capacity(ids.len()), Vec::new());
        let (mut named, mut tier) = (HashSet::new(), None);
        for &id in ids {
            let sequence = self.settled(id)?;
            if !named.insert(id) {
                return Err(SequenceError::NamedTwice { handle: id });
            }
            if tier.replace(sequence.tier).is_some_and(|other| other != sequence.tier) {
                return Err(SequenceError::NotOneTier);
            }
            slots.push(id.slot as usize);
            references.extend(sequence.held());
        }
        Ok((slots, references, tier.ok_or(SequenceError::NotOneTier)?))
    }

    /// Changes every sequence of a group.
    fn each_of(&mut self, slots: &[usize], mut change: impl FnMut(&mut Sequence)) {
        for &slot in slots {
            let sequence = self.slots.get_mut(slot).and_then(|slot| slot.sequence.as_mut());
            sequence.into_iter().for_each(&mut change);
        }
    }

    /// Whether [`Self::begin_swap`] would find its blocks in tier `to`, leaving `reserve` available there. O(blocks).
    ///
    /// # Errors
    /// As [`Self::begin_swap`], but for blocks that are lacking.
    pub fn fit_swap(&self, group: &[SequenceId], to: usize, reserve: usize) -> Result<Fit> {
        let (_, references, from) = self.group(group)?;
        Ok(self.tiers.fit_swap(&references, from, to, reserve)?)
    }

    /// Begins to move a group of sequences to another tier, as [`Tiers::begin_swap`] does. Until [`Self::complete_swap`] or
    /// [`Self::abort_swap`] they can only be looked at. Atomic. O(blocks).
    ///
    /// # Errors
    /// [`SequenceError::OutOfBlocks`], [`SequenceError::Stale`], [`SequenceError::Moving`], [`SequenceError::NamedTwice`],
    /// [`SequenceError::NotOneTier`], [`crate::TierError::SameTier`], [`crate::TierError::UnknownTier`].
    pub fn begin_swap(&mut self, group: &[SequenceId], to: usize) -> Result<SwapId> {
        let (slots, references, from) = self.group(group)?;
        let swap = self.tiers.begin_swap_of(slots.clone(), &references, from, to, 0)?;
        self.each_of(&slots, |sequence| sequence.swap = Some(swap));
        Ok(swap)
    }

    /// Ends a swap whose copies are done: the tables name blocks of the new tier. Returns old and new ones. O(blocks).
    ///
    /// # Errors
    /// [`crate::TierError::CopiesNotTaken`], [`crate::TierError::UnknownSwap`].
    pub fn complete_swap(&mut self, swap: SwapId) -> Result<Vec<(BlockId, BlockId)>> {
        let swap = self.tiers.complete_swap_of(swap)?;
        let pairs = swap.pairs();
        let mapping: HashMap<BlockId, BlockId> = pairs.iter().copied().collect();
        self.each_of(&swap.members, |sequence| sequence.moved(&mapping, swap.to));
        Ok(pairs)
    }

    /// Takes a swap back: everything is as before it was begun.
    ///
    /// # Errors
    /// [`crate::TierError::UnknownSwap`].
    pub fn abort_swap(&mut self, swap: SwapId) -> Result<()> {
        let swap = self.tiers.abort_swap_of(swap)?;
        self.each_of(&swap.members, |sequence| sequence.swap = None);
        Ok(())
    }

    /// All copies that are planned: see [`Tiers::take_plan`].
    ///
    /// # Errors
    /// Only if a pool is poisoned.
    pub fn take_plan(&mut self) -> Result<TransferPlan> {
        Ok(self.tiers.take_plan()?)
    }

    /// The epoch of every tier.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.tiers.device().epoch()
    }

    /// Starts a new epoch in every tier: see [`crate::BlockPool::bump_epoch`]. Sequences go on and are never published again.
    ///
    /// # Errors
    /// Only if a pool is poisoned.
    pub fn bump_epoch(&mut self) -> Result<u64> {
        Ok(self.tiers.bump_epoch()?)
    }

    /// Forgets all cached content of every tier: see [`Tiers::reset`].
    ///
    /// # Errors
    /// [`PoolError::InUse`] and [`crate::TierError::InUse`] while sequences, fences or swaps hold blocks.
    pub fn reset(&mut self) -> Result<usize> {
        Ok(self.tiers.reset()?)
    }

    /// Tells `observer` of what the pool of a tier does: see [`Tiers::observe`].
    ///
    /// # Errors
    /// As [`Tiers::observe`].
    pub fn observe_tier(&mut self, tier: usize, observer: Box<dyn PoolObserver>) -> Result<()> {
        Ok(self.tiers.observe(tier, observer)?)
    }

    /// The observer of a tier's pool, if it is of this type, and the tier's blocks.
    pub fn tier_observer_mut<T: PoolObserver>(&mut self, tier: usize) -> Option<(&mut T, Blocks<'_>)> {
        self.tiers.pool_mut(tier).ok()?.observer_mut()
    }

    /// Ends the fences of a step in every tier: see [`crate::BlockPool::complete_step`].
    ///
    /// # Errors
    /// Only if a pool is poisoned.
    pub fn complete_step(&mut self, step: u64) -> Result<usize> {
        Ok(self.tiers.complete_step(step)?)
    }

    /// Recounts tiers, tables and swaps from scratch. O(blocks + tokens).
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.tiers.check_invariants()?;
        let mut moving = HashSet::new();
        for (at, slot) in self.slots.iter().enumerate() {
            let Some(sequence) = &slot.sequence else { continue };
            let id = SequenceId { slot: at as u32, generation: slot.generation };
            let Some(pool) = self.tiers.pools().get(sequence.tier) else {
                return Err(InvariantViolation::new("S4 (tiers exist)", format!("{id}: {}", sequence.tier)));
            };
            sequence.check_counts(&id)?;
            (0..sequence.num_entries()).try_for_each(|at| sequence.check_entry(pool, at, &id))?;
            moving.extend(sequence.swap);
            let swap = sequence.swap.map(|swap| self.tiers.swap(swap));
            let known = swap.is_none_or(|swap| swap.is_ok_and(|swap| swap.members.contains(&at)));
            ensure(known, "S4 (a sequence that moves belongs to a swap)", || id.to_string())?;
        }
        let swaps = self.tiers.num_swaps();
        ensure(moving.len() == swaps, "S4 (a swap moves sequences)", || format!("{moving:?}"))?;
        let sequences = self.slots.iter().filter_map(|slot| slot.sequence.as_ref());
        let held = sequences.flat_map(|sequence| sequence.held().map(|block| (sequence.tier, block)));
        self.tiers.check_holders(held, "S4 (holders of a block are tables and swaps)")
    }
}
