//! Step transactions: plan several admissions, appends, preemptions and releases; learn exactly what
//! fits; commit all of it, or drop the plan and nothing has happened.
//!
//! A plan touches nothing. It keeps what the plan's operations would do to reference counts and to the
//! number of available blocks, and checks each new operation against that. Committing acquires every
//! match first, then releases, then allocates, so nothing that a plan counted on can be evicted on the
//! way; and it is refused, with everything unchanged, if the manager changed since
//! [`CacheManager::plan_step`]. Rolling back is dropping the plan.
//!
//! Costs: O(blocks) of the requests that the plan names.

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

/// One operation of a [`StepPlan`]: the arguments of the call that planned it, and what it found.
#[doc(hidden)]
#[derive(Debug)]
pub enum PlannedOperation {
    /// [`CacheManager::plan_admit_with`], at a time.
    Admit { id: RequestId, cursor: Box<HashCursor>, options: AdmitOptions, now: Option<f64>, staged: Staged },
    /// [`CacheManager::plan_resume_with`]: of a prompt that was hashed again, what it hashes to now.
    Resume { id: RequestId, part: Part, rehashed: Option<Box<HashCursor>>, staged: Staged },
    /// [`CacheManager::plan_append`]: the slots that are to be covered, what that takes and gives up, and the registered blocks that it
    /// writes to in place.
    Append {
        id: RequestId,
        tokens: Vec<u32>,
        slots: usize,
        needed: usize,
        given_up: Vec<BlockId>,
        overwritten: Vec<BlockId>,
    },
    /// [`CacheManager::plan_preempt`].
    Preempt { id: RequestId, until: Until },
    /// [`CacheManager::plan_release`].
    Release { id: RequestId, until: Until },
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
    /// References that planned appends give up by copy-on-write, less those that planned admissions take.
    given_up: GivenUp,
    /// Blocks that planned appends write to in place. An append copies one that an admission hits.
    overwritten: HashSet<BlockId>,
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

    /// Blocks that a match takes from the available ones: those that nobody would hold, and a copy of
    /// each that would be overwritten.
    pub(super) fn idle(&self, pool: &BlockPool, found: &[BlockId]) -> usize {
        let taken =
            |block: &&BlockId| self.references(pool, **block) == 0 || self.overwritten.contains(*block);
        found.iter().filter(taken).count()
    }

    /// Enters a staged admission. Returns the tokens that would be cached.
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

    /// Takes back the appends behind the first `len` operations.
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

    /// Enters that a request gives up its blocks. Returns how many become available on the device.
    fn give_up(&mut self, pool: &BlockPool, request: &Request, until: Until) -> usize {
        self.named.insert(request.id.clone());
        let runs = matches!(request.state, RequestState::Running | RequestState::Loading);
        self.running -= usize::from(runs);
        // A fence takes the references over, and what moves or loads keeps them: nothing becomes
        // available in this step.
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
        self.plan_admit_with(plan, id, cursor, &AdmitOptions::default())
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

    /// Plans to resume a preempted request: returns the tokens that would be cached.
    ///
    /// # Errors
    /// As [`CacheManager::resume`] and [`Self::plan_admit`].
    pub fn plan_resume<'a>(&self, plan: &mut StepPlan, id: impl Into<RequestRef<'a>>) -> Result<usize> {
        self.plan_resume_with(plan, id, Part::WHOLE)
    }

    /// [`Self::plan_resume`] in chunks, or with external tokens.
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

    /// Plans to append tokens to a request, with room for `lookahead` more: returns how many blocks
    /// that adds. Releases that are planned, too, may save a copy.
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

    /// [`Self::plan_append`] for a batch, all or nothing. Returns how many blocks that adds.
    ///
    /// # Errors
    /// As [`CacheManager::append_ragged`] and [`Self::plan_admit`]; [`ManagerError::Pool`] of rows that
    /// say what is computed: that is committed before a step is planned.
    pub fn plan_append_ragged(&self, plan: &mut StepPlan, rows: &Rows<'_>) -> Result<usize> {
        self.check_current(plan)?;
        rows.check()?;
        if rows.computed != Computed::Nothing {
            return Err(PoolError::config("computed", format!("{:?}", rows.computed), "Nothing").into());
        }
        // Whoever names a request that is not there is told that, whatever fits.
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

    /// Plans to preempt a running request: returns how many blocks that makes available.
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

    /// Plans to release a request: returns how many blocks that makes available.
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

    /// Enters that a request in one of these states gives up its blocks. Returns its id, and how many
    /// become available.
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

    /// What a plan consists of, in the order of planning; nothing if it is stale.
    #[doc(hidden)]
    #[must_use]
    pub fn planned<'a>(&self, plan: &'a StepPlan) -> &'a [PlannedOperation] {
        if self.check_current(plan).is_ok() { &plan.operations } else { &[] }
    }

    /// Commits a planned step: all matches are acquired, then releases and preemptions happen, then
    /// everything is allocated, each in the order of planning. The plan is empty and stale afterwards.
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
