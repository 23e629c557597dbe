//! The journal of a [`CacheManager`]: which calls are written, and how requests and prompts are named in it.
//!
//! As in the pool, the journal stays where it is while a call runs, so a panic does not lose it. A
//! request is written by its slot, which a replay gives the same; a prompt by the keys of its blocks.

#[cfg(feature = "replay")]
use std::sync::Arc;

use super::error::{ManagerError, Refused};
use super::growth::NewBlock;
use super::hints::{RequestHints, RetentionRange};
use super::request::{RequestId, RequestRef};
use super::step::{Planned, StepOutcome, StepPlan};
use super::{Admission, CacheManager, ManagerConfig};
use crate::hash::HashCursor;
#[cfg(feature = "replay")]
use crate::hash::{BlockHasher, HashAlgorithm};
use crate::journal::{
    Check, HintsRecord, Journal, JournalHeader, Keys, ManagerOperation, Name, Outcome,
    Planned as PlannedRecord, RangeRecord, Rehashed, Rows,
};
use crate::sequence::TableChange;

/// The keys and fingerprints of blocks that an operation filled.
#[derive(Default)]
struct Filled {
    keys: Keys,
    fingerprints: Keys,
}

impl Filled {
    /// Notes the blocks of a chain behind the first `before`.
    fn add(&mut self, cursor: &HashCursor, before: usize) {
        let chain = cursor.chain();
        chain.hashes().iter().skip(before).for_each(|hash| self.keys.push(hash.key()));
        chain.fingerprints().iter().skip(before).for_each(|&whole| self.fingerprints.push(whole as u64));
    }

    /// Those of a whole chain.
    fn whole(cursor: &HashCursor) -> Rehashed {
        let mut filled = Self::default();
        filled.add(cursor, 0);
        (filled.keys, filled.fingerprints)
    }
}

impl CacheManager {
    /// A new manager whose operations `journal` records: see [`crate::journal`].
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_journal(config: ManagerConfig, mut journal: Journal) -> Result<Self, ManagerError> {
        let header = JournalHeader::of_manager(&config, journal.config());
        let mut manager = Self::new(config)?;
        journal.begin(&header);
        manager.journal = Some(Box::new(journal));
        Ok(manager)
    }

    /// A new manager that hashes with `hasher` instead of one made from its settings: for replays, which look digests up.
    ///
    /// # Errors
    /// As [`Self::new`].
    #[cfg(feature = "replay")]
    pub fn with_hasher(config: ManagerConfig, hasher: Arc<BlockHasher>) -> Result<Self, ManagerError> {
        let own = ManagerConfig { key: None, seed: None, algorithm: HashAlgorithm::Sha256, ..config };
        Ok(Self { hasher, ..Self::new(own)? })
    }

    /// Begins a journal of a manager that has done nothing yet: for replays that are recorded themselves.
    #[cfg(feature = "replay")]
    pub fn begin_journal(&mut self, config: &ManagerConfig, mut journal: Journal) {
        journal.begin(&JournalHeader::of_manager(config, journal.config()));
        self.journal = Some(Box::new(journal));
    }

    /// The journal, if there is one: how long it is, and whether it stopped.
    #[must_use]
    pub fn journal(&self) -> Option<&Journal> {
        self.journal.as_deref()
    }

    /// Ends the journal and hands it over.
    pub fn take_journal(&mut self) -> Option<Journal> {
        self.journal.take().map(|journal| *journal)
    }

    /// What the journal holds, if it is a ring: flushed, as the bytes of a file.
    pub fn journal_image(&mut self) -> Option<Vec<u8>> {
        self.journal.as_mut()?.image()
    }

    /// Writes what the journal has collected: what a crash would lose.
    pub fn flush_journal(&mut self) {
        if let Some(journal) = &mut self.journal {
            journal.flush();
        }
    }

    /// The slot of a request: what a journal names it by.
    #[must_use]
    pub fn slot_of<'a>(&self, id: impl Into<RequestRef<'a>>) -> Option<usize> {
        self.slots.get(&id.into()).copied()
    }

    /// A request's tokens and their hash chain.
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`].
    pub fn cursor<'a>(&self, id: impl Into<RequestRef<'a>>) -> Result<&HashCursor, ManagerError> {
        Ok(&self.at(self.slot(id.into())?)?.sequence.cursor)
    }

    /// Writes an operation and the check of its result. `operation` is asked before it runs.
    pub(super) fn recorded<T: Outcome>(
        &mut self,
        operation: impl FnOnce(&Self, &mut Journal) -> ManagerOperation,
        run: impl FnOnce(&mut Self) -> Result<T, ManagerError>,
    ) -> Result<T, ManagerError> {
        let Some(mut journal) = self.journal.take() else { return run(self) };
        let operation = operation(self, &mut journal);
        self.journal = Some(journal);
        let result = run(self);
        if let Some(journal) = self.journal.take() {
            self.note(journal, &operation, Check::of(&result));
        }
        result
    }

    /// Writes an operation that has run, and takes the journal back.
    pub(super) fn note(&mut self, mut journal: Box<Journal>, operation: &ManagerOperation, check: u32) {
        journal.record(operation, check);
        if self.tiers.is_poisoned() {
            journal.flush();
        }
        self.journal = Some(journal);
    }

    pub(super) fn name(&self, id: RequestRef<'_>) -> Name {
        self.slots.get(&id).map_or_else(|| Name::Id(id.to_owned()), |&slot| Name::Slot(slot as u32))
    }

    pub(super) fn names(&self, ids: &[RequestRef<'_>]) -> Vec<Name> {
        ids.iter().map(|&id| self.name(id)).collect()
    }

    /// What a request's prompt hashes to now, if that is not what it hashed to.
    pub(super) fn rehashed(&self, id: RequestRef<'_>) -> Option<Rehashed> {
        let rebased = self.rebased(self.slot(id).ok()?).ok()??;
        Some(Filled::whole(&rebased))
    }

    pub(super) fn record_admission(
        &mut self,
        mut journal: Box<Journal>,
        request: RequestId,
        hints: &RequestHints,
        result: &Result<Admission, Refused>,
    ) {
        let (prompt, foreign) = match result {
            Ok(admission) => {
                let Ok(cursor) = self.cursor(request.as_ref()) else { return self.journal = Some(journal) };
                (journal.chain(cursor.chain(), cursor.num_tokens(), admission.cached_blocks), false)
            }
            Err(refused) => {
                let (cursor, foreign) = (&refused.cursor, refused.error == ManagerError::ForeignCursor);
                (journal.chain(cursor.chain(), cursor.num_tokens(), 0), foreign)
            }
        };
        let operation = ManagerOperation::Admit { request, prompt, foreign, hints: HintsRecord::from(hints) };
        let check = Check::of(&result.as_ref().map_err(|refused| &refused.error));
        self.note(journal, &operation, check);
    }

    /// The batch of a call: by slots if it was looked up to its end, which all but refusals of names do.
    fn rows_record<T>(
        journal: &mut Journal,
        (requests, slots): (&[RequestRef<'_>], &[usize]),
        result: &Result<T, ManagerError>,
    ) -> Rows {
        match result {
            Ok(_) | Err(ManagerError::OutOfBlocks(_)) => journal.rows(slots),
            Err(_) => Rows::Ids(requests.iter().map(|&id| id.to_owned()).collect()),
        }
    }

    pub(super) fn note_append(
        &mut self,
        mut journal: Box<Journal>,
        batch: (&[RequestRef<'_>], &[usize]),
        tokens: usize,
        commit_first: bool,
        result: &Result<Vec<NewBlock>, ManagerError>,
    ) {
        let mut filled = Filled::default();
        if result.is_ok() {
            for request in batch.1.iter().filter_map(|&slot| self.at(slot).ok()) {
                let cursor = &request.sequence.cursor;
                if cursor.tail().is_empty() {
                    filled.add(cursor, cursor.chain().len().saturating_sub(1));
                }
            }
        }
        let rows = Self::rows_record(&mut journal, batch, result);
        let Filled { keys: filled, fingerprints } = filled;
        let operation = ManagerOperation::Append { rows, tokens, commit_first, filled, fingerprints };
        self.note(journal, &operation, Check::of(result));
    }

    pub(super) fn note_append_tokens(
        &mut self,
        journal: Box<Journal>,
        id: RequestRef<'_>,
        tokens: usize,
        lookahead: usize,
        result: &Result<Vec<TableChange>, ManagerError>,
    ) {
        let mut filled = Filled::default();
        if result.is_ok()
            && let Ok(cursor) = self.cursor(id)
        {
            let before = (cursor.num_tokens() - tokens) / cursor.hasher().block_size();
            filled.add(cursor, before);
        }
        let (request, Filled { keys: filled, fingerprints }) = (self.name(id), filled);
        let operation = ManagerOperation::AppendTokens { request, tokens, lookahead, filled, fingerprints };
        self.note(journal, &operation, Check::of(result));
    }

    pub(super) fn note_commit_batch(
        &mut self,
        mut journal: Box<Journal>,
        batch: (&[RequestRef<'_>], &[usize]),
        computed_tokens: &[usize],
        result: &Result<usize, ManagerError>,
    ) {
        let rows = Self::rows_record(&mut journal, batch, result);
        let operation = ManagerOperation::CommitBatch { rows, computed_tokens: computed_tokens.to_vec() };
        self.note(journal, &operation, Check::of(result));
    }

    pub(super) fn retain_prefix_record(
        &self,
        journal: &mut Journal,
        cursor: &HashCursor,
        ranges: &[RetentionRange],
    ) -> ManagerOperation {
        let found = self.tiers.device().find_prefix(cursor.chain(), usize::MAX);
        let indexed = found.map_or(0, |found| found.blocks.len());
        ManagerOperation::RetainPrefix {
            prompt: journal.chain(cursor.chain(), cursor.num_tokens(), indexed),
            foreign: matches!(self.check_cursor(cursor), Err(ManagerError::ForeignCursor)),
            ranges: ranges.iter().map(RangeRecord::from).collect(),
        }
    }

    /// A planned step before it is committed; what its appends fill is added afterwards ([`Self::note_step`]).
    pub(super) fn step_record(&self, journal: &mut Journal, plan: &StepPlan) -> Vec<PlannedRecord> {
        let slot_name = |slot: usize| Name::Slot(slot as u32);
        if self.check_current(plan).is_err() {
            return Vec::new();
        }
        let planned = plan.operations.iter().map(|planned| match planned {
            Planned::Admit { id, cursor, staged, said, .. } => PlannedRecord::Admit {
                request: id.clone(),
                prompt: journal.chain(cursor.chain(), cursor.num_tokens(), staged.found.blocks.len()),
                hints: said.as_deref().map(HintsRecord::from).unwrap_or_default(),
            },
            Planned::Resume { slot, rebased, .. } => PlannedRecord::Resume {
                request: slot_name(*slot),
                rehashed: rebased.as_deref().map(Filled::whole),
            },
            Planned::Append { slot, tokens } => PlannedRecord::Append {
                request: slot_name(*slot),
                tokens: tokens.len(),
                filled: Keys::default(),
                fingerprints: Keys::default(),
            },
            Planned::Preempt { slot, after_step } => {
                PlannedRecord::Preempt { request: slot_name(*slot), after_step: *after_step }
            }
            Planned::Release { slot, after_step } => {
                PlannedRecord::Release { request: slot_name(*slot), after_step: *after_step }
            }
        });
        planned.collect()
    }

    pub(super) fn note_step(
        &mut self,
        journal: Box<Journal>,
        planned: &mut Vec<PlannedRecord>,
        result: &Result<Vec<StepOutcome>, ManagerError>,
    ) {
        for record in planned.iter_mut().filter(|_| result.is_ok()) {
            if let PlannedRecord::Append { request: Name::Slot(slot), tokens, filled, fingerprints } = record
                && let Ok(request) = self.at(*slot as usize)
            {
                let cursor = &request.sequence.cursor;
                let mut new = Filled::default();
                new.add(cursor, (cursor.num_tokens() - *tokens) / cursor.hasher().block_size());
                (*filled, *fingerprints) = (new.keys, new.fingerprints);
            }
        }
        let stale = matches!(result, Err(ManagerError::StaleStep));
        let operation = ManagerOperation::CommitStep { planned: std::mem::take(planned), stale };
        self.note(journal, &operation, Check::of(result));
    }
}
