//! A model of hybrid models on real bytes: a fake engine with windows, chunks, recurrent states and an
//! encoder over a manager with KV-cache groups.
//!
//! Written from what layers read, not from the manager's arithmetic. A cell of a block holds a digest of the
//! whole prefix up to its token, a state holds one cell. Before the engine computes a token it reads, group
//! by group, every cell that the token needs; each must be that of the request's own prefix, under the
//! weights of now. Blocks are never wiped, so what is given up too early, a window cut too short, a
//! checkpoint of a state that went on, or a lost copy shows as another prefix's cell. Engines run ahead: a
//! step is computed, and the next one, before the first is committed. They compute drafts, and accept some of
//! them later.
//!
//! The cache must make no call fail: `checks` repeats a refused call with the same number of blocks and no
//! cache.
#![expect(clippy::unwrap_used, clippy::panic, reason = "it stops at the first error")]

mod checks;
mod engine;
mod operation;

use std::collections::{BTreeMap, HashMap};

use kvpool::groups::{GroupKind, GroupSpec, Groups};
use kvpool::{
    Admission, AdmitOptions, BlockId, CacheManager, Computed, Covered, ExtraKeys, Fit, Loaded, ManagerConfig,
    ManagerError, Part, Place, RequestRef, RequestState, Rows, SwapId, Ticket, Until,
};

use crate::Kv;
use engine::Engine;
pub use operation::{IDS, Operation, operation, specs};

fn until_of(ticket: Option<u64>) -> Until {
    ticket.map_or(Until::Now, |ticket| Until::Ticket(Ticket::new(ticket)))
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
    num_blocks: usize,
    /// The operations that were not refused.
    done: Vec<Operation>,
    /// The latest growth that was refused, and how many operations were done before it.
    refused: Option<(usize, Operation)>,
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
        let manager = make(Self::config(&specs, num_blocks)?)?;
        let (memory, engines, done) = (HashMap::new(), BTreeMap::new(), Vec::new());
        let (swaps, tickets, refused) = (Vec::new(), Vec::new(), None);
        Ok(Self { manager, specs, memory, engines, swaps, tickets, weights: 0, num_blocks, done, refused })
    }

    fn config(specs: &[GroupSpec], num_blocks: usize) -> Result<ManagerConfig, ManagerError> {
        let groups = Groups::new(specs.to_vec(), None)?;
        Ok(ManagerConfig {
            num_blocks,
            block_size: groups.unit(),
            host_blocks: 12,
            groups: Some(groups),
            ..ManagerConfig::default()
        })
    }

    /// The tokens of a request.
    #[must_use]
    pub fn tokens(&self, id: i64) -> Vec<u32> {
        self.engines[&id].tokens.clone()
    }

    fn state(&self, id: i64) -> Option<RequestState> {
        self.manager.request(id).ok().map(|request| request.state)
    }

    fn is_running(&self, id: i64) -> bool {
        self.state(id) == Some(RequestState::Running)
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
            Admit, Append, Commit, Compute, Draft, Encode, Extend, Fork, Load, Preempt, Release, Resume,
            Step, SwapIn, SwapOut, Truncate,
        };
        let mut meant = operation.clone();
        match &mut meant {
            Admit { id, .. } => *id = self.unknown(*id),
            Fork { parent, child } => (*parent, *child) = (self.known(*parent), self.unknown(*child)),
            Extend { id, .. }
            | Load { id, .. }
            | Encode { id, .. }
            | Compute { id, .. }
            | Draft { id, .. }
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

    /// Does it, of requests that there are, and looks at every cell that a token reads. Returns what was
    /// done, and whether it was refused: then nothing has changed.
    ///
    /// # Panics
    /// At the first thing that is wrong.
    pub fn apply(&mut self, operation: &Operation) -> (Operation, Result<(), ManagerError>) {
        let operation = self.meant(operation);
        let before = self.visible();
        let done = self.run(&operation);
        match &done {
            Ok(()) => self.done.push(operation.clone()),
            Err(error) => {
                assert_eq!(before, self.visible(), "{operation:?} was refused: {error}");
                self.note_refusal(&operation, error);
            }
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
                let reach = self.manager.fit_groups(&prompt, part)?;
                let least = reach.iter().map(|group| group.reach_tokens).min().unwrap();
                let options = AdmitOptions { part, ..AdmitOptions::default() };
                let fit = self.manager.fit(&prompt, part)?;
                let admission = match self.manager.admit_with(id, prompt, &options) {
                    Ok(admission) => admission,
                    Err(refused) => {
                        self.check_refused_admission(&known, part, Some(fit), &refused.error);
                        return Err(refused.error);
                    }
                };
                assert_eq!(fit.fit, Fit::Ok, "admitted: {admission:?}");
                assert!(admission.cached_tokens <= least.min(tokens - 1), "{admission:?} of {reach:?}");
                assert_eq!(fit.cached_tokens, admission.cached_tokens);
                assert!(!part.compute_all || admission.cached_tokens == 0, "{admission:?}");
                self.admitted(id, known, &admission, part);
            }
            Operation::Extend { id, slots } => {
                self.manager.extend(id, slots)?;
                self.engines.get_mut(&id).unwrap().grow(slots);
            }
            Operation::Load { id, lost } => self.load(id, lost)?,
            Operation::Append { ref ids, tokens, lookahead, commits, accepted } => {
                self.append(ids, tokens, lookahead, commits, accepted)?;
            }
            Operation::Draft { id, tokens } => self.draft(id, tokens),
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
                let engine = &self.engines[&id];
                let computed = engine.committable(engine.progress);
                self.manager.commit(id, computed)?;
                self.engines.get_mut(&id).unwrap().commit(computed);
            }
            Operation::Commit { id, back } => {
                let computed = |engine: &Engine| engine.committable(engine.progress.saturating_sub(back));
                let computed = self.engines.get(&id).map_or(0, computed);
                self.manager.commit(id, computed)?;
                self.engines.get_mut(&id).unwrap().commit(computed);
            }
            Operation::Fork { parent, child } => {
                self.manager.fork(parent, child)?;
                // Both requests share the slots after the tokens: drafts need new slots.
                let engine = self.engines.get_mut(&parent).unwrap();
                engine.forget_drafts();
                let engine = Engine { drafting: Vec::new(), is_cut: false, ..engine.clone() };
                self.engines.insert(child, engine);
            }
            Operation::Truncate { id, by } => {
                let keep = self.manager.request(id)?.tokens.saturating_sub(by);
                self.manager.truncate(id, keep, Until::Now)?;
                // States that went further are not those of what is left: no engine goes back behind what it
                // computed.
                let has_states = self.specs.iter().any(|spec| spec.kind == GroupKind::State);
                let engine = self.engines.get_mut(&id).unwrap();
                engine.truncate(keep);
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
                self.manager.request(id)?;
                let tokens = self.tokens(id);
                let admission = match self.manager.resume_with(id, part) {
                    Ok(admission) => admission,
                    Err(error) => {
                        self.check_refused_admission(&tokens, part, None, &error);
                        return Err(error);
                    }
                };
                assert!(!part.compute_all || admission.cached_tokens == 0, "{admission:?}");
                self.admitted(id, tokens, &admission, part);
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
                for id in ids {
                    self.engines.get_mut(id).unwrap().forget_drafts();
                }
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
