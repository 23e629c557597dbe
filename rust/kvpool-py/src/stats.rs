//! Plain results as frozen classes: statistics, probes, admissions, events.

use std::collections::BTreeMap;

use kvpool::{Admission, AdmissionFit, HashAlgorithm, ManagerStats, PoolStats, Probe, RequestInfo};
use kvpool_observe::{BlockEvent, EventBatch, MissStats, ScrubReport};
use pyo3::types::{PyBytes, PyDict};

use crate::convert::ids;
use crate::explain;
use crate::python::prelude::*;
use crate::retention::{PyHintReport, PyRetentionStats};

#[pyclass(frozen, get_all, module = "kvpool._core.pool", name = "PoolStats", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyPoolStats {
    usable: usize,
    free: usize,
    cached_free: usize,
    active: usize,
    fenced: usize,
    registered: usize,
    registered_active: usize,
    available: usize,
    usage: f64,
    block_size: usize,
    epoch: u64,
    allocated: u64,
    evicted: u64,
    hits: u64,
    misses: u64,
    collisions: u64,
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

#[pyclass(frozen, get_all, module = "kvpool._core.requests", name = "ManagerStats", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyManagerStats {
    running: usize,
    preempted: usize,
    swapped: usize,
    moving: usize,
    loading: usize,
    releasing: usize,
    admissions: u64,
    prompt_tokens: u64,
    hit_tokens: u64,
    external_tokens: u64,
    computed_tokens: u64,
    refusals: u64,
    unserved_tokens: u64,
    checkpoints: u64,
    appended_tokens: u64,
    preemptions: u64,
    preempted_tokens: u64,
    resumptions: u64,
    resumed_tokens: u64,
    resumed_hit_tokens: u64,
    resumed_external_tokens: u64,
    forks: u64,
    swapped_out: u64,
    swapped_in: u64,
    copied_blocks: u64,
    block_bytes: u64,
    hints: PyHintReport,
    retention: Option<PyRetentionStats>,
    misses: Option<BTreeMap<&'static str, u64>>,
    resumed_misses: Option<BTreeMap<&'static str, u64>>,
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

#[pyclass(frozen, get_all, module = "kvpool._core.requests", name = "Probe", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyProbe {
    cached_blocks: usize,
    idle_blocks: usize,
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

#[pyclass(frozen, get_all, module = "kvpool._core.requests", name = "ScrubReport", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyScrubReport {
    position: usize,
    blocks: usize,
    requests: usize,
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

#[pyclass(frozen, module = "kvpool._core.requests", name = "Admission", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyAdmission {
    #[pyo3(get)]
    cached_tokens: usize,
    #[pyo3(get)]
    cached_blocks: usize,
    #[pyo3(get)]
    external_tokens: usize,
    #[pyo3(get)]
    num_blocks: usize,
    #[pyo3(get)]
    block_ids: Vec<u32>,
    /// The block tables of the other KV-cache groups.
    other_tables: Vec<Vec<u32>>,
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

#[pyclass(frozen, get_all, module = "kvpool._core.requests", name = "AdmissionFit", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyAdmissionFit {
    fit: &'static str,
    cached_tokens: usize,
    new_blocks: usize,
    fitting_tokens: usize,
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

#[pyclass(frozen, get_all, module = "kvpool._core.requests", name = "RequestInfo", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyRequestInfo {
    state: &'static str,
    tokens: usize,
    computed_tokens: usize,
    cached_tokens: usize,
    external_end: usize,
    blocks: usize,
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
