//! The facets of a pool: methods that engines seldom call, by topic.

use std::path::PathBuf;
use std::sync::PoisonError;

use kvpool::{BlockHash, BlockPool};
use kvpool_journal::PoolCalls;
use kvpool_observe::PoolWatch;
use pyo3::types::{PyBytes, PyDict};

use super::PyBlockPool;
use super::held::Held;
use crate::advice;
use crate::convert::{Int, blocks, count, ids};
use crate::enter::{LONG, enter_sized};
use crate::errors::OrRaise;
use crate::journal::{self, PyJournalStats};
use crate::metrics;
use crate::python::prelude::*;
use crate::retention::{self, PyHintReport, PyRetention, PyRetentionStats};
use crate::stats::PyScrubReport;

#[pyclass(frozen, module = "kvpool._core.facets", name = "PoolRetention")]
pub(crate) struct PyPoolRetention(pub(super) Py<PyBlockPool>);

#[pymethods]
impl PyPoolRetention {
    fn retain(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        retention: &Bound<'_, PyRetention>,
    ) -> PyResult<PyHintReport> {
        let (named, retention) = (blocks(block_ids)?, retention.get().0);
        Ok(self.0.get().run(py, named.len(), |pool| pool.retain(&named, retention))?.into())
    }

    fn assign_tenant(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>, tenant: Int) -> PyResult<()> {
        let (named, tenant) = (blocks(block_ids)?, retention::tenant(py, tenant)?);
        self.0.get().run(py, named.len(), |pool| pool.assign_tenant(&named, tenant))
    }

    fn tenant_blocks(&self, py: Python<'_>, tenant: Int) -> PyResult<usize> {
        let tenant = retention::tenant(py, tenant)?;
        self.0.get().run(py, 0, |pool| pool.tenant_blocks(tenant))
    }

    fn stats(&self, py: Python<'_>) -> PyResult<Option<PyRetentionStats>> {
        Ok(self.0.get().get(py, |pool| pool.retention_stats())?.map(Into::into))
    }
}

#[pyclass(frozen, module = "kvpool._core.facets", name = "PoolJournal")]
pub(crate) struct PyPoolJournal(pub(super) Py<PyBlockPool>);

#[pymethods]
impl PyPoolJournal {
    fn stats(&self, py: Python<'_>) -> PyResult<Option<PyJournalStats>> {
        self.0.get().get(py, |pool| pool.journaled()?.journal().map(Into::into))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        journal::wait(py, self.0.get().get(py, |pool| pool.journaled()?.start_flush())?);
        let error = self.0.get().get(py, |pool| pool.journaled()?.journal()?.error().map(str::to_owned))?;
        journal::check_flushed(py, error)
    }

    fn image<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(self.0.get().image(py)?.map(|image| PyBytes::new(py, &image)))
    }

    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        journal::save(py, self.0.get().image(py)?, &path)
    }
}

#[pyclass(frozen, module = "kvpool._core.facets", name = "PoolDiagnose")]
pub(crate) struct PyPoolDiagnose(pub(super) Py<PyBlockPool>);

#[pymethods]
impl PyPoolDiagnose {
    fn check_invariants(&self, py: Python<'_>) -> PyResult<()> {
        match &self.0.get().held {
            Held::Own(_) => self.0.get().run(py, LONG, |pool| Ok(pool.check_invariants()))?.or_raise(py),
            Held::Tier(tiers, _) => {
                enter_sized(py, tiers, LONG, |tiers| tiers.check_invariants()).or_raise(py)
            }
        }
    }

    fn check_policy(&self, py: Python<'_>) -> PyResult<()> {
        self.0.get().health.as_ref().map_or(Ok(()), |health| health.check(py))
    }

    #[getter]
    fn poison_reason(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.0.get().get(py, |pool| pool.poison_reason().map(ToOwned::to_owned))
    }

    fn scrub(&self, py: Python<'_>, blocks: Int) -> PyResult<PyScrubReport> {
        let blocks = count(py, "blocks", blocks)?;
        let tier = if let Held::Tier(_, tier) = &self.0.get().held { *tier } else { 0 };
        let scrub = |pool: &mut BlockPool| {
            let mut scrubbers = self.0.get().scrubbers.lock().unwrap_or_else(PoisonError::into_inner);
            scrubbers.entry(tier).or_default().scrub(pool, blocks)
        };
        Ok(self.0.get().run(py, blocks, |pool| pool.unrecorded(scrub))?.into())
    }

    fn state_digest(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        // The call processes the blocks that changed since the last call. These may be all blocks, so it runs
        // as a long call.
        self.0.get().run(py, LONG, |pool| Ok(pool.unrecorded(BlockPool::state_digest)))
    }

    fn state_digest_from_scratch(&self, py: Python<'_>) -> PyResult<u64> {
        self.0.get().run(py, LONG, |pool| Ok(pool.state_digest_from_scratch()))
    }

    fn free_order(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(ids(&self.0.get().run(py, LONG, |pool| Ok(pool.free_order()))?))
    }

    fn eviction_order(&self, py: Python<'_>) -> PyResult<Vec<u32>> {
        Ok(ids(&self.0.get().run(py, LONG, |pool| Ok(pool.eviction_order()))?))
    }

    fn num_holders(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<u32> {
        self.0.get().look(py, block_id, BlockPool::num_holders)
    }

    fn is_registered(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.0.get().look(py, block_id, BlockPool::is_registered)
    }

    fn is_computed(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.0.get().look(py, block_id, BlockPool::is_computed)
    }

    fn hash_of<'py>(
        &self,
        py: Python<'py>,
        block_id: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let (algorithm, hash) =
            self.0.get().look(py, block_id, |pool, block| (pool.algorithm(), pool.hash_of(block)))?;
        Ok(algorithm.zip(hash).map(|(algorithm, hash)| PyBytes::new(py, hash.digest(algorithm))))
    }

    fn copies(&self, py: Python<'_>, digest: &[u8]) -> PyResult<Vec<u32>> {
        let copies = self.0.get().get(py, |pool| {
            let hash = pool.algorithm().map(|algorithm| BlockHash::from_digest(algorithm, digest));
            hash.transpose().map(|hash| hash.map(|hash| pool.copies(&hash)).unwrap_or_default())
        })?;
        Ok(ids(&copies.or_raise(py)?))
    }

    fn advice<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let advice = self.0.get().run(py, LONG, |pool| Ok(pool.advice()))?;
        advice.map(|advice| advice::dict(py, &advice)).transpose()
    }

    fn metrics<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let counted = self.0.get().run(py, 0, |pool| Ok(pool.metrics()))?;
        counted.map(|counted| metrics::dict(py, &counted)).transpose()
    }
}

#[pyclass(frozen, module = "kvpool._core.facets", name = "PoolClock")]
pub(crate) struct PyPoolClock(pub(super) Py<PyBlockPool>);

#[pymethods]
impl PyPoolClock {
    fn advance(&self, py: Python<'_>, now: f64) -> PyResult<usize> {
        self.0.get().run(py, 0, |pool| pool.advance_time(now))
    }

    fn observe(&self, py: Python<'_>, now: f64) -> PyResult<()> {
        self.0.get().clock.observe(py, now, || {
            self.0.get().run(py, 0, |pool| pool.unrecorded(|pool| pool.observe_time(now)))
        })
    }
}
