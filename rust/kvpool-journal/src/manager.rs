//! Replays on a [`CacheManager`].

use crate::{ChainRecord, Ids, JournalHeader, ManagerOperation, Name, Planned, RangeRecord, Rehashed, Rows};
use hashbrown::HashMap;
use kvpool::hash::Verify;
use kvpool::retention::TenantId;
use kvpool::{
    BlockId, CacheManager, Covered, InvariantViolation, ManagerConfig, ManagerError, RequestId, RequestRef,
    SwapId, Ticket,
};

use crate::calls::answer;
use crate::contents::Contents;
use crate::error::{ReplayError, zeros};
use crate::journaled::{Journaled, Recordable};
use crate::numbers::Numbers;
use crate::observers::{Observed, Observers};
use crate::ops::manager as op;
use crate::subject::{Step, Subject, memory};
use crate::value::Answer;
use kvpool_observe::{ManagerWatch, ManagerWatchConfig};

/// A manager that a journal is replayed on.
#[derive(Debug)]
pub struct ManagerSubject {
    manager: Journaled<CacheManager>,
    contents: Contents,
    /// The request in each slot.
    slots: Vec<Option<RequestId>>,
    /// The slots of the batch before.
    rows: Vec<u32>,
    /// Swaps and blocks of the recorded run -> those of this one, where operations run on their own.
    swaps: HashMap<u64, u64>,
    renamed: HashMap<BlockId, BlockId>,
}

/// What a recorded manager was watched by, with a digest.
fn watch_config(header: &JournalHeader) -> Result<ManagerWatchConfig, ReplayError> {
    Ok(ManagerWatchConfig { digest: true, ..header.watch_config(kvpool_policies::ALL)? })
}

impl ManagerSubject {
    /// The manager, to look at.
    #[must_use]
    pub fn manager(&self) -> &CacheManager {
        &self.manager
    }

    /// The numbers of the contents so far.
    pub(crate) fn numbers(&self) -> Numbers {
        self.contents.numbers()
    }

    /// A manager, with a journal or without.
    fn made(
        header: &JournalHeader,
        record: impl FnOnce(CacheManager) -> Result<Journaled<CacheManager>, ReplayError>,
    ) -> Result<Self, ReplayError> {
        let config = header.manager_config(kvpool_policies::ALL)?;
        // Tokens are made up: fingerprints tell the same contents apart.
        let verify = config.verify.min(Verify::Fingerprint);
        let contents = Contents::new(config.algorithm, config.block_size, verify)?;
        let config = ManagerConfig { verify, ..config };
        let watch = watch_config(header)?;
        let manager = CacheManager::with_hasher(config, contents.hasher().clone())?.watched(&watch)?;
        Ok(Self {
            manager: record(manager)?,
            contents,
            slots: Vec::new(),
            rows: Vec::new(),
            swaps: HashMap::new(),
            renamed: HashMap::new(),
        })
    }

    /// Stops, and begins again as another process does. Returns how many blocks are warm.
    pub(crate) fn restart(&mut self, header: &JournalHeader) -> Result<usize, ReplayError> {
        let image = self.manager.image()?;
        let config = header.manager_config(kvpool_policies::ALL)?;
        let verify = config.verify.min(Verify::Fingerprint);
        let config = ManagerConfig { verify, num_blocks: self.manager.pool().num_blocks(), ..config };
        let hasher = self.contents.hasher().clone();
        let mut manager = CacheManager::with_hasher(config, hasher)?.watched(&watch_config(header)?)?;
        if let Some(now) = self.manager.pool().retention_time() {
            manager.advance_time(now)?;
        }
        let restored = manager.restore(&image, 0.0, |_| true)?;
        self.manager = manager.into();
        self.slots.clear();
        self.rows.clear();
        self.swaps.clear();
        self.renamed.clear();
        Ok(restored.blocks)
    }

    fn id(&self, name: &Name) -> Result<RequestId, ReplayError> {
        match name {
            Name::Id(id) => Ok(id.clone()),
            Name::Slot(slot) => {
                let known = self.slots.get(*slot as usize).and_then(Clone::clone);
                known.ok_or(ReplayError::UnknownSlot { slot: *slot })
            }
        }
    }

    fn ids(&self, names: &[Name]) -> Result<Vec<RequestId>, ReplayError> {
        names.iter().map(|name| self.id(name)).collect()
    }

    /// The requests of a batch; its slots are remembered.
    fn batch(&mut self, rows: &Rows) -> Result<Vec<RequestId>, ReplayError> {
        match rows {
            Rows::Ids(ids) => return Ok(ids.clone()),
            Rows::Slots(slots) => self.rows.clone_from(slots),
            Rows::Same => {}
        }
        self.rows.iter().map(|&slot| self.id(&Name::Slot(slot))).collect()
    }

    /// Notes which slot a new request got.
    fn enter(&mut self, id: &RequestId) {
        if let Some(slot) = self.manager.slot_of(id) {
            self.slots.resize_with(self.slots.len().max(slot + 1), || None);
            self.slots[slot] = Some(id.clone());
        }
    }

    fn rehash(&mut self, id: &RequestId, rehashed: Option<&Rehashed>) {
        if let (Some(rehashed), Ok(cursor)) = (rehashed, self.manager.cursor(id)) {
            self.contents.rehash(cursor, rehashed);
        }
    }

    fn swap(&mut self, ids: &[RequestId], out: bool) -> Answer {
        let refs: Vec<RequestRef<'_>> = ids.iter().map(RequestId::as_ref).collect();
        let requests = &refs[..];
        answer(&if out {
            self.manager.apply(op::BeginSwapOut { requests })
        } else {
            self.manager.apply(op::BeginSwapIn { requests })
        })
    }

    fn append(&mut self, operation: &ManagerOperation) -> Result<Answer, ReplayError> {
        let ManagerOperation::Append {
            rows,
            tokens,
            offsets,
            computed,
            covered,
            most_changes,
            filled,
            fingerprints,
        } = operation
        else {
            return Ok(Answer::default());
        };
        let ids = self.batch(rows)?;
        let (mut keys, mut prints) = (filled.unpack(), fingerprints.unpack());
        let mut spelled = zeros(*tokens)?;
        for (row, id) in ids.iter().enumerate() {
            let ends = offsets.get(row..row + 2).map_or(row..row + 1, |ends| ends[0]..ends[1]);
            if let (Ok(cursor), Some(tokens)) = (self.manager.cursor(id), spelled.get_mut(ends)) {
                tokens.copy_from_slice(&self.contents.appended(
                    cursor,
                    tokens.len(),
                    &mut keys,
                    &mut prints,
                )?);
            }
        }
        let refs: Vec<RequestRef<'_>> = ids.iter().map(RequestId::as_ref).collect();
        let (computed, covered, most_changes) = (computed.computed(), covered.covered(), *most_changes);
        let rows =
            kvpool::Rows { requests: &refs, tokens: &spelled, offsets, computed, covered, most_changes };
        let result = self.manager.apply(op::Append { rows });
        Ok(answer(&result))
    }

    fn commit_step(&mut self, planned: &[Planned], stale: bool) -> Result<Answer, ReplayError> {
        let mut plan = self.manager.plan_step();
        for one in planned {
            // A part that is refused here and was not when it was recorded shows in the answer: it is one outcome less.
            let _refused = match one {
                Planned::Admit { request, prompt, options } => {
                    let cursor = self.contents.cursor(prompt, false)?;
                    let options = options.options();
                    let planned = self.manager.plan_admit_with(&mut plan, request.clone(), cursor, &options);
                    planned.map_err(ManagerError::from)
                }
                Planned::Resume { request, part, rehashed } => {
                    let id = self.id(request)?;
                    self.rehash(&id, rehashed.as_ref());
                    self.manager.plan_resume_with(&mut plan, &id, part.part())
                }
                Planned::Append { request, tokens, covered, filled, fingerprints } => {
                    let id = self.id(request)?;
                    let spelled = match self.manager.cursor(&id) {
                        Ok(cursor) => {
                            let (mut keys, mut prints) = (filled.unpack(), fingerprints.unpack());
                            self.contents.appended(cursor, *tokens, &mut keys, &mut prints)?
                        }
                        Err(_) => zeros(*tokens)?,
                    };
                    let rows = kvpool::Rows {
                        requests: &[id.as_ref()],
                        tokens: &spelled,
                        offsets: &[0, spelled.len()],
                        covered: Covered::Each(&[*covered]),
                        ..kvpool::Rows::default()
                    };
                    self.manager.plan_append_ragged(&mut plan, &rows)
                }
                Planned::Preempt { request, until } => {
                    self.manager.plan_preempt(&mut plan, &self.id(request)?, until.until())
                }
                Planned::Release { request, until } => {
                    self.manager.plan_release(&mut plan, &self.id(request)?, until.until())
                }
            };
        }
        if stale {
            // A plan of another manager is one of another state.
            plan =
                CacheManager::new(ManagerConfig { num_blocks: 2, ..ManagerConfig::default() })?.plan_step();
        }
        let result = self.manager.apply(op::CommitStep { plan: &mut plan });
        for one in planned.iter().filter(|_| result.is_ok()) {
            if let Planned::Admit { request, .. } = one {
                self.enter(request);
            }
        }
        Ok(answer(&result))
    }
}

impl Subject for ManagerSubject {
    type Call = ManagerOperation;

    fn new(header: &JournalHeader) -> Result<Self, ReplayError> {
        Self::made(header, |manager| Ok(manager.into()))
    }

    fn recorded(header: &JournalHeader) -> Result<Self, ReplayError> {
        let (config, journal) = (header.manager_config(kvpool_policies::ALL)?, memory()?);
        let watch = header.watch_config(kvpool_policies::ALL)?;
        let header_of = CacheManager::header(&config, &watch, journal.config());
        Self::made(header, |manager| Ok(Journaled::begin(manager, &header_of, journal)))
    }

    fn watch(&mut self, header: &JournalHeader, observers: &Observers) -> Result<(), ReplayError> {
        let recorded = watch_config(header)?;
        let watch = ManagerWatchConfig {
            advisor: observers.advisor.clone().or(recorded.advisor.clone()),
            explain: observers.explain,
            metrics: observers.metrics,
            ..recorded
        };
        Ok(self.manager.unrecorded(|manager| manager.watch(&watch))?)
    }

    fn observed(&self) -> Observed<'_> {
        Observed::Manager(&self.manager)
    }

    fn take_image(&mut self) -> Vec<u8> {
        self.manager.take_journal().and_then(|mut journal| journal.image()).unwrap_or_default()
    }

    fn run(&mut self, operation: &ManagerOperation) -> Result<Answer, ReplayError> {
        use ManagerOperation as O;
        Ok(match operation {
            O::Admit { request, prompt, foreign, options } => {
                let cursor = self.contents.cursor(prompt, *foreign)?;
                let admit = op::Admit { request: request.clone(), cursor, options: &options.options() };
                let result = self.manager.apply(admit);
                if result.is_ok() {
                    self.enter(request);
                }
                let result = result.map_err(|refused| refused.error);
                answer(&result)
            }
            O::Resume { request, part, rehashed } => {
                let id = self.id(request)?;
                self.rehash(&id, rehashed.as_ref());
                let resume = op::Resume { request: id.as_ref(), part: part.part() };
                answer(&self.manager.apply(resume))
            }
            // The slot of one that is gone, now or later, is named no more until a new request has it.
            O::Release { request, until } => {
                let id = self.id(request)?;
                let release = op::Release { request: id.as_ref(), until: until.until() };
                answer(&self.manager.apply(release))
            }
            O::ReleaseBatchWith { requests, signals, until } => {
                let ids = requests.iter().map(|name| self.id(name)).collect::<Result<Vec<_>, _>>()?;
                let signals = signals.iter().map(|signal| signal.signal());
                let ended: Vec<_> = ids.iter().map(RequestId::as_ref).zip(signals).collect();
                let release = op::ReleaseBatchWith { ended: &ended, until: until.until() };
                answer(&self.manager.apply(release))
            }
            O::ReleaseBatch { requests, until } => {
                let ids = self.ids(requests)?;
                let requests: Vec<RequestRef<'_>> = ids.iter().map(RequestId::as_ref).collect();
                let release = op::ReleaseBatch { requests: &requests, until: until.until() };
                answer(&self.manager.apply(release))
            }
            O::EndSession { request, until } => {
                let id = self.id(request)?;
                let end = op::EndSession { request: id.as_ref(), until: until.until() };
                answer(&self.manager.apply(end))
            }
            O::Preempt { request, until } => {
                let id = self.id(request)?;
                let preempt = op::Preempt { request: id.as_ref(), until: until.until() };
                answer(&self.manager.apply(preempt))
            }
            O::Extend { request, tokens } => {
                let id = self.id(request)?;
                let extend = op::Extend { request: id.as_ref(), num_tokens: *tokens };
                answer(&self.manager.apply(extend))
            }
            O::ExtendEncoder { request, tokens } => {
                let id = self.id(request)?;
                let extend = op::ExtendEncoder { request: id.as_ref(), num_tokens: *tokens };
                answer(&self.manager.apply(extend))
            }
            O::ExternalDone { request, loaded } => {
                let id = self.id(request)?;
                let done = op::ExternalDone { request: id.as_ref(), loaded: loaded.loaded() };
                answer(&self.manager.apply(done))
            }
            O::Fence => answer(&self.manager.apply(op::Fence)),
            O::EndFence { ticket } => {
                let ended = self.manager.apply(op::EndFence { ticket: Ticket::new(*ticket) });
                answer(&ended)
            }
            O::Append { .. } => self.append(operation)?,
            O::AppendTokens { request, tokens, lookahead, filled, fingerprints } => {
                let id = self.id(request)?;
                let spelled = match self.manager.cursor(&id) {
                    Ok(cursor) => {
                        let (mut keys, mut prints) = (filled.unpack(), fingerprints.unpack());
                        self.contents.appended(cursor, *tokens, &mut keys, &mut prints)?
                    }
                    Err(_) => zeros(*tokens)?,
                };
                let (request, lookahead) = (id.as_ref(), *lookahead);
                let result = self.manager.apply(op::AppendTokens {
                    request,
                    tokens: &spelled,
                    multimodal: &[],
                    lookahead,
                });
                answer(&result)
            }
            O::Commit { request, computed_tokens } => {
                let id = self.id(request)?;
                let commit = op::Commit { request: id.as_ref(), computed_tokens: *computed_tokens };
                answer(&self.manager.apply(commit))
            }
            O::CommitBatch { rows, computed_tokens } => {
                let ids = self.batch(rows)?;
                let refs: Vec<RequestRef<'_>> = ids.iter().map(RequestId::as_ref).collect();
                answer(&self.manager.apply(op::CommitBatch { requests: &refs, computed_tokens }))
            }
            O::Fork { parent, child } => {
                let id = self.id(parent)?;
                let fork = op::Fork { parent: id.as_ref(), child: child.as_ref() };
                let result = self.manager.apply(fork);
                if result.is_ok() {
                    self.enter(child);
                }
                answer(&result)
            }
            O::ForkBatch { parents, children } => {
                let ids = self.ids(parents)?;
                let parents: Vec<RequestRef<'_>> = ids.iter().map(RequestId::as_ref).collect();
                let refs: Vec<RequestRef<'_>> = children.iter().map(RequestId::as_ref).collect();
                let result = self.manager.apply(op::ForkBatch { parents: &parents, children: &refs });
                if result.is_ok() {
                    children.iter().for_each(|child| self.enter(child));
                }
                answer(&result)
            }
            O::Truncate { request, tokens, until } => {
                let id = self.id(request)?;
                let (num_tokens, until) = (*tokens, until.until());
                let truncate = op::Truncate { request: id.as_ref(), num_tokens, until };
                answer(&self.manager.apply(truncate))
            }
            O::TruncateBatch { rows, tokens, until } => {
                let ids = self.batch(rows)?;
                let requests: Vec<RequestRef<'_>> = ids.iter().map(RequestId::as_ref).collect();
                let (requests, until) = (&requests[..], until.until());
                let truncate = op::TruncateBatch { requests, num_tokens: tokens, until };
                answer(&self.manager.apply(truncate))
            }
            O::TrimWindow { request, window } => {
                let id = self.id(request)?;
                let trim = op::TrimWindow { request: id.as_ref(), window: *window };
                answer(&self.manager.apply(trim))
            }
            O::TakePlan => answer(&self.manager.apply(op::TakePlan)),
            O::BeginSwapOut { requests } => {
                let ids = self.ids(requests)?;
                self.swap(&ids, true)
            }
            O::BeginSwapIn { requests } => {
                let ids = self.ids(requests)?;
                self.swap(&ids, false)
            }
            O::CompleteSwap { swap } => {
                let result = self.manager.apply(op::CompleteSwap { swap: SwapId::from_number(*swap) });
                answer(&result)
            }
            O::AbortSwap { swap } => {
                let swap = SwapId::from_number(*swap);
                answer(&self.manager.apply(op::AbortSwap { swap }))
            }
            O::CommitStep { planned, stale } => self.commit_step(planned, *stale)?,
            O::Retain { request, ranges } => {
                let id = self.id(request)?;
                let ranges: Vec<_> = ranges.iter().map(RangeRecord::range).collect();
                let retain = op::Retain { request: id.as_ref(), ranges: &ranges };
                answer(&self.manager.apply(retain))
            }
            O::SetTenant { request, tenant } => {
                let id = self.id(request)?;
                let set = op::SetTenant { request: id.as_ref(), tenant: TenantId(*tenant) };
                answer(&self.manager.apply(set))
            }
            O::RetainPrefix { prompt, foreign, ranges } => {
                let cursor = self.contents.cursor(prompt, *foreign)?;
                let ranges: Vec<_> = ranges.iter().map(RangeRecord::range).collect();
                let retain = op::RetainPrefix { cursor: &cursor, ranges: &ranges };
                answer(&self.manager.apply(retain))
            }
            O::AdvanceTime { now } => answer(&self.manager.apply(op::AdvanceTime { now: *now })),
            O::CompleteStep { step } => answer(&self.manager.apply(op::CompleteStep { step: *step })),
            O::BumpEpoch => answer(&self.manager.apply(op::BumpEpoch)),
            O::Reset => answer(&self.manager.apply(op::Reset)),
            O::Evict { blocks } => {
                let blocks = &blocks.unpack();
                answer(&self.manager.apply(op::DropCached { blocks }))
            }
            O::EvictNext { blocks } => answer(&self.manager.apply(op::Evict { blocks: *blocks })),
            O::Resize { num_blocks } => answer(&self.manager.apply(op::Resize { num_blocks: *num_blocks })),
            O::TakeEvents => answer(&self.manager.apply(op::TakeEvents)),
        })
    }

    fn resolve(&mut self, operation: &ManagerOperation) -> Result<ManagerOperation, ReplayError> {
        use ManagerOperation as O;
        let mut resolved = operation.clone();
        let alone = |subject: &Self, name: &mut Name| -> Result<(), ReplayError> {
            *name = Name::Id(subject.id(name)?);
            Ok(())
        };
        match &mut resolved {
            O::Admit { prompt, .. } | O::RetainPrefix { prompt, .. } => {
                *prompt = self.contents.whole(prompt)?;
            }
            O::Append { rows, .. } | O::CommitBatch { rows, .. } | O::TruncateBatch { rows, .. } => {
                *rows = Rows::Ids(self.batch(rows)?);
            }
            O::BeginSwapOut { requests: names }
            | O::BeginSwapIn { requests: names }
            | O::ReleaseBatch { requests: names, .. }
            | O::ReleaseBatchWith { requests: names, .. }
            | O::ForkBatch { parents: names, .. } => {
                for name in names {
                    alone(self, name)?;
                }
            }
            O::Resume { request, .. }
            | O::Release { request, .. }
            | O::EndSession { request, .. }
            | O::Preempt { request, .. }
            | O::AppendTokens { request, .. }
            | O::Commit { request, .. }
            | O::Fork { parent: request, .. }
            | O::Truncate { request, .. }
            | O::TrimWindow { request, .. }
            | O::Extend { request, .. }
            | O::ExtendEncoder { request, .. }
            | O::ExternalDone { request, .. }
            | O::Retain { request, .. }
            | O::SetTenant { request, .. } => alone(self, request)?,
            O::CommitStep { planned, .. } => {
                for one in planned {
                    match one {
                        Planned::Admit { prompt, .. } => *prompt = self.contents.whole(prompt)?,
                        Planned::Resume { request, .. }
                        | Planned::Append { request, .. }
                        | Planned::Preempt { request, .. }
                        | Planned::Release { request, .. } => alone(self, request)?,
                    }
                }
            }
            O::TakePlan
            | O::CompleteSwap { .. }
            | O::AbortSwap { .. }
            | O::AdvanceTime { .. }
            | O::CompleteStep { .. }
            | O::BumpEpoch
            | O::Reset
            | O::Evict { .. }
            | O::EvictNext { .. }
            | O::Resize { .. }
            | O::Fence
            | O::EndFence { .. }
            | O::TakeEvents => {}
        }
        Ok(resolved)
    }

    fn run_alone(&mut self, step: &Step<ManagerOperation>) -> Result<Answer, ReplayError> {
        use ManagerOperation as O;
        let mut operation = step.operation.clone();
        let epoch = self.epoch();
        let move_on = |prompt: &mut ChainRecord| {
            if prompt.epoch == step.epoch {
                prompt.epoch = epoch;
            }
        };
        match &mut operation {
            O::CompleteSwap { swap } | O::AbortSwap { swap } => {
                *swap = self.swaps.get(swap).copied().unwrap_or(*swap);
            }
            O::Evict { blocks } => {
                let rename = |block: BlockId| self.renamed.get(&block).copied().unwrap_or(block);
                *blocks = Ids::pack(&blocks.unpack().into_iter().map(rename).collect::<Vec<_>>());
            }
            O::Admit { prompt, .. } | O::RetainPrefix { prompt, .. } => move_on(prompt),
            O::CommitStep { planned, .. } => {
                for one in planned {
                    if let Planned::Admit { prompt, .. } = one {
                        move_on(prompt);
                    }
                }
            }
            _ => {}
        }
        let answer = self.run(&operation)?;
        self.renamed.extend(step.answer.blocks.iter().copied().zip(answer.blocks.iter().copied()));
        if let (Some(recorded), Some(swap)) = (step.answer.swap, answer.swap) {
            self.swaps.insert(recorded, swap);
        }
        Ok(answer)
    }

    fn epoch(&self) -> u64 {
        self.manager.pool().epoch()
    }

    fn digest(&mut self) -> u64 {
        self.manager.unrecorded(Recordable::digest).unwrap_or(0)
    }

    fn check(&mut self) -> Result<(), InvariantViolation> {
        self.manager.check_invariants()
    }
}
