//! `Group`: the decisions of vLLM's manager of one KV-cache group.
//!
//! The tables and counts of requests are the caller's. A call reads a [`Table`] and returns the changes: the
//! blocks that no token reads any more, the number of missing blocks, the move of a state, the blocks that
//! can be cached. `None` means that the case is out of the ordinary: vLLM's own manager has to take it.
//!
//! Costs: a step that needs nothing reads the length of the table and at most one block.

use std::ops::Range;

use kvpool::groups::{GroupKind, GroupSpec, Tokens};

use crate::error::VllmError;
use crate::groups::{Arrival, Growth, Step};
use crate::key::Key;
use crate::lookup::Reads;
use crate::pool::Pool;
use crate::retain::{Finals, Prompt, Retains, Retention};
use crate::states::{Move, States};

/// A block table of the caller's, and the pool that has its blocks.
pub trait Table {
    /// Number of its blocks.
    fn len(&self) -> usize;

    /// Whether it has no blocks.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The block at a position; `None` if it is not a block of the pool.
    fn block(&self, at: usize) -> Option<u32>;

    /// Looks at the pool.
    fn look<R>(&self, look: impl FnOnce(&Pool) -> R) -> R;

    /// The key of the block at a position, and the tokens it is cached for, if the block has a key and is not
    /// the null block.
    fn hash(&self, at: usize) -> Option<(Key, Option<u32>)> {
        let block = self.block(at).filter(|&block| block != 0)?;
        self.look(|pool| pool.keys().hash_of(block))
    }
}

/// One KV-cache group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its kind and the tokens of a block.
    pub spec: GroupSpec,
    /// Its number.
    pub number: u32,
    /// Digests per block.
    pub scale: usize,
    /// Tokens before those that are read which are kept as well.
    pub retained: usize,
    /// Slots beyond those of the step.
    pub more_slots: usize,
    /// The most blocks that a whole request takes, since it gives some up on the way.
    pub most: Option<usize>,
    /// Whether its full blocks are cached.
    pub is_cached: bool,
    /// Up to which token blocks are cached.
    pub finals: Finals,
    /// Which of those blocks are cached.
    pub retention: Retention,
    /// The group caches the block in which the prompt, less this number of tokens, ends with a digest.
    pub prompt_tail: Option<usize>,
    /// The rules of aligned recurrent states, if the group has them.
    pub states: Option<States>,
}

/// The notes of vLLM's manager of aligned states about a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// Leading blocks that were given up.
    pub retired: usize,
    /// The position of the state before.
    pub last: Option<usize>,
}

/// The changes of a step to the table of a running request. Each block has its position with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Blocks to free first, in this order.
    pub dead: Vec<(usize, u32)>,
    /// For states: the number of leading blocks given up so far, if it changes.
    pub retired: Option<usize>,
    /// For states: the block of the state before, which is freed next.
    pub before: Option<(usize, u32)>,
    /// Blocks to append.
    pub missing: usize,
    /// For states: how the table grows before those are appended.
    pub moves: Option<Move>,
}

impl Change {
    /// Whether nothing changes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.dead.is_empty()
            && self.retired.is_none()
            && self.before.is_none()
            && self.missing == 0
            && self.moves.is_none()
    }
}

/// The needs of a request that arrives, in one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Leading null blocks of its table: no token reads the hits there.
    pub skipped: usize,
    /// Blocks to append after those and its hits.
    pub missing: usize,
    /// Blocks that all of its tokens need, if all of them must find room.
    pub whole: usize,
}

/// The part of a table that can be cached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caching {
    /// Blocks that are cached.
    pub known: usize,
    /// Blocks that final tokens fill.
    pub full: usize,
    /// Final tokens.
    pub finals: usize,
    /// Whether the block in which the prompt ends is to be cached for it.
    pub tail: bool,
}

impl Caching {
    /// Whether there is something to cache.
    #[must_use]
    pub const fn asks(&self) -> bool {
        self.full > self.known || self.tail
    }
}

/// How the block in which a prompt ends is cached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Nothing: there is no block.
    Absent,
    /// The block is cached under this key already.
    Cached(Key),
    /// vLLM's manager caches it.
    Partial,
}

impl Group {
    /// A group of a kind (`full`, `sliding`, `chunked` or `state`) whose window or chunk has `span` tokens.
    /// By default it caches its full blocks, as the only group of its model.
    ///
    /// # Errors
    /// [`VllmError::Setting`] for an unknown kind, a size of 0, or a block size that is no multiple of
    /// `scale`.
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

    /// The group with hits that end at multiples of `alignment`. It caches to multiples of `ends` (`None` for
    /// the only group of a model), less the last `recomputed` tokens. `drops` says whether heads compute the
    /// end of a hit again.
    ///
    /// # Errors
    /// [`VllmError::Setting`] for 0.
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

    /// Tokens of a digest.
    #[must_use]
    pub const fn unit(&self) -> usize {
        self.spec.block_tokens / self.scale
    }

    /// Whether it caches where prompts end.
    #[must_use]
    pub const fn looks_at_prompts(&self) -> bool {
        self.prompt_tail.is_some() || self.states.is_some()
    }

    /// Plans a step of a running request. A group of states needs `noted`: `None` if the state is shared,
    /// exported or absent.
    #[must_use]
    pub fn step(&self, table: &impl Table, step: &Step, noted: Option<Noted>) -> Option<Change> {
        if table.is_empty() {
            return None; // the request does not run yet
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

    /// Plans the admission of a request, with `hits` blocks of its hit of [`Step::computed`] tokens.
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

    /// How the table of a request that arrives grows before missing blocks are appended, with `hits` blocks
    /// in it.
    #[must_use]
    pub fn first_move(&self, step: &Step, hits: usize) -> Option<Move> {
        self.states.as_ref()?.first_move(&self.spec, hits, step.main)
    }

    /// Finds the part of a table that can be cached once the KV of `tokens` tokens is computed. `known`
    /// blocks are cached.
    #[must_use]
    pub fn caching(&self, prompt: &Prompt, table: &impl Table, known: usize, tokens: usize) -> Caching {
        let finals = if self.is_cached { self.finals.of(tokens) } else { 0 };
        let full = self.spec.full_blocks(Tokens(finals)).0;
        let caching = Caching { known, full, finals, tail: false };
        Caching { tail: finals > 0 && self.has_tail(prompt, table, &caching), ..caching }
    }

    /// Whether the prompt ends inside a block that is to be cached for that, or with a state.
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
        // This step appends the block, or gives it the key of all its tokens.
        if at >= table.len() || (caching.known..caching.full).contains(&at) {
            return true;
        }
        table.hash(at).and_then(|(_, tokens)| tokens).is_none_or(|tokens| (tokens as usize) < end)
    }

    /// Chooses the blocks that are worth a place in the index.
    #[must_use]
    pub fn kept(&self, blocks: Range<usize>, retains: &Retains, prompt: &Prompt) -> Vec<bool> {
        if matches!(self.retention.reads, Reads::Full | Reads::Chunk(_)) {
            return vec![true; blocks.len()];
        }
        let before = (retains.by_series_33 && self.finals.drops).then_some(self.spec.block_tokens);
        let boundaries = retains.boundaries(prompt, before);
        blocks.map(|at| self.retention.keeps(at, prompt.interval, &boundaries)).collect()
    }

    /// How the block in which the prompt ends is cached, if [`Caching::tail`] asks for it.
    #[must_use]
    pub fn tail(&self, table: &impl Table, finals: usize) -> Tail {
        if self.states.is_none() || !finals.is_multiple_of(self.spec.block_tokens) {
            return Tail::Partial;
        }
        // It ends with a block: most often one that is cached already.
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

/// A position with its block, unless that is the null block or not of the pool.
fn held(table: &impl Table, at: usize) -> Option<(usize, u32)> {
    table.block(at).filter(|&block| block != 0).map(|block| (at, block))
}

/// Whether no other request has the blocks of drafts, and no key leads to them.
fn are_writable(table: &impl Table, drafts: Range<usize>) -> bool {
    let is_own =
        |(_, block)| table.look(|pool| pool.ref_count(block) == 1 && pool.keys().hash_of(block).is_none());
    drafts.into_iter().all(|at| held(table, at).is_some_and(is_own))
}
