//! `Trace` and `Replay`.

use std::io::BufReader;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use kvpool_replay::generate::{GeneratorConfig, generate};
use kvpool_replay::reader::ReadOptions;
use kvpool_replay::replay::{Replay, ReplayConfig};
use kvpool_replay::trace::{Trace, write_jsonl};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::convert::{Int, count};
use crate::enter::{LONG, enter, enter_sized};
use crate::errors::{OrRaise, raise};
use crate::hashing::named;

/// A request trace in memory.
#[pyclass(frozen, module = "kvpool._core", name = "Trace")]
pub(crate) struct PyTrace(Arc<Trace>);

fn options(py: Python<'_>, block_tokens: i128, limit: Option<Int>, check: bool) -> PyResult<ReadOptions> {
    Ok(ReadOptions {
        block_tokens: count(py, "block_tokens", block_tokens)?,
        limit: limit.map(|limit| count(py, "limit", limit)).transpose()?,
        check_prefixes: check,
        ..ReadOptions::default()
    })
}

#[pymethods]
impl PyTrace {
    /// Reads a trace file, plain or gzip.
    #[staticmethod]
    #[pyo3(signature = (path, *, block_tokens=512, limit=None, check_prefixes=true))]
    fn read(
        py: Python<'_>,
        path: PathBuf,
        block_tokens: i128,
        limit: Option<Int>,
        check_prefixes: bool,
    ) -> PyResult<Self> {
        let options = options(py, block_tokens, limit, check_prefixes)?;
        let read = || {
            if path.as_os_str() == "-" {
                Trace::from_reader(std::io::stdin().lock(), &options)
            } else {
                Trace::from_path(&path, &options)
            }
        };
        Ok(Self(Arc::new(py.detach(read).or_raise(py)?)))
    }

    /// Reads a trace from bytes, plain or gzip.
    #[staticmethod]
    #[pyo3(signature = (data, *, block_tokens=512, limit=None, check_prefixes=true))]
    fn parse(
        py: Python<'_>,
        data: &[u8],
        block_tokens: i128,
        limit: Option<Int>,
        check_prefixes: bool,
    ) -> PyResult<Self> {
        let options = options(py, block_tokens, limit, check_prefixes)?;
        let trace = py.detach(|| Trace::from_reader(BufReader::new(data), &options)).or_raise(py)?;
        Ok(Self(Arc::new(trace)))
    }

    /// Makes up a trace: chats, agents and one-shot requests over shared system prompts.
    #[staticmethod]
    #[pyo3(signature = (requests=2000, *, seed=0, block_tokens=512, rate_per_s=None, chat_fraction=None, agent_fraction=None))]
    fn generate(
        py: Python<'_>,
        requests: i128,
        seed: i128,
        block_tokens: i128,
        rate_per_s: Option<f64>,
        chat_fraction: Option<f64>,
        agent_fraction: Option<f64>,
    ) -> PyResult<Self> {
        let default = GeneratorConfig::default();
        let config = GeneratorConfig {
            requests: count(py, "requests", requests)?,
            seed: count(py, "seed", seed)? as u64,
            block_tokens: count(py, "block_tokens", block_tokens)?,
            rate_per_s: rate_per_s.unwrap_or(default.rate_per_s),
            chat_fraction: chat_fraction.unwrap_or(default.chat_fraction),
            agent_fraction: agent_fraction.unwrap_or(default.agent_fraction),
            ..default
        };
        Ok(Self(Arc::new(py.detach(|| generate(&config)).or_raise(py)?)))
    }

    /// Returns the trace as Mooncake JSONL.
    fn to_jsonl<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let trace = &self.0;
        let write = || {
            let mut out = Vec::new();
            write_jsonl(trace, &mut out).map(|()| out)
        };
        Ok(PyBytes::new(py, &py.detach(write)?))
    }

    /// Returns counts of requests, tokens and blocks.
    fn summary<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let summary = py.detach(|| self.0.summary());
        let out = PyDict::new(py);
        out.set_item("requests", summary.requests)?;
        out.set_item("span_ms", summary.span_ms)?;
        out.set_item("input_tokens", summary.input_tokens)?;
        out.set_item("output_tokens", summary.output_tokens)?;
        out.set_item("longest_input", summary.longest_input)?;
        out.set_item("block_references", summary.block_references)?;
        out.set_item("partial_blocks", summary.partial_blocks)?;
        out.set_item("unique_blocks", summary.unique_blocks)?;
        out.set_item("block_tokens", self.0.block_tokens())?;
        Ok(out)
    }

    fn __len__(&self) -> usize {
        self.0.requests().len()
    }

    fn __repr__(&self) -> String {
        format!("Trace(requests={}, block_tokens={})", self.0.requests().len(), self.0.block_tokens())
    }
}

/// A trace on its way through a pool or a manager.
#[pyclass(frozen, module = "kvpool._core", name = "Replay")]
pub(crate) struct PyReplay(Mutex<Replay>);

#[pymethods]
impl PyReplay {
    #[new]
    #[pyo3(signature = (
        trace, *, mode="lookup", block_size=16, capacity_blocks=100_000, algorithm="sha256", verify="none", seed=None,
        eviction="lru", watermark=0.0, max_running=256, step_tokens=8192, step_ms=20.0,
        prefill_tokens_per_s=50_000.0, threads=0
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python constructor")]
    fn new(
        py: Python<'_>,
        trace: &Bound<'_, PyTrace>,
        mode: &str,
        block_size: i128,
        capacity_blocks: i128,
        algorithm: &str,
        verify: &str,
        seed: Option<String>,
        eviction: &str,
        watermark: f64,
        max_running: i128,
        step_tokens: i128,
        step_ms: f64,
        prefill_tokens_per_s: f64,
        threads: i128,
    ) -> PyResult<Self> {
        let config = ReplayConfig {
            mode: named(py, mode)?,
            block_size: count(py, "block_size", block_size)?,
            capacity_blocks: count(py, "capacity_blocks", capacity_blocks)?,
            algorithm: named(py, algorithm)?,
            verify: named(py, verify)?,
            seed,
            eviction: named(py, eviction)?,
            watermark,
            max_running: count(py, "max_running", max_running)?,
            step_tokens: count(py, "step_tokens", step_tokens)?,
            step_ms,
            prefill_tokens_per_s,
            threads: count(py, "threads", threads)?,
        };
        let trace = trace.get().0.clone();
        Ok(Self(Mutex::new(py.detach(|| Replay::new(trace, config)).or_raise(py)?)))
    }

    /// Requests of the trace.
    #[getter]
    fn total(&self, py: Python<'_>) -> usize {
        enter(py, &self.0, |replay| replay.total())
    }

    /// Runs on until this many more requests are finished, or all are, and returns how many are finished.
    #[pyo3(signature = (requests=None))]
    fn advance(&self, py: Python<'_>, requests: Option<Int>) -> PyResult<usize> {
        let requests = requests.map_or(Ok(usize::MAX), |n| count(py, "requests", n))?;
        enter_sized(py, &self.0, LONG, |replay| replay.advance(requests)).or_raise(py)
    }

    /// Returns what has been measured so far, as a JSON object.
    fn report_json(&self, py: Python<'_>) -> PyResult<String> {
        let report = enter(py, &self.0, |replay| replay.report());
        serde_json::to_string(&report).map_err(|error| raise(py, "KvpoolError", error.to_string()))
    }

    /// Recounts the invariants of the pool or manager that is replayed.
    fn check_invariants(&self, py: Python<'_>) -> PyResult<()> {
        enter_sized(py, &self.0, LONG, |replay| replay.check_invariants()).or_raise(py)
    }
}
