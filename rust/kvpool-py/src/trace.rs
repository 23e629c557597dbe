//! Bindings of `Trace` and `TraceReader`.

use std::io::{self, BufReader, Cursor, Write};
use std::path::PathBuf;
use std::sync::Arc;

use kvpool_replay::formats::{ReadNotes, TraceFormat, write_trace};
use kvpool_replay::generate::{GeneratorConfig, generate};
use kvpool_replay::reader::{ReadOptions, ReadTrace, TraceLoader};
use kvpool_replay::stats::TraceStats;
use kvpool_replay::trace::Trace;
use pyo3::types::{PyBytes, PyDict};

use crate::convert::{Int, count};
use crate::enter::{LONG, Locked, enter_sized};
use crate::errors::{OrRaise, raise};
use crate::hashing::named;
use crate::python::prelude::*;

#[pyfunction]
pub(crate) fn trace_formats() -> Vec<&'static str> {
    TraceFormat::ALL.iter().map(|format| format.name()).collect()
}

#[pyclass(frozen, module = "kvpool._core.traces", name = "Trace")]
pub(crate) struct PyTrace {
    trace: Arc<Trace>,
    /// The format in which the trace was read, and the counts of irregularities that its reader found. `None`
    /// if the trace was generated.
    origin: Option<(TraceFormat, ReadNotes)>,
}

impl PyTrace {
    pub(crate) fn shared(&self) -> Arc<Trace> {
        self.trace.clone()
    }
}

impl From<ReadTrace> for PyTrace {
    fn from(read: ReadTrace) -> Self {
        Self { trace: Arc::new(read.trace), origin: Some((read.format, read.notes)) }
    }
}

/// The arguments that all functions that read a trace have in common.
struct Reading<'a> {
    format: &'a str,
    block_tokens: Option<Int>,
    limit: Option<Int>,
    check_prefixes: bool,
    sort: bool,
    sessions_at_once: Option<Int>,
    event_gap_s: f64,
}

impl Reading<'_> {
    fn options(self, py: Python<'_>) -> PyResult<ReadOptions> {
        let event_gap_ms = self.event_gap_s * 1e3;
        if event_gap_ms.is_nan() || event_gap_ms < 0.0 {
            let message = format!("event_gap_s is {}: must be 0 or more", self.event_gap_s);
            return Err(raise(py, "InvalidArgumentError", message));
        }
        Ok(ReadOptions {
            format: if self.format == "auto" { None } else { Some(named(py, self.format)?) },
            block_tokens: self.block_tokens.map(|tokens| count(py, "block_tokens", tokens)).transpose()?,
            limit: self.limit.map(|limit| count(py, "limit", limit)).transpose()?,
            check_prefixes: self.check_prefixes,
            sort: self.sort,
            sessions_at_once: self
                .sessions_at_once
                .map(|sessions| count(py, "sessions_at_once", sessions))
                .transpose()?,
            event_gap_ms,
            ..ReadOptions::default()
        })
    }
}

fn open(path: &PathBuf, options: &ReadOptions) -> Result<TraceLoader, kvpool_replay::error::TraceError> {
    if path.as_os_str() == "-" {
        TraceLoader::from_reader(BufReader::with_capacity(1 << 17, io::stdin()), options)
    } else {
        TraceLoader::open(path, options)
    }
}

#[pymethods]
impl PyTrace {
    #[staticmethod]
    #[pyo3(signature = (
        path, *, format="auto", block_tokens=None, limit=None, check_prefixes=true, sort=false,
        sessions_at_once=None,
        event_gap_s=5.0
    ))]
    fn read(
        py: Python<'_>,
        path: PathBuf,
        format: &str,
        block_tokens: Option<Int>,
        limit: Option<Int>,
        check_prefixes: bool,
        sort: bool,
        sessions_at_once: Option<Int>,
        event_gap_s: f64,
    ) -> PyResult<Self> {
        let reading =
            Reading { format, block_tokens, limit, check_prefixes, sort, sessions_at_once, event_gap_s };
        let options = reading.options(py)?;
        Ok(py.detach(|| open(&path, &options)?.finish()).or_raise(py)?.into())
    }

    #[staticmethod]
    #[pyo3(signature = (
        data, *, format="auto", block_tokens=None, limit=None, check_prefixes=true, sort=false,
        sessions_at_once=None,
        event_gap_s=5.0
    ))]
    fn parse(
        py: Python<'_>,
        data: &[u8],
        format: &str,
        block_tokens: Option<Int>,
        limit: Option<Int>,
        check_prefixes: bool,
        sort: bool,
        sessions_at_once: Option<Int>,
        event_gap_s: f64,
    ) -> PyResult<Self> {
        let reading =
            Reading { format, block_tokens, limit, check_prefixes, sort, sessions_at_once, event_gap_s };
        let options = reading.options(py)?;
        let read = py.detach(|| kvpool_replay::reader::read_trace(Cursor::new(data), &options));
        Ok(read.or_raise(py)?.into())
    }

    #[staticmethod]
    #[pyo3(signature = (
        requests=2000, *, seed=0, block_tokens=512, rate_per_s=None, chat_fraction=None, agent_fraction=None
    ))]
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
        Ok(Self { trace: Arc::new(py.detach(|| generate(&config)).or_raise(py)?), origin: None })
    }

    #[pyo3(signature = (format="mooncake"))]
    fn to_jsonl<'py>(&self, py: Python<'py>, format: &str) -> PyResult<Bound<'py, PyBytes>> {
        let format = named(py, format)?;
        let write = || {
            let mut out = Vec::new();
            write_trace(&self.trace, format, &mut out).map(|()| out)
        };
        Ok(PyBytes::new(py, &py.detach(write).or_raise(py)?))
    }

    #[pyo3(signature = (file, format="mooncake"))]
    fn write_jsonl(&self, py: Python<'_>, file: Py<PyAny>, format: &str) -> PyResult<()> {
        let format = named(py, format)?;
        let mut out = PyFile { file, error: None };
        let written = py.detach(|| write_trace(&self.trace, format, &mut out));
        // If the file's `write` raised an exception, that exception is returned, because it contains more
        // than the error of `write_trace`.
        out.error.map_or_else(|| written.or_raise(py), Err)
    }

    fn with_block_tokens(&self, py: Python<'_>, block_tokens: i128) -> PyResult<Self> {
        let block_tokens = count(py, "block_tokens", block_tokens)?;
        let trace = py.detach(|| self.trace.with_block_tokens(block_tokens)).or_raise(py)?;
        Ok(Self { trace: Arc::new(trace), origin: self.origin })
    }

    fn summary<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let summary = py.detach(|| self.trace.summary());
        let out = PyDict::new(py);
        out.set_item("requests", summary.requests)?;
        out.set_item("span_ms", summary.span_ms)?;
        out.set_item("input_tokens", summary.input_tokens)?;
        out.set_item("output_tokens", summary.output_tokens)?;
        out.set_item("longest_input", summary.longest_input)?;
        out.set_item("block_references", summary.block_references)?;
        out.set_item("partial_blocks", summary.partial_blocks)?;
        out.set_item("unique_blocks", summary.unique_blocks)?;
        out.set_item("block_tokens", self.trace.block_tokens())?;
        Ok(out)
    }

    fn stats_json(&self, py: Python<'_>) -> PyResult<String> {
        let stats = py.detach(|| TraceStats::new(&self.trace));
        serde_json::to_string(&stats).map_err(|error| raise(py, "KvpoolError", error.to_string()))
    }

    getters! {
        format: Option<&'static str> = self.origin.map(|(format, _)| format.name());
        block_tokens: usize = self.trace.block_tokens();
    }

    fn notes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let notes = self.origin.map(|(_, notes)| notes).unwrap_or_default();
        let out = PyDict::new(py);
        out.set_item("records", notes.records)?;
        out.set_item("reordered", notes.reordered)?;
        out.set_item("unchained", notes.unchained)?;
        out.set_item("regrouped", notes.regrouped)?;
        out.set_item("untimed", notes.untimed)?;
        out.set_item("skipped_events", notes.skipped_events)?;
        out.set_item("unknown_parents", notes.unknown_parents)?;
        Ok(out)
    }

    fn __len__(&self) -> usize {
        self.trace.requests().len()
    }

    fn __repr__(&self) -> String {
        format!("Trace(requests={}, block_tokens={})", self.trace.requests().len(), self.trace.block_tokens())
    }
}

/// A writer over a Python file. If the file's `write` raises an exception, the writer stores it and fails.
struct PyFile {
    file: Py<PyAny>,
    error: Option<PyErr>,
}

impl Write for PyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = crate::python::attach(|py| {
            crate::python::check_signals(py)?;
            let written = self.file.bind(py).call_method1("write", (PyBytes::new(py, bytes),))?;
            // A raw file may return a smaller number of written bytes. If `write` returns no number, it has
            // written all bytes.
            let whole = bytes.len();
            Ok(written.extract::<usize>().map_or(whole, |written| written.min(whole)))
        });
        written.map_err(|error| {
            self.error = Some(error);
            io::Error::other("the file's write failed")
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[pyclass(frozen, module = "kvpool._core.traces", name = "TraceReader")]
pub(crate) struct PyTraceReader(Locked<Option<TraceLoader>>);

impl PyTraceReader {
    /// Runs a call on the loader without the interpreter, because the loader reads files.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Option<TraceLoader>) -> R + Send,
    ) -> PyResult<R> {
        let result = enter_sized(py, &self.0, LONG, |loader| loader.is_some().then(|| call(loader)));
        result.ok_or_else(|| raise(py, "KvpoolError", "the reader has given its trace, or has failed"))
    }
}

#[pymethods]
impl PyTraceReader {
    #[new]
    #[pyo3(signature = (
        path, *, format="auto", block_tokens=None, limit=None, check_prefixes=true, sort=false,
        sessions_at_once=None,
        event_gap_s=5.0
    ))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        format: &str,
        block_tokens: Option<Int>,
        limit: Option<Int>,
        check_prefixes: bool,
        sort: bool,
        sessions_at_once: Option<Int>,
        event_gap_s: f64,
    ) -> PyResult<Self> {
        let reading =
            Reading { format, block_tokens, limit, check_prefixes, sort, sessions_at_once, event_gap_s };
        let options = reading.options(py)?;
        Ok(Self(Locked::new(Some(py.detach(|| open(&path, &options)).or_raise(py)?))))
    }

    #[pyo3(signature = (size=4_194_304))]
    fn advance(&self, py: Python<'_>, size: i128) -> PyResult<bool> {
        let bytes = count(py, "size", size)? as u64;
        let read = self.with(py, |loader| {
            let read = loader.as_mut().map_or(Ok(true), |loader| loader.advance(bytes));
            if read.is_err() {
                *loader = None;
            }
            read
        })?;
        read.or_raise(py)
    }

    #[getter]
    fn bytes_read(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |loader| loader.as_ref().map_or(0, TraceLoader::bytes_read))
    }

    #[getter]
    fn total_bytes(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        self.with(py, |loader| loader.as_ref().and_then(TraceLoader::total_bytes))
    }

    fn finish(&self, py: Python<'_>) -> PyResult<PyTrace> {
        let read = self.with(py, |loader| loader.take().map(TraceLoader::finish))?;
        match read {
            Some(read) => Ok(read.or_raise(py)?.into()),
            None => Err(raise(py, "KvpoolError", "the reader has given its trace, or has failed")),
        }
    }
}
