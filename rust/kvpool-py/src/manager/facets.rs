//! The facets of a manager: methods that engines seldom call, by topic.

use std::path::PathBuf;

use kvpool::{BlockPool, CacheManager, RetentionRange};
use kvpool_journal::{Journaled, ManagerCalls};
use kvpool_observe::ManagerWatch;
use pyo3::types::{PyBytes, PyDict};

use super::{PyCacheManager, without_extra};
use crate::advice;
use crate::convert::{Int, count, ids, until_of};
use crate::enter::LONG;
use crate::errors::OrRaise;
use crate::hashing::PyExtraKeys;
use crate::journal::{self, PyJournalStats};
use crate::metrics;
use crate::python::prelude::*;
use crate::request::{RequestIds, is_request, request_ref};
use crate::retention::{self, PyHintReport, PyRetentionStats};
use crate::stats::{PyPoolStats, PyScrubReport};
use crate::tiers::swap_id;

#[pyclass(frozen, module = "kvpool._core.facets", name = "ManagerSwaps")]
pub(crate) struct PyManagerSwaps(pub(super) Py<PyCacheManager>);

#[pymethods]
impl PyManagerSwaps {
    fn fit_out(&self, py: Python<'_>, request_ids: &Bound<'_, PyAny>) -> PyResult<&'static str> {
        let named = RequestIds::new(request_ids)?;
        let group = named.refs()?;
        Ok(self.0.get().run(py, LONG, |manager| manager.fit_swap_out(&group))?.name())
    }

    fn begin_out(&self, py: Python<'_>, request_ids: &Bound<'_, PyAny>) -> PyResult<u64> {
        let named = RequestIds::new(request_ids)?;
        let group = named.refs()?;
        Ok(self.0.get().run(py, LONG, |manager| manager.begin_swap_out(&group))?.get())
    }

    fn fit_in(&self, py: Python<'_>, request_ids: &Bound<'_, PyAny>) -> PyResult<&'static str> {
        let named = RequestIds::new(request_ids)?;
        let group = named.refs()?;
        Ok(self.0.get().run(py, LONG, |manager| manager.fit_swap_in(&group))?.name())
    }

    fn begin_in(&self, py: Python<'_>, request_ids: &Bound<'_, PyAny>) -> PyResult<u64> {
        let named = RequestIds::new(request_ids)?;
        let group = named.refs()?;
        Ok(self.0.get().run(py, LONG, |manager| manager.begin_swap_in(&group))?.get())
    }

    fn complete<'py>(&self, py: Python<'py>, swap: Int) -> PyResult<Bound<'py, PyDict>> {
        let id = swap_id(py, swap)?;
        let pairs = self.0.get().run(py, LONG, |manager| manager.complete_swap(id))?;
        let out = PyDict::new(py);
        pairs.iter().try_for_each(|(src, dst)| out.set_item(src.get(), dst.get()))?;
        Ok(out)
    }

    fn abort(&self, py: Python<'_>, swap: Int) -> PyResult<()> {
        let id = swap_id(py, swap)?;
        self.0.get().run(py, LONG, |manager| manager.abort_swap(id))
    }

    fn host_stats(&self, py: Python<'_>) -> PyResult<Option<PyPoolStats>> {
        let host = |manager: &mut Journaled<CacheManager>| manager.tiers().pool(1).ok().map(BlockPool::stats);
        Ok(self.0.get().enter(py, 0, host)?.map(Into::into))
    }
}

#[pyclass(frozen, module = "kvpool._core.facets", name = "ManagerRetention")]
pub(crate) struct PyManagerRetention(pub(super) Py<PyCacheManager>);

impl PyManagerRetention {
    /// Applies hints to a request, or to the cached content of a prompt.
    fn hint(
        &self,
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        ranges: &[RetentionRange],
        extra: Option<&Bound<'_, PyExtraKeys>>,
    ) -> PyResult<PyHintReport> {
        let manager = self.0.get();
        if is_request(target)? {
            without_extra(py, extra)?;
            let id = request_ref(target)?;
            return Ok(manager.run_on(py, id, |manager| manager.retain(id, ranges))?.into());
        }
        let cursor = manager.prompt(py, target, extra)?;
        let size = cursor.chain().len();
        Ok(manager.run(py, size, |manager| manager.retain_prefix(&cursor, ranges))?.into())
    }
}

#[pymethods]
impl PyManagerRetention {
    #[pyo3(signature = (target, ranges, extra=None))]
    fn retain(
        &self,
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        ranges: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
    ) -> PyResult<PyHintReport> {
        self.hint(py, target, &retention::ranges(ranges)?, extra)
    }

    #[pyo3(
        signature = (
            target, start_token=None, extra=None
        ),
        text_signature = "($self, target, start_token=0, extra=None)"
    )]
    fn end_of_life(
        &self,
        py: Python<'_>,
        target: &Bound<'_, PyAny>,
        start_token: Option<Int>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
    ) -> PyResult<PyHintReport> {
        let start = start_token.map_or(Ok(0), |start| count(py, "start_token", start))?;
        self.hint(py, target, &[RetentionRange::end_of_life(start)], extra)
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
        Ok(self.0.get().run_on(py, id, |manager| manager.end_session(id, until))?.into())
    }

    fn set_tenant(&self, py: Python<'_>, request_id: &Bound<'_, PyAny>, tenant: Int) -> PyResult<()> {
        let (id, tenant) = (request_ref(request_id)?, retention::tenant(py, tenant)?);
        self.0.get().run_on(py, id, |manager| manager.set_tenant(id, tenant))
    }

    fn tenant_blocks(&self, py: Python<'_>, tenant: Int) -> PyResult<usize> {
        let tenant = retention::tenant(py, tenant)?;
        self.0.get().enter(py, 0, |manager| manager.tenant_blocks(tenant))?.or_raise(py)
    }

    fn stats(&self, py: Python<'_>) -> PyResult<Option<PyRetentionStats>> {
        Ok(self.0.get().enter(py, 0, |manager| manager.retention_stats())?.map(Into::into))
    }
}

#[pyclass(frozen, module = "kvpool._core.facets", name = "ManagerJournal")]
pub(crate) struct PyManagerJournal(pub(super) Py<PyCacheManager>);

#[pymethods]
impl PyManagerJournal {
    fn stats(&self, py: Python<'_>) -> PyResult<Option<PyJournalStats>> {
        self.0.get().enter(py, 0, |manager| manager.journal().map(Into::into))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        journal::wait(py, self.0.get().enter(py, 0, Journaled::start_flush)?);
        let error = self.0.get().enter(py, 0, |manager| manager.journal()?.error().map(str::to_owned))?;
        journal::check_flushed(py, error)
    }

    fn image<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.0.get().enter(py, LONG, Journaled::journal_image)?.map(|image| PyBytes::new(py, &image)))
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        journal::save(py, self.0.get().enter(py, LONG, Journaled::journal_image)?, &path)
    }
}

#[pyclass(frozen, module = "kvpool._core.facets", name = "ManagerDiagnose")]
pub(crate) struct PyManagerDiagnose(pub(super) Py<PyCacheManager>);

#[pymethods]
impl PyManagerDiagnose {
    fn check_invariants(&self, py: Python<'_>) -> PyResult<()> {
        self.0.get().enter(py, LONG, |manager| manager.check_invariants())?.or_raise(py)
    }

    fn check_policy(&self, py: Python<'_>) -> PyResult<()> {
        self.0.get().health.as_ref().map_or(Ok(()), |health| health.check(py))
    }

    #[getter]
    fn poison_reason(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.0.get().enter(py, 0, |manager| manager.poison_reason().map(ToOwned::to_owned))
    }

    fn scrub(&self, py: Python<'_>, blocks: Int) -> PyResult<PyScrubReport> {
        let blocks = count(py, "blocks", blocks)?;
        Ok(self
            .0
            .get()
            .run(py, blocks, |manager| manager.unrecorded(|manager| manager.scrub(blocks)))?
            .into())
    }

    fn state_digest(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.0.get().enter(py, LONG, |manager| manager.unrecorded(ManagerWatch::state_digest))
    }

    fn state_digest_from_scratch(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.get().enter(py, LONG, |manager| manager.state_digest_from_scratch())
    }

    fn free_order(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(ids(&self.0.get().enter(py, LONG, |manager| manager.pool().free_order())?))
    }

    fn eviction_order(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(ids(&self.0.get().enter(py, LONG, |manager| manager.pool().eviction_order())?))
    }

    fn advice<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let advice = self.0.get().enter(py, LONG, |manager| manager.advice())?;
        advice.map(|advice| advice::dict(py, &advice)).transpose()
    }

    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let tiers = self.0.get().enter(py, 0, |manager| manager.metrics())?;
        tiers.iter().map(|tier| metrics::dict(py, tier)).collect()
    }
}

#[pyclass(frozen, module = "kvpool._core.facets", name = "ManagerClock")]
pub(crate) struct PyManagerClock(pub(super) Py<PyCacheManager>);

#[pymethods]
impl PyManagerClock {
    fn advance(&self, py: Python<'_>, now: f64) -> PyResult<usize> {
        self.0.get().run(py, 0, |manager| manager.advance_time(now))
    }

    fn observe(&self, py: Python<'_>, now: f64) -> PyResult<()> {
        self.0.get().clock.observe(py, now, || {
            self.0
                .get()
                .enter(py, 0, |manager| manager.unrecorded(|manager| manager.observe_time(now)))?
                .or_raise(py)
        })
    }
}
