//! Bindings of `AdvisorConfig`, and the estimates of an advisor as dicts.

use kvpool::{EvictionPolicy, PoolError};
use kvpool_observe::advisor::{Advice, AdvisorConfig, CurvePoint, PolicyAdvice, TenantAdvice};
use pyo3::types::{PyBool, PyDict, PyString};

use crate::convert::{Int, count, text};
use crate::errors::{OrRaise, raise};
use crate::gather::{extract, gather};
use crate::python::prelude::*;
use crate::retention::eviction_named;

#[pyclass(frozen, module = "kvpool._core.advisor", name = "AdvisorConfig", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyAdvisorConfig(AdvisorConfig);

#[pymethods]
impl PyAdvisorConfig {
    #[new]
    #[pyo3(
        signature = (
            *, max_sampled_blocks=None, sample_every=None, policies=None, max_tenants=None, window=None,
            seed=None
        ),
        text_signature = "(*, max_sampled_blocks=16384, sample_every=1, policies=None, max_tenants=8, \
            window=None, \
            seed=0)"
    )]
    fn new(
        py: Python<'_>,
        max_sampled_blocks: Option<Int>,
        sample_every: Option<Int>,
        policies: Option<&Bound<'_, PyAny>>,
        max_tenants: Option<Int>,
        window: Option<Int>,
        seed: Option<Int>,
    ) -> PyResult<Self> {
        let mut config = AdvisorConfig::default();
        if let Some(most) = max_sampled_blocks {
            config.max_sampled_blocks = count(py, "max_sampled_blocks", most)?;
        }
        if let Some(every) = sample_every {
            let every = count(py, "sample_every", every)?;
            config.sample_every = u32::try_from(every)
                .map_err(|_| PoolError::config("sample_every", every, format!("at most {}", u32::MAX)))
                .or_raise(py)?;
        }
        if let Some(names) = policies {
            config.policies = self::policies(names)?;
        }
        if let Some(most) = max_tenants {
            config.max_tenants = count(py, "max_tenants", most)?;
        }
        if let Some(references) = window {
            config.window = Some(count(py, "window", references)? as u64);
        }
        if let Some(seed) = seed {
            config.seed = count(py, "seed", seed)? as u64;
        }
        config.check().or_raise(py)?;
        Ok(Self(config))
    }

    getters! {
        max_sampled_blocks: usize = self.0.max_sampled_blocks;
        sample_every: u32 = self.0.sample_every;
        policies: Vec<&'static str> = self.0.policies.iter().map(|policy| policy.name()).collect();
        max_tenants: usize = self.0.max_tenants;
        window: Option<u64> = self.0.window;
        seed: u64 = self.0.seed;
    }

    fn __repr__(&self) -> String {
        let AdvisorConfig { max_sampled_blocks, sample_every, max_tenants, window, seed, .. } = &self.0;
        let names: Vec<_> = self.policies().iter().map(|name| format!("'{name}'")).collect();
        let window = window.map_or_else(|| "None".into(), |window| window.to_string());
        format!(
            "AdvisorConfig(max_sampled_blocks={max_sampled_blocks}, sample_every={sample_every}, \
                policies=[{}], max_tenants={max_tenants}, window={window}, seed={seed})",
            names.join(", ")
        )
    }
}

/// Returns the names of policies from a sequence. A single str is refused.
fn policies(names: &Bound<'_, PyAny>) -> PyResult<Vec<EvictionPolicy>> {
    if names.is_instance_of::<PyString>() {
        return Err(raise(names.py(), "ArgumentTypeError", "policies is a str: must be a sequence of names"));
    }
    gather("policies", names, |position, item| {
        let name: Bound<'_, PyString> = extract("policies", position, &item, "the name of one")?;
        eviction_named(name.py(), text(&name, "a policy")?)
    })
}

/// Converts the argument `advisor` of a constructor. True means the default settings.
pub(crate) fn config(object: Option<&Bound<'_, PyAny>>) -> PyResult<Option<AdvisorConfig>> {
    let Some(object) = object else { return Ok(None) };
    if let Ok(config) = object.cast::<PyAdvisorConfig>() {
        return Ok(Some(config.get().0.clone()));
    }
    if object.is_instance_of::<PyBool>() {
        return Ok(if object.is_truthy()? { Some(AdvisorConfig::default()) } else { None });
    }
    let found = object.get_type().name()?;
    Err(raise(
        object.py(),
        "ArgumentTypeError",
        format!("advisor is a {found}: must be an AdvisorConfig, a bool, or None"),
    ))
}

/// Returns the estimates as dicts of numbers, names and lists, which `json.dumps` accepts.
pub(crate) fn dict<'py>(py: Python<'py>, advice: &Advice) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("capacity_blocks", advice.capacity_blocks)?;
    out.set_item("sample_rate", advice.rate)?;
    out.set_item("window_references", advice.window)?;
    out.set_item("references_ever", advice.seen)?;
    out.set_item("references", advice.references)?;
    out.set_item("sampled_references", advice.sampled_references)?;
    out.set_item("block_hit_rate", advice.hit_rate)?;
    out.set_item("curve", curve(py, &advice.curve)?)?;
    let policies = advice.policies.iter().map(|one| policy(py, one));
    out.set_item("policies", policies.collect::<PyResult<Vec<_>>>()?)?;
    let tenants = advice.tenants.iter().map(|one| tenant(py, one));
    out.set_item("tenants", tenants.collect::<PyResult<Vec<_>>>()?)?;
    out.set_item("untracked_references", advice.untracked_references)?;
    out.set_item("memory_bytes", advice.memory_bytes)?;
    Ok(out)
}

fn curve<'py>(py: Python<'py>, points: &[CurvePoint]) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let point = |point: &CurvePoint| {
        let out = PyDict::new(py);
        out.set_item("blocks", point.blocks)?;
        out.set_item("block_hit_rate", point.block_hit_rate)?;
        Ok(out)
    };
    points.iter().map(point).collect()
}

fn policy<'py>(py: Python<'py>, advice: &PolicyAdvice) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("name", advice.policy.name())?;
    out.set_item("block_hit_rate", advice.block_hit_rate)?;
    out.set_item("references", advice.references)?;
    Ok(out)
}

fn tenant<'py>(py: Python<'py>, advice: &TenantAdvice) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("tenant", advice.tenant.0)?;
    out.set_item("references", advice.references)?;
    out.set_item("sampled_references", advice.sampled_references)?;
    out.set_item("block_hit_rate", advice.hit_rate)?;
    out.set_item("curve", curve(py, &advice.curve)?)?;
    out.set_item("curve_alone", curve(py, &advice.alone)?)?;
    Ok(out)
}
