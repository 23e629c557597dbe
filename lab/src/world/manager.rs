//! Tests a [`CacheManager`], with or without KV-cache groups, with random calls: defines its settings,
//! its model and the checks of its state.

use std::ops::Range;
use std::time::{Duration, Instant};

use kvpool::groups::{GroupSpec, Groups};
use kvpool::hash::Verify;
use kvpool::retention::{RetentionConfig, TenantId, TenantLimits};
use kvpool::{
    BlockId, CacheManager, DuplicatePolicy, EvictionPolicy, ManagerConfig, PoolStats, RequestInfo, StepPlan,
    Transfer, Until,
};
use kvpool_journal::calls::{Slot, Slots};
use kvpool_journal::{
    Answer, JournalConfig, JournalHeader, ManagerCall, ManagerSubject, Subject, UntilRecord, Value, Words,
};
use kvpool_observe::{ManagerScrubber, ManagerWatch, ManagerWatchConfig};

use super::World;
use super::prompts::Prompts;
use super::requests::{NUMBERS, Requests, id};
use crate::Failure;
use crate::bytes::Bytes;
use crate::draw::{Weights, groups, manager as draw};
use crate::failure::{holds, same};
use crate::model::manager::{self as model, Model};
use crate::model::pool::Expected;
use crate::model::retention::TENANT;
use crate::oracle::counters::{Before, Counters};
use crate::oracle::layers::{self, Layers};
use crate::oracle::memory::{self, Memory};
use crate::oracle::{events::Follower, explained::Explained, hits, plans, requests};

/// The upper limits of the settings and arguments that are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Number of requests.
    pub requests: i64,
    /// Maximum number of blocks of the device, including blocks that a resize adds.
    pub blocks: usize,
    /// Maximum number of full blocks of a prompt.
    pub prompt: usize,
    /// Maximum number of events between two reads of the event log.
    pub events: usize,
}

impl Scale {
    /// Small limits, so that the model is fast enough, and a reader can follow a shrunk run.
    pub const SMALL: Self = Self { requests: NUMBERS.end, blocks: 20, prompt: 5, events: 1000 };
}

/// The settings of a manager, and the settings that determine which calls are drawn for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Number of blocks of the device's pool, including the null block.
    pub num_blocks: usize,
    /// Number of blocks of the host, null block included, or 0 for no host tier.
    pub host_blocks: usize,
    /// Number of tokens of each block.
    pub block_size: usize,
    /// Whether a fifth of the pool is reserved for running requests.
    pub watermark: bool,
    /// How the manager verifies hits.
    pub verify: Verify,
    /// Whether a block stays cached after its release if another block has the same content.
    pub duplicates: DuplicatePolicy,
    /// The eviction policy.
    pub policy: EvictionPolicy,
    /// Whether the manager accepts retention hints and tenants.
    pub retention: bool,
    /// Whether free blocks are overwritten immediately in the simulated memory.
    pub scribbles: bool,
    /// Number of checks after which the expensive oracles run (events, digest, scrubber).
    pub looks: usize,
    /// The upper limits of the drawn arguments.
    pub scale: Scale,
    /// The KV-cache groups, or none for a model without groups.
    pub groups: Vec<GroupSpec>,
    /// Number of calls between two moments at which the engine of a hybrid model computes more tokens
    /// than it commits. 0 if it never does.
    pub ahead: usize,
    /// Whether misses are explained. This needs a model without hits inside blocks.
    pub explains: bool,
}

impl Setting {
    fn simplest(num_blocks: usize, block_size: usize) -> Self {
        Self {
            num_blocks,
            host_blocks: 0,
            block_size,
            watermark: false,
            verify: Verify::None,
            duplicates: DuplicatePolicy::Keep,
            policy: kvpool_policies::LRU,
            retention: false,
            scribbles: false,
            looks: 1,
            scale: Scale::SMALL,
            groups: Vec::new(),
            ahead: 0,
            explains: false,
        }
    }

    /// Returns whether the model can compute the answers. It must know the order of eviction, and it
    /// does not support KV-cache groups.
    #[must_use]
    pub fn is_modelled(&self) -> bool {
        self.policy == kvpool_policies::LRU && !self.retention && self.groups.is_empty()
    }

    /// Returns the share of the pool that is reserved for running requests.
    #[must_use]
    pub const fn share(&self) -> f64 {
        if self.watermark { 0.2 } else { 0.0 }
    }

    /// Returns the manager's KV-cache groups. Prompts are hashed in units of one block.
    fn groups(&self) -> Option<Groups> {
        Groups::new(self.groups.clone(), Some(self.block_size)).ok()
    }

    pub(crate) fn config(&self) -> ManagerConfig {
        let Self { num_blocks, host_blocks, block_size, verify, duplicates, policy, .. } = *self;
        let third = (num_blocks - 1) / 3;
        let limits = TenantLimits { tenant: TenantId(TENANT), floor: third / 2, ceiling: Some(third) };
        let retention = RetentionConfig { pin_budget: third, tenants: vec![limits] };
        ManagerConfig {
            num_blocks,
            host_blocks,
            block_size,
            watermark: self.share(),
            verify,
            duplicates,
            eviction: policy,
            retention: self.retention.then_some(retention),
            groups: self.groups(),
            ..ManagerConfig::default()
        }
    }
}

/// The part of a manager's state that a refused call must not change.
type Observed = (
    Vec<(Vec<BlockId>, Vec<BlockId>, PoolStats)>,
    Vec<Option<(RequestInfo, Vec<Vec<BlockId>>)>>,
    Vec<Transfer>,
    usize,
);

/// The manager, its model, and the records of its callers and engine.
#[derive(Debug)]
pub struct ManagerWorld {
    /// The settings.
    pub setting: Setting,
    /// The manager.
    pub subject: ManagerSubject,
    /// The model, or `None` if it does not know the order of eviction.
    pub model: Option<Model>,
    /// The prompts that were randomly generated in this run.
    pub prompts: Prompts,
    /// The requests that the manager knows, with their tokens.
    pub requests: Requests,
    /// Running swaps.
    pub swaps: Vec<u64>,
    /// Open fences.
    pub tickets: Vec<u64>,
    /// The number of the latest completed step, or `None` if no step has completed.
    pub completed: Option<u64>,
    /// The latest time.
    pub now: f64,
    /// Whether all holders hold whole prefixes: no holder has released the start of a prefix, and no
    /// block was dropped by id.
    pub(crate) whole: bool,
    pub(crate) memory: Memory,
    /// The time that the latest call to the manager took.
    pub(crate) took: Duration,
    counters: Counters,
    /// The simulated engine of a hybrid model.
    pub(crate) layers: Option<Layers>,
    /// The contents that were cached and computed so far, to check the explanations of misses.
    pub(crate) explained: Option<Explained>,
    /// The calls that have succeeded so far, if the manager has groups.
    pub(crate) history: Vec<ManagerCall>,
    pub(crate) calls: usize,
    follower: Follower,
    scrubber: ManagerScrubber,
}

/// Number of checked calls per phase, and a number `n`. In one of every `n` phases, all requests end,
/// so that a reset can succeed.
const PHASE: (usize, usize) = (24, 6);

impl ManagerWorld {
    /// Returns the manager, which the caller can read but not change.
    #[must_use]
    pub fn manager(&self) -> &CacheManager {
        self.subject.manager()
    }

    /// Returns the manager's summary of a request, given the request's number in the laboratory.
    #[must_use]
    pub fn info(&self, number: i64) -> Option<RequestInfo> {
        self.manager().request(&id(number)).ok()
    }

    /// Returns the range of numbers by which the laboratory identifies requests.
    #[must_use]
    pub const fn numbers(&self) -> Range<i64> {
        0..self.setting.scale.requests
    }

    /// Returns the number of the step that completes next.
    #[must_use]
    pub fn step(&self) -> u64 {
        self.completed.unwrap_or(0)
    }

    /// Returns whether a block of the request is the destination of a planned copy. Then the engine
    /// must take the plan before it writes to the request's blocks.
    #[must_use]
    pub fn waits_for_copy(&self, number: i64) -> bool {
        if self.layers.is_some() {
            return layers::waits(self.manager(), number);
        }
        let table = self.manager().block_table(&id(number)).unwrap_or_default();
        self.manager()
            .tiers()
            .pending_copies()
            .any(|copy| copy.dst.tier == 0 && table.contains(&copy.dst.block))
    }

    /// Returns whether requests should end now, so that a reset can succeed.
    #[must_use]
    pub const fn is_draining(&self) -> bool {
        let (calls, phases) = PHASE;
        self.calls / calls % phases == phases - 1
    }

    fn observe(&self) -> Observed {
        let tiers = self.manager().tiers();
        let pools = (0..tiers.len())
            .filter_map(|tier| tiers.pool(tier).ok())
            .map(|pool| (pool.free_order(), pool.eviction_order(), pool.stats()))
            .collect();
        let tables = |number| layers::tables(self.manager(), number);
        let requests = self.numbers().map(|number| Some((self.info(number)?, tables(number)))).collect();
        (pools, requests, tiers.pending_copies().collect(), self.manager().num_swaps())
    }

    fn compare(
        &self,
        call: &ManagerCall,
        answer: &Answer,
        expected: Option<&Expected>,
    ) -> Result<(), Failure> {
        let fine = match expected {
            None | Some(Expected::Done) => expected.is_none() || !answer.refused,
            Some(Expected::Refused) => answer.refused,
            Some(Expected::RefusedAs(text)) => {
                answer.refused && matches!(&answer.value, Value::Text(found) if found.contains(text))
            }
            Some(Expected::Is(value)) => answer.value == *value,
        };
        holds(call.call(), fine, || {
            format!("{}: answered {:?}, expected {expected:?}", call.words(), answer.value)
        })
    }

    /// Makes a call on the manager under test and on the model, and updates the records of the callers
    /// and the engine. Does not run oracles.
    pub(crate) fn run(&mut self, call: &ManagerCall, step: Option<&StepPlan>) -> Result<Answer, Failure> {
        let until = self.until(call);
        let fenced = (until != Until::Now).then(|| memory::fenced(self.manager()));
        let loaded = model::before(self, call)?;
        let planned = step.map_or(&[][..], |step| self.subject.manager().planned(step));
        let before = Before::of(self.manager(), call, planned);
        let (prompts, requests) = (&self.prompts, &self.requests);
        let expected = self.model.as_mut().map(|model| model.expected(call, planned, requests, prompts));
        let planned: Vec<_> = planned.iter().map(model::Done::of).collect();
        let cached = self.explained.as_ref().map(|_| hits::cached(self.manager())).unwrap_or_default();
        let begun = Instant::now();
        let answer = self.subject.run(call).map_err(|error| Failure::new("replay", error.to_string()))?;
        self.took = begun.elapsed();
        self.compare(call, &answer, expected.as_ref())?;
        let arrived = loaded.map(|load| load.tokens);
        self.counters.note(before, call, &answer, (self.subject.manager(), arrived))?;
        self.layers.iter_mut().for_each(|layers| layers.called(answer.refused));
        if !answer.refused {
            hits::check_load(self, call, loaded)?;
            model::after(self, call, &answer, &planned)?;
            model::explain(self, call, &planned, loaded, &cached)?;
            if let Some(fenced) = fenced {
                self.memory.fence(&fenced, self.subject.manager(), until);
            }
        }
        Ok(answer)
    }

    /// Runs all oracles that check the state at one moment. The others compare the states before and
    /// after a call.
    pub(crate) fn check(&mut self) -> Result<(), Failure> {
        let manager = self.subject.manager();
        manager.check_invariants()?;
        if let Some(model) = &self.model {
            requests::check(manager, model, &self.prompts)?;
        }
        self.counters.check(manager)?;
        self.memory.scribble(manager);
        self.calls += 1;
        if let Some(layers) = self.layers.as_mut().filter(|layers| !layers.is_lost) {
            if self.setting.ahead > 0 && self.calls.is_multiple_of(self.setting.ahead) {
                layers.run_ahead(&mut self.memory, manager, &self.requests, self.setting.block_size)?;
            }
            layers.check(&self.memory, manager, &self.requests, &self.prompts)?;
        } else if self.layers.is_none() {
            self.memory.check(manager, &self.requests, &self.prompts)?;
        }
        if self.calls.is_multiple_of(self.setting.looks) { self.look() } else { Ok(()) }
    }

    /// Runs the expensive oracles, which check several calls at a time (events, digest, scrubber).
    fn look(&mut self) -> Result<(), Failure> {
        let batch = self.subject.unrecorded(CacheManager::take_events);
        let chained = |group: u16| match self.setting.groups.get(usize::from(group)) {
            None => Some(1),
            Some(spec) => spec.kind.is_full().then(|| spec.block_tokens / self.setting.block_size),
        };
        self.follower.follow(batch, self.subject.manager().pool(), &self.prompts, chained)?;
        let stored = self.follower.take_stored();
        self.explained.iter_mut().for_each(|explained| explained.stored(stored.iter().copied()));
        // Do not check that every cached block has a cached parent while copies are planned. A planned
        // copy may hold a block that was removed from the order of eviction, and the parent of that
        // block may be evicted before the plan is taken.
        let is_settled = self.manager().tiers().num_planned() == 0;
        if self.whole && is_settled {
            crate::oracle::closedness::check(&self.follower)?;
        }
        let scrubber = &mut self.scrubber;
        self.subject.unrecorded(|manager| {
            same("digest", &manager.state_digest(), &Some(manager.state_digest_from_scratch()))?;
            let scrubbed = scrubber.scrub(manager, 2);
            scrubbed.map(drop).map_err(|error| Failure::new("scrub", error.to_string()))
        })
    }

    /// Returns the fence or step that has to end before the blocks that a call releases become
    /// allocatable.
    fn until(&self, call: &ManagerCall) -> Until {
        let mut call = call.clone();
        let until = call.slots().into_iter().find_map(|slot| match slot {
            Slot::Reuse(until) => Some(*until),
            _ => None,
        });
        let has_completed = |step| self.completed.is_some_and(|latest| step <= latest);
        match until.unwrap_or_default() {
            UntilRecord::Step(step) if has_completed(step) => Until::Now,
            until => until.until(),
        }
    }
}

impl World for ManagerWorld {
    type Subject = ManagerSubject;
    type Setting = Setting;
    type Draft = draw::Draft;
    type Memory = Prompts;

    fn setting(bytes: &mut Bytes<'_>) -> Setting {
        let policies = kvpool_policies::ALL;
        let num_blocks = 3 + bytes.below(15);
        // Two thirds of all settings use plain LRU, because the model knows its order of eviction.
        let position = bytes.below(3 * policies.len()).saturating_sub(2 * policies.len());
        let policy = policies.get(position).copied().unwrap_or(kvpool_policies::LRU);
        let retention = bytes.one_in(4) && policy != kvpool_policies::LAST_ACCESS;
        let verify = [Verify::None, Verify::None, Verify::Fingerprint, Verify::Tokens][bytes.below(4)];
        let host_blocks = [0, 2, 3, 5, 8, 12][bytes.below(6)];
        let (watermark, drop, scribbles) = (bytes.one_in(3), bytes.one_in(4), bytes.one_in(2));
        let (block_size, looks) = ([2, 1, 3][bytes.below(3)], [1, 1, 3, 8][bytes.below(4)]);
        let duplicates = if drop { DuplicatePolicy::DropOnRelease } else { DuplicatePolicy::Keep };
        let plain = Setting {
            num_blocks,
            host_blocks,
            block_size,
            watermark,
            verify,
            duplicates,
            policy,
            retention,
            scribbles,
            looks,
            scale: Scale::SMALL,
            groups: Vec::new(),
            ahead: 0,
            explains: false,
        };
        if !bytes.one_in(3) {
            return plain;
        }
        // Pools with KV-cache groups do not verify hits, and need more blocks.
        let groups = groups::specs(bytes);
        let block_size = Groups::new(groups.clone(), None).map_or(1, |groups| groups.unit());
        let (num_blocks, ahead) = (3 + bytes.below(38), bytes.below(4));
        let explains = bytes.one_in(3) && groups.iter().all(|spec| !spec.partial_hits);
        let looks = if explains { 1 } else { plain.looks };
        let scale = Scale { blocks: 42, prompt: (24 / block_size).max(2), ..Scale::SMALL };
        let verify = Verify::None;
        Setting { groups, block_size, num_blocks, ahead, explains, looks, scale, verify, ..plain }
    }

    fn is_of_python(setting: &Setting) -> bool {
        setting.policy != kvpool_policies::HAZARD
    }

    fn simpler(setting: &Setting) -> Vec<Setting> {
        let Setting { num_blocks, host_blocks, block_size, .. } = *setting;
        let simplest = Setting::simplest(num_blocks, block_size);
        let with = |groups: Vec<GroupSpec>| {
            let block_size = Groups::new(groups.clone(), None).map_or(1, |groups| groups.unit());
            Setting { groups, block_size, ..setting.clone() }
        };
        let simplest = Setting { groups: setting.groups.clone(), scale: setting.scale, ..simplest };
        let tried = [
            simplest.clone(),
            Setting { host_blocks, ..simplest },
            Setting { host_blocks: 0, ..setting.clone() },
            Setting { watermark: false, ..setting.clone() },
            Setting { retention: false, ..setting.clone() },
            Setting { verify: Verify::None, ..setting.clone() },
            Setting { duplicates: DuplicatePolicy::Keep, ..setting.clone() },
            Setting { looks: 1, ..setting.clone() },
            Setting { scribbles: false, ..setting.clone() },
            Setting { ahead: 0, ..setting.clone() },
            Setting { explains: false, ..setting.clone() },
        ];
        let fewer = (3..num_blocks).map(|num_blocks| Setting { num_blocks, ..setting.clone() });
        let hybrid = groups::simpler(&setting.groups).into_iter().map(with);
        // Keep the block size, because the drawn prompts of a run have blocks of this size.
        let hybrid = hybrid.filter(|other| other.block_size == block_size);
        tried.into_iter().chain(hybrid).chain(fewer).filter(|other| other != setting).collect()
    }

    fn memory(&self) -> &Prompts {
        &self.prompts
    }

    fn new(setting: &Setting, memory: Option<&Prompts>) -> Result<Self, Failure> {
        let subject = ManagerSubject::verified_in_full(&Self::header(setting)?);
        let mut subject = subject.map_err(|error| Failure::new("setting", error.to_string()))?;
        let explained = setting.groups().filter(|_| setting.explains).map(Explained::new);
        if explained.is_some() {
            let watched =
                subject.unrecorded(|manager| manager.watch(&Explained::watch(setting.scale.events)));
            watched.map_err(|error| Failure::new("setting", error.to_string()))?;
        }
        let keeps_time = subject.manager().pool().keeps_time();
        let new_prompts = || Prompts::new(setting.block_size, setting.verify, None);
        Ok(Self {
            model: setting.is_modelled().then(|| Model::new(setting, keeps_time)),
            prompts: memory.map_or_else(new_prompts, |prompts| Ok(prompts.clone()))?,
            memory: Memory::new(setting.block_size, setting.scribbles),
            layers: (!setting.groups.is_empty()).then(|| Layers::new(&setting.groups)),
            explained,
            history: Vec::new(),
            setting: setting.clone(),
            subject,
            requests: Requests::default(),
            swaps: Vec::new(),
            tickets: Vec::new(),
            completed: None,
            now: 0.0,
            whole: true,
            took: Duration::ZERO,
            calls: 0,
            counters: Counters::default(),
            follower: Follower::default(),
            scrubber: ManagerScrubber::default(),
        })
    }

    fn header(setting: &Setting) -> Result<JournalHeader, Failure> {
        let watch =
            ManagerWatchConfig { event_capacity: setting.scale.events, ..ManagerWatchConfig::default() };
        let journal = JournalConfig { digest_every: 1, ..JournalConfig::default() };
        Ok(JournalHeader::of_manager(&setting.config(), &watch, journal))
    }

    fn weights(&self) -> Weights {
        draw::weights(self)
    }

    fn draft(&self, call: &'static str) -> draw::Draft {
        draw::Draft::of(call)
    }

    fn fill(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>, draft: &mut draw::Draft) -> bool {
        draw::fill(slot, bytes, self, draft)
    }

    fn spoil(&mut self, slot: Slot<'_>, bytes: &mut Bytes<'_>) -> bool {
        draw::spoil(slot, bytes, self);
        true
    }

    fn fit(&mut self, call: &mut ManagerCall) {
        let (epoch, Self { requests, prompts, .. }) = (self.epoch(), self);
        for slot in call.slots() {
            match slot {
                Slot::Append(append) => requests.fit_append(append, prompts, epoch),
                Slot::Turn(turn) => requests.fit_turn(turn, prompts, epoch),
                Slot::Plan(plan) => {
                    plan.planned.iter_mut().for_each(|one| requests.fit_planned(one, prompts, epoch));
                }
                _ => {}
            }
        }
    }

    fn make(&mut self, call: &ManagerCall) -> Result<Answer, Failure> {
        let before = self.observe();
        let (mut step, fit) = (plans::plan(self, call)?, plans::fit(self, call)?);
        same("state after a plan and a look", &self.observe(), &before)?;
        let answer = self.run(call, step.as_ref())?;
        plans::check_fit(fit.as_ref(), &answer, &self.setting)?;
        if answer.refused {
            same("state after a refusal", &self.observe(), &before)?;
            hits::check_refusal(self, call, &answer)?;
        }
        plans::is_stale(self, &mut step)?;
        if self.layers.is_some() && !answer.refused {
            self.history.push(call.clone());
        }
        self.check()?;
        Ok(answer)
    }

    fn epoch(&self) -> u64 {
        self.manager().pool().epoch()
    }
}
