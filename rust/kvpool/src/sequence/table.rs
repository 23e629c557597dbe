//! `Sequence`: a block table with a mutable tail, and the tokens in it.
//!
//! A value that lives in one slot of [`super::Sequences`] or in one request of [`crate::CacheManager`]. Methods check before
//! they change; those that say "after a check" rely on the caller's.
//!
//! The table *covers* its first tokens: all of them and lookahead slots beyond, or, of a prompt that is admitted in chunks, those that
//! are computed and the chunk that comes next.
//!
//! Invariants: S1: the table covers all computed tokens; S2: the first `trimmed` entries, and no others, are the null block; S3:
//! `published` blocks are full and computed.

use std::fmt;
use std::ops::Range;

use hashbrown::HashMap;

use crate::block::{BlockId, NULL_BLOCK};
use crate::error::{InvariantViolation, PoolError, Refusal, ensure};
use crate::fence::Until;
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
    /// The first position of the table whose block may be shared or registered though tokens to come are written to it: after a
    /// fork or a truncation. [`NOT_GUARDED`] if there is none.
    pub(crate) guarded: usize,
    /// The swap that moves it now.
    pub(crate) swap: Option<SwapId>,
}

/// No position of a table is guarded.
pub(crate) const NOT_GUARDED: usize = usize::MAX;

/// References that planned appends give up: the last holder of a block writes in place.
pub(crate) type GivenUp = HashMap<BlockId, u32>;

/// How much of a prompt is admitted now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Part {
    /// Tokens that get blocks now, behind those that are cached or external: the first chunk of a chunked prefill. `None` is all.
    pub allocate_tokens: Option<usize>,
    /// A connector has the KV of the prompt's first so many tokens. What of it is not cached here is loaded into blocks of the
    /// request; see [`crate::CacheManager::external_done`]. Less than the prompt: its last token is always left to compute.
    pub external_tokens: usize,
}

impl Part {
    /// All of the prompt, all of it computed here.
    pub const WHOLE: Self = Self { allocate_tokens: None, external_tokens: 0 };
}

/// An admission that was looked up: what is cached of a prompt, and how many blocks are to be allocated behind it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Staged {
    /// The match; its blocks are the whole table once they are allocated.
    pub(crate) found: PrefixMatch,
    /// Blocks of the match.
    pub cached: usize,
    pub(crate) new_blocks: usize,
    /// Tokens whose KV is cached or external.
    pub(crate) ready_tokens: usize,
    /// Tokens behind those that could get blocks now.
    pub(crate) fitting_tokens: usize,
    /// Blocks that could be allocated behind the match.
    left: usize,
}

impl Staged {
    /// Matches a prompt, all but its last token; `left` says how many blocks are there behind the match. Changes nothing.
    pub(crate) fn find(
        pool: &BlockPool,
        prompt: &HashCursor,
        part: Part,
        left: impl FnOnce(&PrefixMatch) -> usize,
    ) -> Result<Self, PoolError> {
        let found = pool.find_prefix(prompt.chain(), reusable_blocks(prompt))?;
        let (cached, left, tokens) = (found.blocks.len(), left(&found), prompt.num_tokens());
        let ready_tokens = part.external_tokens.min(tokens).max(cached * pool.block_size());
        let covered = part.allocate_tokens.map_or(tokens, |n| ready_tokens.saturating_add(n).min(tokens));
        let new_blocks = covered.div_ceil(pool.block_size()).saturating_sub(cached);
        let fitting = ((cached + left) * pool.block_size()).saturating_sub(ready_tokens);
        let fitting_tokens = fitting.min(tokens - ready_tokens);
        Ok(Self { found, cached, new_blocks, ready_tokens, fitting_tokens, left })
    }

    /// The same, refused if the blocks are not there.
    pub(crate) fn new(
        pool: &BlockPool,
        prompt: &HashCursor,
        part: Part,
        left: impl FnOnce(&PrefixMatch) -> usize,
    ) -> Result<Self, PoolError> {
        let staged = Self::find(pool, prompt, part, left)?;
        match staged.refusal(pool) {
            None => Ok(staged),
            Some(refusal) => Err(PoolError::OutOfBlocks(refusal)),
        }
    }

    /// Why it cannot be taken now, if it cannot.
    pub(crate) fn refusal(&self, pool: &BlockPool) -> Option<Refusal> {
        let Self { cached, new_blocks, fitting_tokens, left, .. } = *self;
        (new_blocks > left).then(|| {
            let can_ever_fit = cached + new_blocks <= pool.num_usable();
            let refusal = Refusal::new(new_blocks, left, pool.num_fenced(), can_ever_fit);
            Refusal { fitting_tokens, ..refusal }
        })
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
            guarded: NOT_GUARDED,
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

    /// Tokens that the table has blocks for.
    #[inline]
    pub(crate) fn covered_tokens(&self) -> usize {
        self.blocks.len() * self.block_size()
    }

    /// Slots that a growth to `slots` covers, with `more` tokens: whatever falls into blocks that there are is covered.
    #[inline]
    pub(crate) fn slots_for(&self, more: usize, slots: usize) -> usize {
        slots.max(self.covered_tokens().min(self.num_tokens() + more))
    }

    /// Blocks that the table lacks to cover `slots`.
    #[inline]
    fn blocks_missing_for(&self, slots: usize) -> usize {
        // Most rows of a decode step lack none: a comparison is cheaper than a division.
        if slots <= self.covered_tokens() {
            return 0;
        }
        slots.div_ceil(self.block_size()).saturating_sub(self.blocks.len())
    }

    /// Whether a growth to `slots`, with so many tokens computed then, neither takes a block nor registers one.
    #[inline]
    pub(crate) fn needs_no_pool(&self, slots: usize, computed: Option<usize>) -> bool {
        self.guarded == NOT_GUARDED
            && slots <= self.covered_tokens()
            && computed.is_none_or(|computed| !self.completes_block(computed))
    }

    /// Whether the first `computed` tokens fill a block that is not published.
    #[inline]
    fn completes_block(&self, computed: usize) -> bool {
        computed >= (self.published + 1).saturating_mul(self.block_size())
    }

    /// Blocks that a growth to `slots` may write to and that may be shared or registered.
    #[inline]
    fn guarded_positions(&self, slots: usize) -> Range<usize> {
        if self.guarded == NOT_GUARDED || slots <= self.num_tokens() {
            return 0..0;
        }
        let end = slots.div_ceil(self.block_size()).min(self.blocks.len());
        self.guarded.min(end)..end
    }

    /// Blocks that a growth to `slots` must not write to.
    #[inline]
    fn copied(&self, pool: &BlockPool, slots: usize, given_up: &GivenUp) -> Vec<BlockId> {
        let users = |block| pool.num_users(block) - given_up.get(&block).copied().unwrap_or(0);
        let must = |&block: &BlockId| users(block) > 1 || pool.is_registered(block);
        self.blocks[self.guarded_positions(slots)].iter().copied().filter(must).collect()
    }

    /// Blocks that a growth to `slots` takes: missing ones, and copies of those that it must not write to. `given_up`
    /// counts the references that earlier rows of the same batch give up, and this one.
    #[inline]
    pub(crate) fn blocks_needed(&self, pool: &BlockPool, slots: usize, given_up: &mut GivenUp) -> usize {
        let copied = self.copied(pool, slots, given_up);
        copied.iter().for_each(|&block| *given_up.entry(block).or_default() += 1);
        self.blocks_missing_for(slots).saturating_add(copied.len())
    }

    /// Whether a growth to `slots` would fit an otherwise empty pool.
    pub(crate) fn fits_alone(&self, pool: &BlockPool, slots: usize) -> bool {
        let guarded = &self.blocks[self.guarded_positions(slots)];
        let copies = guarded.iter().filter(|&&block| pool.is_registered(block)).count();
        self.blocks_missing_for(slots).saturating_add(self.held().len() + copies) <= pool.num_usable()
    }

    /// Checks that what a growth to `slots` takes is among `available` blocks. Returns how many, and which blocks it gives up.
    pub(crate) fn check_growth(
        &self,
        pool: &BlockPool,
        slots: usize,
        available: usize,
        given_up: &GivenUp,
    ) -> Result<(usize, Vec<BlockId>), PoolError> {
        let copied = self.copied(pool, slots, given_up);
        let needed = self.blocks_missing_for(slots).saturating_add(copied.len());
        if needed > available {
            return Err(out_of_blocks(pool, needed, available, self.fits_alone(pool, slots)));
        }
        Ok((needed, copied))
    }

    /// Appends tokens and covers `slots`, after a check that [`Self::blocks_needed`] are available. What it must not write to is
    /// replaced. Changes of the table go to `changes`.
    pub(crate) fn grow(
        &mut self,
        tiers: &mut Tiers,
        tokens: &[u32],
        slots: usize,
        changes: &mut Vec<TableChange>,
    ) -> Result<(), TierError> {
        if self.guarded != NOT_GUARDED {
            self.unshare(tiers, slots, changes)?;
        }
        let missing = self.blocks_missing_for(slots);
        if missing > 0 {
            let index = self.blocks.len();
            tiers.pool_mut(self.tier)?.allocate_into(missing, &mut self.blocks)?;
            let new = self.blocks[index..].iter().enumerate();
            changes.extend(new.map(|(at, &block)| TableChange { index: index + at, block }));
        }
        self.cursor.append(tokens);
        Ok(())
    }

    /// Makes the blocks that a growth to `slots` may write to writable. A block behind the last token holds nothing to copy.
    #[cold]
    fn unshare(
        &mut self,
        tiers: &mut Tiers,
        slots: usize,
        changes: &mut Vec<TableChange>,
    ) -> Result<(), TierError> {
        let guarded = self.guarded_positions(slots);
        for index in guarded.clone() {
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
        if !guarded.is_empty() {
            self.guard_from(guarded.end);
        }
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
        if !self.completes_block(computed_tokens) {
            return Ok(0);
        }
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
    pub(crate) fn truncate(
        &mut self,
        tiers: &mut Tiers,
        num_tokens: usize,
        until: Until,
    ) -> Result<(), TierError> {
        let keep = num_tokens.div_ceil(self.block_size());
        let dropped = self.blocks.split_off(keep.min(self.blocks.len()));
        tiers.pool_mut(self.tier)?.release_table_until(&dropped, until)?;
        self.cursor.truncate(num_tokens).map_err(PoolError::from)?;
        self.computed_tokens = self.computed_tokens.min(num_tokens);
        self.published = self.published.min(num_tokens / self.block_size());
        self.guard();
        Ok(())
    }

    /// Notes that the block of the next token may be shared or registered from now on.
    fn guard(&mut self) {
        self.guard_from(self.guarded.min(self.num_tokens() / self.block_size()));
    }

    /// Blocks behind the table are its own once it has them.
    fn guard_from(&mut self, position: usize) {
        self.guarded = if position < self.blocks.len() { position } else { NOT_GUARDED };
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
        self.guard();
        Ok(self.clone())
    }

    /// The blocks of the table that it holds: those that are not trimmed.
    pub(crate) fn held(&self) -> &[BlockId] {
        &self.blocks[self.trimmed..]
    }

    /// Gives up all blocks, tail first, or hands them to a fence; the tokens stay, and get blocks of the device next.
    pub(crate) fn give_up(&mut self, tiers: &mut Tiers, until: Until) -> Result<(), TierError> {
        tiers.pool_mut(self.tier)?.release_table_until(self.held(), until)?;
        self.blocks.clear();
        (self.tier, self.computed_tokens, self.published, self.trimmed) = (0, 0, 0, 0);
        (self.publishes, self.guarded) = (true, NOT_GUARDED);
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
        let enough = self.computed_tokens <= self.covered_tokens();
        ensure(
            enough && self.trimmed <= self.blocks.len(),
            "S1 (a table covers all computed tokens)",
            || {
                format!(
                    "{name} has {} blocks for {} computed tokens",
                    self.blocks.len(),
                    self.computed_tokens
                )
            },
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
