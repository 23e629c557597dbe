//! `BlockPool`.

mod found;
mod held;
mod payloads;

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};

pub(crate) use found::PyMatch;
use held::Held;
pub(crate) use held::Scrubbers;
use kvpool::{BlockHash, BlockId, BlockPool, PoolConfig, Ticket, Tiers};
use kvpool_journal::Journaled;
use kvpool_journal::ops::pool as op;
use kvpool_observe::{PoolWatch, WatchConfig};
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::advice;
use crate::clock::Clock;
use crate::convert::{IdsOut, Int, block, blocks, count, ids};
use crate::ended;
use crate::enter::{LONG, Locked, enter_sized};
use crate::errors::OrRaise;
use crate::hashing::{PyChainLink, PyHashChain, named};
use crate::health::Health;
use crate::journal::{self, PyJournal, PyJournalStats};
use crate::metrics;
use crate::python::prelude::*;
use crate::retention::{self, Eviction, PyHintReport, PyRetention, PyRetentionStats};
use crate::stats::{Events, PyPoolStats, PyProbe, PyScrubReport, events};

/// Blocks of one tier: allocation, prefix cache and eviction.
#[pyclass(frozen, module = "kvpool._core.pool", name = "BlockPool")]
pub(crate) struct PyBlockPool {
    held: Held,
    scrubbers: Scrubbers,
    /// Of a policy written in Python.
    health: Option<Arc<Health>>,
    clock: Clock,
}

/// Positions of a table, and what is there now.
fn changes(changes: &[(usize, BlockId)]) -> Vec<(usize, u32)> {
    changes.iter().map(|&(at, block)| (at, block.get())).collect()
}

/// `max_blocks` of a lookup: all if absent.
fn at_most(py: Python<'_>, max_blocks: Option<Int>) -> PyResult<usize> {
    max_blocks.map_or(Ok(usize::MAX), |max| count(py, "max_blocks", max))
}

#[pymethods]
impl PyBlockPool {
    #[new]
    #[pyo3(
        signature = (
            num_blocks, block_size=16, *, verify="none", duplicates="keep", eviction=None, retention=None, advisor=None,
            event_capacity=0, journal=None, digest=false, payloads=false, metrics=false
        ),
        text_signature = "(num_blocks, block_size=16, *, verify='none', duplicates='keep', eviction='lru', retention=None, advisor=None, event_capacity=0, journal=None, digest=False, payloads=False, metrics=False)"
    )]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python constructor")]
    fn py_new(
        py: Python<'_>,
        num_blocks: Int,
        block_size: i128,
        verify: &str,
        duplicates: &str,
        eviction: Option<&Bound<'_, PyAny>>,
        retention: Option<&Bound<'_, PyAny>>,
        advisor: Option<&Bound<'_, PyAny>>,
        event_capacity: i128,
        journal: Option<&Bound<'_, PyJournal>>,
        digest: bool,
        payloads: bool,
        metrics: bool,
    ) -> PyResult<Self> {
        let mut config = PoolConfig {
            num_blocks: count(py, "num_blocks", num_blocks)?,
            block_size: count(py, "block_size", block_size)?,
            verify: named(py, verify)?,
            duplicates: named(py, duplicates)?,
            eviction: kvpool_policies::LRU,
            retention: retention::config(retention)?,
            ..PoolConfig::default()
        };
        let watch = WatchConfig {
            event_capacity: count(py, "event_capacity", event_capacity)?,
            digest,
            advisor: advice::config(advisor)?,
            payloads,
            metrics,
            ..WatchConfig::default()
        };
        let (pool, health) =
            match retention::eviction(py, eviction, config.num_blocks, config.retention.as_ref())? {
                Eviction::Named(policy) => {
                    config.eviction = policy;
                    let pool = match journal {
                        None => py
                            .detach(|| BlockPool::new(config)?.watched(&watch))
                            .map(Journaled::from)
                            .or_raise(py),
                        Some(journal) => {
                            journal.get().record(py, |journal| Journaled::with_watch(config, &watch, journal))
                        }
                    };
                    (pool?, None)
                }
                Eviction::Own(evictor, health) => {
                    journal::refuse_own_policy(py, journal)?;
                    let pool = BlockPool::with_evictor(config, evictor).and_then(|pool| pool.watched(&watch));
                    (pool.or_raise(py)?.into(), Some(health))
                }
            };
        Ok(Self {
            held: Held::Own(Box::new(Locked::new(pool))),
            scrubbers: Arc::default(),
            health,
            clock: Clock::default(),
        })
    }

    /// Blocks, null block included.
    #[getter]
    fn num_blocks(&self, py: Python<'_>) -> PyResult<usize> {
        self.get(py, |pool| pool.num_blocks())
    }

    /// Tokens per block.
    #[getter]
    fn block_size(&self, py: Python<'_>) -> PyResult<usize> {
        self.get(py, |pool| pool.block_size())
    }

    /// Blocks that an allocation can take now: free and cached-free.
    #[getter]
    fn num_available(&self, py: Python<'_>) -> PyResult<usize> {
        self.get(py, |pool| pool.num_available())
    }

    /// The current epoch: 0, plus one per bump.
    #[getter]
    fn epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.get(py, |pool| pool.epoch())
    }

    /// Takes blocks, each with one reference: returns their ids, or writes them and returns how many.
    #[pyo3(signature = (n, *, out=None))]
    fn allocate<'py>(
        &self,
        py: Python<'py>,
        n: Int,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let n = count(py, "n", n)?;
        let out = out.map(|out| IdsOut::of(out, n)).transpose()?;
        let taken = self.run(py, n, |pool| pool.apply(op::Allocate { blocks: n }))?;
        match out {
            None => Ok(PyList::new(py, ids(&taken))?.into_any()),
            Some(out) => Ok(out.write(&taken)?.into_pyobject(py)?.into_any()),
        }
    }

    /// Adds one reference per id to blocks that somebody holds: a second holder of a block table.
    fn acquire(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let held = blocks(block_ids)?;
        self.run(py, held.len(), |pool| pool.apply(op::Acquire { blocks: &held }))
    }

    /// Drops one reference per id.
    #[pyo3(signature = (block_ids, *, until=None))]
    fn release(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>, until: Option<Int>) -> PyResult<()> {
        let held = blocks(block_ids)?;
        match until {
            None => self.run(py, held.len(), |pool| pool.apply(op::Release { blocks: &held })),
            Some(ticket) => {
                let ticket = Ticket::new(count(py, "until", ticket)? as u64);
                self.run(py, held.len(), |pool| pool.apply(op::ReleaseUntil { blocks: &held, ticket }))
            }
        }
    }

    /// Opens a fence and returns its ticket.
    fn fence(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, 0, |pool| pool.apply(op::Fence).map(Ticket::get))
    }

    /// Ends a fence and returns how many references it held.
    fn end_fence(&self, py: Python<'_>, ticket: Int) -> PyResult<usize> {
        let ticket = Ticket::new(count(py, "ticket", ticket)? as u64);
        self.ending(py, op::EndFence { ticket })
    }

    /// Releases a block table, tail first: what becomes free is handed out again in table order.
    fn release_table(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let held = blocks(block_ids)?;
        self.run(py, held.len(), |pool| pool.apply(op::ReleaseTable { blocks: &held }))
    }

    /// Releases blocks that a running step may still touch: they are fenced until it completes.
    fn release_after(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>, step: Int) -> PyResult<()> {
        let (held, step) = (blocks(block_ids)?, count(py, "step", step)? as u64);
        self.run(py, held.len(), |pool| pool.apply(op::ReleaseAfter { blocks: &held, step }))
    }

    /// Ends the fences of a step and of all earlier steps, and returns how many references they held.
    fn complete_step(&self, py: Python<'_>, step: Int) -> PyResult<usize> {
        let step = count(py, "step", step)? as u64;
        self.ending(py, op::CompleteStep { step })
    }

    /// Registers held blocks under the hashes of a chain and returns how many: they are immutable now.
    #[pyo3(signature = (block_ids, chain, start=0))]
    fn register(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        chain: &Bound<'_, PyHashChain>,
        start: i128,
    ) -> PyResult<usize> {
        let (held, start, chain) = (blocks(block_ids)?, count(py, "start", start)?, &chain.get().0);
        Ok(self.run(py, held.len(), |pool| pool.apply(op::Register { blocks: &held, chain, start }))?.blocks)
    }

    /// Registers held blocks as computed ones, or exchanges them for cached ones; returns the changes.
    #[pyo3(signature = (block_ids, chain, start=0))]
    fn register_table(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        chain: &Bound<'_, PyHashChain>,
        start: i128,
    ) -> PyResult<Vec<(usize, u32)>> {
        let (held, start, chain) = (blocks(block_ids)?, count(py, "start", start)?, &chain.get().0);
        let operation = op::RegisterTable { blocks: &held, chain, start };
        let changed = self.run(py, held.len(), |pool| pool.apply(operation))?;
        Ok(changes(&changed))
    }

    /// Takes free ids of an engine's own allocator as cached blocks; returns the positions that another id has.
    #[pyo3(signature = (block_ids, chain, start=0))]
    fn adopt(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        chain: &Bound<'_, PyHashChain>,
        start: i128,
    ) -> PyResult<Vec<(usize, u32)>> {
        let (free, start, chain) = (blocks(block_ids)?, count(py, "start", start)?, &chain.get().0);
        let operation = op::Adopt { blocks: &free, chain, start };
        let changed = self.run(py, free.len(), |pool| pool.apply(operation))?;
        Ok(changes(&changed))
    }

    /// Gives ids back to an engine's own allocator, contents and all: only the caller may hold them.
    fn disown(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let held = blocks(block_ids)?;
        self.run(py, held.len(), |pool| pool.apply(op::Disown { blocks: &held }))
    }

    /// Says that the KV of registered blocks is written: lookups may return them.
    fn mark_computed(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let held = blocks(block_ids)?;
        self.run(py, held.len(), |pool| pool.apply(op::MarkComputed { blocks: &held }))
    }

    /// Finds the longest cached prefix of a chain and acquires it: one reference per block for the caller.
    #[pyo3(signature = (chain, max_blocks=None, *, tenant=None))]
    fn match_and_acquire(
        &self,
        py: Python<'_>,
        chain: &Bound<'_, PyHashChain>,
        max_blocks: Option<Int>,
        tenant: Option<Int>,
    ) -> PyResult<Vec<u32>> {
        let (max, chain) = (at_most(py, max_blocks)?, &chain.get().0);
        let tenant = tenant.map(|tenant| retention::tenant(py, tenant)).transpose()?;
        let lookup = op::Match { chain, max_blocks: max, tenant };
        let found = self.run(py, chain.len(), |pool| pool.apply(lookup))?;
        Ok(ids(&found))
    }

    /// Finds the cached blocks of a chain, and returns a match that holds none of them.
    #[pyo3(signature = (chain, start=0, max_blocks=None, *, refresh=false))]
    fn lookup(
        &self,
        py: Python<'_>,
        chain: &Bound<'_, PyHashChain>,
        start: i128,
        max_blocks: Option<Int>,
        refresh: bool,
    ) -> PyResult<PyMatch> {
        let (start, max_blocks) = (count(py, "start", start)?, at_most(py, max_blocks)?);
        let chain = &chain.get().0;
        let found = self.run(py, chain.len(), |pool| match refresh {
            true => pool.apply(op::LookupRefreshing { chain, start, max_blocks }),
            false => pool.lookup(chain, start, max_blocks),
        });
        Ok(PyMatch(found?))
    }

    /// Acquires what matched, one reference per block, if all of it is still there.
    fn acquire_match(&self, py: Python<'_>, found: &Bound<'_, PyMatch>) -> PyResult<()> {
        let found = &found.get().0;
        self.run(py, found.len(), |pool| pool.apply(op::AcquireMatch { found }))
    }

    /// Says what a lookup would find now; changes nothing and counts nothing.
    #[pyo3(signature = (chain, max_blocks=None))]
    fn probe(
        &self,
        py: Python<'_>,
        chain: &Bound<'_, PyHashChain>,
        max_blocks: Option<Int>,
    ) -> PyResult<PyProbe> {
        let (max, chain) = (at_most(py, max_blocks)?, &chain.get().0);
        Ok(self.run(py, chain.len(), |pool| pool.probe(chain, max))?.into())
    }

    /// Forgets the contents of blocks by id and returns how many were registered.
    fn drop_cached(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>) -> PyResult<usize> {
        let victims = blocks(block_ids)?;
        self.run(py, victims.len(), |pool| pool.apply(op::DropCached { blocks: &victims }))
    }

    /// Evicts cached-free blocks, up to a number, and returns their ids in the order of eviction.
    fn evict(&self, py: Python<'_>, n: Int) -> PyResult<Vec<u32>> {
        let n = count(py, "n", n)?;
        Ok(ids(&self.run(py, n, |pool| pool.apply(op::Evict { blocks: n }))?))
    }

    /// Forgets all cached content of every tier and returns how many blocks were registered.
    fn reset(&self, py: Python<'_>) -> PyResult<usize> {
        match &self.held {
            Held::Own(_) => self.run(py, LONG, |pool| pool.apply(op::Reset)),
            Held::Tier(tiers, _) => enter_sized(py, tiers, LONG, Tiers::reset).or_raise(py),
        }
    }

    /// Starts a new epoch in every tier, for instance after a change of weights, and returns its number.
    fn bump_epoch(&self, py: Python<'_>) -> PyResult<u64> {
        match &self.held {
            Held::Own(_) => self.run(py, LONG, |pool| pool.apply(op::BumpEpoch)),
            Held::Tier(tiers, _) => enter_sized(py, tiers, LONG, Tiers::bump_epoch).or_raise(py),
        }
    }

    /// Grows the pool; the new blocks are handed out last.
    fn resize(&self, py: Python<'_>, num_blocks: Int) -> PyResult<()> {
        let num_blocks = count(py, "num_blocks", num_blocks)?;
        self.run(py, LONG, |pool| pool.apply(op::Resize { num_blocks }))
    }

    /// Returns the references of a block, those of fences included.
    fn ref_count(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<u32> {
        Ok(self.look(py, block_id, BlockPool::ref_count)?.unwrap_or_default())
    }

    /// Returns the references of blocks, those of fences included, or writes them and returns how many.
    #[pyo3(signature = (block_ids, *, out=None))]
    fn ref_counts<'py>(
        &self,
        py: Python<'py>,
        block_ids: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let named = blocks(block_ids)?;
        let out = out.map(|out| IdsOut::of(out, named.len())).transpose()?;
        let counts = self.look_all(py, &named, BlockPool::ref_count)?;
        match out {
            None => Ok(PyList::new(py, counts)?.into_any()),
            Some(out) => Ok(out.write_counts(&counts)?.into_pyobject(py)?.into_any()),
        }
    }

    /// Returns where blocks are in their lives.
    fn states<'py>(&self, py: Python<'py>, block_ids: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let states = self.look_all(py, &blocks(block_ids)?, BlockPool::state)?;
        PyList::new(py, states.iter().map(|state| PyString::intern(py, state.name())))
    }

    /// Returns the references of a block outside of fences and planned copies.
    fn num_holders(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<u32> {
        self.look(py, block_id, BlockPool::num_holders)
    }

    /// Says whether a block is registered: full, hashed, indexed and immutable.
    fn is_registered(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.look(py, block_id, BlockPool::is_registered)
    }

    /// Returns the blocks registered under a digest, computed ones first; holds none.
    fn copies(&self, py: Python<'_>, digest: &[u8]) -> PyResult<Vec<u32>> {
        let copies = self.get(py, |pool| {
            let hash = pool.algorithm().map(|algorithm| BlockHash::from_digest(algorithm, digest));
            hash.transpose().map(|hash| hash.map(|hash| pool.copies(&hash)).unwrap_or_default())
        })?;
        Ok(ids(&copies.or_raise(py)?))
    }

    /// Registers a held, full block under its link, or exchanges it for the block registered there.
    fn register_link(
        &self,
        py: Python<'_>,
        block_id: &Bound<'_, PyAny>,
        link: &Bound<'_, PyChainLink>,
    ) -> PyResult<u32> {
        let (id, link) = (block(block_id)?, &link.get().0);
        Ok(self.run(py, 0, |pool| pool.apply(op::RegisterLink { block: id, link }))?.get())
    }

    /// Acquires the block registered under a link, computed or not, or returns None.
    fn acquire_registered(&self, py: Python<'_>, link: &Bound<'_, PyChainLink>) -> PyResult<Option<u32>> {
        let link = &link.get().0;
        Ok(self.run(py, 0, |pool| pool.apply(op::AcquireRegistered { link }))?.map(BlockId::get))
    }

    /// Says when blocks were accessed, for policies that order by it.
    fn mark_accessed(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>, time: f64) -> PyResult<()> {
        let accessed = blocks(block_ids)?;
        self.run(py, accessed.len(), |pool| pool.apply(op::MarkAccessed { blocks: &accessed, time }))
    }

    /// Says of blocks in use how the request that releases them next ended.
    #[pyo3(signature = (block_ids, *, finish_reason=None, output_tokens=None))]
    fn signal(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        finish_reason: Option<&str>,
        output_tokens: Option<Int>,
    ) -> PyResult<()> {
        let (named, signal) = (blocks(block_ids)?, ended::signal(py, finish_reason, output_tokens)?);
        self.run(py, named.len(), |pool| pool.apply(op::Signal { blocks: &named, signal }))
    }

    /// Says how long blocks are worth keeping, and returns what became of it.
    fn retain(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        retention: &Bound<'_, PyRetention>,
    ) -> PyResult<PyHintReport> {
        let (named, retention) = (blocks(block_ids)?, retention.get().0);
        Ok(self.run(py, named.len(), |pool| pool.apply(op::Retain { blocks: &named, retention }))?.into())
    }

    /// Assigns blocks to a tenant: they count towards its limits while their content is cached.
    fn assign_tenant(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>, tenant: Int) -> PyResult<()> {
        let (named, tenant) = (blocks(block_ids)?, retention::tenant(py, tenant)?);
        self.run(py, named.len(), |pool| pool.apply(op::AssignTenant { blocks: &named, tenant }))
    }

    /// Lets time pass, in seconds on a clock of the caller's, and returns how many retentions ran out.
    fn advance_time(&self, py: Python<'_>, now: f64) -> PyResult<usize> {
        self.run(py, 0, |pool| pool.apply(op::AdvanceTime { now }))
    }

    /// Returns how many blocks of a tenant with limits are cached or in use.
    fn tenant_blocks(&self, py: Python<'_>, tenant: Int) -> PyResult<usize> {
        let tenant = retention::tenant(py, tenant)?;
        self.run(py, 0, |pool| pool.tenant_blocks(tenant))
    }

    /// Returns how many blocks are retained how, or None without retention.
    fn retention_stats(&self, py: Python<'_>) -> PyResult<Option<PyRetentionStats>> {
        Ok(self.get(py, |pool| pool.retention_stats())?.map(Into::into))
    }

    /// Returns what the pool's traffic says of other sizes, policies and tenants; None without an advisor.
    fn advice<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let advice = self.run(py, LONG, |pool| Ok(pool.advice()))?;
        advice.map(|advice| advice::dict(py, &advice)).transpose()
    }

    /// Returns what was counted since the pool was made; None without metrics.
    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let counted = self.run(py, 0, |pool| Ok(pool.metrics()))?;
        counted.map(|counted| metrics::dict(py, &counted)).transpose()
    }

    /// Says what time it is for the metrics, in seconds on a clock of the caller's.
    fn observe_time(&self, py: Python<'_>, now: f64) -> PyResult<()> {
        self.clock.observe(py, now, || self.run(py, 0, |pool| pool.unrecorded(|pool| pool.observe_time(now))))
    }

    /// Raises ``PolicyError`` if the pool's policy is written in Python and has failed.
    fn check_policy(&self, py: Python<'_>) -> PyResult<()> {
        self.health.as_ref().map_or(Ok(()), |health| health.check(py))
    }

    /// Returns where a block is in its life: null, free, cached-free, active or fenced.
    fn state(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<&'static str> {
        Ok(self.look(py, block_id, BlockPool::state)?.map_or("", kvpool::BlockState::name))
    }

    /// Says whether a block is registered and its KV written.
    fn is_computed(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.look(py, block_id, BlockPool::is_computed)
    }

    /// Returns the hash under which a block is registered, or None.
    fn hash_of<'py>(
        &self,
        py: Python<'py>,
        block_id: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let (algorithm, hash) =
            self.look(py, block_id, |pool, block| (pool.algorithm(), pool.hash_of(block)))?;
        Ok(algorithm.zip(hash).map(|(algorithm, hash)| PyBytes::new(py, hash.digest(algorithm))))
    }

    /// Returns the free blocks in the order in which they will be handed out.
    fn free_order(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(ids(&self.run(py, LONG, |pool| Ok(pool.free_order()))?))
    }

    /// Returns the cached-free blocks in the order in which they would be evicted.
    fn eviction_order(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(ids(&self.run(py, LONG, |pool| Ok(pool.eviction_order()))?))
    }

    /// Returns the events since the last call, and how many were lost before them.
    fn take_events<'py>(&self, py: Python<'py>) -> PyResult<Events<'py>> {
        events(py, &self.get(py, |pool| pool.apply(op::TakeEvents))?)
    }

    /// Hangs a payload on what each block holds, until the content leaves the block.
    fn set_payloads(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        payloads: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (named, hung) = (blocks(block_ids)?, payloads::list(payloads)?);
        // They are in no journal: no answer that one checks depends on them.
        let set = |pool: &mut BlockPool| pool.set_payloads(&named, hung);
        self.run(py, named.len(), |pool| Ok(pool.unrecorded(set)))?.or_raise(py)
    }

    /// Returns the payloads of contents that have left their blocks since the last call.
    fn take_evicted<'py>(&self, py: Python<'py>) -> PyResult<Vec<payloads::Tuple<'py>>> {
        let gone = self.get(py, |pool| pool.unrecorded(BlockPool::take_evicted))?;
        gone.into_iter().map(|one| payloads::tuple(py, one)).collect()
    }

    /// Returns the pool's counters and gauges.
    fn stats(&self, py: Python<'_>) -> PyResult<PyPoolStats> {
        Ok(self.get(py, |pool| pool.stats())?.into())
    }

    /// Returns how far the journal has come, or None without one.
    fn journal_stats(&self, py: Python<'_>) -> PyResult<Option<PyJournalStats>> {
        self.get(py, |pool| pool.journaled()?.journal().map(Into::into))
    }

    /// Writes what the journal has collected: what a crash would lose.
    fn flush_journal(&self, py: Python<'_>) -> PyResult<()> {
        journal::wait(py, self.get(py, |pool| pool.journaled()?.start_flush())?);
        let error = self.get(py, |pool| pool.journaled()?.journal()?.error().map(str::to_owned))?;
        journal::check_flushed(py, error)
    }

    /// Returns what a ring holds, as the bytes of a file; None without a ring.
    fn journal_image<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.image(py)?.map(|image| PyBytes::new(py, &image)))
    }

    /// Writes what a ring holds to a new file.
    fn save_journal(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        journal::save(py, self.image(py)?, &path)
    }

    /// One number for the state of the pool, or None without digest=True.
    fn state_digest(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        // Whatever was touched since the last one is counted: as many as there are, at the most.
        self.run(py, LONG, |pool| Ok(pool.unrecorded(BlockPool::state_digest)))
    }

    /// Returns the same digest, counted anew from every block.
    fn state_digest_from_scratch(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, LONG, |pool| Ok(pool.state_digest_from_scratch()))
    }

    /// Checks the next blocks against all that is known of them; a broken invariant poisons the pool.
    fn scrub(&self, py: Python<'_>, blocks: Int) -> PyResult<PyScrubReport> {
        let blocks = count(py, "blocks", blocks)?;
        let tier = if let Held::Tier(_, tier) = &self.held { *tier } else { 0 };
        let scrub = |pool: &mut BlockPool| {
            let mut scrubbers = self.scrubbers.lock().unwrap_or_else(PoisonError::into_inner);
            scrubbers.entry(tier).or_default().scrub(pool, blocks)
        };
        Ok(self.run(py, blocks, |pool| pool.unrecorded(scrub))?.into())
    }

    /// Why the pool refuses all work, if it does.
    #[getter]
    fn poison_reason(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.get(py, |pool| pool.poison_reason().map(ToOwned::to_owned))
    }

    /// Recounts every invariant of the pool and its parts from scratch.
    fn check_invariants(&self, py: Python<'_>) -> PyResult<()> {
        match &self.held {
            Held::Own(_) => self.run(py, LONG, |pool| Ok(pool.check_invariants()))?.or_raise(py),
            Held::Tier(tiers, _) => {
                enter_sized(py, tiers, LONG, |tiers| tiers.check_invariants()).or_raise(py)
            }
        }
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let stats = self.get(py, |pool| pool.stats())?;
        Ok(format!(
            "BlockPool(usable={}, block_size={}, free={}, cached_free={}, active={}, fenced={})",
            stats.usable, stats.block_size, stats.free, stats.cached_free, stats.active, stats.fenced
        ))
    }
}
