//! `ExplainConfig`, and explanations as frozen classes.

use std::collections::BTreeMap;

use kvpool::{Kept, RequestId};
use kvpool_observe::explain::{MissCounts, MissSpan, Requester};
use kvpool_observe::{ExplainConfig, Explanation, GroupReach};
use pyo3::types::{PyBool, PyDict};

use crate::convert::{Int, count};
use crate::errors::{OrRaise, raise};
use crate::python::prelude::*;

#[doc = doc!("ExplainConfig")]
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

    #[doc = doc!("ExplainConfig.records")]
    #[getter]
    fn records(&self) -> Option<usize> {
        self.0.records
    }

    #[doc = doc!("ExplainConfig.requests")]
    #[getter]
    fn requests(&self) -> usize {
        self.0.requests
    }

    fn __repr__(&self) -> String {
        let records = self.0.records.map_or_else(|| "None".into(), |records| records.to_string());
        format!("ExplainConfig(records={records}, requests={})", self.0.requests)
    }
}

/// `explain=` of a constructor: True is that of all defaults.
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

/// Tokens by reason, of those that occurred.
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

#[doc = doc!("MissSpan")]
#[pyclass(frozen, module = "kvpool._core.explain", name = "MissSpan", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyMissSpan(MissSpan);

#[pymethods]
impl PyMissSpan {
    #[doc = doc!("MissSpan.blocks")]
    #[getter]
    fn blocks(&self) -> (usize, usize) {
        (self.0.blocks.start, self.0.blocks.end)
    }

    #[doc = doc!("MissSpan.tokens")]
    #[getter]
    fn tokens(&self) -> (usize, usize) {
        (self.0.tokens.start, self.0.tokens.end)
    }

    #[doc = doc!("MissSpan.reason")]
    #[getter]
    fn reason(&self) -> &'static str {
        self.0.reason.name()
    }

    #[doc = doc!("MissSpan.token")]
    #[getter]
    fn token(&self) -> Option<usize> {
        self.0.reason.token()
    }

    #[doc = doc!("MissSpan.epoch")]
    #[getter]
    fn epoch(&self) -> Option<u64> {
        self.0.reason.epoch()
    }

    #[doc = doc!("MissSpan.admission")]
    #[getter]
    fn admission(&self) -> Option<u64> {
        self.0.reason.when().map(|when| when.admission)
    }

    #[doc = doc!("MissSpan.time")]
    #[getter]
    fn time(&self) -> Option<f64> {
        self.0.reason.when()?.time
    }

    #[doc = doc!("MissSpan.group")]
    #[getter]
    fn group(&self) -> Option<u16> {
        self.0.reason.group()
    }

    #[doc = doc!("MissSpan.policy")]
    #[getter]
    fn policy(&self) -> Option<&'static str> {
        self.0.reason.policy()
    }

    #[doc = doc!("MissSpan.evicted_class")]
    #[getter]
    fn evicted_class(&self) -> Option<String> {
        self.0.reason.outlook().map(|outlook| outlook.class_words())
    }

    #[doc = doc!("MissSpan.expected_return_s")]
    #[getter]
    fn expected_return_s(&self) -> Option<f32> {
        match self.0.reason.outlook()?.kept_per_hit? {
            Kept::Seconds(seconds) => Some(seconds),
            _ => None,
        }
    }

    #[doc = doc!("MissSpan.expected_return_capacities")]
    #[getter]
    fn expected_return_capacities(&self) -> Option<f32> {
        match self.0.reason.outlook()?.kept_per_hit? {
            Kept::Capacities(capacities) => Some(capacities),
            _ => None,
        }
    }

    #[doc = doc!("MissSpan.request")]
    #[getter]
    fn request<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.0.reason.requester() {
            Some(Requester::Request(request)) => id(py, request).map(Some),
            _ => Ok(None),
        }
    }

    #[doc = doc!("MissSpan.another")]
    #[getter]
    fn another(&self) -> bool {
        self.0.reason.requester() == Some(&Requester::Another)
    }

    #[doc = doc!("MissSpan.to_dict")]
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

#[doc = doc!("GroupReach")]
#[pyclass(frozen, module = "kvpool._core.explain", name = "GroupReach", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyGroupReach(GroupReach);

#[pymethods]
impl PyGroupReach {
    #[doc = doc!("GroupReach.group")]
    #[getter]
    fn group(&self) -> u16 {
        self.0.group
    }

    #[doc = doc!("GroupReach.kind")]
    #[getter]
    fn kind(&self) -> &'static str {
        self.0.spec.kind.name()
    }

    #[doc = doc!("GroupReach.reach_tokens")]
    #[getter]
    fn reach_tokens(&self) -> usize {
        self.0.reach_tokens
    }

    #[doc = doc!("GroupReach.limits")]
    #[getter]
    fn limits(&self) -> bool {
        self.0.limits
    }

    #[doc = doc!("GroupReach.ends")]
    #[getter]
    fn ends(&self) -> Vec<PyMissSpan> {
        self.0.ends.iter().cloned().map(PyMissSpan).collect()
    }

    #[doc = doc!("GroupReach.to_dict")]
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

#[doc = doc!("Explanation")]
#[pyclass(frozen, module = "kvpool._core.explain", name = "Explanation", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyExplanation(pub(crate) Explanation);

#[pymethods]
impl PyExplanation {
    #[doc = doc!("Explanation.request_id")]
    #[getter]
    fn request_id<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        id(py, &self.0.request)
    }

    #[doc = doc!("Explanation.admission")]
    #[getter]
    fn admission(&self) -> u64 {
        self.0.admission
    }

    #[doc = doc!("Explanation.resumed")]
    #[getter]
    fn resumed(&self) -> bool {
        self.0.resumed
    }

    #[doc = doc!("Explanation.block_size")]
    #[getter]
    fn block_size(&self) -> usize {
        self.0.block_size
    }

    #[doc = doc!("Explanation.prompt_tokens")]
    #[getter]
    fn prompt_tokens(&self) -> usize {
        self.0.prompt_tokens
    }

    #[doc = doc!("Explanation.cached_tokens")]
    #[getter]
    fn cached_tokens(&self) -> usize {
        self.0.cached_tokens
    }

    #[doc = doc!("Explanation.spans")]
    #[getter]
    fn spans(&self) -> Vec<PyMissSpan> {
        self.0.spans.iter().cloned().map(PyMissSpan).collect()
    }

    #[doc = doc!("Explanation.groups")]
    #[getter]
    fn groups(&self) -> Vec<PyGroupReach> {
        self.0.groups.iter().cloned().map(PyGroupReach).collect()
    }

    #[doc = doc!("Explanation.to_dict")]
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
