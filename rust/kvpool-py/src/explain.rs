//! Bindings of `ExplainConfig`, and of explanations as frozen classes.

use std::collections::BTreeMap;

use kvpool::{CacheTime, RequestId};
use kvpool_observe::explain::{MissCounts, MissSpan, Requester};
use kvpool_observe::{ExplainConfig, Explanation, GroupReach};
use pyo3::types::{PyBool, PyDict};

use crate::convert::{Int, count};
use crate::errors::{OrRaise, raise};
use crate::python::prelude::*;

#[pyclass(frozen, module = "kvpool._core.explain", name = "ExplainConfig", eq)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct PyExplainConfig(ExplainConfig);

#[pymethods]
impl PyExplainConfig {
    #[new]
    #[pyo3(signature = (*, records=None, requests=None), text_signature = "(*, records=None, requests=1024)")]
    fn new(py: Python<'_>, records: Option<Int>, requests: Option<Int>) -> PyResult<Self> {
        let mut config = ExplainConfig::default();
        if let Some(records) = records {
            config.records = Some(count(py, "records", records)?);
        }
        if let Some(requests) = requests {
            config.requests = count(py, "requests", requests)?;
        }
        config.check().or_raise(py)?;
        Ok(Self(config))
    }

    getters! {
        records: Option<usize> = self.0.records;
        requests: usize = self.0.requests;
    }

    fn __repr__(&self) -> String {
        let records = self.0.records.map_or_else(|| "None".into(), |records| records.to_string());
        format!("ExplainConfig(records={records}, requests={})", self.0.requests)
    }
}

/// Converts the argument `explain` of a constructor. True means the default settings.
pub(crate) fn config(object: Option<&Bound<'_, PyAny>>) -> PyResult<Option<ExplainConfig>> {
    let Some(object) = object else { return Ok(None) };
    if let Ok(config) = object.cast::<PyExplainConfig>() {
        return Ok(Some(config.get().0));
    }
    if object.is_instance_of::<PyBool>() {
        return Ok(if object.is_truthy()? { Some(ExplainConfig::default()) } else { None });
    }
    let found = object.get_type().name()?;
    Err(raise(
        object.py(),
        "ArgumentTypeError",
        format!("explain is a {found}: must be an ExplainConfig, a bool, or None"),
    ))
}

/// Returns the number of tokens by reason, without the reasons that did not occur.
pub(crate) fn counts(counts: &MissCounts) -> BTreeMap<&'static str, u64> {
    counts.iter().filter(|&(_, tokens)| tokens > 0).collect()
}

fn id<'py>(py: Python<'py>, id: &RequestId) -> PyResult<Bound<'py, PyAny>> {
    Ok(match id {
        RequestId::Int(number) => number.into_pyobject(py)?.into_any(),
        RequestId::Uint(number) => number.into_pyobject(py)?.into_any(),
        RequestId::Str(text) => text.as_ref().into_pyobject(py)?.into_any(),
    })
}

#[pyclass(frozen, module = "kvpool._core.explain", name = "MissSpan", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyMissSpan(MissSpan);

#[pymethods]
impl PyMissSpan {
    getters! {
        blocks: (usize, usize) = (self.0.blocks.start, self.0.blocks.end);
        tokens: (usize, usize) = (self.0.tokens.start, self.0.tokens.end);
        reason: &'static str = self.0.reason.name();
        token: Option<usize> = self.0.reason.token();
        epoch: Option<u64> = self.0.reason.epoch();
        admission: Option<u64> = self.0.reason.when().map(|when| when.admission);
        time: Option<f64> = self.0.reason.when()?.time;
        group: Option<u16> = self.0.reason.group();
        policy: Option<&'static str> = self.0.reason.policy();
        evicted_class: Option<String> = self.0.reason.outlook().map(|outlook| outlook.class_words());
        another: bool = self.0.reason.requester() == Some(&Requester::Another);
    }

    #[getter]
    fn expected_return_s(&self) -> Option<f32> {
        match self.0.reason.outlook()?.kept_per_hit? {
            CacheTime::Seconds(seconds) => Some(seconds),
            _ => None,
        }
    }

    #[getter]
    fn expected_return_capacities(&self) -> Option<f32> {
        match self.0.reason.outlook()?.kept_per_hit? {
            CacheTime::Capacities(capacities) => Some(capacities),
            _ => None,
        }
    }

    #[getter]
    fn request<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.0.reason.requester() {
            Some(Requester::Request(request)) => id(py, request).map(Some),
            _ => Ok(None),
        }
    }

    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let out = PyDict::new(py);
        out.set_item("blocks", vec![self.0.blocks.start, self.0.blocks.end])?;
        out.set_item("tokens", vec![self.0.tokens.start, self.0.tokens.end])?;
        out.set_item("reason", self.reason())?;
        self.token().map_or(Ok(()), |token| out.set_item("token", token))?;
        self.epoch().map_or(Ok(()), |epoch| out.set_item("epoch", epoch))?;
        self.group().map_or(Ok(()), |group| out.set_item("group", group))?;
        self.admission().map_or(Ok(()), |admission| out.set_item("admission", admission))?;
        self.time().map_or(Ok(()), |time| out.set_item("time", time))?;
        self.policy().map_or(Ok(()), |policy| out.set_item("policy", policy))?;
        self.evicted_class().map_or(Ok(()), |class| out.set_item("evicted_class", class))?;
        self.expected_return_s().map_or(Ok(()), |seconds| out.set_item("expected_return_s", seconds))?;
        let capacities = self.expected_return_capacities();
        capacities.map_or(Ok(()), |kept| out.set_item("expected_return_capacities", kept))?;
        self.request(py)?.map_or(Ok(()), |request| out.set_item("request", request))?;
        if self.another() {
            out.set_item("another", true)?;
        }
        Ok(out)
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<MissSpan {}>", self.0)
    }
}

#[pyclass(frozen, module = "kvpool._core.explain", name = "GroupReach", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyGroupReach(GroupReach);

#[pymethods]
impl PyGroupReach {
    getters! {
        group: u16 = self.0.group;
        kind: &'static str = self.0.spec.kind.name();
        reach_tokens: usize = self.0.reach_tokens;
        limits: bool = self.0.limits;
        ends: Vec<PyMissSpan> = self.0.ends.iter().cloned().map(PyMissSpan).collect();
    }

    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let out = PyDict::new(py);
        out.set_item("group", self.0.group)?;
        out.set_item("kind", self.kind())?;
        out.set_item("reach_tokens", self.0.reach_tokens)?;
        out.set_item("limits", self.0.limits)?;
        let ends: Vec<_> = self.ends().iter().map(|end| end.to_dict(py)).collect::<PyResult<_>>()?;
        out.set_item("ends", ends)?;
        Ok(out)
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<GroupReach {}>", self.0)
    }
}

#[pyclass(frozen, module = "kvpool._core.explain", name = "Explanation", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyExplanation(pub(crate) Explanation);

#[pymethods]
impl PyExplanation {
    #[getter]
    fn request_id<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        id(py, &self.0.request)
    }

    getters! {
        admission: u64 = self.0.admission;
        resumed: bool = self.0.resumed;
        block_size: usize = self.0.block_size;
        prompt_tokens: usize = self.0.prompt_tokens;
        cached_tokens: usize = self.0.cached_tokens;
        spans: Vec<PyMissSpan> = self.0.spans.iter().cloned().map(PyMissSpan).collect();
        groups: Vec<PyGroupReach> = self.0.groups.iter().cloned().map(PyGroupReach).collect();
    }

    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let out = PyDict::new(py);
        out.set_item("request_id", self.request_id(py)?)?;
        out.set_item("admission", self.0.admission)?;
        out.set_item("resumed", self.0.resumed)?;
        out.set_item("block_size", self.0.block_size)?;
        out.set_item("prompt_tokens", self.0.prompt_tokens)?;
        out.set_item("cached_tokens", self.0.cached_tokens)?;
        let spans = self.spans();
        let spans: Vec<_> = spans.iter().map(|span| span.to_dict(py)).collect::<PyResult<_>>()?;
        out.set_item("spans", spans)?;
        let groups = self.groups();
        if !groups.is_empty() {
            let groups: Vec<_> = groups.iter().map(|group| group.to_dict(py)).collect::<PyResult<_>>()?;
            out.set_item("groups", groups)?;
        }
        Ok(out)
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        let Explanation { request, prompt_tokens, cached_tokens, spans, .. } = &self.0;
        format!(
            "<Explanation of request {request}: {cached_tokens} of {prompt_tokens} tokens cached, {} spans>",
            spans.len()
        )
    }
}
