//! `CacheManager`: what a scheduler calls.
//!
//! Owns: which request holds which blocks, and how far each is computed. Blocks, hashes and eviction belong to
//! [`BlockPool`]; the manager turns what a scheduler means (admit, append, commit, preempt, release) into one atomic pool
//! operation each.
//!
//! The life of a request:
//!
//! 1. [`CacheManager::admit`] hashes nothing (the prompt comes hashed, from [`CacheManager::prepare`], on any thread),
//!    finds the cached prefix, acquires it, and allocates the rest, in one step that succeeds or changes nothing. The
//!    last prompt token is always left to compute.
//! 2. [`CacheManager::commit`] says how many tokens the engine has computed. Full, computed blocks are registered: from
//!    then on other requests can hit them, and no earlier.
//! 3. [`CacheManager::append`] adds the sampled tokens of a whole batch, and blocks where a boundary is crossed.
//! 4. [`CacheManager::release`], or [`CacheManager::preempt`] and later [`CacheManager::resume`].
//!
//! Between: [`CacheManager::fork`] for samples and beams, with copy-on-write; [`CacheManager::truncate`] for rejected drafts;
//! [`CacheManager::trim_window`]; preemption by swap in two phases ([`CacheManager::begin_swap_out`]). The copies of a step
//! come out as one plan ([`CacheManager::take_plan`]), to be executed before the step writes KV.
//!
//! What callers know of the future goes in as hints: [`CacheManager::admit_with`], [`CacheManager::retain`],
//! [`CacheManager::end_of_life`], [`CacheManager::release_with`].
//!
//! A step may be planned as a whole before anything is touched: [`CacheManager::plan_step`].
//!
//! Invariants, recounted by [`CacheManager::check_invariants`]:
//! - M1: the references of a block are the block tables that hold it, fences, pins and swaps.
//! - M2: a request's blocks are where its state says: on the device, nowhere, in the host tier, or on their way.
//! - M3: a published block carries the hash of the tokens committed to it (vLLM #49377).
//! - M4: hit tokens + computed tokens == prompt tokens over all admissions, re-admissions counted apart (vLLM #25780).
//!
//! Costs: O(1) per block touched and per request named; nothing depends on the size of the pool or the number of
//! requests.
//!
//! ```
//! use kvpool::{CacheManager, ExtraKeys, ManagerConfig};
//! let mut manager = CacheManager::new(ManagerConfig { num_blocks: 64, block_size: 4, ..Default::default() })?;
//! let prompt: Vec<u32> = (0..10).collect();
//!
//! let admission = manager.admit("a", manager.prepare(&prompt, ExtraKeys::default())?)?;
//! assert_eq!((admission.cached_tokens, admission.block_ids.len()), (0, 3));
//! manager.commit("a", 10)?;                         // the engine has run the prompt
//! manager.append(&["a".into()], &[77], false)?;     // and sampled a token
//!
//! let second = manager.admit("b", manager.prepare(&prompt, ExtraKeys::default())?)?;
//! assert_eq!(second.cached_tokens, 8);              // two full blocks, shared
//! manager.release("a", None)?;
//! manager.release("b", None)?;
//! # Ok::<(), kvpool::ManagerError>(())
//! ```

mod admission;
mod checks;
mod config;
mod error;
mod growth;
mod hints;

pub(crate) mod observe;
mod request;
mod retention;
mod slots;
mod step;
mod tables;

use std::sync::Arc;

use hashbrown::HashMap;

use crate::block::BlockId;
use crate::error::{InvariantViolation, PoolError, ensure};
use crate::evictor::Evictor;
use crate::hash::{BlockHasher, ExtraKeys, HashCursor, Verify};
use crate::pool::{BlockPool, PoolConfig, Probe};
use crate::sequence::TableChange;
use crate::tiers::{Place, SwapId, TierError, Tiers};

pub use admission::Admission;
pub use config::{ManagerConfig, ManagerStats};
pub use error::{ManagerError, Refused};
pub use growth::NewBlock;
pub use hints::{RequestHints, RetentionRange};
use observe::ManagerObserver;
use request::Request;
pub use request::{RequestId, RequestInfo, RequestRef, RequestState};
pub use slots::PlannedOperation;
pub use step::{StepOutcome, StepPlan};
use tables::Move;

/// Requests by id over one [`BlockPool`].
#[derive(Debug)]
pub struct CacheManager {
    /// The device's pool, and the host's if there is one.
    tiers: Tiers,
    hasher: Arc<BlockHasher>,
    /// Share of the pool, and blocks of it as it is now, that an admission leaves available while others run.
    watermark: f64,
    watermark_blocks: usize,
    slots: HashMap<RequestId, usize>,
    /// A request's slot never moves; free slots are reused.
    requests: Vec<Option<Request>>,
    free_slots: Vec<usize>,
    stats: ManagerStats,
    /// Counts changes: a planned step is committed only to the state that it was planned for.
    version: u64,
    batch: u64,
    /// Reused by every append.
    rows: Vec<usize>,
    changes: Vec<TableChange>,
    /// Requests of each swap under way.
    swaps: HashMap<SwapId, Move>,

    observer: Option<Box<dyn ManagerObserver>>,
}

impl CacheManager {
    /// A manager of an empty pool.
    ///
    /// # Errors
    /// Names the setting that is out of range and what is allowed.
    #[expect(clippy::needless_pass_by_value, reason = "a configuration is handed over, as to the pool")]
    pub fn new(config: ManagerConfig) -> Result<Self, ManagerError> {
        Self::assemble(&config, Tiers::new)
    }

    /// A manager of an empty pool whose cached-free blocks are in `evictor`'s order; `config.eviction` is that of the host tier,
    /// and `config.retention` is ignored, as by [`BlockPool::with_evictor`].
    ///
    /// # Errors
    /// As [`Self::new`]; also if `evictor` already holds blocks.
    #[expect(clippy::needless_pass_by_value, reason = "a configuration is handed over, as to the pool")]
    pub fn with_evictor(config: ManagerConfig, evictor: Box<dyn Evictor>) -> Result<Self, ManagerError> {
        Self::assemble(&config, |pools| Tiers::with_evictor(pools, evictor))
    }

    fn assemble(
        config: &ManagerConfig,
        tiers: impl FnOnce(Vec<PoolConfig>) -> Result<Tiers, TierError>,
    ) -> Result<Self, ManagerError> {
        if !(0.0..1.0).contains(&config.watermark) {
            return Err(ManagerError::Pool(PoolError::config(
                "watermark",
                config.watermark,
                "a share of the pool, from 0.0 to below 1.0",
            )));
        }
        // What is said of blocks is said of the device's: the host tier keeps what was swapped out.
        let host_pool = || PoolConfig { num_blocks: config.host_blocks, retention: None, ..config.pool() };
        let host = (config.host_blocks > 0).then(host_pool);
        let tiers = tiers(std::iter::once(config.pool()).chain(host).collect())?;
        let hasher = BlockHasher::new(config.hasher())?;
        if config.verify == Verify::None && !config.algorithm.is_cryptographic() {
            return Err(ManagerError::Pool(PoolError::UnverifiedAlgorithm { algorithm: config.algorithm }));
        }
        let watermark_blocks = (config.watermark * tiers.device().num_usable() as f64) as usize;
        Ok(Self {
            tiers,
            hasher: Arc::new(hasher),
            watermark: config.watermark,
            watermark_blocks,
            slots: HashMap::new(),
            requests: Vec::new(),
            free_slots: Vec::new(),
            stats: ManagerStats { block_bytes: config.block_bytes, ..ManagerStats::default() },
            version: 0,
            batch: 0,
            rows: Vec::new(),
            changes: Vec::new(),
            swaps: HashMap::new(),

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

    /// Hashes a prompt for this manager, in the current epoch (`extra.epoch` is set to it). O(tokens); needs the manager
    /// only for its hasher and epoch.
    ///
    /// # Errors
    /// [`ManagerError::Hash`]: extra keys that the algorithm cannot represent.
    pub fn prepare(&self, tokens: &[u32], extra: ExtraKeys) -> Result<HashCursor, ManagerError> {
        self.check_poison()?;
        let mut cursor =
            HashCursor::new(self.hasher.clone(), ExtraKeys { epoch: self.tiers.device().epoch(), ..extra })?;
        cursor.append(tokens);
        Ok(cursor)
    }

    /// What an admission of `cursor` would find cached now. Changes nothing. O(blocks matched).
    ///
    /// # Errors
    /// [`PoolError::StaleEpoch`] if the prompt was hashed before the last epoch bump.
    pub fn probe(&self, cursor: &HashCursor) -> Result<Probe, ManagerError> {
        self.check_cursor(cursor)?;
        Ok(self.tiers.device().probe(cursor.chain(), self.reusable_blocks(cursor))?)
    }

    /// The request's tokens, computed tokens, state. O(1).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`].
    pub fn request<'a>(&self, id: impl Into<RequestRef<'a>>) -> Result<RequestInfo, ManagerError> {
        Ok(self.at(self.slot(id.into())?)?.info())
    }

    /// The request's block table. O(1).
    ///
    /// # Errors
    /// [`ManagerError::UnknownRequest`].
    pub fn block_table<'a>(&self, id: impl Into<RequestRef<'a>>) -> Result<&[BlockId], ManagerError> {
        Ok(&self.at(self.slot(id.into())?)?.sequence.blocks)
    }

    /// Whether a request has this id.
    #[must_use]
    pub fn contains<'a>(&self, id: impl Into<RequestRef<'a>>) -> bool {
        self.slots.contains_key(&id.into())
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
    pub fn complete_step(&mut self, step: u64) -> Result<usize, ManagerError> {
        self.check_poison()?;
        self.version += 1;
        let mut ended = 0;
        for tier in 0..self.tiers.len() {
            ended += self.tiers.pool_mut(tier)?.complete_step(step)?;
        }
        self.tell_step_completed();
        self.check_poison()?;
        Ok(ended)
    }

    /// Starts a new epoch: see [`BlockPool::bump_epoch`]. Running requests go on and are never published again;
    /// preempted ones are hashed anew when they resume.
    ///
    /// # Errors
    /// Only if the pool is poisoned.
    pub fn bump_epoch(&mut self) -> Result<u64, ManagerError> {
        self.version += 1;
        let epoch = self.tiers.bump_epoch()?;
        self.tell_changed(None);
        Ok(epoch)
    }

    /// Forgets all cached content, of the host tier, too: see [`Tiers::reset`]. Preempted requests resume without any. Returns
    /// how many blocks were registered, in both tiers.
    ///
    /// # Errors
    /// [`PoolError::InUse`] while requests or fences hold blocks of the device, [`TierError::InUse`] while they hold blocks of
    /// the host: a request that is swapped out would bring back what it has there. Nothing has changed then.
    pub fn reset(&mut self) -> Result<usize, ManagerError> {
        self.check_poison()?;
        let forgotten = self.tiers.reset()?;
        self.tell_changed(None);
        self.version += 1;
        Ok(forgotten)
    }

    /// Drops blocks from the index by id: see [`BlockPool::drop_cached`].
    ///
    /// # Errors
    /// Unknown ids.
    pub fn drop_cached(&mut self, blocks: &[BlockId]) -> Result<usize, ManagerError> {
        self.check_poison()?;
        let dropped = self.tiers.device_mut().drop_cached(blocks)?;
        self.tell_changed(None);
        self.version += 1;
        Ok(dropped)
    }

    /// Grows the pool: see [`BlockPool::resize`].
    ///
    /// # Errors
    /// [`PoolError::Shrink`].
    pub fn resize(&mut self, num_blocks: usize) -> Result<(), ManagerError> {
        self.check_poison()?;
        self.tiers.device_mut().resize(num_blocks)?;
        self.watermark_blocks = (self.watermark * self.tiers.device().num_usable() as f64) as usize;
        self.version += 1;
        Ok(())
    }

    /// Recounts the pool and every request from scratch. O(blocks + tokens), for tests and scrubbing.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check_invariants(&self) -> Result<(), InvariantViolation> {
        self.tiers.check_invariants()?;
        let mut held: HashMap<Place, u32> = HashMap::new();
        for request in self.requests.iter().flatten() {
            self.check_request(request)?;
            let tier = request.sequence.tier;
            for &block in request.sequence.held() {
                *held.entry(Place { tier, block }).or_default() += 1;
            }
        }
        for (place, references) in self.tiers.swap_references() {
            *held.entry(place).or_default() += references;
        }
        for tier in 0..self.tiers.len() {
            let Ok(pool) = self.tiers.pool(tier) else { continue };
            for block in (1..pool.num_blocks() as u32).map(BlockId::new) {
                let place = Place { tier, block };
                let holders = pool.num_holders(block);
                let expected = held.get(&place).copied().unwrap_or(0);
                ensure(holders == expected, "M1 (references are block tables, fences and swaps)", || {
                    format!("{place:?} has {holders} holders, {expected} are known")
                })?;
            }
        }
        let live = self.requests.iter().flatten().count();
        let indexed = self.slots.iter().all(|(id, &slot)| {
            self.requests.get(slot).and_then(Option::as_ref).is_some_and(|request| request.id == *id)
        });
        let ManagerStats { running, preempted, swapped, moving, .. } = self.stats;
        let counted = running + preempted + swapped + moving;
        ensure(indexed && live == self.slots.len() && live == counted, "M5 (requests are counted)", || {
            format!("{live} live, {} by id, {counted} counted", self.slots.len())
        })?;
        let ManagerStats { prompt_tokens, hit_tokens, computed_tokens, .. } = self.stats;
        ensure(
            hit_tokens + computed_tokens == prompt_tokens,
            "M4 (hits + computed == prompt tokens)",
            || format!("{hit_tokens} + {computed_tokens} != {prompt_tokens}"),
        )?;
        self.observer.as_ref().map_or(Ok(()), |observer| observer.check(self))
    }

    fn check_request(&self, request: &Request) -> Result<(), InvariantViolation> {
        let (id, sequence) = (&request.id, &request.sequence);
        let pool = self.tiers.pool(sequence.tier);
        let pool = pool.map_err(|error| InvariantViolation::new("M2 (tiers exist)", error.to_string()))?;
        if request.state == RequestState::Preempted {
            return ensure(sequence.blocks.is_empty(), "M2 (a preempted request holds nothing)", || {
                format!("request {id} has {} blocks", sequence.blocks.len())
            });
        }
        sequence.check_invariants(pool, &format!("request {id}"))?;
        self.check_place(request)
    }

    /// M2: the blocks of a request are in the tier that its state says.
    fn check_place(&self, request: &Request) -> Result<(), InvariantViolation> {
        let (id, sequence) = (&request.id, &request.sequence);
        let tier = usize::from(request.state == RequestState::Swapped);
        let moving = request.state == RequestState::Moving;
        ensure(moving == sequence.swap.is_some(), "M2 (a moving request belongs to a swap)", || {
            format!("request {id} is {}", request.state.name())
        })?;
        ensure(moving || sequence.tier == tier, "M2 (a request's blocks are where its state says)", || {
            format!("request {id} is {} in tier {}", request.state.name(), sequence.tier)
        })
    }

    /// Checks that a prompt was hashed by a hasher like the manager's, in the current epoch.
    fn check_cursor(&self, cursor: &HashCursor) -> Result<(), ManagerError> {
        self.check_poison()?;
        if !Arc::ptr_eq(cursor.hasher(), &self.hasher) && cursor.hasher().config() != self.hasher.config() {
            return Err(ManagerError::ForeignCursor);
        }
        Ok(self.tiers.device().check_chain(cursor.chain())?)
    }

    /// Full blocks of a prompt that a lookup may reuse: at least its last token is left to compute.
    fn reusable_blocks(&self, cursor: &HashCursor) -> usize {
        cursor.num_tokens().saturating_sub(1) / self.tiers.device().block_size()
    }

    #[inline]
    fn slot(&self, id: RequestRef<'_>) -> Result<usize, ManagerError> {
        self.check_poison()?;
        self.slots.get(&id).copied().ok_or_else(|| ManagerError::UnknownRequest { id: id.to_owned() })
    }

    #[inline]
    fn at(&self, slot: usize) -> Result<&Request, ManagerError> {
        self.requests.get(slot).and_then(Option::as_ref).ok_or_else(lost_slot)
    }

    #[inline]
    fn at_mut(&mut self, slot: usize) -> Result<&mut Request, ManagerError> {
        self.requests.get_mut(slot).and_then(Option::as_mut).ok_or_else(lost_slot)
    }

    /// The slot of a request in a given state.
    fn slot_in(
        &self,
        id: RequestRef<'_>,
        state: RequestState,
        operation: &'static str,
    ) -> Result<usize, ManagerError> {
        let slot = self.slot(id)?;
        let request = self.at(slot)?;
        if request.state == state {
            return Ok(slot);
        }
        Err(ManagerError::WrongState { id: request.id.clone(), state: request.state, operation })
    }
}

/// `slots` and `requests` disagree: cannot happen, and must not panic if it does.
#[cold]
fn lost_slot() -> ManagerError {
    ManagerError::Pool(PoolError::Poisoned { reason: "M5: a request's slot is empty".into() })
}
