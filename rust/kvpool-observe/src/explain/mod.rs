//! Explanations of misses: [`ManagerWatch::explain`](crate::ManagerWatch::explain) returns, for each
//! block of a prompt that was not found, the reason.
//!
//! The explainer stores the contents that prompts requested (`record`), the extra keys of their first
//! blocks (`contexts`), the operations that evicted contents, and the explanations of requests. It gets
//! its data from the change log of the pool and from notifications of the manager. It changes nothing:
//! a manager with an explainer returns the same blocks as a manager without.
//!
//! A miss is explained once, when it happens: at the admission (for a planned step, when the step is
//! committed) or at the resumption. That takes O(1) per missed block, and nothing per block that hits.
//! The blocks after the first missed block are also explained, each one separately. The reason
//! [`MissReason::Behind`] is given to a block that was missed only because a block before it is
//! unknown.
//!
//! The explainer has no clock. Instead of a time, an event has the number of admissions until then, and
//! the latest time that the caller passed for retention.
//!
//! **Privacy.** An explanation reveals what others requested: that their tokens were equal up to some
//! token, or equal under another salt. It is meant for the operator of the engine. It discloses ids of
//! requests only within one principal: the same salt, tenant and user, and the same tenant for
//! retention. About any other request, it only states that the request existed.
//!
//! Invariants, which are checked by
//! [`CacheManager::check_invariants`](kvpool::CacheManager::check_invariants): X1 and X2 of `record`;
//! X3: the tokens by reason add up to the tokens that were computed or that a connector supplied.
//!
//! Costs: see [`ExplainConfig`]. All memory is allocated at construction, except for the explanations
//! (one list of spans per request) and the ids of requests.

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

/// The reason why no explanation is available for a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExplainError {
    /// The manager was created without
    /// [`ManagerWatchConfig::explain`](crate::ManagerWatchConfig::explain).
    #[error("this manager explains no misses: give it an explain configuration")]
    NotExplaining,
    /// Neither an active request nor one of the last released requests has this id.
    #[error("no request {id}")]
    UnknownRequest {
        /// The id.
        id: RequestId,
    },
}

/// An operation of the manager that removed contents from a pool's index.
#[derive(Debug)]
struct Operation {
    time: Option<f64>,
    /// The request for which the operation made room, and the principal of that request.
    request: Option<(RequestId, u64)>,
}

/// The admission or resumption that is being explained, with its request.
#[derive(Clone, Copy)]
struct AdmissionContext<'a> {
    admitted: &'a Admitted<'a>,
    request: RequestView<'a>,
    manager: &'a CacheManager,
    /// A fingerprint of the request's salt, tenant and user (see [`principal`]).
    principal: u64,
}

/// Everything that the explainer remembers to explain misses.
#[derive(Debug)]
pub(crate) struct Explainer {
    record: Record,
    contexts: Contexts,
    /// The last operations. The first of them has the number `first_operation`.
    operations: VecDeque<Operation>,
    first_operation: u64,
    max_operations: usize,
    /// The explanations of active requests, indexed by the slot (a small number) that the manager has
    /// given to the request.
    explanations: Vec<Option<Box<Explanation>>>,
    /// The explanations of the requests that were released last.
    past: VecDeque<Box<Explanation>>,
    max_past: usize,
    policy: &'static str,
    misses: MissStats,
    log: ChangeLog,
    /// A buffer for the changes that are read from `log`. Every call reuses its memory.
    changes: Vec<Change>,
}

/// Whether the request in `slot` is computing the block at `position`, which has this key, and will
/// make it available to lookups.
fn computes(manager: &CacheManager, slot: usize, position: usize, key: u64, epoch: u64) -> bool {
    let Some(request) = manager.request_at(slot) else { return false };
    request.is_running
        && request.publishes
        && request.num_published <= position
        && request.cursor.epoch() == epoch
        && request.cursor.chain().hashes().get(position).is_some_and(|hash| hash.key() == key)
}

fn principal_of(request: RequestView<'_>) -> u64 {
    principal(request.cursor.extra(), request.tenant.map(|tenant| tenant.0))
}

fn num_admitted(manager: &CacheManager) -> u64 {
    let stats = manager.stats();
    stats.admissions + stats.resumptions
}

/// Returns a reference to the content of the block before the one at `position`.
fn before(cursor: &HashCursor, position: usize) -> Before {
    let parent = position.checked_sub(1).and_then(|at| cursor.chain().hashes().get(at));
    parent.map_or(Before::Start, |hash| Before::Key(hash.key()))
}

impl Explainer {
    /// Makes an explainer that remembers nothing yet. `log` receives the changes of `pool`, whose
    /// blocks hold `units_per_block` hash units each.
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

    /// Applies the logged changes. `slot` identifies the request whose operation caused them, if there
    /// is one.
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

    /// Converts the cause for which a content left the index to the reason in the explanation.
    /// Discloses the id of another request only if that request has the principal `principal`.
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
            Cause::Evicted(_, compact) => {
                let outlook =
                    compact.zip(self.log.template()).map(|(compact, template)| compact.outlook(template));
                MissReason::Evicted { when, policy: self.policy, requester, outlook }
            }
        }
    }

    /// Returns the reason for a missed block of which the explainer's record has no entry. `parent` is
    /// the entry of the previous block.
    fn unknown(&self, cursor: &HashCursor, position: usize, parent: Option<u32>, hit: bool) -> MissReason {
        let block_size = cursor.hasher().block_size();
        let tokens = cursor.chain().block_tokens(position).unwrap_or_default();
        if position == 0
            && let Some(reason) = self.contexts.find(tokens, &Context::new(cursor.extra(), block_size))
        {
            return reason;
        }
        // If the previous block has no entry either, nothing is known about this block.
        let Some(parent) = parent else {
            return if hit { MissReason::NotRemembered } else { MissReason::Behind };
        };
        let common = |seen: &[u32]| seen.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let longest = self.record.behind(parent).map(common).max();
        match longest {
            // Another entry has the same tokens after the same previous block, so the extra keys must
            // differ.
            Some(longest) if longest == block_size => MissReason::OtherKeys,
            Some(longest) if longest > 0 => MissReason::Diverged { token: position * block_size + longest },
            _ if self.record.in_doubt(parent) => MissReason::NotRemembered,
            Some(_) if position > 0 => MissReason::Diverged { token: position * block_size },
            _ => MissReason::NeverSeen,
        }
    }

    /// Returns the reason for a missed block whose content has an entry in the record.
    fn standing(&self, asked: &AdmissionContext<'_>, position: usize, number: u32) -> MissReason {
        let AdmissionContext {
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

    /// Explains the prompt of a request that was just matched. The caller has applied all earlier
    /// changes.
    fn explain(&self, asked: &AdmissionContext<'_>) -> Explanation {
        let AdmissionContext { admitted, request, manager, .. } = *asked;
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
        // With several KV-cache groups: whether the full-attention groups have cached all hash units
        // (parts of the prompt with a digest) up to this one.
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

    /// Adds entries to the record for the blocks of a request at consecutive positions. Calls `each`
    /// with every entry.
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

    /// Records that the request computes the blocks that it missed.
    fn begin(&mut self, admitted: &Admitted<'_>, request: RequestView<'_>, manager: &CacheManager) {
        let (slot, hits, cursor) = (admitted.slot, admitted.hits, request.cursor);
        // A collision means that a cached block has the same hash but other tokens. Then lookups will
        // never find the blocks that this request computes.
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

    /// Records that a request was admitted or resumed after a lookup, and that its blocks are
    /// allocated.
    pub(crate) fn admitted(&mut self, admitted: &Admitted<'_>, manager: &CacheManager) {
        if let Some(request) = manager.request_at(admitted.slot) {
            // Explain before applying the evictions that this admission caused, because those contents
            // were still cached at the time of the lookup.
            let principal = principal_of(request);
            let explanation = self.explain(&AdmissionContext { admitted, request, manager, principal });
            self.misses.add(&explanation);
            self.begin(admitted, request, manager);
            self.set(admitted.slot, explanation);
        }
        self.take_in(Some(admitted.slot), manager);
    }

    /// Records that the blocks at some positions of a request's table are computed and can be found by
    /// lookups. `slot` is the slot of the request.
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

    pub(crate) fn forked(&mut self, parent: usize, slot: usize, manager: &CacheManager) {
        if let (Some(Some(parent)), Some(child)) = (self.explanations.get(parent), manager.request_at(slot)) {
            let explanation = Explanation { request: child.id.clone(), ..(**parent).clone() };
            self.set(slot, explanation);
        }
    }

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

    pub(crate) fn misses(&self) -> MissStats {
        self.misses.clone()
    }

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

    /// Checks X1 to X3. O(blocks + records).
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
        let computed = stats.computed_tokens + stats.external_tokens;
        let expected = (computed, stats.resumed_tokens - stats.resumed_hit_tokens);
        ensure(
            (admitted.total(), resumed.total()) == expected,
            "X3 (the tokens by reason add up to the tokens computed)",
            || {
                format!(
                    "{} and {} tokens by reason, {expected:?} computed (admitted, resumed)",
                    admitted.total(),
                    resumed.total()
                )
            },
        )
    }
}
