//! Why did it miss? [`CacheManager::explain`] answers for each block of a prompt that was not found.
//!
//! Owns: the record of contents that were seen (`record`), in which contexts (`contexts`), what evicted them, and the
//! explanations of requests. It is told what happens, by the pool's log of contents that come and go and by the calls that
//! admit and commit, and changes nothing: a manager that explains hands out the same blocks as one that does not.
//!
//! A miss is explained when it happens, once, at the admission (of a planned step: at its commit) or the resumption: O(1) per
//! missed block, nothing per block that hits. What comes behind the first missed block is explained too, block by block; what
//! is [`MissReason::Behind`] has no reason of its own.
//!
//! There is no clock: *when* is the number of admissions until then, and the time that retention was told.
//!
//! **Whom it may be told.** An explanation says what others asked for: that their tokens were the same up to some token, or
//! the same under another salt. That is for whoever runs the engine. Ids of requests are told only within one principal: the
//! same salt, tenant and user, and the same tenant of retention; of all others it is said that there was one.
//!
//! Invariants, recounted by [`CacheManager::check_invariants`]: X1 and X2 of `record`; X3: tokens by reason sum up to the
//! tokens that were computed.
//!
//! Costs: nothing without [`ManagerConfig::explain`](super::ManagerConfig::explain) but a branch per call. With it see
//! [`ExplainConfig`]; all but explanations, one list of spans per request, and the ids of requests is allocated at construction.

mod config;
mod contexts;
mod reason;
mod record;
mod text;

use std::collections::VecDeque;
use std::ops::Range;

use super::CacheManager;
use super::error::ManagerError;
use super::hints::Hints;
use super::request::{Request, RequestId, RequestRef, RequestState};
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::hash::HashCursor;
use crate::pool::{Cause, Change, PrefixMatch};
use crate::retention::EvictionCause;
pub use config::ExplainConfig;
use contexts::{Context, Contexts, principal};
pub use reason::{Explanation, MissCounts, MissReason, MissSpan, MissStats, When, Whom};
use record::{Before, Record, Standing};

/// An operation that made contents leave.
#[derive(Debug)]
struct Operation {
    time: Option<f64>,
    /// For whose blocks.
    request: Option<(RequestId, u64)>,
}

/// What the manager remembers in order to explain.
#[derive(Debug)]
pub(super) struct Explainer {
    record: Record,
    contexts: Contexts,
    /// The last ones; the number of the first is `first_operation`.
    operations: VecDeque<Operation>,
    first_operation: u64,
    max_operations: usize,
    /// By slot of the request.
    explanations: Vec<Option<Box<Explanation>>>,
    /// Of released requests, the last ones.
    past: VecDeque<Box<Explanation>>,
    max_past: usize,
    policy: &'static str,
    pub(super) misses: MissStats,
    /// Reused by every call.
    changes: Vec<Change>,
}

/// Whether the request in `slot` is computing the block at `position` that has this key, to publish it.
fn computes(requests: &[Option<Request>], slot: usize, position: usize, key: u64, epoch: u64) -> bool {
    let Some(request) = requests.get(slot).and_then(Option::as_ref) else { return false };
    let sequence = &request.sequence;
    request.state == RequestState::Running
        && sequence.publishes
        && sequence.published <= position
        && sequence.cursor.epoch() == epoch
        && sequence.cursor.chain().hashes().get(position).is_some_and(|hash| hash.key() == key)
}

/// Whose a request is.
fn principal_of(request: &Request) -> u64 {
    let tenant = request.hints.as_deref().and_then(Hints::tenant);
    principal(request.sequence.cursor.extra(), tenant.map(|tenant| tenant.0))
}

/// What comes before the block at `position`.
fn before(cursor: &HashCursor, position: usize) -> Before {
    let parent = position.checked_sub(1).and_then(|at| cursor.chain().hashes().get(at));
    parent.map_or(Before::Start, |hash| Before::Key(hash.key()))
}

impl Explainer {
    /// What remembers nothing yet, for a pool of so many usable blocks whose policy has this name.
    pub(super) fn new(
        config: &ExplainConfig,
        usable: usize,
        block_size: usize,
        policy: &'static str,
    ) -> Result<Self, PoolError> {
        config.check()?;
        let records = config.num_records(usable);
        Ok(Self {
            record: Record::new(records, block_size)?,
            contexts: Contexts::new()?,
            operations: VecDeque::new(),
            first_operation: 0,
            max_operations: records.div_ceil(4),
            explanations: Vec::new(),
            past: VecDeque::new(),
            max_past: config.requests,
            policy,
            misses: MissStats::default(),
            changes: Vec::new(),
        })
    }

    /// Takes in what came and went, in an operation for the blocks of `request`.
    fn take_in(&mut self, admission: u64, time: Option<f64>, request: Option<&Request>) {
        let changes = std::mem::take(&mut self.changes);
        let departed = |change: &Change| !matches!(change, Change::Appeared { .. });
        let operation = self.first_operation + self.operations.len() as u64;
        if changes.iter().any(departed) {
            if self.operations.len() >= self.max_operations {
                self.operations.pop_front();
                self.first_operation += 1;
            }
            let request = request.map(|request| (request.id.clone(), principal_of(request)));
            self.operations.push_back(Operation { time, request });
        }
        for change in &changes {
            match *change {
                Change::Appeared { key } => self.record.appeared(key),
                Change::Departed { key, cause } => self.record.departed(key, cause, operation, admission),
                Change::Cleared { cause } => self.record.cleared(cause, operation, admission),
            }
        }
        self.changes = changes;
    }

    /// Why a content left.
    fn departure(&self, cause: Cause, operation: u64, admission: u64, principal: u64) -> MissReason {
        let at = operation.checked_sub(self.first_operation).and_then(|at| usize::try_from(at).ok());
        let operation = at.and_then(|at| self.operations.get(at));
        let when = When { admission, time: operation.and_then(|operation| operation.time) };
        let whom = match operation.and_then(|operation| operation.request.as_ref()) {
            None => Whom::Unknown,
            Some((id, theirs)) if *theirs == principal => Whom::Request(id.clone()),
            Some(_) => Whom::Another,
        };
        match cause {
            Cause::ById => MissReason::DroppedById { when },
            Cause::Reset => MissReason::Reset { when },
            Cause::Epoch(epoch) => MissReason::OtherEpoch { epoch },
            Cause::Evicted(EvictionCause::Priority) => MissReason::Evicted { when, policy: "priority", whom },
            Cause::Evicted(EvictionCause::EndOfLife) => MissReason::EndOfLife { when, whom },
            Cause::Evicted(EvictionCause::Expired) => MissReason::Expired { when, whom },
            Cause::Evicted(EvictionCause::TenantCeiling) => MissReason::TenantCeiling { when, whom },
            Cause::Evicted(_) => MissReason::Evicted { when, policy: self.policy, whom },
        }
    }

    /// Why the block at `position` is not known at all. `parent` is the entry before it.
    fn unknown(&self, cursor: &HashCursor, position: usize, parent: Option<u32>, hit: bool) -> MissReason {
        let block_size = cursor.hasher().block_size();
        let tokens = cursor.chain().block_tokens(position).unwrap_or_default();
        if position == 0
            && let Some(reason) = self.contexts.find(tokens, &Context::new(cursor.extra(), block_size))
        {
            return reason;
        }
        // What comes before it is neither cached nor remembered: a reason of its own it has none.
        let Some(parent) = parent else {
            return if hit { MissReason::NotRemembered } else { MissReason::Behind };
        };
        let common = |seen: &[u32]| seen.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let longest = self.record.behind(parent).map(common).max();
        match longest {
            // The same tokens behind the same prompt: something else must differ.
            Some(longest) if longest == block_size => MissReason::OtherKeys,
            Some(longest) if longest > 0 => MissReason::Diverged { token: position * block_size + longest },
            _ if self.record.in_doubt(parent) => MissReason::NotRemembered,
            Some(_) if position > 0 => MissReason::Diverged { token: position * block_size },
            _ => MissReason::NeverSeen,
        }
    }

    /// Explains the prompt of the request in `slot`, which was matched just now. Everything that happened before has been taken in.
    fn explain(
        &self,
        slot: usize,
        request: &Request,
        found: &PrefixMatch,
        requests: &[Option<Request>],
        admission: u64,
        resumed: bool,
    ) -> Explanation {
        let cursor = &request.sequence.cursor;
        let (block_size, hits) = (cursor.hasher().block_size(), found.blocks.len());
        let mut explanation = Explanation {
            request: request.id.clone(),
            admission,
            resumed,
            block_size,
            prompt_tokens: cursor.num_tokens(),
            cached_tokens: hits * block_size,
            spans: Vec::new(),
        };
        let principal = principal_of(request);
        let mut parent = self.record.parent(before(cursor, hits));
        for (position, hash) in cursor.chain().hashes().iter().enumerate().skip(hits) {
            let entry = self.record.find(hash.key());
            let computing = |number| {
                let mut owners = self.record.owners(number).filter(|&owner| owner != slot);
                let slot =
                    owners.find(|&slot| computes(requests, slot, position, hash.key(), cursor.epoch()))?;
                requests.get(slot)?.as_ref()
            };
            let reason = match entry.map(|number| (number, self.record.standing(number))) {
                _ if found.collided && position == hits => MissReason::Collision,
                None => self.unknown(cursor, position, parent, position == hits),
                Some((_, Standing::Cached)) if position == hits && position >= found.asked => {
                    MissReason::LastToken
                }
                Some((_, Standing::Cached)) => MissReason::Unreachable,
                Some((number, standing)) => match (computing(number), standing) {
                    (Some(by), _) if principal_of(by) == principal => {
                        MissReason::BeingComputed { by: Whom::Request(by.id.clone()) }
                    }
                    (Some(_), _) => MissReason::BeingComputed { by: Whom::Another },
                    (None, Standing::Gone(cause, operation, when)) => {
                        self.departure(cause, operation, when, principal)
                    }
                    (None, Standing::NotComputed) => MissReason::NotComputed,
                    (None, _) => MissReason::NotRemembered,
                },
            };
            explanation.push(reason);
            parent = entry;
        }
        if !cursor.tail().is_empty() {
            explanation.push(MissReason::TooShort);
        }
        explanation
    }

    /// Enters the blocks of a request at some positions, which come behind each other.
    fn enter(
        &mut self,
        request: &Request,
        positions: Range<usize>,
        mut each: impl FnMut(&mut Record, u32, usize),
    ) {
        let cursor = &request.sequence.cursor;
        if let Some(tokens) = cursor.chain().block_tokens(0).filter(|_| positions.start == 0) {
            let context = Context::new(cursor.extra(), cursor.hasher().block_size());
            self.contexts.insert(tokens, context);
        }
        let mut hint = 0;
        for position in positions {
            let Some(hash) = cursor.chain().hashes().get(position) else { break };
            let tokens = cursor.chain().block_tokens(position);
            hint = self.record.enter(hash.key(), before(cursor, position), tokens, hint);
            each(&mut self.record, hint, position);
        }
    }

    /// The request in `slot` computes what it missed.
    fn begin(&mut self, slot: usize, found: &PrefixMatch, requests: &[Option<Request>]) {
        let Some(request) = requests.get(slot).and_then(Option::as_ref) else { return };
        let cursor = &request.sequence.cursor;
        let hits = found.blocks.len();
        // What collides is cached under other tokens, and nothing behind it is ever published.
        let end = if found.collided { hits } else { cursor.chain().len() };
        let (hashes, epoch) = (cursor.chain().hashes(), cursor.epoch());
        self.enter(request, hits..end, |record, number, position| {
            let still = |other| computes(requests, other, position, hashes[position].key(), epoch);
            record.own(number, slot, still);
        });
    }
}

impl CacheManager {
    /// Why a request had to compute what it did when it was admitted or resumed last: block by block, what was missed and why.
    /// Of running and waiting requests, and of the last ones that were released; a fork has its parent's. O(spans), and
    /// O([`ExplainConfig::requests`]) for a released one.
    ///
    /// It says what other requests asked for: see the security notes in `docs/explain.md` before anybody but the operator of the
    /// engine is shown it.
    ///
    /// ```
    /// use kvpool::{CacheManager, ExplainConfig, ExtraKeys, ManagerConfig};
    /// let explain = Some(ExplainConfig::default());
    /// let mut manager =
    ///     CacheManager::new(ManagerConfig { num_blocks: 64, block_size: 4, explain, ..Default::default() })?;
    /// let prompt: Vec<u32> = (0..10).collect();
    /// manager.admit("a", manager.prepare(&prompt, ExtraKeys::default())?)?;
    /// manager.commit("a", 10)?;
    ///
    /// let mut other = prompt.clone();
    /// other[6] = 99;
    /// manager.admit("b", manager.prepare(&other, ExtraKeys::default())?)?;
    /// assert_eq!(
    ///     manager.explain("b")?.to_string(),
    ///     "request \"b\", admitted at 2: 4 of 10 tokens cached\n  \
    ///      block 1 (tokens 4-7): differs from token 6 on from what was seen before\n  \
    ///      block 2 (tokens 8-9): too few tokens to fill a block"
    /// );
    /// # Ok::<(), kvpool::ManagerError>(())
    /// ```
    ///
    /// # Errors
    /// [`ManagerError::NotExplaining`] without [`ManagerConfig::explain`](super::ManagerConfig::explain);
    /// [`ManagerError::UnknownRequest`], also for one that was released too long ago.
    pub fn explain<'a>(&self, id: impl Into<RequestRef<'a>>) -> Result<Explanation, ManagerError> {
        let id = id.into();
        let Some(explainer) = &self.explainer else { return Err(ManagerError::NotExplaining) };
        let known = match self.slots.get(&id) {
            Some(&slot) => explainer.explanations.get(slot).and_then(Option::as_ref),
            None => explainer.past.iter().rev().find(|past| past.request.as_ref() == id),
        };
        known.map(|known| (**known).clone()).ok_or_else(|| ManagerError::UnknownRequest { id: id.to_owned() })
    }

    /// Admissions so far, resumptions included.
    const fn num_admitted(&self) -> u64 {
        self.stats.admissions + self.stats.resumptions
    }

    /// Contents came or went: in an operation for the blocks of the request in `slot`, if for anybody's.
    pub(super) fn note_changes(&mut self, slot: Option<usize>) {
        let admission = self.num_admitted();
        let Some(explainer) = &mut self.explainer else { return };
        self.tiers.device_mut().take_departures(&mut explainer.changes);
        if !explainer.changes.is_empty() {
            let request = slot.and_then(|slot| self.requests.get(slot)).and_then(Option::as_ref);
            explainer.take_in(admission, self.tiers.device().retention_time(), request);
        }
    }

    /// The request in `slot` was admitted or resumed on a match, and its blocks are allocated.
    pub(super) fn note_admission(&mut self, slot: usize, found: &PrefixMatch, resumed: bool) {
        let admission = self.num_admitted();
        let Some(explainer) = &mut self.explainer else { return };
        if let Some(request) = self.requests.get(slot).and_then(Option::as_ref) {
            // Before what its own blocks evicted is taken in: that was there when it looked.
            let explanation = explainer.explain(slot, request, found, &self.requests, admission, resumed);
            let misses = &mut explainer.misses;
            if resumed { &mut misses.resumed } else { &mut misses.admitted }.add(&explanation);
            explainer.begin(slot, found, &self.requests);
            explainer.set(slot, explanation);
        }
        self.note_changes(Some(slot));
    }

    /// The request in `slot` published blocks at some positions of its table.
    pub(super) fn note_published(&mut self, slot: usize, positions: Range<usize>) {
        if let (Some(explainer), Some(request)) =
            (&mut self.explainer, self.requests.get(slot).and_then(Option::as_ref))
        {
            explainer.enter(request, positions, |_, _, _| {});
            self.note_changes(Some(slot));
        }
    }

    /// The request in `slot` is a fork of `parent`'s.
    pub(super) fn note_fork(&mut self, parent: usize, slot: usize) {
        let Some(explainer) = &mut self.explainer else { return };
        let (parent, id) = (explainer.explanations.get(parent), self.requests.get(slot));
        if let (Some(Some(parent)), Some(Some(child))) = (parent, id) {
            let explanation = Explanation { request: child.id.clone(), ..(**parent).clone() };
            explainer.set(slot, explanation);
        }
    }

    /// The request in `slot` is released.
    pub(super) fn note_release(&mut self, slot: usize) {
        let Some(explainer) = &mut self.explainer else { return };
        if let Some(explanation) = explainer.explanations.get_mut(slot).and_then(Option::take) {
            if explainer.past.len() >= explainer.max_past {
                explainer.past.pop_front();
            }
            if explainer.max_past > 0 {
                explainer.past.push_back(explanation);
            }
        }
    }

    pub(super) fn check_explainer(&self) -> Result<(), InvariantViolation> {
        let Some(explainer) = &self.explainer else { return Ok(()) };
        let pool = self.tiers.device();
        let blocks = (1..pool.num_blocks() as u32).map(crate::block::BlockId::new);
        let computed = blocks.filter(|&block| pool.is_computed(block));
        let mut cached: Vec<_> = computed.filter_map(|block| Some(pool.hash_of(block)?.key())).collect();
        cached.sort_unstable();
        explainer.record.check_invariants(&cached)?;
        let MissStats { admitted, resumed } = explainer.misses;
        let stats = &self.stats;
        let expected = (stats.computed_tokens, stats.resumed_tokens - stats.resumed_hit_tokens);
        ensure(
            (admitted.total(), resumed.total()) == expected,
            "X3 (tokens by reason sum up to those computed)",
            || format!("{} and {} by reason, {expected:?} computed", admitted.total(), resumed.total()),
        )
    }
}

impl Explainer {
    fn set(&mut self, slot: usize, explanation: Explanation) {
        if self.explanations.len() <= slot {
            self.explanations.resize_with(slot + 1, || None);
        }
        self.explanations[slot] = Some(Box::new(explanation));
    }
}
