//! `CacheManager`: what a scheduler calls.
//!
//! Owns: which request holds which blocks, and how far each is computed. What a scheduler means becomes
//! one atomic operation of a [`BlockPool`], to which blocks, contents and eviction belong.
//!
//! The life of a request:
//! 1. [`CacheManager::admit`], with a prompt that [`CacheManager::prepare`] hashed, on any thread.
//! 2. [`CacheManager::commit`] says how many tokens the engine has computed: full blocks can be hit
//!    from then on.
//! 3. [`CacheManager::append`] adds the sampled tokens of a whole batch;
//!    [`CacheManager::append_ragged`] any number of them.
//! 4. [`CacheManager::release`], or [`CacheManager::preempt`] and later [`CacheManager::resume`].
//!
//! Between: chunks of a prompt ([`CacheManager::extend`]), KV from elsewhere
//! ([`CacheManager::external_done`]), [`CacheManager::fork`], [`CacheManager::truncate`],
//! [`CacheManager::trim_window`], and preemption by swap ([`CacheManager::begin_swap_out`]); the copies
//! of a step come out as one plan ([`CacheManager::take_plan`]). What callers know of the future goes
//! in as hints ([`CacheManager::admit_with`]). A step may be planned as a whole
//! ([`CacheManager::plan_step`]).
//!
//! Invariants, recounted by [`CacheManager::check_invariants`]:
//! - M1: the references of a block are the block tables that hold it, fences, pins and swaps.
//! - M2: a request's blocks are where its state says: on the device, nowhere, in the host tier, or on
//!   their way.
//! - M3: a published block carries the hash of the tokens committed to it (vLLM #49377).
//! - M4: hit + external + computed tokens == prompt tokens over all admissions, re-admissions counted
//!   apart (vLLM #25780).
//! - M5: requests are found by their ids, and counted.
//!
//! Costs: O(1) per block touched and per request named, whatever the size of the pool and the number of
//! requests.
//!
//! ```
//! use kvpool::{CacheManager, Computed, ExtraKeys, ManagerConfig, Until};
//! let mut manager = CacheManager::new(ManagerConfig { num_blocks: 64, block_size: 4, ..Default::default() })?;
//! let prompt: Vec<u32> = (0..10).collect();
//!
//! let admission = manager.admit("a", manager.prepare(&prompt, ExtraKeys::default())?)?;
//! assert_eq!((admission.cached_tokens, admission.block_ids.len()), (0, 3));
//! manager.commit("a", 10)?;                         // the engine has run the prompt
//! manager.append(&["a".into()], &[77], Computed::Nothing)?; // and sampled a token
//!
//! let second = manager.admit("b", manager.prepare(&prompt, ExtraKeys::default())?)?;
//! assert_eq!(second.cached_tokens, 8);              // two full blocks, shared
//! manager.release("a", Until::Now)?;
//! manager.release("b", Until::Now)?;
//! # Ok::<(), kvpool::ManagerError>(())
//! ```

mod admission;
mod answers;
mod checks;
mod config;
mod error;
mod external;
mod growth;
mod hints;
mod id;
mod image;
pub(crate) mod observe;
mod request;
mod requests;
mod retention;
mod step;
mod tables;

use std::sync::Arc;

use crate::groups::Groups;
use crate::hash::{BlockHasher, ExtraKeys, HashCursor, Verify};
use crate::sequence::{Staged, TableChange};
use crate::tiers::{TierError, Tiers};
use crate::{BlockId, BlockPool, Evictor, PoolConfig, PoolError, Probe, Ticket};

pub use answers::{Admission, AdmissionFit, GroupFit};
pub use config::{ManagerConfig, ManagerStats};
use error::Result;
pub use error::{ManagerError, Refused};
pub use external::Loaded;
pub use growth::{Computed, Covered, NewBlock, Rows};
pub use hints::{AdmitOptions, RetentionRange};
pub use id::{RequestId, RequestRef, RequestState};
use observe::ManagerObserver;
use request::Request;
pub use request::RequestInfo;
use requests::Requests;
pub use step::{PlannedOperation, StepOutcome, StepPlan};

/// Requests by id over one [`BlockPool`]: what a scheduler calls.
///
/// A request is admitted with its prompt, gets tokens step by step, and is released. The manager finds
/// what is cached of the prompt, gives the request blocks, registers what the engine has computed, and
/// evicts blocks without references. Every call is all or nothing.
///
/// | to | call |
/// |---|---|
/// | hash a prompt, on any thread | [`prepare`](Self::prepare) |
/// | ask what is cached, or what fits | [`probe`](Self::probe), [`fit`](Self::fit), [`fit_groups`](Self::fit_groups), [`admitted_entries`](Self::admitted_entries) |
/// | begin | [`admit`](Self::admit), [`admit_with`](Self::admit_with), [`resume`](Self::resume), [`resume_with`](Self::resume_with) |
/// | append, a whole step in one call | [`append`](Self::append), [`append_ragged`](Self::append_ragged), [`append_into`](Self::append_into) |
/// | append, one request | [`extend`](Self::extend), [`append_tokens`](Self::append_tokens), [`append_turn`](Self::append_turn), [`extend_encoder`](Self::extend_encoder) |
/// | commit computed tokens | the step, or [`commit`](Self::commit), [`commit_batch`](Self::commit_batch); [`external_done`](Self::external_done) for KV from elsewhere |
/// | give up | [`preempt`](Self::preempt), [`release`](Self::release), [`release_batch`](Self::release_batch), [`release_batch_with`](Self::release_batch_with), [`end_session`](Self::end_session) |
/// | share and shorten | [`fork`](Self::fork), [`fork_batch`](Self::fork_batch), [`truncate`](Self::truncate), [`truncate_batch`](Self::truncate_batch), [`trim_window`](Self::trim_window) |
/// | move bytes | [`take_plan`](Self::take_plan), [`begin_swap_out`](Self::begin_swap_out), [`begin_swap_in`](Self::begin_swap_in), [`fit_swap_out`](Self::fit_swap_out), [`fit_swap_in`](Self::fit_swap_in), [`complete_swap`](Self::complete_swap), [`abort_swap`](Self::abort_swap) |
/// | wait for steps in flight | [`fence`](Self::fence), [`end_fence`](Self::end_fence), [`complete_step`](Self::complete_step) |
/// | plan a step before it happens | [`plan_step`](Self::plan_step), [`plan_admit`](Self::plan_admit), [`plan_admit_with`](Self::plan_admit_with), [`plan_resume`](Self::plan_resume), [`plan_resume_with`](Self::plan_resume_with), [`plan_append`](Self::plan_append), [`plan_append_ragged`](Self::plan_append_ragged), [`plan_preempt`](Self::plan_preempt), [`plan_release`](Self::plan_release), [`commit_step`](Self::commit_step) |
/// | read | [`block_table`](Self::block_table), [`group_table`](Self::group_table), [`cursor`](Self::cursor), [`request`](Self::request), [`contains`](Self::contains), [`next_checkpoint`](Self::next_checkpoint), [`stats`](Self::stats), [`pool`](Self::pool), [`tiers`](Self::tiers), [`groups`](Self::groups), [`num_groups`](Self::num_groups), [`hasher`](Self::hasher) |
/// | hint at the future | [`retain`](Self::retain), [`retain_prefix`](Self::retain_prefix), [`end_of_life`](Self::end_of_life), [`end_of_life_of`](Self::end_of_life_of), [`set_tenant`](Self::set_tenant), [`tenant_blocks`](Self::tenant_blocks), [`advance_time`](Self::advance_time), [`retention_stats`](Self::retention_stats) |
/// | forget and resize | [`evict`](Self::evict), [`drop_cached`](Self::drop_cached), [`bump_epoch`](Self::bump_epoch), [`reset`](Self::reset), [`resize`](Self::resize) |
/// | keep content over a restart | [`image`](Self::image), [`restore`](Self::restore) |
/// | watch and check | [`observe`](Self::observe), [`slot_of`](Self::slot_of), [`check_invariants`](Self::check_invariants), [`poison_reason`](Self::poison_reason) |
///
/// A scheduler's loop: one call per step for all that run. If blocks run out, the youngest request is
/// preempted. Then requests that fit are admitted.
///
/// ```
/// use std::collections::VecDeque;
/// use kvpool::{CacheManager, Computed, ExtraKeys, ManagerConfig, ManagerError, Refused, RequestRef, Rows, Until};
///
/// let mut manager = CacheManager::new(ManagerConfig { num_blocks: 8, block_size: 4, ..Default::default() })?;
/// let mut waiting: VecDeque<u32> = (0..3).collect(); // prompts of ten tokens, of which eight are the same
/// let mut running: Vec<(u32, usize)> = Vec::new(); // ids, and tokens that were sampled
/// let (mut changes, mut finished) = (Vec::new(), 0);
/// while finished < 3 {
///     // Everything that runs has one more token; all tokens before it are computed.
///     let requests: Vec<RequestRef<'_>> = running.iter().map(|&(id, _)| id.into()).collect();
///     let tokens = vec![7; requests.len()];
///     let rows = Rows { requests: &requests, tokens: &tokens, computed: Computed::AllButLast, ..Rows::default() };
///     match manager.append_into(&rows, &mut changes) {
///         Ok(()) => running.iter_mut().for_each(|(_, sampled)| *sampled += 1),
///         Err(ManagerError::OutOfBlocks { .. }) => {
///             let Some((youngest, _)) = running.pop() else { break };
///             manager.preempt(youngest, Until::Now)?; // or preempt by swap
///             manager.release(youngest, Until::Now)?;
///             waiting.push_front(youngest); // its prompt is still cached
///             continue;
///         }
///         Err(other) => return Err(other.into()),
///     }
///     // `changes` are the blocks that the engine writes to its block tables. Then the engine runs the step.
///     for (id, _) in running.extract_if(.., |(_, sampled)| *sampled == 6) {
///         manager.release(id, Until::Now)?;
///         finished += 1;
///     }
///     while let Some(&id) = waiting.front() {
///         let prompt: Vec<u32> = (0..8).chain([100 + id, 101 + id]).collect();
///         match manager.admit(id, manager.prepare(&prompt, ExtraKeys::default())?) {
///             Ok(admission) => manager.commit(id, 10).map(|_| assert!(id == 0 || admission.cached_tokens == 8))?,
///             Err(Refused { error: ManagerError::OutOfBlocks(_), .. }) => break,
///             Err(refused) => return Err(refused.into()),
///         }
///         waiting.pop_front();
///         running.push((id, 0));
///     }
/// }
/// assert_eq!(manager.stats().pool.active, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct CacheManager {
    /// The device's pool, and the host's if there is one.
    tiers: Tiers,
    hasher: Arc<BlockHasher>,
    /// The groups of a hybrid model.
    groups: Option<Arc<Groups>>,
    /// Share of the pool that an admission leaves available while others run.
    watermark: f64,
    requests: Requests,
    stats: ManagerStats,
    /// Counts changes: a planned step is committed only to the state that it was planned for.
    version: u64,
    batch: u64,
    /// Reused by every append.
    rows: Vec<usize>,
    step: growth::Step,
    changes: Vec<TableChange>,
    observer: Option<Box<dyn ManagerObserver>>,
}

impl CacheManager {
    /// A manager of an empty pool.
    ///
    /// # Errors
    /// Names the setting that is out of range and what is allowed.
    #[expect(clippy::needless_pass_by_value, reason = "a configuration is handed over, as to the pool")]
    pub fn new(config: ManagerConfig) -> Result<Self> {
        Self::assemble(&config, Tiers::new)
    }

    /// A manager of an empty pool whose cached-free blocks are in `evictor`'s order; `config.eviction`
    /// is that of the host tier, and `config.retention` is ignored, as by [`BlockPool::with_evictor`].
    ///
    /// # Errors
    /// As [`Self::new`]; also if `evictor` already holds blocks.
    #[expect(clippy::needless_pass_by_value, reason = "a configuration is handed over, as to the pool")]
    pub fn with_evictor(config: ManagerConfig, evictor: Box<dyn Evictor>) -> Result<Self> {
        Self::assemble(&config, |pools| Tiers::with_evictor(pools, evictor))
    }

    /// A new manager that hashes with `hasher` instead of one made from its settings: for replays,
    /// which look digests up.
    ///
    /// # Errors
    /// As [`Self::new`].
    #[cfg(feature = "replay")]
    pub fn with_hasher(config: ManagerConfig, hasher: Arc<BlockHasher>) -> Result<Self> {
        let algorithm = crate::hash::HashAlgorithm::Sha256;
        let own = ManagerConfig { key: None, seed: None, algorithm, ..config };
        Ok(Self { hasher, ..Self::new(own)? })
    }

    fn assemble(
        config: &ManagerConfig,
        tiers: impl FnOnce(Vec<PoolConfig>) -> Result<Tiers, TierError>,
    ) -> Result<Self> {
        if !(0.0..1.0).contains(&config.watermark) {
            let allowed = "a share of the pool, from 0.0 to below 1.0";
            return Err(PoolError::config("watermark", config.watermark, allowed).into());
        }
        // What is said of blocks is said of the device's: the host tier keeps what was swapped out.
        let host_pool = || PoolConfig { num_blocks: config.host_blocks, retention: None, ..config.pool() };
        let host = (config.host_blocks > 0).then(host_pool);
        let mut tiers = tiers(std::iter::once(config.pool()).chain(host).collect())?;
        let hasher = BlockHasher::new(config.hasher())?;
        if config.verify == Verify::None && !config.algorithm.is_cryptographic() {
            return Err(PoolError::UnverifiedAlgorithm { algorithm: config.algorithm }.into());
        }
        config.groups.as_ref().map_or(Ok(()), |groups| check_groups(groups, config))?;
        let interior = config.groups.as_ref().map_or(0, Groups::interior_units);
        if interior > 0 {
            tiers.device_mut().keep_interior(interior)?;
        }
        Ok(Self {
            tiers,
            hasher: Arc::new(hasher),
            groups: config.groups.clone().map(Arc::new),
            watermark: config.watermark,
            requests: Requests::default(),
            stats: ManagerStats { block_bytes: config.block_bytes, ..ManagerStats::default() },
            version: 0,
            batch: 0,
            rows: Vec::new(),
            step: growth::Step::default(),
            changes: Vec::new(),
            observer: None,
        })
    }

    /// The pool. Its requests' blocks are the manager's: to look at, not to release.
    #[must_use]
    pub fn pool(&self) -> &BlockPool {
        self.tiers.device()
    }

    /// The pools of all tiers, and the copies that are planned: to look at.
    #[must_use]
    pub const fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// The hasher that prompts are hashed with: `Send + Sync`, so a prompt can be hashed on any thread.
    #[must_use]
    pub const fn hasher(&self) -> &Arc<BlockHasher> {
        &self.hasher
    }

    /// Hashes a prompt for this manager, in the current epoch (`extra.epoch` is set to it). O(tokens);
    /// needs the manager only for its hasher and epoch.
    ///
    /// # Errors
    /// [`ManagerError::Hash`]: extra keys that the algorithm cannot represent.
    pub fn prepare(&self, tokens: &[u32], extra: ExtraKeys) -> Result<HashCursor> {
        self.check_poison()?;
        let extra = ExtraKeys { epoch: self.tiers.device().epoch(), ..extra };
        let mut cursor = HashCursor::new(self.hasher.clone(), extra)?;
        cursor.append(tokens);
        Ok(cursor)
    }

    /// What an admission of `cursor` would find cached now. Changes nothing. O(blocks matched).
    ///
    /// # Errors
    /// [`PoolError::StaleEpoch`] if the prompt was hashed before the last epoch bump.
    pub fn probe(&self, cursor: &HashCursor) -> Result<Probe> {
        self.check_poison()?;
        self.check_cursor(cursor)?;
        if self.groups.is_some() {
            let staged = Staged::longest(self.tiers.device(), self.groups(), cursor)?;
            return Ok(Probe {
                cached_blocks: staged.cached,
                idle_blocks: self.pool().num_idle(&staged.matched().collect::<Vec<_>>()),
                pending_blocks: 0,
            });
        }
        // The last token is left to compute.
        let reusable = cursor.num_tokens().saturating_sub(1) / cursor.hasher().block_size();
        Ok(self.tiers.device().probe(cursor.chain(), reusable)?)
    }

    /// The request's tokens, computed tokens, state. O(1).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`].
    pub fn request<'a>(&self, id: impl Into<RequestRef<'a>>) -> Result<RequestInfo> {
        let Request { state, cached_tokens, ref sequence, external, .. } =
            *self.requests.at(self.slot(id.into())?)?;
        Ok(RequestInfo {
            state,
            tokens: sequence.num_tokens(),
            computed_tokens: sequence.computed_tokens,
            cached_tokens,
            external_end: external.map_or(sequence.computed_tokens, |external| external.end),
            blocks: sequence.main.blocks.len(),
            tier: sequence.tier,
        })
    }

    /// The request's block table. O(1).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`].
    pub fn block_table<'a>(&self, id: impl Into<RequestRef<'a>>) -> Result<&[BlockId]> {
        Ok(&self.requests.at(self.slot(id.into())?)?.sequence.main.blocks)
    }

    /// The request's block table in a group: see [`ManagerConfig::groups`]. Of a group that keeps a
    /// state it has one entry, which does not change while the request runs. The null block is where a
    /// group has given up what no token to come reads. O(groups).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`]; [`PoolError::InvalidConfig`] for a group that there is not.
    pub fn group_table<'a>(&self, id: impl Into<RequestRef<'a>>, group: usize) -> Result<&[BlockId]> {
        let mut tables = self.requests.at(self.slot(id.into())?)?.sequence.tables();
        let Some(table) = tables.nth(group) else {
            let allowed = format!("less than {}, the number of groups", self.num_groups());
            return Err(PoolError::config("group", group, allowed).into());
        };
        Ok(&table.blocks)
    }

    /// The groups of a hybrid model.
    #[must_use]
    pub fn groups(&self) -> Option<&Groups> {
        self.groups.as_deref()
    }

    /// KV-cache groups: 1 without any.
    #[must_use]
    pub fn num_groups(&self) -> usize {
        self.groups().map_or(1, |groups| groups.specs().len())
    }

    /// Where the next chunk of a running request should end, if a state of it is to be kept: so many
    /// tokens. A checkpoint is made when a commit ends there and its table covers no more
    /// ([`crate::Part::allocate_tokens`], [`Self::extend`]). `None` without groups that keep states, or
    /// if nothing is known. O(groups).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`].
    pub fn next_checkpoint<'a>(&self, id: impl Into<RequestRef<'a>>) -> Result<Option<usize>> {
        Ok(self.requests.at(self.slot(id.into())?)?.sequence.next_checkpoint())
    }

    /// The request's tokens and their hash chain. O(1).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`].
    pub fn cursor<'a>(&self, id: impl Into<RequestRef<'a>>) -> Result<&HashCursor> {
        Ok(&self.requests.at(self.slot(id.into())?)?.sequence.cursor)
    }

    /// Whether a request has this id.
    #[must_use]
    pub fn contains<'a>(&self, id: impl Into<RequestRef<'a>>) -> bool {
        self.requests.slot_of(id.into()).is_some()
    }

    /// The slot of a request: a small number that it is given at its admission, and another one after
    /// its release. A manager that makes the same calls gives the same ones.
    #[must_use]
    pub fn slot_of<'a>(&self, id: impl Into<RequestRef<'a>>) -> Option<usize> {
        self.requests.slot_of(id.into())
    }

    /// Counters and gauges. O(1).
    #[must_use]
    pub fn stats(&self) -> ManagerStats {
        let pool = self.tiers.device();
        ManagerStats { pool: pool.stats(), retention: pool.retention_stats(), ..self.stats }
    }

    /// Ends the fences of `step` and of all earlier steps: see [`BlockPool::complete_step`].
    ///
    /// # Errors
    /// Only if a pool is poisoned.
    pub fn complete_step(&mut self, step: u64) -> Result<usize> {
        let ended = self.tiers.complete_step(step)?;
        self.version += 1;
        self.tell(ManagerObserver::step_completed);
        self.check_poison()?;
        Ok(ended)
    }

    /// Opens a fence: what is released, preempted or truncated until its ticket stays out of reach
    /// until [`Self::end_fence`]. Tickets end in any order. O(1).
    ///
    /// # Errors
    /// Only if a pool is poisoned.
    pub fn fence(&mut self) -> Result<Ticket> {
        Ok(self.tiers.fence()?)
    }

    /// Ends a fence: see [`BlockPool::end_fence`].
    ///
    /// # Errors
    /// [`PoolError::UnknownTicket`].
    pub fn end_fence(&mut self, ticket: Ticket) -> Result<usize> {
        let ended = self.tiers.end_fence(ticket)?;
        self.version += 1;
        Ok(ended)
    }

    /// Starts a new epoch: see [`BlockPool::bump_epoch`]. Running requests go on and are never
    /// published again; preempted ones are hashed anew when they resume.
    ///
    /// # Errors
    /// Only if the pool is poisoned.
    pub fn bump_epoch(&mut self) -> Result<u64> {
        let epoch = self.tiers.bump_epoch()?;
        self.contents_changed();
        Ok(epoch)
    }

    /// Forgets all cached content, of the host tier, too: see [`Tiers::reset`]. Preempted requests
    /// resume without any. Returns how many blocks were registered, in both tiers.
    ///
    /// # Errors
    /// [`PoolError::InUse`] while requests or fences hold blocks of the device, [`TierError::InUse`]
    /// while they hold blocks of the host: a request that is swapped out would bring back what it has
    /// there. Nothing has changed then.
    pub fn reset(&mut self) -> Result<usize> {
        let forgotten = self.tiers.reset()?;
        self.contents_changed();
        Ok(forgotten)
    }

    /// Drops blocks from the index by id: see [`BlockPool::drop_cached`].
    ///
    /// # Errors
    /// Unknown ids.
    pub fn drop_cached(&mut self, blocks: &[BlockId]) -> Result<usize> {
        self.check_poison()?;
        let dropped = self.tiers.device_mut().drop_cached(blocks)?;
        self.contents_changed();
        Ok(dropped)
    }

    /// Evicts up to `n` cached-free blocks of the device, which are free then: see [`BlockPool::evict`].
    ///
    /// # Errors
    /// Only if the manager is poisoned.
    pub fn evict(&mut self, n: usize) -> Result<Vec<BlockId>> {
        self.check_poison()?;
        let victims = self.tiers.device_mut().evict(n)?;
        self.contents_changed();
        Ok(victims)
    }

    fn contents_changed(&mut self) {
        self.version += 1;
        self.tell_changed(None);
    }

    /// Grows the pool: see [`BlockPool::resize`].
    ///
    /// # Errors
    /// [`PoolError::Shrink`].
    pub fn resize(&mut self, num_blocks: usize) -> Result<()> {
        self.check_poison()?;
        self.tiers.device_mut().resize(num_blocks)?;
        self.version += 1;
        Ok(())
    }

    /// Checks that a prompt was hashed by a hasher like the manager's, in the current epoch.
    fn check_cursor(&self, cursor: &HashCursor) -> Result<()> {
        if !Arc::ptr_eq(cursor.hasher(), &self.hasher) && cursor.hasher().config() != self.hasher.config() {
            return Err(ManagerError::ForeignCursor);
        }
        Ok(self.tiers.device().check_chain(cursor.chain())?)
    }

    #[inline]
    fn slot(&self, id: RequestRef<'_>) -> Result<usize> {
        self.check_poison()?;
        self.requests.find(id)
    }

    /// The slot of a request in one of these states.
    fn slot_in(&self, id: RequestRef<'_>, states: &[RequestState], operation: &'static str) -> Result<usize> {
        let slot = self.slot(id)?;
        self.requests.at(slot)?.check_state(states, operation)?;
        Ok(slot)
    }

    fn set_state(&mut self, slot: usize, state: RequestState) -> Result<()> {
        let before = std::mem::replace(&mut self.requests.at_mut(slot)?.state, state);
        *self.gauge(before) -= 1;
        *self.gauge(state) += 1;
        self.version += 1;
        Ok(())
    }

    /// How many requests are in a state.
    const fn gauge(&mut self, state: RequestState) -> &mut usize {
        match state {
            RequestState::Running => &mut self.stats.running,
            RequestState::Preempted => &mut self.stats.preempted,
            RequestState::Swapped => &mut self.stats.swapped,
            RequestState::Moving => &mut self.stats.moving,
            RequestState::Loading => &mut self.stats.loading,
            RequestState::Releasing => &mut self.stats.releasing,
        }
    }
}

/// Refuses groups that the other settings do not go with.
fn check_groups(groups: &Groups, config: &ManagerConfig) -> Result<()> {
    if groups.unit() != config.block_size {
        let allowed = format!("the hash unit of the groups, {}", groups.unit());
        return Err(PoolError::config("block_size", config.block_size, allowed).into());
    }
    if config.verify != Verify::None {
        return Err(PoolError::config("verify", format!("{:?}", config.verify), "None with groups").into());
    }
    Ok(())
}
