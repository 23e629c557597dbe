//! The table of the calls of a manager that a journal records.

use kvpool::groups::Groups;
use kvpool::hash::{HashCursor, MultimodalItem};
use kvpool::retention::HintReport;
use kvpool::{
    Admission, AdmitOptions, BlockId, CacheManager, ManagerConfig, ManagerError, NewBlock, Part,
    PlannedOperation, Refused, RequestId, RequestRef, StepOutcome, StepPlan, SwapId, TableChange,
    TransferPlan,
};
use kvpool_observe::{EventBatch, ManagerWatch, ManagerWatchConfig};

use super::answer;
use super::kinds::{Count, Named, Seconds, Size, Step, Tenant, Ticket};
use super::manager_kinds::{
    Append, Batch, Ending, Forks, Length, Lengths, Load, NewRequest, Options, Plan, Portion, Prompt, Ranges,
    Rehashed, Request, Requests, Reuse, Swap, Turn, batch, name,
};
use super::table::calls;
use crate::journaled::{Journaled, Recordable, Recording, tracks_changes};
use crate::requests::{Requests as Memory, refs};
use crate::{
    AppendRecord, Filled, IdRecord, Journal, JournalConfig, JournalHeader, Name, PlanRecord, Planned,
    PromptRecord, SteadyAppend, TurnRecord,
};

type Answer<T> = Result<T, ManagerError>;

calls! {
    /// A recorded call of a [`CacheManager`].
    pub enum ManagerCall of CacheManager;
    /// The calls of a [`CacheManager`]. Each method runs the call and, if there is a journal, records
    /// it. Two kinds of calls are methods of `Journaled<CacheManager>` instead: those that take
    /// ownership of an argument, and those whose records contain digests that the manager computed.
    ///
    /// The type of a parameter is shown as `<Kind as Argument<CacheManager>>::Live<'_>`. These are the
    /// types of the kinds:
    ///
    /// | kind | type |
    /// |---|---|
    /// | `Request`, `NewRequest` | `RequestRef`: `"a".into()` |
    /// | `Requests`, `Batch` | `&[RequestRef]` |
    /// | `Forks` | `(&[RequestRef], &[RequestRef])`: the parents, and a child for each |
    /// | `Ending` | `&[(RequestRef, Signal)]` |
    /// | `Reuse` | `Until` |
    /// | `Prompt` | `&HashCursor` |
    /// | `Ranges` | `&[RetentionRange]` |
    /// | `Load` | `Loaded` |
    /// | `Length`, `Size`, `Count` | `usize` |
    /// | `Lengths` | `&[usize]` |
    /// | `Named` | `&[BlockId]` |
    /// | `Swap`, `Tenant`, `Ticket` | `SwapId`, `TenantId`, `kvpool::Ticket` |
    /// | `Step`, `Seconds` | `u64`, `f64` |
    pub trait ManagerCalls;

    /// See [`CacheManager::admit_with`].
    Admit admit(request: NewRequest, prompt: Prompt, options: Options) by hand,
        "{request}: {prompt}{options}",
        |manager| {
            let admitted = manager.admit(request.to_owned(), prompt.clone(), options);
            answer(&admitted.map_err(|refused| refused.error))
        };
    /// See [`CacheManager::resume_with`].
    Resume resume(request: Request, part: Portion, rehashed: Rehashed) by hand, "{request}{part}{rehashed}",
        |manager, memory| {
            memory.rehash(manager, request, rehashed.as_ref());
            Ok(answer(&manager.resume(request, part)))
        };
    Release release(request: Request, until: Reuse) -> Answer<()>, "{request}{until}";
    Preempt preempt(request: Request, until: Reuse) -> Answer<()>, "{request}{until}";
    /// See [`CacheManager::append_ragged`].
    Append append(append: Append) by hand, "{append}",
        |manager, memory| {
            let (ids, tokens) = memory.append_arguments(manager, append)?;
            Ok(answer(&manager.append(&append.rows(&refs(&ids), &tokens))))
        };
    /// See [`CacheManager::append_turn`].
    AppendTokens append_tokens(turn: Turn) by hand, "{turn}",
        |manager, memory| {
            let (id, tokens) = memory.turn_arguments(manager, turn)?;
            Ok(answer(&manager.append_tokens(id.as_ref(), &tokens, &[], turn.lookahead)))
        };
    Commit commit(request: Request, computed_tokens: Length) -> Answer<usize>,
        "{request}, {computed_tokens} computed";
    CommitBatch commit_batch(rows: Batch, computed_tokens: Lengths) -> Answer<usize>,
        found |answer| looked_up(answer), "{rows}, computed: {computed_tokens}";
    Fork fork(parent: Request, child: NewRequest) -> Answer<()>, "{child} of {parent}",
        |manager| manager.fork(parent, child.to_owned());
    Truncate truncate(request: Request, tokens: Length, until: Reuse) -> Answer<()>,
        "{request} to {tokens}{until}";
    TrimWindow trim_window(request: Request, window: Length) -> Answer<usize>,
        "{request} to a window of {window}";
    TakePlan take_plan() -> Answer<TransferPlan>, "";
    BeginSwapOut begin_swap_out(requests: Requests) -> Answer<SwapId>, "{requests}";
    BeginSwapIn begin_swap_in(requests: Requests) -> Answer<SwapId>, "{requests}";
    CompleteSwap complete_swap(swap: Swap) -> Answer<Vec<(BlockId, BlockId)>>, "swap {swap}";
    AbortSwap abort_swap(swap: Swap) -> Answer<()>, "swap {swap}";
    CommitStep commit_step(plan: Plan) by hand, "{plan}",
        |manager, memory| Ok(answer(&{
            let mut plan = memory.plan(manager, plan)?;
            manager.commit_step(&mut plan)
        }));
    /// This call also records [`CacheManager::end_of_life`], with
    /// [`kvpool::RetentionRange::end_of_life`] as argument.
    Retain retain(request: Request, ranges: Ranges) -> Answer<HintReport>, "{request}, {ranges}";
    SetTenant set_tenant(request: Request, tenant: Tenant) -> Answer<()>, "{request}, tenant {tenant}";
    /// This call also records [`CacheManager::end_of_life_of`], with
    /// [`kvpool::RetentionRange::end_of_life`] as argument.
    RetainPrefix retain_prefix(prompt: Prompt, ranges: Ranges) -> Answer<HintReport>, "{prompt}; {ranges}";
    AdvanceTime advance_time(now: Seconds) -> Answer<usize>, "to {now} s";
    CompleteStep complete_step(step: Step) -> Answer<usize>, "step {step}";
    BumpEpoch bump_epoch() -> Answer<u64>, "";
    Reset reset() -> Answer<usize>, "";
    Evict drop_cached(blocks: Named) -> Answer<usize>, "{blocks}";
    Resize resize(num_blocks: Size) -> Answer<()>, "to {num_blocks}";
    TakeEvents take_events() -> EventBatch, "";
    TruncateBatch truncate_batch(rows: Batch, tokens: Lengths, until: Reuse) -> Answer<()>,
        found |answer| looked_up(answer), "{rows} to tokens: {tokens}{until}";
    Extend extend(request: Request, tokens: Length) -> Answer<Vec<TableChange>>, "{request} to {tokens}";
    ExternalDone external_done(request: Request, loaded: Load) -> Answer<usize>, "{request}, {loaded}";
    Fence fence() -> Answer<kvpool::Ticket>, "";
    EndFence end_fence(ticket: Ticket) -> Answer<usize>, "ticket {ticket}";
    EndSession end_session(request: Request, until: Reuse) -> Answer<HintReport>, "{request}{until}";
    /// Evicts the given number of blocks in the order of eviction. To evict blocks that the caller
    /// selects, use `drop_cached`.
    EvictNext evict(blocks: Count) -> Answer<Vec<BlockId>>, "{blocks}";
    ReleaseBatch release_batch(requests: Requests, until: Reuse) -> Answer<()>, "{requests}{until}";
    /// Forks each parent request into the child request at the same position of the second list.
    ForkBatch fork_batch(forks: Forks) -> Answer<()>, "{forks}",
        |manager| manager.fork_batch(forks.0, forks.1);
    ExtendEncoder extend_encoder(request: Request, tokens: Length) -> Answer<Vec<TableChange>>,
        "{request} to {tokens}";
    ReleaseBatchWith release_batch_with(ended: Ending, until: Reuse) -> Answer<()>, "{ended}{until}";
}

/// Returns 1 if the manager knew every request id of a batch, otherwise 0. If it is 1, the record
/// contains the slots of the requests (small numbers), and otherwise their ids.
const fn looked_up<T>(answer: &Answer<T>) -> usize {
    matches!(answer, Ok(_) | Err(ManagerError::OutOfBlocks(_))) as usize
}

/// Returns the number of leading blocks of a prompt that the admission hits. Earlier records contain
/// these blocks, so the record of the prompt omits them. Returns 0 if all groups are windows, chunks,
/// or uncached, because a hit then needs no particular block to be cached.
fn cached(manager: &CacheManager, cursor: &HashCursor, cached_tokens: usize) -> usize {
    let full = |groups: &Groups| groups.specs().iter().any(|spec| spec.kind.is_full() && spec.is_cached());
    if manager.groups().is_none_or(full) { cached_tokens / cursor.hasher().block_size() } else { 0 }
}

/// Makes the record of a planned operation. For an append, the keys of the blocks that it fills are
/// unknown here, so the record does not contain them.
fn planned(manager: &CacheManager, journal: &mut Journal, planned: &PlannedOperation) -> Planned {
    let name = |id: &RequestId| name(manager, id.as_ref());
    match planned {
        PlannedOperation::Admit { id, cursor, staged, options, .. } => {
            let known = cached(manager, cursor, staged.cached_tokens);
            let prompt = journal.chain(cursor.chain(), cursor.num_tokens(), known);
            Planned::Admit { request: id.as_ref().into(), prompt, options: options.into() }
        }
        PlannedOperation::Resume { id, part, rehashed, .. } => Planned::Resume {
            request: name(id),
            part: (*part).into(),
            rehashed: rehashed.as_deref().map(Filled::whole),
        },
        PlannedOperation::Append { id, tokens, slots, .. } => Planned::Append {
            request: name(id),
            tokens: tokens.len(),
            covered: *slots,
            filled: Filled::default(),
        },
        PlannedOperation::Preempt { id, until } => {
            Planned::Preempt { request: name(id), until: (*until).into() }
        }
        PlannedOperation::Release { id, until } => {
            Planned::Release { request: name(id), until: (*until).into() }
        }
    }
}

/// Returns the short record of an append, and the blocks that the append filled. `None` if the append
/// does not fit into a [`SteadyAppend`], or its batch differs from the previous one.
fn steady(
    manager: &CacheManager,
    journal: &Journal,
    rows: &kvpool::Rows<'_>,
) -> Option<(SteadyAppend, Filled)> {
    let append = SteadyAppend::of(rows)?;
    let slots = manager.batch_slots();
    if !journal.is_batch(slots) {
        return None;
    }
    let mut filled = Filled::default();
    for &slot in slots {
        filled.add_last(manager.cursor_at(slot)?, 1);
    }
    Some((append, filled))
}

fn appended(
    manager: &CacheManager,
    journal: &mut Journal,
    rows: &kvpool::Rows<'_>,
    answer: &Answer<Vec<NewBlock>>,
) -> AppendRecord {
    let &kvpool::Rows { requests, tokens, offsets, computed, covered, most_changes } = rows;
    let mut append = AppendRecord {
        rows: batch(manager, journal, requests, looked_up(answer)),
        tokens: tokens.len(),
        offsets: offsets.to_vec(),
        computed: computed.into(),
        covered: covered.into(),
        most_changes,
        filled: Filled::default(),
    };
    for (row, &slot) in manager.batch_slots().iter().enumerate().filter(|_| answer.is_ok()) {
        if let Some(cursor) = manager.cursor_at(slot) {
            append.filled.add_last(cursor, append.ends(row).len());
        }
    }
    append
}

impl Journaled<CacheManager> {
    /// Records [`CacheManager::admit_with`].
    ///
    /// # Errors
    /// The errors of that method.
    #[inline]
    pub fn admit(
        &mut self,
        request: RequestId,
        cursor: HashCursor,
        options: &AdmitOptions,
    ) -> Result<Admission, Refused> {
        let asked = self.before(|_, _| request.clone());
        let run = move |manager: &mut CacheManager| manager.admit_with(request, cursor, options);
        self.call(
            |_, _| asked,
            run,
            |asked, manager, journal, answer| {
                let request = asked?;
                let (cursor, known) = match answer {
                    Ok(admission) => {
                        let cursor = manager.cursor_at(manager.slot_of(&request)?)?;
                        (cursor, cached(manager, cursor, admission.cached_tokens))
                    }
                    Err(refused) => (&*refused.cursor, 0),
                };
                let foreign = matches!(answer, Err(refused) if refused.error == ManagerError::ForeignCursor);
                let chain = journal.chain(cursor.chain(), cursor.num_tokens(), known);
                let (request, prompt) = (IdRecord(request), PromptRecord { chain, foreign });
                Some(ManagerCall::Admit { request, prompt, options: options.into() })
            },
        )
    }

    /// Records [`CacheManager::resume_with`].
    ///
    /// # Errors
    /// The errors of that method.
    #[inline]
    pub fn resume(&mut self, request: RequestRef<'_>, part: Part) -> Answer<Admission> {
        let record = move |manager: &CacheManager, _: &mut _| ManagerCall::Resume {
            request: name(manager, request),
            part: part.into(),
            rehashed: manager.rehashed(request).as_deref().map(Filled::whole),
        };
        self.call(record, move |manager| manager.resume_with(request, part), |record, _, _, _| Some(record))
    }

    /// Records [`CacheManager::append_ragged`]. If the append differs from the previous append only in
    /// the blocks that it fills, the journal copies the bytes of the previous record.
    ///
    /// # Errors
    /// The errors of that method.
    #[inline]
    pub fn append(&mut self, rows: &kvpool::Rows<'_>) -> Answer<Vec<NewBlock>> {
        self.write(
            |_, _| (),
            |manager| manager.append_ragged(rows),
            |(), manager, journal, answer, check| {
                let steady = if answer.is_ok() { steady(manager, journal, rows) } else { None };
                let steady = steady.as_ref().map(|(append, filled)| (*append, filled));
                let repeated = steady.and_then(|(append, filled)| journal.repeat(append, filled, check));
                repeated.unwrap_or_else(|| {
                    let append = appended(manager, journal, rows, answer);
                    journal.record_as(&ManagerCall::Append { append }, check, steady)
                })
            },
        )
    }

    /// Records [`CacheManager::append_turn`], or [`CacheManager::append_tokens`] if there are no
    /// multimodal items. The record omits the items, because it contains the keys of the filled blocks,
    /// which depend on the items.
    ///
    /// # Errors
    /// The errors of that method.
    #[inline]
    pub fn append_tokens(
        &mut self,
        request: RequestRef<'_>,
        tokens: &[u32],
        multimodal: &[MultimodalItem],
        lookahead: usize,
    ) -> Answer<Vec<TableChange>> {
        let run =
            move |manager: &mut CacheManager| manager.append_turn(request, tokens, multimodal, lookahead);
        self.call(
            |_, _| (),
            run,
            |(), manager, _, answer| {
                let (mut filled, tokens) = (Filled::default(), tokens.len());
                if answer.is_ok()
                    && let Ok(cursor) = manager.cursor(request)
                {
                    filled.add_last(cursor, tokens);
                }
                let request = name(manager, request);
                Some(ManagerCall::AppendTokens { turn: TurnRecord { request, tokens, lookahead, filled } })
            },
        )
    }

    /// Records [`CacheManager::commit_step`]. The record also contains the blocks that appends have
    /// filled, which are known only after the call.
    ///
    /// # Errors
    /// The errors of that method.
    #[inline]
    pub fn commit_step(&mut self, plan: &mut StepPlan) -> Answer<Vec<StepOutcome>> {
        let planned = self.before(|manager, journal| {
            manager.planned(plan).iter().map(|one| planned(manager, journal, one)).collect::<Vec<_>>()
        });
        let run = move |manager: &mut CacheManager| manager.commit_step(plan);
        self.call(
            |_, _| planned,
            run,
            |planned, manager, _, answer| {
                let mut planned = planned?;
                for one in planned.iter_mut().filter(|_| answer.is_ok()) {
                    if let Planned::Append { request: Name::Slot(slot), tokens, filled, .. } = one
                        && let Some(cursor) = manager.cursor_at(*slot as usize)
                    {
                        filled.add_last(cursor, *tokens);
                    }
                }
                let stale = matches!(answer, Err(ManagerError::StaleStep));
                Some(ManagerCall::CommitStep { plan: PlanRecord { planned, stale } })
            },
        )
    }
}

impl Recordable for CacheManager {
    type Config = ManagerConfig;
    type Watch = ManagerWatchConfig;
    type Error = ManagerError;
    type Record = ManagerCall;
    type Memory = Memory;

    fn create(
        config: ManagerConfig,
        watch: &ManagerWatchConfig,
        journal: JournalConfig,
    ) -> Result<Self, ManagerError> {
        let mut manager = Self::new(config)?.watched(watch)?;
        let tiers = manager.tiers();
        let blocks = (0..tiers.len()).filter_map(|tier| Some(tiers.pool(tier).ok()?.num_blocks())).sum();
        if tracks_changes(blocks, journal) {
            manager.keep_digest()?;
        }
        Ok(manager)
    }

    fn header(config: &ManagerConfig, watch: &ManagerWatchConfig, journal: JournalConfig) -> JournalHeader {
        JournalHeader::of_manager(config, watch, journal)
    }

    fn digest(&mut self) -> Option<u64> {
        self.state_digest().or_else(|| Some(self.state_digest_from_scratch()))
    }

    fn is_poisoned(&self) -> bool {
        self.poison_reason().is_some()
    }
}
