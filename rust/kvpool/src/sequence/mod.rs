//! `Sequences`: block tables by handle, over the pools of one or more tiers.
//!
//! What an engine needs that names its sequences itself: prompts, tokens appended with copy-on-write, forks for parallel
//! sampling and beam search, roll-back of rejected drafts, sliding windows, two-phase swaps of groups. Scheduling, request ids
//! and statistics are [`crate::CacheManager`]'s, which shares the block tables ([`table`]).
//!
//! A [`SequenceId`] carries a generation: a handle kept after [`Sequences::free`] is refused, it never names the sequence that
//! took its place (vLLM v0's recycled block objects did).
//!
//! Order within a step: appends first; then [`Sequences::take_plan`], executed before the step writes KV; then the tokens from
//! `computed_tokens` on are computed, by every sequence for itself; then [`Sequences::commit`].
//!
//! Invariants, beside those of tiers and tables: S4: the holders of a block are the tables that name it, and swaps.
//!
//! Costs: O(1) per block touched; fork is O(blocks + tokens), without recursion.
//!
//! ```
//! use std::sync::Arc;
//! use kvpool::{BlockHasher, ExtraKeys, HashCursor, HasherConfig, PoolConfig, Sequences, Tiers};
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
//! sequences.free(a, None)?;
//! assert!(sequences.fork(a).is_err());                      // a stale handle
//! # Ok::<(), kvpool::SequenceError>(())
//! ```

mod error;
mod swap;
pub(crate) mod table;

use std::fmt;
use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use crate::block::BlockId;
use crate::error::{InvariantViolation, Refusal, ensure};
use crate::hash::{BlockHasher, HashCursor, Verify};
use crate::tiers::{Fit, Place, SwapId, Tiers, TransferPlan};
pub use error::SequenceError;
pub use table::TableChange;
pub(crate) use table::{GivenUp, Sequence};

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
    /// Sequences of each swap under way, and where they go.
    moving: HashMap<SwapId, (usize, Vec<SequenceId>)>,
}

impl Sequences {
    /// No sequences yet, over empty tiers.
    ///
    /// # Errors
    /// [`SequenceError::Tier`] if hasher and pools differ in block size, or the pools compare fingerprints that it does not make.
    pub fn new(tiers: Tiers, hasher: Arc<BlockHasher>) -> Result<Self, SequenceError> {
        let pool = tiers.pool(0)?.block_size();
        if hasher.block_size() != pool {
            let error = crate::PoolError::BlockSizeMismatch { chain: hasher.block_size(), pool };
            return Err(error.into());
        }
        if tiers.pool(0)?.verify() >= Verify::Fingerprint && !hasher.has_fingerprints() {
            return Err(crate::PoolError::MissingVerification { verify: "fingerprints" }.into());
        }
        let (slots, free_slots, moving) = (Vec::new(), Vec::new(), HashMap::new());
        Ok(Self { tiers, hasher, slots, free_slots, moving })
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

    fn at(&self, id: SequenceId) -> Result<&Sequence, SequenceError> {
        self.tiers.check_poison()?;
        let slot = self.slots.get(id.slot as usize).filter(|slot| slot.generation == id.generation);
        slot.and_then(|slot| slot.sequence.as_ref()).ok_or(SequenceError::Stale { handle: id })
    }

    /// A sequence that is not being swapped, with the tiers.
    fn parts(&mut self, id: SequenceId) -> Result<(&mut Sequence, &mut Tiers), SequenceError> {
        self.settled(id)?;
        let slot = self.slots.get_mut(id.slot as usize);
        let sequence = slot.and_then(|slot| slot.sequence.as_mut());
        Ok((sequence.ok_or(SequenceError::Stale { handle: id })?, &mut self.tiers))
    }

    fn settled(&self, id: SequenceId) -> Result<&Sequence, SequenceError> {
        let sequence = self.at(id)?;
        if sequence.swap.is_some() { Err(SequenceError::Moving { handle: id }) } else { Ok(sequence) }
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
    /// [`crate::PoolError::StaleEpoch`], [`crate::TierError::UnknownTier`].
    pub fn admit(&mut self, prompt: HashCursor, tier: usize) -> Result<SequenceId, SequenceError> {
        self.tiers.check_poison()?;
        if prompt.num_tokens() == 0 {
            return Err(SequenceError::Empty);
        }
        if !Arc::ptr_eq(prompt.hasher(), &self.hasher) && prompt.hasher().config() != self.hasher.config() {
            return Err(SequenceError::ForeignCursor);
        }
        let pool = self.tiers.pool_mut(tier)?;
        let reusable = (prompt.num_tokens() - 1) / pool.block_size();
        let found = pool.find_prefix(prompt.chain(), reusable)?;
        let total = prompt.num_tokens().div_ceil(pool.block_size());
        let (needed, available) = (total - found.blocks.len(), pool.num_available() - found.idle);
        if needed > available {
            let can_ever_fit = total <= pool.num_usable();
            let refusal = Refusal::new(needed, available, pool.num_fenced(), can_ever_fit);
            return Err(SequenceError::OutOfBlocks(refusal));
        }
        pool.acquire_match(&found, prompt.chain().hashes())?;
        let cached = found.blocks.len();
        let mut blocks = found.blocks;
        pool.allocate_into(needed, &mut blocks)?;
        Ok(self.enter(Sequence::new(prompt, blocks, cached, tier)))
    }

    /// Whether a prompt of `tokens` tokens, nothing of it cached, could be admitted now. O(1).
    ///
    /// # Errors
    /// [`crate::TierError::UnknownTier`].
    pub fn fit(&self, tokens: usize, tier: usize, reserve: usize) -> Result<Fit, SequenceError> {
        self.tiers.check_poison()?;
        let pool = self.tiers.pool(tier)?;
        let needed = tokens.div_ceil(pool.block_size());
        Ok(Fit::of(needed, pool.num_available(), pool.num_usable(), reserve))
    }

    /// Appends tokens and makes room for `lookahead` more; a shared or registered tail is replaced by a copy first, which is
    /// planned. Returns the positions of the table that changed. Atomic. O(tokens).
    ///
    /// # Errors
    /// [`SequenceError::OutOfBlocks`], [`SequenceError::Stale`], [`SequenceError::Moving`].
    pub fn append(
        &mut self,
        id: SequenceId,
        tokens: &[u32],
        lookahead: usize,
    ) -> Result<Vec<TableChange>, SequenceError> {
        let (sequence, tiers) = self.parts(id)?;
        let more = tokens.len().saturating_add(lookahead);
        let pool = tiers.pool(sequence.tier)?;
        if more / pool.block_size() > pool.num_usable() {
            let needed = more / pool.block_size();
            let refusal = Refusal::new(needed, pool.num_available(), pool.num_fenced(), false);
            return Err(SequenceError::OutOfBlocks(refusal));
        }
        let needed = sequence.blocks_needed(pool, more, &mut GivenUp::default());
        if needed > pool.num_available() {
            let can_ever_fit = sequence.blocks_alone(pool, more) <= pool.num_usable();
            let refusal = Refusal::new(needed, pool.num_available(), pool.num_fenced(), can_ever_fit);
            return Err(SequenceError::OutOfBlocks(refusal));
        }
        let mut changes = Vec::new();
        sequence.extend(tiers, tokens, lookahead, &mut changes)?;
        Ok(changes)
    }

    /// Says that the KV of the first `computed_tokens` tokens is written; blocks that this fills are registered. With `dedupe`,
    /// a block whose content is cached already is exchanged for the cached one. Returns the positions that changed. O(new full
    /// blocks).
    ///
    /// # Errors
    /// [`SequenceError::BadComputedCount`], [`SequenceError::Stale`], [`SequenceError::Moving`].
    pub fn commit(
        &mut self,
        id: SequenceId,
        computed_tokens: usize,
        dedupe: bool,
    ) -> Result<Vec<TableChange>, SequenceError> {
        let (sequence, tiers) = self.parts(id)?;
        let (tokens, computed) = (sequence.num_tokens(), sequence.computed_tokens);
        if computed_tokens > tokens || computed_tokens < computed {
            let asked = computed_tokens;
            return Err(SequenceError::BadComputedCount { handle: id, asked, tokens, computed });
        }
        let mut changes = Vec::new();
        let pool = tiers.pool_mut(sequence.tier)?;
        sequence.commit(pool, computed_tokens, dedupe.then_some(&mut changes))?;
        Ok(changes)
    }

    /// Keeps the first `num_tokens` tokens, for instance after drafts were rejected; blocks behind are released, lookahead
    /// included. A tail that was registered is copied by the next append. O(blocks released).
    ///
    /// # Errors
    /// [`SequenceError::BadLength`], [`SequenceError::Stale`], [`SequenceError::Moving`].
    pub fn truncate(&mut self, id: SequenceId, num_tokens: usize) -> Result<(), SequenceError> {
        let (sequence, tiers) = self.parts(id)?;
        let (least, tokens) = (sequence.trimmed * tiers.pool(0)?.block_size(), sequence.num_tokens());
        if !(least..=tokens).contains(&num_tokens) {
            return Err(SequenceError::BadLength { handle: id, asked: num_tokens, least, tokens });
        }
        Ok(sequence.truncate(tiers, num_tokens)?)
    }

    /// Releases the blocks that lie wholly more than `window` tokens before the computed end; the null block takes their
    /// places. Returns how many. O(blocks released).
    ///
    /// # Errors
    /// [`SequenceError::Stale`], [`SequenceError::Moving`].
    pub fn trim_window(&mut self, id: SequenceId, window: usize) -> Result<usize, SequenceError> {
        let (sequence, tiers) = self.parts(id)?;
        Ok(sequence.trim(tiers, window)?)
    }

    /// A second sequence that shares every block. Whichever writes to a shared block first gets a copy. O(blocks + tokens).
    ///
    /// # Errors
    /// [`SequenceError::Stale`], [`SequenceError::Moving`], [`crate::PoolError::RefCountOverflow`].
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, SequenceError> {
        let (sequence, tiers) = self.parts(id)?;
        let child = sequence.fork(tiers)?;
        Ok(self.enter(child))
    }

    /// Ends a sequence: its blocks lose one reference each, tail first; with `after_step` when that step completes. The handle
    /// is stale from now on. O(blocks).
    ///
    /// # Errors
    /// [`SequenceError::Stale`], [`SequenceError::Moving`].
    pub fn free(&mut self, id: SequenceId, after_step: Option<u64>) -> Result<(), SequenceError> {
        let (sequence, tiers) = self.parts(id)?;
        sequence.give_up(tiers, after_step)?;
        if let Some(slot) = self.slots.get_mut(id.slot as usize) {
            slot.sequence = None;
            slot.generation = slot.generation.wrapping_add(1);
            self.free_slots.push(id.slot);
        }
        Ok(())
    }

    /// What is known of a sequence. O(1).
    ///
    /// # Errors
    /// [`SequenceError::Stale`].
    pub fn info(&self, id: SequenceId) -> Result<SequenceInfo, SequenceError> {
        let sequence = self.at(id)?;
        Ok(SequenceInfo {
            tokens: sequence.num_tokens(),
            computed_tokens: sequence.computed_tokens,
            blocks: sequence.blocks.len(),
            registered_blocks: sequence.published,
            trimmed_blocks: sequence.trimmed,
            tier: sequence.tier,
            swap: sequence.swap,
        })
    }

    /// The block table; trimmed blocks are the null block. O(1).
    ///
    /// # Errors
    /// [`SequenceError::Stale`].
    pub fn block_table(&self, id: SequenceId) -> Result<&[BlockId], SequenceError> {
        Ok(&self.at(id)?.blocks)
    }

    /// The sequence's tokens and hash chain. O(1).
    ///
    /// # Errors
    /// [`SequenceError::Stale`].
    pub fn cursor(&self, id: SequenceId) -> Result<&HashCursor, SequenceError> {
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

    /// All copies that are planned: see [`Tiers::take_plan`].
    ///
    /// # Errors
    /// Only if a pool is poisoned.
    pub fn take_plan(&mut self) -> Result<TransferPlan, SequenceError> {
        Ok(self.tiers.take_plan()?)
    }

    /// The epoch of every tier.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.tiers.pool(0).map_or(0, crate::BlockPool::epoch)
    }

    /// Starts a new epoch in every tier: see [`crate::BlockPool::bump_epoch`]. Sequences go on and are never published again.
    ///
    /// # Errors
    /// Only if a pool is poisoned.
    pub fn bump_epoch(&mut self) -> Result<u64, SequenceError> {
        Ok(self.tiers.bump_epoch()?)
    }

    /// Forgets all cached content of every tier: see [`Tiers::reset`].
    ///
    /// # Errors
    /// [`crate::PoolError::InUse`] and [`crate::TierError::InUse`] while sequences, fences or swaps hold blocks; nothing has
    /// changed then.
    pub fn reset(&mut self) -> Result<usize, SequenceError> {
        Ok(self.tiers.reset()?)
    }

    /// Tells `observer` of what the pool of a tier does: see [`Tiers::observe`].
    ///
    /// # Errors
    /// As [`Tiers::observe`].
    pub fn observe_tier(
        &mut self,
        tier: usize,
        observer: Box<dyn crate::pool::observe::PoolObserver>,
    ) -> Result<(), SequenceError> {
        Ok(self.tiers.observe(tier, observer)?)
    }

    /// The observer of a tier's pool, if it is of this type, and the tier's blocks.
    pub fn tier_observer_mut<T: crate::pool::observe::PoolObserver>(
        &mut self,
        tier: usize,
    ) -> Option<(&mut T, crate::pool::observe::Blocks<'_>)> {
        self.tiers.pool_mut(tier).ok()?.observer_mut()
    }

    /// Ends the fences of a step in every tier: see [`crate::BlockPool::complete_step`].
    ///
    /// # Errors
    /// Only if a pool is poisoned.
    pub fn complete_step(&mut self, step: u64) -> Result<usize, SequenceError> {
        self.tiers.check_poison()?;
        let mut ended = 0;
        for tier in 0..self.tiers.len() {
            ended += self.tiers.pool_mut(tier)?.complete_step(step)?;
        }
        Ok(ended)
    }

    /// Recounts tiers, tables and swaps from scratch. O(blocks + tokens).
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.tiers.check_invariants()?;
        let mut held: HashMap<Place, u32> = HashMap::new();
        let mut moving = HashSet::new();
        for (at, slot) in self.slots.iter().enumerate() {
            let Some(sequence) = &slot.sequence else { continue };
            let id = SequenceId { slot: at as u32, generation: slot.generation };
            let pool = self.tiers.pool(sequence.tier);
            let pool =
                pool.map_err(|error| InvariantViolation::new("S4 (tiers exist)", error.to_string()))?;
            sequence.check_invariants(pool, &id.to_string())?;
            for &block in sequence.held() {
                *held.entry(Place { tier: sequence.tier, block }).or_default() += 1;
            }
            let known = sequence.swap.is_none_or(|swap| {
                moving.insert(swap);
                self.moving.get(&swap).is_some_and(|(_, group)| group.contains(&id))
            });
            ensure(known, "S4 (a sequence that moves belongs to a swap)", || id.to_string())?;
        }
        ensure(moving.len() == self.moving.len(), "S4 (a swap moves sequences)", || format!("{moving:?}"))?;
        for (place, references) in self.tiers.swap_references() {
            *held.entry(place).or_default() += references;
        }
        for tier in 0..self.tiers.len() {
            let Ok(pool) = self.tiers.pool(tier) else { continue };
            for block in (1..pool.num_blocks() as u32).map(BlockId::new) {
                let place = Place { tier, block };
                let expected = held.get(&place).copied().unwrap_or(0);
                let holders = pool.num_holders(block);
                ensure(holders == expected, "S4 (holders of a block are tables and swaps)", || {
                    format!("{place:?} has {holders} holders, {expected} are known")
                })?;
            }
        }
        Ok(())
    }
}
