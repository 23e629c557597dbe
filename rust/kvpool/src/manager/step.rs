//! Plans steps as transactions. A scheduler plans several admissions, appends, preemptions and
//! releases, and learns for each of them whether it fits. Then it commits all of them, or drops the
//! plan, which changes nothing.
//!
//! A plan does not change the manager. It records the effect of its operations on reference counts and
//! on the number of available blocks, and checks each new operation against these numbers. A commit
//! first acquires all matched blocks, then releases blocks, and then allocates blocks. So no matched
//! block of the plan can be evicted during the commit. If the manager has changed since
//! [`CacheManager::plan_step`], the commit is refused and changes nothing. To roll back, drop the plan.
//!
//! Costs: O(blocks of the requests in the plan).

use std::sync::Arc;

use hashbrown::{HashMap, HashSet};

use super::CacheManager;
use super::answers::Admission;
use super::error::{ManagerError, Refused, Result};
use super::growth::{APPENDABLE, Computed, Covered, Rows};
use super::hints::{AdmitOptions, Hints};
use super::id::{RequestId, RequestRef, RequestState};
use super::request::{PREEMPT, PREEMPTIBLE, RELEASABLE, RELEASE, Request};
use crate::hash::{BlockHasher, HashCursor};
use crate::sequence::{GivenUp, Needs, Part, Staged, TableChange};
use crate::{BlockId, BlockPool, PoolError, Until};

/// One operation of a [`StepPlan`]: the arguments of the call that planned it, and what the call found.
#[doc(hidden)]
#[derive(Debug)]
pub enum PlannedOperation {
    /// An admission ([`CacheManager::plan_admit_with`]). `now` is the time at which it was planned.
    Admit { id: RequestId, cursor: Box<HashCursor>, options: AdmitOptions, now: Option<f64>, staged: Staged },
    /// A resumption ([`CacheManager::plan_resume_with`]). `rehashed` contains the tokens if they had to
    /// be hashed again.
    Resume { id: RequestId, part: Part, rehashed: Option<Box<HashCursor>>, staged: Staged },
    /// An append ([`CacheManager::plan_append`]). `slots` is the number of tokens and drafts that get
    /// room, and `needed` the number of blocks to allocate. `given_up` are the blocks that copies
    /// replace, and `overwritten` the registered blocks that are written in place.
    Append {
        id: RequestId,
        tokens: Vec<u32>,
        slots: usize,
        needed: usize,
        given_up: Vec<BlockId>,
        overwritten: Vec<BlockId>,
    },
    /// A preemption ([`CacheManager::plan_preempt`]).
    Preempt { id: RequestId, until: Until },
    /// A release ([`CacheManager::plan_release`]).
    Release { id: RequestId, until: Until },
}
use PlannedOperation as Planned;

/// The result of one operation of a committed plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StepOutcome {
    /// The request of the operation was admitted or resumed.
    Admitted(Admission),
    /// Tokens were appended. The list contains the changed entries of the request's block tables.
    Appended(Vec<TableChange>),
    /// The request of the operation was preempted.
    Preempted,
    /// The request of the operation was released.
    Released,
}

/// A step that is being planned: a list of operations and their effects. To roll the plan back, drop
/// it.
///
/// ```
/// use kvpool::{CacheManager, ExtraKeys, ManagerConfig, ManagerError};
/// let config = ManagerConfig { num_blocks: 5, block_size: 4, ..Default::default() };
/// let mut manager = CacheManager::new(config)?;
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
    /// The hasher of the manager that began the plan. It identifies the manager, because each manager
    /// has its own hasher.
    hasher: Arc<BlockHasher>,
    version: u64,
    operations: Vec<PlannedOperation>,
    named: HashSet<RequestId>,
    /// For each block, the change of its reference count by the planned operations.
    added: HashMap<BlockId, i64>,
    /// For each block, the number of references that planned appends release, because they replace the
    /// block by a copy, minus the number that planned admissions take.
    given_up: GivenUp,
    /// Registered blocks that planned appends would write in place. If a later planned admission hits
    /// such a block, the append copies it instead.
    overwritten: HashSet<BlockId>,
    available: usize,
    pub(super) running: usize,
}

impl StepPlan {
    /// Number of operations planned so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.operations.len()
    }

    /// Whether no operation is planned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.operations.is_empty()
    }

    /// Number of blocks that would still be available after the operations planned so far.
    #[must_use]
    pub const fn available_blocks(&self) -> usize {
        self.available
    }

    fn references(&self, pool: &BlockPool, block: BlockId) -> i64 {
        let now = pool.ref_count(block).unwrap_or(0);
        i64::from(now) + self.added.get(&block).copied().unwrap_or(0)
    }

    fn add_reference(&mut self, pool: &BlockPool, block: BlockId, change: i64) -> i64 {
        *self.added.entry(block).or_default() += change;
        self.references(pool, block)
    }

    /// Returns the number of available blocks that a match takes. It takes each matched block that has
    /// no references. It also takes one block for a copy of each matched block that a planned append
    /// would write in place.
    pub(super) fn idle(&self, pool: &BlockPool, found: &[BlockId]) -> usize {
        let taken =
            |block: &&BlockId| self.references(pool, **block) == 0 || self.overwritten.contains(*block);
        found.iter().filter(taken).count()
    }

    fn admit(&mut self, pool: &BlockPool, staged: &Staged) -> usize {
        for block in staged.matched() {
            let is_copied = self.overwritten.remove(&block);
            let is_first = self.add_reference(pool, block, 1) == 1;
            self.available -= usize::from(is_copied || is_first);
            *self.given_up.entry(block).or_default() += i64::from(is_copied) - 1;
        }
        self.available -= staged.new_blocks;
        self.running += 1;
        staged.cached_tokens
    }

    /// Removes all operations but the first `len` from the plan, and undoes their effects. The caller
    /// knows that the removed operations are appends.
    fn take_back_appends(&mut self, len: usize) {
        for operation in self.operations.drain(len..) {
            let Planned::Append { id, needed, given_up, overwritten, .. } = operation else { continue };
            self.available += needed;
            for block in given_up {
                self.given_up.entry(block).and_modify(|references| *references -= 1);
            }
            for block in overwritten {
                self.overwritten.remove(&block);
            }
            self.named.remove(&id);
        }
    }

    /// Records that a planned operation releases the blocks of a request. Returns the number of blocks
    /// that become available on the device.
    fn give_up(&mut self, pool: &BlockPool, request: &Request, until: Until) -> usize {
        self.named.insert(request.id.clone());
        let runs = matches!(request.state, RequestState::Running | RequestState::Loading);
        self.running -= usize::from(runs);
        // If a running step still uses the blocks, a fence keeps the references. A request that is
        // moving or loading also keeps them. In both cases no block becomes available in this step.
        let on_its_way = matches!(request.state, RequestState::Moving | RequestState::Loading);
        if pool.holds_back(until) || on_its_way || request.sequence.tier != 0 {
            return 0;
        }
        let held = request.sequence.held();
        let freed = held.filter(|&block| self.add_reference(pool, block, -1) == 0).count();
        self.available += freed;
        freed
    }
}

/// # Step plans
///
/// A [`StepPlan`] collects operations, and [`Self::commit_step`] commits all of them or none.
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
            overwritten: HashSet::new(),
            available: self.tiers.device().num_available(),
            running: self.num_active(),
        }
    }

    /// Checks that `plan` belongs to this manager, and that the manager has not changed since the plan
    /// was begun.
    fn check_current(&self, plan: &StepPlan) -> Result<()> {
        self.check_poison()?;
        let current = plan.version == self.version && Arc::ptr_eq(&plan.hasher, &self.hasher);
        if current { Ok(()) } else { Err(ManagerError::StaleStep) }
    }

    /// Checks that a plan is current, and that it contains no operation for the request with this id.
    fn check_plan(&self, plan: &StepPlan, id: RequestRef<'_>) -> Result<RequestId> {
        self.check_current(plan)?;
        let id = id.to_owned();
        if plan.named.contains(&id) { Err(ManagerError::NamedTwice { id, scope: "step" }) } else { Ok(id) }
    }

    /// Plans an admission. Returns the number of tokens that would be cached.
    ///
    /// # Errors
    /// As [`CacheManager::admit`], but for the blocks that the plan leaves available;
    /// [`ManagerError::NamedTwice`], [`ManagerError::StaleStep`]. The plan is unchanged then.
    pub fn plan_admit(
        &self,
        plan: &mut StepPlan,
        id: impl Into<RequestId>,
        cursor: HashCursor,
    ) -> Result<usize, Refused> {
        self.plan_admit_with(plan, id, cursor, &AdmitOptions::default())
    }

    /// Like [`Self::plan_admit`], with the options of the request. An absolute time to live starts with
    /// this call.
    ///
    /// # Errors
    /// As [`Self::plan_admit`], and the errors of [`CacheManager::admit_with`] about hints.
    pub fn plan_admit_with(
        &self,
        plan: &mut StepPlan,
        id: impl Into<RequestId>,
        cursor: HashCursor,
        options: &AdmitOptions,
    ) -> Result<usize, Refused> {
        let id = id.into();
        let staged = self
            .check_plan(plan, id.as_ref())
            .and_then(|_| self.check_new(&id, &cursor, options.part))
            .and_then(|()| self.check_hints(options))
            .and_then(|hints| self.stage(Some(plan), &cursor, options.part, hints.as_deref()));
        let cursor = Box::new(cursor);
        let staged = match staged {
            Ok(staged) => staged,
            Err(error) => return Err(Refused { error, cursor }),
        };
        let pool = self.tiers.device();
        let cached = plan.admit(pool, &staged);
        let (options, now) = (options.clone(), pool.retention_time());
        plan.named.insert(id.clone());
        plan.operations.push(Planned::Admit { id, cursor, options, now, staged });
        Ok(cached)
    }

    /// Plans to resume a preempted request. Returns the number of tokens that would be cached.
    ///
    /// # Errors
    /// As [`CacheManager::resume`] and [`Self::plan_admit`].
    pub fn plan_resume<'a>(&self, plan: &mut StepPlan, id: impl Into<RequestRef<'a>>) -> Result<usize> {
        self.plan_resume_with(plan, id, Part::WHOLE)
    }

    /// Like [`Self::plan_resume`], but can allocate blocks chunk by chunk, or for external tokens.
    ///
    /// # Errors
    /// As [`CacheManager::resume_with`] and [`Self::plan_admit`].
    pub fn plan_resume_with<'a>(
        &self,
        plan: &mut StepPlan,
        id: impl Into<RequestRef<'a>>,
        part: Part,
    ) -> Result<usize> {
        let id = self.check_plan(plan, id.into())?;
        let (_, rehashed, staged) = self.stage_resumed(Some(plan), id.as_ref(), part)?;
        let cached = plan.admit(self.tiers.device(), &staged);
        plan.named.insert(id.clone());
        plan.operations.push(Planned::Resume { id, part, rehashed, staged });
        Ok(cached)
    }

    /// Plans to append tokens to a request, with slots for `lookahead` more tokens. Returns the number
    /// of blocks that this takes. The commit may take fewer blocks: if the same plan releases the other
    /// holder of a shared block, the block is not copied.
    ///
    /// # Errors
    /// As [`CacheManager::append_tokens`] and [`Self::plan_admit`].
    pub fn plan_append<'a>(
        &self,
        plan: &mut StepPlan,
        id: impl Into<RequestRef<'a>>,
        tokens: &[u32],
        lookahead: usize,
    ) -> Result<usize> {
        let (offsets, covered) = ([0, tokens.len()], Covered::Lookahead(lookahead));
        let rows = Rows { requests: &[id.into()], tokens, offsets: &offsets, covered, ..Rows::default() };
        self.plan_append_ragged(plan, &rows)
    }

    /// Like [`Self::plan_append`], for a batch, all or nothing. Returns the number of blocks that the
    /// batch takes.
    ///
    /// # Errors
    /// As [`CacheManager::append_ragged`] and [`Self::plan_admit`]; [`ManagerError::Pool`] if the rows
    /// contain computed tokens, because computed tokens have to be committed before a step is planned.
    pub fn plan_append_ragged(&self, plan: &mut StepPlan, rows: &Rows<'_>) -> Result<usize> {
        self.check_current(plan)?;
        rows.check()?;
        if rows.computed != Computed::Nothing {
            return Err(PoolError::config("computed", format!("{:?}", rows.computed), "Nothing").into());
        }
        // Checks all requests first, so that an unknown request is reported even if blocks are missing,
        // too.
        let mut named = HashSet::new();
        for &id in rows.requests {
            let id = self.check_plan(plan, id)?;
            self.slot_in(id.as_ref(), APPENDABLE, "append to it")?;
            if let Some(id) = named.replace(id) {
                return Err(ManagerError::NamedTwice { id, scope: "step" });
            }
        }
        let (first, mut added) = (plan.operations.len(), 0);
        for row in 0..rows.requests.len() {
            match self.plan_append_row(plan, row, rows) {
                Ok(needed) => added += needed,
                Err(error) => {
                    plan.take_back_appends(first);
                    return Err(error);
                }
            }
        }
        Ok(added)
    }

    fn plan_append_row(&self, plan: &mut StepPlan, row: usize, rows: &Rows<'_>) -> Result<usize> {
        let id = self.check_plan(plan, rows.requests[row])?;
        let slot = self.slot_in(id.as_ref(), APPENDABLE, "append to it")?;
        let (request, pool) = (self.requests.at(slot)?, self.tiers.device());
        let row = rows.row(row, slot, request);
        let (slots, sequence) = (row.slots, &request.sequence);
        let needs = if row.runs {
            sequence.check_growth(pool, row.all, slots, plan.available, &plan.given_up)?
        } else {
            Needs::default()
        };
        let Needs { blocks: needed, copied: given_up, overwritten, .. } = needs;
        plan.overwritten.extend(&overwritten);
        plan.available -= needed;
        given_up.iter().for_each(|&block| *plan.given_up.entry(block).or_default() += 1);
        plan.named.insert(id.clone());
        let tokens = rows.tokens_of(&row).to_vec();
        plan.operations.push(Planned::Append { id, tokens, slots, needed, given_up, overwritten });
        Ok(needed)
    }

    /// Plans to preempt a running request. Returns the number of blocks that become available.
    ///
    /// # Errors
    /// As [`CacheManager::preempt`] and [`Self::plan_admit`].
    pub fn plan_preempt<'a>(
        &self,
        plan: &mut StepPlan,
        id: impl Into<RequestRef<'a>>,
        until: impl Into<Until>,
    ) -> Result<usize> {
        let until = until.into();
        let (id, freed) = self.plan_end(plan, id.into(), PREEMPTIBLE, PREEMPT, until)?;
        plan.operations.push(Planned::Preempt { id, until });
        Ok(freed)
    }

    /// Plans to release a request. Returns the number of blocks that become available.
    ///
    /// # Errors
    /// As [`CacheManager::release`] and [`Self::plan_admit`].
    pub fn plan_release<'a>(
        &self,
        plan: &mut StepPlan,
        id: impl Into<RequestRef<'a>>,
        until: impl Into<Until>,
    ) -> Result<usize> {
        let until = until.into();
        let (id, freed) = self.plan_end(plan, id.into(), RELEASABLE, RELEASE, until)?;
        plan.operations.push(Planned::Release { id, until });
        Ok(freed)
    }

    /// Plans that a request releases its blocks. The request has to be in one of the given states.
    /// Returns its id, and the number of blocks that become available.
    fn plan_end(
        &self,
        plan: &mut StepPlan,
        id: RequestRef<'_>,
        states: &[RequestState],
        operation: &'static str,
        until: Until,
    ) -> Result<(RequestId, usize)> {
        let id = self.check_plan(plan, id)?;
        let slot = self.slot_in(id.as_ref(), states, operation)?;
        let pool = self.tiers.device();
        pool.check_until(until)?;
        let freed = plan.give_up(pool, self.requests.at(slot)?, until);
        Ok((id, freed))
    }

    /// Returns the operations of a plan in the order of planning. Empty if the plan is stale.
    #[doc(hidden)]
    #[must_use]
    pub fn planned<'a>(&self, plan: &'a StepPlan) -> &'a [PlannedOperation] {
        if self.check_current(plan).is_ok() { &plan.operations } else { &[] }
    }

    /// Commits a planned step: first acquires all matched blocks, then releases and preempts, then
    /// allocates blocks. Each of these phases follows the order of planning. Returns the results of the
    /// operations in the order of planning. Afterwards the plan is empty and stale.
    ///
    /// # Errors
    /// [`ManagerError::StaleStep`] if the manager has changed since the step was begun. The call then
    /// changes nothing.
    pub fn commit_step(&mut self, plan: &mut StepPlan) -> Result<Vec<StepOutcome>> {
        self.check_current(plan)?;
        let operations = std::mem::take(&mut plan.operations);
        // From here on only a broken invariant can make the call fail.
        self.version += 1;
        for operation in &operations {
            match operation {
                Planned::Admit { cursor, staged, .. } => staged.acquire(self.tiers.device_mut(), cursor)?,
                Planned::Resume { id, rehashed, staged, .. } => {
                    let request = self.requests.at(self.slot(id.as_ref())?)?;
                    let cursor = rehashed.as_deref().unwrap_or(&request.sequence.cursor);
                    staged.acquire(self.tiers.device_mut(), cursor)?;
                }
                _ => {}
            }
        }
        for operation in &operations {
            match operation {
                Planned::Preempt { id, until } => self.preempt(id, *until)?,
                Planned::Release { id, until } => self.release(id, *until)?,
                _ => {}
            }
        }
        let run = |operation| {
            Ok(match operation {
                Planned::Admit { id, cursor, options, now, mut staged } => {
                    staged.allocate(&mut self.tiers)?;
                    let hints = options.has_hints().then(|| Box::new(Hints::new(&options, now)));
                    StepOutcome::Admitted(self.install(id, *cursor, staged, hints))
                }
                Planned::Resume { id, rehashed, mut staged, .. } => {
                    staged.allocate(&mut self.tiers)?;
                    StepOutcome::Admitted(self.reinstall(self.slot(id.as_ref())?, rehashed, staged)?)
                }
                Planned::Append { id, tokens, slots, overwritten, .. } => {
                    let slot = self.slot(id.as_ref())?;
                    StepOutcome::Appended(self.append_checked(
                        slot,
                        &tokens,
                        slots,
                        !overwritten.is_empty(),
                    )?)
                }
                Planned::Preempt { .. } => StepOutcome::Preempted,
                Planned::Release { .. } => StepOutcome::Released,
            })
        };
        operations.into_iter().map(run).collect()
    }
}
