//! `Staged`: an admission that was looked up and not taken yet.
//!
//! Owns: what is cached of a prompt in each KV-cache group, and how many blocks are to be allocated behind it. Finding changes nothing;
//! what can fail is checked before anything is taken.

use super::table::Layout;
use crate::tiers::{TierError, Tiers};
use kvpool_core::groups::{GroupHit, Groups, Tokens};
use kvpool_core::hash::HashCursor;
use kvpool_core::parts::PrefixMatch;
use kvpool_core::{BlockId, BlockPool, PoolError, Refusal};

/// How much of a prompt is admitted now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Part {
    /// Tokens that get blocks now, behind those that are cached or external: the first chunk of a chunked prefill. `None` is all.
    pub allocate_tokens: Option<usize>,
    /// A connector has the KV of the prompt's first so many tokens. What of it is not cached here is loaded into blocks of the
    /// request; see [`crate::CacheManager::external_done`]. Less than the prompt: its last token is always left to compute.
    pub external_tokens: usize,
    /// Match nothing: the engine computes every token, for instance for log probabilities of the prompt. What it computes is registered
    /// as always.
    pub compute_all: bool,
}

impl Part {
    /// All of the prompt, all of it computed here.
    pub const WHOLE: Self = Self { allocate_tokens: None, external_tokens: 0, compute_all: false };
}

/// A table to be, of one of several groups.
#[derive(Debug)]
pub(crate) struct StagedTable {
    /// What is cached, the null block where nothing is needed; of a group with states the one that the hit ends at. The whole table
    /// once it is allocated.
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) new_blocks: usize,
    /// Whether the request writes to the last of these blocks, if there is one, and so to a copy of it: a state, or a block that the
    /// hit ends inside.
    copies: bool,
}

/// An admission that was looked up: what is cached of a prompt, and how many blocks are to be allocated behind it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Staged {
    /// The match. Without groups its blocks are the whole table once they are allocated.
    pub(crate) found: PrefixMatch,
    /// The tables of several groups; none without groups.
    pub(crate) tables: Vec<StagedTable>,
    /// Blocks of the match, in the first group.
    pub cached: usize,
    /// Leading tokens whose KV is cached.
    pub cached_tokens: usize,
    /// How far the groups of full attention alone would have gone.
    pub(crate) full_tokens: usize,
    /// How far each group alone would have gone, if somebody wants to know.
    pub(crate) reach: Vec<Tokens>,
    /// Blocks to allocate, in all groups.
    pub(crate) new_blocks: usize,
    /// Tokens whose KV is cached or external.
    pub(crate) ready_tokens: usize,
    /// Tokens that the tables cover.
    pub(crate) covered_tokens: usize,
    /// Tokens behind those that are ready that could get blocks now.
    pub(crate) fitting_tokens: usize,
    /// Blocks that could be allocated behind the match.
    left: usize,
}

impl Staged {
    /// Matches a prompt, all but its last token; `left` says how many blocks are there behind a match of these blocks. Changes nothing.
    pub(crate) fn find(
        pool: &BlockPool,
        groups: Option<&Groups>,
        prompt: &HashCursor,
        part: Part,
        left: impl FnOnce(&[BlockId]) -> usize,
    ) -> Result<Self, PoolError> {
        if let Some(groups) = groups {
            return Self::find_in(groups, pool, prompt, part, left);
        }
        let found = pool.find_prefix(prompt.chain(), reusable_blocks(prompt))?;
        let (cached, size, tokens) = (found.blocks.len(), pool.block_size(), prompt.num_tokens());
        let (left, cached_tokens) = (left(&found.blocks), cached * size);
        let (ready_tokens, covered_tokens) = ready_and_covered(tokens, cached_tokens, part);
        let fitting = ((cached + left) * size).saturating_sub(ready_tokens);
        Ok(Self {
            found,
            tables: Vec::new(),
            cached,
            cached_tokens,
            full_tokens: cached_tokens,
            reach: Vec::new(),
            new_blocks: covered_tokens.div_ceil(size).saturating_sub(cached),
            ready_tokens,
            covered_tokens,
            fitting_tokens: fitting.min(tokens - ready_tokens),
            left,
        })
    }

    /// The same of several groups.
    fn find_in(
        groups: &Groups,
        pool: &BlockPool,
        prompt: &HashCursor,
        part: Part,
        left: impl FnOnce(&[BlockId]) -> usize,
    ) -> Result<Self, PoolError> {
        let (specs, tokens) = (groups.specs(), prompt.num_tokens());
        let hit = pool.find_groups(groups, prompt.chain(), Tokens(tokens.saturating_sub(1)))?;
        let GroupHit { tokens: Tokens(cached_tokens), tables, full_tokens, .. } = hit;
        let matched: Vec<_> = tables.iter().flatten().copied().filter(|block| !block.is_null()).collect();
        let left = left(&matched);
        let (ready_tokens, covered_tokens) = ready_and_covered(tokens, cached_tokens, part);
        // Blocks of a group beyond its match, for so many tokens.
        let new_of = |group: usize, tokens: usize| match Layout::of(specs[group].kind) {
            Layout::Positions => {
                let whole = specs[group].full_blocks(Tokens(cached_tokens)).0.min(tables[group].len());
                specs[group].covering(Tokens(tokens)).0.saturating_sub(whole)
            }
            Layout::State => 1,
            Layout::Encoder => 0,
        };
        let new_in_all =
            |tokens| (0..specs.len()).fold(0_usize, |sum, group| sum.saturating_add(new_of(group, tokens)));
        // More tokens never take fewer blocks.
        let (mut fitting_tokens, mut too_many) = (0, tokens - ready_tokens + 1);
        while fitting_tokens + 1 < too_many {
            let middle = fitting_tokens.midpoint(too_many);
            let fits = new_in_all(ready_tokens + middle) <= left;
            *(if fits { &mut fitting_tokens } else { &mut too_many }) = middle;
        }
        let new_blocks = new_in_all(covered_tokens);
        let new: Vec<_> = (0..specs.len()).map(|group| new_of(group, covered_tokens)).collect();
        let staged = tables.into_iter().zip(new).zip(specs).map(|((mut blocks, new_blocks), spec)| {
            let layout = Layout::of(spec.kind);
            if layout == Layout::State {
                blocks.retain(|block| !block.is_null());
            }
            let shares =
                layout == Layout::Positions && blocks.len() > spec.full_blocks(Tokens(cached_tokens)).0;
            StagedTable { blocks, new_blocks, copies: shares || layout == Layout::State }
        });
        let cached = cached_tokens / specs[0].block_tokens;
        let asked = tokens.saturating_sub(1) / specs[0].block_tokens;
        Ok(Self {
            tables: staged.collect(),
            found: PrefixMatch { asked, ..PrefixMatch::default() },
            cached,
            cached_tokens,
            full_tokens: full_tokens.0,
            reach: Vec::new(),
            new_blocks,
            ready_tokens,
            covered_tokens,
            fitting_tokens,
            left,
        })
    }

    /// What was found, refused if the blocks behind it are not there.
    pub(crate) fn new(
        pool: &BlockPool,
        groups: Option<&Groups>,
        prompt: &HashCursor,
        part: Part,
        left: impl FnOnce(&[BlockId]) -> usize,
    ) -> Result<Self, PoolError> {
        let staged = Self::find(pool, groups, prompt, part, left)?;
        match staged.refusal(pool) {
            None => Ok(staged),
            Some(refusal) => Err(PoolError::OutOfBlocks(refusal)),
        }
    }

    /// Why it cannot be taken now, if it cannot.
    pub(crate) fn refusal(&self, pool: &BlockPool) -> Option<Refusal> {
        let Self { new_blocks, fitting_tokens, left, .. } = *self;
        (new_blocks > left).then(|| {
            let can_ever_fit = self.matched().count().saturating_add(new_blocks) <= pool.num_usable();
            let mut refusal = Refusal::new(new_blocks, left, pool.num_fenced(), can_ever_fit);
            refusal.fitting_tokens = fitting_tokens;
            refusal
        })
    }

    /// The blocks of the match, in all groups.
    pub(crate) fn matched(&self) -> impl Iterator<Item = BlockId> + '_ {
        let grouped = self.tables.iter().flat_map(|table| &table.blocks);
        self.found.blocks.iter().chain(grouped).copied().filter(|block| !block.is_null())
    }

    /// Acquires the match. Before any block is allocated: no allocation can evict it then (vLLM #10507).
    pub(crate) fn acquire(&self, pool: &mut BlockPool, prompt: &HashCursor) -> Result<(), PoolError> {
        if self.tables.is_empty() {
            return pool.acquire_found(&self.found, prompt.chain().hashes());
        }
        let blocks: Vec<_> = self.matched().collect();
        let asked = prompt.chain().hashes().get(..reusable_blocks(prompt)).unwrap_or(&[]);
        pool.acquire_in_groups(&blocks, self.cached, self.cached_tokens, &self.found, asked)
    }

    /// Allocates the blocks behind the match, which was acquired before, and copies what the request writes to.
    pub(crate) fn allocate(&mut self, tiers: &mut Tiers, tier: usize) -> Result<(), TierError> {
        if self.tables.is_empty() {
            self.found.blocks.reserve_exact(self.new_blocks);
            return Ok(tiers.pool_mut(tier)?.allocate_into(self.new_blocks, &mut self.found.blocks)?);
        }
        for StagedTable { blocks, new_blocks, copies, .. } in &mut self.tables {
            let copied = match blocks.last_mut().filter(|_| *copies) {
                Some(shared) => {
                    *shared = tiers.copy_on_write(tier, *shared)?;
                    1
                }
                None => 0,
            };
            tiers.pool_mut(tier)?.allocate_into(new_blocks.saturating_sub(copied), blocks)?;
        }
        Ok(())
    }

    /// Both.
    pub(crate) fn take(
        &mut self,
        tiers: &mut Tiers,
        tier: usize,
        prompt: &HashCursor,
    ) -> Result<(), TierError> {
        self.acquire(tiers.pool_mut(tier)?, prompt)?;
        self.allocate(tiers, tier)
    }
}

/// Tokens whose KV is there, and tokens that are covered, of a prompt.
fn ready_and_covered(tokens: usize, cached: usize, part: Part) -> (usize, usize) {
    let ready = part.external_tokens.min(tokens).max(cached);
    (ready, part.allocate_tokens.map_or(tokens, |n| ready.saturating_add(n).min(tokens)))
}

/// Full blocks of a prompt that a lookup may reuse: at least its last token is left to compute.
pub(crate) fn reusable_blocks(prompt: &HashCursor) -> usize {
    prompt.num_tokens().saturating_sub(1) / prompt.hasher().block_size()
}
