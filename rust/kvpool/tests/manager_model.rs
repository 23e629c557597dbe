//! The whole manager against a reference model of requests over the reference pool: random admissions, appends, commits,
//! preemptions, resumptions, releases, fenced or not, step plans and epoch bumps, valid and not.
//!
//! After every operation: every result and block table equal the model's, both orders equal, all invariants hold, and a
//! failed operation has changed nothing.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first error"
)]

use std::collections::BTreeMap;

use kvpool::testing::{ReferencePool, indices};
use kvpool::{
    CacheManager, ExtraKeys, ManagerConfig, ManagerError, RequestRef, RequestState, StepOutcome, Verify,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

const BLOCK_SIZE: usize = 2;

#[derive(Clone, Debug)]
enum Operation {
    Admit {
        id: i64,
        tokens: Vec<u32>,
    },
    Append {
        ids: Vec<i64>,
        token: u32,
        commit_first: bool,
    },
    AppendTokens {
        id: i64,
        tokens: Vec<u32>,
    },
    Commit {
        id: i64,
        computed: usize,
    },
    CommitAll(i64),
    Preempt {
        id: i64,
        after: Option<u64>,
    },
    Resume(i64),
    Release {
        id: i64,
        after: Option<u64>,
    },
    CompleteStep(u64),
    BumpEpoch,
    /// Counts what changed since the last time.
    Digest,
    Step {
        operations: Vec<Operation>,
        commit: bool,
    },
}

fn single() -> impl Strategy<Value = Operation> {
    let id = || 0i64..5;
    let tokens = || prop::collection::vec(0u32..2, 0..8);
    let after = || prop::option::weighted(0.3, 0u64..10);
    prop_oneof![
        8 => (id(), tokens()).prop_map(|(id, tokens)| Operation::Admit { id, tokens }),
        3 => (id(), tokens()).prop_map(|(id, tokens)| Operation::AppendTokens { id, tokens }),
        2 => (id(), after()).prop_map(|(id, after)| Operation::Preempt { id, after }),
        3 => id().prop_map(Operation::Resume),
        4 => (id(), after()).prop_map(|(id, after)| Operation::Release { id, after }),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let id = || 0i64..5;
    prop_oneof![
        20 => single(),
        8 => (prop::collection::vec(id(), 0..4), 0u32..2, any::<bool>())
            .prop_map(|(ids, token, commit_first)| Operation::Append { ids, token, commit_first }),
        4 => (id(), 0usize..12).prop_map(|(id, computed)| Operation::Commit { id, computed }),
        8 => id().prop_map(Operation::CommitAll),
        2 => (0u64..10).prop_map(Operation::CompleteStep),
        1 => Just(Operation::BumpEpoch),
        4 => Just(Operation::Digest),
        6 => (prop::collection::vec(single(), 1..4), any::<bool>())
            .prop_map(|(operations, commit)| Operation::Step { operations, commit }),
    ]
}

#[derive(Clone, Debug, PartialEq)]
struct Request {
    running: bool,
    tokens: Vec<u32>,
    blocks: Vec<usize>,
    computed: usize,
    published: usize,
    epoch: u64,
}

/// Requests over the reference pool. Every method says whether it succeeded; a failure changes nothing.
#[derive(Clone)]
struct Model {
    pool: ReferencePool,
    usable: usize,
    watermark: usize,
    epoch: u64,
    requests: BTreeMap<i64, Request>,
}

impl Model {
    fn get_running(&mut self, id: i64) -> Option<&mut Request> {
        self.requests.get_mut(&id).filter(|request| request.running)
    }

    fn any_running(&self) -> bool {
        self.requests.values().any(|request| request.running)
    }

    /// Lookup, then allocation: on a copy, so that a failure changes nothing.
    fn place(&mut self, tokens: &[u32]) -> Option<(Vec<usize>, usize)> {
        let mut pool = self.pool.clone();
        let mut blocks = pool.lookup(&[], tokens, tokens.len().saturating_sub(1) / BLOCK_SIZE, true);
        let cached = blocks.len();
        let needed = tokens.len().div_ceil(BLOCK_SIZE) - cached;
        let (free, cached_free, ..) = pool.sums();
        let reserve = if self.any_running() { self.watermark } else { 0 };
        if needed + reserve > free + cached_free && needed > 0 {
            return None;
        }
        blocks.extend(pool.allocate(needed)?);
        self.pool = pool;
        Some((blocks, cached))
    }

    fn admit(&mut self, id: i64, tokens: &[u32]) -> bool {
        if tokens.is_empty() || self.requests.contains_key(&id) {
            return false;
        }
        let Some((blocks, published)) = self.place(tokens) else { return false };
        let computed = published * BLOCK_SIZE;
        let tokens = tokens.to_vec();
        self.requests
            .insert(id, Request { running: true, tokens, blocks, computed, published, epoch: self.epoch });
        true
    }

    fn resume(&mut self, id: i64) -> bool {
        let Some(tokens) = self.requests.get(&id).filter(|r| !r.running).map(|r| r.tokens.clone()) else {
            return false;
        };
        let Some((blocks, published)) = self.place(&tokens) else { return false };
        let computed = published * BLOCK_SIZE;
        self.requests
            .insert(id, Request { running: true, tokens, blocks, computed, published, epoch: self.epoch });
        true
    }

    fn append(&mut self, rows: &[(i64, Vec<u32>)], commit_first: bool) -> bool {
        let backup = self.clone();
        for (at, (id, tokens)) in rows.iter().enumerate() {
            let twice = rows[..at].iter().any(|(other, _)| other == id);
            let done = !twice && self.get_running(*id).is_some() && {
                if commit_first {
                    let all = self.requests[id].tokens.len();
                    self.commit(*id, all);
                }
                self.append_one(*id, tokens)
            };
            if !done {
                *self = backup;
                return false;
            }
        }
        true
    }

    fn append_one(&mut self, id: i64, tokens: &[u32]) -> bool {
        let Some(request) = self.requests.get_mut(&id) else { return false };
        let needed = (request.tokens.len() + tokens.len()).div_ceil(BLOCK_SIZE) - request.blocks.len();
        let Some(fresh) = self.pool.allocate(needed) else { return false };
        request.tokens.extend(tokens);
        request.blocks.extend(fresh);
        true
    }

    fn commit(&mut self, id: i64, computed: usize) -> bool {
        let epoch = self.epoch;
        let Some(request) = self.get_running(id) else { return false };
        if computed > request.tokens.len() || computed < request.computed {
            return false;
        }
        request.computed = computed;
        let full = computed / BLOCK_SIZE;
        if full > request.published && request.epoch == epoch {
            let (blocks, start) = (request.blocks[request.published..full].to_vec(), request.published);
            request.published = full;
            let tokens = request.tokens.clone();
            assert!(self.pool.register(&blocks, &[], &tokens, start));
            assert!(self.pool.mark_computed(&blocks));
        }
        true
    }

    fn give_up(&mut self, id: i64, after: Option<u64>) {
        let request = self.requests.get_mut(&id).unwrap();
        let mut blocks = std::mem::take(&mut request.blocks);
        (request.computed, request.published, request.running) = (0, 0, false);
        blocks.reverse();
        let released = match after {
            None => self.pool.release(&blocks),
            Some(step) => self.pool.release_after(&blocks, step),
        };
        assert!(released);
    }

    fn preempt(&mut self, id: i64, after: Option<u64>) -> bool {
        let running = self.get_running(id).is_some();
        if running {
            self.give_up(id, after);
        }
        running
    }

    fn release(&mut self, id: i64, after: Option<u64>) -> bool {
        let known = self.requests.contains_key(&id);
        if known {
            self.give_up(id, after);
            self.requests.remove(&id);
        }
        known
    }
}

struct Pair {
    manager: CacheManager,
    model: Model,
}

impl Pair {
    fn new(num_blocks: usize, watermark: f64, verify: Verify) -> Self {
        let config = ManagerConfig {
            num_blocks,
            block_size: BLOCK_SIZE,
            watermark,
            verify,
            digest: true,
            ..Default::default()
        };
        let model = Model {
            pool: ReferencePool::new(num_blocks, BLOCK_SIZE, false),
            usable: num_blocks - 1,
            watermark: (watermark * (num_blocks - 1) as f64) as usize,
            epoch: 0,
            requests: BTreeMap::new(),
        };
        Self { manager: CacheManager::new(config).unwrap(), model }
    }

    fn observe(&self) -> impl PartialEq + std::fmt::Debug + use<> {
        let stats = self.manager.stats();
        let pool = self.manager.pool();
        let tables: Vec<_> = (0..5).map(|id| self.manager.block_table(id).ok().map(indices)).collect();
        let infos: Vec<_> = (0..5).map(|id| self.manager.request(id).ok()).collect();
        (pool.free_order(), pool.eviction_order(), stats.pool, stats.running, stats.preempted, tables, infos)
    }

    fn apply(&mut self, operation: &Operation) {
        let before = self.observe();
        if !self.run(operation) {
            assert_eq!(before, self.observe(), "a failed {operation:?} changed the manager");
        }
        self.manager.check_invariants().unwrap_or_else(|violation| panic!("{violation} after {operation:?}"));
        let pool = self.manager.pool();
        assert_eq!(indices(&pool.free_order()), self.model.pool.free, "free order after {operation:?}");
        assert_eq!(indices(&pool.eviction_order()), self.model.pool.evictable, "after {operation:?}");
        let stats = pool.stats();
        assert_eq!((stats.free, stats.cached_free, stats.active, stats.fenced), self.model.pool.sums());
        for id in 0..5 {
            let expected = self.model.requests.get(&id);
            let table = self.manager.block_table(id).ok().map(indices);
            assert_eq!(
                table,
                expected.map(|request| request.blocks.clone()),
                "table of {id} after {operation:?}"
            );
            let info = self
                .manager
                .request(id)
                .ok()
                .map(|info| (info.state == RequestState::Running, info.tokens, info.computed_tokens));
            assert_eq!(
                info,
                expected.map(|request| (request.running, request.tokens.len(), request.computed))
            );
        }
    }

    fn run(&mut self, operation: &Operation) -> bool {
        let manager = &mut self.manager;
        let (done, expected) = match operation {
            Operation::Admit { id, tokens } => {
                let cursor = manager.prepare(tokens, ExtraKeys::default()).unwrap();
                let probe = manager.probe(&cursor).unwrap();
                let result = manager.admit(*id, cursor);
                let fits = tokens.len().div_ceil(BLOCK_SIZE) <= self.model.usable;
                match &result {
                    Ok(admission) => assert_eq!(admission.cached_blocks, probe.cached_blocks),
                    Err(refused) => {
                        assert_eq!(refused.cursor.num_tokens(), tokens.len(), "the prompt is handed back");
                        if let ManagerError::OutOfBlocks(refusal) = refused.error {
                            assert_eq!(refusal.can_ever_fit, fits);
                            assert_eq!(refusal.missing, refusal.needed - refusal.available);
                        }
                    }
                }
                (result.is_ok(), self.model.admit(*id, tokens))
            }
            Operation::Append { ids, token, commit_first } => {
                let refs: Vec<_> = ids.iter().map(|&id| RequestRef::Int(id)).collect();
                let done = manager.append(&refs, &vec![*token; ids.len()], *commit_first).is_ok();
                let rows: Vec<_> = ids.iter().map(|&id| (id, vec![*token])).collect();
                (done, self.model.append(&rows, *commit_first))
            }
            Operation::AppendTokens { id, tokens } => (
                manager.append_tokens(*id, tokens, 0).is_ok(),
                self.model.append(&[(*id, tokens.clone())], false),
            ),
            Operation::Commit { id, computed } => {
                (manager.commit(*id, *computed).is_ok(), self.model.commit(*id, *computed))
            }
            Operation::CommitAll(id) => {
                let all = manager.request(*id).map_or(0, |info| info.tokens);
                (manager.commit(*id, all).is_ok(), self.model.commit(*id, all))
            }
            Operation::Preempt { id, after } => {
                (manager.preempt(*id, *after).is_ok(), self.model.preempt(*id, *after))
            }
            Operation::Resume(id) => (manager.resume(*id).is_ok(), self.model.resume(*id)),
            Operation::Release { id, after } => {
                (manager.release(*id, *after).is_ok(), self.model.release(*id, *after))
            }
            Operation::CompleteStep(step) => {
                manager.complete_step(*step).unwrap();
                self.model.pool.complete_step(*step);
                (true, true)
            }
            Operation::BumpEpoch => {
                manager.bump_epoch().unwrap();
                self.model.pool.bump_epoch();
                self.model.epoch += 1;
                (true, true)
            }
            Operation::Digest => {
                manager.scrub(3).unwrap();
                assert_eq!(manager.state_digest(), Some(manager.state_digest_from_scratch()));
                (true, true)
            }
            Operation::Step { operations, commit } => {
                let done = self.step(operations, *commit);
                (done, done)
            }
        };
        assert_eq!(done, expected, "outcome of {operation:?}");
        done
    }

    /// Plans the operations that fit, then commits or drops the plan. The model does the same operations one by one, in the
    /// order in which a commit does them: that all planned ones succeed there is the promise of a plan.
    fn step(&mut self, operations: &[Operation], commit: bool) -> bool {
        let mut plan = self.manager.begin_step();
        let mut planned = Vec::new();
        for operation in operations {
            let manager = &self.manager;
            let fits = match operation {
                Operation::Admit { id, tokens } => {
                    let cursor = manager.prepare(tokens, ExtraKeys::default()).unwrap();
                    manager.plan_admit(&mut plan, *id, cursor).is_ok()
                }
                Operation::AppendTokens { id, tokens } => manager.plan_append(&mut plan, *id, tokens).is_ok(),
                Operation::Preempt { id, after } => manager.plan_preempt(&mut plan, *id, *after).is_ok(),
                Operation::Resume(id) => manager.plan_resume(&mut plan, *id).is_ok(),
                Operation::Release { id, after } => manager.plan_release(&mut plan, *id, *after).is_ok(),
                _ => false,
            };
            if fits {
                planned.push(operation.clone());
            }
        }
        if !commit {
            return false;
        }
        let outcomes = self.manager.commit_step(&mut plan).unwrap();
        assert_eq!(outcomes.len(), planned.len());
        assert!(matches!(self.manager.commit_step(&mut plan), Err(ManagerError::StaleStep)));
        self.replay_step(&planned, &outcomes);
        !planned.is_empty()
    }

    fn replay_step(&mut self, planned: &[Operation], outcomes: &[StepOutcome]) {
        // Matches are taken from the pool as it was, and before anything is released: hold them in the model, too.
        let model = &mut self.model;
        let mut matched = BTreeMap::new();
        for operation in planned {
            let (id, tokens) = match operation {
                Operation::Admit { id, tokens } => (*id, tokens.clone()),
                Operation::Resume(id) => (*id, model.requests[id].tokens.clone()),
                _ => continue,
            };
            let max = (tokens.len() - 1) / BLOCK_SIZE;
            matched.insert(id, (model.pool.lookup(&[], &tokens, max, true), tokens));
        }
        for operation in planned {
            match operation {
                Operation::Preempt { id, after } => assert!(model.preempt(*id, *after)),
                Operation::Release { id, after } => assert!(model.release(*id, *after)),
                _ => {}
            }
        }
        for (operation, outcome) in planned.iter().zip(outcomes) {
            match (operation, outcome) {
                (Operation::Admit { id, .. } | Operation::Resume(id), StepOutcome::Admitted(admission)) => {
                    let (mut blocks, tokens) = matched.remove(id).unwrap();
                    let published = blocks.len();
                    let needed = tokens.len().div_ceil(BLOCK_SIZE) - published;
                    blocks.extend(model.pool.allocate(needed).expect("a planned admission fits"));
                    assert_eq!(indices(&admission.block_ids), blocks);
                    assert_eq!(admission.cached_blocks, published);
                    let (computed, epoch) = (published * BLOCK_SIZE, model.epoch);
                    let request = Request { running: true, tokens, blocks, computed, published, epoch };
                    model.requests.insert(*id, request);
                }
                (Operation::AppendTokens { id, tokens }, StepOutcome::Appended(_)) => {
                    assert!(model.append_one(*id, tokens), "a planned append fits");
                }
                (Operation::Preempt { .. }, StepOutcome::Preempted)
                | (Operation::Release { .. }, StepOutcome::Released) => {}
                other => panic!("{other:?}"),
            }
        }
    }
}

fn operations_in_all() -> u32 {
    std::env::var("KVPOOL_MODEL_OPERATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(200_000)
}

#[test]
fn manager_equals_the_reference_model() {
    const LENGTH: u32 = 100;
    let config = Config {
        cases: operations_in_all().div_ceil(LENGTH),
        source_file: Some(file!()),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    };
    let watermark = prop_oneof![Just(0.0), Just(0.2)];
    let verify = prop_oneof![Just(Verify::None), Just(Verify::Tokens)];
    let setting = (3usize..16, watermark, verify, prop::collection::vec(operation(), LENGTH as usize));
    let result = TestRunner::new(config).run(&setting, |(num_blocks, watermark, verify, operations)| {
        let mut pair = Pair::new(num_blocks, watermark, verify);
        for operation in &operations {
            pair.apply(operation);
        }
        Ok(())
    });
    result.unwrap_or_else(|failure| panic!("{failure}"));
}
