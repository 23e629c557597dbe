//! Tests forks, copies, truncations, windows and swaps of a manager with simulated memory. The memory
//! executes every plan, every request writes the tokens that it computes, and a connector writes
//! external tokens as long as its load may run. After each step, every request in any tier reads back
//! the tokens that it wrote.
//!
//! A cell is the memory of one token. It contains a digest of the whole prefix up to the token, because
//! KV depends on it, and the version of the weights. This version changes with every epoch and every
//! reset. Blocks are never cleared. So after a lost copy, a block that was allocated too early, or an
//! error in sharing, a request reads a cell of another prefix. If content of old weights is reused, it
//! reads a cell with an old version.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a test stops at the first error"
)]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use kvpool::{
    AdmitOptions, BlockId, CacheManager, Computed, DuplicatePolicy, ExtraKeys, Fit, Loaded, ManagerConfig,
    ManagerError, Part, Place, RequestRef, RequestState, SwapId, Ticket, TransferPlan, Until, Verify, runs,
};
use kvpool_observe::{ManagerScrubber, ManagerWatch};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

const BLOCK_SIZE: usize = 3;

/// The simulated KV in a token's slot. It depends on all tokens before it and on the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kv {
    weights: u64,
    prefix: u64,
}

impl Kv {
    fn of(weights: u64, salt: &[u8], prefix: &[u32]) -> Self {
        let mut hasher = DefaultHasher::new();
        (salt, prefix).hash(&mut hasher);
        Self { weights, prefix: hasher.finish() }
    }
}
const IDS: std::ops::Range<i64> = 0..6;

#[derive(Clone, Debug)]
enum Operation {
    Admit {
        id: i64,
        tokens: Vec<u32>,
        part: Part,
    },
    Extend {
        id: i64,
        slots: usize,
    },
    /// A connector writes the external tokens of a request, except some whose load fails, and reports
    /// the result. The request may already be released.
    Load {
        id: i64,
        failed: std::ops::Range<usize>,
    },
    Fence,
    EndFence(u64),
    Fork {
        parent: i64,
        child: i64,
    },
    Append {
        ids: Vec<i64>,
        token: u32,
    },
    AppendTokens {
        id: i64,
        tokens: Vec<u32>,
        lookahead: usize,
    },
    /// Executes the plan, then computes and commits every running request.
    Compute,
    Truncate {
        id: i64,
        keep: usize,
    },
    Trim {
        id: i64,
        window: usize,
    },
    Preempt {
        id: i64,
        until: Until,
    },
    Resume(i64, Part),
    Release {
        id: i64,
        until: Until,
    },
    SwapOut(Vec<i64>),
    SwapIn(Vec<i64>),
    /// Executes the plan, and completes or aborts the oldest running swap.
    EndSwap {
        complete: bool,
    },
    Step {
        append: i64,
        token: u32,
        release: i64,
        preempt: i64,
    },
    CompleteStep(u64),
    BumpEpoch,
    /// Resets the manager. If `drained` is true, all requests release their blocks first.
    Reset {
        drained: bool,
    },
    /// Brings the digest up to date with all changes since the last update.
    Digest,
}

fn operation() -> impl Strategy<Value = Operation> {
    let tokens = || prop::collection::vec(0u32..2, 1..9);
    let ids = || prop::collection::vec(IDS, 0..4);
    let until = || {
        prop_oneof![
            6 => Just(Until::Now),
            2 => (0u64..10).prop_map(Until::Step),
            2 => (0u64..6).prop_map(|ticket| Until::Ticket(Ticket::new(ticket))),
        ]
    };
    let part = || {
        let external = prop_oneof![3 => Just(0), 1 => 0usize..8];
        (prop::option::weighted(0.3, 0usize..6), external).prop_map(|(allocate_tokens, external_tokens)| {
            Part { allocate_tokens, external_tokens, ..Part::WHOLE }
        })
    };
    prop_oneof![
        8 => (IDS, tokens(), part()).prop_map(|(id, tokens, part)| Operation::Admit { id, tokens, part }),
        4 => (IDS, 0usize..12).prop_map(|(id, slots)| Operation::Extend { id, slots }),
        4 => (IDS, 0usize..9, 0usize..3)
            .prop_map(|(id, from, len)| Operation::Load { id, failed: from..from + len }),
        1 => Just(Operation::Fence),
        1 => (0u64..6).prop_map(Operation::EndFence),
        8 => (IDS, IDS).prop_map(|(parent, child)| Operation::Fork { parent, child }),
        8 => (ids(), 0u32..2).prop_map(|(ids, token)| Operation::Append { ids, token }),
        4 => (IDS, tokens(), 0usize..5)
            .prop_map(|(id, tokens, lookahead)| Operation::AppendTokens { id, tokens, lookahead }),
        10 => Just(Operation::Compute),
        4 => (IDS, 1usize..12).prop_map(|(id, keep)| Operation::Truncate { id, keep }),
        2 => (IDS, 0usize..8).prop_map(|(id, window)| Operation::Trim { id, window }),
        2 => (IDS, until()).prop_map(|(id, until)| Operation::Preempt { id, until }),
        3 => (IDS, part()).prop_map(|(id, part)| Operation::Resume(id, part)),
        4 => (IDS, until()).prop_map(|(id, until)| Operation::Release { id, until }),
        4 => ids().prop_map(Operation::SwapOut),
        4 => ids().prop_map(Operation::SwapIn),
        6 => prop::bool::weighted(0.7).prop_map(|complete| Operation::EndSwap { complete }),
        3 => (IDS, 0u32..2, IDS, IDS)
            .prop_map(|(append, token, release, preempt)| Operation::Step {
                append, token, release, preempt }),
        2 => (0u64..10).prop_map(Operation::CompleteStep),
        1 => Just(Operation::BumpEpoch),
        2 => any::<bool>().prop_map(|drained| Operation::Reset { drained }),
        4 => Just(Operation::Digest),
    ]
}

/// The state that the test expects a request to have.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Known {
    tokens: Vec<u32>,
    state: RequestState,
    /// The version of the weights when the request was admitted or resumed. The request may continue to
    /// use KV of this version after the weights change.
    weights: u64,
}

struct Rig {
    manager: CacheManager,
    scrubber: ManagerScrubber,
    /// The simulated memory: one cell per tier, block and slot.
    store: Vec<Vec<[Option<Kv>; BLOCK_SIZE]>>,
    known: BTreeMap<i64, Known>,
    swaps: Vec<(SwapId, Vec<i64>)>,
    /// The version of the weights: the number of resets and epochs.
    weights: u64,
    resets: u64,
    /// Blocks that only a fence holds. Its step may write to them until the fence ends.
    late: Vec<(Until, Place)>,
    /// Number of blocks to which a step wrote after their request had released them. It shows that the
    /// test reaches this case.
    written_late: usize,
    /// Whether free blocks are overwritten immediately. Otherwise they keep their content.
    scribble: bool,
}

impl Rig {
    fn new(num_blocks: usize, host_blocks: usize, verify: Verify, duplicates: DuplicatePolicy) -> Self {
        let manager = CacheManager::new(ManagerConfig {
            duplicates,
            num_blocks,
            host_blocks,
            block_size: BLOCK_SIZE,
            verify,
            ..ManagerConfig::default()
        });
        // The digest is switched on by a call, as a journal does it. The laboratory also tests the
        // digest that the settings switch on.
        let mut manager = manager.unwrap();
        manager.keep_digest().unwrap();
        let store = [num_blocks, host_blocks].map(|blocks| vec![[None; BLOCK_SIZE]; blocks]).to_vec();
        let (known, swaps) = (BTreeMap::new(), Vec::new());
        let scrubber = ManagerScrubber::default();
        let (late, scribble) = (Vec::new(), false);
        Self {
            manager,
            scrubber,
            store,
            known,
            swaps,
            weights: 0,
            resets: 0,
            late,
            written_late: 0,
            scribble,
        }
    }

    /// Returns all state that a refused call must not change.
    fn observe(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let tables: Vec<_> = IDS.map(|id| self.manager.block_table(id).map(<[_]>::to_vec).ok()).collect();
        let infos: Vec<_> = IDS.map(|id| self.manager.request(id).ok()).collect();
        let tiers = self.manager.tiers();
        let pools: Vec<_> = (0..tiers.len())
            .map(|tier| tiers.pool(tier).unwrap())
            .map(|pool| (pool.free_order(), pool.eviction_order(), pool.stats().registered))
            .collect();
        (tables, infos, pools, tiers.pending_copies().collect::<Vec<_>>())
    }

    /// Makes a call and returns its result. If the call is refused, checks that it has changed nothing,
    /// and returns `None`.
    fn attempt<T>(&mut self, call: impl FnOnce(&mut CacheManager) -> Result<T, ManagerError>) -> Option<T> {
        let before = self.observe();
        match call(&mut self.manager) {
            Ok(value) => Some(value),
            Err(error) => {
                assert_eq!(self.observe(), before, "{error}");
                None
            }
        }
    }

    fn execute(&mut self, plan: &TransferPlan) {
        for round in plan.rounds(&[]).unwrap() {
            let before = self.store.clone();
            for run in runs(&round) {
                for at in 0..run.len {
                    let (src, dst) = (run.src.block.index() + at, run.dst.block.index() + at);
                    self.store[run.dst.tier][dst] = before[run.src.tier][src];
                }
            }
        }
    }

    /// Runs one step of the engine. It executes the planned copies, then writes the uncomputed tokens
    /// of every running request, and commits them.
    fn compute(&mut self) {
        let plan = self.manager.take_plan().unwrap();
        self.execute(&plan);
        let running: Vec<_> =
            self.known.iter().filter(|(_, known)| known.state == RequestState::Running).collect();
        for &(&id, known) in &running {
            let computed = self.manager.request(id).unwrap().computed_tokens;
            let table = self.manager.block_table(id).unwrap();
            for at in computed..known.tokens.len().min(table.len() * BLOCK_SIZE) {
                let block = table[at / BLOCK_SIZE];
                let kv = Kv::of(self.weights, &[], &known.tokens[..=at]);
                self.store[0][block.index()][at % BLOCK_SIZE] = Some(kv);
            }
        }
        let ids: Vec<_> = running.iter().map(|&(&id, _)| RequestRef::Int(id)).collect();
        let covered = |id: i64| self.manager.block_table(id).unwrap().len() * BLOCK_SIZE;
        let computed: Vec<_> =
            running.iter().map(|&(&id, known)| known.tokens.len().min(covered(id))).collect();
        self.manager.commit_batch(&ids, &computed).unwrap();
    }

    /// Writes the external tokens of a request into its blocks as a connector would, except the failed
    /// tokens, and ends the load.
    fn load(&mut self, id: i64, failed: &std::ops::Range<usize>) {
        let Some(known) = self.known.get(&id).cloned() else { return };
        let info = self.manager.request(id).unwrap();
        let table = self.table(id);
        for at in (info.computed_tokens..info.external_end).filter(|at| !failed.contains(at)) {
            let kv = Kv::of(self.weights, &[], &known.tokens[..=at]);
            self.store[info.tier][table[at / BLOCK_SIZE].index()][at % BLOCK_SIZE] = Some(kv);
        }
        if self.attempt(|m| m.external_done(id, Loaded::AllBut(std::slice::from_ref(failed)))).is_some() {
            self.arrived(id, RequestState::Running);
        }
    }

    /// Records that a swap or load of a request has ended. If the request was released meanwhile,
    /// removes it.
    fn arrived(&mut self, id: i64, state: RequestState) {
        if self.known[&id].state == RequestState::Releasing {
            self.known.remove(&id);
            assert!(!self.manager.contains(id));
        } else {
            self.set(&[id], state);
        }
    }

    /// Records the state of a request that was just admitted or resumed.
    fn placed(&mut self, id: i64, external_tokens: usize) {
        let state = if external_tokens > 0 { RequestState::Loading } else { RequestState::Running };
        self.set(&[id], state);
    }

    /// Records that a request was released.
    fn released(&mut self, id: i64) {
        match self.known[&id].state {
            RequestState::Moving | RequestState::Loading => self.set(&[id], RequestState::Releasing),
            _ => drop(self.known.remove(&id)),
        }
    }

    /// Returns the blocks that only this request holds. If it releases them with a fence, only the
    /// fence holds them.
    fn alone(&self, id: i64) -> Vec<Place> {
        let Ok(tier) = self.manager.request(id).map(|info| info.tier) else { return Vec::new() };
        let pool = self.manager.tiers().pool(tier).unwrap();
        let alone = |block: &BlockId| pool.ref_count(*block) == Some(1) && !pool.is_registered(*block);
        self.table(id).into_iter().filter(alone).map(|block| Place { tier, block }).collect()
    }

    /// Records that a request released its blocks until a fence ends.
    fn fenced(&mut self, alone: Vec<Place>, until: Until) {
        let fences = |at: &Place| self.manager.tiers().pool(at.tier).unwrap().fence_references(at.block);
        let late = alone.into_iter().filter(|at| fences(at) == 1);
        self.late.extend(late.map(|at| (until, at)));
    }

    /// Records that a fence has ended. Before that, its step writes to the fenced blocks.
    fn ended(&mut self, is_over: impl Fn(Until) -> bool) {
        let (over, late): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.late).into_iter().partition(|&(until, _)| is_over(until));
        self.late = late;
        self.written_late += over.len();
        for (_, Place { tier, block }) in over {
            self.store[tier][block.index()] = [None; BLOCK_SIZE];
        }
    }

    /// Checks that all blocks that a lookup may return, in any tier, were computed with the current
    /// weights.
    fn nothing_stale_is_cached(&self) {
        for (tier, cells) in self.store.iter().enumerate() {
            let pool = self.manager.tiers().pool(tier).unwrap();
            let cached = (1..pool.num_blocks() as u32).map(BlockId::new).filter(|&b| pool.is_computed(b));
            for block in cached {
                let stale =
                    cells[block.index()].iter().find(|kv| kv.is_none_or(|kv| kv.weights != self.weights));
                assert_eq!(stale, None, "{block:?} of tier {tier}, weights {}", self.weights);
            }
        }
    }

    /// Checks that every request that has blocks and is not moving reads back the tokens that it wrote.
    fn read_back(&self) {
        // A planned copy is not made yet. So its source is read instead of its destination.
        let pending: BTreeMap<_, _> =
            self.manager.tiers().pending_copies().map(|copy| (copy.dst, copy.src)).collect();
        for (&id, known) in &self.known {
            let info = self.manager.request(id).unwrap();
            assert_eq!((info.state, info.tokens), (known.state, known.tokens.len()), "request {id}");
            if matches!(known.state, RequestState::Moving | RequestState::Releasing) {
                continue;
            }
            let table = self.manager.block_table(id).unwrap();
            for at in 0..info.computed_tokens {
                let block = table[at / BLOCK_SIZE];
                if block.is_null() {
                    continue; // trimmed
                }
                let place = Place { tier: info.tier, block };
                let place = pending.get(&place).copied().unwrap_or(place);
                let found = self.store[place.tier][place.block.index()][at % BLOCK_SIZE];
                let weights =
                    found.filter(|_| known.weights != self.weights).map_or(self.weights, |kv| kv.weights);
                let expected = Kv::of(weights, &[], &known.tokens[..=at]);
                assert_eq!(found, Some(expected), "request {id}, token {at}, {place:?}");
            }
        }
    }

    fn apply(&mut self, operation: &Operation) {
        match operation.clone() {
            Operation::Admit { id, tokens, part } => {
                let prompt = self.manager.prepare(&tokens, ExtraKeys::default()).unwrap();
                let options = AdmitOptions { part, ..AdmitOptions::default() };
                let admitted = self.attempt(|m| Ok(m.admit_with(id, prompt, &options)?));
                if let Some(admission) = admitted {
                    let weights = self.weights;
                    self.known.insert(id, Known { tokens, state: RequestState::Running, weights });
                    self.placed(id, admission.external_tokens);
                }
            }
            Operation::Extend { id, slots } => {
                self.attempt(|m| m.extend(id, slots));
            }
            Operation::Load { id, failed } => self.load(id, &failed),
            Operation::Fence => {
                self.manager.fence().unwrap();
            }
            Operation::EndFence(ticket) => {
                let ticket = Ticket::new(ticket);
                if self.attempt(|m| m.end_fence(ticket)).is_some() {
                    self.ended(|until| until == Until::Ticket(ticket));
                }
            }
            Operation::Fork { parent, child } => {
                if self.attempt(|m| m.fork(parent, child)).is_some() {
                    self.known.insert(child, self.known[&parent].clone());
                }
            }
            Operation::Append { ids, token } => {
                let requests: Vec<_> = ids.iter().map(|&id| RequestRef::Int(id)).collect();
                let before: Vec<_> = ids.iter().map(|&id| self.table(id)).collect();
                let tokens = vec![token; ids.len()];
                if let Some(changes) = self.attempt(|m| m.append(&requests, &tokens, Computed::Nothing)) {
                    let mut tables = before;
                    for change in changes {
                        let table = &mut tables[change.row];
                        table.truncate(change.index.max(table.len()));
                        if change.index == table.len() {
                            table.push(change.block);
                        } else {
                            table[change.index] = change.block;
                        }
                    }
                    for (&id, table) in ids.iter().zip(tables) {
                        assert_eq!(self.table(id), table, "what an append returns is what changed");
                        self.known.get_mut(&id).unwrap().tokens.push(token);
                    }
                }
            }
            Operation::AppendTokens { id, tokens, lookahead } => {
                if self.attempt(|m| m.append_tokens(id, &tokens, lookahead)).is_some() {
                    self.known.get_mut(&id).unwrap().tokens.extend(tokens);
                }
            }
            Operation::Compute => self.compute(),
            Operation::Truncate { id, keep } => {
                if self.attempt(|m| m.truncate(id, keep, None)).is_some() {
                    self.known.get_mut(&id).unwrap().tokens.truncate(keep);
                }
            }
            Operation::Trim { id, window } => {
                self.attempt(|m| m.trim_window(id, window));
            }
            Operation::Preempt { id, until } => {
                let alone = self.alone(id);
                if self.attempt(|m| m.preempt(id, until)).is_some() {
                    self.set(&[id], RequestState::Preempted);
                    self.fenced(alone, until);
                }
            }
            Operation::Resume(id, part) => {
                if let Some(admission) = self.attempt(|m| m.resume_with(id, part)) {
                    self.placed(id, admission.external_tokens);
                    self.known.get_mut(&id).unwrap().weights = self.weights;
                }
            }
            Operation::Release { id, until } => {
                let alone = self.alone(id);
                if self.attempt(|m| m.release(id, until)).is_some() {
                    self.released(id);
                    self.fenced(alone, until);
                }
            }
            Operation::SwapOut(ids) => self.begin(&ids, true),
            Operation::SwapIn(ids) => self.begin(&ids, false),
            Operation::EndSwap { complete } => self.end_swap(complete),
            Operation::Step { append, token, release, preempt } => {
                self.step(append, token, release, preempt);
            }
            Operation::CompleteStep(step) => {
                self.manager.complete_step(step).unwrap();
                self.ended(|until| matches!(until, Until::Step(of) if of <= step));
            }
            Operation::BumpEpoch => {
                self.manager.bump_epoch().unwrap();
                self.weights += 1;
            }
            Operation::Reset { drained } => self.reset(drained),
            Operation::Digest => {
                self.scrubber.scrub(&mut self.manager, 3).unwrap();
                let digest = self.manager.state_digest();
                assert_eq!(digest, Some(self.manager.state_digest_from_scratch()));
            }
        }
        self.manager.check_invariants().unwrap();
        for tier in 0..2 {
            let stats = self.manager.tiers().pool(tier).unwrap().stats();
            assert_eq!(stats.free + stats.cached_free + stats.active + stats.fenced, stats.usable);
            if self.scribble {
                // Free blocks are overwritten, because no caller may depend on their content.
                let free = self.manager.tiers().pool(tier).unwrap().free_order();
                free.iter().for_each(|block| self.store[tier][block.index()] = [None; BLOCK_SIZE]);
            }
        }
        self.read_back();
        self.nothing_stale_is_cached();
    }

    /// Resets the manager, and checks that this succeeds exactly if no block of any tier is held.
    /// Afterwards both tiers must be empty.
    fn reset(&mut self, drained: bool) {
        if drained {
            (0..self.swaps.len()).for_each(|_| self.end_swap(false));
            let plan = self.manager.take_plan().unwrap();
            self.execute(&plan);
            let ids: Vec<_> = self.known.keys().copied().collect();
            for id in ids {
                self.load(id, &(0..0));
                if !self.known.contains_key(&id) {
                    continue;
                }
                if self.manager.preempt(id, None).is_ok() {
                    self.set(&[id], RequestState::Preempted);
                }
            }
        }
        let pools = |manager: &CacheManager| [0, 1].map(|tier| manager.tiers().pool(tier).unwrap().stats());
        let before = pools(&self.manager);
        let idle = before.iter().all(|stats| stats.active + stats.fenced == 0);
        let forgotten = self.attempt(CacheManager::reset);
        assert_eq!(forgotten.is_some(), idle, "{before:?}");
        let Some(forgotten) = forgotten else { return };
        assert_eq!(forgotten, before.iter().map(|stats| stats.registered).sum::<usize>());
        assert!(pools(&self.manager).iter().all(|stats| stats.free == stats.usable && stats.registered == 0));
        (self.weights, self.resets) = (self.weights + 1, self.resets + 1);
    }

    fn table(&self, id: i64) -> Vec<BlockId> {
        self.manager.block_table(id).map(<[_]>::to_vec).unwrap_or_default()
    }

    fn set(&mut self, ids: &[i64], state: RequestState) {
        ids.iter().for_each(|id| self.known.get_mut(id).unwrap().state = state);
    }

    fn begin(&mut self, ids: &[i64], out: bool) {
        let group: Vec<_> = ids.iter().map(|&id| RequestRef::Int(id)).collect();
        let tier = usize::from(out);
        let available = self.manager.tiers().pool(tier).unwrap().num_available();
        let mut distinct: Vec<_> =
            ids.iter().flat_map(|&id| self.table(id)).filter(|b| !b.is_null()).collect();
        distinct.sort();
        distinct.dedup();
        let begun = self.attempt(|m| if out { m.begin_swap_out(&group) } else { m.begin_swap_in(&group) });
        let Some(swap) = begun else { return };
        let taken = available - self.manager.tiers().pool(tier).unwrap().num_available();
        assert!(taken <= distinct.len(), "a swap takes a block per distinct one, at most");
        self.set(ids, RequestState::Moving);
        self.swaps.push((swap, ids.to_vec()));
    }

    fn end_swap(&mut self, complete: bool) {
        if self.swaps.is_empty() {
            return;
        }
        let (swap, ids) = self.swaps.remove(0);
        let out = self.manager.request(ids[0]).unwrap().tier == 0;
        let moved = |done: bool| match out == done {
            true => RequestState::Swapped,
            false => RequestState::Running,
        };
        if complete {
            // The plan contains copies of computed tokens, which must not be lost. So it is executed
            // before the reset, although no step runs.
            let plan = self.manager.take_plan().unwrap();
            self.execute(&plan);
            self.manager.complete_swap(swap).unwrap();
        } else {
            self.manager.abort_swap(swap).unwrap();
        }
        assert!(self.manager.complete_swap(swap).is_err() && self.manager.abort_swap(swap).is_err());
        ids.iter().for_each(|&id| self.arrived(id, moved(complete)));
    }

    /// Plans and commits a step, and checks that the commit has the results that the plan reported, for
    /// any sharing of blocks.
    fn step(&mut self, append: i64, token: u32, release: i64, preempt: i64) {
        let before = self.observe();
        let mut plan = self.manager.plan_step();
        let manager = &self.manager;
        let preempted = manager.plan_preempt(&mut plan, preempt, None).is_ok();
        let released = manager.plan_release(&mut plan, release, None).is_ok();
        let appended = manager.plan_append(&mut plan, append, &[token, token], 0).is_ok();
        assert_eq!(self.observe(), before);
        self.manager.commit_step(&mut plan).expect("a planned step fits");
        if preempted {
            self.set(&[preempt], RequestState::Preempted);
        }
        if released {
            self.released(release);
        }
        if appended {
            self.known.get_mut(&append).unwrap().tokens.extend([token, token]);
        }
    }
}

fn operations_in_all() -> u32 {
    std::env::var("KVPOOL_MODEL_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(200_000)
}

#[test]
fn every_request_reads_its_own_content() {
    const LENGTH: u32 = 100;
    let config = Config {
        cases: operations_in_all().div_ceil(LENGTH),
        source_file: Some(file!()),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    };
    let verify = prop_oneof![Just(Verify::None), Just(Verify::Tokens)];
    let duplicates = prop_oneof![Just(DuplicatePolicy::Keep), Just(DuplicatePolicy::DropOnRelease)];
    let setting = (4usize..24, 2usize..16, verify, duplicates, any::<bool>());
    let setting = (setting, prop::collection::vec(operation(), LENGTH as usize));
    let (resets, late) = (Cell::new(0), Cell::new(0));
    let result = TestRunner::new(config).run(
        &setting,
        |((blocks, host, verify, duplicates, scribble), operations)| {
            let mut rig = Rig::new(blocks, host, verify, duplicates);
            rig.scribble = scribble;
            for operation in &operations {
                rig.apply(operation);
            }
            resets.set(resets.get() + rig.resets);
            late.set(late.get() + rig.written_late);
            Ok(())
        },
    );
    result.unwrap_or_else(|failure| panic!("{failure}"));
    assert!(resets.get() > 0, "no reset succeeded");
    assert!(late.get() > 100, "{} blocks were written late", late.get());
}

fn manager(num_blocks: usize, host_blocks: usize) -> CacheManager {
    let config =
        ManagerConfig { num_blocks, host_blocks, block_size: BLOCK_SIZE, ..ManagerConfig::default() };
    CacheManager::new(config).unwrap()
}

fn admit(manager: &mut CacheManager, id: i64, tokens: &[u32]) {
    let prompt = manager.prepare(tokens, ExtraKeys::default()).unwrap();
    manager.admit(id, prompt).unwrap();
}

fn refs(ids: &[i64]) -> Vec<RequestRef<'_>> {
    ids.iter().map(|&id| RequestRef::Int(id)).collect()
}

/// A fork shares a full block that is not yet computed. Both requests commit it, but only the first
/// commit counts it as registered.
#[test]
fn forks_publish_a_shared_block_once() {
    let mut manager = manager(10, 0);
    admit(&mut manager, 1, &[1, 2, 3, 4, 5, 6, 7]);
    manager.fork(1, 2).unwrap();
    assert_eq!(manager.commit(1, 7).unwrap(), 2);
    assert_eq!(manager.commit(2, 7).unwrap(), 0, "they are registered");
    assert_eq!(manager.pool().stats().registered, 2);
    manager.check_invariants().unwrap();
}

/// If n requests share the last block of a prompt, n - 1 of them copy it, and the last one writes in
/// place. A pool with exactly the blocks for these copies is large enough.
#[test]
fn the_last_of_the_samples_writes_in_place() {
    let mut manager = manager(2 + 3 + 1, 0);
    admit(&mut manager, 0, &[1, 2, 3, 4]);
    for child in 1..4 {
        manager.fork(0, child).unwrap();
    }
    let changes = manager.append(&refs(&[0, 1, 2, 3]), &[5, 6, 7, 8], Computed::AllButLast).unwrap();
    assert_eq!(changes.iter().map(|new| (new.row, new.index)).collect::<Vec<_>>(), [(0, 1), (1, 1), (2, 1)]);
    assert_eq!(manager.pool().num_available(), 0);
    let plan = manager.take_plan().unwrap();
    let sources: Vec<_> = plan.transfers().iter().map(|copy| copy.src.block).collect();
    assert_eq!(sources, vec![manager.block_table(3).unwrap()[1]; 3]);
    // Each request now has its own last block, so the next append copies nothing.
    assert!(manager.append(&refs(&[0, 1, 2, 3]), &[5, 6, 7, 8], Computed::AllButLast).unwrap().is_empty());
    assert!(manager.take_plan().unwrap().is_empty());
}

/// The source of a planned copy is evicted before its parent, with every policy. In an earlier version,
/// it was added to the eviction order only when the plan was taken, so after its parent, even with LRU.
#[test]
fn a_copy_leaves_the_cache_prefix_closed() {
    for &eviction in kvpool_policies::ALL {
        let config =
            ManagerConfig { num_blocks: 8, block_size: BLOCK_SIZE, eviction, ..ManagerConfig::default() };
        let mut manager = CacheManager::new(config).unwrap();
        admit(&mut manager, 1, &[1, 2, 3, 4, 5, 6, 7]);
        manager.commit(1, 7).unwrap();
        let [first, second, _] = manager.block_table(1).unwrap()[..] else { panic!("three blocks") };
        manager.truncate(1, 4, None).unwrap(); // into the second block, which is registered
        manager.append_tokens(1, &[9], 0).unwrap();
        assert_eq!(manager.block_table(1).unwrap()[0], first);
        manager.release(1, None).unwrap();
        assert_eq!(manager.take_plan().unwrap().len(), 0, "nobody wants the copy");
        assert_eq!(manager.pool().eviction_order(), [second, first], "{eviction:?}");
        manager.check_invariants().unwrap();
    }
}

/// With one block too few, the batch is refused completely, and no request gets a copy.
#[test]
fn copies_that_do_not_fit_refuse_the_batch() {
    let mut manager = manager(2 + 2 + 1, 0);
    admit(&mut manager, 0, &[1, 2, 3, 4]);
    (1..4).for_each(|child| manager.fork(0, child).unwrap());
    let error = manager.append(&refs(&[0, 1, 2, 3]), &[5, 6, 7, 8], Computed::Nothing).unwrap_err();
    assert_eq!(error.to_string(), "out of blocks: 3 needed, 2 available, 1 missing");
    assert!((0..4).all(|id| manager.block_table(id).unwrap() == manager.block_table(0).unwrap()));
    assert_eq!(manager.tiers().pending_copies().count(), 0);
    manager.check_invariants().unwrap();
}

/// Forked requests are swapped to the host and back. Shared blocks move once, blocks that are still
/// cached on the device are not copied, and invariant M4 holds all the time.
#[test]
fn a_group_is_swapped_out_and_in() {
    let mut manager = manager(12, 8);
    admit(&mut manager, 1, &[1, 2, 3, 4, 5, 6, 7]);
    manager.commit(1, 7).unwrap();
    manager.fork(1, 2).unwrap();
    manager.append(&refs(&[1, 2]), &[8, 9], Computed::Nothing).unwrap();
    manager.take_plan().unwrap();
    let swap = manager.begin_swap_out(&refs(&[1, 2])).unwrap();
    for error in [manager.preempt(1, None).unwrap_err(), manager.append_tokens(2, &[1], 0).unwrap_err()] {
        assert!(error.to_string().contains("is moving"), "{error}");
    }
    assert_eq!(manager.take_plan().unwrap().len(), 4); // two shared blocks, two tails
    manager.complete_swap(swap).unwrap();
    assert_eq!((manager.stats().swapped, manager.pool().num_available()), (2, 11));
    let swap = manager.begin_swap_in(&refs(&[2, 1])).unwrap();
    assert_eq!(manager.take_plan().unwrap().len(), 2); // the shared blocks are still cached on the device
    manager.complete_swap(swap).unwrap();
    assert_eq!(manager.block_table(1).unwrap()[..2], manager.block_table(2).unwrap()[..2]);
    let stats = manager.stats();
    assert_eq!((stats.running, stats.swapped_out, stats.swapped_in, stats.forks), (2, 2, 2, 1));
    assert_eq!(stats.hit_tokens + stats.computed_tokens, stats.prompt_tokens);
    manager.check_invariants().unwrap();
}

#[test]
fn refused_table_operations_change_nothing() {
    let mut rig = Rig::new(8, 3, Verify::None, DuplicatePolicy::Keep);
    rig.apply(&Operation::Admit { id: 1, tokens: vec![1; 10], part: Part::WHOLE });
    rig.apply(&Operation::Admit { id: 2, tokens: vec![2; 3], part: Part::WHOLE });
    rig.apply(&Operation::Preempt { id: 2, until: Until::Now });
    let refused = |rig: &mut Rig, call: &dyn Fn(&mut CacheManager) -> Option<ManagerError>, message: &str| {
        let before = rig.observe();
        assert_eq!(call(&mut rig.manager).expect("refused").to_string(), message);
        assert_eq!(rig.observe(), before);
    };
    refused(&mut rig, &|m| m.fork(9, 3).err(), "no request has the id 9: admit it first");
    refused(
        &mut rig,
        &|m| m.fork(1, 2).err(),
        "request 2 is known already: release it before admitting it again",
    );
    refused(&mut rig, &|m| m.fork(2, 3).err(), "request 2 is preempted: cannot fork it");
    refused(&mut rig, &|m| m.truncate(2, 1, None).err(), "request 2 is preempted: cannot truncate it");
    refused(
        &mut rig,
        &|m| m.truncate(1, 11, None).err(),
        "cannot keep 11 tokens of request 1: from 1 to 10 can be kept",
    );
    refused(
        &mut rig,
        &|m| m.truncate(1, 0, None).err(),
        "cannot keep 0 tokens of request 1: from 1 to 10 can be kept",
    );
    refused(
        &mut rig,
        &|m| m.begin_swap_out(&refs(&[1])).err(),
        "out of blocks: 4 needed, 2 available, 2 missing; it can never fit this pool",
    );
    refused(&mut rig, &|m| m.begin_swap_out(&[]).err(), "a swap needs at least one request");
    refused(&mut rig, &|m| m.begin_swap_out(&refs(&[2])).err(), "request 2 is preempted: cannot swap it out");
    refused(&mut rig, &|m| m.begin_swap_out(&refs(&[1, 1])).err(), "request 1 is named twice in one call");
    refused(&mut rig, &|m| m.begin_swap_in(&refs(&[1])).err(), "request 1 is running: cannot swap it in");
    refused(
        &mut rig,
        &|m| m.complete_swap(SwapId::from_number(7)).err(),
        "swap 7 is not under way: it was completed or aborted, or never begun",
    );
    refused(
        &mut rig,
        &|m| m.append_tokens(1, &[], usize::MAX).err(),
        &format!(
            "out of blocks: {} needed, 3 available, {} missing; it can never fit this pool",
            usize::MAX / 3 - 4,
            usize::MAX / 3 - 7
        ),
    );
    let mut alone = manager(4, 0);
    assert_eq!(
        alone.begin_swap_out(&refs(&[1])).unwrap_err().to_string(),
        "there is no host tier: give the manager host_blocks"
    );
}

/// A swap copies a block, and then another holder computes it. The block is registered on the device,
/// but not in the host, because the copy does not contain its KV.
#[test]
fn what_is_computed_during_a_swap_is_not_registered_in_the_host() {
    let mut manager = manager(8, 8);
    admit(&mut manager, 1, &[1, 2, 3, 4]);
    manager.fork(1, 2).unwrap();
    let swap = manager.begin_swap_out(&refs(&[1])).unwrap();
    assert_eq!(manager.take_plan().unwrap().len(), 2);
    manager.commit(2, 4).unwrap();
    manager.complete_swap(swap).unwrap();
    assert_eq!(manager.pool().stats().registered, 1);
    assert_eq!(manager.tiers().pool(1).unwrap().stats().registered, 0);
    manager.check_invariants().unwrap();
}

/// All blocks of the request are still cached on the device, so bringing it back needs no new block.
/// The swap fits and starts even if the watermark leaves no block.
#[test]
fn a_swap_that_takes_no_block_fits() {
    let config =
        ManagerConfig { num_blocks: 7, host_blocks: 7, block_size: 4, watermark: 0.5, ..Default::default() };
    let mut manager = CacheManager::new(config).unwrap();
    manager.admit(1, manager.prepare(&[1, 2, 3, 4, 5, 6, 7, 8], ExtraKeys::default()).unwrap()).unwrap();
    manager.commit(1, 8).unwrap();
    let swap = manager.begin_swap_out(&refs(&[1])).unwrap();
    manager.take_plan().unwrap();
    manager.complete_swap(swap).unwrap();
    manager.admit(2, manager.prepare(&[9; 8], ExtraKeys::default()).unwrap()).unwrap();
    assert_eq!(manager.fit_swap_in(&refs(&[1])).unwrap(), Fit::Ok);
    manager.begin_swap_in(&refs(&[1])).unwrap();
    manager.check_invariants().unwrap();
}
