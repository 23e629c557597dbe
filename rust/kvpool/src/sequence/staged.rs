//! `Staged` is the result of looking up a prompt for an admission. Its blocks are not yet acquired or
//! allocated.
//!
//! It contains the cached blocks of the prompt in each KV-cache group, and the number of blocks to
//! allocate for the rest. A lookup changes nothing. Everything that can fail is checked before any
//! block is taken.

use std::ops::Range;

use super::table::Layout;
use crate::groups::{Blocks, GroupHit, GroupKind, GroupSpec, Groups, Tokens};
use crate::hash::HashCursor;
use crate::pool::PrefixMatch;
use crate::tiers::{TierError, Tiers};
use crate::{BlockId, BlockPool, NULL_BLOCK, PoolError, Refusal};

/// The part of a prompt for which an admission allocates blocks.
///
/// ```
/// use kvpool::{AdmitOptions, CacheManager, ExtraKeys, ManagerConfig, Part};
/// let config = ManagerConfig { num_blocks: 64, block_size: 4, ..Default::default() };
/// let mut manager = CacheManager::new(config)?;
/// let prompt = manager.prepare(&(0..100).collect::<Vec<u32>>(), ExtraKeys::default())?;
/// // Only the first chunk of 16 tokens gets blocks now.
/// let part = Part { allocate_tokens: Some(16), ..Part::WHOLE };
/// let admission = manager.admit_with("a", prompt, &AdmitOptions { part, ..AdmitOptions::default() })?;
/// assert_eq!(admission.block_ids.len(), 4);
/// manager.commit("a", 16)?;
/// assert_eq!(manager.extend("a", 32)?.len(), 4); // the next chunk
/// # Ok::<(), kvpool::ManagerError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Part {
    /// Number of tokens, after the cached and external tokens, for which blocks are allocated now. This
    /// is the first chunk of a chunked prefill. `None` means all tokens.
    pub allocate_tokens: Option<usize>,
    /// Number of leading tokens of the prompt whose KV a connector has. The connector loads the tokens
    /// among them that are not cached on the device: see [`crate::CacheManager::external_done`]. The
    /// number must be less than the length of the prompt, because the engine always computes the last
    /// token.
    pub external_tokens: usize,
    /// Whether to ignore cached content. The engine then computes every token, for instance to get log
    /// probabilities of the prompt. The computed blocks are registered as usual.
    pub compute_all: bool,
}

impl Part {
    /// The whole prompt, without external tokens.
    pub const WHOLE: Self = Self { allocate_tokens: None, external_tokens: 0, compute_all: false };
}

/// The block table that an admission would give to one KV-cache group, if there are several.
#[derive(Debug)]
pub(crate) struct StagedTable {
    /// The cached blocks, with the null block at positions that need no block. In a group with
    /// recurrent states, only the block with the state at the end of the hit. [`Staged::allocate`] adds
    /// the new blocks.
    pub(crate) blocks: Vec<BlockId>,
    pub(crate) new_blocks: usize,
    /// The positions before the null blocks for which new blocks are allocated. These are for attention
    /// sinks (the first tokens of a prompt, which every token reads) that a connector loads.
    holes: Range<usize>,
    /// The cached block with the recurrent state at the end of the hit. The request gets a copy of it.
    pub(crate) source: Option<BlockId>,
    /// Whether the request gets a copy of the last cached block, if there is one, because it writes to
    /// this block. The block contains a recurrent state, or the hit ends inside of it.
    copies: bool,
}

/// The result of looking up a prompt for an admission: its cached blocks, and the number of blocks to
/// allocate.
#[doc(hidden)]
#[derive(Debug)]
pub struct Staged {
    /// The matched blocks, in a model without groups. [`Self::allocate`] appends the new blocks, which
    /// completes the block table.
    pub(crate) found: PrefixMatch,
    /// One table per KV-cache group. Empty in a model without groups.
    pub(crate) tables: Vec<StagedTable>,
    /// Number of matched blocks in the first group.
    pub cached: usize,
    /// Number of leading tokens of the prompt whose KV is cached.
    pub cached_tokens: usize,
    /// Number of tokens that a hit could have if only the groups of full attention limited it.
    pub(crate) full_tokens: usize,
    /// For each group, the number of tokens that a hit could have if only this group limited it. Empty
    /// if the caller did not ask for these numbers.
    pub(crate) reach: Vec<Tokens>,
    /// Number of blocks to allocate, in all groups.
    pub(crate) new_blocks: usize,
    /// Number of leading tokens whose KV is cached or loaded by a connector.
    pub(crate) ready_tokens: usize,
    /// Number of tokens that have room in the tables after the admission.
    pub(crate) covered_tokens: usize,
    /// Number of tokens, after the cached and external tokens, for which blocks could be allocated now.
    pub(crate) fitting_tokens: usize,
    tokens: usize,
    part: Part,
    room: Room,
}

/// Number of blocks that an admission could allocate after it has acquired its matched blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// The number of blocks that can be allocated in addition to the matched blocks.
    Left(usize),
    /// The matched blocks alone take more blocks than are available. The field is the number of
    /// available blocks.
    Short(usize),
}

impl Room {
    /// Returns the number of blocks that remain to be allocated after a match. `available` blocks are
    /// available before it. The match takes `idle` blocks that have no references, and `reserve` blocks
    /// have to remain available.
    pub(crate) const fn behind(idle: usize, available: usize, reserve: usize) -> Self {
        match available.checked_sub(idle) {
            Some(left) => Self::Left(left.saturating_sub(reserve)),
            None => Self::Short(available),
        }
    }

    const fn holds(self, blocks: usize) -> bool {
        matches!(self, Self::Left(left) if blocks <= left)
    }
}

struct Search<'a, R> {
    pool: &'a BlockPool,
    prompt: &'a HashCursor,
    part: Part,
    room: R,
}

impl<R: Fn(&[BlockId]) -> Room> Search<'_, R> {
    /// Returns two numbers for a hit of `cached` tokens: of tokens whose KV is cached or external, and
    /// of tokens that get blocks now.
    fn ready_and_covered(&self, cached: usize) -> (usize, usize) {
        let (tokens, part) = (self.prompt.num_tokens(), self.part);
        let ready = part.external_tokens.min(tokens).max(cached);
        (ready, part.allocate_tokens.map_or(tokens, |n| ready.saturating_add(n).min(tokens)))
    }

    fn within(&self, groups: Option<&Groups>, limit: usize) -> Result<Staged, PoolError> {
        if let Some(groups) = groups {
            return self.within_groups(groups, limit);
        }
        let (size, tokens) = (self.pool.block_size(), self.prompt.num_tokens());
        let found = self.pool.find_prefix(self.prompt.chain(), 0, limit / size)?;
        let cached = found.blocks.len();
        let (room, cached_tokens) = ((self.room)(&found.blocks), cached * size);
        let (ready_tokens, covered_tokens) = self.ready_and_covered(cached_tokens);
        let fitting = match room {
            Room::Left(left) => ((cached + left) * size).saturating_sub(ready_tokens),
            Room::Short(_) => 0,
        };
        Ok(Staged {
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
            tokens,
            part: self.part,
            room,
        })
    }

    /// Does the work of [`Self::within`] for models with several groups.
    fn within_groups(&self, groups: &Groups, limit: usize) -> Result<Staged, PoolError> {
        let (specs, tokens) = (groups.specs(), self.prompt.num_tokens());
        let hit = self.pool.find_groups(groups, self.prompt.chain(), Tokens(limit))?;
        let GroupHit { tokens: Tokens(cached_tokens), mut tables, full_tokens, .. } = hit;
        let (ready_tokens, covered_tokens) = self.ready_and_covered(cached_tokens);
        let ready = Tokens(ready_tokens);
        for (spec, table) in specs.iter().zip(&mut tables) {
            match Layout::of(spec.kind) {
                Layout::Positions => {
                    // A connector also loads only the KV that the tokens after its load read. Other
                    // positions get the null block.
                    let (Blocks(first), Blocks(end)) = spec.given_up(ready, ready);
                    if first < end {
                        table.resize(table.len().max(end), NULL_BLOCK);
                        table[first..end].fill(NULL_BLOCK);
                    }
                }
                // The connector loads the state after its last token, so no cached state is needed.
                Layout::State if ready_tokens > cached_tokens => table.clear(),
                Layout::State => table.retain(|block| !block.is_null()),
                Layout::Encoder => {}
            }
        }
        let matched: Vec<_> = tables.iter().flatten().copied().filter(|block| !block.is_null()).collect();
        let room = (self.room)(&matched);
        // For each table: the number of entries that need no new block, and the positions of new blocks
        // before the null blocks.
        let entries = |(spec, table): (&GroupSpec, &Vec<BlockId>)| {
            let Blocks(of_hit) = spec.full_blocks(Tokens(cached_tokens));
            let (Blocks(first), Blocks(end)) = spec.given_up(ready, ready);
            let gap = first < end;
            let holes = if spec.is_cached() && gap { of_hit.min(first)..first } else { 0..0 };
            (of_hit.max(if gap { end } else { 0 }).min(table.len()), holes)
        };
        let entries: Vec<_> = specs.iter().zip(&tables).map(entries).collect();
        // Returns the number of new blocks that a group takes, besides its match, to cover `tokens`
        // tokens.
        let new_of = |group: usize, tokens: usize| match Layout::of(specs[group].kind) {
            Layout::Positions => {
                let (whole, ref holes) = entries[group];
                let behind = specs[group].covering(Tokens(tokens)).0.saturating_sub(whole);
                behind.saturating_add(holes.len())
            }
            Layout::State => 1,
            Layout::Encoder => 0,
        };
        let new_in_all =
            |tokens| (0..specs.len()).fold(0_usize, |sum, group| sum.saturating_add(new_of(group, tokens)));
        // The number of blocks never falls when the number of tokens grows, so a binary search finds
        // the largest number that fits.
        let (mut fitting_tokens, mut too_many) = (0, tokens - ready_tokens + 1);
        while fitting_tokens + 1 < too_many {
            let middle = fitting_tokens.midpoint(too_many);
            let fits = room.holds(new_in_all(ready_tokens + middle));
            *(if fits { &mut fitting_tokens } else { &mut too_many }) = middle;
        }
        let new_blocks = new_in_all(covered_tokens);
        let new: Vec<_> = (0..specs.len()).map(|group| new_of(group, covered_tokens)).collect();
        let staged = tables.into_iter().zip(specs).zip(entries).zip(new);
        let staged = staged.map(|(((blocks, spec), (whole, holes)), new_blocks)| {
            let is_state = spec.kind == GroupKind::State;
            let shares = Layout::of(spec.kind) == Layout::Positions && blocks.len() > whole;
            let source = blocks.first().copied().filter(|_| is_state);
            StagedTable { blocks, new_blocks, holes, source, copies: shares || is_state }
        });
        let asked = limit / specs[0].block_tokens;
        Ok(Staged {
            tables: staged.collect(),
            found: PrefixMatch { asked, ..PrefixMatch::default() },
            cached: cached_tokens / specs[0].block_tokens,
            cached_tokens,
            full_tokens: full_tokens.0,
            reach: Vec::new(),
            new_blocks,
            ready_tokens,
            covered_tokens,
            fitting_tokens,
            tokens,
            part: self.part,
            room,
        })
    }

    /// Returns the longest hit, shorter than `longest`, with which the whole admission fits the
    /// available blocks. If no hit allows this, returns the longest hit with which at least one more
    /// token gets a block, or else `longest`. Without this, cached content could make an admission fail
    /// that succeeds with an empty cache.
    fn shorter(&self, groups: Option<&Groups>, longest: Staged) -> Result<Staged, PoolError> {
        let whole = groups.filter(|groups| groups.interior_units() > 0).map(Groups::in_whole_blocks);
        let whole = whole.and_then(Result::ok);
        let groups = whole.as_ref().or(groups);
        if whole.is_some() {
            let found = self.within(groups, longest.cached_tokens)?;
            if found.fits() {
                return Ok(found);
            }
        }
        if let Some(found) = self.longest_where(groups, longest.cached_tokens, Staged::fits)? {
            return Ok(found);
        }
        if longest.fitting_tokens > 0 {
            return Ok(longest);
        }
        let found = self.longest_where(groups, longest.cached_tokens, |hit| hit.fitting_tokens > 0)?;
        Ok(found.unwrap_or(longest))
    }

    /// Returns the longest hit of fewer than `longest` tokens that `fits` accepts. O(log n) lookups.
    ///
    /// The hit that ends with the external tokens takes the fewest blocks, so the search starts there.
    /// The reasons: external tokens need blocks whether they are hit or loaded, so up to their end a
    /// longer hit takes no more blocks, except for copies of recurrent states. A hit that ends after
    /// them also takes blocks for its tokens, and the first chunk then begins after the hit.
    fn longest_where(
        &self,
        groups: Option<&Groups>,
        longest: usize,
        fits: impl Fn(&Staged) -> bool,
    ) -> Result<Option<Staged>, PoolError> {
        // The following lengths are counted in steps of `step` tokens, because two hits differ by a
        // multiple of `step`.
        let step = groups.map_or(self.pool.block_size(), |groups| groups.alignment().0);
        let (external, most) = (self.part.external_tokens, longest);
        let longest = most.div_ceil(step);
        let mut starts = vec![external.div_ceil(step), external / step, 0];
        starts.iter_mut().for_each(|start| *start = longest.min(*start));
        starts.dedup();
        let mut first = None;
        for start in starts {
            let found = self.within(groups, (start * step).min(most))?;
            if fits(&found) {
                first = Some((start, found));
                break;
            }
        }
        let Some((mut fitting, mut best)) = first else { return Ok(None) };
        // Binary search: `fits` accepts a hit of `fitting` steps, and rejects a hit of `too_many`
        // steps.
        let mut too_many = longest;
        while fitting + 1 < too_many {
            let middle = fitting.midpoint(too_many);
            let found = self.within(groups, middle * step)?;
            if !fits(&found) {
                too_many = found.cached_tokens.div_ceil(step);
                continue;
            }
            fitting = middle;
            best = if found.cached_tokens > best.cached_tokens { found } else { best };
        }
        Ok(Some(best))
    }
}

impl Staged {
    /// Finds the cached blocks of a prompt without its last token. `room` returns the number of blocks
    /// that can be allocated after a match. If the longest match leaves too few blocks for the rest of
    /// the prompt, uses a shorter one. Changes nothing. O(blocks), and O(blocks log blocks) if a
    /// shorter match is used.
    pub(crate) fn find(
        pool: &BlockPool,
        groups: Option<&Groups>,
        prompt: &HashCursor,
        part: Part,
        room: impl Fn(&[BlockId]) -> Room,
    ) -> Result<Self, PoolError> {
        let search = Search { pool, prompt, part, room };
        let longest = search.within(groups, limit(prompt.num_tokens(), part))?;
        if longest.fits() || longest.cached_tokens == 0 {
            return Ok(longest);
        }
        let asked = longest.found.asked;
        let mut found = search.shorter(groups, longest)?;
        found.found.asked = asked;
        Ok(found)
    }

    /// Finds the longest match of a prompt, even if too few blocks are available for the rest of the
    /// prompt.
    pub(crate) fn longest(
        pool: &BlockPool,
        groups: Option<&Groups>,
        prompt: &HashCursor,
    ) -> Result<Self, PoolError> {
        let search = Search { pool, prompt, part: Part::WHOLE, room: |_: &[BlockId]| Room::Left(0) };
        search.within(groups, limit(prompt.num_tokens(), Part::WHOLE))
    }

    /// Returns the largest number of tokens that a hit of this prompt can have.
    pub(crate) const fn limit(&self) -> usize {
        limit(self.tokens, self.part)
    }

    const fn fits(&self) -> bool {
        self.room.holds(self.new_blocks)
    }

    /// Whether the prompt, in chunks of `chunk` tokens, fits the pool if no other request holds blocks.
    fn fits_alone(&self, pool: &BlockPool, groups: Option<&Groups>, chunk: usize) -> bool {
        let start = Tokens(self.part.external_tokens);
        let peak = match groups {
            Some(groups) => groups.peak_blocks(Tokens(self.tokens), start, chunk),
            None => self.tokens.div_ceil(pool.block_size()),
        };
        peak <= pool.num_usable()
    }

    /// Whether the prompt, in the chunks of its [`Part`], can ever be computed in this pool. The answer
    /// does not depend on cached or held blocks.
    pub(crate) fn can_ever_fit(&self, pool: &BlockPool, groups: Option<&Groups>) -> bool {
        self.fits_alone(pool, groups, self.part.allocate_tokens.unwrap_or(usize::MAX))
    }

    /// Returns the error if too few blocks are available for the admission, or `None` if they are
    /// enough.
    pub(crate) fn refusal(&self, pool: &BlockPool, groups: Option<&Groups>) -> Option<Refusal> {
        if self.fits() {
            return None;
        }
        let (needed, left) = match self.room {
            Room::Left(left) => (self.new_blocks, left),
            Room::Short(available) => {
                let idle = self.matched().filter(|&block| pool.ref_count(block) == Some(0)).count();
                (idle.saturating_add(self.new_blocks), available)
            }
        };
        let can_ever_fit = self.can_ever_fit(pool, groups);
        let mut refusal = Refusal::new(needed, left, pool.num_fenced(), can_ever_fit);
        refusal.fits_in_chunks = can_ever_fit || self.fits_alone(pool, groups, 1);
        refusal.fitting_tokens = self.fitting_tokens;
        Some(refusal)
    }

    pub(crate) fn matched(&self) -> impl Iterator<Item = BlockId> + '_ {
        let grouped = self.tables.iter().flat_map(|table| &table.blocks);
        self.found.blocks.iter().chain(grouped).copied().filter(|block| !block.is_null())
    }

    /// Acquires the matched blocks. The caller has to do this before it allocates any block, because an
    /// allocation could evict them (vLLM #10507).
    pub(crate) fn acquire(&self, pool: &mut BlockPool, prompt: &HashCursor) -> Result<(), PoolError> {
        if self.tables.is_empty() {
            return pool.acquire_found(&self.found, prompt.chain().hashes());
        }
        let blocks: Vec<_> = self.matched().collect();
        let asked = prompt.chain().hashes().get(..self.limit() / pool.block_size()).unwrap_or(&[]);
        pool.acquire_in_groups(&blocks, self.cached, self.cached_tokens, &self.found, asked)
    }

    /// Allocates device blocks for the tokens after the match. The matched blocks are already acquired.
    /// Plans copies of those matched blocks that the request writes to.
    pub(crate) fn allocate(&mut self, tiers: &mut Tiers) -> Result<(), TierError> {
        if self.tables.is_empty() {
            self.found.blocks.reserve_exact(self.new_blocks);
            return Ok(tiers.device_mut().allocate_into(self.new_blocks, &mut self.found.blocks)?);
        }
        for StagedTable { blocks, new_blocks, holes, copies, .. } in &mut self.tables {
            let copied = match blocks.last_mut().filter(|_| *copies) {
                Some(shared) => {
                    *shared = tiers.copy_on_write(0, *shared)?;
                    1
                }
                None => 0,
            };
            let (first, behind) = (blocks.len(), new_blocks.saturating_sub(copied));
            tiers.device_mut().allocate_into(behind, blocks)?;
            if holes.start < holes.end {
                let sinks: Vec<_> = blocks.drain(first..first + holes.len()).collect();
                blocks[holes.clone()].copy_from_slice(&sinks);
            }
        }
        Ok(())
    }
}

/// Returns the largest number of tokens that a hit may have. The engine always computes the last token
/// of the prompt.
const fn limit(tokens: usize, part: Part) -> usize {
    if part.compute_all { 0 } else { tokens.saturating_sub(1) }
}
