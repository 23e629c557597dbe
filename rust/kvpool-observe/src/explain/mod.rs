//! Why did it miss? [`ManagerWatch::explain`](crate::ManagerWatch::explain) answers for each block of a
//! prompt that was not found.
//!
//! Owns: the record of contents that were seen (`record`), in which contexts (`contexts`), what evicted
//! them, and the explanations of requests. It is told what happens, by the log of contents that come
//! and go and by the manager, and changes nothing: a manager that explains hands out the same blocks as
//! one that does not.
//!
//! A miss is explained when it happens, once, at the admission (of a planned step: at its commit) or
//! the resumption: O(1) per missed block, nothing per block that hits. What comes behind the first
//! missed block is explained too, block by block; what is [`MissReason::Behind`] has no reason of its
//! own.
//!
//! There is no clock: *when* is the number of admissions until then, and the time that retention was told.
//!
//! **Who may be told.** An explanation says what others asked for: that their tokens were the same up
//! to some token, or the same under another salt. That is for whoever runs the engine. Ids of requests
//! are told only within one principal: the same salt, tenant and user, and the same tenant of
//! retention; of all others it is said that there was one.
//!
//! Invariants, recounted by [`CacheManager::check_invariants`](kvpool::CacheManager::check_invariants):
//! X1 and X2 of `record`; X3: tokens by reason sum up to the tokens that were computed, or that a
//! connector brought.
//!
//! Costs: see [`ExplainConfig`]; all but explanations, one list of spans per request, and the ids of
//! requests is allocated at construction.

mod config;
mod contexts;
mod groups;
mod reason;
mod record;
mod text;

use std::collections::VecDeque;
use std::ops::Range;

use kvpool::observe::{Admitted, RequestView};
use kvpool::parts::ensure;
use kvpool::retention::EvictionCause;
use kvpool::{
    BlockId, BlockPool, CacheManager, HashCursor, InvariantViolation, PoolError, RequestId, RequestRef,
};

use crate::changes::{Cause, Change, ChangeLog};
use crate::digest::group_key;
pub use config::ExplainConfig;
use contexts::{Context, Contexts, principal};
pub use reason::{Explanation, GroupReach, MissCounts, MissReason, MissSpan, MissStats, Requester, When};
use record::{Before, Record, Status};

/// Why nothing is explained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// The manager was made to explain nothing.
    #[error("this manager explains no misses: give it an explain configuration")]
    NotExplaining,
    /// No request has this id, and none of the last released ones had.
    #[error("no request {id}")]
    UnknownRequest {
        /// The id.
        id: RequestId,
    },
}

/// An operation that made contents leave.
#[derive(Debug)]
struct Operation {
    time: Option<f64>,
    /// For whose blocks.
    request: Option<(RequestId, u64)>,
}

/// An admission that is to be explained.
#[derive(Clone, Copy)]
struct Asked<'a> {
    admitted: &'a Admitted<'a>,
    request: RequestView<'a>,
    manager: &'a CacheManager,
    /// Whose it is.
    principal: u64,
}

/// What the manager remembers in order to explain.
#[derive(Debug)]
pub(crate) struct Explainer {
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
    misses: MissStats,
    log: ChangeLog,
    /// Reused by every call.
    changes: Vec<Change>,
}

/// Whether the request in `slot` is computing the block at `position` that has this key, to publish it.
fn computes(manager: &CacheManager, slot: usize, position: usize, key: u64, epoch: u64) -> bool {
    let Some(request) = manager.request_at(slot) else { return false };
    request.is_running
        && request.publishes
        && request.num_published <= position
        && request.cursor.epoch() == epoch
        && request.cursor.chain().hashes().get(position).is_some_and(|hash| hash.key() == key)
}

/// Whose a request is.
fn principal_of(request: RequestView<'_>) -> u64 {
    principal(request.cursor.extra(), request.tenant.map(|tenant| tenant.0))
}

/// Admissions so far, resumptions included.
fn num_admitted(manager: &CacheManager) -> u64 {
    let stats = manager.stats();
    stats.admissions + stats.resumptions
}

/// What comes before the block at `position`.
fn before(cursor: &HashCursor, position: usize) -> Before {
    let parent = position.checked_sub(1).and_then(|at| cursor.chain().hashes().get(at));
    parent.map_or(Before::Start, |hash| Before::Key(hash.key()))
}

impl Explainer {
    /// An explainer that remembers nothing yet. `log` has the changes of `pool`, of which a block holds
    /// `units_per_block` hash units.
    pub(crate) fn new(
        config: &ExplainConfig,
        pool: &BlockPool,
        units_per_block: usize,
        log: ChangeLog,
    ) -> Result<Self, PoolError> {
        config.check()?;
        let units = pool.num_usable().saturating_mul(units_per_block);
        let (records, block_size) = (config.num_records(units), pool.block_size());
        Ok(Self {
            record: Record::new(records, block_size)?,
            contexts: Contexts::new()?,
            operations: VecDeque::new(),
            first_operation: 0,
            max_operations: records.div_ceil(4),
            explanations: Vec::new(),
            past: VecDeque::new(),
            max_past: config.requests,
            policy: pool.policy_name(),
            misses: MissStats::default(),
            log,
            changes: Vec::new(),
        })
    }

    /// Takes in what came and went, in an operation for the blocks of the request in `slot`, if for
    /// anybody's.
    pub(crate) fn take_in(&mut self, slot: Option<usize>, manager: &CacheManager) {
        let mut changes = std::mem::take(&mut self.changes);
        self.log.take(&mut changes);
        if !changes.is_empty() {
            self.take_in_changes(&changes, slot.and_then(|slot| manager.request_at(slot)), manager);
        }
        self.changes = changes;
    }

    fn take_in_changes(
        &mut self,
        changes: &[Change],
        request: Option<RequestView<'_>>,
        manager: &CacheManager,
    ) {
        let (admission, time) = (num_admitted(manager), manager.pool().retention_time());
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
        for change in changes {
            match *change {
                Change::Appeared { key } => self.record.appeared(key),
                Change::Departed { key, cause } => self.record.departed(key, cause, operation, admission),
                Change::Cleared { cause } => self.record.cleared(cause, operation, admission),
            }
        }
    }

    /// Why a content left.
    fn departure(&self, cause: Cause, operation: u64, admission: u64, principal: u64) -> MissReason {
        let at = operation.checked_sub(self.first_operation).and_then(|at| usize::try_from(at).ok());
        let operation = at.and_then(|at| self.operations.get(at));
        let when = When { admission, time: operation.and_then(|operation| operation.time) };
        let requester = match operation.and_then(|operation| operation.request.as_ref()) {
            None => Requester::Unknown,
            Some((id, theirs)) if *theirs == principal => Requester::Request(id.clone()),
            Some(_) => Requester::Another,
        };
        match cause {
            Cause::ById => MissReason::DroppedById { when },
            Cause::Reset => MissReason::Reset { when },
            Cause::Epoch(epoch) => MissReason::OtherEpoch { epoch },
            Cause::Evicted(EvictionCause::Priority, _) => {
                MissReason::Evicted { when, policy: "priority", requester, outlook: None }
            }
            Cause::Evicted(EvictionCause::EndOfLife, _) => MissReason::EndOfLife { when, requester },
            Cause::Evicted(EvictionCause::Expired, _) => MissReason::Expired { when, requester },
            Cause::Evicted(EvictionCause::TenantCeiling, _) => MissReason::TenantCeiling { when, requester },
            Cause::Evicted(_, glance) => {
                let outlook = glance.zip(self.log.like()).map(|(glance, like)| glance.outlook(like));
                MissReason::Evicted { when, policy: self.policy, requester, outlook }
            }
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

    /// Why what an entry remembers is not cached.
    fn standing(&self, asked: &Asked<'_>, position: usize, number: u32) -> MissReason {
        let Asked {
            admitted: Admitted { slot: own, .. },
            request: RequestView { cursor, .. },
            manager,
            principal,
        } = *asked;
        let computed_by = || {
            let key = cursor.chain().hashes().get(position)?.key();
            let mut owners = self.record.owners(number).filter(|owner| owner != own);
            let slot = owners.find(|&slot| computes(manager, slot, position, key, cursor.epoch()))?;
            manager.request_at(slot)
        };
        match (computed_by(), self.record.status(number)) {
            (Some(by), _) if principal_of(by) == principal => {
                MissReason::BeingComputed { by: Requester::Request(by.id.clone()) }
            }
            (Some(_), _) => MissReason::BeingComputed { by: Requester::Another },
            (None, Status::Gone(cause, operation, when)) => self.departure(cause, operation, when, principal),
            (None, Status::NotComputed) => MissReason::NotComputed,
            (None, _) => MissReason::NotRemembered,
        }
    }

    /// Explains the prompt of a request that was matched just now. Everything that happened before has
    /// been taken in.
    fn explain(&self, asked: &Asked<'_>) -> Explanation {
        let Asked { admitted, request, manager, .. } = *asked;
        let (hits, cursor) = (admitted.hits, request.cursor);
        let block_size = cursor.hasher().block_size();
        let mut explanation = Explanation {
            request: request.id.clone(),
            admission: num_admitted(manager),
            resumed: admitted.resumed,
            block_size,
            prompt_tokens: cursor.num_tokens(),
            cached_tokens: hits * block_size,
            spans: Vec::new(),
            groups: manager.groups().map_or_else(Vec::new, |groups| self.reach(asked, groups)),
        };
        // Of several groups: whether everything so far is cached where groups of full attention look for it.
        let mut unserved = true;
        let mut parent = self.record.parent(before(cursor, hits));
        for (position, hash) in cursor.chain().hashes().iter().enumerate().skip(hits) {
            let entry = self.record.find(hash.key());
            let reason = match entry.map(|number| (number, self.record.status(number))) {
                _ if admitted.collided && position == hits => MissReason::Collision,
                _ if !explanation.groups.is_empty() => {
                    let reason = self.reason_in_groups(asked, &explanation.groups, position, unserved);
                    unserved &= matches!(reason, MissReason::Unserved { .. });
                    reason
                }
                None => self.unknown(cursor, position, parent, position == hits),
                Some((_, Status::Cached)) if position == hits && position >= admitted.asked => {
                    MissReason::LastToken
                }
                Some((_, Status::Cached)) => MissReason::Unreachable,
                Some((number, _)) => self.standing(asked, position, number),
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
        request: RequestView<'_>,
        positions: Range<usize>,
        mut each: impl FnMut(&mut Record, u32, usize),
    ) {
        let cursor = request.cursor;
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

    /// The request computes what it missed.
    fn begin(&mut self, admitted: &Admitted<'_>, request: RequestView<'_>, manager: &CacheManager) {
        let (slot, hits, cursor) = (admitted.slot, admitted.hits, request.cursor);
        // What collides is cached under other tokens, and nothing behind it is ever published.
        let end = if admitted.collided { hits } else { cursor.chain().len() };
        let (hashes, epoch) = (cursor.chain().hashes(), cursor.epoch());
        self.enter(request, hits..end, |record, number, position| {
            let still = |other| computes(manager, other, position, hashes[position].key(), epoch);
            record.own(number, slot, still);
        });
    }

    fn set(&mut self, slot: usize, explanation: Explanation) {
        if self.explanations.len() <= slot {
            self.explanations.resize_with(slot + 1, || None);
        }
        self.explanations[slot] = Some(Box::new(explanation));
    }

    /// A request was admitted or resumed on a match, and its blocks are allocated.
    pub(crate) fn admitted(&mut self, admitted: &Admitted<'_>, manager: &CacheManager) {
        if let Some(request) = manager.request_at(admitted.slot) {
            // Before what its own blocks evicted is taken in: that was there when it looked.
            let principal = principal_of(request);
            let explanation = self.explain(&Asked { admitted, request, manager, principal });
            self.misses.add(&explanation);
            self.begin(admitted, request, manager);
            self.set(admitted.slot, explanation);
        }
        self.take_in(Some(admitted.slot), manager);
    }

    /// The request in `slot` published blocks at some positions of its table.
    pub(crate) fn published(&mut self, slot: usize, positions: Range<usize>, manager: &CacheManager) {
        if let Some(request) = manager.request_at(slot) {
            let in_groups = manager.groups().is_some();
            self.enter(request, positions, |record, number, _| {
                if in_groups {
                    record.written(number);
                }
            });
            self.take_in(Some(slot), manager);
        }
    }

    /// The request in `slot` is a fork of `parent`'s.
    pub(crate) fn forked(&mut self, parent: usize, slot: usize, manager: &CacheManager) {
        if let (Some(Some(parent)), Some(child)) = (self.explanations.get(parent), manager.request_at(slot)) {
            let explanation = Explanation { request: child.id.clone(), ..(**parent).clone() };
            self.set(slot, explanation);
        }
    }

    /// The request in `slot` is released.
    pub(crate) fn released(&mut self, slot: usize) {
        if let Some(explanation) = self.explanations.get_mut(slot).and_then(Option::take) {
            if self.past.len() >= self.max_past {
                self.past.pop_front();
            }
            if self.max_past > 0 {
                self.past.push_back(explanation);
            }
        }
    }

    /// Tokens by reason.
    pub(crate) fn misses(&self) -> MissStats {
        self.misses.clone()
    }

    /// The explanation of a request.
    pub(crate) fn explanation(
        &self,
        id: RequestRef<'_>,
        manager: &CacheManager,
    ) -> Result<Explanation, ExplainError> {
        let known = match manager.slot_of(id) {
            Some(slot) => self.explanations.get(slot).and_then(Option::as_ref),
            None => self.past.iter().rev().find(|past| past.request.as_ref() == id),
        };
        known.map(|known| (**known).clone()).ok_or_else(|| ExplainError::UnknownRequest { id: id.to_owned() })
    }

    /// X1 to X3. O(blocks + records).
    pub(crate) fn check(&self, manager: &CacheManager) -> Result<(), InvariantViolation> {
        let pool = manager.pool();
        let blocks = (1..pool.num_blocks() as u32).map(BlockId::new);
        let computed = blocks.filter(|&block| pool.is_computed(block));
        let names = computed.filter_map(|block| pool.name_of(block));
        let mut cached: Vec<_> = names.map(|name| group_key(name.hash.key(), name.group)).collect();
        cached.sort_unstable();
        self.record.check_invariants(&cached)?;
        let MissStats { admitted, resumed, .. } = &self.misses;
        let stats = manager.stats();
        // What a connector brings had to be computed, as far as the cache goes.
        let computed = stats.computed_tokens + stats.external_tokens;
        let expected = (computed, stats.resumed_tokens - stats.resumed_hit_tokens);
        ensure(
            (admitted.total(), resumed.total()) == expected,
            "X3 (tokens by reason sum up to those computed)",
            || format!("{} and {} by reason, {expected:?} computed", admitted.total(), resumed.total()),
        )
    }
}
