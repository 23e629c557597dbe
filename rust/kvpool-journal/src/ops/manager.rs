//! The operations of a [`CacheManager`]. A request is written by its slot, which a replay gives the same, and which its release
//! takes away: so names are taken before an operation runs. A prompt is written by the keys of its blocks.

use kvpool::hash::HashCursor;
use kvpool::retention::{HintReport, TenantId};
use kvpool::{
    Admission, BlockId, CacheManager, ManagerError, NewBlock, Refused, RequestHints, RequestId, RequestRef,
    RetentionRange, SwapId, TableChange, TransferPlan,
};
use kvpool_observe::{EventBatch, ManagerWatch};
use kvpool_record::{HintsRecord, Ids, Journal, Keys, ManagerOperation, Name, RangeRecord, Rehashed, Rows};

use super::operations;
pub use super::step::CommitStep;
use crate::Operation;

pub(super) fn name(manager: &CacheManager, id: RequestRef<'_>) -> Name {
    manager.slot_of(id).map_or_else(|| Name::Id(id.to_owned()), |slot| Name::Slot(slot as u32))
}

fn names(manager: &CacheManager, ids: &[RequestRef<'_>]) -> Vec<Name> {
    ids.iter().map(|&id| name(manager, id)).collect()
}

fn range_records(ranges: &[RetentionRange]) -> Vec<RangeRecord> {
    ranges.iter().map(RangeRecord::from).collect()
}

type Answer<T> = Result<T, ManagerError>;

operations! { CacheManager, Answer, ManagerOperation;
    /// [`CacheManager::resume`].
    Resume<'a> { request: RequestRef<'a> } -> Admission,
        |manager| manager.resume(request),
        |manager, _| ManagerOperation::Resume {
            request: name(manager, request),
            rehashed: manager.rehashed(request).as_deref().map(whole),
        };
    /// [`CacheManager::release_with`].
    Release<'a> { request: RequestRef<'a>, after_step: Option<u64>, end_of_life: bool } -> HintReport,
        |manager| manager.release_with(request, after_step, end_of_life),
        |manager, _| ManagerOperation::Release { request: name(manager, request), after_step, end_of_life };
    /// [`CacheManager::preempt`].
    Preempt<'a> { request: RequestRef<'a>, after_step: Option<u64> } -> (),
        |manager| manager.preempt(request, after_step),
        |manager, _| ManagerOperation::Preempt { request: name(manager, request), after_step };
    /// [`CacheManager::commit`].
    Commit<'a> { request: RequestRef<'a>, computed_tokens: usize } -> usize,
        |manager| manager.commit(request, computed_tokens),
        |manager, _| ManagerOperation::Commit { request: name(manager, request), computed_tokens };
    /// [`CacheManager::fork`].
    Fork<'a> { parent: RequestRef<'a>, child: RequestRef<'a> } -> (),
        |manager| manager.fork(parent, child.to_owned()),
        |manager, _| ManagerOperation::Fork { parent: name(manager, parent), child: child.to_owned() };
    /// [`CacheManager::truncate`].
    Truncate<'a> { request: RequestRef<'a>, num_tokens: usize } -> (),
        |manager| manager.truncate(request, num_tokens),
        |manager, _| ManagerOperation::Truncate { request: name(manager, request), tokens: num_tokens };
    /// [`CacheManager::trim_window`].
    TrimWindow<'a> { request: RequestRef<'a>, window: usize } -> usize,
        |manager| manager.trim_window(request, window),
        |manager, _| ManagerOperation::TrimWindow { request: name(manager, request), window };
    /// [`CacheManager::take_plan`].
    TakePlan {} -> TransferPlan, CacheManager::take_plan, |_, _| ManagerOperation::TakePlan;
    /// [`CacheManager::begin_swap_out`].
    BeginSwapOut<'a> { requests: &'a [RequestRef<'a>] } -> SwapId,
        |manager| manager.begin_swap_out(requests),
        |manager, _| ManagerOperation::BeginSwapOut { requests: names(manager, requests) };
    /// [`CacheManager::begin_swap_in`].
    BeginSwapIn<'a> { requests: &'a [RequestRef<'a>] } -> SwapId,
        |manager| manager.begin_swap_in(requests),
        |manager, _| ManagerOperation::BeginSwapIn { requests: names(manager, requests) };
    /// [`CacheManager::complete_swap`].
    CompleteSwap { swap: SwapId } -> Vec<(BlockId, BlockId)>,
        |manager| manager.complete_swap(swap), |_, _| ManagerOperation::CompleteSwap { swap: swap.get() };
    /// [`CacheManager::abort_swap`].
    AbortSwap { swap: SwapId } -> (),
        |manager| manager.abort_swap(swap), |_, _| ManagerOperation::AbortSwap { swap: swap.get() };
    /// [`CacheManager::retain`]; [`CacheManager::end_of_life`] is this with [`RetentionRange::end_of_life`].
    Retain<'a> { request: RequestRef<'a>, ranges: &'a [RetentionRange] } -> HintReport,
        |manager| manager.retain(request, ranges),
        |manager, _| ManagerOperation::Retain {
            request: name(manager, request),
            ranges: range_records(ranges),
        };
    /// [`CacheManager::set_tenant`].
    SetTenant<'a> { request: RequestRef<'a>, tenant: TenantId } -> (),
        |manager| manager.set_tenant(request, tenant),
        |manager, _| ManagerOperation::SetTenant { request: name(manager, request), tenant: tenant.0 };
    /// [`CacheManager::retain_prefix`]; [`CacheManager::end_of_life_of`] is this with [`RetentionRange::end_of_life`].
    RetainPrefix<'a> { cursor: &'a HashCursor, ranges: &'a [RetentionRange] } -> HintReport,
        |manager| manager.retain_prefix(cursor, ranges),
        |manager, journal| {
            let cached = manager.pool().probe(cursor.chain(), usize::MAX).map_or(0, |found| found.cached_blocks);
            ManagerOperation::RetainPrefix {
                prompt: journal.chain(cursor.chain(), cursor.num_tokens(), cached),
                foreign: matches!(manager.probe(cursor), Err(ManagerError::ForeignCursor)),
                ranges: range_records(ranges),
            }
        };
    /// [`CacheManager::advance_time`].
    AdvanceTime { now: f64 } -> usize,
        |manager| manager.advance_time(now), |_, _| ManagerOperation::AdvanceTime { now };
    /// [`CacheManager::complete_step`].
    CompleteStep { step: u64 } -> usize,
        |manager| manager.complete_step(step), |_, _| ManagerOperation::CompleteStep { step };
    /// [`CacheManager::bump_epoch`].
    BumpEpoch {} -> u64, CacheManager::bump_epoch, |_, _| ManagerOperation::BumpEpoch;
    /// [`CacheManager::reset`].
    Reset {} -> usize, CacheManager::reset, |_, _| ManagerOperation::Reset;
    /// [`CacheManager::evict`].
    Evict { blocks: usize } -> Vec<BlockId>,
        |manager| manager.evict(blocks), |_, _| ManagerOperation::EvictNext { blocks };
    /// [`CacheManager::drop_cached`].
    DropCached<'a> { blocks: &'a [BlockId] } -> usize,
        |manager| manager.drop_cached(blocks), |_, _| ManagerOperation::Evict { blocks: Ids::pack(blocks) };
    /// [`CacheManager::resize`].
    Resize { num_blocks: usize } -> (),
        |manager| manager.resize(num_blocks), |_, _| ManagerOperation::Resize { num_blocks };
}

/// The keys and fingerprints of blocks that an operation filled.
#[derive(Default)]
pub(super) struct Filled {
    pub(super) keys: Keys,
    pub(super) fingerprints: Keys,
}

impl Filled {
    /// Notes the blocks of a chain behind the first `before`.
    fn add(&mut self, cursor: &HashCursor, before: usize) {
        let chain = cursor.chain();
        chain.hashes().iter().skip(before).for_each(|hash| self.keys.push(hash.key()));
        chain.fingerprints().iter().skip(before).for_each(|&whole| self.fingerprints.push(whole as u64));
    }

    /// Notes the blocks that the last `tokens` tokens filled.
    pub(super) fn add_last(&mut self, cursor: &HashCursor, tokens: usize) {
        self.add(cursor, cursor.num_tokens().saturating_sub(tokens) / cursor.hasher().block_size());
    }
}

/// Those of a whole chain.
pub(super) fn whole(cursor: &HashCursor) -> Rehashed {
    let mut filled = Filled::default();
    filled.add(cursor, 0);
    (filled.keys, filled.fingerprints)
}

/// [`CacheManager::admit_with`].
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the call named")]
pub struct Admit<'a> {
    pub request: RequestId,
    pub cursor: HashCursor,
    pub hints: &'a RequestHints,
}

impl Admit<'_> {
    /// [`CacheManager::admit`].
    #[must_use]
    pub fn new(request: impl Into<RequestId>, cursor: HashCursor) -> Self {
        const NONE: &RequestHints = &RequestHints { tenant: None, no_cache: false, ranges: Vec::new() };
        Self { request: request.into(), cursor, hints: NONE }
    }
}

impl<'a> Operation<CacheManager> for Admit<'a> {
    type Answer = Result<Admission, Refused>;
    type Before = (RequestId, &'a RequestHints);

    fn before(&self, _: &CacheManager, _: &mut Journal) -> Self::Before {
        (self.request.clone(), self.hints)
    }

    #[inline]
    fn run(self, manager: &mut CacheManager) -> Self::Answer {
        manager.admit_with(self.request, self.cursor, self.hints)
    }

    fn record(
        (request, hints): Self::Before,
        manager: &CacheManager,
        journal: &mut Journal,
        answer: &Self::Answer,
    ) -> Option<ManagerOperation> {
        let (cursor, cached) = match answer {
            Ok(admission) => {
                (manager.request_at(manager.slot_of(&request)?)?.cursor, admission.cached_blocks)
            }
            Err(refused) => (&*refused.cursor, 0),
        };
        let foreign = matches!(answer, Err(refused) if refused.error == ManagerError::ForeignCursor);
        let prompt = journal.chain(cursor.chain(), cursor.num_tokens(), cached);
        Some(ManagerOperation::Admit { request, prompt, foreign, hints: HintsRecord::from(hints) })
    }
}

/// The batch of a call: by slots if it was looked up to its end, which all but refusals of names do.
fn rows<T>(
    manager: &CacheManager,
    journal: &mut Journal,
    requests: &[RequestRef<'_>],
    answer: &Result<T, ManagerError>,
) -> Rows {
    match answer {
        Ok(_) | Err(ManagerError::OutOfBlocks(_)) => journal.rows(manager.batch_slots()),
        Err(_) => Rows::Ids(requests.iter().map(|&id| id.to_owned()).collect()),
    }
}

/// [`CacheManager::append`].
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the call named")]
pub struct Append<'a> {
    pub requests: &'a [RequestRef<'a>],
    pub tokens: &'a [u32],
    pub commit_first: bool,
}

impl Operation<CacheManager> for Append<'_> {
    type Answer = Result<Vec<NewBlock>, ManagerError>;
    type Before = Self;

    fn before(&self, _: &CacheManager, _: &mut Journal) -> Self {
        *self
    }

    #[inline]
    fn run(self, manager: &mut CacheManager) -> Self::Answer {
        manager.append(self.requests, self.tokens, self.commit_first)
    }

    fn record(
        Self { requests, tokens, commit_first }: Self,
        manager: &CacheManager,
        journal: &mut Journal,
        answer: &Self::Answer,
    ) -> Option<ManagerOperation> {
        let mut filled = Filled::default();
        if answer.is_ok() {
            let requests = manager.batch_slots().iter().filter_map(|&slot| manager.request_at(slot));
            for cursor in requests.map(|request| request.cursor).filter(|cursor| cursor.tail().is_empty()) {
                filled.add(cursor, cursor.chain().len().saturating_sub(1));
            }
        }
        let rows = rows(manager, journal, requests, answer);
        let Filled { keys: filled, fingerprints } = filled;
        Some(ManagerOperation::Append { rows, tokens: tokens.len(), commit_first, filled, fingerprints })
    }
}

/// [`CacheManager::append_tokens`].
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the call named")]
pub struct AppendTokens<'a> {
    pub request: RequestRef<'a>,
    pub tokens: &'a [u32],
    pub lookahead: usize,
}

impl Operation<CacheManager> for AppendTokens<'_> {
    type Answer = Result<Vec<TableChange>, ManagerError>;
    type Before = Self;

    fn before(&self, _: &CacheManager, _: &mut Journal) -> Self {
        *self
    }

    #[inline]
    fn run(self, manager: &mut CacheManager) -> Self::Answer {
        manager.append_tokens(self.request, self.tokens, self.lookahead)
    }

    fn record(
        Self { request, tokens, lookahead }: Self,
        manager: &CacheManager,
        _: &mut Journal,
        answer: &Self::Answer,
    ) -> Option<ManagerOperation> {
        let (mut filled, tokens) = (Filled::default(), tokens.len());
        if answer.is_ok()
            && let Ok(cursor) = manager.cursor(request)
        {
            filled.add_last(cursor, tokens);
        }
        let Filled { keys: filled, fingerprints } = filled;
        let request = name(manager, request);
        Some(ManagerOperation::AppendTokens { request, tokens, lookahead, filled, fingerprints })
    }
}

/// [`CacheManager::commit_batch`].
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the call named")]
pub struct CommitBatch<'a> {
    pub requests: &'a [RequestRef<'a>],
    pub computed_tokens: &'a [usize],
}

impl Operation<CacheManager> for CommitBatch<'_> {
    type Answer = Result<usize, ManagerError>;
    type Before = Self;

    fn before(&self, _: &CacheManager, _: &mut Journal) -> Self {
        *self
    }

    #[inline]
    fn run(self, manager: &mut CacheManager) -> Self::Answer {
        manager.commit_batch(self.requests, self.computed_tokens)
    }

    fn record(
        Self { requests, computed_tokens }: Self,
        manager: &CacheManager,
        journal: &mut Journal,
        answer: &Self::Answer,
    ) -> Option<ManagerOperation> {
        let rows = rows(manager, journal, requests, answer);
        Some(ManagerOperation::CommitBatch { rows, computed_tokens: computed_tokens.to_vec() })
    }
}

/// [`CacheManager::take_events`].
#[derive(Clone, Copy, Debug)]
pub struct TakeEvents;

impl Operation<CacheManager> for TakeEvents {
    type Answer = EventBatch;
    type Before = ();

    fn before(&self, _: &CacheManager, _: &mut Journal) {}

    fn run(self, manager: &mut CacheManager) -> EventBatch {
        manager.take_events()
    }

    fn record((): (), _: &CacheManager, _: &mut Journal, _: &EventBatch) -> Option<ManagerOperation> {
        Some(ManagerOperation::TakeEvents)
    }
}
