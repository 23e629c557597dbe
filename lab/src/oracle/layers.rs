//! The engine of a hybrid model (full attention together with windows or states). Before it computes a
//! token, it reads every cell that the token needs in every group. Then it writes the cells of the
//! token.
//!
//! This module follows the definition of what each kind of layer reads, and does not copy the manager's
//! arithmetic. A cell contains the whole prefix up to its token. A block of keys and values has a cell
//! per token, and a block of a state has one cell. The engine runs ahead: it computes steps, and drafts
//! of the next step, before anything is committed.
//!
//! An engine must follow rules. For example, it must take a plan before it writes to the blocks of the
//! plan's copies. The laboratory draws only calls that follow these rules. If shrinking leads to a run
//! that breaks a rule, the engine stops reading, because its data has no meaning any more.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::model::reference::Kv;
use kvpool::groups::{GroupKind, GroupSpec, Keep};
use kvpool::{BlockId, CacheManager, NULL_BLOCK, Part, Place, RequestInfo, RequestState};

use super::memory::Memory;
use crate::Failure;
use crate::failure::{holds, same};
use crate::world::prompts::Prompts;
use crate::world::requests::{Requests, after, id};

/// The engine's progress in a request: what is computed, committed and drafted.
#[derive(Clone, Debug, Default)]
struct Engine {
    /// The tokens that a draft model proposed. Their KV and states are written.
    drafts: Vec<u32>,
    /// Number of tokens with written KV and states, whether committed or not.
    progress: usize,
    committed: usize,
    /// Number of slots in the request's block tables, which the engine may write.
    covered: usize,
    /// The version of the weights that compute the request's KV.
    weights: u64,
    /// For each append that had slots for drafts and whose tokens are not all committed yet: the number
    /// of the request's tokens at that append.
    drafting: Vec<usize>,
    /// Whether the request was truncated after an append that had slots for drafts.
    is_cut: bool,
    /// The first token that was computed or loaded for this request, for each group. It is 0 for a
    /// group that caches content.
    from: Vec<usize>,
}

impl Engine {
    /// Returns the number of tokens to commit if `computed` tokens are computed. If this number lies
    /// between two steps, the manager treats the tokens as accepted drafts of the first step. If it
    /// includes all tokens after a truncation, the manager assumes that the request has kept them.
    fn committable(&self, computed: usize, tokens: usize) -> usize {
        let oldest = self.drafting.first().copied().unwrap_or(computed);
        let all = tokens + usize::from(self.is_cut);
        if (oldest..all).contains(&computed) { oldest } else { computed }
    }

    fn commit(&mut self, computed: usize) {
        self.progress = self.progress.max(computed);
        self.committed = computed;
        self.drafting.retain(|&tokens| tokens > computed);
        self.is_cut &= !self.drafting.is_empty();
    }

    /// Records that the request's block tables now have `slots` token slots.
    fn grow(&mut self, tokens: usize, slots: usize) {
        self.covered = self.covered.max(slots);
        if slots > tokens {
            self.drafting.push(tokens);
        }
    }

    /// Rejects all drafts. The engine has to request slots for new drafts.
    fn forget_drafts(&mut self, tokens: usize) {
        self.drafts.clear();
        self.covered = self.covered.min(tokens);
    }
}

/// Returns whether the token at position `at` reads the token at position `read`, by the definition of
/// the group's kind of layer.
pub(crate) fn reads(spec: &GroupSpec, at: usize, read: usize) -> bool {
    match spec.kind {
        GroupKind::Full => true,
        GroupKind::Sliding { window } => read + window > at || read < spec.sink_tokens,
        GroupKind::Chunked { chunk } => read >= at / chunk * chunk,
        GroupKind::State => read + 1 == at,
        _ => false,
    }
}

const fn caches(spec: &GroupSpec) -> bool {
    !matches!(spec.keep, Keep::Nothing)
}

/// The state that a request must have after a connector has loaded its tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Number of tokens that the request has after the load: all up to the first one that was not
    /// loaded.
    pub(crate) tokens: usize,
    /// The state that the request must have after the load.
    pub(crate) state: RequestState,
}

pub(crate) fn tables(manager: &CacheManager, number: i64) -> Vec<Vec<BlockId>> {
    let table = |group| manager.group_table(&id(number), group).map(<[BlockId]>::to_vec).unwrap_or_default();
    (0..manager.num_groups()).map(table).collect()
}

/// The simulated engine of a hybrid model, and the layers that it computes.
#[derive(Clone, Debug)]
pub(crate) struct Layers {
    specs: Vec<GroupSpec>,
    engines: BTreeMap<i64, Engine>,
    /// Whether the next call breaks a rule for engines if the manager accepts it.
    breaks: bool,
    /// Whether a call has broken a rule for engines. Then the engine stops its checks.
    pub(crate) is_lost: bool,
}

impl Layers {
    pub(crate) fn new(specs: &[GroupSpec]) -> Self {
        Self { specs: specs.to_vec(), engines: BTreeMap::new(), breaks: false, is_lost: false }
    }

    fn has_states(&self) -> bool {
        self.specs.iter().any(|spec| spec.kind == GroupKind::State)
    }

    /// Returns the number of drafts for which a request's tables have slots, including entries for
    /// states.
    fn draft_slots(&self, manager: &CacheManager, number: i64, tokens: usize) -> usize {
        let tables = tables(manager, number);
        let states = self.specs.iter().zip(&tables).filter(|(spec, _)| spec.kind == GroupKind::State);
        let states = states.map(|(_, table)| table.len().saturating_sub(1)).min().unwrap_or(usize::MAX);
        let covered = self.engines.get(&number).map_or(0, |engine| engine.covered);
        states.min(covered.saturating_sub(tokens))
    }

    /// Returns the number of tokens that a request can commit: at most `asked`, if it has `tokens`
    /// tokens.
    pub(crate) fn committable(&self, number: i64, tokens: usize, asked: usize) -> usize {
        let Some(engine) = self.engines.get(&number) else { return asked };
        engine.committable(asked.min(tokens).min(engine.covered), tokens).max(engine.committed)
    }

    pub(crate) fn can_commit(
        &self,
        manager: &CacheManager,
        number: i64,
        (tokens, new): (usize, usize),
        computed: usize,
    ) -> bool {
        let Some(engine) = self.engines.get(&number) else { return false };
        let drafts = computed.saturating_sub(tokens);
        let known = computed.min(tokens);
        drafts <= new.min(self.draft_slots(manager, number, tokens))
            && (engine.committed..=engine.covered).contains(&computed)
            && engine.committable(known, tokens) == known
            && (computed <= engine.progress || !waits(manager, number))
    }

    /// Returns the minimum length to which a request can be truncated. States cannot be restored for
    /// shorter lengths.
    pub(crate) fn least_length(&self, number: i64) -> usize {
        let progress = self.engines.get(&number).map_or(0, |engine| engine.progress);
        if self.has_states() { progress } else { 0 }
    }

    /// Reads all cells that the token at a position needs, and writes the token's own cells. The state
    /// after a draft token has its own table entry.
    fn compute_token(
        &self,
        memory: &mut Memory,
        number: i64,
        tables: &[Vec<BlockId>],
        (tokens, known): (&[u32], usize),
        at: usize,
    ) -> Result<(), Failure> {
        let (Engine { weights, from, .. }, drafts) = (&self.engines[&number], (at + 1).saturating_sub(known));
        let kv = |upto: usize| Kv::of(*weights, &[], &tokens[..upto]);
        for (group, spec) in self.specs.iter().enumerate() {
            let (table, size) = (&tables[group], spec.block_tokens);
            let (block, slot) = match spec.kind {
                GroupKind::Cross => continue,
                GroupKind::State => (table.get(drafts), 0),
                _ => (table.get(at / size), at % size),
            };
            let Some(&block) = block.filter(|block| !block.is_null()) else {
                let text = format!("group {group} of request {number} has none for token {at}: {table:?}");
                return Err(Failure::new("a block to write to", text));
            };
            let read = |place: Option<&BlockId>, slot, upto: usize| {
                let place = Place { tier: 0, block: *place.unwrap_or(&NULL_BLOCK) };
                same(
                    "memory that a layer reads",
                    &(number, group, at, memory.cell(place, slot)),
                    &(number, group, at, Some(kv(upto))),
                )
            };
            if spec.kind == GroupKind::State {
                if at > from[group] {
                    read(table.get(drafts.saturating_sub(1)), 0, at)?;
                }
            } else {
                let here = self.spec_of(number, group);
                for other in (from[group]..at).filter(|&other| reads(&here, at, other)) {
                    read(table.get(other / size), other % size, other + 1)?;
                }
            }
            memory.set(Place { tier: 0, block }, slot, Some(kv(at + 1)));
        }
        Ok(())
    }

    /// Returns the group's specification for a request. If a group caches nothing and the beginning of
    /// its sinks (the first tokens, which stay in the window) was hit, the request has no sinks.
    fn spec_of(&self, number: i64, group: usize) -> GroupSpec {
        let (spec, from) = (self.specs[group], self.engines[&number].from[group]);
        GroupSpec { sink_tokens: if from == 0 { spec.sink_tokens } else { 0 }, ..spec }
    }

    /// Computes a request up to `upto` tokens, but only tokens that its tables cover. `new` contains
    /// the tokens that the call appends; drafts come first.
    fn compute(
        &mut self,
        memory: &mut Memory,
        manager: &CacheManager,
        (number, tokens, known): (i64, &[u32], usize),
        upto: usize,
    ) -> Result<(), Failure> {
        let Some(engine) = self.engines.get(&number) else { return Ok(()) };
        if self.is_lost || !is_running(manager, number) {
            return Ok(());
        }
        let end = upto.min(tokens.len()).min(engine.covered);
        let (start, drafted) = (engine.progress, engine.drafts.clone());
        if start < end && waits(manager, number) {
            self.breaks = true;
            return Ok(());
        }
        let tables = tables(manager, number);
        for at in start..end {
            let are_drafted = tokens.get(known..=at).is_some_and(|new| drafted.starts_with(new));
            if at < known || !are_drafted {
                self.compute_token(memory, number, &tables, (tokens, known), at)?;
            }
            if let Some(engine) = self.engines.get_mut(&number).filter(|_| at < known) {
                engine.progress = at + 1;
            }
        }
        Ok(())
    }

    /// Computes the tokens that the next call commits, before that call is made.
    pub(crate) fn before_commit(
        &mut self,
        memory: &mut Memory,
        manager: &CacheManager,
        (number, known, new): (i64, &[u32], &[u32]),
        computed: usize,
    ) -> Result<(), Failure> {
        if !self.can_commit(manager, number, (known.len(), new.len()), computed) {
            self.breaks |= is_running(manager, number);
            return Ok(());
        }
        let tokens = [known, new].concat();
        self.compute(memory, manager, (number, &tokens, known.len()), computed)
    }

    /// Records whether the next call, which truncates a request, breaks a rule for engines.
    pub(crate) fn before_cut(&mut self, number: i64, keep: usize) {
        self.breaks |= keep < self.least_length(number);
    }

    pub(crate) fn called(&mut self, refused: bool) {
        self.is_lost |= std::mem::take(&mut self.breaks) && !refused;
    }

    /// Computes all tokens that the tables cover, and drafts. The engine thus runs ahead of the
    /// commits.
    pub(crate) fn run_ahead(
        &mut self,
        memory: &mut Memory,
        manager: &CacheManager,
        requests: &Requests,
        unit: usize,
    ) -> Result<(), Failure> {
        for (&number, known) in &requests.tokens {
            if self.is_lost || !is_running(manager, number) || waits(manager, number) {
                continue;
            }
            self.compute(memory, manager, (number, known, known.len()), usize::MAX)?;
            let drafts = self.draft_slots(manager, number, known.len()).min(3);
            let is_done = self.engines.get(&number).is_some_and(|engine| engine.progress == known.len());
            if !is_done || drafts == 0 {
                continue;
            }
            let new = after(known, drafts, unit, || 0);
            let (all, tables) = ([known.as_slice(), &new].concat(), tables(manager, number));
            for at in known.len()..all.len() {
                self.compute_token(memory, number, &tables, (&all, known.len()), at)?;
            }
            if let Some(engine) = self.engines.get_mut(&number) {
                engine.drafts = new;
            }
        }
        Ok(())
    }

    /// Changes the weights. Requests that hold no blocks will continue with the new weights.
    pub(crate) fn change_weights(&mut self, weights: u64) {
        self.engines.values_mut().for_each(|engine| engine.weights = weights);
    }

    /// Records that a request was admitted or resumed, with the version of the weights at that time.
    pub(crate) fn admitted(
        &mut self,
        manager: &CacheManager,
        number: i64,
        all: usize,
        part: Part,
        weights: u64,
    ) {
        let Ok(RequestInfo { computed_tokens: cached, external_end: ready, .. }) =
            manager.request(&id(number))
        else {
            return;
        };
        let covered = part.allocate_tokens.map_or(all, |n| (ready + n).min(all));
        // In groups that cache nothing, the table may begin with null blocks in place of external
        // tokens.
        let first = |(spec, table): (&GroupSpec, Vec<BlockId>)| match table.get(cached / spec.block_tokens) {
            _ if caches(spec) => 0,
            Some(block) if spec.kind != GroupKind::State && !block.is_null() => cached,
            _ => ready,
        };
        let from = self.specs.iter().zip(tables(manager, number)).map(first).collect();
        let (progress, committed) = (cached, cached);
        let engine = Engine { progress, committed, covered, weights, from, ..Engine::default() };
        self.engines.insert(number, engine);
    }

    /// Returns whether a request can continue after a connector has loaded the tokens up to `loaded` of
    /// its external tokens, which end at `end`.
    fn could_go_on(&self, number: i64, tables: &[Vec<BlockId>], loaded: usize, end: usize) -> bool {
        let covered = self.engines.get(&number).map_or(0, |engine| engine.covered);
        let go_on = |(spec, table): (&GroupSpec, &Vec<BlockId>)| match spec.kind {
            GroupKind::Cross => true,
            GroupKind::State => loaded == end || loaded == 0 || !caches(spec),
            _ => {
                let is_read = |at: &usize| caches(spec) && reads(spec, loaded, *at);
                let mut needed = (0..loaded).filter(is_read).chain(loaded..covered.max(loaded + 1));
                needed.all(|at| table.get(at / spec.block_tokens).is_none_or(|block| !block.is_null()))
            }
        };
        self.specs.iter().zip(tables).all(go_on)
    }

    /// Lets a connector write external tokens, except at null entries of the table. Writes the state
    /// after the last external token, or garbage if tokens were lost.
    pub(crate) fn load(
        &mut self,
        memory: &mut Memory,
        manager: &CacheManager,
        (number, tokens): (i64, &[u32]),
        upto: usize,
    ) -> Option<Load> {
        let info = manager.request(&id(number)).ok()?;
        let (from, end) = (info.computed_tokens, info.external_end);
        if info.state != RequestState::Loading || !(from..=end).contains(&upto) {
            return None;
        }
        self.breaks |= waits(manager, number);
        let (tables, weights) = (tables(manager, number), self.engines.get(&number)?.weights);
        let kv = |upto: usize| Some(Kv::of(weights, &[], &tokens[..upto]));
        for (table, spec) in tables.iter().zip(&self.specs) {
            let mut write = |block: Option<&BlockId>, slot, kv| {
                if let Some(&block) = block.filter(|block| !block.is_null()) {
                    memory.set(Place { tier: 0, block }, slot, kv);
                }
            };
            match spec.kind {
                GroupKind::Cross => {}
                GroupKind::State => write(table.first(), 0, if upto == end { kv(end) } else { None }),
                _ => (from..upto).for_each(|at| {
                    write(table.get(at / spec.block_tokens), at % spec.block_tokens, kv(at + 1));
                }),
            }
        }
        let goes_on = self.could_go_on(number, &tables, upto, end);
        if let Some(engine) = self.engines.get_mut(&number) {
            (engine.progress, engine.committed) = (upto, upto);
        }
        let state = if goes_on { RequestState::Running } else { RequestState::Preempted };
        Some(Load { tokens: upto, state })
    }

    /// Records that a request has new tokens and, if `computed` is given, has committed this number of
    /// tokens. Its tables cover `slots` tokens.
    pub(crate) fn grown(
        &mut self,
        manager: &CacheManager,
        number: i64,
        (tokens, new): (usize, usize),
        computed: Option<usize>,
        slots: usize,
    ) -> Result<(), Failure> {
        if !is_running(manager, number) {
            return Ok(());
        }
        let Some(engine) = self.engines.get_mut(&number) else { return Ok(()) };
        if new > 0 {
            engine.drafts.clear(); // rejected, or ordinary tokens now
        }
        if let Some(computed) = computed {
            engine.commit(computed);
        }
        engine.grow(tokens, slots);
        let drafts = slots.saturating_sub(tokens);
        let tables = tables(manager, number);
        let mut states = self.specs.iter().zip(&tables).filter(|(spec, _)| spec.kind == GroupKind::State);
        holds("a state for each draft", states.all(|(_, table)| table.len() > drafts), || {
            format!("request {number} has {drafts} drafts: {tables:?}")
        })
    }

    /// Records that a commit of a request has succeeded.
    pub(crate) fn committed(&mut self, number: i64, computed: usize) {
        if let Some(engine) = self.engines.get_mut(&number) {
            engine.commit(computed);
        }
    }

    /// Records a fork. Both requests share the slots after the tokens, so the engine needs new slots
    /// for drafts.
    pub(crate) fn forked(&mut self, parent: i64, child: i64, tokens: usize) {
        let Some(engine) = self.engines.get_mut(&parent) else { return };
        engine.forget_drafts(tokens);
        let engine = Engine { drafting: Vec::new(), is_cut: false, ..engine.clone() };
        self.engines.insert(child, engine);
    }

    /// Records that a request was truncated to its first tokens.
    pub(crate) fn cut(&mut self, number: i64, keep: usize) -> Result<(), Failure> {
        let has_states = self.has_states();
        let Some(engine) = self.engines.get_mut(&number) else { return Ok(()) };
        holds("states do not go back", !has_states || keep >= engine.committed, || {
            format!("request {number} keeps {keep} tokens: {engine:?}")
        })?;
        engine.drafts.clear();
        engine.drafting.retain(|&at| at < keep);
        engine.is_cut = !engine.drafting.is_empty();
        engine.progress = engine.progress.min(keep);
        engine.committed = engine.committed.min(keep);
        engine.covered = engine.covered.min(keep);
        Ok(())
    }

    /// Records that a request moves to the host. It loses its slots for drafts, so the engine has to
    /// request new ones.
    pub(crate) fn moved(&mut self, number: i64, tokens: usize) {
        if let Some(engine) = self.engines.get_mut(&number) {
            engine.forget_drafts(tokens);
        }
    }

    /// Removes the records of the requests that hold no blocks.
    pub(crate) fn forget(&mut self, manager: &CacheManager) {
        let holds = |number: i64| {
            manager.request(&id(number)).is_ok_and(|info| info.state != RequestState::Preempted)
        };
        self.engines.retain(|&number, _| holds(number));
    }

    /// Checks that every running request can read all cells that its next token needs, and the cells
    /// that were written since the last commit. Also checks that every cached block has its content.
    pub(crate) fn check(
        &self,
        memory: &Memory,
        manager: &CacheManager,
        requests: &Requests,
        prompts: &Prompts,
    ) -> Result<(), Failure> {
        let pending: BTreeMap<Place, Place> =
            manager.tiers().pending_copies().map(|copy| (copy.dst, copy.src)).collect();
        let cell = |place: Place, slot| memory.cell(pending.get(&place).copied().unwrap_or(place), slot);
        for (&number, engine) in &self.engines {
            let Ok(info) = manager.request(&id(number)) else { continue };
            let states = [RequestState::Running, RequestState::Swapped];
            let Some(tokens) = requests.tokens.get(&number).filter(|_| states.contains(&info.state)) else {
                continue;
            };
            let kv = |upto: usize| Some(Kv::of(engine.weights, &[], &tokens[..upto]));
            for (group, table) in tables(manager, number).iter().enumerate() {
                let (spec, from) = (self.spec_of(number, group), engine.from[group]);
                let place = |at: usize| Place {
                    tier: info.tier,
                    block: table.get(at).copied().unwrap_or(NULL_BLOCK),
                };
                let wrong = |read: usize, place: Place, found: Option<Kv>| {
                    Failure::new(
                        "memory of a group",
                        format!(
                            "group {group} of request {number} reads {found:?} at {place:?} for token {read}"
                        ),
                    )
                };
                match spec.kind {
                    GroupKind::Cross => {}
                    GroupKind::State if engine.progress > from => {
                        let found = cell(place(0), 0);
                        if found != kv(engine.progress) {
                            return Err(wrong(engine.progress - 1, place(0), found));
                        }
                    }
                    GroupKind::State => {}
                    _ => {
                        let is_read =
                            |&read: &usize| read >= engine.committed || reads(&spec, engine.committed, read);
                        for read in (from..engine.progress).filter(is_read) {
                            let at = place(read / spec.block_tokens);
                            let found = cell(at, read % spec.block_tokens);
                            if found != kv(read + 1) {
                                return Err(wrong(read, at, found));
                            }
                        }
                    }
                }
            }
        }
        self.check_cached(memory, manager, prompts, &cell)
    }

    fn check_cached(
        &self,
        memory: &Memory,
        manager: &CacheManager,
        prompts: &Prompts,
        cell: &impl Fn(Place, usize) -> Option<Kv>,
    ) -> Result<(), Failure> {
        for (at, pool) in super::memory::blocks(manager) {
            let Some(name) = pool.name_of(at.block).filter(|_| pool.is_computed(at.block)) else { continue };
            let path = prompts.by_key(name.hash.key());
            let mut contents = path.iter().copied();
            let tokens = after(&[], path.len() * prompts.block_size, prompts.block_size, || {
                contents.next().unwrap_or(0)
            });
            let spec = self.specs[usize::from(name.group)];
            let cells: Range<usize> = match spec.kind {
                GroupKind::State => 0..1,
                _ => 0..spec.block_tokens,
            };
            let slots = cells.end;
            for slot in cells {
                let upto = (tokens.len() + slot + 1).saturating_sub(slots);
                let expected = Kv::of(memory.weights(), &[], &tokens[..upto]);
                let found = (name.group, at, slot, cell(at, slot));
                same("memory of a cached block", &found, &(name.group, at, slot, Some(expected)))?;
            }
        }
        Ok(())
    }
}

fn is_running(manager: &CacheManager, number: i64) -> bool {
    manager.request(&id(number)).is_ok_and(|info| info.state == RequestState::Running)
}

/// Returns whether a planned copy reads or writes a block of a request. In this case the engine must
/// take the plan first.
pub(crate) fn waits(manager: &CacheManager, number: i64) -> bool {
    let tables = tables(manager, number);
    let has = |place: Place| place.tier == 0 && tables.iter().any(|table| table.contains(&place.block));
    manager.tiers().pending_copies().any(|copy| has(copy.dst) || has(copy.src))
}
