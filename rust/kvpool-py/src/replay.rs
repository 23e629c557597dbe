//! `Replay`.

use kvpool::groups::{GroupSpec, Groups, Keep};
use kvpool_replay::replay::{Replay, ReplayConfig, TierConfig};
use pyo3::prelude::*;

use crate::convert::{Int, Text, count, float, int};
use crate::enter::{LONG, Locked, enter, enter_sized};
use crate::errors::{OrRaise, raise};
use crate::groups;
use crate::hashing::named;
use crate::journal::{self, PyJournal, PyJournalStats};
use crate::retention::eviction_named;
pub(crate) use crate::trace::PyTrace;

/// Requests from one look at signals to the next.
const AT_ONCE: usize = 64;

/// A KV-cache group: its kind, tokens per block, tokens of its window or chunk, and what stays cached.
type GroupTuple<'py> = (String, usize, usize, Option<Bound<'py, PyAny>>);

fn groups_of(py: Python<'_>, specs: Vec<GroupTuple<'_>>) -> PyResult<Groups> {
    let spec = |(kind, block_tokens, span, keep): GroupTuple<'_>| {
        let keep = keep.map_or(Ok(Keep::All), |keep| groups::keep(&keep))?;
        Ok(GroupSpec { keep, ..GroupSpec::new(groups::named(py, &kind, span)?, block_tokens) })
    };
    let specs = specs.into_iter().map(spec).collect::<PyResult<Vec<_>>>()?;
    Groups::new(specs, None).or_raise(py)
}

#[doc = doc!("Replay")]
#[pyclass(frozen, module = "kvpool._core.traces", name = "Replay")]
pub(crate) struct PyReplay(Locked<Replay>);

#[pymethods]
impl PyReplay {
    #[new]
    #[pyo3(signature = (
        trace, *, mode="lookup", block_size=16, groups=None, capacity_blocks=100_000, algorithm="sha256", verify="none", seed=None,
        eviction="lru", explain=false, watermark=0.0, max_running=256, step_tokens=8192, step_ms=20.0,
        prefill_tokens_per_s=50_000.0, tiers=None, threads=0, journal=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments of a Python constructor")]
    fn new(
        py: Python<'_>,
        #[pyo3(from_py_with = crate::convert::instance)] trace: &Bound<'_, PyTrace>,
        #[pyo3(from_py_with = crate::convert::word)] mode: &str,
        #[pyo3(from_py_with = int)] block_size: i128,
        groups: Option<Vec<GroupTuple<'_>>>,
        #[pyo3(from_py_with = int)] capacity_blocks: i128,
        #[pyo3(from_py_with = crate::convert::word)] algorithm: &str,
        #[pyo3(from_py_with = crate::convert::word)] verify: &str,
        seed: Option<Text>,
        #[pyo3(from_py_with = crate::convert::word)] eviction: &str,
        #[pyo3(from_py_with = crate::convert::flag)] explain: bool,
        #[pyo3(from_py_with = float)] watermark: f64,
        #[pyo3(from_py_with = int)] max_running: i128,
        #[pyo3(from_py_with = int)] step_tokens: i128,
        #[pyo3(from_py_with = float)] step_ms: f64,
        #[pyo3(from_py_with = float)] prefill_tokens_per_s: f64,
        tiers: Option<Vec<(Int, f64)>>,
        #[pyo3(from_py_with = int)] threads: i128,
        #[pyo3(from_py_with = crate::convert::some_instance)] journal: Option<&Bound<'_, PyJournal>>,
    ) -> PyResult<Self> {
        let tier = |(blocks, load_ms_per_block): (Int, f64)| {
            Ok(TierConfig { blocks: count(py, "blocks of a tier", blocks)?, load_ms_per_block })
        };
        let config = ReplayConfig {
            mode: named(py, mode)?,
            block_size: count(py, "block_size", block_size)?,
            groups: groups.map(|specs| groups_of(py, specs)).transpose()?,
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
            tiers: tiers.unwrap_or_default().into_iter().map(tier).collect::<PyResult<_>>()?,
            threads: count(py, "threads", threads)?,
        };
        let trace = trace.get().shared();
        let replay = match journal {
            None => py.detach(|| Replay::new(trace, config)).or_raise(py),
            Some(journal) => journal.get().record(py, |journal| Replay::with_journal(trace, config, journal)),
        };
        Ok(Self(Locked::new(replay?)))
    }

    #[doc = doc!("Replay.total")]
    #[getter]
    fn total(&self, py: Python<'_>) -> usize {
        enter(py, &self.0, |replay| replay.total())
    }

    #[doc = doc!("Replay.advance")]
    #[pyo3(signature = (requests=None))]
    fn advance(&self, py: Python<'_>, requests: Option<Int>) -> PyResult<usize> {
        let requests = requests.map_or(Ok(usize::MAX), |n| count(py, "requests", n))?;
        let run = |some| enter_sized(py, &self.0, LONG, |replay| replay.advance(some)).or_raise(py);
        let (mut finished, total) = (run(0)?, self.total(py));
        let target = total.min(finished.saturating_add(requests));
        while finished < target {
            finished = run(AT_ONCE.min(target - finished))?;
            py.check_signals()?;
        }
        Ok(finished)
    }

    #[doc = doc!("Replay.report_json")]
    fn report_json(&self, py: Python<'_>) -> PyResult<String> {
        let report = enter(py, &self.0, |replay| replay.report());
        serde_json::to_string(&report).map_err(|error| raise(py, "KvpoolError", error.to_string()))
    }

    #[doc = doc!("Replay.journal_stats")]
    fn journal_stats(&self, py: Python<'_>) -> Option<PyJournalStats> {
        enter(py, &self.0, |replay| replay.journal().map(Into::into))
    }

    #[doc = doc!("Replay.flush_journal")]
    fn flush_journal(&self, py: Python<'_>) -> PyResult<()> {
        let flush = |replay: &mut Replay| {
            replay.flush_journal();
            replay.journal().and_then(|journal| journal.error().map(str::to_owned))
        };
        journal::check_flushed(py, enter_sized(py, &self.0, LONG, flush))
    }

    #[doc = doc!("Replay.check_invariants")]
    fn check_invariants(&self, py: Python<'_>) -> PyResult<()> {
        enter_sized(py, &self.0, LONG, |replay| replay.check_invariants()).or_raise(py)
    }
}
