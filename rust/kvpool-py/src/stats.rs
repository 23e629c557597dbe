//! Bindings of results as frozen classes: statistics, probes and admissions. Events are dicts.

use std::collections::BTreeMap;

use kvpool::{Admission, AdmissionFit, HashAlgorithm, ManagerStats, PoolStats, Probe, RequestInfo};
use kvpool_observe::{BlockEvent, EventBatch, MissStats, ScrubReport};
use pyo3::types::{PyBytes, PyDict};

use crate::convert::ids;
use crate::explain;
use crate::python::prelude::*;
use crate::retention::{PyHintReport, PyRetentionStats};

#[pyclass(frozen, get_all, module = "kvpool._core.pool", name = "PoolStats", eq)]
#[of(PoolStats)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyPoolStats {
    usable: usize,
    free: usize,
    cached_free: usize,
    active: usize,
    fenced: usize,
    registered: usize,
    registered_active: usize,
    #[of(it.available())]
    available: usize,
    #[of(it.usage())]
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

#[pymethods]
impl PyPoolStats {
    fn tokens(&self, blocks: usize) -> usize {
        blocks.saturating_mul(self.block_size)
    }

    repr! { usable, free, cached_free, active, fenced }
}

#[pyclass(frozen, get_all, module = "kvpool._core.requests", name = "ManagerStats", eq)]
#[of(ManagerStats)]
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
    #[of(it.hints.into())]
    hints: PyHintReport,
    #[of(it.retention.map(Into::into))]
    retention: Option<PyRetentionStats>,
    #[of(None)]
    misses: Option<BTreeMap<&'static str, u64>>,
    #[of(None)]
    resumed_misses: Option<BTreeMap<&'static str, u64>>,
    #[of(it.pool.into())]
    pool: PyPoolStats,
}

impl PyManagerStats {
    pub(crate) fn new(stats: ManagerStats, misses: Option<MissStats>) -> Self {
        Self {
            misses: misses.as_ref().map(|misses| explain::counts(&misses.admitted)),
            resumed_misses: misses.map(|misses| explain::counts(&misses.resumed)),
            ..stats.into()
        }
    }
}

#[pymethods]
impl PyManagerStats {
    fn bytes(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(self.block_bytes)
    }

    repr! { running, preempted, prompt_tokens, hit_tokens }
}

#[pyclass(frozen, get_all, module = "kvpool._core.requests", name = "Probe", eq)]
#[of(Probe)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyProbe {
    cached_blocks: usize,
    idle_blocks: usize,
    pending_blocks: usize,
}

#[pymethods]
impl PyProbe {
    repr! { cached_blocks, idle_blocks, pending_blocks }
}

#[pyclass(frozen, get_all, module = "kvpool._core.requests", name = "ScrubReport", eq)]
#[of(ScrubReport)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyScrubReport {
    position: usize,
    blocks: usize,
    requests: usize,
    passes: u64,
}

#[pymethods]
impl PyScrubReport {
    repr! { position, blocks, requests, passes }
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
    /// The block tables of all KV-cache groups except the first.
    other_tables: Vec<Vec<u32>>,
    #[pyo3(get)]
    full_tokens: usize,
}

impl PyAdmission {
    /// Returns the admission without `block_ids`, which were written to the caller's buffer.
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

    repr! { cached_tokens, cached_blocks, num_blocks }
}

#[pyclass(frozen, get_all, module = "kvpool._core.requests", name = "AdmissionFit", eq)]
#[of(AdmissionFit)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyAdmissionFit {
    #[of(it.fit.name())]
    fit: &'static str,
    cached_tokens: usize,
    new_blocks: usize,
    fitting_tokens: usize,
    can_ever_fit: bool,
}

#[pymethods]
impl PyAdmissionFit {
    fn __repr__(&self) -> String {
        let Self { fit, cached_tokens, new_blocks, fitting_tokens, can_ever_fit } = self;
        let can_ever_fit = if *can_ever_fit { "True" } else { "False" };
        format!(
            "AdmissionFit(fit={fit:?}, cached_tokens={cached_tokens}, new_blocks={new_blocks}, \
                fitting_tokens={fitting_tokens}, can_ever_fit={can_ever_fit})"
        )
    }
}

#[pyclass(frozen, get_all, module = "kvpool._core.requests", name = "RequestInfo", eq)]
#[of(RequestInfo)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyRequestInfo {
    #[of(it.state.name())]
    state: &'static str,
    tokens: usize,
    computed_tokens: usize,
    cached_tokens: usize,
    external_end: usize,
    blocks: usize,
    tier: usize,
}

#[pymethods]
impl PyRequestInfo {
    repr! { state, tokens, computed_tokens, blocks }
}

/// The result of `take_events`: the events, and how many were lost before them.
pub(crate) type Events<'py> = (Vec<Bound<'py, PyDict>>, u64);

/// Number of events that are converted before other threads may run. This takes about 250 us.
const EVENTS_AT_ONCE: usize = 256;

/// Returns events as dicts. A slow consumer gets many events at once, so other threads may run while they are
/// converted.
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
