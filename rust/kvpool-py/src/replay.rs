//! Bindings of `Replay`.

use kvpool::groups::{GroupSpec, Groups, Keep};
use kvpool_replay::replay::{Replay, ReplayConfig, TierConfig};
use pyo3::types::PyString;

use crate::convert::{Int, Text, count, text};
use crate::enter::{LONG, Locked, enter, enter_sized};
use crate::errors::{OrRaise, raise};
use crate::gather::gather_as;
use crate::groups;
use crate::hashing::named;
use crate::journal::{self, PyJournal, PyJournalStats};
use crate::process::OfProcess;
use crate::python::prelude::*;
use crate::retention::eviction_named;
pub(crate) use crate::trace::PyTrace;

/// Number of requests between two checks for signals, such as Ctrl-C.
const AT_ONCE: usize = 64;

/// A KV-cache group in Python's form: its kind, its tokens per block, the tokens of its window or chunk, and
/// the selection of blocks that remain cached.
type GroupTuple<'py> = (Bound<'py, PyString>, usize, usize, Option<Bound<'py, PyAny>>);

fn groups_of(specs: &Bound<'_, PyAny>) -> PyResult<Groups> {
    let py = specs.py();
    let spec = |(kind, block_tokens, span, keep): GroupTuple<'_>| {
        let keep = keep.map_or(Ok(Keep::All), |keep| groups::keep(&keep))?;
        Ok(GroupSpec { keep, ..GroupSpec::new(groups::named(py, text(&kind, "kind")?, span)?, block_tokens) })
    };
    let each = "a tuple (kind, block_size, span, keep)";
    let specs = gather_as("groups", specs, each)?.into_iter().map(spec).collect::<PyResult<Vec<_>>>()?;
    Groups::new(specs, None).or_raise(py)
}

#[pyclass(frozen, module = "kvpool._core.traces", name = "Replay")]
pub(crate) struct PyReplay(OfProcess<Locked<Replay>>);

impl PyReplay {
    fn replay(&self, py: Python<'_>) -> PyResult<&Locked<Replay>> {
        self.0.get(py, "the replay")
    }
}

#[pymethods]
impl PyReplay {
    #[new]
    #[pyo3(signature = (
        trace, *, mode="lookup", block_size=16, groups=None, capacity_blocks=100_000, algorithm="sha256",
        verify="none", seed=None,
        eviction="lru", explain=false, watermark=0.0, max_running=256, step_tokens=8192, step_ms=20.0,
        prefill_tokens_per_s=50_000.0, tiers=None, threads=0, journal=None
    ))]
    fn new(
        py: Python<'_>,
        trace: &Bound<'_, PyTrace>,
        mode: &str,
        block_size: i128,
        groups: Option<&Bound<'_, PyAny>>,
        capacity_blocks: i128,
        algorithm: &str,
        verify: &str,
        seed: Option<Text>,
        eviction: &str,
        explain: bool,
        watermark: f64,
        max_running: i128,
        step_tokens: i128,
        step_ms: f64,
        prefill_tokens_per_s: f64,
        tiers: Option<&Bound<'_, PyAny>>,
        threads: i128,
        journal: Option<&Bound<'_, PyJournal>>,
    ) -> PyResult<Self> {
        let tier = |(blocks, load_ms_per_block): (Int, f64)| {
            Ok(TierConfig { blocks: count(py, "blocks of a tier", blocks)?, load_ms_per_block })
        };
        let each = "a tuple (blocks, load_ms_per_block)";
        let tiers = tiers.map_or(Ok(Vec::new()), |tiers| gather_as("tiers", tiers, each))?;
        let config = ReplayConfig {
            mode: named(py, mode)?,
            block_size: count(py, "block_size", block_size)?,
            groups: groups.map(groups_of).transpose()?,
            capacity_blocks: count(py, "capacity_blocks", capacity_blocks)?,
            algorithm: named(py, algorithm)?,
            verify: named(py, verify)?,
            seed: seed.map(|seed| seed.0),
            eviction: eviction_named(py, eviction)?,
            explain,
            watermark,
            max_running: count(py, "max_running", max_running)?,
            step_tokens: count(py, "step_tokens", step_tokens)?,
            step_ms,
            prefill_tokens_per_s,
            tiers: tiers.into_iter().map(tier).collect::<PyResult<_>>()?,
            threads: count(py, "threads", threads)?,
        };
        let trace = trace.get().shared();
        let replay = match journal {
            None => py.detach(|| Replay::new(trace, config)).or_raise(py),
            Some(journal) => journal.get().record(py, |journal| Replay::with_journal(trace, config, journal)),
        };
        Ok(Self(OfProcess::new(Locked::new(replay?))))
    }

    #[getter]
    fn total(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(enter(py, self.replay(py)?, |replay| replay.total()))
    }

    #[pyo3(signature = (requests=None))]
    fn advance(&self, py: Python<'_>, requests: Option<Int>) -> PyResult<usize> {
        let requests = requests.map_or(Ok(usize::MAX), |n| count(py, "requests", n))?;
        let replay = self.replay(py)?;
        let run = |some| enter_sized(py, replay, LONG, |replay| replay.advance(some)).or_raise(py);
        let (mut finished, total) = (run(0)?, self.total(py)?);
        let target = total.min(finished.saturating_add(requests));
        while finished < target {
            finished = run(AT_ONCE.min(target - finished))?;
            crate::python::check_signals(py)?;
        }
        Ok(finished)
    }

    fn report_json(&self, py: Python<'_>) -> PyResult<String> {
        let report = enter(py, self.replay(py)?, |replay| replay.report());
        serde_json::to_string(&report).map_err(|error| raise(py, "KvpoolError", error.to_string()))
    }

    fn journal_stats(&self, py: Python<'_>) -> PyResult<Option<PyJournalStats>> {
        Ok(enter(py, self.replay(py)?, |replay| replay.journal().map(Into::into)))
    }

    fn flush_journal(&self, py: Python<'_>) -> PyResult<()> {
        let flush = |replay: &mut Replay| {
            replay.flush_journal();
            replay.journal().and_then(|journal| journal.error().map(str::to_owned))
        };
        journal::check_flushed(py, enter_sized(py, self.replay(py)?, LONG, flush))
    }

    fn check_invariants(&self, py: Python<'_>) -> PyResult<()> {
        enter_sized(py, self.replay(py)?, LONG, |replay| replay.check_invariants()).or_raise(py)
    }
}
