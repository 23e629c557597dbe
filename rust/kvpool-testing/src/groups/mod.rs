//! A model of hybrid models on real bytes: a fake engine with windows, chunks, recurrent states and an encoder over a manager with
//! KV-cache groups.
//!
//! Written from what layers read, not from the manager's arithmetic. A cell of a block holds a digest of the whole prefix up to its
//! token, a state holds one cell. Before the engine computes a token it reads, group by group, every cell that the token needs; each must
//! be that of the request's own prefix, under the weights of now. Blocks are never wiped, so what is given up too early, a window cut
//! too short, a checkpoint of a state that went on, or a lost copy shows as another prefix's cell. Engines run ahead: a step is
//! computed, and the next one, before the first is committed.
#![expect(clippy::unwrap_used, clippy::panic, reason = "it stops at the first error")]

mod operation;

use std::collections::{BTreeMap, HashMap};

use kvpool::groups::{GroupKind, GroupSpec, Groups};
use kvpool::{
    AdmitOptions, BlockId, CacheManager, Computed, Covered, ExtraKeys, Loaded, ManagerConfig, ManagerError,
    Part, Place, RequestRef, RequestState, Rows, SwapId, Ticket, Until,
};

use crate::Kv;
pub use operation::{IDS, Operation, operation, specs};

fn until_of(ticket: Option<u64>) -> Until {
    ticket.map_or(Until::Now, |ticket| Until::Ticket(Ticket::new(ticket)))
}

/// What the engine knows of a request.
#[derive(Clone, Debug, Default)]
struct Engine {
    tokens: Vec<u32>,
    /// KV and states of so many tokens are written, committed or not.
    progress: usize,
    committed: usize,
    /// It may write so many slots.
    covered: usize,
    /// The weights that its KV was computed with.
    weights: u64,
}

/// A manager, and an engine that reads what its layers read.
#[derive(Debug)]
pub struct World {
    /// What is tested.
    pub manager: CacheManager,
    specs: Vec<GroupSpec>,
    /// Cells of every block of every tier; a state has one.
    memory: HashMap<Place, Vec<Option<Kv>>>,
    engines: BTreeMap<i64, Engine>,
    swaps: Vec<SwapId>,
    tickets: Vec<Ticket>,
    weights: u64,
}

impl World {
    /// A manager with these groups, made by `make`.
    ///
    /// # Errors
    /// What it says of them.
    pub fn new(
        specs: Vec<GroupSpec>,
        num_blocks: usize,
        make: impl FnOnce(ManagerConfig) -> Result<CacheManager, ManagerError>,
    ) -> Result<Self, ManagerError> {
        let groups = Groups::new(specs.clone(), None)?;
        let config = ManagerConfig {
            num_blocks,
            block_size: groups.unit(),
            host_blocks: 12,
            groups: Some(groups),
            ..ManagerConfig::default()
        };
        let (memory, engines) = (HashMap::new(), BTreeMap::new());
        let (swaps, tickets) = (Vec::new(), Vec::new());
        Ok(Self { manager: make(config)?, specs, memory, engines, swaps, tickets, weights: 0 })
    }

    /// The tokens of a request.
    #[must_use]
    pub fn tokens(&self, id: i64) -> Vec<u32> {
        self.engines[&id].tokens.clone()
    }

    fn state(&self, id: i64) -> Option<RequestState> {
        self.manager.request(id).ok().map(|request| request.state)
    }

    fn tables(&self, id: i64) -> Vec<Vec<BlockId>> {
        (0..self.specs.len()).map(|group| self.manager.group_table(id, group).unwrap().to_vec()).collect()
    }

    /// All that a caller can see.
    fn visible(&self) -> String {
        let requests: Vec<_> = self
            .engines
            .keys()
            .map(|&id| (self.manager.request(id).unwrap(), self.tables(id), self.tokens(id)))
            .collect();
        let stats = kvpool::ManagerStats::clone(&self.manager.stats());
        let copies: Vec<_> = self.manager.tiers().pending_copies().collect();
        let counts =
            (stats.checkpoints, stats.running, stats.preempted, stats.hit_tokens, stats.computed_tokens);
        format!("{requests:?} {:?} {copies:?} {counts:?}", self.manager.pool().free_order())
    }

    fn execute_plan(&mut self) {
        let plan = self.manager.take_plan().unwrap();
        let reads: Vec<_> =
            plan.transfers().iter().map(|copy| (copy.dst, self.memory.get(&copy.src).cloned())).collect();
        for (dst, cells) in reads {
            match cells {
                Some(cells) => drop(self.memory.insert(dst, cells)),
                None => drop(self.memory.remove(&dst)),
            }
        }
    }

    fn cell(&self, block: BlockId, at: usize) -> Option<Kv> {
        let cells = self.memory.get(&Place { tier: 0, block })?;
        cells.get(at).copied().flatten()
    }

    fn write(&mut self, block: BlockId, at: usize, kv: Kv) {
        assert!(!block.is_null(), "the engine writes to the null block");
        let cells = self.memory.entry(Place { tier: 0, block }).or_default();
        cells.resize(cells.len().max(at + 1), None);
        cells[at] = Some(kv);
    }

    /// The first token that the layers of a group read for a token, as models define it.
    fn first_read(kind: GroupKind, at: usize) -> usize {
        match kind {
            GroupKind::Full => 0,
            GroupKind::Sliding { window } => (at + 1).saturating_sub(window),
            GroupKind::Chunked { chunk } => at / chunk * chunk,
            _ => at,
        }
    }

    /// Reads what the token at a position needs, and writes its own.
    fn compute_token(&mut self, id: i64, tokens: &[u32], tables: &[Vec<BlockId>], at: usize) {
        let weights = self.engines[&id].weights;
        let kv = |upto: usize| Kv::of(weights, b"", &tokens[..upto]);
        for (group, spec) in self.specs.clone().into_iter().enumerate() {
            let (table, size) = (&tables[group], spec.block_tokens);
            match spec.kind {
                GroupKind::Cross => {}
                GroupKind::State => {
                    assert_eq!(table.len(), 1, "request {id}: one state");
                    if at > 0 {
                        assert_eq!(self.cell(table[0], 0), Some(kv(at)), "state of {id} before token {at}");
                    }
                    self.write(table[0], 0, kv(at + 1));
                }
                kind => {
                    for read in Self::first_read(kind, at)..at {
                        let found = self.cell(table[read / size], read % size);
                        assert_eq!(
                            found,
                            Some(kv(read + 1)),
                            "group {group} of {id}: token {at} reads {read}"
                        );
                    }
                    self.write(table[at / size], at % size, kv(at + 1));
                }
            }
        }
    }

    fn admitted(&mut self, id: i64, tokens: Vec<u32>, cached: usize, external: usize, asked: Option<usize>) {
        let all = tokens.len();
        let ready = cached + external;
        let covered = asked.map_or(all, |n| (ready + n).min(all));
        let engine = Engine { tokens, progress: cached, committed: cached, covered, weights: self.weights };
        self.engines.insert(id, engine);
    }

    /// The request that an operation means: one that there is, if there is one.
    fn known(&self, id: i64) -> i64 {
        let known: Vec<i64> = self.engines.keys().copied().collect();
        if known.is_empty() { id } else { known[id as usize % known.len()] }
    }

    /// One that there is not, if there is place for one more.
    fn unknown(&self, id: i64) -> i64 {
        let free = IDS.filter(|id| !self.manager.contains(*id)).nth(id as usize % 2);
        free.or_else(|| IDS.into_iter().find(|id| !self.manager.contains(*id))).unwrap_or(id)
    }

    /// The operation, of requests that there are.
    fn meant(&self, operation: &Operation) -> Operation {
        use Operation::{
            Admit, Append, Commit, Compute, Encode, Extend, Fork, Load, Preempt, Release, Resume, Step,
            SwapIn, SwapOut, Truncate,
        };
        let mut meant = operation.clone();
        match &mut meant {
            Admit { id, .. } => *id = self.unknown(*id),
            Fork { parent, child } => (*parent, *child) = (self.known(*parent), self.unknown(*child)),
            Extend { id, .. }
            | Load { id, .. }
            | Encode { id, .. }
            | Compute { id, .. }
            | Step { id, .. } => *id = self.known(*id),
            Commit { id, .. } | Truncate { id, .. } | Preempt { id, .. } | Resume { id, .. } => {
                *id = self.known(*id);
            }
            Release { id, .. } => *id = self.known(*id),
            Append { ids, .. } | SwapOut(ids) | SwapIn(ids) => {
                ids.iter_mut().for_each(|id| *id = self.known(*id));
            }
            _ => {}
        }
        meant
    }

    fn compute(&mut self, id: i64, upto: usize) {
        self.execute_plan();
        if self.state(id) == Some(RequestState::Running) {
            let (all, tables) = (self.tokens(id), self.tables(id));
            let engine = self.engines[&id].clone();
            for at in engine.progress..upto.min(all.len()).min(engine.covered) {
                self.compute_token(id, &all, &tables, at);
                self.engines.get_mut(&id).unwrap().progress = at + 1;
            }
        }
    }

    /// Does it, of requests that there are, and looks at every cell that a token reads. Returns what was done, and whether it was refused:
    /// then nothing has changed.
    ///
    /// # Panics
    /// At the first thing that is wrong.
    pub fn apply(&mut self, operation: &Operation) -> (Operation, Result<(), ManagerError>) {
        let operation = self.meant(operation);
        let before = self.visible();
        let done = self.run(&operation);
        if let Err(error) = &done {
            assert_eq!(before, self.visible(), "{operation:?} was refused: {error}");
        }
        self.manager.check_invariants().unwrap_or_else(|broken| panic!("{operation:?}: {broken}"));
        (operation, done)
    }

    fn run(&mut self, operation: &Operation) -> Result<(), ManagerError> {
        match *operation {
            Operation::Admit { id, turn, way, tokens, part } => {
                let token = |at: usize| if at < turn { at as u32 } else { way * 100 + at as u32 };
                let known: Vec<u32> = (0..tokens).map(token).collect();
                let prompt = self.manager.prepare(&known, ExtraKeys::default())?;
                let reach = self.manager.fit_groups(&prompt, Part::WHOLE)?;
                let least = reach.iter().map(|group| group.reach_tokens).min().unwrap();
                let options = AdmitOptions { part, ..AdmitOptions::default() };
                let fit = self.manager.fit(&prompt, part);
                let admission =
                    self.manager.admit_with(id, prompt, &options).map_err(|refused| refused.error)?;
                assert!(admission.cached_tokens <= least.min(tokens - 1), "{admission:?} of {reach:?}");
                assert_eq!(fit.map(|fit| fit.cached_tokens), Ok(admission.cached_tokens));
                self.admitted(
                    id,
                    known,
                    admission.cached_tokens,
                    admission.external_tokens,
                    part.allocate_tokens,
                );
            }
            Operation::Extend { id, slots } => {
                self.manager.extend(id, slots)?;
                let engine = self.engines.get_mut(&id).unwrap();
                engine.covered = engine.covered.max(slots);
            }
            Operation::Load { id, lost } => {
                let request = self.manager.request(id)?;
                let (from, end) = (request.computed_tokens, request.external_end);
                let upto = end.saturating_sub(lost).max(from);
                if self.state(id) == Some(RequestState::Loading) {
                    // A block that the hit ended in is copied before anybody writes behind it.
                    self.execute_plan();
                    let (tokens, tables) = (self.tokens(id), self.tables(id));
                    // What a connector brings is what another engine computed.
                    for at in from..upto {
                        for (group, spec) in self.specs.clone().into_iter().enumerate() {
                            let kv = Kv::of(self.engines[&id].weights, b"", &tokens[..=at]);
                            if !matches!(spec.kind, GroupKind::Cross) {
                                self.write(tables[group][at / spec.block_tokens], at % spec.block_tokens, kv);
                            }
                        }
                    }
                }
                self.manager.external_done(id, Loaded::First(upto))?;
                if let Some(engine) = self.engines.get_mut(&id) {
                    (engine.progress, engine.committed) = (upto, upto);
                }
                self.engines.retain(|&id, _| self.manager.contains(id));
            }
            Operation::Append { ref ids, tokens, lookahead, commits } => {
                let requests: Vec<RequestRef<'_>> = ids.iter().map(|&id| id.into()).collect();
                let new: Vec<u32> = (0..(ids.len() * tokens) as u32).map(|at| at % 2).collect();
                let offsets: Vec<usize> = (0..=ids.len()).map(|row| row * tokens).collect();
                let progress: Vec<usize> =
                    ids.iter().map(|id| self.engines.get(id).map_or(0, |engine| engine.progress)).collect();
                let computed = if commits { Computed::Counts(&progress) } else { Computed::Nothing };
                let covered = Covered::Lookahead(lookahead);
                let rows = Rows {
                    requests: &requests,
                    tokens: &new,
                    offsets: &offsets,
                    computed,
                    covered,
                    ..Rows::default()
                };
                self.manager.append_ragged(&rows)?;
                for (row, id) in ids.iter().enumerate() {
                    let state = self.state(*id);
                    let engine = self.engines.get_mut(id).unwrap();
                    engine.tokens.extend_from_slice(&new[offsets[row]..offsets[row + 1]]);
                    let all = engine.tokens.len();
                    if state == Some(RequestState::Running) {
                        engine.covered = engine.covered.max(all + lookahead);
                        engine.committed = if commits { engine.progress } else { engine.committed };
                    }
                }
            }
            Operation::Encode { id, tokens } => {
                self.manager.extend_encoder(id, tokens)?;
            }
            Operation::Compute { id, tokens } => self.compute(id, tokens),
            Operation::Step { id, checkpoints } => {
                let next = self.manager.next_checkpoint(id)?.filter(|_| checkpoints);
                if self.state(id) != Some(RequestState::Running) {
                    return Ok(());
                }
                self.compute(id, next.unwrap_or(usize::MAX));
                let progress = self.engines[&id].progress;
                self.manager.commit(id, progress)?;
                self.engines.get_mut(&id).unwrap().committed = progress;
            }
            Operation::Commit { id, back } => {
                let progress = self.engines.get(&id).map_or(0, |engine| engine.progress);
                self.manager.commit(id, progress.saturating_sub(back))?;
                self.engines.get_mut(&id).unwrap().committed = progress.saturating_sub(back);
            }
            Operation::Fork { parent, child } => {
                self.manager.fork(parent, child)?;
                let engine = self.engines[&parent].clone();
                self.engines.insert(child, engine);
            }
            Operation::Truncate { id, by } => {
                let keep = self.manager.request(id)?.tokens.saturating_sub(by);
                self.manager.truncate(id, keep, Until::Now)?;
                // States that went further are not those of what is left: no engine goes back behind what it computed.
                let has_states = self.specs.iter().any(|spec| spec.kind == GroupKind::State);
                let engine = self.engines.get_mut(&id).unwrap();
                engine.tokens.truncate(keep);
                assert!(!has_states || keep >= engine.committed, "states do not go back");
                if has_states && engine.progress > keep {
                    let until = Until::Now;
                    self.manager.preempt(id, until)?;
                } else {
                    engine.progress = engine.progress.min(keep);
                    engine.committed = engine.committed.min(keep);
                    engine.covered = engine.covered.min(keep);
                }
            }
            Operation::Preempt { id, until } => self.manager.preempt(id, until_of(until))?,
            Operation::Resume { id, part } => {
                let admission = self.manager.resume_with(id, part)?;
                self.admitted(
                    id,
                    self.tokens(id),
                    admission.cached_tokens,
                    admission.external_tokens,
                    part.allocate_tokens,
                );
            }
            Operation::Release { id, until } => {
                self.manager.release(id, until_of(until))?;
                self.engines.retain(|&id, _| self.manager.contains(id));
            }
            Operation::Fence => {
                let ticket = self.manager.fence()?;
                self.tickets.push(ticket);
            }
            Operation::EndFence(ticket) => drop(self.manager.end_fence(Ticket::new(ticket))?),
            Operation::SwapOut(ref ids) => {
                let named: Vec<RequestRef<'_>> = ids.iter().map(|&id| id.into()).collect();
                let swap = self.manager.begin_swap_out(&named)?;
                self.swaps.push(swap);
            }
            Operation::SwapIn(ref ids) => {
                let named: Vec<RequestRef<'_>> = ids.iter().map(|&id| id.into()).collect();
                let swap = self.manager.begin_swap_in(&named)?;
                self.swaps.push(swap);
            }
            Operation::EndSwap { completes } => {
                let Some(&swap) = self.swaps.first() else { return Ok(()) };
                if completes {
                    self.execute_plan();
                    self.manager.complete_swap(swap)?;
                } else {
                    self.manager.abort_swap(swap)?;
                }
                self.swaps.remove(0);
                self.engines.retain(|&id, _| self.manager.contains(id));
            }
            Operation::Evict(n) => drop(self.manager.evict(n)?),
            Operation::BumpEpoch => {
                self.manager.bump_epoch()?;
                self.weights += 1;
            }
            Operation::Reset => {
                self.manager.reset()?;
                self.weights += 1;
                // Nobody held a block: what there is computes everything with the new weights.
                let weights = self.weights;
                self.engines.values_mut().for_each(|engine| engine.weights = weights);
            }
        }
        Ok(())
    }
}
