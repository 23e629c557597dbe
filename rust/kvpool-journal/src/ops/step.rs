//! The operation that commits a planned step. What is planned is told before it runs; what its appends fill, behind it.

use crate::{Filled, Journal, Keys, ManagerOperation, Name, OptionsRecord, Planned};
use kvpool::{CacheManager, ManagerError, PlannedOperation, StepOutcome, StepPlan};

use super::manager::{add_last, name, recorded, whole};
use crate::Operation;

/// [`CacheManager::commit_step`].
#[derive(Debug)]
#[expect(missing_docs, reason = "the fields are the arguments of the call named")]
pub struct CommitStep<'a> {
    pub plan: &'a mut StepPlan,
}

/// The record of a planned operation; of an append without what it fills.
fn planned(manager: &CacheManager, journal: &mut Journal, planned: &PlannedOperation) -> Planned {
    match planned {
        PlannedOperation::Admit { id, cursor, staged, options, .. } => Planned::Admit {
            request: id.clone(),
            prompt: journal.chain(
                cursor.chain(),
                cursor.num_tokens(),
                recorded(manager, cursor, staged.cached_tokens),
            ),
            options: OptionsRecord::from(options),
        },
        PlannedOperation::Resume { id, part, rehashed, .. } => Planned::Resume {
            request: name(manager, id.as_ref()),
            part: (*part).into(),
            rehashed: rehashed.as_deref().map(whole),
        },
        PlannedOperation::Append { id, tokens, slots, .. } => Planned::Append {
            request: name(manager, id.as_ref()),
            tokens: tokens.len(),
            covered: *slots,
            filled: Keys::default(),
            fingerprints: Keys::default(),
        },
        PlannedOperation::Preempt { id, until } => {
            Planned::Preempt { request: name(manager, id.as_ref()), until: (*until).into() }
        }
        PlannedOperation::Release { id, until } => {
            Planned::Release { request: name(manager, id.as_ref()), until: (*until).into() }
        }
    }
}

impl Operation<CacheManager> for CommitStep<'_> {
    type Answer = Result<Vec<StepOutcome>, ManagerError>;
    type Before = Vec<Planned>;

    fn before(&self, manager: &CacheManager, journal: &mut Journal) -> Vec<Planned> {
        manager.planned(self.plan).iter().map(|one| planned(manager, journal, one)).collect()
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
            if let Planned::Append { request: Name::Slot(slot), tokens, filled, fingerprints, .. } = one
                && let Some(cursor) = manager.cursor_at(*slot as usize)
            {
                let mut new = Filled::default();
                add_last(&mut new, cursor, *tokens);
                (*filled, *fingerprints) = (new.keys, new.fingerprints);
            }
        }
        let stale = matches!(answer, Err(ManagerError::StaleStep));
        Some(ManagerOperation::CommitStep { planned, stale })
    }
}
