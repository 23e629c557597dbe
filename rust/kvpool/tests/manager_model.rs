//! The whole manager against a reference model of requests over the reference pool: random admissions, appends, commits,
//! preemptions, resumptions, releases, fenced or not, prompts in chunks and from elsewhere, drafts, step plans, resets and epoch
//! bumps, valid and not. What hosts and swaps add is compared by the fuzz target of the manager, with the same model.
//!
//! After every operation: every result and block table equal the model's, both orders equal, all invariants hold, every KV that
//! is read or could be is of the weights of now, and a failed operation has changed nothing.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test stops at the first error"
)]

use kvpool::{
    AdmitOptions, CacheManager, Computed, Covered, ExtraKeys, Fit, Loaded, ManagerConfig, ManagerError, Part,
    RequestRef, Rows, StepOutcome, Ticket, Until, Verify,
};
use kvpool_observe::{ManagerScrubber, ManagerWatch, ManagerWatchConfig};
use kvpool_testing::{
    ReferenceManager, ReferenceOutcome, ReferencePool, ReferenceStep, indices, writes_in_place,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};

const BLOCK_SIZE: usize = 2;

#[derive(Clone, Debug)]
enum Operation {
    Admit {
        id: i64,
        tokens: Vec<u32>,
        part: Part,
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
    /// Rows of tokens, with numbers for what is computed and covered.
    AppendRows {
        rows: Vec<(i64, Vec<u32>)>,
        counts: Vec<usize>,
        computed: u8,
        covered: u8,
        most_changes: Option<usize>,
    },
    Extend {
        id: i64,
        slots: usize,
    },
    /// Ends a load: of all, of some, or but for a range.
    ExternalDone {
        id: i64,
        kind: u8,
        from: usize,
        len: usize,
    },
    TruncateBatch {
        rows: Vec<(i64, usize)>,
        until: Until,
    },
    ForkBatch(Vec<(i64, i64)>),
    ReleaseBatch {
        ids: Vec<i64>,
        until: Until,
    },
    Fence,
    EndFence(u64),
    Commit {
        id: i64,
        computed: usize,
    },
    CommitAll(i64),
    Preempt {
        id: i64,
        until: Until,
    },
    Resume(i64, Part),
    Release {
        id: i64,
        until: Until,
    },
    CompleteStep(u64),
    BumpEpoch,
    Reset,
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
    prop_oneof![
        8 => (id(), tokens(), part()).prop_map(|(id, tokens, part)| Operation::Admit { id, tokens, part }),
        3 => (id(), tokens()).prop_map(|(id, tokens)| Operation::AppendTokens { id, tokens }),
        2 => (id(), until()).prop_map(|(id, until)| Operation::Preempt { id, until }),
        3 => (id(), part()).prop_map(|(id, part)| Operation::Resume(id, part)),
        4 => (id(), until()).prop_map(|(id, until)| Operation::Release { id, until }),
    ]
}

/// Mostly the whole of a prompt.
fn part() -> impl Strategy<Value = Part> {
    let external = prop_oneof![3 => Just(0), 1 => 0usize..8];
    (prop::option::weighted(0.3, 0usize..6), external).prop_map(|(allocate_tokens, external_tokens)| Part {
        allocate_tokens,
        external_tokens,
        ..Part::WHOLE
    })
}

fn until() -> impl Strategy<Value = Until> {
    prop_oneof![
        6 => Just(Until::Now),
        2 => (0u64..10).prop_map(Until::Step),
        2 => (0u64..6).prop_map(|ticket| Until::Ticket(Ticket::new(ticket))),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let id = || 0i64..5;
    let rows = prop::collection::vec((id(), prop::collection::vec(0u32..2, 0..4)), 0..4);
    let counts = prop::collection::vec(0usize..12, 4);
    prop_oneof![
        20 => single(),
        8 => (rows, counts, 0u8..3, 0u8..3, prop::option::weighted(0.1, 0usize..4)).prop_map(
            |(rows, counts, computed, covered, most_changes)| {
                Operation::AppendRows { rows, counts, computed, covered, most_changes }
            }
        ),
        4 => (id(), 0usize..12).prop_map(|(id, slots)| Operation::Extend { id, slots }),
        5 => (id(), 0u8..3, 0usize..9, 0usize..4)
            .prop_map(|(id, kind, from, len)| Operation::ExternalDone { id, kind, from, len }),
        3 => (prop::collection::vec((id(), 0usize..9), 0..3), until())
            .prop_map(|(rows, until)| Operation::TruncateBatch { rows, until }),
        3 => prop::collection::vec((id(), id()), 0..3).prop_map(Operation::ForkBatch),
        3 => (prop::collection::vec(id(), 0..3), until())
            .prop_map(|(ids, until)| Operation::ReleaseBatch { ids, until }),
        1 => Just(Operation::Fence),
        1 => (0u64..6).prop_map(Operation::EndFence),
        8 => (prop::collection::vec(id(), 0..4), 0u32..2, any::<bool>())
            .prop_map(|(ids, token, commit_first)| Operation::Append { ids, token, commit_first }),
        4 => (id(), 0usize..12).prop_map(|(id, computed)| Operation::Commit { id, computed }),
        8 => id().prop_map(Operation::CommitAll),
        2 => (0u64..10).prop_map(Operation::CompleteStep),
        1 => Just(Operation::BumpEpoch),
        1 => Just(Operation::Reset),
        4 => Just(Operation::Digest),
        6 => (prop::collection::vec(single(), 1..4), any::<bool>())
            .prop_map(|(operations, commit)| Operation::Step { operations, commit }),
    ]
}

struct Pair {
    manager: CacheManager,
    scrubber: ManagerScrubber,
    model: ReferenceManager,
}

impl Pair {
    fn new(num_blocks: usize, watermark: f64, verify: Verify) -> Self {
        let config =
            ManagerConfig { num_blocks, block_size: BLOCK_SIZE, watermark, verify, ..Default::default() };
        let model = ReferenceManager::new(ReferencePool::new(num_blocks, BLOCK_SIZE, false), None, watermark);
        let digest = ManagerWatchConfig { digest: true, ..Default::default() };
        let manager = CacheManager::new(config).unwrap().watched(&digest).unwrap();
        Self { manager, scrubber: ManagerScrubber::default(), model }
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
        self.model.check_kv().unwrap_or_else(|wrong| panic!("{wrong} after {operation:?}"));
        let pool = self.manager.pool();
        let model = self.model.device();
        assert_eq!(indices(&pool.free_order()), model.free, "free order after {operation:?}");
        assert_eq!(indices(&pool.eviction_order()), model.eviction_order(), "after {operation:?}");
        let stats = pool.stats();
        assert_eq!((stats.free, stats.cached_free, stats.active, stats.fenced), model.sums());
        for id in 0..5 {
            let expected = self.model.requests.get(&id);
            let table = self.manager.block_table(id).ok().map(indices);
            assert_eq!(
                table,
                expected.map(|request| request.blocks.clone()),
                "table of {id} after {operation:?}"
            );
            let info = self.manager.request(id).ok();
            let info = info.map(|info| (info.state, info.tokens, info.computed_tokens));
            assert_eq!(info, expected.map(|request| (request.state, request.tokens.len(), request.computed)));
        }
    }

    fn run(&mut self, operation: &Operation) -> bool {
        let manager = &mut self.manager;
        let (done, expected) = match operation {
            &Operation::Admit { id, ref tokens, part } => {
                let cursor = manager.prepare(tokens, ExtraKeys::default()).unwrap();
                let external = part.external_tokens;
                let fit = manager.fit(&cursor, part).ok();
                assert_eq!(fit.is_some(), external < tokens.len());
                if let Some(fit) = fit {
                    let (cached, fitting) = self.model.fit(tokens, &[], part);
                    assert_eq!((fit.cached_tokens, fit.fitting_tokens), (cached * BLOCK_SIZE, fitting));
                    let fits = tokens.len().div_ceil(BLOCK_SIZE) < self.model.device().num_blocks();
                    assert_eq!(fit.can_ever_fit, fits);
                }
                let options = AdmitOptions { part, ..AdmitOptions::default() };
                let result = manager.admit_with(id, cursor, &options);
                match (&result, fit) {
                    (Ok(admission), Some(fit)) => {
                        assert_eq!(fit.fit, Fit::Ok);
                        assert_eq!(admission.cached_tokens, fit.cached_tokens);
                        assert_eq!(admission.block_ids.len() - admission.cached_blocks, fit.new_blocks);
                        let ready = fit.cached_tokens.max(external);
                        assert_eq!(admission.external_tokens, ready - fit.cached_tokens);
                    }
                    (Ok(_), None) => panic!("admitted, and it was not to fit"),
                    (Err(refused), fit) => {
                        assert_eq!(refused.cursor.num_tokens(), tokens.len(), "the prompt is handed back");
                        if let (ManagerError::OutOfBlocks(refusal), Some(fit)) = (&refused.error, fit) {
                            assert_eq!(refusal.can_ever_fit, fit.can_ever_fit);
                            let later = if fit.can_ever_fit { Fit::Later } else { Fit::Never };
                            assert_eq!(fit.fit, later);
                            assert_eq!(refusal.missing, refusal.needed - refusal.available);
                            assert_eq!(refusal.fitting_tokens, fit.fitting_tokens);
                        }
                    }
                }
                (result.is_ok(), self.model.admit(id, tokens, &[], part).is_some())
            }
            Operation::AppendRows { rows, counts, computed, covered, most_changes } => {
                let refs: Vec<_> = rows.iter().map(|&(id, _)| RequestRef::Int(id)).collect();
                let tokens: Vec<_> = rows.iter().flat_map(|(_, tokens)| tokens.clone()).collect();
                let mut offsets = vec![0];
                rows.iter().for_each(|(_, tokens)| offsets.push(offsets[offsets.len() - 1] + tokens.len()));
                let counts = &counts[..rows.len()];
                let computed =
                    [Computed::Nothing, Computed::AllButLast, Computed::Counts(counts)][*computed as usize];
                let covered = [Covered::All, Covered::Lookahead(3), Covered::Each(counts)][*covered as usize];
                let (tokens, most_changes) = (&tokens, *most_changes);
                let asked =
                    Rows { requests: &refs, tokens, offsets: &offsets, computed, covered, most_changes };
                let found = manager.append_ragged(&asked).ok();
                let found = found.map(|all| {
                    all.iter().map(|new| (new.row, new.index, new.block.index())).collect::<Vec<_>>()
                });
                let mut changed = self.model.clone();
                let expected = changed
                    .append_ragged(rows, computed, covered)
                    .filter(|changes| most_changes.is_none_or(|most| changes.len() <= most));
                if expected.is_some() {
                    self.model = changed;
                }
                assert_eq!(found, expected, "{operation:?}");
                (found.is_some(), expected.is_some())
            }
            &Operation::Extend { id, slots } => {
                let found = manager.extend(id, slots).ok();
                let found =
                    found.map(|all| all.iter().map(|c| (c.index, c.block.index())).collect::<Vec<_>>());
                let expected = self.model.extend(id, slots);
                assert_eq!(found, expected, "{operation:?}");
                (found.is_some(), expected.is_some())
            }
            &Operation::ExternalDone { id, kind, from, len } => {
                let failed = from..from + len;
                let loaded =
                    [Loaded::All, Loaded::First(from), Loaded::AllBut(std::slice::from_ref(&failed))]
                        [kind as usize];
                (manager.external_done(id, loaded).is_ok(), self.model.external_done(id, loaded).is_some())
            }
            Operation::TruncateBatch { rows, until } => {
                let refs: Vec<_> = rows.iter().map(|&(id, _)| RequestRef::Int(id)).collect();
                let lengths: Vec<_> = rows.iter().map(|&(_, keep)| keep).collect();
                (
                    manager.truncate_batch(&refs, &lengths, *until).is_ok(),
                    self.model.truncate_batch(rows, *until),
                )
            }
            Operation::ForkBatch(rows) => {
                let (parents, children): (Vec<_>, Vec<_>) = rows
                    .iter()
                    .map(|&(parent, child)| (RequestRef::Int(parent), RequestRef::Int(child)))
                    .unzip();
                (manager.fork_batch(&parents, &children).is_ok(), self.model.fork_batch(rows))
            }
            Operation::ReleaseBatch { ids, until } => {
                let refs: Vec<_> = ids.iter().map(|&id| RequestRef::Int(id)).collect();
                (manager.release_batch(&refs, *until).is_ok(), self.model.release_batch(ids, *until))
            }
            Operation::Fence => {
                assert_eq!(manager.fence().unwrap().get(), self.model.fence());
                (true, true)
            }
            &Operation::EndFence(ticket) => {
                (manager.end_fence(Ticket::new(ticket)).is_ok(), self.model.end_fence(ticket).is_some())
            }
            Operation::Append { ids, token, commit_first } => {
                let refs: Vec<_> = ids.iter().map(|&id| RequestRef::Int(id)).collect();
                let computed = if *commit_first { Computed::AllButLast } else { Computed::Nothing };
                let done = manager.append(&refs, &vec![*token; ids.len()], computed).is_ok();
                let rows: Vec<_> = ids.iter().map(|&id| (id, *token)).collect();
                (done, self.model.append(&rows, *commit_first).is_some())
            }
            Operation::AppendTokens { id, tokens } => (
                manager.append_tokens(*id, tokens, 0).is_ok(),
                self.model.append_tokens(*id, tokens, 0).is_some(),
            ),
            Operation::Commit { id, computed } => {
                (manager.commit(*id, *computed).is_ok(), self.model.commit(*id, *computed).is_some())
            }
            Operation::CommitAll(id) => {
                let all = manager.request(*id).map_or(0, |info| info.tokens);
                (manager.commit(*id, all).is_ok(), self.model.commit(*id, all).is_some())
            }
            Operation::Preempt { id, until } => {
                (manager.preempt(*id, *until).is_ok(), self.model.preempt(*id, *until))
            }
            &Operation::Resume(id, part) => {
                (manager.resume_with(id, part).is_ok(), self.model.resume(id, part).is_some())
            }
            Operation::Release { id, until } => {
                (manager.release(*id, *until).is_ok(), self.model.release(*id, *until))
            }
            Operation::CompleteStep(step) => {
                manager.complete_step(*step).unwrap();
                self.model.complete_step(*step);
                (true, true)
            }
            Operation::BumpEpoch => {
                manager.bump_epoch().unwrap();
                self.model.bump_epoch();
                (true, true)
            }
            Operation::Reset => (manager.reset().is_ok(), self.model.reset().is_some()),
            Operation::Digest => {
                self.scrubber.scrub(manager, 3).unwrap();
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
        let mut plan = self.manager.plan_step();
        let mut planned = Vec::new();
        for operation in operations {
            let manager = &self.manager;
            let (fits, step) = match operation.clone() {
                Operation::Admit { id, tokens, part } => {
                    let cursor = manager.prepare(&tokens, ExtraKeys::default()).unwrap();
                    let options = AdmitOptions { part, ..AdmitOptions::default() };
                    let cached = manager.plan_admit_with(&mut plan, id, cursor, &options).ok();
                    let step = ReferenceStep::Admit(id, tokens, Vec::new(), part, cached.unwrap_or(0));
                    (cached.is_some(), step)
                }
                Operation::AppendTokens { id, tokens } => {
                    let fits = manager.plan_append(&mut plan, id, &tokens, 0).is_ok();
                    let in_place = writes_in_place(manager.planned(&plan)).pop().unwrap_or(false);
                    (fits, ReferenceStep::Append(id, tokens, 0, None, in_place))
                }
                Operation::Preempt { id, until } => {
                    (manager.plan_preempt(&mut plan, id, until).is_ok(), ReferenceStep::Preempt(id, until))
                }
                Operation::Resume(id, part) => {
                    let cached = manager.plan_resume_with(&mut plan, id, part).ok();
                    (cached.is_some(), ReferenceStep::Resume(id, part, cached.unwrap_or(0)))
                }
                Operation::Release { id, until } => {
                    (manager.plan_release(&mut plan, id, until).is_ok(), ReferenceStep::Release(id, until))
                }
                _ => continue,
            };
            planned.extend(fits.then_some(step));
        }
        if !commit {
            return false;
        }
        let outcomes = self.manager.commit_step(&mut plan).unwrap();
        assert_eq!(outcomes.len(), planned.len());
        assert!(matches!(self.manager.commit_step(&mut plan), Err(ManagerError::StaleStep)));
        let expected = self.model.commit_step(&planned).expect("what is planned fits");
        for (outcome, expected) in outcomes.into_iter().zip(expected) {
            let found = match outcome {
                StepOutcome::Admitted(admission) => {
                    ReferenceOutcome::Admitted(indices(&admission.block_ids), admission.cached_blocks)
                }
                StepOutcome::Appended(changes) => ReferenceOutcome::Appended(
                    changes.iter().map(|change| (change.index, change.block.index())).collect(),
                ),
                _ => ReferenceOutcome::Ended,
            };
            assert_eq!(found, expected);
        }
        !planned.is_empty()
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
