//! The operation that commits a planned step. What is planned is told before it runs; what its appends fill, behind it.

use kvpool::{CacheManager, ManagerError, PlannedOperation, StepOutcome, StepPlan};
use kvpool_record::{HintsRecord, Journal, Keys, ManagerOperation, Name, Planned};

use super::manager::{Filled, whole};
use crate::Operation;

/// [`CacheManager::commit_step`].
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the call named")]
pub struct CommitStep<'a> {
    pub plan: &'a mut StepPlan,
}

/// The record of a planned operation; of an append without what it fills.
fn planned(journal: &mut Journal, planned: PlannedOperation<'_>) -> Planned {
    let request = |slot: usize| Name::Slot(slot as u32);
    match planned {
        PlannedOperation::Admit { id, cursor, cached_blocks, hints } => Planned::Admit {
            request: id.clone(),
            prompt: journal.chain(cursor.chain(), cursor.num_tokens(), cached_blocks),
            hints: hints.map(HintsRecord::from).unwrap_or_default(),
        },
        PlannedOperation::Resume { slot, rehashed } => {
            Planned::Resume { request: request(slot), rehashed: rehashed.map(whole) }
        }
        PlannedOperation::Append { slot, tokens } => Planned::Append {
            request: request(slot),
            tokens,
            filled: Keys::default(),
            fingerprints: Keys::default(),
        },
        PlannedOperation::Preempt { slot, after_step } => {
            Planned::Preempt { request: request(slot), after_step }
        }
        PlannedOperation::Release { slot, after_step } => {
            Planned::Release { request: request(slot), after_step }
        }
    }
}

impl Operation<CacheManager> for CommitStep<'_> {
    type Answer = Result<Vec<StepOutcome>, ManagerError>;
    type Before = Vec<Planned>;

    fn before(&self, manager: &CacheManager, journal: &mut Journal) -> Vec<Planned> {
        manager.planned(self.plan).map(|one| planned(journal, one)).collect()
    }

    #[inline]
    fn run(self, manager: &mut CacheManager) -> Self::Answer {
        manager.commit_step(self.plan)
    }

    fn record(
        mut planned: Vec<Planned>,
        manager: &CacheManager,
        _: &mut Journal,
        answer: &Self::Answer,
    ) -> Option<ManagerOperation> {
        for one in planned.iter_mut().filter(|_| answer.is_ok()) {
            if let Planned::Append { request: Name::Slot(slot), tokens, filled, fingerprints } = one
                && let Some(cursor) = manager.cursor_at(*slot as usize)
            {
                let mut new = Filled::default();
                new.add_last(cursor, *tokens);
                (*filled, *fingerprints) = (new.keys, new.fingerprints);
            }
        }
        let stale = matches!(answer, Err(ManagerError::StaleStep));
        Some(ManagerOperation::CommitStep { planned, stale })
    }
}
