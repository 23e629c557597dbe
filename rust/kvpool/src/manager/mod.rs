//! [`CacheManager`] keeps the requests and block tables of a scheduler, and runs its steps.
//!
//! A manager owns the blocks that each request holds, and the number of its computed tokens. Each call
//! of the scheduler becomes one atomic operation of a [`BlockPool`], which owns blocks, contents and
//! eviction.
//!
//! Invariants, recounted by [`CacheManager::check_invariants`]:
//! - M1: the references of a block are those of block tables, fences, pins and swaps.
//! - M2: the state of a request determines where its blocks are: on the device, in the host tier, in a
//!   swap, or nowhere.
//! - M3: a registered block of a request has the hash of the tokens committed to it (vLLM #49377).
//! - M4: summed over all admissions, hit + external + computed tokens == prompt tokens. Resumptions are
//!   counted separately (vLLM #25780).
//! - M5: every request can be found by its id, and the counts of requests by state are exact.
//!
//! Costs: O(1) for each block and each request that a call uses. No cost depends on the size of the
//! pool or on the number of requests.

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

/// Manages the requests of a scheduler, by id, over one [`BlockPool`]. This is the type that a
/// scheduler calls.
///
/// A request is admitted with its prompt, gets tokens in each step, and is released at its end. The
/// manager finds the cached part of the prompt, gives the request blocks, registers the blocks that the
/// engine has computed, and evicts blocks without references. Every call is all or nothing: a refused
/// call changes nothing.
///
/// # Admit
///
/// [`prepare`](Self::prepare) hashes a prompt; with [`hasher`](Self::hasher), any thread can hash
/// prompts. [`admit`](Self::admit) finds the cached prefix, acquires its blocks, and allocates the
/// others. [`admit_with`](Self::admit_with) admits in chunks, with KV that a connector loads, or with
/// hints; [`external_done`](Self::external_done) ends such a load. [`probe`](Self::probe),
/// [`fit`](Self::fit), [`fit_groups`](Self::fit_groups) and
/// [`admitted_entries`](Self::admitted_entries) look a prompt up without admitting it.
///
/// # Step
///
/// One call per step serves the whole batch: it commits the tokens that the last step computed, appends
/// the tokens that it sampled, and allocates blocks for the next step.
///
/// - Run a step for a batch: [`append`](Self::append), [`append_ragged`](Self::append_ragged),
///   [`append_into`](Self::append_into).
/// - Append to one request: [`extend`](Self::extend), [`append_tokens`](Self::append_tokens),
///   [`append_turn`](Self::append_turn), [`extend_encoder`](Self::extend_encoder).
/// - Commit without appending: [`commit`](Self::commit), [`commit_batch`](Self::commit_batch).
/// - Get the copies to execute before the step: [`take_plan`](Self::take_plan).
/// - Keep released blocks until a step ends: [`fence`](Self::fence), [`end_fence`](Self::end_fence),
///   [`complete_step`](Self::complete_step).
/// - Plan a step, then commit or drop it: [`plan_step`](Self::plan_step),
///   [`plan_admit`](Self::plan_admit), [`plan_admit_with`](Self::plan_admit_with),
///   [`plan_resume`](Self::plan_resume), [`plan_resume_with`](Self::plan_resume_with),
///   [`plan_append`](Self::plan_append), [`plan_append_ragged`](Self::plan_append_ragged),
///   [`plan_preempt`](Self::plan_preempt), [`plan_release`](Self::plan_release),
///   [`commit_step`](Self::commit_step).
///
/// # Finish
///
/// - Release finished or aborted requests: [`release`](Self::release),
///   [`release_batch`](Self::release_batch), [`release_batch_with`](Self::release_batch_with).
/// - Release the last request of a session: [`end_session`](Self::end_session).
/// - Preempt a request, which later computes its tokens again: [`preempt`](Self::preempt),
///   [`resume`](Self::resume), [`resume_with`](Self::resume_with).
///
/// # Share
///
/// [`fork`](Self::fork) and [`fork_batch`](Self::fork_batch) make requests that share all blocks of an
/// existing request. The first request that writes to a shared block gets a copy.
/// [`truncate`](Self::truncate) and [`truncate_batch`](Self::truncate_batch) remove the last tokens of
/// a request, and [`trim_window`](Self::trim_window) releases the blocks before an attention window.
///
/// ```
/// use kvpool::{CacheManager, Computed, ExtraKeys, ManagerConfig};
/// let config = ManagerConfig { num_blocks: 16, block_size: 4, ..Default::default() };
/// let mut manager = CacheManager::new(config)?;
/// manager.admit("a", manager.prepare(&[1, 2, 3, 4, 5], ExtraKeys::default())?)?; // two blocks
/// manager.commit("a", 5)?;
/// manager.fork("a", "b")?; // no block is copied
/// let changes = manager.append(&["a".into(), "b".into()], &[6, 7], Computed::Nothing)?;
/// assert_eq!((changes.len(), manager.take_plan()?.len()), (1, 1)); // "a" writes to a copy
/// # Ok::<(), kvpool::ManagerError>(())
/// ```
///
/// # Swap
///
/// With [`ManagerConfig::host_blocks`], requests can be preempted by swap, which keeps their KV in host
/// memory. [`begin_swap_out`](Self::begin_swap_out) and [`begin_swap_in`](Self::begin_swap_in) plan the
/// copies, [`take_plan`](Self::take_plan) returns them, and [`complete_swap`](Self::complete_swap) or
/// [`abort_swap`](Self::abort_swap) ends the swap. [`fit_swap_out`](Self::fit_swap_out) and
/// [`fit_swap_in`](Self::fit_swap_in) return whether there are enough blocks.
///
/// ```
/// use kvpool::{CacheManager, ExtraKeys, ManagerConfig, RequestState};
/// let config = ManagerConfig { num_blocks: 16, block_size: 4, host_blocks: 16, ..Default::default() };
/// let mut manager = CacheManager::new(config)?;
/// manager.admit("a", manager.prepare(&[1, 2, 3, 4, 5], ExtraKeys::default())?)?;
/// let swap = manager.begin_swap_out(&["a".into()])?;
/// assert_eq!(manager.take_plan()?.len(), 2); // the engine executes these copies
/// manager.complete_swap(swap)?;
/// assert_eq!(manager.request("a")?.state, RequestState::Swapped);
/// # Ok::<(), kvpool::ManagerError>(())
/// ```
///
/// # Explain
///
/// - Read a request: [`request`](Self::request), [`block_table`](Self::block_table),
///   [`group_table`](Self::group_table), [`cursor`](Self::cursor), [`contains`](Self::contains),
///   [`slot_of`](Self::slot_of), [`next_checkpoint`](Self::next_checkpoint).
/// - Read counters and parts: [`stats`](Self::stats), [`pool`](Self::pool), [`tiers`](Self::tiers),
///   [`groups`](Self::groups), [`num_groups`](Self::num_groups).
/// - Get notifications: [`observe`](Self::observe), [`observe_tier`](Self::observe_tier); observers for
///   events and explanations of misses are in `kvpool-observe`.
/// - Check: [`check_invariants`](Self::check_invariants), [`poison_reason`](Self::poison_reason).
///
/// # Other tasks
///
/// - Give hints about future use: [`retain`](Self::retain), [`retain_prefix`](Self::retain_prefix),
///   [`end_of_life`](Self::end_of_life), [`end_of_life_of`](Self::end_of_life_of),
///   [`advance_time`](Self::advance_time), [`retention_stats`](Self::retention_stats).
/// - Assign requests to tenants with limits: [`set_tenant`](Self::set_tenant),
///   [`tenant_blocks`](Self::tenant_blocks).
/// - Remove cached content: [`evict`](Self::evict), [`drop_cached`](Self::drop_cached),
///   [`bump_epoch`](Self::bump_epoch), [`reset`](Self::reset).
/// - Grow the pool: [`resize`](Self::resize).
/// - Keep cached content over a restart: [`image`](Self::image), [`restore`](Self::restore).
///
/// # Example
///
/// A scheduler's loop, with one call per step for all running requests. If blocks run out, the youngest
/// request is preempted. Then waiting requests that fit are admitted.
///
/// ```
/// use std::collections::VecDeque;
/// use kvpool::{CacheManager, Computed, ExtraKeys, ManagerConfig, ManagerError};
/// use kvpool::{Refused, RequestRef, Rows, Until};
///
/// let config = ManagerConfig { num_blocks: 8, block_size: 4, ..Default::default() };
/// let mut manager = CacheManager::new(config)?;
/// let mut waiting: VecDeque<u32> = (0..3).collect(); // prompts of 10 tokens with a common prefix of 8
/// let mut running: Vec<(u32, usize)> = Vec::new(); // id, and number of sampled tokens
/// let (mut changes, mut finished) = (Vec::new(), 0);
/// while finished < 3 {
///     // Each running request gets one more token; all tokens before it are computed.
///     let requests: Vec<RequestRef<'_>> = running.iter().map(|&(id, _)| id.into()).collect();
///     let tokens = vec![7; requests.len()];
///     let mut rows = Rows { requests: &requests, tokens: &tokens, ..Rows::default() };
///     rows.computed = Computed::AllButLast;
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
///     // The engine writes the blocks in `changes` to its block tables, and runs the step.
///     for (id, _) in running.extract_if(.., |(_, sampled)| *sampled == 6) {
///         manager.release(id, Until::Now)?;
///         finished += 1;
///     }
///     while let Some(&id) = waiting.front() {
///         let prompt: Vec<u32> = (0..8).chain([100 + id, 101 + id]).collect();
///         match manager.admit(id, manager.prepare(&prompt, ExtraKeys::default())?) {
///             Ok(admission) => {
///                 assert!(id == 0 || admission.cached_tokens == 8);
///                 manager.commit(id, 10)?;
///             }
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
    /// The pool of the device, and the pool of the host tier if there is one.
    tiers: Tiers,
    hasher: Arc<BlockHasher>,
    groups: Option<Arc<Groups>>,
    /// Share of the pool that an admission leaves available for tokens that running requests will
    /// append.
    watermark: f64,
    requests: Requests,
    stats: ManagerStats,
    /// Number of changes so far. A planned step is refused if this number has changed since the plan
    /// was begun.
    version: u64,
    batch: u64,
    /// The slots of the requests in the latest batch. Every batch reuses this list's memory.
    rows: Vec<usize>,
    step: growth::Step,
    changes: Vec<TableChange>,
    observer: Option<Box<dyn ManagerObserver>>,
}

/// # Construction
impl CacheManager {
    /// Makes a manager with an empty pool.
    ///
    /// # Errors
    /// If a setting is out of range. The error names the setting and the allowed values.
    #[expect(clippy::needless_pass_by_value, reason = "callers pass configurations by value, as to a pool")]
    pub fn new(config: ManagerConfig) -> Result<Self> {
        Self::assemble(&config, Tiers::new)
    }

    /// Makes a manager with an empty pool. `evictor` decides which blocks of the device are evicted.
    /// `config.eviction` applies only to the host tier, and `config.retention` is ignored, as in
    /// [`BlockPool::with_evictor`].
    ///
    /// # Errors
    /// As [`Self::new`]; also if `evictor` already holds blocks.
    #[expect(clippy::needless_pass_by_value, reason = "callers pass configurations by value, as to a pool")]
    pub fn with_evictor(config: ManagerConfig, evictor: Box<dyn Evictor>) -> Result<Self> {
        Self::assemble(&config, |pools| Tiers::with_evictor(pools, evictor))
    }

    /// Makes a manager with a given hasher, and ignores the hash settings of `config`. Replays of a
    /// journal use this, because their hasher looks digests up instead of computing them.
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
        // Retention applies only to the device, because the host tier only contains swapped requests.
        let host_pool = || PoolConfig {
            num_blocks: config.host_blocks,
            retention: None,
            keep_tokens: false,
            ..config.pool()
        };
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
}

/// # Parts
///
/// Read access to the pools, the tiers and the hasher.
impl CacheManager {
    /// Returns the device's pool, read-only. Only the manager can change the pool.
    #[must_use]
    pub fn pool(&self) -> &BlockPool {
        self.tiers.device()
    }

    /// Returns the pools of all tiers and the planned copies, read-only.
    #[must_use]
    pub const fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// Returns the hasher of prompts. It is `Send + Sync`, so a prompt can be hashed on any thread.
    #[must_use]
    pub const fn hasher(&self) -> &Arc<BlockHasher> {
        &self.hasher
    }
}

/// # Prompts
///
/// A prompt is hashed once, before its admission, and can be looked up without being admitted.
impl CacheManager {
    /// Hashes a prompt for this manager, in the current epoch (`extra.epoch` is set to it). Copies the
    /// hashes of blocks that the device's pool has cached ([`ManagerConfig::keep_tokens`]), and computes
    /// the others. O(tokens).
    ///
    /// # Errors
    /// [`ManagerError::Hash`] for extra keys that the hash algorithm cannot represent.
    pub fn prepare(&self, tokens: &[u32], extra: ExtraKeys) -> Result<HashCursor> {
        self.check_poison()?;
        let extra = ExtraKeys { epoch: self.tiers.device().epoch(), ..extra };
        let mut cursor = HashCursor::new(self.hasher.clone(), extra)?;
        self.pool().append_known(&mut cursor, tokens);
        Ok(cursor)
    }

    /// Returns how many blocks of a prompt are cached now, without admitting the prompt. Changes
    /// nothing. O(blocks matched).
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
        // The engine always computes the last token, so it is not looked up.
        let reusable = cursor.num_tokens().saturating_sub(1) / cursor.hasher().block_size();
        Ok(self.tiers.device().probe(cursor.chain(), reusable)?)
    }
}

/// # Requests and counters
impl CacheManager {
    /// Returns the number of tokens and computed tokens of a request, and its state. O(1).
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

    /// Returns the block table of a request. With KV-cache groups, returns the table of the first
    /// group. O(1).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`].
    pub fn block_table<'a>(&self, id: impl Into<RequestRef<'a>>) -> Result<&[BlockId]> {
        Ok(&self.requests.at(self.slot(id.into())?)?.sequence.main.blocks)
    }

    /// Returns the block table of a request in one group: see [`ManagerConfig::groups`]. In a group
    /// with a recurrent state, the table has one entry. If steps verify drafts, it has one more entry
    /// per draft, and a commit of accepted drafts exchanges two entries. The null block replaces blocks
    /// that the group has released because no later token reads them. O(groups).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`]; [`PoolError::InvalidConfig`] if there is no such group.
    pub fn group_table<'a>(&self, id: impl Into<RequestRef<'a>>, group: usize) -> Result<&[BlockId]> {
        let mut tables = self.requests.at(self.slot(id.into())?)?.sequence.tables();
        let Some(table) = tables.nth(group) else {
            let allowed = format!("less than {}, the number of groups", self.num_groups());
            return Err(PoolError::config("group", group, allowed).into());
        };
        Ok(&table.blocks)
    }

    /// Returns the KV-cache groups of a hybrid model. `None` if the model has only one group.
    #[must_use]
    pub fn groups(&self) -> Option<&Groups> {
        self.groups.as_deref()
    }

    /// Returns the number of KV-cache groups. It is 1 if [`ManagerConfig::groups`] is `None`.
    #[must_use]
    pub fn num_groups(&self) -> usize {
        self.groups().map_or(1, |groups| groups.specs().len())
    }

    /// Returns the number of tokens at which the next chunk of a running request should end, so that a
    /// recurrent state can be kept. A commit of exactly this number of tokens keeps a copy of the
    /// state, a *checkpoint*, if the table has no blocks for later tokens
    /// ([`crate::Part::allocate_tokens`], [`Self::extend`]). `None` if no group keeps states, or if no
    /// such position is known. O(groups).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`].
    pub fn next_checkpoint<'a>(&self, id: impl Into<RequestRef<'a>>) -> Result<Option<usize>> {
        Ok(self.requests.at(self.slot(id.into())?)?.sequence.next_checkpoint())
    }

    /// Returns the tokens of a request and their hash chain. O(1).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`].
    pub fn cursor<'a>(&self, id: impl Into<RequestRef<'a>>) -> Result<&HashCursor> {
        Ok(&self.requests.at(self.slot(id.into())?)?.sequence.cursor)
    }

    /// Returns whether a request has this id.
    #[must_use]
    pub fn contains<'a>(&self, id: impl Into<RequestRef<'a>>) -> bool {
        self.requests.slot_of(id.into()).is_some()
    }

    /// Returns the slot of a request: a small number that it gets at its admission. After its release
    /// another request may get the slot. Managers that get the same calls assign the same slots.
    #[must_use]
    pub fn slot_of<'a>(&self, id: impl Into<RequestRef<'a>>) -> Option<usize> {
        self.requests.slot_of(id.into())
    }

    /// Returns the manager's counters and gauges, such as the number of requests in each state. O(1).
    #[must_use]
    pub fn stats(&self) -> ManagerStats {
        let pool = self.tiers.device();
        ManagerStats { pool: pool.stats(), retention: pool.retention_stats(), ..self.stats }
    }
}

/// # Fences: blocks that a running step still uses
impl CacheManager {
    /// Records that `step` and all earlier steps have finished, which ends their fences: see
    /// [`BlockPool::complete_step`].
    ///
    /// # Errors
    /// Only if a pool is poisoned.
    pub fn complete_step(&mut self, step: u64) -> Result<usize> {
        let ended = self.tiers.complete_step(step)?;
        self.version += 1;
        self.notify(ManagerObserver::step_completed);
        self.check_poison()?;
        Ok(ended)
    }

    /// Starts a fence, and returns the ticket that names it. Blocks that a release, preemption or
    /// truncation gives up with this ticket ([`Until::Ticket`](crate::Until::Ticket)) cannot be
    /// allocated before [`Self::end_fence`]. Fences may end in any order. O(1).
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
}

/// # Cached content and size
impl CacheManager {
    /// Starts a new epoch: see [`BlockPool::bump_epoch`]. Running requests continue, but their blocks
    /// are never registered again. Preempted requests are hashed again when they resume.
    ///
    /// # Errors
    /// Only if the pool is poisoned.
    pub fn bump_epoch(&mut self) -> Result<u64> {
        let epoch = self.tiers.bump_epoch()?;
        self.contents_changed();
        Ok(epoch)
    }

    /// Removes all cached content from both tiers: see [`Tiers::reset`]. Preempted requests resume
    /// without hits. Returns the number of blocks that were registered, in both tiers.
    ///
    /// # Errors
    /// [`PoolError::InUse`] while requests or fences hold blocks of the device. [`TierError::InUse`]
    /// while requests hold blocks of the host, because a swapped request would bring its content back.
    /// In both cases nothing has changed.
    pub fn reset(&mut self) -> Result<usize> {
        let forgotten = self.tiers.reset()?;
        self.contents_changed();
        Ok(forgotten)
    }

    /// Removes the cached content of these blocks: see [`BlockPool::drop_cached`].
    ///
    /// # Errors
    /// If an id is unknown.
    pub fn drop_cached(&mut self, blocks: &[BlockId]) -> Result<usize> {
        self.check_poison()?;
        let dropped = self.tiers.device_mut().drop_cached(blocks)?;
        self.contents_changed();
        Ok(dropped)
    }

    /// Evicts up to `n` cached-free blocks of the device. These blocks become free: see
    /// [`BlockPool::evict`].
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
        self.notify_changed(None);
    }

    /// Grows the pool: see [`BlockPool::resize`].
    ///
    /// # Errors
    /// [`PoolError::Shrink`] if `num_blocks` is below the current number.
    pub fn resize(&mut self, num_blocks: usize) -> Result<()> {
        self.check_poison()?;
        self.tiers.device_mut().resize(num_blocks)?;
        self.version += 1;
        Ok(())
    }
}

impl CacheManager {
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
