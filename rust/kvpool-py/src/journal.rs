//! Bindings of journals: their settings, the statistics of a pool's journal, and the functions that read a
//! journal.
//!
//! If a pool cannot be made, the file of its journal is removed again. A function that reads a whole
//! journal detaches from the interpreter. Every few thousand operations it attaches again, to call the
//! caller's progress function and to check for Ctrl-C.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use kvpool::{BlockPool, ManagerStats, PoolStats};
use kvpool_journal::{
    Difference, EXPORT_LIMIT, Flush, Goal, Journal, JournalConfig, JournalError, JournalFile, JournalHeader,
    JournalSource, Kind, Language, Observed, Observers, Options, Report, Tail, create_file,
};
use kvpool_observe::{Advice, ManagerWatch, MissStats, PoolMetrics, PoolWatch};
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyDict};

use crate::convert::{self, Int, count};
use crate::errors::{OrRaise, ToPyErr, raise};
use crate::python::prelude::*;
use crate::stats::{PyManagerStats, PyPoolStats};
use crate::{advice, explain, metrics};

#[pyclass(frozen, module = "kvpool._core.journal", name = "Journal", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyJournal {
    path: Option<PathBuf>,
    ring_bytes: Option<usize>,
    config: JournalConfig,
}

impl PyJournal {
    /// Makes a journal with these settings and passes it to `make`. If `make` fails, removes the journal's
    /// file.
    pub(crate) fn record<T: Send, E: ToPyErr + Send>(
        &self,
        py: Python<'_>,
        make: impl FnOnce(Journal) -> Result<T, E> + Send,
    ) -> PyResult<T> {
        let journal = py.detach(|| match &self.path {
            None => Journal::ring(self.ring_bytes.unwrap_or(0), self.config),
            Some(path) => Journal::create(path, self.config),
        });
        let journal = journal.or_raise(py)?;
        py.detach(|| make(journal)).or_raise(py).inspect_err(|_| {
            if let Some(path) = &self.path {
                // The caller gets the error of `make`. An error of the removal is ignored.
                let _ = std::fs::remove_file(path);
            }
        })
    }
}

/// Refuses a journal for a pool whose policy is an object of the caller.
pub(crate) fn refuse_own_policy(py: Python<'_>, journal: Option<&Bound<'_, PyJournal>>) -> PyResult<()> {
    let message = "eviction is a policy of your own, which a journal cannot hold: what it decides could \
        not be replayed. \
                   Leave journal out, or take one of eviction_policies()";
    journal.map_or(Ok(()), |_| Err(raise(py, "JournalError", message)))
}

#[pymethods]
impl PyJournal {
    #[new]
    #[pyo3(
        signature = (path=None, *, ring_bytes=None, digest_every=None, frame_bytes=None),
        text_signature = "(path=None, *, ring_bytes=None, digest_every=65536, frame_bytes=32768)"
    )]
    fn new(
        py: Python<'_>,
        path: Option<PathBuf>,
        ring_bytes: Option<Int>,
        digest_every: Option<Int>,
        frame_bytes: Option<Int>,
    ) -> PyResult<Self> {
        let refuse = |message: String| Err(raise(py, "InvalidArgumentError", message));
        let ring_bytes = ring_bytes.map(|bytes| count(py, "ring_bytes", bytes)).transpose()?;
        let mut config = JournalConfig::default();
        if let Some(every) = digest_every {
            let every = count(py, "digest_every", every)?;
            let Ok(number) = u32::try_from(every) else {
                return refuse(format!("digest_every is {every}: must be at most {}", u32::MAX));
            };
            config.digest_every = number;
        }
        if let Some(bytes) = frame_bytes {
            config.frame_bytes = count(py, "frame_bytes", bytes)?;
        }
        match (&path, ring_bytes) {
            (None, None) | (Some(_), Some(_)) => {
                let given = if path.is_some() { "both are given" } else { "neither is given" };
                return refuse(format!("path and ring_bytes: must be one of them, {given}"));
            }
            (None, Some(bytes)) if bytes < config.frame_bytes.saturating_mul(4) => {
                let least = config.frame_bytes.saturating_mul(4);
                return refuse(format!("ring_bytes is {bytes}: must be at least four frames, {least}"));
            }
            // `check` tests the other settings, which a file and a ring share.
            _ => config.check().or_raise(py)?,
        }
        Ok(Self { path, ring_bytes, config })
    }

    getters! {
        path: Option<PathBuf> = self.path.clone();
        ring_bytes: Option<usize> = self.ring_bytes;
        digest_every: u32 = self.config.digest_every;
        frame_bytes: usize = self.config.frame_bytes;
    }

    fn __repr__(&self) -> String {
        let JournalConfig { digest_every, frame_bytes } = self.config;
        let kept = match (&self.path, self.ring_bytes) {
            (Some(path), _) => format!("{path:?}"),
            (None, bytes) => format!("ring_bytes={}", bytes.unwrap_or(0)),
        };
        format!("Journal({kept}, digest_every={digest_every}, frame_bytes={frame_bytes})")
    }
}

#[pyclass(frozen, get_all, module = "kvpool._core.journal", name = "JournalStats", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyJournalStats {
    operations: u64,
    bytes: u64,
    error: Option<String>,
}

#[pymethods]
impl PyJournalStats {
    fn __repr__(&self) -> String {
        let Self { operations, bytes, error } = self;
        let error = error.as_ref().map_or_else(|| "None".into(), |error| format!("{error:?}"));
        format!("JournalStats(operations={operations}, bytes={bytes}, error={error})")
    }
}

impl From<&Journal> for PyJournalStats {
    fn from(journal: &Journal) -> Self {
        Self {
            operations: journal.operations(),
            bytes: journal.bytes(),
            error: journal.error().map(str::to_owned),
        }
    }
}

/// Waits until a journal's records are written. The thread has neither the interpreter nor the pool's lock,
/// so no step waits for the disk.
pub(crate) fn wait(py: Python<'_>, flush: Option<Flush>) {
    if let Some(flush) = flush {
        py.detach(|| flush.wait());
    }
}

/// After a flush, raises the error that stopped the journal, if any.
pub(crate) fn check_flushed(py: Python<'_>, error: Option<String>) -> PyResult<()> {
    let stopped = |error| raise(py, "JournalFileError", format!("the journal has stopped: {error}"));
    error.map_or(Ok(()), |error| Err(stopped(error)))
}

/// Writes the content of a ring to a new file.
pub(crate) fn save(py: Python<'_>, image: Option<Vec<u8>>, path: &Path) -> PyResult<()> {
    let Some(image) = image else {
        let message = "there is no ring to save: make it with journal=Journal(ring_bytes=...)";
        return Err(raise(py, "JournalError", message));
    };
    let mut file = create_file(path).or_raise(py)?;
    let written = py.detach(|| file.write_all(&image).and_then(|()| file.sync_all()));
    written.map_err(|error| raise(py, "JournalFileError", format!("{}: {error}", path.display())))
}

/// An argument that is a journal to read: its bytes, or the path of its file.
#[derive(FromPyObject)]
pub(crate) enum Source {
    Bytes(PyBackedBytes),
    Path(PathBuf),
}

impl crate::python::Single for Source {}

crate::argument::convert_itself!(Source: "a path or bytes");

/// A journal in a form that `kvpool_journal` reads.
enum Loaded {
    Lent(PyBackedBytes),
    /// The bytes of a source that can be read only once, such as a pipe.
    Read(Vec<u8>),
    File(JournalFile),
}

impl Source {
    fn load(self, py: Python<'_>) -> PyResult<Loaded> {
        match self {
            Self::Bytes(bytes) => Ok(Loaded::Lent(bytes)),
            Self::Path(path) => py
                .detach(|| {
                    if path.is_file() {
                        return JournalFile::open(&path).map(Loaded::File);
                    }
                    let failed = |error| JournalError::Io(format!("{}: {error}", path.display()));
                    std::fs::read(&path).map(Loaded::Read).map_err(failed)
                })
                .or_raise(py),
        }
    }
}

impl<'a> From<&'a Loaded> for JournalSource<'a> {
    fn from(loaded: &'a Loaded) -> Self {
        match loaded {
            Loaded::Lent(bytes) => Self::Bytes(bytes),
            Loaded::Read(bytes) => Self::Bytes(bytes),
            Loaded::File(file) => Self::File(file),
        }
    }
}

/// Runs a long call without the interpreter, so that other Python threads can run.
///
/// Every few thousand operations, the call runs `progress`, a function of the caller, and checks for signals.
/// If one of them raises an exception, the call stops and raises it.
fn watched<T: Send, E: ToPyErr + Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    run: impl FnOnce(&mut dyn FnMut(u64) -> bool) -> Result<T, E> + Send,
) -> PyResult<T> {
    let mut raised = None;
    let result = py.detach(|| {
        run(&mut |done| {
            let checked = crate::python::attach(|py| {
                crate::python::check_signals(py)?;
                progress.as_ref().map_or(Ok(()), |progress| progress.bind(py).call1((done,)).map(drop))
            });
            raised = checked.err();
            raised.is_none()
        })
    });
    match raised {
        Some(error) => Err(error),
        None => result.or_raise(py),
    }
}

#[pyclass(frozen, get_all, module = "kvpool._core.journal", name = "JournalDifference", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyJournalDifference {
    kind: &'static str,
    operation: u64,
    since: Option<u64>,
    asked: Option<String>,
    found: Option<String>,
}

impl From<Difference> for PyJournalDifference {
    fn from(difference: Difference) -> Self {
        match difference {
            Difference::Answer { operation, asked, told } => {
                Self { kind: "answer", operation, since: None, asked: Some(asked), found: Some(told) }
            }
            Difference::Digest { operations, since } => {
                Self { kind: "digest", operation: operations, since: Some(since), asked: None, found: None }
            }
            Difference::Invariant { operation, asked, broken } => {
                Self { kind: "invariant", operation, since: None, asked: Some(asked), found: Some(broken) }
            }
            other => Self {
                kind: "other",
                operation: 0,
                since: None,
                asked: None,
                found: Some(format!("{other:?}")),
            },
        }
    }
}

#[pymethods]
impl PyJournalDifference {
    fn __repr__(&self) -> String {
        format!("JournalDifference(kind='{}', operation={})", self.kind, self.operation)
    }
}

/// Returns the attributes `cut_at` and `cut_bytes`: the end of the last whole frame if the end of the journal
/// is missing, and the number of bytes after it.
const fn cut(tail: Tail) -> (Option<usize>, usize) {
    match tail {
        Tail::Cut { at, bytes } => (Some(at), bytes),
        _ => (None, 0),
    }
}

#[pyclass(frozen, get_all, module = "kvpool._core.journal", name = "JournalReport", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyJournalReport {
    operations: u64,
    digests: u64,
    difference: Option<PyJournalDifference>,
    cut_at: Option<usize>,
    cut_bytes: usize,
}

impl From<Report> for PyJournalReport {
    fn from(report: Report) -> Self {
        let (cut_at, cut_bytes) = cut(report.tail);
        let Report { operations, digests, difference, .. } = report;
        Self { operations, digests, difference: difference.map(Into::into), cut_at, cut_bytes }
    }
}

#[pymethods]
impl PyJournalReport {
    #[getter]
    fn is_exact(&self) -> bool {
        self.difference.is_none()
    }

    fn __repr__(&self) -> String {
        let Self { operations, digests, difference, .. } = self;
        let difference = difference.as_ref().map_or_else(|| "None".into(), PyJournalDifference::__repr__);
        format!("JournalReport(operations={operations}, digests={digests}, difference={difference})")
    }
}

#[pyfunction]
#[pyo3(
    signature = (journal, *, until=None, check_every=None, progress=None),
    text_signature = "(journal, *, until=None, check_every=0, progress=None)"
)]
pub(crate) fn replay_journal(
    py: Python<'_>,
    journal: Source,
    until: Option<Int>,
    check_every: Option<Int>,
    progress: Option<Py<PyAny>>,
) -> PyResult<PyJournalReport> {
    let until = until.map(|until| count(py, "until", until)).transpose()?.map(|until| until as u64);
    let check_every = check_every.map_or(Ok(0), |every| count(py, "check_every", every))? as u64;
    let journal = journal.load(py)?;
    let options = Options { until, check_every };
    Ok(watched(py, progress, |progress| kvpool_journal::replay(&journal, options, progress))?.into())
}

#[pyclass(frozen, get_all, module = "kvpool._core.journal", name = "JournalView")]
pub(crate) struct PyJournalView {
    operations: u64,
    subject: &'static str,
    stats: Option<PyManagerStats>,
    pool: PyPoolStats,
    host: Option<PyPoolStats>,
    metrics: Vec<Py<PyDict>>,
    advice: Option<Py<PyDict>>,
}

#[pymethods]
impl PyJournalView {
    fn __repr__(&self) -> String {
        format!("JournalView(operations={}, subject='{}')", self.operations, self.subject)
    }
}

/// The fields of a `JournalView`. They are collected without the interpreter, and converted later.
#[derive(Default)]
struct View {
    operations: u64,
    subject: &'static str,
    stats: Option<(ManagerStats, Option<MissStats>)>,
    pool: PoolStats,
    host: Option<PoolStats>,
    metrics: Vec<PoolMetrics>,
    advice: Option<Advice>,
}

impl View {
    fn new(operations: u64, observed: Observed<'_>) -> Self {
        let of_pool = |subject, pool: &BlockPool| Self {
            operations,
            subject,
            stats: None,
            pool: pool.stats(),
            host: None,
            metrics: pool.metrics().into_iter().collect(),
            advice: pool.advice(),
        };
        match observed {
            Observed::Manager(manager) => Self {
                stats: Some((manager.stats(), manager.misses())),
                host: manager.tiers().pool(1).ok().map(BlockPool::stats),
                metrics: manager.metrics(),
                ..of_pool("manager", manager.pool())
            },
            Observed::Vllm(pool) => of_pool("vllm-pool", pool.core()),
            Observed::Pool(pool) => of_pool("pool", pool),
            _ => Self { subject: "unknown", ..Self::default() },
        }
    }

    fn into_py(self, py: Python<'_>) -> PyResult<PyJournalView> {
        let metrics = self.metrics.iter().map(|tier| Ok(metrics::dict(py, tier)?.unbind()));
        let advice = self.advice.map(|advice| advice::dict(py, &advice)).transpose()?;
        Ok(PyJournalView {
            operations: self.operations,
            subject: self.subject,
            stats: self.stats.map(|(stats, misses)| PyManagerStats::new(stats, misses)),
            pool: self.pool.into(),
            host: self.host.map(Into::into),
            metrics: metrics.collect::<PyResult<_>>()?,
            advice: advice.map(Bound::unbind),
        })
    }
}

#[pyfunction]
#[pyo3(
    signature = (journal, *, every=None, until=None, advisor=None, explain=None, metrics=true, progress=None),
    text_signature = "(journal, *, every=0, until=None, advisor=None, explain=None, metrics=True, \
        progress=None)"
)]
pub(crate) fn observe_journal(
    py: Python<'_>,
    journal: Source,
    every: Option<Int>,
    until: Option<Int>,
    advisor: Option<&Bound<'_, PyAny>>,
    explain: Option<&Bound<'_, PyAny>>,
    metrics: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<(Vec<PyJournalView>, PyJournalReport)> {
    let every = every.map_or(Ok(0), |every| count(py, "every", every))? as u64;
    let until = until.map(|until| count(py, "until", until)).transpose()?.map(|until| until as u64);
    let observers =
        Observers { advisor: advice::config(advisor)?, explain: explain::config(explain)?, metrics };
    let journal = journal.load(py)?;
    let options = Options { until, check_every: 0 };
    let mut views = Vec::new();
    let report = watched(py, progress, |progress| {
        let mut seen = |operations, observed: Observed<'_>| views.push(View::new(operations, observed));
        kvpool_journal::observe(&journal, &observers, options, every, &mut seen, progress)
    })?;
    let views = views.into_iter().map(|view| view.into_py(py)).collect::<PyResult<_>>()?;
    Ok((views, report.into()))
}

#[pyfunction]
#[pyo3(signature = (journal, *, progress=None))]
pub(crate) fn bisect_journal(
    py: Python<'_>,
    journal: Source,
    progress: Option<Py<PyAny>>,
) -> PyResult<PyJournalReport> {
    let journal = journal.load(py)?;
    Ok(watched(py, progress, |progress| kvpool_journal::bisect(&journal, progress))?.into())
}

/// The number of the first operation in which two journals differ, and its record in each.
type Divergent = (u64, Option<String>, Option<String>);

#[pyfunction]
pub(crate) fn compare_journals(py: Python<'_>, first: Source, second: Source) -> PyResult<Option<Divergent>> {
    let (first, second) = (first.load(py)?, second.load(py)?);
    let found = py.detach(|| kvpool_journal::compare(&first, &second)).or_raise(py)?;
    Ok(found.map(|found| (found.operation, found.first, found.second)))
}

#[pyclass(frozen, get_all, module = "kvpool._core.journal", name = "ShrunkJournal")]
pub(crate) struct PyShrunkJournal {
    before: usize,
    operations: Vec<String>,
    failure: String,
    journal: Py<PyBytes>,
    runs: usize,
}

#[pymethods]
impl PyShrunkJournal {
    fn __repr__(&self) -> String {
        let Self { before, operations, failure, .. } = self;
        format!("ShrunkJournal(operations={}, before={before}, failure={failure:?})", operations.len())
    }
}

#[pyfunction]
#[pyo3(signature = (journal, *, operation=None, progress=None))]
pub(crate) fn shrink_journal(
    py: Python<'_>,
    journal: Source,
    operation: Option<Int>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Option<PyShrunkJournal>> {
    let goal = operation.map(|operation| count(py, "operation", operation)).transpose()?;
    let goal = goal.map_or(Goal::Broken, |operation| Goal::Answer(operation as u64));
    let journal = journal.load(py)?;
    let shrunk = watched(py, progress, |progress| {
        kvpool_journal::shrink(&journal, goal, &mut |left| progress(left as u64))
    })?;
    Ok(shrunk.map(|shrunk| PyShrunkJournal {
        before: shrunk.before,
        operations: shrunk.operations,
        failure: shrunk.failure,
        journal: PyBytes::new(py, &shrunk.journal).unbind(),
        runs: shrunk.runs,
    }))
}

/// A writer that passes texts to a Python function. If the function raises an exception, the writer stores it
/// and fails.
struct Pieces {
    write: Py<PyAny>,
    raised: Option<PyErr>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.raised.is_none() {
            let text = std::str::from_utf8(bytes).map_err(std::io::Error::other)?;
            self.raised = crate::python::attach(|py| self.write.bind(py).call1((text,)).err());
        }
        if self.raised.is_some() { Err(std::io::Error::other("write raised")) } else { Ok(bytes.len()) }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[pyfunction]
#[pyo3(
    signature = (journal, language, *, limit=None, write=None),
    text_signature = "(journal, language, *, limit=10000, write=None)"
)]
pub(crate) fn export_journal(
    py: Python<'_>,
    journal: Source,
    language: &str,
    limit: Option<Int>,
    write: Option<Py<PyAny>>,
) -> PyResult<Option<String>> {
    const PIECE: usize = 64 * 1024;
    let language = match language {
        "rust" => Language::Rust,
        "python" => Language::Python,
        other => {
            let other = kvpool::shorten(other);
            let message = format!("language is {other:?}: must be one of rust, python");
            return Err(raise(py, "InvalidArgumentError", message));
        }
    };
    let limit =
        limit.map_or(Ok(EXPORT_LIMIT), |limit| count(py, "limit", limit).map(|limit| limit as u64))?;
    let journal = journal.load(py)?;
    let Some(write) = write else {
        let mut text = Vec::new();
        watched(py, None, |progress| kvpool_journal::export(&journal, language, limit, &mut text, progress))?;
        let text = String::from_utf8(text);
        return text.map(Some).map_err(|error| raise(py, "JournalError", error.to_string()));
    };
    let mut pieces = Pieces { write, raised: None };
    let written = watched(py, None, |progress| {
        let mut out = BufWriter::with_capacity(PIECE, &mut pieces);
        kvpool_journal::export(&journal, language, limit, &mut out, progress)
    });
    match pieces.raised {
        Some(error) => Err(error),
        None => written.map(|_| None),
    }
}

#[pyclass(frozen, get_all, module = "kvpool._core.journal", name = "JournalInfo")]
pub(crate) struct PyJournalInfo {
    subject: &'static str,
    version: String,
    bytes: usize,
    first_operation: u64,
    operations: u64,
    digest_every: u32,
    digests: u64,
    calls: Py<PyDict>,
    cut_at: Option<usize>,
    cut_bytes: usize,
    lines: Vec<(u64, &'static str, String)>,
    settings: Py<PyDict>,
}

#[pymethods]
impl PyJournalInfo {
    fn __repr__(&self) -> String {
        let Self { subject, operations, bytes, .. } = self;
        format!("JournalInfo(subject='{subject}', operations={operations}, bytes={bytes})")
    }
}

fn settings<'py>(py: Python<'py>, header: &JournalHeader) -> PyResult<Bound<'py, PyDict>> {
    let text = serde_json::to_string(header).map_err(|error| raise(py, "JournalError", error.to_string()))?;
    let settings =
        crate::python::import(py, "json")?.call_method1("loads", (text,))?.cast_into::<PyDict>()?;
    for name in ["subject", "crate_version", "digest_every"] {
        settings.del_item(name)?;
    }
    Ok(settings)
}

#[pyfunction]
#[pyo3(
    signature = (
        journal, *, start=None, count=None
    ),
    text_signature = "(journal, *, start=None, count=0)"
)]
pub(crate) fn read_journal(
    py: Python<'_>,
    journal: Source,
    start: Option<Int>,
    count: Option<Int>,
) -> PyResult<PyJournalInfo> {
    let from = start.map(|start| convert::count(py, "start", start)).transpose()?.map(|start| start as u64);
    let count = count.map_or(Ok(0), |count| convert::count(py, "count", count))?;
    let journal = journal.load(py)?;
    let (summary, lines) = py.detach(|| kvpool_journal::show(&journal, from, count)).or_raise(py)?;
    let calls = PyDict::new(py);
    summary.kinds.iter().try_for_each(|(call, count)| calls.set_item(call, count))?;
    let (cut_at, cut_bytes) = cut(summary.tail);
    Ok(PyJournalInfo {
        subject: match summary.header.subject {
            Kind::Pool => "pool",
            Kind::Manager => "manager",
            Kind::VllmPool => "vllm-pool",
        },
        version: summary.header.crate_version.clone(),
        bytes: summary.bytes,
        first_operation: summary.first_operation,
        operations: summary.operations,
        digest_every: summary.header.digest_every,
        digests: summary.digests,
        calls: calls.unbind(),
        cut_at,
        cut_bytes,
        lines: lines.into_iter().map(|line| (line.number, line.call, line.words)).collect(),
        settings: settings(py, &summary.header)?.unbind(),
    })
}
