//! The operations of a [`CacheManager`]. A request is written by its slot, which a replay gives the same, and which its release
//! takes away: so names are taken before an operation runs. A prompt is written by the keys of its blocks.

use crate::{
    Filled, Ids, Journal, ManagerOperation, Name, OptionsRecord, RangeRecord, Rehashed, Rows, SteadyAppend,
};
use kvpool::groups::Groups;
use kvpool::hash::{HashCursor, MultimodalItem};
use kvpool::retention::{HintReport, TenantId};
use kvpool::{
    Admission, AdmitOptions, BlockId, CacheManager, Loaded, ManagerError, NewBlock, Part, Refused, RequestId,
    RequestRef, RetentionRange, SwapId, TableChange, Ticket, TransferPlan, Until,
};
use kvpool_observe::{EventBatch, ManagerWatch};

use super::operations;
pub use super::step::CommitStep;
use crate::Operation;

pub(super) fn name(manager: &CacheManager, id: RequestRef<'_>) -> Name {
    manager.slot_of(id).map_or_else(|| Name::Id(id.to_owned()), |slot| Name::Slot(slot as u32))
}

/// Blocks of a prompt that are cached, so the journal has recorded them before. A hit needs no cached block if all groups are windows,
/// chunks, or cache nothing.
pub(super) fn recorded(manager: &CacheManager, cursor: &HashCursor, cached_tokens: usize) -> usize {
    let full = |groups: &Groups| groups.specs().iter().any(|spec| spec.kind.is_full() && spec.is_cached());
    if manager.groups().is_none_or(full) { cached_tokens / cursor.hasher().block_size() } else { 0 }
}

fn names(manager: &CacheManager, ids: &[RequestRef<'_>]) -> Vec<Name> {
    ids.iter().map(|&id| name(manager, id)).collect()
}

fn range_records(ranges: &[RetentionRange]) -> Vec<RangeRecord> {
    ranges.iter().map(RangeRecord::from).collect()
}

type Answer<T> = Result<T, ManagerError>;

operations! { CacheManager, Answer, ManagerOperation;
    /// [`CacheManager::resume_with`].
    Resume<'a> { request: RequestRef<'a>, part: Part } -> Admission,
        |manager| manager.resume_with(request, part),
        |manager, _| ManagerOperation::Resume {
            request: name(manager, request),
            part: part.into(),
            rehashed: manager.rehashed(request).as_deref().map(whole),
        };
    /// [`CacheManager::release`].
    Release<'a> { request: RequestRef<'a>, until: Until } -> (),
        |manager| manager.release(request, until),
        |manager, _| ManagerOperation::Release { request: name(manager, request), until: until.into() };
    /// [`CacheManager::release_batch`].
    ReleaseBatch<'a> { requests: &'a [RequestRef<'a>], until: Until } -> (),
        |manager| manager.release_batch(requests, until),
        |manager, _| ManagerOperation::ReleaseBatch { requests: names(manager, requests), until: until.into() };
    /// [`CacheManager::release_batch_with`].
    ReleaseBatchWith<'a> { ended: &'a [(RequestRef<'a>, kvpool::Signal)], until: Until } -> (),
        |manager| manager.release_batch_with(ended, until),
        |manager, _| ManagerOperation::ReleaseBatchWith {
            requests: ended.iter().map(|&(id, _)| name(manager, id)).collect(),
            signals: ended.iter().map(|&(_, signal)| signal.into()).collect(),
            until: until.into(),
        };
    /// [`CacheManager::end_session`].
    EndSession<'a> { request: RequestRef<'a>, until: Until } -> HintReport,
        |manager| manager.end_session(request, until),
        |manager, _| ManagerOperation::EndSession { request: name(manager, request), until: until.into() };
    /// [`CacheManager::preempt`].
    Preempt<'a> { request: RequestRef<'a>, until: Until } -> (),
        |manager| manager.preempt(request, until),
        |manager, _| ManagerOperation::Preempt { request: name(manager, request), until: until.into() };
    /// [`CacheManager::extend`].
    Extend<'a> { request: RequestRef<'a>, num_tokens: usize } -> Vec<TableChange>,
        |manager| manager.extend(request, num_tokens),
        |manager, _| ManagerOperation::Extend { request: name(manager, request), tokens: num_tokens };
    /// [`CacheManager::extend_encoder`].
    ExtendEncoder<'a> { request: RequestRef<'a>, num_tokens: usize } -> Vec<TableChange>,
        |manager| manager.extend_encoder(request, num_tokens),
        |manager, _| ManagerOperation::ExtendEncoder { request: name(manager, request), tokens: num_tokens };
    /// [`CacheManager::external_done`].
    ExternalDone<'a> { request: RequestRef<'a>, loaded: Loaded<'a> } -> usize,
        |manager| manager.external_done(request, loaded),
        |manager, _| ManagerOperation::ExternalDone { request: name(manager, request), loaded: loaded.into() };
    /// [`CacheManager::fence`].
    Fence {} -> Ticket, CacheManager::fence, |_, _| ManagerOperation::Fence;
    /// [`CacheManager::end_fence`].
    EndFence { ticket: Ticket } -> usize,
        |manager| manager.end_fence(ticket), |_, _| ManagerOperation::EndFence { ticket: ticket.get() };
    /// [`CacheManager::commit`].
    Commit<'a> { request: RequestRef<'a>, computed_tokens: usize } -> usize,
        |manager| manager.commit(request, computed_tokens),
        |manager, _| ManagerOperation::Commit { request: name(manager, request), computed_tokens };
    /// [`CacheManager::fork`].
    Fork<'a> { parent: RequestRef<'a>, child: RequestRef<'a> } -> (),
        |manager| manager.fork(parent, child.to_owned()),
        |manager, _| ManagerOperation::Fork { parent: name(manager, parent), child: child.to_owned() };
    /// [`CacheManager::fork_batch`].
    ForkBatch<'a> { parents: &'a [RequestRef<'a>], children: &'a [RequestRef<'a>] } -> (),
        |manager| manager.fork_batch(parents, children),
        |manager, _| ManagerOperation::ForkBatch {
            parents: names(manager, parents),
            children: children.iter().map(|&child| child.to_owned()).collect(),
        };
    /// [`CacheManager::truncate`].
    Truncate<'a> { request: RequestRef<'a>, num_tokens: usize, until: Until } -> (),
        |manager| manager.truncate(request, num_tokens, until),
        |manager, _| ManagerOperation::Truncate {
            request: name(manager, request),
            tokens: num_tokens,
            until: until.into(),
        };
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

/// Notes the blocks of a chain behind the first `before`.
fn add(filled: &mut Filled, cursor: &HashCursor, before: usize) {
    let chain = cursor.chain();
    chain.hashes().iter().skip(before).for_each(|hash| filled.keys.push(hash.key()));
    chain.fingerprints().iter().skip(before).for_each(|&whole| filled.fingerprints.push(whole as u64));
}

/// Notes the blocks that the last `tokens` tokens filled.
#[inline]
pub(super) fn add_last(filled: &mut Filled, cursor: &HashCursor, tokens: usize) {
    if fills(cursor, tokens) {
        let before = cursor.num_tokens().saturating_sub(tokens);
        add(filled, cursor, before / cursor.chain().block_size());
    }
}

/// Whether the last `tokens` tokens filled a block. Most fill none: not worth a division.
#[inline]
fn fills(cursor: &HashCursor, tokens: usize) -> bool {
    let chain = cursor.chain();
    cursor.num_tokens().saturating_sub(tokens) < chain.len() * chain.block_size()
}

/// Those of a whole chain.
pub(super) fn whole(cursor: &HashCursor) -> Rehashed {
    let mut filled = Filled::default();
    add(&mut filled, cursor, 0);
    (filled.keys, filled.fingerprints)
}

/// [`CacheManager::admit_with`].
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the call named")]
pub struct Admit<'a> {
    pub request: RequestId,
    pub cursor: HashCursor,
    pub options: &'a AdmitOptions,
}

impl Admit<'_> {
    /// [`CacheManager::admit`].
    #[must_use]
    pub fn new(request: impl Into<RequestId>, cursor: HashCursor) -> Self {
        const NONE: &AdmitOptions =
            &AdmitOptions { part: Part::WHOLE, tenant: None, no_cache: false, ranges: Vec::new() };
        Self { request: request.into(), cursor, options: NONE }
    }
}

impl<'a> Operation<CacheManager> for Admit<'a> {
    type Answer = Result<Admission, Refused>;
    type Before = (RequestId, &'a AdmitOptions);

    fn before(&self, _: &CacheManager, _: &mut Journal) -> Self::Before {
        (self.request.clone(), self.options)
    }

    #[inline]
    fn run(self, manager: &mut CacheManager) -> Self::Answer {
        manager.admit_with(self.request, self.cursor, self.options)
    }

    fn record(
        (request, options): Self::Before,
        manager: &CacheManager,
        journal: &mut Journal,
        answer: &Self::Answer,
    ) -> Option<ManagerOperation> {
        let (cursor, cached) = match answer {
            Ok(admission) => {
                let cursor = manager.request_at(manager.slot_of(&request)?)?.cursor;
                (cursor, recorded(manager, cursor, admission.cached_tokens))
            }
            Err(refused) => (&*refused.cursor, 0),
        };
        let foreign = matches!(answer, Err(refused) if refused.error == ManagerError::ForeignCursor);
        let prompt = journal.chain(cursor.chain(), cursor.num_tokens(), cached);
        Some(ManagerOperation::Admit { request, prompt, foreign, options: OptionsRecord::from(options) })
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

/// [`CacheManager::append_ragged`].
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the call named")]
pub struct Append<'a> {
    pub rows: kvpool::Rows<'a>,
}

impl Operation<CacheManager> for Append<'_> {
    type Answer = Result<Vec<NewBlock>, ManagerError>;
    type Before = Self;

    fn before(&self, _: &CacheManager, _: &mut Journal) -> Self {
        *self
    }

    #[inline]
    fn run(self, manager: &mut CacheManager) -> Self::Answer {
        manager.append_ragged(&self.rows)
    }

    #[inline]
    fn steady(
        before: &Self,
        manager: &CacheManager,
        journal: &Journal,
        answer: &Self::Answer,
    ) -> Option<(SteadyAppend, Filled)> {
        let append = SteadyAppend::of(&before.rows).filter(|_| answer.is_ok())?;
        let slots = manager.batch_slots();
        if !journal.is_batch(slots) {
            return None;
        }
        let mut filled = Filled::default();
        for &slot in slots {
            add_last(&mut filled, manager.cursor_at(slot)?, 1);
        }
        Some((append, filled))
    }

    fn record(
        Self { rows: kvpool::Rows { requests, tokens, offsets, computed, covered, most_changes } }: Self,
        manager: &CacheManager,
        journal: &mut Journal,
        answer: &Self::Answer,
    ) -> Option<ManagerOperation> {
        let mut filled = Filled::default();
        if answer.is_ok() {
            for (row, &slot) in manager.batch_slots().iter().enumerate() {
                let ends = offsets.get(row..row + 2);
                let tokens = ends.map_or(1, |ends| ends[1] - ends[0]);
                if let Some(cursor) = manager.cursor_at(slot) {
                    add_last(&mut filled, cursor, tokens);
                }
            }
        }
        let rows = rows(manager, journal, requests, answer);
        let Filled { keys: filled, fingerprints } = filled;
        let (tokens, offsets) = (tokens.len(), offsets.to_vec());
        let (computed, covered) = (computed.into(), covered.into());
        Some(ManagerOperation::Append {
            rows,
            tokens,
            offsets,
            computed,
            covered,
            most_changes,
            filled,
            fingerprints,
        })
    }
}

/// [`CacheManager::append_turn`]; [`CacheManager::append_tokens`] is this without items. What items there were shows in the keys of the
/// blocks that the tokens fill.
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the call named")]
pub struct AppendTokens<'a> {
    pub request: RequestRef<'a>,
    pub tokens: &'a [u32],
    pub multimodal: &'a [MultimodalItem],
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
        manager.append_turn(self.request, self.tokens, self.multimodal, self.lookahead)
    }

    fn record(
        Self { request, tokens, lookahead, .. }: Self,
        manager: &CacheManager,
        _: &mut Journal,
        answer: &Self::Answer,
    ) -> Option<ManagerOperation> {
        let (mut filled, tokens) = (Filled::default(), tokens.len());
        if answer.is_ok()
            && let Ok(cursor) = manager.cursor(request)
        {
            add_last(&mut filled, cursor, tokens);
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

/// [`CacheManager::truncate_batch`].
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the call named")]
pub struct TruncateBatch<'a> {
    pub requests: &'a [RequestRef<'a>],
    pub num_tokens: &'a [usize],
    pub until: Until,
}

impl Operation<CacheManager> for TruncateBatch<'_> {
    type Answer = Result<(), ManagerError>;
    type Before = Self;

    fn before(&self, _: &CacheManager, _: &mut Journal) -> Self {
        *self
    }

    fn run(self, manager: &mut CacheManager) -> Self::Answer {
        manager.truncate_batch(self.requests, self.num_tokens, self.until)
    }

    fn record(
        Self { requests, num_tokens, until }: Self,
        manager: &CacheManager,
        journal: &mut Journal,
        answer: &Self::Answer,
    ) -> Option<ManagerOperation> {
        let rows = rows(manager, journal, requests, answer);
        let (tokens, until) = (num_tokens.to_vec(), until.into());
        Some(ManagerOperation::TruncateBatch { rows, tokens, until })
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
