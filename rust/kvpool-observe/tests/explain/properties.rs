//! Compares explanations with the model under random operations, with every policy, with and without
//! retention. The tests use an explainer that has room for everything, and one that has room for 16
//! contents, which has to report if it does not remember a content.

use std::collections::BTreeMap;

use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, Then, Ttl};
use kvpool::{
    Adapter, AdmitOptions, BlockHash, BlockId, CacheManager, EvictionPolicy, ExtraKeys, ManagerConfig,
    RequestId, RetentionRange,
};
use kvpool_observe::explain::Requester;
use kvpool_observe::{ExplainConfig, ManagerWatch, MissReason};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use super::model::{BlockHints, Model, Prompt, Runner, is_running};
use super::{BLOCK, explaining};

const LIFE: f64 = 10.0;

#[derive(Clone, Debug)]
enum Operation {
    /// Admits a prompt. The first field determines its tokens, and the second its extra keys.
    Admit(Vec<u8>, u8),
    /// Admits a prompt that continues the tokens of a request.
    Continue(usize, Vec<u8>),
    Commit(usize, usize),
    Append(usize, Vec<u8>),
    Release(usize),
    Preempt(usize),
    Resume(usize),
    Evict(u32),
    Reset,
    BumpEpoch,
    Wait(u8),
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let choices = |most: usize| vec(0..3_u8, 1..most);
    prop_oneof![
        12 => (choices(22), 0..8_u8).prop_map(|(tokens, keys)| Admit(tokens, keys)),
        4 => (any::<usize>(), choices(9)).prop_map(|(which, tokens)| Continue(which, tokens)),
        12 => (any::<usize>(), 0..30_usize).prop_map(|(which, tokens)| Commit(which, tokens)),
        4 => (any::<usize>(), choices(6)).prop_map(|(which, tokens)| Append(which, tokens)),
        8 => any::<usize>().prop_map(Release),
        2 => any::<usize>().prop_map(Preempt),
        4 => any::<usize>().prop_map(Resume),
        1 => (1..20_u32).prop_map(Evict),
        1 => Just(Reset),
        1 => Just(BumpEpoch),
        3 => (1..8_u8).prop_map(Wait),
    ]
}

fn extra(keys: u8) -> ExtraKeys {
    ExtraKeys {
        salt: (keys & 3 == 3).then(|| (*b"salt").into()),
        adapter: (keys & 6 == 6).then(|| Adapter { id: (*b"lora").into(), path: None }),
        ..ExtraKeys::default()
    }
}

/// A request of the test, with the data that the comparison needs.
#[derive(Debug)]
struct Request {
    id: String,
    tokens: Vec<u32>,
    extra: ExtraKeys,
    hashes: Vec<BlockHash>,
    /// Number of full blocks at the last admission. Blocks that the request appends later are not
    /// requested.
    asked: usize,
    published: usize,
    committed: usize,
    own_from: usize,
    /// Time of the admission, from which absolute times to live are counted.
    since: f64,
    hints: AdmitOptions,
}

struct World {
    manager: CacheManager,
    model: Model,
    requests: Vec<Request>,
    retention: bool,
    /// Whether the record of the explainer is large enough to remember everything.
    remembers: bool,
    next: usize,
    now: f64,
}

impl World {
    fn new(policy: EvictionPolicy, retention: bool, records: usize) -> Self {
        let retention = retention && policy != kvpool_policies::LAST_ACCESS;
        let config = ManagerConfig {
            num_blocks: 14,
            block_size: BLOCK,
            eviction: policy,
            retention: retention.then(RetentionConfig::default),
            ..ManagerConfig::default()
        };
        let mut manager = explaining(config, ExplainConfig { records: Some(records), requests: 8 });
        let mut model = Model::new(policy.name(), records > 1000);
        if retention {
            manager.advance_time(0.0).unwrap();
            model.time = Some(0.0);
        }
        let remembers = records > 1000;
        Self { manager, model, requests: Vec::new(), retention, remembers, next: 0, now: 0.0 }
    }

    fn hashes(&self, tokens: &[u32], extra: &ExtraKeys) -> Vec<BlockHash> {
        self.manager.prepare(tokens, extra.clone()).unwrap().chain().hashes().to_vec()
    }

    /// Returns the retention hints of a prompt. They depend on its first two tokens.
    fn hints(&self, tokens: &[u32]) -> AdmitOptions {
        let keep = |priority, ttl, then| {
            let keep = Keep::Priority(Priority::new(priority).unwrap());
            let retention = Retention { keep, ttl, then };
            let ranges = vec![RetentionRange { start: 0, end: None, retention }];
            AdmitOptions { ranges, ..AdmitOptions::default() }
        };
        match (tokens[0] + tokens.get(1).unwrap_or(&0)) % 6 {
            _ if !self.retention => AdmitOptions::default(),
            1 => keep(80, Some(Ttl::Absolute(LIFE)), Then::Normal),
            2 => keep(80, Some(Ttl::Absolute(LIFE)), Then::Demote),
            3 => keep(5, None, Then::Normal),
            4 => AdmitOptions { no_cache: true, ..AdmitOptions::default() },
            _ => AdmitOptions::default(),
        }
    }

    /// Passes the retention hints for blocks of a request's table to the model, as a manager applies
    /// them.
    fn say(&mut self, request: usize, positions: std::ops::Range<usize>, ends: bool) {
        let Request { id, since, own_from, hints, .. } = &self.requests[request];
        let (hints, until, now) = (hints.clone(), since + LIFE, self.now);
        let table: Vec<BlockId> = self.manager.block_table(id.as_str()).unwrap().to_vec();
        for at in positions {
            let shared = self.manager.pool().ref_count(table[at]) > Some(1);
            let said = self.model.said.entry(table[at]).or_default();
            let demote = |said: &mut BlockHints| {
                if !shared {
                    let expired = said.expired && said.demoted;
                    *said = BlockHints { demoted: true, expired, ..BlockHints::default() };
                }
            };
            match hints.ranges.first().map(|range| range.retention) {
                Some(Retention { ttl: Some(_), .. }) if now < until && ends => {}
                Some(Retention { ttl: Some(_), then, .. }) if now < until => {
                    let deadline = Some((until, then == Then::Demote));
                    *said = BlockHints { priority: true, deadline, ..BlockHints::default() };
                }
                Some(Retention { ttl: Some(_), then: Then::Demote, .. }) => demote(said),
                Some(Retention { ttl: None, .. }) if !ends => {
                    *said = BlockHints { priority: true, ..BlockHints::default() };
                }
                None if hints.no_cache && !ends && at >= *own_from => demote(said),
                _ => {}
            }
        }
    }

    fn observe(&mut self, kind: Option<&'static str>, request: Option<usize>, epoch: u64) {
        let requester = request.map(|at| {
            let Request { id, extra, .. } = &self.requests[at];
            (RequestId::from(id.as_str()), extra.clone())
        });
        self.model.observe(&self.manager, kind, requester.as_ref(), epoch);
    }

    fn runners(&self) -> Vec<Runner> {
        let running =
            self.requests.iter().filter(|request| is_running(&self.manager, &request.id.as_str().into()));
        running
            .map(|Request { id, extra, hashes, asked, published, .. }| Runner {
                id: id.as_str().into(),
                extra: extra.clone(),
                hashes: hashes.clone(),
                asked: *asked,
                published: *published,
            })
            .collect()
    }

    /// Compares the explanation of the last admission or resumption with the model. The model has not
    /// seen that admission yet.
    fn explained(&mut self, at: usize, runners: &[Runner], cached: usize, resumed: bool) {
        let (id, tokens, extra, hashes) = {
            let Request { id, tokens, extra, hashes, .. } = &self.requests[at];
            (id.clone(), tokens.clone(), extra.clone(), hashes.clone())
        };
        self.model.admissions += 1;
        let explanation = self.manager.explain(id.as_str()).unwrap();
        assert_eq!((explanation.admission, explanation.resumed), (self.model.admissions, resumed));
        assert_eq!((explanation.prompt_tokens, explanation.cached_tokens), (tokens.len(), cached * BLOCK));
        let prompt = Prompt { tokens: &tokens, hashes: &hashes, extra: &extra };
        let blocks = self.model.expected(&explanation, prompt, runners);
        for (position, given, right) in blocks {
            let computing = |runner: &Runner| {
                runner.published <= position && runner.hashes.get(position) == hashes.get(position)
            };
            // A small record of the explainer may have lost the entry that shows that the content is
            // cached.
            let computed = matches!(given, MissReason::BeingComputed { .. }) && runners.iter().any(computing);
            let honest = right.contains(&given)
                || (!self.remembers && computed)
                || (!self.remembers && self.is_forgotten(&given, &right, prompt));
            assert!(honest, "{id}, block {position}: {given:?}, not of {right:?}\n{explanation}");
        }
        // The match was acquired, so every block that was hit has been used.
        let table: Vec<BlockId> = self.manager.block_table(id.as_str()).unwrap().to_vec();
        for block in &table[..cached] {
            let said = self.model.said.entry(*block).or_default();
            (said.expired, said.demoted) = (false, false);
        }
        if cached == 0 && !hashes.is_empty() {
            self.model.enter_context(&tokens, &extra);
        }
        self.model.enter(&hashes, &tokens, cached..hashes.len(), true);
        self.observe(None, Some(at), 0);
        self.requests[at].asked = hashes.len();
        self.requests[at].published = cached;
        self.requests[at].committed = cached * BLOCK;
        self.say(at, 0..cached, false);
    }

    /// Returns whether a reason is wrong only because a small record has lost entries.
    fn is_forgotten(&self, given: &MissReason, right: &[MissReason], prompt: Prompt<'_>) -> bool {
        let alike = |requester: &Requester| {
            let known = right.iter().filter_map(MissReason::requester).any(|right| right == requester);
            *requester == Requester::Unknown || known
        };
        match given {
            MissReason::NotRemembered | MissReason::Behind => true,
            MissReason::Diverged { token } => self.model.diverges(prompt, *token),
            MissReason::OtherEpoch { .. } | MissReason::OtherSalt | MissReason::OtherAdapter => {
                self.model.differs(prompt, |reason| reason == given)
            }
            MissReason::OtherKeys => {
                self.model.differs(prompt, |reason| *reason != MissReason::NotRemembered)
            }
            // A small record may lose the time of an eviction and the request that caused it, but not
            // the reason itself.
            _ if given.when().is_some() => {
                right.iter().any(|right| right.name() == given.name()) && given.requester().is_none_or(alike)
            }
            // A small record may forget that another request computed the block before. It may not
            // forget why the content then left the cache.
            _ => right.iter().any(|right| right.name() == given.name()),
        }
    }

    fn pick(&self, which: usize, running: bool) -> Option<usize> {
        let fits = |at: &usize| is_running(&self.manager, &self.requests[*at].id.as_str().into()) == running;
        let known: Vec<_> = (0..self.requests.len()).filter(fits).collect();
        known.get(which % known.len().max(1)).copied()
    }

    fn admit(&mut self, tokens: Vec<u32>, keys: ExtraKeys) {
        let extra = ExtraKeys { epoch: self.manager.pool().epoch(), ..keys };
        let id = format!("r{}", self.next);
        self.next += 1;
        let (hashes, hints) = (self.hashes(&tokens, &extra), self.hints(&tokens));
        let cursor = self.manager.prepare(&tokens, extra.clone()).unwrap();
        let runners = self.runners();
        let Ok(admission) = self.manager.admit_with(id.as_str(), cursor, &hints) else { return };
        let cached = admission.cached_blocks;
        let (published, committed, own_from, since) = (cached, cached * BLOCK, cached, self.now);
        let asked = hashes.len();
        self.requests.push(Request {
            id,
            tokens,
            extra,
            hashes,
            asked,
            published,
            committed,
            own_from,
            since,
            hints,
        });
        self.explained(self.requests.len() - 1, &runners, cached, false);
    }

    fn run(&mut self, operation: Operation) {
        match operation {
            Operation::Admit(choices, keys) => {
                self.admit(choices.into_iter().map(u32::from).collect(), extra(keys));
            }
            Operation::Continue(which, choices) => {
                let Some(request) = self.requests.get(which % self.requests.len().max(1)) else { return };
                let mut tokens = request.tokens.clone();
                tokens.extend(choices.into_iter().map(u32::from));
                let keys = request.extra.clone();
                self.admit(tokens, keys);
            }
            Operation::Commit(which, more) => {
                let Some(at) = self.pick(which, true) else { return };
                let request = &mut self.requests[at];
                request.committed = (request.committed + more).min(request.tokens.len());
                let (id, before) = (request.id.clone(), request.published);
                let committed = request.committed;
                let published = before + self.manager.commit(id.as_str(), committed).unwrap();
                let (hashes, tokens) = (request.hashes.clone(), request.tokens.clone());
                request.published = published;
                let extra = request.extra.clone();
                if before == 0 && published > 0 {
                    self.model.enter_context(&tokens, &extra);
                }
                self.model.enter(&hashes, &tokens, before..published, false);
                self.observe(None, None, 0);
                self.say(at, before..published, false);
            }
            Operation::Append(which, choices) => {
                let Some(at) = self.pick(which, true) else { return };
                let more: Vec<u32> = choices.into_iter().map(u32::from).collect();
                let id = self.requests[at].id.clone();
                if self.manager.append_tokens(id.as_str(), &more, 0).is_ok() {
                    self.requests[at].tokens.extend(more);
                    let Request { tokens, extra, .. } = &self.requests[at];
                    self.requests[at].hashes = self.hashes(tokens, extra);
                    self.observe(None, Some(at), 0);
                }
            }
            Operation::Release(which) => {
                let Some(request) = self.requests.get(which % self.requests.len().max(1)) else { return };
                let at = which % self.requests.len();
                if is_running(&self.manager, &request.id.as_str().into()) {
                    let published = request.published;
                    self.say(at, 0..published, true);
                }
                let request = self.requests.remove(at);
                self.manager.release(request.id.as_str(), None).unwrap();
                self.observe(None, None, 0);
            }
            Operation::Preempt(which) => {
                let Some(at) = self.pick(which, true) else { return };
                let id = self.requests[at].id.clone();
                self.manager.preempt(id.as_str(), None).unwrap();
                self.observe(None, None, 0);
            }
            Operation::Resume(which) => {
                let Some(at) = self.pick(which, false) else { return };
                let (id, runners) = (self.requests[at].id.clone(), self.runners());
                if let Ok(admission) = self.manager.resume(id.as_str()) {
                    let epoch = self.manager.pool().epoch();
                    let Request { tokens, extra, own_from, .. } = &mut self.requests[at];
                    extra.epoch = epoch;
                    *own_from = (*own_from).min(admission.cached_blocks);
                    let (tokens, extra) = (tokens.clone(), extra.clone());
                    self.requests[at].hashes = self.hashes(&tokens, &extra);
                    self.explained(at, &runners, admission.cached_blocks, true);
                }
            }
            Operation::Evict(block) => {
                let block = BlockId::new(block);
                if self.manager.drop_cached(&[block]).is_ok() {
                    self.observe(Some("dropped-by-id"), None, 0);
                }
            }
            Operation::Reset => {
                if self.manager.reset().is_ok() {
                    self.observe(Some("reset"), None, 0);
                }
            }
            Operation::BumpEpoch => {
                let epoch = self.manager.pool().epoch();
                self.manager.bump_epoch().unwrap();
                self.observe(Some("other-epoch"), None, epoch);
            }
            Operation::Wait(seconds) => {
                self.now += f64::from(seconds);
                if self.retention {
                    self.manager.advance_time(self.now).unwrap();
                    self.model.time = Some(self.now);
                    for said in self.model.said.values_mut() {
                        if let Some((_, demoted)) = said.deadline.filter(|&(until, _)| until <= self.now) {
                            *said = BlockHints { demoted, expired: true, ..BlockHints::default() };
                        }
                    }
                }
            }
        }
    }

    fn check(&self) {
        self.manager.check_invariants().unwrap();
        let stats = self.manager.misses().unwrap();
        for (counts, known) in [stats.admitted, stats.resumed].iter().zip(&self.model.misses) {
            let counted: BTreeMap<_, _> = counts.iter().filter(|&(_, tokens)| tokens > 0).collect();
            assert_eq!(counted, *known);
        }
    }
}

fn run(policy: EvictionPolicy, retention: bool, records: usize, operations: Vec<Operation>) {
    let mut world = World::new(policy, retention, records);
    for operation in operations {
        world.run(operation);
        world.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
     })]

    #[test]
    fn the_reason_equals_the_models(
        policy in proptest::sample::select(kvpool_policies::ALL),
        retention: bool,
        operations in vec(operation(), 1..90),
    ) {
        run(policy, retention, 4096, operations);
    }

    /// A record that loses entries never gives a wrong reason.
    #[test]
    fn a_record_that_forgets_gives_no_wrong_reason(
        policy in proptest::sample::select(kvpool_policies::ALL),
        retention: bool,
        operations in vec(operation(), 1..90),
    ) {
        run(policy, retention, 16, operations);
    }
}
