//! Bindings of `Retention`, `TenantLimits`, `RetentionConfig`, and of the results of hints.

use std::sync::Arc;

use kvpool::retention::{
    HintReport, Keep, Priority, Retention, RetentionConfig, RetentionStats, TenantId, TenantLimits, Then, Ttl,
};
use kvpool::{AdmitOptions, EvictionPolicy, Evictor, Part, RetentionRange, shorten};
use pyo3::types::{PyBool, PyString};

use crate::convert::{Int, count, text};
use crate::errors::{OrRaise, raise};
use crate::gather::{extract, gather};
use crate::health::Health;
use crate::policy;
use crate::python::prelude::*;

fn invalid(py: Python<'_>, message: impl Into<String>) -> PyErr {
    raise(py, "InvalidArgumentError", message)
}

#[pyclass(frozen, module = "kvpool._core.retention", name = "Retention", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyRetention(pub(crate) Retention);

#[pymethods]
impl PyRetention {
    #[new]
    #[pyo3(signature = (priority=None, *, ttl=None, idle=false, then="normal", pinned=false, demoted=false),
           text_signature = "(priority=35, *, ttl=None, idle=False, then='normal', pinned=False, \
               demoted=False)")]
    fn new(
        py: Python<'_>,
        priority: Option<Int>,
        ttl: Option<f64>,
        idle: bool,
        then: &str,
        pinned: bool,
        demoted: bool,
    ) -> PyResult<Self> {
        let keep = match (priority, pinned, demoted) {
            (None, true, false) => Keep::Pinned,
            (None, false, true) => Keep::Demoted,
            (_, false, false) => {
                let number = priority.map_or(i128::from(Priority::NORMAL.get()), i128::from);
                let small = u8::try_from(number)
                    .map_err(|_| invalid(py, format!("priority is {number}: must be 0 to 100")))?;
                Keep::Priority(Priority::new(small).or_raise(py)?)
            }
            _ => {
                let message = "priority, pinned and demoted are three places in one order: say one of them";
                return Err(invalid(py, message));
            }
        };
        let then = match then {
            "normal" => Then::Normal,
            "demote" => Then::Demote,
            other => {
                let other = shorten(other);
                return Err(invalid(py, format!("then is {other:?}: must be one of normal, demote")));
            }
        };
        let ttl = match (ttl, idle) {
            (None, true) => return Err(invalid(py, "idle determines how a ttl is counted: give a ttl")),
            (None, false) => None,
            (Some(seconds), true) => Some(Ttl::Idle(seconds)),
            (Some(seconds), false) => Some(Ttl::Absolute(seconds)),
        };
        let retention = Retention { keep, ttl, then };
        retention.check().or_raise(py)?;
        Ok(Self(retention))
    }

    #[getter]
    fn priority(&self) -> Option<u8> {
        if let Keep::Priority(priority) = self.0.keep { Some(priority.get()) } else { None }
    }

    #[getter]
    fn ttl(&self) -> Option<f64> {
        match self.0.ttl {
            Some(Ttl::Idle(seconds) | Ttl::Absolute(seconds)) => Some(seconds),
            _ => None,
        }
    }

    getters! {
        idle: bool = matches!(self.0.ttl, Some(Ttl::Idle(_)));
        then: &'static str = if self.0.then == Then::Demote { "demote" } else { "normal" };
        pinned: bool = self.0.keep == Keep::Pinned;
        demoted: bool = self.0.keep == Keep::Demoted;
    }

    fn __repr__(&self) -> String {
        let mut fields = vec![match self.priority() {
            Some(priority) => priority.to_string(),
            None if self.pinned() => "pinned=True".into(),
            None => "demoted=True".into(),
        }];
        if let Some(ttl) = self.ttl() {
            fields.push(format!("ttl={ttl:?}"));
        }
        fields.extend(self.idle().then(|| "idle=True".into()));
        fields.extend((self.0.then == Then::Demote).then(|| "then='demote'".into()));
        format!("Retention({})", fields.join(", "))
    }
}

pub(crate) fn tenant(py: Python<'_>, number: Int) -> PyResult<TenantId> {
    let number = i128::from(number);
    let id = u32::try_from(number);
    id.map(TenantId).map_err(|_| invalid(py, format!("tenant is {number}: must be 0 to {}", u32::MAX)))
}

#[pyclass(frozen, module = "kvpool._core.retention", name = "TenantLimits", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyTenantLimits(TenantLimits);

#[pymethods]
impl PyTenantLimits {
    #[new]
    #[pyo3(signature = (tenant, *, floor=None, ceiling=None),
           text_signature = "(tenant, *, floor=0, ceiling=None)")]
    fn new(py: Python<'_>, tenant: Int, floor: Option<Int>, ceiling: Option<Int>) -> PyResult<Self> {
        Ok(Self(TenantLimits {
            tenant: self::tenant(py, tenant)?,
            floor: floor.map_or(Ok(0), |floor| count(py, "floor", floor))?,
            ceiling: ceiling.map(|ceiling| count(py, "ceiling", ceiling)).transpose()?,
        }))
    }

    getters! {
        tenant: u32 = self.0.tenant.0;
        floor: usize = self.0.floor;
        ceiling: Option<usize> = self.0.ceiling;
    }

    fn __repr__(&self) -> String {
        let ceiling = self.0.ceiling.map_or_else(|| "None".into(), |ceiling| ceiling.to_string());
        format!("TenantLimits({}, floor={}, ceiling={ceiling})", self.0.tenant.0, self.0.floor)
    }
}

#[pyclass(frozen, module = "kvpool._core.retention", name = "RetentionConfig", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyRetentionConfig(RetentionConfig);

#[pymethods]
impl PyRetentionConfig {
    #[new]
    #[pyo3(signature = (*, pin_budget=None, tenants=None),
           text_signature = "(*, pin_budget=0, tenants=())")]
    fn new(py: Python<'_>, pin_budget: Option<Int>, tenants: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        Ok(Self(RetentionConfig {
            pin_budget: pin_budget.map_or(Ok(0), |budget| count(py, "pin_budget", budget))?,
            tenants: tenants.map_or_else(|| Ok(Vec::new()), self::tenants)?,
        }))
    }

    getters! {
        pin_budget: usize = self.0.pin_budget;
        tenants: Vec<PyTenantLimits> = self.0.tenants.iter().map(|&limits| PyTenantLimits(limits)).collect();
    }

    fn __repr__(&self) -> String {
        let tenants: Vec<_> = self.tenants().iter().map(PyTenantLimits::__repr__).collect();
        format!("RetentionConfig(pin_budget={}, tenants=[{}])", self.0.pin_budget, tenants.join(", "))
    }
}

#[pyclass(frozen, get_all, module = "kvpool._core.retention", name = "HintReport", eq)]
#[of(HintReport)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct PyHintReport {
    accepted: usize,
    clipped: usize,
    ignored: usize,
}

#[pymethods]
impl PyHintReport {
    repr! { accepted, clipped, ignored }
}

#[pyclass(frozen, get_all, module = "kvpool._core.retention", name = "RetentionStats", eq)]
#[of(RetentionStats)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct PyRetentionStats {
    demoted: usize,
    below_normal: usize,
    above_normal: usize,
    pinned: usize,
    with_ttl: usize,
    expired: u64,
}

#[pymethods]
impl PyRetentionStats {
    repr! { demoted, below_normal, above_normal, pinned, with_ttl, expired }
}

/// Converts the argument `retention` of a constructor. True means the default settings.
pub(crate) fn config(object: Option<&Bound<'_, PyAny>>) -> PyResult<Option<RetentionConfig>> {
    let Some(object) = object else { return Ok(None) };
    if let Ok(config) = object.cast::<PyRetentionConfig>() {
        return Ok(Some(config.get().0.clone()));
    }
    if object.is_instance_of::<PyBool>() {
        return Ok(if object.is_truthy()? { Some(RetentionConfig::default()) } else { None });
    }
    let found = object.get_type().name()?;
    Err(raise(
        object.py(),
        "ArgumentTypeError",
        format!("retention is a {found}: must be a RetentionConfig, a bool, or None"),
    ))
}

fn tenants(object: &Bound<'_, PyAny>) -> PyResult<Vec<TenantLimits>> {
    gather("tenants", object, |position, item| {
        Ok(extract::<Bound<'_, PyTenantLimits>>("tenants", position, &item, "TenantLimits")?.get().0)
    })
}

/// Converts ranges of a request's tokens: (start, end, Retention). An end of None means that the range
/// has no end.
pub(crate) fn ranges(object: &Bound<'_, PyAny>) -> PyResult<Vec<RetentionRange>> {
    let py = object.py();
    gather("retention", object, |position, item| {
        let (start, end, retention): (Int, Option<Int>, Bound<'_, PyRetention>) =
            extract("retention", position, &item, "a tuple (start, end, Retention)")?;
        Ok(RetentionRange {
            start: count(py, "start", start)?,
            end: end.map(|end| count(py, "end", end)).transpose()?,
            retention: retention.get().0,
        })
    })
}

/// Converts the arguments `tenant`, `no_cache` and `retention` of an admission.
pub(crate) fn options(
    py: Python<'_>,
    part: Part,
    tenant: Option<Int>,
    no_cache: bool,
    retention: Option<&Bound<'_, PyAny>>,
) -> PyResult<AdmitOptions> {
    Ok(AdmitOptions {
        part,
        tenant: tenant.map(|tenant| self::tenant(py, tenant)).transpose()?,
        no_cache,
        ranges: retention.map_or_else(|| Ok(Vec::new()), ranges)?,
    })
}

pub(crate) fn eviction_named(py: Python<'_>, name: &str) -> PyResult<EvictionPolicy> {
    kvpool_policies::by_name(&shorten(name)).or_raise(py)
}

pub(crate) enum Eviction {
    Named(EvictionPolicy),
    Own(Box<dyn Evictor>, Arc<Health>),
}

/// Converts the argument `eviction`: the name of a policy, or an object of the caller's own policy.
pub(crate) fn eviction(
    py: Python<'_>,
    object: Option<&Bound<'_, PyAny>>,
    num_blocks: usize,
    retention: Option<&RetentionConfig>,
) -> PyResult<Eviction> {
    let Some(object) = object else { return Ok(Eviction::Named(kvpool_policies::LRU)) };
    if let Ok(name) = object.cast::<PyString>() {
        return Ok(Eviction::Named(eviction_named(py, text(name, "eviction")?)?));
    }
    let (evictor, health) = policy::evictor(py, object, num_blocks, retention)?;
    Ok(Eviction::Own(evictor, health))
}
