//! Step transactions: plan several admissions, appends, preemptions and releases; learn exactly what fits; commit all of
//! it, or drop the plan and nothing has happened.
//!
//! A plan touches nothing. It keeps what the plan's operations would do to reference counts and to the number of
//! available blocks, and checks each new operation against that. Committing acquires every match first, then releases,
//! then allocates, so nothing that a plan counted on can be evicted on the way; and it is refused, with everything
//! unchanged, if the manager changed since [`CacheManager::plan_step`]. Rolling back is dropping the plan.
//!
//! Costs: O(blocks) of the requests that the plan names.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::CacheManager;
use super::admission::{Admission, Staged};
use super::error::{ManagerError, Refused};
use super::hints::{Hints, RequestHints};
use super::request::{RequestId, RequestRef, RequestState};
use crate::block::BlockId;
use crate::hash::{BlockHasher, HashCursor};
use crate::sequence::{GivenUp, TableChange};

/// One planned operation.
#[derive(Debug)]
pub(super) enum Planned {
    Admit {
        id: RequestId,
        cursor: Box<HashCursor>,
        staged: Staged,
        hints: Option<Box<Hints>>,
        /// What the hints are made of.
        said: Option<Box<RequestHints>>,
    },
    Resume {
        slot: usize,
        rebased: Option<Box<HashCursor>>,
        staged: Staged,
    },
    Append {
        slot: usize,
        tokens: Vec<u32>,
    },
    Preempt {
        slot: usize,
        after_step: Option<u64>,
    },
    Release {
        slot: usize,
        after_step: Option<u64>,
    },
}

/// What a committed operation did, in the order of planning.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepOutcome {
    /// A request was admitted or resumed.
    Admitted(Admission),
    /// Tokens were appended; these positions of the request's block table changed.
    Appended(Vec<TableChange>),
    /// A request was preempted.
    Preempted,
    /// A request was released.
    Released,
}

/// A step being planned. Dropping it rolls it back.
///
/// ```
/// use kvpool::{CacheManager, ExtraKeys, ManagerConfig, ManagerError};
/// let mut manager = CacheManager::new(ManagerConfig { num_blocks: 5, block_size: 4, ..Default::default() })?;
/// let prompt = |tokens: std::ops::Range<u32>| tokens.collect::<Vec<_>>();
/// manager.admit("old", manager.prepare(&prompt(0..12), ExtraKeys::default())?)?; // 3 of 4 blocks
///
/// let mut step = manager.plan_step();
/// let cursor = manager.prepare(&prompt(100..108), ExtraKeys::default())?;
/// let refused = manager.plan_admit(&mut step, "new", cursor).unwrap_err(); // needs 2
/// manager.plan_preempt(&mut step, "old", None)?;
/// manager.plan_admit(&mut step, "new", *refused.cursor)?;                  // fits now
/// manager.commit_step(&mut step)?;
/// assert_eq!(manager.block_table("new")?.len(), 2);
/// # Ok::<(), ManagerError>(())
/// ```
#[derive(Debug)]
pub struct StepPlan {
    /// Each manager has a hasher of its own: tells whose plan this is.
    hasher: Arc<BlockHasher>,
    version: u64,
    pub(super) operations: Vec<Planned>,
    named: HashSet<RequestId>,
    /// What the plan adds to the reference counts of blocks.
    added: HashMap<BlockId, i64>,
    /// References that planned appends give up by copy-on-write.
    given_up: GivenUp,
    /// Blocks that would be available after the operations so far.
    available: usize,
    /// Requests that would be running.
    running: usize,
}

impl StepPlan {
    /// Operations planned so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether nothing is planned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Blocks that would still be available after the operations so far.
    #[must_use]
    pub const fn available_blocks(&self) -> usize {
        self.available
    }

    fn add_reference(&mut self, block: BlockId, now: u32, change: i64) -> i64 {
        let added = self.added.entry(block).or_default();
        *added += change;
        i64::from(now) + *added
    }
}

impl CacheManager {
    /// Begins to plan a step. Changes nothing.
    #[must_use]
    pub fn plan_step(&self) -> StepPlan {
        StepPlan {
            hasher: Arc::clone(&self.hasher),
            version: self.version,
            operations: Vec::new(),
            named: HashSet::new(),
            added: HashMap::new(),
            given_up: GivenUp::default(),
            available: self.tiers.device().num_available(),
            running: self.stats.running,
        }
    }

    /// Checks that `plan` is this manager's, and that nothing has changed since it was begun.
    pub(super) fn check_current(&self, plan: &StepPlan) -> Result<(), ManagerError> {
        self.check_poison()?;
        let current = plan.version == self.version && Arc::ptr_eq(&plan.hasher, &self.hasher);
        if current { Ok(()) } else { Err(ManagerError::StaleStep) }
    }

    fn check_plan(&self, plan: &StepPlan, id: RequestRef<'_>) -> Result<(), ManagerError> {
        self.check_current(plan)?;
        let id = id.to_owned();
        if plan.named.contains(&id) {
            return Err(ManagerError::NamedTwice { id, scope: "step" });
        }
        Ok(())
    }

    fn references(&self, block: BlockId) -> u32 {
        self.tiers.device().ref_count(block).unwrap_or(0)
    }

    /// Plans an admission: returns the tokens that would be cached.
    ///
    /// # Errors
    /// As [`CacheManager::admit`], against what the plan leaves available; [`ManagerError::NamedTwice`],
    /// [`ManagerError::StaleStep`]. The plan is then as it was.
    pub fn plan_admit(
        &self,
        plan: &mut StepPlan,
        id: impl Into<RequestId>,
        cursor: HashCursor,
    ) -> Result<usize, Refused> {
        self.plan_admit_with(plan, id, cursor, &RequestHints::default())
    }

    /// [`Self::plan_admit`], with what is known of the request. An absolute time to live counts from here.
    ///
    /// # Errors
    /// As [`Self::plan_admit`], and what [`CacheManager::admit_with`] says of hints.
    pub fn plan_admit_with(
        &self,
        plan: &mut StepPlan,
        id: impl Into<RequestId>,
        cursor: HashCursor,
        said: &RequestHints,
    ) -> Result<usize, Refused> {
        let id = id.into();
        let staged = self
            .check_plan(plan, id.as_ref())
            .and_then(|()| self.check_new(&id, &cursor))
            .and_then(|()| Ok((self.check_hints(said)?, self.stage_in(plan, &cursor)?)));
        match staged {
            Ok((hints, mut staged)) => {
                staged.found.tenant = hints.as_deref().and_then(Hints::tenant);
                let cached = self.count_in(plan, &staged);
                plan.named.insert(id.clone());
                let said = hints.is_some().then(|| Box::new(said.clone()));
                plan.operations.push(Planned::Admit { id, cursor: Box::new(cursor), staged, hints, said });
                Ok(cached)
            }
            Err(error) => Err(Refused { error, cursor: Box::new(cursor) }),
        }
    }

    /// Plans to resume a preempted request: returns the tokens that would be cached.
    ///
    /// # Errors
    /// As [`CacheManager::resume`] and [`Self::plan_admit`].
    pub fn plan_resume<'a>(
        &self,
        plan: &mut StepPlan,
        id: impl Into<RequestRef<'a>>,
    ) -> Result<usize, ManagerError> {
        let id = id.into();
        self.check_plan(plan, id)?;
        let slot = self.slot_in(id, RequestState::Preempted, "resume it")?;
        let rebased = self.rebased(slot)?;
        let cursor = rebased.as_deref().unwrap_or(&self.at(slot)?.sequence.cursor);
        let mut staged = self.stage_in(plan, cursor)?;
        staged.found.tenant = self.at(slot)?.hints.as_deref().and_then(Hints::tenant);
        let cached = self.count_in(plan, &staged);
        plan.named.insert(id.to_owned());
        plan.operations.push(Planned::Resume { slot, rebased, staged });
        Ok(cached)
    }

    /// Plans to append tokens to a running request: returns how many blocks that adds.
    ///
    /// # Errors
    /// As [`CacheManager::append_tokens`] and [`Self::plan_admit`].
    pub fn plan_append<'a>(
        &self,
        plan: &mut StepPlan,
        id: impl Into<RequestRef<'a>>,
        tokens: &[u32],
    ) -> Result<usize, ManagerError> {
        let id = id.into();
        self.check_plan(plan, id)?;
        let slot = self.slot_in(id, RequestState::Running, "append to it")?;
        // A refused append gives nothing up. Releases that are planned, too, may save a copy.
        let before = plan.given_up.len();
        let needed = self.growth(slot, tokens.len(), 0, &mut plan.given_up)?;
        let fits = self.fits_alone(slot, tokens.len());
        if let Err(refused) = fits.and_then(|fits| self.check_growth(needed, plan.available, fits)) {
            plan.given_up.truncate(before);
            return Err(refused);
        }
        plan.available -= needed;
        plan.named.insert(id.to_owned());
        plan.operations.push(Planned::Append { slot, tokens: tokens.to_vec() });
        Ok(needed)
    }

    /// Plans to preempt a running request: returns how many blocks that makes available.
    ///
    /// # Errors
    /// As [`CacheManager::preempt`] and [`Self::plan_admit`].
    pub fn plan_preempt<'a>(
        &self,
        plan: &mut StepPlan,
        id: impl Into<RequestRef<'a>>,
        after_step: Option<u64>,
    ) -> Result<usize, ManagerError> {
        let id = id.into();
        self.check_plan(plan, id)?;
        let slot = self.preemptible(id)?;
        let freed = self.plan_give_up(plan, slot, after_step)?;
        plan.running -= usize::from(self.at(slot)?.state == RequestState::Running);
        plan.named.insert(id.to_owned());
        plan.operations.push(Planned::Preempt { slot, after_step });
        Ok(freed)
    }

    /// Plans to release a request: returns how many blocks that makes available.
    ///
    /// # Errors
    /// As [`CacheManager::release`] and [`Self::plan_admit`].
    pub fn plan_release<'a>(
        &self,
        plan: &mut StepPlan,
        id: impl Into<RequestRef<'a>>,
        after_step: Option<u64>,
    ) -> Result<usize, ManagerError> {
        let id = id.into();
        self.check_plan(plan, id)?;
        let slot = self.slot(id)?;
        self.check_settled(slot, "release it: complete or abort the swap first")?;
        let freed = self.plan_give_up(plan, slot, after_step)?;
        plan.running -= usize::from(self.at(slot)?.state == RequestState::Running);
        plan.named.insert(id.to_owned());
        plan.operations.push(Planned::Release { slot, after_step });
        Ok(freed)
    }

    fn plan_give_up(
        &self,
        plan: &mut StepPlan,
        slot: usize,
        after_step: Option<u64>,
    ) -> Result<usize, ManagerError> {
        if after_step.is_some_and(|step| !self.tiers.device().is_completed(step)) {
            return Ok(0); // the fence takes over the references: nothing becomes available in this step
        }
        let mut freed = 0;
        let sequence = &self.at(slot)?.sequence;
        if sequence.tier != 0 {
            return Ok(0); // blocks of the host: nothing becomes available on the device
        }
        for &block in sequence.held() {
            freed += usize::from(plan.add_reference(block, self.references(block), -1) == 0);
        }
        plan.available += freed;
        Ok(freed)
    }

    /// Matches a prompt against the pool as it is, and checks that the rest fits what the plan leaves.
    fn stage_in(&self, plan: &StepPlan, cursor: &HashCursor) -> Result<Staged, ManagerError> {
        let found = self.tiers.device().find_prefix(cursor.chain(), self.reusable_blocks(cursor))?;
        let planned = |block: &BlockId| {
            i64::from(self.references(*block)) + plan.added.get(block).copied().unwrap_or(0)
        };
        let idle = found.blocks.iter().filter(|block| planned(block) == 0).count();
        self.check_fit(cursor, found, idle, plan.available, plan.running > 0)
    }

    /// Enters a staged admission into the plan.
    fn count_in(&self, plan: &mut StepPlan, staged: &Staged) -> usize {
        for &block in &staged.found.blocks {
            let first = plan.add_reference(block, self.references(block), 1) == 1;
            plan.available -= usize::from(first);
        }
        plan.available -= staged.new_blocks;
        plan.running += 1;
        staged.found.blocks.len() * self.tiers.device().block_size()
    }

    /// Commits a planned step: all matches are acquired, then releases and preemptions happen, then everything is
    /// allocated, each in the order of planning. The plan is empty and stale afterwards.
    ///
    /// # Errors
    /// [`ManagerError::StaleStep`] if the manager changed since the step was begun; nothing has changed then.
    pub fn commit_step(&mut self, plan: &mut StepPlan) -> Result<Vec<StepOutcome>, ManagerError> {
        self.check_current(plan)?;
        let operations = std::mem::take(&mut plan.operations);
        // From here on nothing can fail, short of a broken invariant.
        self.version += 1;
        for operation in &operations {
            match operation {
                Planned::Admit { cursor, staged, .. } => {
                    self.tiers.device_mut().acquire_match(&staged.found, cursor.chain().hashes())?;
                }
                Planned::Resume { slot, rebased, staged } => {
                    self.acquire_resumed(*slot, rebased.as_deref(), staged)?;
                }
                _ => {}
            }
        }
        for operation in &operations {
            match *operation {
                Planned::Preempt { slot, after_step } => self.preempt_slot(slot, after_step)?,
                Planned::Release { slot, after_step } => self.release_slot(slot, after_step)?,
                _ => {}
            }
        }
        let mut outcomes = Vec::with_capacity(operations.len());
        for operation in operations {
            outcomes.push(match operation {
                Planned::Admit { id, cursor, staged, hints, .. } => {
                    let blocks = self.fill(&staged)?;
                    StepOutcome::Admitted(self.install(id, *cursor, &staged, blocks, hints))
                }
                Planned::Resume { slot, rebased, staged } => {
                    let blocks = self.fill(&staged)?;
                    StepOutcome::Admitted(self.reinstall(slot, rebased, &staged, blocks)?)
                }
                Planned::Append { slot, tokens } => {
                    StepOutcome::Appended(self.extend(slot, &tokens, 0)?.to_vec())
                }
                Planned::Preempt { .. } => StepOutcome::Preempted,
                Planned::Release { .. } => StepOutcome::Released,
            });
        }
        Ok(outcomes)
    }
}
