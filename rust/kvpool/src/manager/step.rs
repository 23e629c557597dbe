//! Step transactions: plan several admissions, appends, preemptions and releases; learn exactly what fits; commit all of
//! it, or drop the plan and nothing has happened.
//!
//! A plan touches nothing. It keeps what the plan's operations would do to reference counts and to the number of
//! available blocks, and checks each new operation against that. Committing acquires every match first, then releases,
//! then allocates, so nothing that a plan counted on can be evicted on the way; and it is refused, with everything
//! unchanged, if the manager changed since [`CacheManager::plan_step`]. Rolling back is dropping the plan.
//!
//! Costs: O(blocks) of the requests that the plan names.

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::CacheManager;
use super::admission::Admission;
use super::error::{ManagerError, Refused, Result};
use super::hints::{Hints, RequestHints};
use super::request::{Request, RequestId, RequestRef, RequestState};
use crate::block::BlockId;
use crate::hash::{BlockHasher, HashCursor};
use crate::pool::{BlockPool, PrefixMatch};
use crate::sequence::{GivenUp, Staged, TableChange};

/// One operation of a [`StepPlan`]: the arguments of the call that planned it, and what it found.
#[doc(hidden)]
#[derive(Debug)]
pub enum PlannedOperation {
    /// [`CacheManager::plan_admit_with`], at a time.
    Admit { id: RequestId, cursor: Box<HashCursor>, hints: RequestHints, now: Option<f64>, staged: Staged },
    /// [`CacheManager::plan_resume`]: of a prompt that was hashed again, what it hashes to now.
    Resume { id: RequestId, rehashed: Option<Box<HashCursor>>, staged: Staged },
    /// [`CacheManager::plan_append`].
    Append { id: RequestId, tokens: Vec<u32> },
    /// [`CacheManager::plan_preempt`].
    Preempt { id: RequestId, after_step: Option<u64> },
    /// [`CacheManager::plan_release`].
    Release { id: RequestId, after_step: Option<u64> },
}
use PlannedOperation as Planned;

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
    operations: Vec<PlannedOperation>,
    named: HashSet<RequestId>,
    /// What the plan adds to the reference counts of blocks.
    added: HashMap<BlockId, i64>,
    /// References that planned appends give up by copy-on-write.
    given_up: GivenUp,
    /// Blocks that would be available after the operations so far.
    available: usize,
    /// Requests that would be running.
    pub(super) running: usize,
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

    /// References that a block would have.
    fn references(&self, pool: &BlockPool, block: BlockId) -> i64 {
        let now = pool.ref_count(block).unwrap_or(0);
        i64::from(now) + self.added.get(&block).copied().unwrap_or(0)
    }

    /// The same with one more or less, which is noted.
    fn add_reference(&mut self, pool: &BlockPool, block: BlockId, change: i64) -> i64 {
        *self.added.entry(block).or_default() += change;
        self.references(pool, block)
    }

    /// Blocks that would be available once a match is acquired.
    pub(super) fn left_behind(&self, pool: &BlockPool, found: &PrefixMatch) -> usize {
        let idle = found.blocks.iter().filter(|&&block| self.references(pool, block) == 0).count();
        self.available.saturating_sub(idle)
    }

    /// Enters a staged admission. Returns the tokens that would be cached.
    fn admit(&mut self, pool: &BlockPool, staged: &Staged) -> usize {
        for &block in &staged.found.blocks {
            self.available -= usize::from(self.add_reference(pool, block, 1) == 1);
        }
        self.available -= staged.new_blocks;
        self.running += 1;
        staged.cached * pool.block_size()
    }

    /// Enters that a request gives up its blocks. Returns how many become available on the device.
    fn give_up(&mut self, pool: &BlockPool, request: &Request, after_step: Option<u64>) -> usize {
        self.named.insert(request.id.clone());
        self.running -= usize::from(request.state == RequestState::Running);
        // A fence takes the references over: nothing becomes available in this step.
        let fenced = after_step.is_some_and(|step| !pool.is_completed(step));
        if fenced || request.sequence.tier != 0 {
            return 0;
        }
        let held = request.sequence.held().iter();
        let freed = held.filter(|&&block| self.add_reference(pool, block, -1) == 0).count();
        self.available += freed;
        freed
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
    fn check_current(&self, plan: &StepPlan) -> Result<()> {
        self.check_poison()?;
        let current = plan.version == self.version && Arc::ptr_eq(&plan.hasher, &self.hasher);
        if current { Ok(()) } else { Err(ManagerError::StaleStep) }
    }

    /// Checks that a plan is current and does not name a request yet.
    fn check_plan(&self, plan: &StepPlan, id: RequestRef<'_>) -> Result<RequestId> {
        self.check_current(plan)?;
        let id = id.to_owned();
        if plan.named.contains(&id) { Err(ManagerError::NamedTwice { id, scope: "step" }) } else { Ok(id) }
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
            .and_then(|_| self.check_new(&id, &cursor))
            .and_then(|()| self.check_hints(said))
            .and_then(|hints| self.stage(Some(plan), &cursor, hints.as_deref()));
        let cursor = Box::new(cursor);
        let staged = match staged {
            Ok(staged) => staged,
            Err(error) => return Err(Refused { error, cursor }),
        };
        let pool = self.tiers.device();
        let cached = plan.admit(pool, &staged);
        let (hints, now) = (said.clone(), pool.retention_time());
        plan.named.insert(id.clone());
        plan.operations.push(Planned::Admit { id, cursor, hints, now, staged });
        Ok(cached)
    }

    /// Plans to resume a preempted request: returns the tokens that would be cached.
    ///
    /// # Errors
    /// As [`CacheManager::resume`] and [`Self::plan_admit`].
    pub fn plan_resume<'a>(&self, plan: &mut StepPlan, id: impl Into<RequestRef<'a>>) -> Result<usize> {
        let id = self.check_plan(plan, id.into())?;
        let (_, rehashed, staged) = self.stage_resumed(Some(plan), id.as_ref())?;
        let cached = plan.admit(self.tiers.device(), &staged);
        plan.named.insert(id.clone());
        plan.operations.push(Planned::Resume { id, rehashed, staged });
        Ok(cached)
    }

    /// Plans to append tokens to a running request: returns how many blocks that adds. Releases that are planned, too, may
    /// save a copy.
    ///
    /// # Errors
    /// As [`CacheManager::append_tokens`] and [`Self::plan_admit`].
    pub fn plan_append<'a>(
        &self,
        plan: &mut StepPlan,
        id: impl Into<RequestRef<'a>>,
        tokens: &[u32],
    ) -> Result<usize> {
        let id = self.check_plan(plan, id.into())?;
        let slot = self.slot_in(id.as_ref(), &[RequestState::Running], "append to it")?;
        let (sequence, pool) = (&self.at(slot)?.sequence, self.tiers.device());
        let needed = sequence.check_growth(pool, tokens.len(), plan.available, &mut plan.given_up)?;
        plan.available -= needed;
        plan.named.insert(id.clone());
        plan.operations.push(Planned::Append { id, tokens: tokens.to_vec() });
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
    ) -> Result<usize> {
        let id = self.check_plan(plan, id.into())?;
        let request = self.at(self.preemptible(id.as_ref())?)?;
        let freed = plan.give_up(self.tiers.device(), request, after_step);
        plan.operations.push(Planned::Preempt { id, after_step });
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
    ) -> Result<usize> {
        let id = self.check_plan(plan, id.into())?;
        let request = self.at(self.releasable(id.as_ref())?)?;
        let freed = plan.give_up(self.tiers.device(), request, after_step);
        plan.operations.push(Planned::Release { id, after_step });
        Ok(freed)
    }

    /// What a plan consists of, in the order of planning; nothing if it is stale.
    #[doc(hidden)]
    #[must_use]
    pub fn planned<'a>(&self, plan: &'a StepPlan) -> &'a [PlannedOperation] {
        if self.check_current(plan).is_ok() { &plan.operations } else { &[] }
    }

    /// Commits a planned step: all matches are acquired, then releases and preemptions happen, then everything is
    /// allocated, each in the order of planning. The plan is empty and stale afterwards.
    ///
    /// # Errors
    /// [`ManagerError::StaleStep`] if the manager changed since the step was begun; nothing has changed then.
    pub fn commit_step(&mut self, plan: &mut StepPlan) -> Result<Vec<StepOutcome>> {
        self.check_current(plan)?;
        let operations = std::mem::take(&mut plan.operations);
        // From here on nothing can fail, short of a broken invariant.
        self.version += 1;
        for operation in &operations {
            match operation {
                Planned::Admit { cursor, staged, .. } => staged.acquire(self.tiers.device_mut(), cursor)?,
                Planned::Resume { id, rehashed, staged } => {
                    let (request, tiers) = self.parts(self.slot(id.as_ref())?)?;
                    let cursor = rehashed.as_deref().unwrap_or(&request.sequence.cursor);
                    staged.acquire(tiers.device_mut(), cursor)?;
                }
                _ => {}
            }
        }
        for operation in &operations {
            match operation {
                Planned::Preempt { id, after_step } => self.preempt(id, *after_step)?,
                Planned::Release { id, after_step } => self.release(id, *after_step)?,
                _ => {}
            }
        }
        let run = |operation| {
            Ok(match operation {
                Planned::Admit { id, cursor, hints, now, mut staged } => {
                    staged.allocate(self.tiers.device_mut())?;
                    let hints = (!hints.is_empty()).then(|| Box::new(Hints::new(&hints, now)));
                    StepOutcome::Admitted(self.install(id, *cursor, staged, hints))
                }
                Planned::Resume { id, rehashed, mut staged } => {
                    staged.allocate(self.tiers.device_mut())?;
                    StepOutcome::Admitted(self.reinstall(self.slot(id.as_ref())?, rehashed, staged)?)
                }
                Planned::Append { id, tokens } => StepOutcome::Appended(self.append_tokens(&id, &tokens, 0)?),
                Planned::Preempt { .. } => StepOutcome::Preempted,
                Planned::Release { .. } => StepOutcome::Released,
            })
        };
        operations.into_iter().map(run).collect()
    }
}
