//! Bindings of `CacheManager`.

mod batch;
mod facets;
pub(crate) mod step;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batch::{Batch, part, token_ranges};
pub(crate) use facets::{
    PyManagerClock, PyManagerDiagnose, PyManagerJournal, PyManagerRetention, PyManagerSwaps,
};
use kvpool::{
    BlockHasher, CacheManager, Computed, HashCursor, Loaded, ManagerConfig, ManagerError, PoolImage,
    RequestRef, Restored, Rows, SavedBlock, Ticket,
};
use kvpool_journal::{Journaled, ManagerCalls};
use kvpool_observe::{ManagerWatch, ManagerWatchConfig};
use step::PyStep;

use crate::advice;
use crate::argument::{take, take_count};
use crate::clock::Clock;
use crate::convert::{
    ChangesOut, IdsOut, Int, Text, blocks, both, count, counts, handed_out, ids, only_for, tokens, too_short,
    until_of,
};
use crate::ended;
use crate::enter::{LONG, Locked, enter_guarded, enter_measured, enter_sized};
use crate::errors::{OrRaise, ToPyErr};
use crate::explain::{self, PyExplanation};
use crate::groups::{self, PyGroupFit, PyGroupSpec, added, changed};
use crate::hashing::{self, PyExtraKeys, PyHashCursor, key, named};
use crate::health::Health;
use crate::journal::{self, PyJournal};
use crate::python::prelude::*;
use crate::request::{RequestIds, is_one, is_request, request_id, request_ref};
use crate::retention::{self, Eviction};
use crate::stats::{Events, PyAdmission, PyAdmissionFit, PyManagerStats, PyProbe, PyRequestInfo, events};
use crate::tiers::PyTransferPlan;

/// Number of blocks with known hashes that a call reads before it releases the lock.
const KNOWN_PART: usize = 2048;

#[pyclass(frozen, module = "kvpool._core.manager", name = "CacheManager")]
pub(crate) struct PyCacheManager {
    inner: Locked<Journaled<CacheManager>>,
    /// The hasher of the manager. It is outside of the lock, so that prompts are hashed without locking the
    /// manager.
    hasher: Arc<BlockHasher>,
    /// The pool's epoch. It is written while the lock is held, and read without the lock to hash
    /// prompts.
    epoch: AtomicU64,
    /// Whether the policy has failed, if it is written in Python. `None` for other policies.
    health: Option<Arc<Health>>,
    /// Whether there are KV-cache groups. Changes of block tables then include the group.
    grouped: bool,
    /// Whether the pool keeps the tokens of its blocks.
    keeps_tokens: bool,
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

    /// Returns the records of the cached content, which `save_index` writes to a file.
    pub(crate) fn saved_image(&self, py: Python<'_>) -> PyResult<PoolImage> {
        self.run(py, LONG, |manager| CacheManager::image(manager))
    }

    /// Restores the cached content of a new manager from the records in a file of `save_index`.
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

    /// Runs an operation whose size `size` computes from the locked manager.
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

    /// Runs an operation on one request. If the request has many blocks, it runs without the interpreter.
    pub(crate) fn run_on<R: Send>(
        &self,
        py: Python<'_>,
        id: RequestRef<'_>,
        call: impl FnOnce(&mut Journaled<CacheManager>) -> Result<R, ManagerError> + Send,
    ) -> PyResult<R> {
        self.run_measured(py, |manager| blocks_of(manager, id), call)
    }

    /// Returns a copy of a prompt that is hashed already, or hashes its tokens. Hashing does not lock the
    /// manager.
    pub(crate) fn prompt(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
    ) -> PyResult<HashCursor> {
        let epoch = self.epoch.load(Ordering::Relaxed);
        hashing::prompt(py, &self.hasher, prompt, extra, epoch, |cursor, tokens| self.known(cursor, tokens))
    }

    /// Appends the leading tokens whose hashes the pool knows, for a detached thread. Releases the lock
    /// every [`KNOWN_PART`] blocks. Returns the number of appended tokens.
    fn known(&self, cursor: &mut HashCursor, tokens: &[u32]) -> usize {
        // A policy written in Python may call this method while its thread already holds the pool's lock.
        if !self.keeps_tokens || self.health.is_some() {
            return 0;
        }
        let part = KNOWN_PART * self.hasher.block_size();
        let mut known = 0;
        loop {
            let rest = &tokens[known..];
            let append = |manager: &mut Journaled<CacheManager>| {
                manager.pool().append_registered(cursor, rest, KNOWN_PART)
            };
            let appended = self.inner.detached(append);
            known += appended;
            if appended < part {
                return known;
            }
        }
    }

    fn append_to_one<'py>(
        &self,
        py: Python<'py>,
        request_id: &Bound<'py, PyAny>,
        token_ids: &Bound<'py, PyAny>,
        lookahead: Option<Int>,
        multimodal: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (id, tokens) = (request_ref(request_id)?, tokens(token_ids)?);
        let items = hashing::multimodal_items(multimodal)?;
        let lookahead = lookahead.map_or(Ok(0), |slots| count(py, "lookahead", slots))?;
        let append =
            |manager: &mut Journaled<CacheManager>| manager.append_tokens(id, &tokens, &items, lookahead);
        let size = tokens.len().saturating_add(lookahead / self.hasher.block_size());
        changed(py, &self.run(py, size, append)?, self.grouped)
    }
}

/// Refuses extra keys together with a request, because the request has its own.
fn without_extra(py: Python<'_>, extra: Option<&Bound<'_, PyExtraKeys>>) -> PyResult<()> {
    let Some(_) = extra else { return Ok(()) };
    Err(only_for(py, "extra", "the tokens of a prompt: a request has extra keys of its own"))
}

/// Returns the number of blocks of a request, from which the length of a call is estimated. 0 if the request
/// is unknown.
pub(crate) fn blocks_of(manager: &CacheManager, id: RequestRef<'_>) -> usize {
    manager.request(id).map_or(0, |request| request.tokens / manager.pool().block_size())
}

#[pymethods]
impl PyCacheManager {
    #[new]
    #[pyo3(signature = (
        num_blocks, block_size=16, *, algorithm="sha256", verify="none", key=None, seed=None,
        duplicates="keep",
        eviction=None, retention=None, advisor=None, explain=None, event_capacity=0, watermark=0.0,
        host_blocks=0, block_bytes=0,
        groups=None, journal=None, digest=false, scrub_blocks=0, metrics=false,
        keep_tokens=true
    ), text_signature = "(num_blocks, block_size=16, *, algorithm='sha256', verify='none', key=None, \
        seed=None, \
        duplicates='keep', eviction='lru', retention=None, advisor=None, explain=None, \
        event_capacity=0, watermark=0.0, host_blocks=0, block_bytes=0, groups=None, journal=None, \
        digest=False, scrub_blocks=0, metrics=False, keep_tokens=True)")]
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
        keep_tokens: bool,
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
            keep_tokens,
            ..ManagerConfig::default()
        };
        config.groups = groups.map(|groups| groups::groups(groups, config.block_size)).transpose()?;
        let (grouped, keeps_tokens) = (config.groups.is_some(), keep_tokens);
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
                    config.keep_tokens = false; // see `known`
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
            keeps_tokens,
            clock: Clock::default(),
        })
    }

    // Prompts and admissions.

    #[pyo3(signature = (tokens, extra=None))]
    fn prepare(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
    ) -> PyResult<PyHashCursor> {
        if !is_request(tokens)? {
            return Ok(PyHashCursor::new(self.prompt(py, tokens, extra)?));
        }
        without_extra(py, extra)?;
        let id = request_ref(tokens)?;
        Ok(PyHashCursor::new(self.run_on(py, id, |manager| manager.cursor(id).cloned())?))
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

    #[pyo3(
        signature = (
            prompt, extra=None, *, allocate_tokens=None, external_tokens=None, reuse=true, by_group=false
        ),
        text_signature = "($self, prompt, extra=None, *, allocate_tokens=None, external_tokens=0, \
            reuse=True, \
            by_group=False)"
    )]
    fn fit<'py>(
        &self,
        py: Python<'py>,
        prompt: &Bound<'py, PyAny>,
        extra: Option<&Bound<'py, PyExtraKeys>>,
        allocate_tokens: Option<Int>,
        external_tokens: Option<Int>,
        reuse: bool,
        by_group: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let part = part(py, allocate_tokens, external_tokens, reuse)?;
        let cursor = self.prompt(py, prompt, extra)?;
        let size = cursor.chain().len();
        if !by_group {
            let fit = self.enter(py, size, |manager| manager.fit(&cursor, part))?.or_raise(py)?;
            return Ok(Bound::new(py, PyAdmissionFit::from(fit))?.into_any());
        }
        let fits = self.enter(py, size, |manager| manager.fit_groups(&cursor, part))?.or_raise(py)?;
        let fits: Vec<PyGroupFit> = fits.into_iter().map(Into::into).collect();
        fits.into_pyobject(py)
    }

    fn next_checkpoint(&self, py: Python<'_>, request_id: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let id = request_ref(request_id)?;
        self.enter(py, 0, |manager| manager.next_checkpoint(id))?.or_raise(py)
    }

    #[pyo3(
        signature = (
            request_id, prompt, extra=None, *, tenant=None, no_cache=false, retention=None,
            allocate_tokens=None, external_tokens=None, reuse=true, out=None
        ),
        text_signature = "($self, request_id, prompt, extra=None, *, tenant=None, no_cache=False, \
            retention=None, \
            allocate_tokens=None, external_tokens=0, reuse=True, out=None)"
    )]
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
            // An error is ignored here, because `admit` reports it.
            let needed = if counted { manager.admitted_entries(&cursor, part).unwrap_or(0) } else { 0 };
            (needed, (needed <= room).then(|| manager.admit(id, cursor, &options)))
        })?;
        let Some(admitted) = admitted else { return Err(too_short(py, room, needed)) };
        let admission = admitted.map_err(|refused| refused.error.to_py_err(py))?;
        let Some(out) = out else { return Ok((&admission).into()) };
        out.write(&admission.block_ids)?;
        Ok(PyAdmission::written(&admission))
    }

    // Methods for requests that a scheduler calls in its steps.

    #[pyo3(
        signature = (
            request_ids, token_ids, *, commit=false, lookahead=None, multimodal=None
        ),
        text_signature = "($self, request_ids, token_ids, *, commit=False, lookahead=0, multimodal=None)"
    )]
    fn append<'py>(
        &self,
        py: Python<'py>,
        request_ids: &Bound<'py, PyAny>,
        token_ids: &Bound<'py, PyAny>,
        commit: bool,
        lookahead: Option<Int>,
        multimodal: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if is_one(request_ids)? {
            if commit {
                return Err(only_for(py, "commit", "a batch of requests"));
            }
            return self.append_to_one(py, request_ids, token_ids, lookahead, multimodal);
        }
        if multimodal.is_some() {
            return Err(only_for(py, "multimodal", "one request"));
        }
        if lookahead.is_some() {
            return Err(only_for(py, "lookahead", "one request: append_ragged takes it for a batch"));
        }
        let named = RequestIds::new(request_ids)?;
        let requests = named.refs()?;
        let tokens = tokens(token_ids)?;
        let computed = if commit { Computed::AllButLast } else { Computed::Nothing };
        let rows = Rows { requests: &requests, tokens: &tokens, computed, ..Rows::default() };
        let changes = self.run(py, requests.len(), |manager| manager.append(&rows))?;
        added(py, &changes, self.grouped)
    }

    #[pyo3(
        signature = (
            request_ids, token_ids, offsets=None, *, commit=false, computed=None, lookahead=None,
            covered=None, out=None
        ),
        text_signature = "($self, request_ids, token_ids, offsets=None, *, commit=False, computed=None, \
            lookahead=0, \
            covered=None, out=None)"
    )]
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
        let default = if commit { Computed::AllButLast } else { Computed::Nothing };
        let computed = computed.as_deref().map_or(default, Computed::Counts);
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

    #[pyo3(signature = (request_id, num_tokens, *, encoder=false))]
    fn extend<'py>(
        &self,
        py: Python<'py>,
        request_id: &Bound<'py, PyAny>,
        num_tokens: Int,
        encoder: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (id, num_tokens) = (request_ref(request_id)?, count(py, "num_tokens", num_tokens)?);
        let changes = if encoder {
            let size = num_tokens / self.hasher.block_size();
            self.run(py, size, |manager| manager.extend_encoder(id, num_tokens))?
        } else {
            self.run_on(py, id, |manager| manager.extend(id, num_tokens))?
        };
        changed(py, &changes, self.grouped)
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

    fn commit(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        computed_tokens: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        if is_one(request_id)? {
            let (id, computed) = (request_ref(request_id)?, take_count("computed_tokens", computed_tokens)?);
            return self.run_on(py, id, |manager| manager.commit(id, computed));
        }
        let named = RequestIds::new(request_id)?;
        let (requests, computed) = (named.refs()?, counts(computed_tokens)?);
        self.run(py, requests.len(), |manager| manager.commit_batch(&requests, &computed))
    }

    #[pyo3(signature = (request_id, num_tokens, *, after_step=None, until=None))]
    fn truncate(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        num_tokens: &Bound<'_, PyAny>,
        after_step: Option<Int>,
        until: Option<Int>,
    ) -> PyResult<()> {
        let until = until_of(py, after_step, until)?;
        if is_one(request_id)? {
            let (id, num_tokens) = (request_ref(request_id)?, take_count("num_tokens", num_tokens)?);
            return self.run_on(py, id, |manager| manager.truncate(id, num_tokens, until));
        }
        let named = RequestIds::new(request_id)?;
        let (requests, num_tokens) = (named.refs()?, counts(num_tokens)?);
        self.run(py, requests.len(), |manager| manager.truncate_batch(&requests, &num_tokens, until))
    }

    fn fork(
        &self,
        py: Python<'_>,
        parent_id: &Bound<'_, PyAny>,
        child_id: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        if is_one(parent_id)? {
            let (parent, child) = (request_ref(parent_id)?, request_id(child_id)?);
            return self.run_on(py, parent, |manager| manager.fork(parent, child.as_ref()));
        }
        let (parents, children) = (RequestIds::new(parent_id)?, RequestIds::new(child_id)?);
        let (parents, children) = (parents.refs()?, children.refs()?);
        self.run(py, LONG, |manager| manager.fork_batch((&parents, &children)))
    }

    #[pyo3(signature = (request_id, *, after_step=None, until=None, finish_reason=None, output_tokens=None))]
    fn release(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        after_step: Option<Int>,
        until: Option<Int>,
        finish_reason: Option<&Bound<'_, PyAny>>,
        output_tokens: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let until = until_of(py, after_step, until)?;
        if is_one(request_id)? {
            let id = request_ref(request_id)?;
            if finish_reason.is_some() || output_tokens.is_some() {
                let reason = finish_reason.map(|reason| take("finish_reason", reason)).transpose()?;
                let tokens = output_tokens.map(|tokens| take("output_tokens", tokens)).transpose()?;
                let signal = ended::signal(py, reason, tokens)?;
                return self.run_on(py, id, |manager| manager.release_batch_with(&[(id, signal)], until));
            }
            return self.run_on(py, id, |manager| manager.release(id, until));
        }
        let named = RequestIds::new(request_id)?;
        let requests = named.refs()?;
        if let Some(signals) = ended::signals(py, requests.len(), finish_reason, output_tokens)? {
            let ended: Vec<_> = requests.iter().copied().zip(signals).collect();
            return self.run(py, LONG, |manager| manager.release_batch_with(&ended, until));
        }
        self.run(py, LONG, |manager| manager.release_batch(&requests, until))
    }

    // Methods for planned steps, fences and planned copies.

    fn fence(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, 0, |manager| manager.fence().map(Ticket::get))
    }

    fn end_fence(&self, py: Python<'_>, ticket: Int) -> PyResult<usize> {
        let ticket = Ticket::new(count(py, "ticket", ticket)? as u64);
        let fenced = |manager: &CacheManager| manager.pool().num_fenced();
        self.run_measured(py, fenced, |manager| manager.end_fence(ticket))
    }

    fn trim_window(&self, py: Python<'_>, request_id: &Bound<'_, PyAny>, window: Int) -> PyResult<usize> {
        let (id, window) = (request_ref(request_id)?, count(py, "window", window)?);
        self.run_on(py, id, |manager| manager.trim_window(id, window))
    }

    fn take_plan(&self, py: Python<'_>) -> PyResult<PyTransferPlan> {
        let planned = |manager: &CacheManager| manager.tiers().num_planned();
        Ok(PyTransferPlan(self.run_measured(py, planned, ManagerCalls::take_plan)?))
    }

    fn explain(&self, py: Python<'_>, request_id: &Bound<'_, PyAny>) -> PyResult<PyExplanation> {
        let id = request_ref(request_id)?;
        Ok(PyExplanation(self.enter(py, 0, |manager| manager.explain(id))?.or_raise(py)?))
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

    #[pyo3(
        signature = (
            request_id, *, allocate_tokens=None, external_tokens=None, reuse=true
        ),
        text_signature = "($self, request_id, *, allocate_tokens=None, external_tokens=0, reuse=True)"
    )]
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

    // Requests.

    #[pyo3(
        signature = (
            request_id, *, out=None, group=None
        ),
        text_signature = "($self, request_id, *, out=None, group=0)"
    )]
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

    fn request(&self, py: Python<'_>, request_id: &Bound<'_, PyAny>) -> PyResult<PyRequestInfo> {
        let id = request_ref(request_id)?;
        Ok(self.enter(py, 0, |manager| manager.request(id))?.or_raise(py)?.into())
    }

    // Methods that drop cached content, and that change the size of the pool.

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

    // Methods and attributes for events, statistics and settings, and the facets.

    fn take_events<'py>(&self, py: Python<'py>) -> PyResult<Events<'py>> {
        let batch = self.enter(py, 0, ManagerCalls::take_events)?;
        events(py, &batch)
    }

    fn stats(&self, py: Python<'_>) -> PyResult<PyManagerStats> {
        let (stats, misses) = self.enter(py, 0, |manager| (manager.stats(), manager.misses()))?;
        Ok(PyManagerStats::new(stats, misses))
    }

    getters! {
        num_blocks: PyResult<usize> = self.enter(py, 0, |manager| manager.pool().num_blocks());
        block_size: usize = self.hasher.block_size();
        num_available: PyResult<usize> = self.enter(py, 0, |manager| manager.pool().num_available());
    }

    #[getter]
    fn groups(&self, py: Python<'_>) -> PyResult<Vec<PyGroupSpec>> {
        self.enter(py, 0, |manager| {
            let specs = manager.groups().map_or(&[][..], kvpool::groups::Groups::specs);
            specs.iter().copied().map(PyGroupSpec).collect()
        })
    }

    #[getter]
    fn swaps(slf: Bound<'_, Self>) -> PyManagerSwaps {
        PyManagerSwaps(slf.unbind())
    }

    #[getter]
    fn retention(slf: Bound<'_, Self>) -> PyManagerRetention {
        PyManagerRetention(slf.unbind())
    }

    #[getter]
    fn journal(slf: Bound<'_, Self>) -> PyManagerJournal {
        PyManagerJournal(slf.unbind())
    }

    #[getter]
    fn diagnose(slf: Bound<'_, Self>) -> PyManagerDiagnose {
        PyManagerDiagnose(slf.unbind())
    }

    #[getter]
    fn clock(slf: Bound<'_, Self>) -> PyManagerClock {
        PyManagerClock(slf.unbind())
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
