//! Bindings of `BlockPool`.

mod facets;
mod found;
mod held;
mod payloads;

use std::sync::Arc;

pub(crate) use facets::{PyPoolClock, PyPoolDiagnose, PyPoolJournal, PyPoolRetention};
pub(crate) use found::PyMatch;
use held::Held;
pub(crate) use held::Scrubbers;
use kvpool::{BlockId, BlockPool, PoolConfig, Ticket, Tiers, Until};
use kvpool_journal::Journaled;
use kvpool_journal::PoolCalls;
use kvpool_observe::{PoolWatch, WatchConfig};
use pyo3::types::{PyList, PyString};

use crate::advice;
use crate::clock::Clock;
use crate::convert::{IdsOut, Int, block, blocks, count, handed_out, is_one_block, only_for, until_of};
use crate::ended;
use crate::enter::{LONG, Locked, enter_sized};
use crate::errors::OrRaise;
use crate::hashing::{ChainArg, PyChainLink, named};
use crate::health::Health;
use crate::journal::{self, PyJournal};
use crate::python::prelude::*;
use crate::retention::{self, Eviction};
use crate::stats::{Events, PyPoolStats, PyProbe, events};

#[pyclass(frozen, module = "kvpool._core.pool", name = "BlockPool")]
pub(crate) struct PyBlockPool {
    held: Held,
    scrubbers: Scrubbers,
    /// Whether the policy has failed, if it is written in Python. `None` for other policies.
    health: Option<Arc<Health>>,
    clock: Clock,
}

/// Converts changes of a block table to pairs of position and block id.
fn changes(changes: &[(usize, BlockId)]) -> Vec<(usize, u32)> {
    changes.iter().map(|&(at, block)| (at, block.get())).collect()
}

fn at_most(py: Python<'_>, max_blocks: Option<Int>) -> PyResult<usize> {
    max_blocks.map_or(Ok(usize::MAX), |max| count(py, "max_blocks", max))
}

#[pymethods]
impl PyBlockPool {
    #[new]
    #[pyo3(
        signature = (
            num_blocks, block_size=16, *, verify="none", duplicates="keep", eviction=None, retention=None,
            advisor=None,
            event_capacity=0, journal=None, digest=false, payloads=false, metrics=false
        ),
        text_signature = "(num_blocks, block_size=16, *, verify='none', duplicates='keep', eviction='lru', \
            retention=None, advisor=None, event_capacity=0, journal=None, digest=False, payloads=False, \
            metrics=False)"
    )]
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

    getters! {
        num_blocks: PyResult<usize> = self.get(py, |pool| pool.num_blocks());
        block_size: PyResult<usize> = self.get(py, |pool| pool.block_size());
        num_available: PyResult<usize> = self.get(py, |pool| pool.num_available());
    }

    // References.

    #[pyo3(signature = (n, *, out=None))]
    fn allocate<'py>(
        &self,
        py: Python<'py>,
        n: Int,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let n = count(py, "n", n)?;
        let out = out.map(|out| IdsOut::of(out, n)).transpose()?;
        let taken = self.run(py, n, |pool| pool.allocate(n))?;
        handed_out(py, &taken, out)
    }

    fn acquire(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
        if block_ids.cast_exact::<PyList>().is_err() {
            if let Ok(found) = block_ids.cast_exact::<PyMatch>() {
                let found = &found.get().0;
                return self.run(py, found.len(), |pool| pool.acquire_match(found)).map(|()| None);
            }
            if let Ok(link) = block_ids.cast_exact::<PyChainLink>() {
                let link = &link.get().0;
                return Ok(self.run(py, 0, |pool| pool.acquire_registered(link))?.map(BlockId::get));
            }
        }
        let held = blocks(block_ids)?;
        self.run(py, held.len(), |pool| pool.acquire(&held)).map(|()| None)
    }

    #[pyo3(signature = (block_ids, *, after_step=None, until=None, tail_first=false))]
    fn release(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        after_step: Option<Int>,
        until: Option<Int>,
        tail_first: bool,
    ) -> PyResult<()> {
        let held = blocks(block_ids)?;
        match until_of(py, after_step, until)? {
            Until::Now if tail_first => self.run(py, held.len(), |pool| pool.release_table(&held)),
            Until::Now => self.run(py, held.len(), |pool| pool.release(&held)),
            _ if tail_first => Err(only_for(py, "tail_first", "a release without after_step and until")),
            Until::Step(step) => self.run(py, held.len(), |pool| pool.release_after(&held, step)),
            Until::Ticket(ticket) => self.run(py, held.len(), |pool| pool.release_until(&held, ticket)),
        }
    }

    // Fences and steps.

    fn fence(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, 0, |pool| pool.fence().map(Ticket::get))
    }

    fn end_fence(&self, py: Python<'_>, ticket: Int) -> PyResult<usize> {
        let ticket = Ticket::new(count(py, "ticket", ticket)? as u64);
        self.ending(py, move |pool| pool.end_fence(ticket))
    }

    fn complete_step(&self, py: Python<'_>, step: Int) -> PyResult<usize> {
        let step = count(py, "step", step)? as u64;
        self.ending(py, move |pool| pool.complete_step(step))
    }

    // Methods that register the content of blocks, and lookups.

    #[pyo3(signature = (block_ids, chain, start=0))]
    fn register(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        chain: ChainArg<'_>,
        start: i128,
    ) -> PyResult<usize> {
        let (held, start) = (blocks(block_ids)?, count(py, "start", start)?);
        let registered =
            self.run(py, held.len(), |pool| chain.with(|chain| pool.register(&held, chain, start)))?;
        Ok(registered.blocks)
    }

    #[pyo3(signature = (block_ids, chain, start=0))]
    fn register_table(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        chain: ChainArg<'_>,
        start: i128,
    ) -> PyResult<Vec<(usize, u32)>> {
        let (held, start) = (blocks(block_ids)?, count(py, "start", start)?);
        let changed =
            self.run(py, held.len(), |pool| chain.with(|chain| pool.register_table(&held, chain, start)))?;
        Ok(changes(&changed))
    }

    #[pyo3(signature = (block_ids, chain, start=0))]
    fn adopt(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        chain: ChainArg<'_>,
        start: i128,
    ) -> PyResult<Vec<(usize, u32)>> {
        let (free, start) = (blocks(block_ids)?, count(py, "start", start)?);
        let changed = self.run(py, free.len(), |pool| chain.with(|chain| pool.adopt(&free, chain, start)))?;
        Ok(changes(&changed))
    }

    fn disown(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let held = blocks(block_ids)?;
        self.run(py, held.len(), |pool| pool.disown(&held))
    }

    fn mark_computed(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let held = blocks(block_ids)?;
        self.run(py, held.len(), |pool| pool.mark_computed(&held))
    }

    #[pyo3(signature = (chain, max_blocks=None, *, tenant=None, out=None))]
    fn match_and_acquire<'py>(
        &self,
        py: Python<'py>,
        chain: ChainArg<'_>,
        max_blocks: Option<Int>,
        tenant: Option<Int>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let tenant = tenant.map(|tenant| retention::tenant(py, tenant)).transpose()?;
        let (len, mut max_blocks) = (chain.len(py), at_most(py, max_blocks)?);
        let out = match out {
            None => None,
            Some(out) => {
                // Another thread may append to a cursor before the lookup. The buffer has space only for the
                // blocks that the cursor has now.
                max_blocks = max_blocks.min(len);
                Some(IdsOut::of(out, max_blocks)?)
            }
        };
        let found =
            self.run(py, len, |pool| chain.with(|chain| pool.match_and_acquire(chain, max_blocks, tenant)))?;
        handed_out(py, &found, out)
    }

    #[pyo3(signature = (chain, start=0, max_blocks=None, *, refresh=false))]
    fn lookup(
        &self,
        py: Python<'_>,
        chain: ChainArg<'_>,
        start: i128,
        max_blocks: Option<Int>,
        refresh: bool,
    ) -> PyResult<PyMatch> {
        let (start, max_blocks) = (count(py, "start", start)?, at_most(py, max_blocks)?);
        let found = self.run(py, chain.len(py), |pool| {
            chain.with(|chain| match refresh {
                true => pool.lookup_refreshing(chain, start, max_blocks),
                false => pool.lookup(chain, start, max_blocks),
            })
        });
        Ok(PyMatch(found?))
    }

    #[pyo3(signature = (chain, max_blocks=None))]
    fn probe(&self, py: Python<'_>, chain: ChainArg<'_>, max_blocks: Option<Int>) -> PyResult<PyProbe> {
        let max = at_most(py, max_blocks)?;
        let probe = self.run(py, chain.len(py), |pool| chain.with(|chain| pool.probe(chain, max)));
        Ok(probe?.into())
    }

    // Methods that drop cached content, and that change the size of the pool.

    fn drop_cached(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>) -> PyResult<usize> {
        let victims = blocks(block_ids)?;
        self.run(py, victims.len(), |pool| pool.drop_cached(&victims))
    }

    #[pyo3(signature = (n, *, out=None))]
    fn evict<'py>(
        &self,
        py: Python<'py>,
        n: Int,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let n = count(py, "n", n)?;
        let out = out.map(|out| IdsOut::of(out, n)).transpose()?;
        handed_out(py, &self.run(py, n, |pool| pool.evict(n))?, out)
    }

    fn reset(&self, py: Python<'_>) -> PyResult<usize> {
        match &self.held {
            Held::Own(_) => self.run(py, LONG, |pool| pool.reset()),
            Held::Tier(tiers, _) => enter_sized(py, tiers, LONG, Tiers::reset).or_raise(py),
        }
    }

    fn bump_epoch(&self, py: Python<'_>) -> PyResult<u64> {
        match &self.held {
            Held::Own(_) => self.run(py, LONG, |pool| pool.bump_epoch()),
            Held::Tier(tiers, _) => enter_sized(py, tiers, LONG, Tiers::bump_epoch).or_raise(py),
        }
    }

    fn resize(&self, py: Python<'_>, num_blocks: Int) -> PyResult<()> {
        let num_blocks = count(py, "num_blocks", num_blocks)?;
        self.run(py, LONG, |pool| pool.resize(num_blocks))
    }

    fn register_link(
        &self,
        py: Python<'_>,
        block_id: &Bound<'_, PyAny>,
        link: &Bound<'_, PyChainLink>,
    ) -> PyResult<u32> {
        let (id, link) = (block(block_id)?, &link.get().0);
        Ok(self.run(py, 0, |pool| pool.register_link(id, link))?.get())
    }

    // Methods and attributes for single blocks, events and statistics, and the facets.

    #[pyo3(signature = (block_id, *, out=None))]
    fn ref_count<'py>(
        &self,
        py: Python<'py>,
        block_id: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if is_one_block(block_id)? {
            if out.is_some() {
                return Err(only_for(py, "out", "a batch of blocks"));
            }
            let count = self.look(py, block_id, BlockPool::ref_count)?.unwrap_or_default();
            return Ok(count.into_pyobject(py)?.into_any());
        }
        let named = blocks(block_id)?;
        let out = out.map(|out| IdsOut::of(out, named.len())).transpose()?;
        let counts = self.look_all(py, &named, BlockPool::ref_count)?;
        match out {
            None => Ok(PyList::new(py, counts)?.into_any()),
            Some(out) => Ok(out.write_counts(&counts)?.into_pyobject(py)?.into_any()),
        }
    }

    fn state<'py>(&self, py: Python<'py>, block_id: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        if is_one_block(block_id)? {
            let state = self.look(py, block_id, BlockPool::state)?.map_or("", kvpool::BlockState::name);
            return Ok(PyString::intern(py, state).into_any());
        }
        let states = self.look_all(py, &blocks(block_id)?, BlockPool::state)?;
        let names = states.iter().map(|state| PyString::intern(py, state.name()));
        Ok(PyList::new(py, names)?.into_any())
    }

    fn mark_accessed(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>, time: f64) -> PyResult<()> {
        let accessed = blocks(block_ids)?;
        self.run(py, accessed.len(), |pool| pool.mark_accessed(&accessed, time))
    }

    #[pyo3(signature = (block_ids, *, finish_reason=None, output_tokens=None))]
    fn signal(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        finish_reason: Option<&str>,
        output_tokens: Option<Int>,
    ) -> PyResult<()> {
        let (named, signal) = (blocks(block_ids)?, ended::signal(py, finish_reason, output_tokens)?);
        self.run(py, named.len(), |pool| pool.signal(&named, signal))
    }

    fn take_events<'py>(&self, py: Python<'py>) -> PyResult<Events<'py>> {
        events(py, &self.get(py, |pool| pool.take_events())?)
    }

    fn set_payloads(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        payloads: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (named, hung) = (blocks(block_ids)?, payloads::list(payloads)?);
        // The journal does not record payloads, because they do not affect any result that a replay compares.
        let set = |pool: &mut BlockPool| pool.set_payloads(&named, hung);
        self.run(py, named.len(), |pool| Ok(pool.unrecorded(set)))?.or_raise(py)
    }

    fn take_evicted<'py>(&self, py: Python<'py>) -> PyResult<Vec<payloads::Tuple<'py>>> {
        let gone = self.get(py, |pool| pool.unrecorded(BlockPool::take_evicted))?;
        gone.into_iter().map(|one| payloads::tuple(py, one)).collect()
    }

    fn stats(&self, py: Python<'_>) -> PyResult<PyPoolStats> {
        Ok(self.get(py, |pool| pool.stats())?.into())
    }

    #[getter]
    fn retention(slf: Bound<'_, Self>) -> PyPoolRetention {
        PyPoolRetention(slf.unbind())
    }

    #[getter]
    fn journal(slf: Bound<'_, Self>) -> PyPoolJournal {
        PyPoolJournal(slf.unbind())
    }

    #[getter]
    fn diagnose(slf: Bound<'_, Self>) -> PyPoolDiagnose {
        PyPoolDiagnose(slf.unbind())
    }

    #[getter]
    fn clock(slf: Bound<'_, Self>) -> PyPoolClock {
        PyPoolClock(slf.unbind())
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let stats = self.get(py, |pool| pool.stats())?;
        Ok(format!(
            "BlockPool(usable={}, block_size={}, free={}, cached_free={}, active={}, fenced={})",
            stats.usable, stats.block_size, stats.free, stats.cached_free, stats.active, stats.fenced
        ))
    }
}
