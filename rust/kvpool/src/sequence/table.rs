//! `Sequence`: a block table with a mutable tail, and the tokens in it.
//!
//! A value that lives in one slot of [`super::Sequences`] or in one request of [`crate::CacheManager`]. Methods check before
//! they change; those that say "after a check" rely on the caller's.
//!
//! Invariants: S1: the table has a block for every `block_size` tokens, and for lookahead slots beyond; S2: the first
//! `trimmed` entries, and no others, are the null block; S3: `published` blocks are full and computed.

use std::fmt;

use hashbrown::HashMap;

use crate::block::{BlockId, NULL_BLOCK};
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::hash::HashCursor;
use crate::pool::{BlockPool, PrefixMatch};
use crate::record::MAX_POSITIONS;
use crate::tiers::{SwapId, TierError, Tiers, out_of_blocks};

/// A position of a block table that holds another block now: a new one at the end, a copy in the place of a shared block, or
/// a cached block in the place of an equal one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableChange {
    /// Position in the block table.
    pub index: usize,
    /// The block that is there now.
    pub block: BlockId,
}

/// Tokens and where their KV is.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    /// Its tokens and the hash chain of its full blocks.
    pub(crate) cursor: HashCursor,
    /// Its block table.
    pub(crate) blocks: Vec<BlockId>,
    /// The tier whose blocks these are.
    pub(crate) tier: usize,
    /// Tokens whose KV is written, cached ones included.
    pub(crate) computed_tokens: usize,
    /// Leading blocks of the table that are in the index: matched at admission, or registered since.
    pub(crate) published: usize,
    /// False after a hash collision: nothing behind the colliding block can be reached by a lookup.
    pub(crate) publishes: bool,
    /// Leading blocks that fell out of the window.
    pub(crate) trimmed: usize,
    /// Whether the block that the next token goes to may be shared or registered: after a fork or a truncation.
    pub(crate) guarded: bool,
    /// The swap that moves it now.
    pub(crate) swap: Option<SwapId>,
}

/// References that planned appends give up: the last holder of a block writes in place.
pub(crate) type GivenUp = HashMap<BlockId, u32>;

/// A checked admission: what is cached of a prompt, and how many blocks are to be allocated behind it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Staged {
    /// The match; its blocks are the whole table once they are allocated.
    pub(crate) found: PrefixMatch,
    /// Blocks of the match.
    pub cached: usize,
    pub(crate) new_blocks: usize,
}

impl Staged {
    /// Matches a prompt, all but its last token, and checks that the rest fits into what `left` says is there behind the match.
    pub(crate) fn new(
        pool: &BlockPool,
        prompt: &HashCursor,
        left: impl FnOnce(&PrefixMatch) -> usize,
    ) -> Result<Self, PoolError> {
        let found = pool.find_prefix(prompt.chain(), reusable_blocks(prompt))?;
        let total = prompt.num_tokens().div_ceil(pool.block_size());
        let (cached, left) = (found.blocks.len(), left(&found));
        if total - cached > left {
            return Err(out_of_blocks(pool, total - cached, left, total <= pool.num_usable()));
        }
        Ok(Self { found, cached, new_blocks: total - cached })
    }

    /// Acquires the match. Before any block is allocated: no allocation can evict it then (vLLM #10507).
    pub(crate) fn acquire(&self, pool: &mut BlockPool, prompt: &HashCursor) -> Result<(), PoolError> {
        pool.acquire_found(&self.found, prompt.chain().hashes())
    }

    /// Allocates the blocks behind the match, which was acquired before.
    pub(crate) fn allocate(&mut self, pool: &mut BlockPool) -> Result<(), PoolError> {
        self.found.blocks.reserve_exact(self.new_blocks);
        pool.allocate_into(self.new_blocks, &mut self.found.blocks)
    }

    /// Both.
    pub(crate) fn take(&mut self, pool: &mut BlockPool, prompt: &HashCursor) -> Result<(), PoolError> {
        self.acquire(pool, prompt)?;
        self.allocate(pool)
    }
}

/// Full blocks of a prompt that a lookup may reuse: at least its last token is left to compute.
pub(crate) fn reusable_blocks(prompt: &HashCursor) -> usize {
    prompt.num_tokens().saturating_sub(1) / prompt.hasher().block_size()
}

impl Sequence {
    /// A sequence without blocks.
    pub(crate) fn new(cursor: HashCursor, tier: usize) -> Self {
        Self {
            cursor,
            blocks: Vec::new(),
            tier,
            computed_tokens: 0,
            published: 0,
            publishes: true,
            trimmed: 0,
            guarded: false,
            swap: None,
        }
    }

    /// Holds the blocks of an admission, the first `cached` of which were hit.
    pub(crate) fn hold(&mut self, blocks: Vec<BlockId>, cached: usize) {
        (self.blocks, self.published) = (blocks, cached);
        self.computed_tokens = cached * self.block_size();
    }

    #[inline]
    pub(crate) fn num_tokens(&self) -> usize {
        self.cursor.num_tokens()
    }

    #[inline]
    fn block_size(&self) -> usize {
        self.cursor.hasher().block_size()
    }

    /// Blocks that the table lacks once `more` tokens are appended.
    #[inline]
    pub(crate) fn blocks_missing_for(&self, more: usize) -> usize {
        (self.num_tokens() + more).div_ceil(self.block_size()).saturating_sub(self.blocks.len())
    }

    /// Positions of the table that `more` slots behind the last token reach and that exist already.
    fn touched(&self, more: usize) -> std::ops::Range<usize> {
        let first = self.num_tokens() / self.block_size();
        let end = (self.num_tokens() + more).div_ceil(self.block_size()).min(self.blocks.len());
        first..end.max(first)
    }

    /// Blocks that `more` slots reach and that may be shared or registered.
    #[inline]
    fn guarded_blocks(&self, more: usize) -> &[BlockId] {
        if self.guarded && more > 0 { &self.blocks[self.touched(more)] } else { &[] }
    }

    /// Blocks that an append of `more` slots must not write to.
    #[inline]
    fn copied(&self, pool: &BlockPool, more: usize, given_up: &GivenUp) -> Vec<BlockId> {
        let users = |block| pool.num_users(block) - given_up.get(&block).copied().unwrap_or(0);
        let must = |&block: &BlockId| users(block) > 1 || pool.is_registered(block);
        self.guarded_blocks(more).iter().copied().filter(must).collect()
    }

    /// Blocks that an append of `more` slots takes: missing ones, and copies of those that it must not write to. `given_up`
    /// counts the references that earlier appends of the same batch give up, and this one.
    #[inline]
    pub(crate) fn blocks_needed(&self, pool: &BlockPool, more: usize, given_up: &mut GivenUp) -> usize {
        let copied = self.copied(pool, more, given_up);
        copied.iter().for_each(|&block| *given_up.entry(block).or_default() += 1);
        self.blocks_missing_for(more) + copied.len()
    }

    /// Whether an append of `more` slots would fit an otherwise empty pool.
    pub(crate) fn fits_alone(&self, pool: &BlockPool, more: usize) -> bool {
        let copies = self.guarded_blocks(more).iter().filter(|&&block| pool.is_registered(block)).count();
        self.held().len() + self.blocks_missing_for(more) + copies <= pool.num_usable()
    }

    /// Checks that [`Self::blocks_needed`] for `more` slots are among `available` ones, and returns how many these are. Refused,
    /// it gives nothing up.
    pub(crate) fn check_growth(
        &self,
        pool: &BlockPool,
        more: usize,
        available: usize,
        given_up: &mut GivenUp,
    ) -> Result<usize, PoolError> {
        let full = more / pool.block_size();
        if full > pool.num_usable() {
            return Err(out_of_blocks(pool, full, pool.num_available(), false));
        }
        let copied = self.copied(pool, more, given_up);
        let needed = self.blocks_missing_for(more) + copied.len();
        if needed > available {
            return Err(out_of_blocks(pool, needed, available, self.fits_alone(pool, more)));
        }
        copied.iter().for_each(|&block| *given_up.entry(block).or_default() += 1);
        Ok(needed)
    }

    /// Appends tokens, with `lookahead` slots behind them, after a check that [`Self::blocks_needed`] are available. What it
    /// must not write to is replaced. Changes of the table go to `changes`.
    pub(crate) fn extend(
        &mut self,
        tiers: &mut Tiers,
        tokens: &[u32],
        lookahead: usize,
        changes: &mut Vec<TableChange>,
    ) -> Result<(), TierError> {
        let more = tokens.len() + lookahead;
        if self.guarded && more > 0 {
            self.unshare(tiers, more, changes)?;
        }
        let missing = self.blocks_missing_for(more);
        if missing > 0 {
            let index = self.blocks.len();
            tiers.pool_mut(self.tier)?.allocate_into(missing, &mut self.blocks)?;
            let new = self.blocks[index..].iter().enumerate();
            changes.extend(new.map(|(at, &block)| TableChange { index: index + at, block }));
        }
        self.cursor.append(tokens);
        Ok(())
    }

    /// Makes the blocks that `more` slots reach writable. A block behind the last token holds nothing to copy.
    #[cold]
    fn unshare(
        &mut self,
        tiers: &mut Tiers,
        more: usize,
        changes: &mut Vec<TableChange>,
    ) -> Result<(), TierError> {
        let touched = self.touched(more);
        for index in touched.clone() {
            let shared = self.blocks[index];
            if tiers.is_writable(self.tier, shared)? {
                continue;
            }
            let own = if index * self.block_size() < self.num_tokens() {
                tiers.copy_on_write(self.tier, shared)?
            } else {
                let pool = tiers.pool_mut(self.tier)?;
                let fresh = pool.allocate(1)?[0];
                pool.release(&[shared])?;
                fresh
            };
            self.blocks[index] = own;
            changes.push(TableChange { index, block: own });
        }
        self.guarded = touched.end < self.blocks.len();
        Ok(())
    }

    /// [`super::Sequences::commit`], after a check; with `changes`, it dedupes. Returns how many blocks it registered: not those
    /// that a fork did, or that were before a truncation. Positions that no index can note are never published.
    #[inline]
    pub(crate) fn commit(
        &mut self,
        pool: &mut BlockPool,
        computed_tokens: usize,
        changes: Option<&mut Vec<TableChange>>,
    ) -> Result<usize, PoolError> {
        self.computed_tokens = computed_tokens;
        let full = (computed_tokens / self.block_size()).min(MAX_POSITIONS);
        if full <= self.published || !self.publishes || self.cursor.epoch() != pool.epoch() {
            return Ok(0);
        }
        if let Some(changes) = changes {
            self.exchange(pool, full, changes)?;
        }
        let mut count = 0;
        while self.published < full && self.publishes {
            // A fork that committed first has registered what both hold.
            let rest = &self.blocks[self.published..full];
            let known = rest.iter().take_while(|&&block| pool.is_registered(block)).count();
            self.published += known;
            let rest = &rest[known..];
            let new = rest.iter().position(|&block| pool.is_registered(block)).unwrap_or(rest.len());
            let registered = pool.register(&rest[..new], self.cursor.chain(), self.published)?;
            pool.mark_computed(&rest[..registered.blocks])?;
            self.published += registered.blocks;
            count += registered.blocks;
            self.publishes = !registered.collided;
        }
        Ok(count)
    }

    /// Exchanges the blocks up to `full` for cached ones, as far as there are any.
    fn exchange(
        &mut self,
        pool: &mut BlockPool,
        full: usize,
        changes: &mut Vec<TableChange>,
    ) -> Result<(), PoolError> {
        while self.published < full {
            let index = self.published;
            let content = self.cursor.chain().link(index);
            let Some(cached) = content.and_then(|content| pool.find_content(&content)) else { break };
            // It is the own block, if a fork that committed first has registered what both hold.
            if cached != self.blocks[index] {
                pool.acquire_by_id(&[cached])?;
                pool.release(&[self.blocks[index]])?;
                self.blocks[index] = cached;
                changes.push(TableChange { index, block: cached });
            }
            self.published += 1;
        }
        Ok(())
    }

    /// The fewest tokens that it can keep, for the blocks before them are trimmed, and how many there are.
    pub(crate) fn lengths(&self) -> (usize, usize) {
        (self.trimmed * self.block_size(), self.num_tokens())
    }

    /// [`super::Sequences::truncate`], after a check of [`Self::lengths`].
    pub(crate) fn truncate(&mut self, tiers: &mut Tiers, num_tokens: usize) -> Result<(), TierError> {
        let keep = num_tokens.div_ceil(self.block_size());
        let dropped = self.blocks.split_off(keep.min(self.blocks.len()));
        tiers.pool_mut(self.tier)?.release_table(&dropped)?;
        self.cursor.truncate(num_tokens).map_err(PoolError::from)?;
        self.computed_tokens = self.computed_tokens.min(num_tokens);
        self.published = self.published.min(num_tokens / self.block_size());
        self.guarded = true;
        Ok(())
    }

    /// [`super::Sequences::trim_window`].
    pub(crate) fn trim(&mut self, tiers: &mut Tiers, window: usize) -> Result<usize, TierError> {
        let outside = self.computed_tokens.saturating_sub(window) / self.block_size();
        if outside <= self.trimmed {
            return Ok(0);
        }
        let gone = self.trimmed..outside;
        tiers.pool_mut(self.tier)?.release_table(&self.blocks[gone.clone()])?;
        self.blocks[gone.clone()].fill(NULL_BLOCK);
        self.trimmed = outside;
        Ok(gone.len())
    }

    /// [`super::Sequences::fork`].
    pub(crate) fn fork(&mut self, tiers: &mut Tiers) -> Result<Self, TierError> {
        tiers.pool_mut(self.tier)?.acquire(self.held())?;
        self.guarded = true;
        Ok(self.clone())
    }

    /// The blocks of the table that it holds: those that are not trimmed.
    pub(crate) fn held(&self) -> &[BlockId] {
        &self.blocks[self.trimmed..]
    }

    /// Gives up all blocks, tail first, or hands them to the fence of a step; the tokens stay, and get blocks of the device next.
    pub(crate) fn give_up(&mut self, tiers: &mut Tiers, after_step: Option<u64>) -> Result<(), TierError> {
        let pool = tiers.pool_mut(self.tier)?;
        match after_step {
            None => pool.release_table(self.held())?,
            Some(step) => {
                let tail_first: Vec<_> = self.held().iter().rev().copied().collect();
                pool.release_after(&tail_first, step)?;
            }
        }
        self.blocks.clear();
        (self.tier, self.computed_tokens, self.published, self.trimmed) = (0, 0, 0, 0);
        (self.publishes, self.guarded) = (true, false);
        Ok(())
    }

    /// Takes the blocks that a completed swap moved it to.
    pub(crate) fn moved(&mut self, mapping: &HashMap<BlockId, BlockId>, to: usize) {
        for block in &mut self.blocks[self.trimmed..] {
            *block = mapping.get(block).copied().unwrap_or(*block);
        }
        self.tier = to;
        self.swap = None;
    }

    /// S1 and S3. O(1).
    pub(crate) fn check_counts(&self, name: &dyn fmt::Display) -> Result<(), InvariantViolation> {
        let enough = self.blocks.len() * self.block_size() >= self.num_tokens();
        ensure(
            enough && self.trimmed <= self.blocks.len(),
            "S1 (a table has a block for all its tokens)",
            || format!("{name} has {} blocks for {} tokens", self.blocks.len(), self.num_tokens()),
        )?;
        let sound = self.computed_tokens <= self.num_tokens()
            && self.published * self.block_size() <= self.computed_tokens;
        ensure(sound, "S3 (published blocks are computed)", || {
            format!("{name}: {} published, {} computed", self.published, self.computed_tokens)
        })
    }

    /// S2 and M3 of one entry of the table. O(1).
    pub(crate) fn check_entry(
        &self,
        pool: &BlockPool,
        at: usize,
        name: &dyn fmt::Display,
    ) -> Result<(), InvariantViolation> {
        let Some(&block) = self.blocks.get(at) else { return Ok(()) };
        ensure((at < self.trimmed) == block.is_null(), "S2 (trimmed blocks are null)", || {
            format!("{block:?} at {at} of {name}, {} trimmed", self.trimmed)
        })?;
        if at >= self.published || self.cursor.epoch() != pool.epoch() {
            return Ok(());
        }
        // Dropped by id since, perhaps; never under another hash.
        let (registered, hash) = (pool.hash_of(block), self.cursor.chain().hashes().get(at));
        let wrong = registered.is_some() && registered.as_ref() != hash;
        ensure(!wrong, "M3 (a published block carries the hash of its tokens)", || {
            format!("{block:?} at {at} of {name}")
        })
    }
}
