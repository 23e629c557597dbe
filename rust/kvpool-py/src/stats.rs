//! Plain results as frozen classes: statistics, probes, admissions, events.

use std::collections::BTreeMap;

use kvpool::{Admission, AdmissionFit, HashAlgorithm, ManagerStats, PoolStats, Probe, RequestInfo};
use kvpool_observe::{BlockEvent, EventBatch, MissStats, ScrubReport};
use pyo3::types::{PyBytes, PyDict};

use crate::convert::ids;
use crate::explain;
use crate::python::prelude::*;
use crate::retention::{PyHintReport, PyRetentionStats};

/// Counts of a pool, in blocks.
#[pyclass(frozen, get_all, module = "kvpool._core.pool", name = "PoolStats", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyPoolStats {
    /// All blocks but the null block.
    usable: usize,
    /// Blocks without cached content that nobody holds.
    free: usize,
    /// Blocks that nobody holds and a hit can take: evictable, as engines call it.
    cached_free: usize,
    /// Blocks held by at least one block table.
    active: usize,
    /// Blocks that are released, but a running step may still touch them.
    fenced: usize,
    /// Registered blocks, held or not.
    registered: usize,
    /// Registered blocks with a reference: protected, as engines call it.
    registered_active: usize,
    /// Blocks that an allocation can take: free and cached-free.
    available: usize,
    /// Share of the usable blocks that is active or fenced, 0.0 to 1.0.
    usage: f64,
    /// Tokens per block.
    block_size: usize,
    /// The current epoch.
    epoch: u64,
    /// Blocks handed out so far.
    allocated: u64,
    /// Blocks whose cached content made way: for those handed out, or by evict.
    evicted: u64,
    /// Blocks that matched and were acquired.
    hits: u64,
    /// Blocks that were looked up to be acquired and did not match.
    misses: u64,
    /// Hits and registrations refused because other content stood behind an equal hash.
    collisions: u64,
    /// Released duplicates that were freed at once because another copy was cached.
    duplicates_dropped: u64,
}

impl From<PoolStats> for PyPoolStats {
    fn from(stats: PoolStats) -> Self {
        Self {
            usable: stats.usable,
            free: stats.free,
            cached_free: stats.cached_free,
            active: stats.active,
            fenced: stats.fenced,
            registered: stats.registered,
            registered_active: stats.registered_active,
            available: stats.available(),
            usage: stats.usage(),
            block_size: stats.block_size,
            epoch: stats.epoch,
            allocated: stats.allocated,
            evicted: stats.evicted,
            hits: stats.hits,
            misses: stats.misses,
            collisions: stats.collisions,
            duplicates_dropped: stats.duplicates_dropped,
        }
    }
}

#[pymethods]
impl PyPoolStats {
    /// Returns how many tokens fit in this many blocks.
    fn tokens(&self, blocks: usize) -> usize {
        blocks.saturating_mul(self.block_size)
    }

    fn __repr__(&self) -> String {
        let Self { usable, free, cached_free, active, fenced, .. } = self;
        format!(
            "PoolStats(usable={usable}, free={free}, cached_free={cached_free}, active={active}, fenced={fenced})"
        )
    }
}

/// Counts of a manager, in requests and tokens.
#[pyclass(frozen, get_all, module = "kvpool._core.requests", name = "ManagerStats", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyManagerStats {
    /// Requests that hold blocks now.
    running: usize,
    /// Requests that wait to be resumed.
    preempted: usize,
    /// Requests whose blocks are in the host tier.
    swapped: usize,
    /// Requests that a swap moves now.
    moving: usize,
    /// Requests whose external tokens are on their way.
    loading: usize,
    /// Requests that were released while they were moving or loading.
    releasing: usize,
    /// Requests admitted so far.
    admissions: u64,
    /// Prompt tokens of the admitted requests.
    prompt_tokens: u64,
    /// Of the prompt tokens, those whose KV was cached.
    hit_tokens: u64,
    /// Of the prompt tokens, those whose KV a connector brought.
    external_tokens: u64,
    /// Of the prompt tokens, those that the engine had to compute; external ones until they are there.
    computed_tokens: u64,
    /// Admissions and resumptions refused for want of blocks.
    refusals: u64,
    /// Tokens that full attention had cached, and another KV-cache group could not serve.
    unserved_tokens: u64,
    /// States of recurrent groups that were copied to be kept.
    checkpoints: u64,
    /// Tokens appended after admission.
    appended_tokens: u64,
    /// Requests preempted so far.
    preemptions: u64,
    /// Computed tokens that preemptions gave up, cached again or not.
    preempted_tokens: u64,
    /// Requests resumed so far.
    resumptions: u64,
    /// Tokens of the resumed requests.
    resumed_tokens: u64,
    /// Of the resumed tokens, those whose KV was still cached.
    resumed_hit_tokens: u64,
    /// Of the resumed tokens, those whose KV a connector brought.
    resumed_external_tokens: u64,
    /// Requests forked from others.
    forks: u64,
    /// Requests swapped out so far.
    swapped_out: u64,
    /// Requests swapped in so far.
    swapped_in: u64,
    /// Blocks handed out to be copied: by copy-on-write and by swaps.
    copied_blocks: u64,
    /// Bytes of KV per block; 0 if unknown.
    block_bytes: u64,
    /// What became of the hints so far, by blocks.
    hints: PyHintReport,
    /// How many blocks are retained how, or None without retention.
    retention: Option<PyRetentionStats>,
    /// Prompt tokens that were computed, by reason, or None for a manager that does not explain.
    misses: Option<BTreeMap<&'static str, u64>>,
    /// The same of resumed tokens.
    resumed_misses: Option<BTreeMap<&'static str, u64>>,
    /// The pool's own counts.
    pool: PyPoolStats,
}

impl PyManagerStats {
    pub(crate) fn new(stats: ManagerStats, misses: Option<MissStats>) -> Self {
        Self {
            running: stats.running,
            preempted: stats.preempted,
            swapped: stats.swapped,
            moving: stats.moving,
            loading: stats.loading,
            releasing: stats.releasing,
            admissions: stats.admissions,
            prompt_tokens: stats.prompt_tokens,
            hit_tokens: stats.hit_tokens,
            external_tokens: stats.external_tokens,
            computed_tokens: stats.computed_tokens,
            refusals: stats.refusals,
            unserved_tokens: stats.unserved_tokens,
            checkpoints: stats.checkpoints,
            appended_tokens: stats.appended_tokens,
            preemptions: stats.preemptions,
            preempted_tokens: stats.preempted_tokens,
            resumptions: stats.resumptions,
            resumed_tokens: stats.resumed_tokens,
            resumed_hit_tokens: stats.resumed_hit_tokens,
            resumed_external_tokens: stats.resumed_external_tokens,
            forks: stats.forks,
            swapped_out: stats.swapped_out,
            swapped_in: stats.swapped_in,
            copied_blocks: stats.copied_blocks,
            block_bytes: stats.block_bytes,
            hints: stats.hints.into(),
            retention: stats.retention.map(Into::into),
            misses: misses.as_ref().map(|misses| explain::counts(&misses.admitted)),
            resumed_misses: misses.map(|misses| explain::counts(&misses.resumed)),
            pool: stats.pool.into(),
        }
    }
}

#[pymethods]
impl PyManagerStats {
    /// Returns the bytes of KV in this many blocks; 0 if unknown.
    fn bytes(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(self.block_bytes)
    }

    fn __repr__(&self) -> String {
        let Self { running, preempted, prompt_tokens, hit_tokens, .. } = self;
        format!(
            "ManagerStats(running={running}, preempted={preempted}, prompt_tokens={prompt_tokens}, hit_tokens={hit_tokens})"
        )
    }
}

/// What a lookup would find: counts, not ids.
#[pyclass(frozen, get_all, module = "kvpool._core.requests", name = "Probe", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyProbe {
    /// Blocks from the start of the prompt that a lookup would return.
    cached_blocks: usize,
    /// Of the cached blocks, those that nobody holds: acquiring them uses up as many available ones.
    idle_blocks: usize,
    /// Blocks behind the cached ones that are registered and being computed now.
    pending_blocks: usize,
}

impl From<Probe> for PyProbe {
    fn from(probe: Probe) -> Self {
        let Probe { cached_blocks, idle_blocks, pending_blocks } = probe;
        Self { cached_blocks, idle_blocks, pending_blocks }
    }
}

#[pymethods]
impl PyProbe {
    fn __repr__(&self) -> String {
        let Self { cached_blocks, idle_blocks, pending_blocks } = self;
        format!(
            "Probe(cached_blocks={cached_blocks}, idle_blocks={idle_blocks}, pending_blocks={pending_blocks})"
        )
    }
}

/// What a call of a scrubber did.
#[pyclass(frozen, get_all, module = "kvpool._core.requests", name = "ScrubReport", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyScrubReport {
    /// The block that the next call begins with; of a manager, on the device.
    position: usize,
    /// Blocks checked by this call, the null block included, in all tiers.
    blocks: usize,
    /// Requests whose block tables this call has finished checking; 0 for a pool.
    requests: usize,
    /// How often everything has been checked so far.
    passes: u64,
}

impl From<ScrubReport> for PyScrubReport {
    fn from(report: ScrubReport) -> Self {
        let ScrubReport { position, blocks, requests, passes, .. } = report;
        Self { position, blocks, requests, passes }
    }
}

#[pymethods]
impl PyScrubReport {
    fn __repr__(&self) -> String {
        let Self { position, blocks, requests, passes } = self;
        format!("ScrubReport(position={position}, blocks={blocks}, requests={requests}, passes={passes})")
    }
}

/// What an admitted request got.
#[pyclass(frozen, module = "kvpool._core.requests", name = "Admission", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyAdmission {
    /// Leading tokens whose KV is cached: the engine computes from here on.
    #[pyo3(get)]
    cached_tokens: usize,
    /// Leading blocks of the block table that are cached, shared, and not to be written.
    #[pyo3(get)]
    cached_blocks: usize,
    /// Tokens behind the cached ones that a connector loads now.
    #[pyo3(get)]
    external_tokens: usize,
    /// Blocks of the whole block table.
    #[pyo3(get)]
    num_blocks: usize,
    /// The whole block table; empty if it was written to a buffer of the caller.
    #[pyo3(get)]
    block_ids: Vec<u32>,
    /// The block tables of the other KV-cache groups.
    other_tables: Vec<Vec<u32>>,
    /// How far full attention alone would have gone.
    #[pyo3(get)]
    full_tokens: usize,
}

impl PyAdmission {
    /// With `block_ids` left out: they went into the caller's buffer.
    pub(crate) fn written(admission: &Admission) -> Self {
        let Admission { cached_tokens, cached_blocks, external_tokens, full_tokens, .. } = *admission;
        let other_tables = admission.other_tables.iter().map(|table| ids(table)).collect();
        let (num_blocks, block_ids) = (admission.block_ids.len(), Vec::new());
        Self {
            cached_tokens,
            cached_blocks,
            external_tokens,
            num_blocks,
            block_ids,
            other_tables,
            full_tokens,
        }
    }
}

impl From<&Admission> for PyAdmission {
    fn from(admission: &Admission) -> Self {
        Self { block_ids: ids(&admission.block_ids), ..Self::written(admission) }
    }
}

#[pymethods]
impl PyAdmission {
    /// The block tables of all KV-cache groups, the first included.
    #[getter]
    fn tables(&self) -> Vec<Vec<u32>> {
        std::iter::once(&self.block_ids).chain(&self.other_tables).cloned().collect()
    }

    fn __repr__(&self) -> String {
        let Self { cached_tokens, cached_blocks, num_blocks, .. } = self;
        format!(
            "Admission(cached_tokens={cached_tokens}, cached_blocks={cached_blocks}, num_blocks={num_blocks})"
        )
    }
}

/// The answer of ``fit``: what an admission would find, and how much of it would fit.
#[pyclass(frozen, get_all, module = "kvpool._core.requests", name = "AdmissionFit", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyAdmissionFit {
    /// Whether it would be admitted: ok, later, ``in_chunks`` or never.
    fit: &'static str,
    /// Leading tokens that are cached.
    cached_tokens: usize,
    /// Blocks that it would take besides.
    new_blocks: usize,
    /// Tokens behind the cached and external ones that could get blocks now.
    fitting_tokens: usize,
    /// Whether an empty pool of this size could compute the prompt in chunks of ``allocate_tokens``.
    can_ever_fit: bool,
}

impl From<AdmissionFit> for PyAdmissionFit {
    fn from(found: AdmissionFit) -> Self {
        let AdmissionFit { fit, cached_tokens, new_blocks, fitting_tokens, can_ever_fit, .. } = found;
        Self { fit: fit.name(), cached_tokens, new_blocks, fitting_tokens, can_ever_fit }
    }
}

#[pymethods]
impl PyAdmissionFit {
    fn __repr__(&self) -> String {
        let Self { fit, cached_tokens, new_blocks, fitting_tokens, can_ever_fit } = self;
        let can_ever_fit = if *can_ever_fit { "True" } else { "False" };
        format!(
            "AdmissionFit(fit={fit:?}, cached_tokens={cached_tokens}, new_blocks={new_blocks}, fitting_tokens={fitting_tokens}, can_ever_fit={can_ever_fit})"
        )
    }
}

/// What the manager knows of a request.
#[pyclass(frozen, get_all, module = "kvpool._core.requests", name = "RequestInfo", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyRequestInfo {
    /// Whether it holds blocks, and where: running, preempted, swapped, moving, loading or releasing.
    state: &'static str,
    /// Its tokens: prompt and appended ones.
    tokens: usize,
    /// Tokens whose KV is written, cached ones included.
    computed_tokens: usize,
    /// Tokens that were cached when it was last admitted.
    cached_tokens: usize,
    /// The token behind the last one that a connector loads, or behind the computed ones if it loads none.
    external_end: usize,
    /// Blocks in its block table.
    blocks: usize,
    /// The tier of its blocks: 0, or 1 if it is swapped out.
    tier: usize,
}

impl From<RequestInfo> for PyRequestInfo {
    fn from(info: RequestInfo) -> Self {
        Self {
            state: info.state.name(),
            tokens: info.tokens,
            computed_tokens: info.computed_tokens,
            cached_tokens: info.cached_tokens,
            external_end: info.external_end,
            blocks: info.blocks,
            tier: info.tier,
        }
    }
}

#[pymethods]
impl PyRequestInfo {
    fn __repr__(&self) -> String {
        let Self { state, tokens, computed_tokens, blocks, .. } = self;
        format!(
            "RequestInfo(state={state:?}, tokens={tokens}, computed_tokens={computed_tokens}, blocks={blocks})"
        )
    }
}

/// What `take_events` returns: the events, and how many were lost before them.
pub(crate) type Events<'py> = (Vec<Bound<'py, PyDict>>, u64);

/// Events after which other threads may have the interpreter: some 250 us.
const EVENTS_AT_ONCE: usize = 256;

/// Events as dicts. A consumer that is far behind gets many of them, and the steps of other threads go on meanwhile.
pub(crate) fn events<'py>(py: Python<'py>, batch: &EventBatch) -> PyResult<Events<'py>> {
    let mut out = Vec::with_capacity(batch.events.len());
    for some in batch.events.chunks(EVENTS_AT_ONCE) {
        for one in some {
            out.push(event(py, one, batch.algorithm_of(out.len()))?);
        }
        py.detach(|| ());
    }
    Ok((out, batch.dropped))
}

/// An event as a dict: its names are those of the Rust enum.
fn event<'py>(
    py: Python<'py>,
    event: &BlockEvent,
    algorithm: Option<HashAlgorithm>,
) -> PyResult<Bound<'py, PyDict>> {
    let digest = |hash: &kvpool::BlockHash| {
        PyBytes::new(py, algorithm.map_or(&hash.as_bytes()[..], |algorithm| hash.digest(algorithm))).unbind()
    };
    let out = PyDict::new(py);
    match event {
        BlockEvent::Stored { hash, group, parent, depth, block } => {
            out.set_item("type", "stored")?;
            out.set_item("hash", digest(hash))?;
            out.set_item("group", group)?;
            out.set_item("parent", parent.as_ref().map(digest))?;
            out.set_item("depth", depth)?;
            out.set_item("block_id", block.get())?;
        }
        BlockEvent::Removed { hash, group, block } => {
            out.set_item("type", "removed")?;
            out.set_item("hash", digest(hash))?;
            out.set_item("group", group)?;
            out.set_item("block_id", block.get())?;
        }
        BlockEvent::Cleared { epoch } => {
            out.set_item("type", "cleared")?;
            out.set_item("epoch", epoch)?;
        }
        _ => {}
    }
    Ok(out)
}
