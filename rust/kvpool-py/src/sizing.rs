//! Bindings of `References`, `HitCurve` and `PolicyRun`, the estimators of `kvpool.sizing`.

use std::sync::Arc;

use kvpool_replay::sizing::{
    Blocks, Form, HintConfig, HitCurve, KvBytes, Outcome, PolicyRun, References, ReuseDistances,
    SampleConfig, SampledLru, SizingError, lru_distances, lru_with_hints, optimal, over_time, run_policy,
};
use pyo3::types::PyDict;

use crate::convert::{Int, count};
use crate::errors::{OrRaise, ToPyErr, raise};
use crate::gather::{gather, or_wrong_item};
use crate::hashing::named;
use crate::python::prelude::*;
use crate::replay::PyTrace;
use crate::retention::eviction_named;

impl ToPyErr for SizingError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::BrokenPrefix { .. } => "TraceError",
            _ => "InvalidArgumentError",
        };
        raise(py, class, self.to_string())
    }
}

#[pyfunction]
pub(crate) fn eviction_policies() -> Vec<&'static str> {
    kvpool_policies::ALL.iter().map(|policy| policy.name()).collect()
}

#[pyfunction]
pub(crate) fn policy_removal(name: &str) -> Option<String> {
    kvpool_policies::removal(name)
}

#[pyclass(frozen, module = "kvpool._core.sizing", name = "References")]
pub(crate) struct PyReferences(Arc<References>);

#[pymethods]
impl PyReferences {
    #[new]
    #[pyo3(signature = (trace, *, blocks="all"))]
    fn new(py: Python<'_>, trace: &Bound<'_, PyTrace>, blocks: &str) -> PyResult<Self> {
        let which: Blocks = named(py, blocks)?;
        let trace = trace.get().shared();
        Ok(Self(Arc::new(py.detach(|| References::new(&trace, which)).or_raise(py)?)))
    }

    getters! {
        requests: usize = self.0.requests();
        references: usize = self.0.len();
        unique_blocks: usize = self.0.unique_blocks();
        prompt_tokens: u64 = self.0.prompt_tokens();
        block_tokens: usize = self.0.block_tokens();
        finish_reasons: usize = self.0.finish_reasons();
    }

    fn without_finish_reasons(&self) -> Self {
        Self(Arc::new(self.0.without_finish_reasons()))
    }

    fn lru(&self, py: Python<'_>) -> PyHitCurve {
        PyHitCurve { distances: py.detach(|| lru_distances(&self.0)), sample_rate: 1.0 }
    }

    #[pyo3(signature = (policy, capacity_blocks, *, form="pool"))]
    fn run(&self, py: Python<'_>, policy: &str, capacity_blocks: i128, form: &str) -> PyResult<PyPolicyRun> {
        let (policy, form): (_, Form) = (eviction_named(py, policy)?, named(py, form)?);
        let capacity = count(py, "capacity_blocks", capacity_blocks)?;
        let run = py.detach(|| run_policy(&self.0, capacity, policy, form)).or_raise(py)?;
        Ok(PyPolicyRun(Run::Policy(run)))
    }

    fn optimal(&self, py: Python<'_>, capacity_blocks: i128) -> PyResult<PyPolicyRun> {
        let capacity = count(py, "capacity_blocks", capacity_blocks)?;
        Ok(PyPolicyRun(Run::Outcome(py.detach(|| optimal(&self.0, capacity)))))
    }

    #[pyo3(signature = (capacity_blocks, accuracy, *, seed=0))]
    fn lru_with_hints(
        &self,
        py: Python<'_>,
        capacity_blocks: i128,
        accuracy: f64,
        seed: i128,
    ) -> PyResult<PyPolicyRun> {
        let capacity = count(py, "capacity_blocks", capacity_blocks)?;
        let config = HintConfig { accuracy, seed: count(py, "seed", seed)? as u64 };
        let outcome = py.detach(|| lru_with_hints(&self.0, capacity, config)).or_raise(py)?;
        Ok(PyPolicyRun(Run::Outcome(outcome)))
    }

    fn over_time<'py>(
        &self,
        py: Python<'py>,
        run: &Bound<'py, PyPolicyRun>,
        window_s: f64,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let outcome = run.get().outcome();
        let windows = py.detach(|| over_time(&self.0, outcome, window_s * 1000.0)).or_raise(py)?;
        let as_dict = |window: &kvpool_replay::sizing::Window| {
            let out = PyDict::new(py);
            out.set_item("start_s", window.start_ms / 1000.0)?;
            out.set_item("requests", window.requests)?;
            out.set_item("references", window.blocks)?;
            out.set_item("block_hits", window.block_hits)?;
            out.set_item("tokens", window.tokens)?;
            out.set_item("token_hits", window.token_hits)?;
            Ok(out)
        };
        windows.iter().map(as_dict).collect()
    }

    fn __repr__(&self) -> String {
        let (references, unique) = (self.0.len(), self.0.unique_blocks());
        format!("References(requests={}, references={references}, unique_blocks={unique})", self.0.requests())
    }
}

#[pyclass(frozen, module = "kvpool._core.sizing", name = "HitCurve")]
pub(crate) struct PyHitCurve {
    distances: ReuseDistances,
    sample_rate: f64,
}

impl PyHitCurve {
    fn curve(&self) -> &HitCurve {
        self.distances.curve()
    }

    fn rates(&self, point: kvpool_replay::sizing::CurvePoint) -> (u64, f64, f64) {
        let curve = self.curve();
        (point.capacity_blocks, curve.block_rate(point), curve.token_rate(point))
    }
}

#[pymethods]
impl PyHitCurve {
    getters! {
        sample_rate: f64 = self.sample_rate;
        references: u64 = self.curve().references();
    }

    fn at(&self, py: Python<'_>, capacity_blocks: i128) -> PyResult<(f64, f64)> {
        let capacity: usize = count(py, "capacity_blocks", capacity_blocks)?;
        let (_, block, token) = self.rates(self.curve().at(capacity as u64));
        Ok((block, token))
    }

    fn ceiling(&self) -> (u64, f64, f64) {
        self.rates(self.curve().ceiling())
    }

    #[pyo3(signature = (most=200))]
    fn points(&self, py: Python<'_>, most: i128) -> PyResult<Vec<(u64, f64, f64)>> {
        let most: usize = count(py, "most", most)?;
        Ok(self.curve().spread(most).into_iter().map(|point| self.rates(point)).collect())
    }

    fn capacity_for(&self, share: f64) -> Option<(u64, f64, f64)> {
        self.curve().capacity_for(share).map(|point| self.rates(point))
    }

    #[pyo3(signature = (most_blocks=None))]
    fn knee(&self, py: Python<'_>, most_blocks: Option<Int>) -> PyResult<Option<(u64, f64, f64, f64)>> {
        let most = most_blocks.map(|most| count(py, "most_blocks", most)).transpose()?;
        let knee = self.curve().knee(most.map(|most: usize| most as u64));
        Ok(knee.map(|knee| {
            let (blocks, block, token) = self.rates(knee.point);
            (blocks, block, token, knee.prominence)
        }))
    }

    #[pyo3(signature = (bytes_per_token, gib, *, prefill_tokens_per_s=1.0))]
    fn worth<'py>(
        &self,
        py: Python<'py>,
        bytes_per_token: i128,
        gib: &Bound<'_, PyAny>,
        prefill_tokens_per_s: f64,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let bytes: usize = count(py, "bytes_per_token", bytes_per_token)?;
        let gib = gather("gib", gib, |position, item| {
            or_wrong_item("gib", position, &item, "a number", crate::convert::float(&item))
        })?;
        let kv = KvBytes::per_token(bytes as u64).or_raise(py)?;
        let worth = self.curve().worth(kv, &gib, prefill_tokens_per_s).or_raise(py)?;
        let as_dict = |worth: &kvpool_replay::sizing::Worth| {
            let out = PyDict::new(py);
            out.set_item("gib", worth.gib)?;
            out.set_item("blocks", worth.point.capacity_blocks)?;
            out.set_item("token_hits", worth.point.token_hits)?;
            out.set_item("block_hit_rate", worth.block_rate)?;
            out.set_item("token_hit_rate", worth.token_rate)?;
            out.set_item("seconds_saved", worth.seconds_saved)?;
            Ok(out)
        };
        worth.iter().map(as_dict).collect()
    }

    fn distances(&self) -> Vec<(u64, u64, u64)> {
        self.distances.histogram().iter().map(|bucket| (bucket.from, bucket.to, bucket.references)).collect()
    }

    fn distance_quantile(&self, fraction: f64) -> Option<u64> {
        self.distances.quantile(fraction)
    }
}

#[pyfunction]
#[pyo3(signature = (trace, *, rate=1.0, max_blocks=None, seed=0, blocks="all"))]
pub(crate) fn sampled_lru(
    py: Python<'_>,
    trace: &Bound<'_, PyTrace>,
    rate: f64,
    max_blocks: Option<Int>,
    seed: i128,
    blocks: &str,
) -> PyResult<PyHitCurve> {
    let trace = trace.get().shared();
    let config = SampleConfig {
        rate,
        max_blocks: max_blocks.map(|most| count(py, "max_blocks", most)).transpose()?,
        seed: count(py, "seed", seed)? as u64,
        block_tokens: trace.block_tokens(),
        blocks: named(py, blocks)?,
    };
    let sampled = py.detach(|| {
        let mut sampled = SampledLru::new(config)?;
        trace.requests().iter().for_each(|request| sampled.push(request));
        let sample_rate = sampled.rate();
        Ok::<_, SizingError>(PyHitCurve { distances: sampled.finish(), sample_rate })
    });
    sampled.or_raise(py)
}

#[pyclass(frozen, module = "kvpool._core.sizing", name = "PolicyRun")]
pub(crate) struct PyPolicyRun(Run);

enum Run {
    Policy(PolicyRun),
    /// The result of an estimator that does not count evictions, so `evicted` is None.
    Outcome(Outcome),
}

impl PyPolicyRun {
    const fn outcome(&self) -> &Outcome {
        match &self.0 {
            Run::Policy(run) => run.outcome(),
            Run::Outcome(outcome) => outcome,
        }
    }

    const fn policy(&self) -> Option<&PolicyRun> {
        match &self.0 {
            Run::Policy(run) => Some(run),
            Run::Outcome(_) => None,
        }
    }
}

#[pymethods]
impl PyPolicyRun {
    getters! {
        capacity_blocks: u64 = self.outcome().total().capacity_blocks;
        block_hits: u64 = self.outcome().total().block_hits;
        token_hits: u64 = self.outcome().total().token_hits;
        block_hit_rate: f64 = self.outcome().block_rate();
        token_hit_rate: f64 = self.outcome().token_rate();
        evictions: Option<u64> = self.policy().map(PolicyRun::evictions);
        turnover: Option<f64> = self.policy().and_then(PolicyRun::turnover);
        turnovers: Vec<f64> = self.policy().map_or_else(Vec::new, |run| run.turnovers().to_vec());
    }

    fn __repr__(&self) -> String {
        let (capacity, rate) = (self.capacity_blocks(), self.block_hit_rate());
        format!("PolicyRun(capacity_blocks={capacity}, block_hit_rate={rate:.4})")
    }
}
