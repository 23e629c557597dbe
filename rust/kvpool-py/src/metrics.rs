//! Converts the metrics of a pool to dicts.

use kvpool_observe::PoolMetrics;
use kvpool_observe::metrics::{Histogram, TenantHits};
use pyo3::types::PyDict;

use crate::python::prelude::*;

/// Returns the metrics of one tier as dicts of numbers, names and lists, which `json.dumps` accepts.
pub(crate) fn dict<'py>(py: Python<'py>, metrics: &PoolMetrics) -> PyResult<Bound<'py, PyDict>> {
    let evictions = PyDict::new(py);
    metrics.evictions().try_for_each(|(cause, blocks)| evictions.set_item(cause, blocks))?;
    let tenants = PyDict::new(py);
    metrics.tenants.iter().try_for_each(|(tenant, counts)| tenants.set_item(tenant.0, hits(py, counts)?))?;
    let out = PyDict::new(py);
    out.set_item("time", metrics.time)?;
    out.set_item("stored", metrics.stored)?;
    out.set_item("evicted", evictions)?;
    out.set_item("dropped", metrics.dropped)?;
    out.set_item("cleared", metrics.cleared)?;
    out.set_item("age_at_hit", histogram(py, &metrics.age_at_hit)?)?;
    out.set_item("reuse_gap", histogram(py, &metrics.reuse_gap)?)?;
    out.set_item("lifetime", histogram(py, &metrics.lifetime)?)?;
    out.set_item("idle_before_eviction", histogram(py, &metrics.idle_before_eviction)?)?;
    out.set_item("hits_before_eviction", histogram(py, &metrics.hits_before_eviction)?)?;
    out.set_item("tenants", tenants)?;
    out.set_item("other_tenants", hits(py, metrics.tenants.others)?)?;
    out.set_item("no_tenant", hits(py, metrics.tenants.nobody)?)?;
    Ok(out)
}

fn histogram<'py>(py: Python<'py>, histogram: &Histogram) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("bounds", histogram.bounds())?;
    out.set_item("counts", histogram.counts())?;
    out.set_item("sum", histogram.sum())?;
    Ok(out)
}

fn hits<'py>(py: Python<'py>, counts: TenantHits) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("hits", counts.hits)?;
    out.set_item("misses", counts.misses)?;
    Ok(out)
}
