//! `Group`: makes the decisions of vLLM's manager for one KV-cache group.
//!
//! The caller owns the block tables of requests. A call reads a [`Table`] and returns the changes that
//! the caller has to make: which blocks no token reads any more, how many blocks to append, how a
//! recurrent state moves, and which blocks to cache. `None` means an unusual case, which vLLM's own
//! manager has to handle.
//!
//! Costs: a step without changes reads the length of the table and at most one block.

use std::ops::Range;

use kvpool::groups::{GroupKind, GroupSpec, Tokens};

use crate::error::VllmError;
use crate::groups::{Arrival, Growth, Step};
use crate::key::Key;
use crate::lookup::Reads;
use crate::pool::Pool;
use crate::retain::{Finals, Prompt, Retains, Retention};
use crate::states::{Move, States};

/// Access to the block table of one request, which the caller owns, and to the pool of its blocks.
pub trait Table {
    /// Number of blocks in the table.
    fn len(&self) -> usize;

    /// Whether the table has no blocks.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the block at position `at` of the table. `None` if the block does not belong to the
    /// pool.
    fn block(&self, at: usize) -> Option<u32>;

    /// Calls the function `look` with the pool of the blocks, and returns its result.
    fn look<R>(&self, look: impl FnOnce(&Pool) -> R) -> R;

    /// Returns the key of the block at a position, and the number of tokens that the key covers. `None`
    /// for a block without a key, and for the null block.
    fn hash(&self, at: usize) -> Option<(Key, Option<u32>)> {
        let block = self.block(at).filter(|&block| block != 0)?;
        self.look(|pool| pool.keys().hash_of(block))
    }
}

/// One KV-cache group, with the rules of vLLM's manager for its kind.
///
/// ```
/// use kvpool_vllm::Group;
/// // Sliding windows of 128 tokens, in blocks of 16 tokens with one digest each.
/// let group = Group::new("sliding", 128, 16, 1)?;
/// assert_eq!(group.unit(), 16);
/// # Ok::<(), kvpool_vllm::VllmError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Kind of the group (such as sliding window), and number of tokens per block.
    pub spec: GroupSpec,
    /// vLLM's number of the group, which is part of its blocks' keys.
    pub number: u32,
    /// Number of digests per block.
    pub scale: usize,
    /// Number of tokens that the group keeps although its layers do not read them any more. They
    /// directly precede the tokens that layers read.
    pub retained: usize,
    /// Number of slots that the group allocates beyond those of each step.
    pub more_slots: usize,
    /// Largest number of blocks that one request uses at one time. It is lower than the request's total
    /// number of blocks, because the request frees blocks while it runs. `None` means no limit.
    pub most: Option<usize>,
    /// Whether full blocks of the group are cached.
    pub is_cached: bool,
    /// Computes up to which token the blocks of a request may be cached.
    pub finals: Finals,
    /// Selects, among the blocks that may be cached, those that the group caches.
    pub retention: Retention,
    /// If set, the group also caches the block in which a prompt without its last `prompt_tail` tokens
    /// ends, even if this block is not full. A digest has to exist for this end.
    pub prompt_tail: Option<usize>,
    /// The rules for aligned recurrent states. `None` for groups without such states.
    pub states: Option<States>,
}

/// The data that vLLM's manager of aligned recurrent states stores for each request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// Number of blocks at the start of the table that were already freed.
    pub retired: usize,
    /// Position in the table of the block that held the previous state.
    pub last: Option<usize>,
}

/// The changes that a step makes to the block table of a running request. Each block is listed with its
/// position in the table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Blocks that no token reads any more. They are freed in this order, before the block of the
    /// previous state.
    pub dead: Vec<(usize, u32)>,
    /// For recurrent states: the new value of [`Noted::retired`], if it changes.
    pub retired: Option<usize>,
    /// For recurrent states: the block of the previous state, which is freed after `dead`.
    pub before: Option<(usize, u32)>,
    /// Number of blocks that the caller has to append to the table.
    pub missing: usize,
    /// For recurrent states: how the table changes before the missing blocks are appended.
    pub moves: Option<Move>,
}

impl Change {
    /// Returns whether the step changes nothing in the table.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.dead.is_empty()
            && self.retired.is_none()
            && self.before.is_none()
            && self.missing == 0
            && self.moves.is_none()
    }
}

/// The blocks that an arriving request needs in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Number of null blocks at the start of its table. They replace blocks of the hit that no token
    /// reads.
    pub skipped: usize,
    /// Number of blocks to append after the null blocks and the blocks of the hit.
    pub missing: usize,
    /// Number of blocks to append for all tokens of the request. It is 0 unless the pool must have room
    /// for all of them now.
    pub whole: usize,
}

/// Which blocks of a table can be cached now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caching {
    /// Number of blocks at the start of the table that are already cached.
    pub known: usize,
    /// Number of blocks that contain only final tokens, which are tokens that will not be computed
    /// again.
    pub full: usize,
    /// Number of final tokens (tokens that will not be computed again).
    pub finals: usize,
    /// Whether to cache also the block in which the prompt ends, although it is not full.
    pub tail: bool,
}

impl Caching {
    /// Returns whether there is any block to cache.
    #[must_use]
    pub const fn asks(&self) -> bool {
        self.full > self.known || self.tail
    }
}

/// How the caller caches the block in which a prompt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// There is no block to cache.
    Absent,
    /// The block is already cached under this key, so nothing has to be done.
    Cached(Key),
    /// vLLM's own manager has to cache the block.
    Partial,
}

impl Group {
    /// Creates a group. `kind` is `full`, `sliding`, `chunked` or `state`. `span` is the number of
    /// tokens of its window or chunk. `scale` is the number of digests per block. By default the group
    /// caches full blocks and is the only group of its model.
    ///
    /// # Errors
    /// [`VllmError::Setting`] for an unknown kind, a size of 0, or a block size that is not a multiple
    /// of `scale`.
    pub fn new(kind: &str, span: usize, block_tokens: usize, scale: usize) -> Result<Self, VllmError> {
        let kind =
            GroupKind::named(kind, span).filter(|kind| *kind != GroupKind::Cross).ok_or_else(|| {
                VllmError::setting("kind", &format!("{kind:?}"), "full, sliding, chunked or state")
            })?;
        at_least_1("block_size", block_tokens)?;
        at_least_1("scale", scale)?;
        if !block_tokens.is_multiple_of(scale) {
            let expected = format!("a multiple of scale, {scale}");
            return Err(VllmError::setting("block_size", &block_tokens, expected));
        }
        let reads = match kind {
            GroupKind::Sliding { window } => Reads::Window(window),
            GroupKind::Chunked { chunk } => Reads::Chunk(chunk),
            GroupKind::State => Reads::State,
            _ => Reads::Full,
        };
        Ok(Self {
            spec: GroupSpec::new(kind, block_tokens),
            number: 0,
            scale,
            retained: 0,
            more_slots: 0,
            most: None,
            is_cached: true,
            finals: Finals { alignment: None, recomputed: 0, drops: false, block_tokens },
            retention: Retention { reads, block_tokens, alignment: block_tokens, drops: false },
            prompt_tail: None,
            states: None,
        })
    }

    /// Sets which tokens the group caches. Hits end at multiples of `alignment` tokens. The group
    /// caches tokens up to a multiple of `ends` (`None` for the only group of a model), but never the
    /// last `recomputed` tokens. `drops` is true if draft heads (EAGLE, MTP) have to recompute the end
    /// of a hit.
    ///
    /// # Errors
    /// [`VllmError::Setting`] if `alignment` or `ends` is 0.
    pub fn caching_to(
        mut self,
        alignment: usize,
        ends: Option<usize>,
        recomputed: usize,
        drops: bool,
    ) -> Result<Self, VllmError> {
        at_least_1("alignment", alignment)?;
        at_least_1("ends", ends.unwrap_or(1))?;
        self.finals = Finals { alignment: ends, recomputed, drops, ..self.finals };
        self.retention = Retention { alignment, drops, ..self.retention };
        Ok(self)
    }

    /// Number of tokens that one digest covers.
    #[must_use]
    pub const fn unit(&self) -> usize {
        self.spec.block_tokens / self.scale
    }

    /// Whether the group also caches the blocks in which prompts end.
    #[must_use]
    pub const fn looks_at_prompts(&self) -> bool {
        self.prompt_tail.is_some() || self.states.is_some()
    }

    /// Whether a step of a running request changes the group only if it needs a new block or completes
    /// one ([`Self::has_slots`], [`Self::completes`]). Other groups also free blocks, or cache blocks
    /// that are not full.
    #[must_use]
    pub const fn is_plain(&self) -> bool {
        self.spec.kind.is_full() && !self.looks_at_prompts()
    }

    /// Whether a table of `blocks` blocks has the slots of a step ([`Step::slots`]).
    #[must_use]
    pub const fn has_slots(&self, blocks: usize, slots: usize) -> bool {
        blocks > 0 && slots.saturating_add(self.more_slots) <= blocks.saturating_mul(self.spec.block_tokens)
    }

    /// Whether a block after the first `known` can be full and cached after the KV of `tokens` tokens is
    /// computed.
    #[must_use]
    pub const fn completes(&self, known: usize, tokens: usize) -> bool {
        self.is_cached && self.finals.of(tokens) / self.spec.block_tokens > known
    }

    /// Plans a step of a running request. For a group of recurrent states, `noted` is what vLLM's
    /// manager stores for the request. It is `None` if the state is shared, exported or absent.
    #[must_use]
    pub fn step(&self, table: &impl Table, step: &Step, noted: Option<Noted>) -> Option<Change> {
        if table.is_empty() {
            return None; // the request is not running yet
        }
        let slots = step.slots.saturating_add(self.more_slots);
        let growth = Growth::of(&self.spec, Step { slots, ..*step }, table.len(), self.retained);
        let Some(states) = &self.states else {
            if growth.dead == 0 {
                return Some(Change { missing: growth.missing, ..Change::default() });
            }
            let dead = (0..growth.dead).rev().map_while(|at| held(table, at)).collect();
            return Some(Change { dead, missing: growth.missing, ..Change::default() });
        };
        let noted = noted?;
        let moves = states.next_move(&self.spec, table.len(), step.main).ok()?;
        if moves.is_some_and(|moves| !are_writable(table, moves.drafts.0..moves.drafts.1)) {
            return None;
        }
        let retires = noted.retired..growth.dead;
        Some(Change {
            dead: retires.clone().rev().filter_map(|at| held(table, at)).collect(),
            retired: (!retires.is_empty()).then_some(growth.dead),
            before: noted
                .last
                .filter(|last| states.is_past(&self.spec, *last, step.settled) && !retires.contains(last))
                .and_then(|last| held(table, last)),
            missing: usize::from(moves.is_some()),
            moves,
        })
    }

    /// Plans the admission of a request whose hit has [`Step::computed`] tokens. `hits` is the group's
    /// number of blocks of this hit.
    #[must_use]
    pub fn arrival(&self, step: &Step, hits: usize) -> Option<Arrived> {
        if hits > 0 && !step.computed.is_multiple_of(self.spec.block_tokens) {
            return None; // the shared last block would have to be copied
        }
        let of = |slots: usize, main: usize, most| match &self.states {
            Some(states) => states.arrival(&self.spec, step.computed, main, hits),
            None => {
                let slots = slots.saturating_add(self.more_slots);
                Arrival::of(&self.spec, step.computed, slots, hits, self.retained, most)
            }
        };
        let Arrival { skipped, missing } = of(step.slots, step.main, usize::MAX);
        let most = self.most.unwrap_or(usize::MAX);
        let whole = step.whole.map_or(0, |tokens| of(tokens, tokens, most).missing);
        Some(Arrived { skipped, missing, whole })
    }

    /// For recurrent states: returns how the table of an arriving request changes before the missing
    /// blocks are appended. The table has `hits` blocks.
    #[must_use]
    pub fn first_move(&self, step: &Step, hits: usize) -> Option<Move> {
        self.states.as_ref()?.first_move(&self.spec, hits, step.main)
    }

    /// Returns which blocks of a table can be cached when the KV of `tokens` tokens is computed.
    /// `known` is the number of blocks that are already cached.
    #[must_use]
    pub fn caching(&self, prompt: &Prompt, table: &impl Table, known: usize, tokens: usize) -> Caching {
        let finals = if self.is_cached { self.finals.of(tokens) } else { 0 };
        let full = self.spec.full_blocks(Tokens(finals)).0;
        let caching = Caching { known, full, finals, tail: false };
        Caching { tail: finals > 0 && self.has_tail(prompt, table, &caching), ..caching }
    }

    /// Whether the block in which the prompt ends should be cached although it is not full, or because
    /// a recurrent state ends there.
    fn has_tail(&self, prompt: &Prompt, table: &impl Table, caching: &Caching) -> bool {
        let (unit, finals) = (self.unit(), caching.finals);
        if let Some(states) = &self.states {
            let is_junction = states.junctions
                && finals == prompt.junction
                && prompt.computed < finals
                && finals <= prompt.tokens;
            return finals.is_multiple_of(unit)
                && (finals == states.tail(prompt.tokens, unit) || is_junction);
        }
        let Some(less) = self.prompt_tail else { return false };
        let end = (prompt.tokens.saturating_sub(less) / unit).min(prompt.digests) * unit;
        if end == 0 || end > finals || end.is_multiple_of(self.spec.block_tokens) {
            return false;
        }
        let at = self.spec.full_blocks(Tokens(end)).0;
        // In these cases this step appends the block in which the prompt ends, or caches it as a full
        // block.
        if at >= table.len() || (caching.known..caching.full).contains(&at) {
            return true;
        }
        table.hash(at).and_then(|(_, tokens)| tokens).is_none_or(|tokens| (tokens as usize) < end)
    }

    /// Returns for each of these blocks whether the group caches it, so that lookups can find it.
    #[must_use]
    pub fn kept(&self, blocks: Range<usize>, retains: &Retains, prompt: &Prompt) -> Vec<bool> {
        if matches!(self.retention.reads, Reads::Full | Reads::Chunk(_)) {
            return vec![true; blocks.len()];
        }
        let before = (retains.by_series_33 && self.finals.drops).then_some(self.spec.block_tokens);
        let boundaries = retains.boundaries(prompt, before);
        blocks.map(|at| self.retention.keeps(at, prompt.interval, &boundaries)).collect()
    }

    /// Returns how to cache the block in which the prompt ends. Call this if [`Caching::tail`] is set.
    #[must_use]
    pub fn tail(&self, table: &impl Table, finals: usize) -> Tail {
        if self.states.is_none() || !finals.is_multiple_of(self.spec.block_tokens) {
            return Tail::Partial;
        }
        // The prompt ends at the end of a block. Usually this block is already cached.
        let at = finals / self.spec.block_tokens - 1;
        if at >= table.len() || table.block(at) == Some(0) {
            return Tail::Absent;
        }
        match table.hash(at) {
            Some((key, Some(tokens))) if tokens as usize == finals => Tail::Cached(key),
            _ => Tail::Partial,
        }
    }
}

fn at_least_1(name: &'static str, value: usize) -> Result<(), VllmError> {
    if value == 0 { Err(VllmError::setting(name, &0, "at least 1")) } else { Ok(()) }
}

/// Returns a position and the block there. `None` for the null block, and for a block that does not
/// belong to the pool.
fn held(table: &impl Table, at: usize) -> Option<(usize, u32)> {
    table.block(at).filter(|&block| block != 0).map(|block| (at, block))
}

/// Whether the request may write into the blocks that hold the states of drafts: no other request holds
/// these blocks, and they have no key.
fn are_writable(table: &impl Table, drafts: Range<usize>) -> bool {
    let is_own =
        |(_, block)| table.look(|pool| pool.ref_count(block) == 1 && pool.keys().hash_of(block).is_none());
    drafts.into_iter().all(|at| held(table, at).is_some_and(is_own))
}
