//! `CacheManager`.

mod batch;
pub(crate) mod step;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batch::{Batch, part, token_ranges};
use kvpool::{
    BlockHasher, BlockPool, CacheManager, Computed, HashCursor, Loaded, ManagerConfig, ManagerError,
    PoolImage, RequestRef, Restored, RetentionRange, Rows, SavedBlock, Ticket,
};
use kvpool_journal::{Journaled, ManagerCalls};
use kvpool_observe::{ManagerWatch, ManagerWatchConfig};
use pyo3::types::{PyBytes, PyDict};
use step::PyStep;

use crate::advice;
use crate::clock::Clock;
use crate::convert::{
    ChangesOut, IdsOut, Int, Text, blocks, both, count, counts, handed_out, ids, tokens, too_short, until_of,
};
use crate::ended;
use crate::enter::{LONG, Locked, enter_guarded, enter_measured, enter_sized};
use crate::errors::{OrRaise, ToPyErr};
use crate::explain::{self, PyExplanation};
use crate::groups::{self, PyGroupFit, PyGroupSpec, added, changed};
use crate::hashing::{self, PyExtraKeys, PyHashCursor, key, named};
use crate::health::Health;
use crate::journal::{self, PyJournal, PyJournalStats};
use crate::metrics;
use crate::python::prelude::*;
use crate::request::{RequestIds, request_id, request_ref};
use crate::retention::{self, Eviction, PyHintReport, PyRetentionStats};
use crate::stats::{
    Events, PyAdmission, PyAdmissionFit, PyManagerStats, PyPoolStats, PyProbe, PyRequestInfo, PyScrubReport,
    events,
};
use crate::tiers::{PyTransferPlan, swap_id};

#[pyclass(frozen, module = "kvpool._core.manager", name = "CacheManager")]
pub(crate) struct PyCacheManager {
    inner: Locked<Journaled<CacheManager>>,
    /// The manager's own, so that prompts are hashed without its lock.
    hasher: Arc<BlockHasher>,
    /// The pool's epoch, written with the lock held, so that prompts are hashed without it.
    epoch: AtomicU64,
    /// Of a policy written in Python.
    health: Option<Arc<Health>>,
    /// Whether there are KV-cache groups: changes of block tables name them then.
    grouped: bool,
    clock: Clock,
}

impl PyCacheManager {
    fn run<R: Send>(
        &self,
        py: Python<'_>,
        size: usize,
        call: impl FnOnce(&mut Journaled<CacheManager>) -> Result<R, ManagerError> + Send,
    ) -> PyResult<R> {
        self.enter(py, size, call)?.or_raise(py)
    }

    pub(crate) fn enter<R: Send>(
        &self,
        py: Python<'_>,
        size: usize,
        call: impl FnOnce(&mut Journaled<CacheManager>) -> R + Send,
    ) -> PyResult<R> {
        match self.health {
            Some(_) => enter_guarded(py, &self.inner, call),
            None => Ok(enter_sized(py, &self.inner, size, call)),
        }
    }

    /// What is cached, for a snapshot.
    pub(crate) fn saved_image(&self, py: Python<'_>) -> PyResult<PoolImage> {
        self.run(py, LONG, |manager| CacheManager::image(manager))
    }

    /// Makes a new manager what an image says.
    pub(crate) fn restore_image(
        &self,
        py: Python<'_>,
        image: &PoolImage,
        elapsed: f64,
        agrees: impl FnMut(&SavedBlock) -> bool + Send,
    ) -> PyResult<Restored> {
        self.run(py, LONG, |manager| {
            let restored = manager.restore(image, elapsed, agrees);
            self.epoch.store(manager.pool().epoch(), Ordering::Relaxed);
            restored
        })
    }

    /// Runs an operation whose size only the manager knows.
    fn run_measured<R: Send>(
        &self,
        py: Python<'_>,
        size: impl FnOnce(&CacheManager) -> usize,
        call: impl FnOnce(&mut Journaled<CacheManager>) -> Result<R, ManagerError> + Send,
    ) -> PyResult<R> {
        if self.health.is_some() {
            return self.run(py, 0, call);
        }
        enter_measured(py, &self.inner, |manager| size(manager), call).or_raise(py)
    }

    /// Runs an operation on one request: one on a long sequence is a long call.
    pub(crate) fn run_on<R: Send>(
        &self,
        py: Python<'_>,
        id: RequestRef<'_>,
        call: impl FnOnce(&mut Journaled<CacheManager>) -> Result<R, ManagerError> + Send,
    ) -> PyResult<R> {
        self.run_measured(py, |manager| blocks_of(manager, id), call)
    }

    /// A prompt: hashed already, or tokens to hash now, outside of the lock.
    pub(crate) fn prompt(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
    ) -> PyResult<HashCursor> {
        hashing::prompt(py, &self.hasher, prompt, extra, self.epoch.load(Ordering::Relaxed))
    }
}

/// Blocks of a request, as far as they say how long a call takes.
pub(crate) fn blocks_of(manager: &CacheManager, id: RequestRef<'_>) -> usize {
    manager.request(id).map_or(0, |request| request.tokens / manager.pool().block_size())
}

#[pymethods]
impl PyCacheManager {
    #[new]
    #[pyo3(signature = (
        num_blocks, block_size=16, *, algorithm="sha256", verify="none", key=None, seed=None, duplicates="keep",
        eviction=None, retention=None, advisor=None, explain=None, event_capacity=0, watermark=0.0, host_blocks=0, block_bytes=0,
        groups=None, journal=None, digest=false, scrub_blocks=0, metrics=false
    ), text_signature = "(num_blocks, block_size=16, *, algorithm='sha256', verify='none', key=None, seed=None, duplicates='keep', eviction='lru', retention=None, advisor=None, explain=None, event_capacity=0, watermark=0.0, host_blocks=0, block_bytes=0, groups=None, journal=None, digest=False, scrub_blocks=0, metrics=False)")]
    fn new(
        py: Python<'_>,
        num_blocks: Int,
        block_size: i128,
        algorithm: &str,
        verify: &str,
        key: Option<&[u8]>,
        seed: Option<Text>,
        duplicates: &str,
        eviction: Option<&Bound<'_, PyAny>>,
        retention: Option<&Bound<'_, PyAny>>,
        advisor: Option<&Bound<'_, PyAny>>,
        explain: Option<&Bound<'_, PyAny>>,
        event_capacity: i128,
        watermark: f64,
        host_blocks: i128,
        block_bytes: i128,
        groups: Option<&Bound<'_, PyAny>>,
        journal: Option<&Bound<'_, PyJournal>>,
        digest: bool,
        scrub_blocks: i128,
        metrics: bool,
    ) -> PyResult<Self> {
        let mut config = ManagerConfig {
            num_blocks: count(py, "num_blocks", num_blocks)?,
            block_size: count(py, "block_size", block_size)?,
            algorithm: named(py, algorithm)?,
            verify: named(py, verify)?,
            key: self::key(py, key)?,
            seed: seed.map(|seed| seed.0),
            duplicates: named(py, duplicates)?,
            eviction: kvpool_policies::LRU,
            retention: retention::config(retention)?,
            watermark,
            host_blocks: count(py, "host_blocks", host_blocks)?,
            block_bytes: count(py, "block_bytes", block_bytes)? as u64,
            ..ManagerConfig::default()
        };
        config.groups = groups.map(|groups| groups::groups(groups, config.block_size)).transpose()?;
        let grouped = config.groups.is_some();
        let watch = ManagerWatchConfig {
            event_capacity: count(py, "event_capacity", event_capacity)?,
            digest,
            advisor: advice::config(advisor)?,
            explain: explain::config(explain)?,
            scrub_blocks: count(py, "scrub_blocks", scrub_blocks)?,
            metrics,
            ..ManagerWatchConfig::default()
        };
        let (manager, health) =
            match retention::eviction(py, eviction, config.num_blocks, config.retention.as_ref())? {
                Eviction::Named(policy) => {
                    config.eviction = policy;
                    let manager = match journal {
                        None => py
                            .detach(|| CacheManager::new(config)?.watched(&watch))
                            .map(Journaled::from)
                            .or_raise(py),
                        Some(journal) => {
                            journal.get().record(py, |journal| Journaled::with_watch(config, &watch, journal))
                        }
                    };
                    (manager?, None)
                }
                Eviction::Own(evictor, health) => {
                    journal::refuse_own_policy(py, journal)?;
                    let manager = CacheManager::with_evictor(config, evictor)
                        .and_then(|manager| manager.watched(&watch));
                    (manager.or_raise(py)?.into(), Some(health))
                }
            };
        Ok(Self {
            hasher: manager.hasher().clone(),
            epoch: AtomicU64::default(),
            inner: Locked::new(manager),
            health,
            grouped,
            clock: Clock::default(),
        })
    }

    #[pyo3(signature = (tokens, extra=None))]
    fn prepare(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
    ) -> PyResult<PyHashCursor> {
        Ok(PyHashCursor::new(self.prompt(py, tokens, extra)?))
    }

    #[pyo3(signature = (prompt, extra=None))]
    fn probe(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
    ) -> PyResult<PyProbe> {
        let cursor = self.prompt(py, prompt, extra)?;
        Ok(self.enter(py, cursor.chain().len(), |manager| manager.probe(&cursor))?.or_raise(py)?.into())
    }

    #[pyo3(signature = (prompt, extra=None, *, allocate_tokens=None, external_tokens=None, reuse=true), text_signature = "($self, prompt, extra=None, *, allocate_tokens=None, external_tokens=0, reuse=True)")]
    fn fit(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
        allocate_tokens: Option<Int>,
        external_tokens: Option<Int>,
        reuse: bool,
    ) -> PyResult<PyAdmissionFit> {
        let part = part(py, allocate_tokens, external_tokens, reuse)?;
        let cursor = self.prompt(py, prompt, extra)?;
        Ok(self.enter(py, cursor.chain().len(), |manager| manager.fit(&cursor, part))?.or_raise(py)?.into())
    }

    #[pyo3(signature = (prompt, extra=None, *, allocate_tokens=None, external_tokens=None, reuse=true), text_signature = "($self, prompt, extra=None, *, allocate_tokens=None, external_tokens=0, reuse=True)")]
    fn fit_groups(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
        allocate_tokens: Option<Int>,
        external_tokens: Option<Int>,
        reuse: bool,
    ) -> PyResult<Vec<PyGroupFit>> {
        let part = part(py, allocate_tokens, external_tokens, reuse)?;
        let cursor = self.prompt(py, prompt, extra)?;
        let fits = self.enter(py, cursor.chain().len(), |manager| manager.fit_groups(&cursor, part))?;
        Ok(fits.or_raise(py)?.into_iter().map(Into::into).collect())
    }

    fn next_checkpoint(&self, py: Python<'_>, request_id: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let id = request_ref(request_id)?;
        self.enter(py, 0, |manager| manager.next_checkpoint(id))?.or_raise(py)
    }

    fn extend_encoder<'py>(
        &self,
        py: Python<'py>,
        request_id: &Bound<'py, PyAny>,
        num_tokens: Int,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (id, num_tokens) = (request_ref(request_id)?, count(py, "num_tokens", num_tokens)?);
        let size = num_tokens / self.hasher.block_size();
        let changes = self.run(py, size, |manager| manager.extend_encoder(id, num_tokens))?;
        changed(py, &changes, self.grouped)
    }

    #[pyo3(signature = (request_id, prompt, extra=None, *, tenant=None, no_cache=false, retention=None, allocate_tokens=None, external_tokens=None, reuse=true, out=None), text_signature = "($self, request_id, prompt, extra=None, *, tenant=None, no_cache=False, retention=None, allocate_tokens=None, external_tokens=0, reuse=True, out=None)")]
    fn admit(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        prompt: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
        tenant: Option<Int>,
        no_cache: bool,
        retention: Option<&Bound<'_, PyAny>>,
        allocate_tokens: Option<Int>,
        external_tokens: Option<Int>,
        reuse: bool,
        out: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyAdmission> {
        let part = part(py, allocate_tokens, external_tokens, reuse)?;
        let options = retention::options(py, part, tenant, no_cache, retention)?;
        let id = self::request_id(request_id)?;
        let cursor = self.prompt(py, prompt, extra)?;
        let size = cursor.num_tokens().div_ceil(cursor.hasher().block_size());
        let out = out.map(IdsOut::new).transpose()?;
        let (counted, room) = (out.is_some(), out.as_ref().map_or(0, IdsOut::room));
        let (needed, admitted) = self.enter(py, size, |manager| {
            // An error here is one of the admission, which reports it.
            let needed = if counted { manager.admitted_entries(&cursor, part).unwrap_or(0) } else { 0 };
            (needed, (needed <= room).then(|| manager.admit(id, cursor, &options)))
        })?;
        let Some(admitted) = admitted else { return Err(too_short(py, room, needed)) };
        let admission = admitted.map_err(|refused| refused.error.to_py_err(py))?;
        let Some(out) = out else { return Ok((&admission).into()) };
        out.write(&admission.block_ids)?;
        Ok(PyAdmission::written(&admission))
    }

    #[pyo3(signature = (request_ids, token_ids, *, commit=false))]
    fn append<'py>(
        &self,
        py: Python<'py>,
        request_ids: &Bound<'py, PyAny>,
        token_ids: &Bound<'py, PyAny>,
        commit: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let named = RequestIds::new(request_ids)?;
        let requests = named.refs()?;
        let tokens = tokens(token_ids)?;
        let computed = if commit { Computed::AllButLast } else { Computed::Nothing };
        let rows = Rows { requests: &requests, tokens: &tokens, computed, ..Rows::default() };
        let changes = self.run(py, requests.len(), |manager| manager.append(&rows))?;
        added(py, &changes, self.grouped)
    }

    #[pyo3(signature = (request_ids, token_ids, offsets=None, *, commit=false, computed=None, lookahead=None, covered=None, out=None), text_signature = "($self, request_ids, token_ids, offsets=None, *, commit=False, computed=None, lookahead=0, covered=None, out=None)")]
    fn append_ragged<'py>(
        &self,
        py: Python<'py>,
        request_ids: &Bound<'py, PyAny>,
        token_ids: &Bound<'py, PyAny>,
        offsets: Option<&Bound<'py, PyAny>>,
        commit: bool,
        computed: Option<&Bound<'py, PyAny>>,
        lookahead: Option<Int>,
        covered: Option<&Bound<'py, PyAny>>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let batch = Batch::new(request_ids, token_ids, offsets, lookahead, covered)?;
        let computed = computed.map(counts).transpose()?;
        if commit && computed.is_some() {
            return Err(both(py, "commit", "computed"));
        }
        let said = if commit { Computed::AllButLast } else { Computed::Nothing };
        let computed = computed.as_deref().map_or(said, Computed::Counts);
        let out = out.map(|out| ChangesOut::new(out, self.grouped)).transpose()?;
        let requests = batch.requests.refs()?;
        let rows =
            Rows { computed, most_changes: out.as_ref().map(ChangesOut::most), ..batch.rows(&requests) };
        let size = requests.len() + rows.tokens.len();
        let changes = self.run(py, size, |manager| manager.append(&rows))?;
        match out {
            Some(out) => Ok(out.write(&changes)?.into_pyobject(py)?.into_any()),
            None => {
                let rows: Vec<_> = changes.iter().map(|change| change.row).collect();
                let positions: Vec<_> = changes.iter().map(|change| change.index).collect();
                let blocks: Vec<_> = changes.iter().map(|change| change.block.get()).collect();
                if !self.grouped {
                    return Ok((rows, positions, blocks).into_pyobject(py)?.into_any());
                }
                let groups: Vec<_> = changes.iter().map(|change| change.group).collect();
                Ok((rows, positions, blocks, groups).into_pyobject(py)?.into_any())
            }
        }
    }

    fn extend<'py>(
        &self,
        py: Python<'py>,
        request_id: &Bound<'py, PyAny>,
        num_tokens: Int,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (id, num_tokens) = (request_ref(request_id)?, count(py, "num_tokens", num_tokens)?);
        changed(py, &self.run_on(py, id, |manager| manager.extend(id, num_tokens))?, self.grouped)
    }

    #[pyo3(signature = (request_id, loaded_tokens=None, *, failed=None))]
    fn external_done(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        loaded_tokens: Option<Int>,
        failed: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let id = request_ref(request_id)?;
        let ranges = failed.map(token_ranges).transpose()?;
        let loaded = match (loaded_tokens, &ranges) {
            (None, None) => Loaded::All,
            (Some(tokens), None) => Loaded::First(count(py, "loaded_tokens", tokens)?),
            (None, Some(ranges)) => Loaded::AllBut(ranges),
            (Some(_), Some(_)) => return Err(both(py, "loaded_tokens", "failed")),
        };
        self.run_on(py, id, |manager| manager.external_done(id, loaded))
    }

    fn fence(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, 0, |manager| manager.fence().map(Ticket::get))
    }

    fn end_fence(&self, py: Python<'_>, ticket: Int) -> PyResult<usize> {
        let ticket = Ticket::new(count(py, "ticket", ticket)? as u64);
        let fenced = |manager: &CacheManager| manager.pool().num_fenced();
        self.run_measured(py, fenced, |manager| manager.end_fence(ticket))
    }

    #[pyo3(signature = (request_id, token_ids, *, lookahead=0, multimodal=None))]
    fn append_tokens<'py>(
        &self,
        py: Python<'py>,
        request_id: &Bound<'py, PyAny>,
        token_ids: &Bound<'py, PyAny>,
        lookahead: i128,
        multimodal: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (id, tokens) = (request_ref(request_id)?, tokens(token_ids)?);
        let items = hashing::multimodal_items(multimodal)?;
        let lookahead = count(py, "lookahead", lookahead)?;
        let append =
            |manager: &mut Journaled<CacheManager>| manager.append_tokens(id, &tokens, &items, lookahead);
        let size = tokens.len().saturating_add(lookahead / self.hasher.block_size());
        changed(py, &self.run(py, size, append)?, self.grouped)
    }

    fn fork(
        &self,
        py: Python<'_>,
        parent_id: &Bound<'_, PyAny>,
        child_id: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (parent, child) = (request_ref(parent_id)?, request_id(child_id)?);
        self.run_on(py, parent, |manager| manager.fork(parent, child.as_ref()))
    }

    fn fork_batch(
        &self,
        py: Python<'_>,
        parent_ids: &Bound<'_, PyAny>,
        child_ids: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (parents, children) = (RequestIds::new(parent_ids)?, RequestIds::new(child_ids)?);
        let (parents, children) = (parents.refs()?, children.refs()?);
        self.run(py, LONG, |manager| manager.fork_batch((&parents, &children)))
    }

    #[pyo3(signature = (request_id, num_tokens, *, after_step=None, until=None))]
    fn truncate(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        num_tokens: Int,
        after_step: Option<Int>,
        until: Option<Int>,
    ) -> PyResult<()> {
        let (id, num_tokens) = (request_ref(request_id)?, count(py, "num_tokens", num_tokens)?);
        let until = until_of(py, after_step, until)?;
        self.run_on(py, id, |manager| manager.truncate(id, num_tokens, until))
    }

    #[pyo3(signature = (request_ids, num_tokens, *, after_step=None, until=None))]
    fn truncate_batch(
        &self,
        py: Python<'_>,
        request_ids: &Bound<'_, PyAny>,
        num_tokens: &Bound<'_, PyAny>,
        after_step: Option<Int>,
        until: Option<Int>,
    ) -> PyResult<()> {
        let named = RequestIds::new(request_ids)?;
        let (requests, num_tokens) = (named.refs()?, counts(num_tokens)?);
        let until = until_of(py, after_step, until)?;
        self.run(py, requests.len(), |manager| manager.truncate_batch(&requests, &num_tokens, until))
    }

    fn trim_window(&self, py: Python<'_>, request_id: &Bound<'_, PyAny>, window: Int) -> PyResult<usize> {
        let (id, window) = (request_ref(request_id)?, count(py, "window", window)?);
        self.run_on(py, id, |manager| manager.trim_window(id, window))
    }

    fn take_plan(&self, py: Python<'_>) -> PyResult<PyTransferPlan> {
        let planned = |manager: &CacheManager| manager.tiers().num_planned();
        Ok(PyTransferPlan(self.run_measured(py, planned, ManagerCalls::take_plan)?))
    }

    fn begin_swap_out(&self, py: Python<'_>, request_ids: &Bound<'_, PyAny>) -> PyResult<u64> {
        let named = RequestIds::new(request_ids)?;
        let group = named.refs()?;
        Ok(self.run(py, LONG, |manager| manager.begin_swap_out(&group))?.get())
    }

    fn begin_swap_in(&self, py: Python<'_>, request_ids: &Bound<'_, PyAny>) -> PyResult<u64> {
        let named = RequestIds::new(request_ids)?;
        let group = named.refs()?;
        Ok(self.run(py, LONG, |manager| manager.begin_swap_in(&group))?.get())
    }

    fn fit_swap_out(&self, py: Python<'_>, request_ids: &Bound<'_, PyAny>) -> PyResult<&'static str> {
        let named = RequestIds::new(request_ids)?;
        let group = named.refs()?;
        Ok(self.run(py, LONG, |manager| manager.fit_swap_out(&group))?.name())
    }

    fn fit_swap_in(&self, py: Python<'_>, request_ids: &Bound<'_, PyAny>) -> PyResult<&'static str> {
        let named = RequestIds::new(request_ids)?;
        let group = named.refs()?;
        Ok(self.run(py, LONG, |manager| manager.fit_swap_in(&group))?.name())
    }

    fn complete_swap<'py>(&self, py: Python<'py>, swap: Int) -> PyResult<Bound<'py, PyDict>> {
        let id = swap_id(py, swap)?;
        let pairs = self.run(py, LONG, |manager| manager.complete_swap(id))?;
        let out = PyDict::new(py);
        pairs.iter().try_for_each(|(src, dst)| out.set_item(src.get(), dst.get()))?;
        Ok(out)
    }

    fn abort_swap(&self, py: Python<'_>, swap: Int) -> PyResult<()> {
        let id = swap_id(py, swap)?;
        self.run(py, LONG, |manager| manager.abort_swap(id))
    }

    fn host_stats(&self, py: Python<'_>) -> PyResult<Option<PyPoolStats>> {
        let host = |manager: &mut Journaled<CacheManager>| manager.tiers().pool(1).ok().map(BlockPool::stats);
        Ok(self.enter(py, 0, host)?.map(Into::into))
    }

    fn commit(&self, py: Python<'_>, request_id: &Bound<'_, PyAny>, computed_tokens: Int) -> PyResult<usize> {
        let (id, computed) = (request_ref(request_id)?, count(py, "computed_tokens", computed_tokens)?);
        self.run_on(py, id, |manager| manager.commit(id, computed))
    }

    fn commit_batch(
        &self,
        py: Python<'_>,
        request_ids: &Bound<'_, PyAny>,
        computed_tokens: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let named = RequestIds::new(request_ids)?;
        let requests = named.refs()?;
        let computed = counts(computed_tokens)?;
        self.run(py, requests.len(), |manager| manager.commit_batch(&requests, &computed))
    }

    #[pyo3(signature = (request_id, *, after_step=None, until=None, finish_reason=None, output_tokens=None))]
    fn release(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        after_step: Option<Int>,
        until: Option<Int>,
        finish_reason: Option<&str>,
        output_tokens: Option<Int>,
    ) -> PyResult<()> {
        let (id, until) = (request_ref(request_id)?, until_of(py, after_step, until)?);
        if finish_reason.is_some() || output_tokens.is_some() {
            let signal = ended::signal(py, finish_reason, output_tokens)?;
            return self.run_on(py, id, |manager| manager.release_batch_with(&[(id, signal)], until));
        }
        self.run_on(py, id, |manager| manager.release(id, until))
    }

    #[pyo3(signature = (request_ids, *, after_step=None, until=None, finish_reasons=None, output_tokens=None))]
    fn release_batch(
        &self,
        py: Python<'_>,
        request_ids: &Bound<'_, PyAny>,
        after_step: Option<Int>,
        until: Option<Int>,
        finish_reasons: Option<&Bound<'_, PyAny>>,
        output_tokens: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let named = RequestIds::new(request_ids)?;
        let (requests, until) = (named.refs()?, until_of(py, after_step, until)?);
        if let Some(signals) = ended::signals(py, requests.len(), finish_reasons, output_tokens)? {
            let ended: Vec<_> = requests.iter().copied().zip(signals).collect();
            return self.run(py, LONG, |manager| manager.release_batch_with(&ended, until));
        }
        self.run(py, LONG, |manager| manager.release_batch(&requests, until))
    }

    #[pyo3(signature = (request_id, *, after_step=None, until=None))]
    fn end_session(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        after_step: Option<Int>,
        until: Option<Int>,
    ) -> PyResult<PyHintReport> {
        let (id, until) = (request_ref(request_id)?, until_of(py, after_step, until)?);
        Ok(self.run_on(py, id, |manager| manager.end_session(id, until))?.into())
    }

    fn retain(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        ranges: &Bound<'_, PyAny>,
    ) -> PyResult<PyHintReport> {
        let (id, ranges) = (request_ref(request_id)?, retention::ranges(ranges)?);
        Ok(self.run_on(py, id, |manager| manager.retain(id, &ranges))?.into())
    }

    fn set_tenant(&self, py: Python<'_>, request_id: &Bound<'_, PyAny>, tenant: Int) -> PyResult<()> {
        let (id, tenant) = (request_ref(request_id)?, retention::tenant(py, tenant)?);
        self.run_on(py, id, |manager| manager.set_tenant(id, tenant))
    }

    #[pyo3(signature = (request_id, start_token=None), text_signature = "($self, request_id, start_token=0)")]
    fn end_of_life(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        start_token: Option<Int>,
    ) -> PyResult<PyHintReport> {
        let id = request_ref(request_id)?;
        let start = start_token.map_or(Ok(0), |start| count(py, "start_token", start))?;
        Ok(self.run_on(py, id, |manager| manager.retain(id, &[RetentionRange::end_of_life(start)]))?.into())
    }

    #[pyo3(signature = (prompt, ranges, extra=None))]
    fn retain_prefix(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        ranges: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
    ) -> PyResult<PyHintReport> {
        let (ranges, cursor) = (retention::ranges(ranges)?, self.prompt(py, prompt, extra)?);
        let size = cursor.chain().len();
        Ok(self.run(py, size, |manager| manager.retain_prefix(&cursor, &ranges))?.into())
    }

    #[pyo3(signature = (prompt, start_token=None, extra=None), text_signature = "($self, prompt, start_token=0, extra=None)")]
    fn end_of_life_of(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        start_token: Option<Int>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
    ) -> PyResult<PyHintReport> {
        let start = start_token.map_or(Ok(0), |start| count(py, "start_token", start))?;
        let cursor = self.prompt(py, prompt, extra)?;
        let size = cursor.chain().len();
        Ok(self
            .run(py, size, |manager| manager.retain_prefix(&cursor, &[RetentionRange::end_of_life(start)]))?
            .into())
    }

    fn advance_time(&self, py: Python<'_>, now: f64) -> PyResult<usize> {
        self.run(py, 0, |manager| manager.advance_time(now))
    }

    fn tenant_blocks(&self, py: Python<'_>, tenant: Int) -> PyResult<usize> {
        let tenant = retention::tenant(py, tenant)?;
        self.enter(py, 0, |manager| manager.tenant_blocks(tenant))?.or_raise(py)
    }

    fn retention_stats(&self, py: Python<'_>) -> PyResult<Option<PyRetentionStats>> {
        Ok(self.enter(py, 0, |manager| manager.retention_stats())?.map(Into::into))
    }

    fn advice<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let advice = self.enter(py, LONG, |manager| manager.advice())?;
        advice.map(|advice| advice::dict(py, &advice)).transpose()
    }

    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let tiers = self.enter(py, 0, |manager| manager.metrics())?;
        tiers.iter().map(|tier| metrics::dict(py, tier)).collect()
    }

    fn observe_time(&self, py: Python<'_>, now: f64) -> PyResult<()> {
        self.clock.observe(py, now, || {
            self.enter(py, 0, |manager| manager.unrecorded(|manager| manager.observe_time(now)))?.or_raise(py)
        })
    }

    fn explain(&self, py: Python<'_>, request_id: &Bound<'_, PyAny>) -> PyResult<PyExplanation> {
        let id = request_ref(request_id)?;
        Ok(PyExplanation(self.enter(py, 0, |manager| manager.explain(id))?.or_raise(py)?))
    }

    fn check_policy(&self, py: Python<'_>) -> PyResult<()> {
        self.health.as_ref().map_or(Ok(()), |health| health.check(py))
    }

    #[pyo3(signature = (request_id, *, after_step=None, until=None))]
    fn preempt(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        after_step: Option<Int>,
        until: Option<Int>,
    ) -> PyResult<()> {
        let (id, until) = (request_ref(request_id)?, until_of(py, after_step, until)?);
        self.run_on(py, id, |manager| manager.preempt(id, until))
    }

    #[pyo3(signature = (request_id, *, allocate_tokens=None, external_tokens=None, reuse=true), text_signature = "($self, request_id, *, allocate_tokens=None, external_tokens=0, reuse=True)")]
    fn resume(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        allocate_tokens: Option<Int>,
        external_tokens: Option<Int>,
        reuse: bool,
    ) -> PyResult<PyAdmission> {
        let (id, part) = (request_ref(request_id)?, part(py, allocate_tokens, external_tokens, reuse)?);
        Ok((&self.run_on(py, id, |manager| manager.resume(id, part))?).into())
    }

    fn complete_step(&self, py: Python<'_>, step: Int) -> PyResult<usize> {
        let step = count(py, "step", step)? as u64;
        let fenced = |manager: &CacheManager| manager.pool().num_fenced();
        self.run_measured(py, fenced, |manager| manager.complete_step(step))
    }

    fn plan_step(slf: Bound<'_, Self>) -> PyResult<PyStep> {
        Self::begin_step(slf)
    }

    #[pyo3(signature = (request_id, *, out=None, group=None), text_signature = "($self, request_id, *, out=None, group=0)")]
    fn block_ids<'py>(
        &self,
        py: Python<'py>,
        request_id: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        group: Option<Int>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let id = request_ref(request_id)?;
        let group = group.map_or(Ok(0), |group| count(py, "group", group))?;
        let table = self.run_on(py, id, |manager| manager.group_table(id, group).map(<[_]>::to_vec))?;
        match out {
            None => Ok(ids(&table).into_pyobject(py)?.into_any()),
            Some(out) => Ok(IdsOut::of(out, table.len())?.write(&table)?.into_pyobject(py)?.into_any()),
        }
    }

    fn cursor(&self, py: Python<'_>, request_id: &Bound<'_, PyAny>) -> PyResult<PyHashCursor> {
        let id = request_ref(request_id)?;
        Ok(PyHashCursor::new(self.run_on(py, id, |manager| manager.cursor(id).cloned())?))
    }

    fn request(&self, py: Python<'_>, request_id: &Bound<'_, PyAny>) -> PyResult<PyRequestInfo> {
        let id = request_ref(request_id)?;
        Ok(self.enter(py, 0, |manager| manager.request(id))?.or_raise(py)?.into())
    }

    fn bump_epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, LONG, |manager| {
            let bumped = manager.bump_epoch();
            self.epoch.store(manager.pool().epoch(), Ordering::Relaxed);
            bumped
        })
    }

    fn reset(&self, py: Python<'_>) -> PyResult<usize> {
        self.run(py, LONG, ManagerCalls::reset)
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
        handed_out(py, &self.run(py, n, |manager| manager.evict(n))?, out)
    }

    fn drop_cached(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>) -> PyResult<usize> {
        let victims = blocks(block_ids)?;
        self.run(py, victims.len(), |manager| manager.drop_cached(&victims))
    }

    fn resize(&self, py: Python<'_>, num_blocks: Int) -> PyResult<()> {
        let num_blocks = count(py, "num_blocks", num_blocks)?;
        self.run(py, LONG, |manager| manager.resize(num_blocks))
    }

    fn take_events<'py>(&self, py: Python<'py>) -> PyResult<Events<'py>> {
        let batch = self.enter(py, 0, ManagerCalls::take_events)?;
        events(py, &batch)
    }

    fn stats(&self, py: Python<'_>) -> PyResult<PyManagerStats> {
        let (stats, misses) = self.enter(py, 0, |manager| (manager.stats(), manager.misses()))?;
        Ok(PyManagerStats::new(stats, misses))
    }

    fn journal_stats(&self, py: Python<'_>) -> PyResult<Option<PyJournalStats>> {
        self.enter(py, 0, |manager| manager.journal().map(Into::into))
    }

    fn flush_journal(&self, py: Python<'_>) -> PyResult<()> {
        journal::wait(py, self.enter(py, 0, Journaled::start_flush)?);
        let error = self.enter(py, 0, |manager| manager.journal()?.error().map(str::to_owned))?;
        journal::check_flushed(py, error)
    }

    fn journal_image<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.enter(py, LONG, Journaled::journal_image)?.map(|image| PyBytes::new(py, &image)))
    }

    fn save_journal(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        journal::save(py, self.enter(py, LONG, Journaled::journal_image)?, &path)
    }

    getters! {
        num_blocks: PyResult<usize> = self.enter(py, 0, |manager| manager.pool().num_blocks());
        block_size: usize = self.hasher.block_size();
        num_groups: PyResult<usize> = self.enter(py, 0, |manager| manager.num_groups());
        num_available: PyResult<usize> = self.enter(py, 0, |manager| manager.pool().num_available());
        epoch: PyResult<u64> = self.enter(py, 0, |manager| manager.pool().epoch());
    }

    #[getter]
    fn groups(&self, py: Python<'_>) -> PyResult<Vec<PyGroupSpec>> {
        self.enter(py, 0, |manager| {
            let specs = manager.groups().map_or(&[][..], kvpool::groups::Groups::specs);
            specs.iter().copied().map(PyGroupSpec).collect()
        })
    }

    fn free_order(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(ids(&self.enter(py, LONG, |manager| manager.pool().free_order())?))
    }

    fn eviction_order(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(ids(&self.enter(py, LONG, |manager| manager.pool().eviction_order())?))
    }

    fn state_digest(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.enter(py, LONG, |manager| manager.unrecorded(ManagerWatch::state_digest))
    }

    fn state_digest_from_scratch(&self, py: Python<'_>) -> PyResult<u64> {
        self.enter(py, LONG, |manager| manager.state_digest_from_scratch())
    }

    fn scrub(&self, py: Python<'_>, blocks: Int) -> PyResult<PyScrubReport> {
        let blocks = count(py, "blocks", blocks)?;
        Ok(self.run(py, blocks, |manager| manager.unrecorded(|manager| manager.scrub(blocks)))?.into())
    }

    #[getter]
    fn poison_reason(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.enter(py, 0, |manager| manager.poison_reason().map(ToOwned::to_owned))
    }

    fn check_invariants(&self, py: Python<'_>) -> PyResult<()> {
        self.enter(py, LONG, |manager| manager.check_invariants())?.or_raise(py)
    }

    fn __contains__(&self, py: Python<'_>, request_id: &Bound<'_, PyAny>) -> PyResult<bool> {
        let id = request_ref(request_id)?;
        self.enter(py, 0, |manager| manager.contains(id))
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let stats = self.enter(py, 0, |manager| manager.stats())?;
        let settled = stats.running + stats.preempted + stats.swapped;
        Ok(settled + stats.moving + stats.loading + stats.releasing)
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let stats = self.enter(py, 0, |manager| manager.stats())?;
        Ok(format!(
            "CacheManager(running={}, preempted={}, available={} of {} blocks)",
            stats.running,
            stats.preempted,
            stats.pool.available(),
            stats.pool.usable
        ))
    }
}
