//! Bindings of `Step`, a planned scheduler step.

use kvpool::{CacheManager, ManagerError, RequestRef, StepOutcome, StepPlan};
use pyo3::types::PyList;

use super::batch::{Batch, part};
use super::{PyCacheManager, blocks_of};
use crate::convert::{Int, count, tokens, until_of};
use crate::enter::{Locked, enter};
use crate::errors::{OrRaise, raise};
use crate::groups::changed;
use crate::hashing::PyExtraKeys;
use crate::python::prelude::*;
use crate::request::{request_id, request_ref};
use crate::retention;
use crate::stats::PyAdmission;

/// The state of a planned step.
enum State {
    /// Operations can be planned. The number is an estimate of the blocks and tokens that the commit will
    /// process.
    Open(Box<StepPlan>, usize),
    /// A call is using the plan.
    Busy,
    Over,
}

#[pyclass(frozen, module = "kvpool._core.requests", name = "Step")]
pub(crate) struct PyStep {
    manager: Py<PyCacheManager>,
    state: Locked<State>,
}

impl PyCacheManager {
    pub(super) fn begin_step(slf: Bound<'_, Self>) -> PyResult<PyStep> {
        let plan = slf.get().enter(slf.py(), 0, |manager| manager.plan_step())?;
        Ok(PyStep { manager: slf.unbind(), state: Locked::new(State::Open(Box::new(plan), 0)) })
    }
}

impl PyStep {
    /// Takes the plan out of the step for one call, so that no other thread uses it meanwhile.
    fn take(&self, py: Python<'_>) -> PyResult<(Box<StepPlan>, usize)> {
        let taken = enter(py, &self.state, |state| match std::mem::replace(state, State::Busy) {
            State::Open(plan, work) => Ok((plan, work)),
            other => {
                *state = other;
                Err(matches!(state, State::Busy))
            }
        });
        taken.map_err(|busy| {
            let message = if busy {
                "another thread is using this step: let one thread plan it"
            } else {
                "this step is over: begin a new one"
            };
            raise(py, "StaleStepError", message)
        })
    }

    /// Stores the plan again after a call, unless the step was rolled back meanwhile.
    fn put(&self, py: Python<'_>, next: State) {
        enter(py, &self.state, |state| {
            if matches!(state, State::Busy) {
                *state = next;
            }
        });
    }

    /// Ends the step if a call was refused.
    ///
    /// This happens if a policy written in Python uses a step of its own manager during a call of the
    /// manager. The plan is lost.
    fn unless_refused<R>(&self, py: Python<'_>, done: PyResult<R>) -> PyResult<R> {
        done.inspect_err(|_| self.put(py, State::Over))
    }

    /// Plans an operation that processes `size` blocks or tokens.
    fn plan<R: Send>(
        &self,
        py: Python<'_>,
        size: usize,
        call: impl FnOnce(&CacheManager, &mut StepPlan) -> Result<R, ManagerError> + Send,
    ) -> PyResult<R> {
        let (mut plan, work) = self.take(py)?;
        let planned = self.manager.get().enter(py, size, move |manager| {
            let result = call(manager, &mut plan);
            (result, plan)
        });
        let (result, plan) = self.unless_refused(py, planned)?;
        self.put(py, State::Open(plan, work.saturating_add(size)));
        result.or_raise(py)
    }

    fn size_of(&self, py: Python<'_>, id: RequestRef<'_>) -> PyResult<usize> {
        self.manager.get().enter(py, 0, |manager| blocks_of(manager, id))
    }
}

#[pymethods]
impl PyStep {
    #[pyo3(
        signature = (
            request_id, prompt, extra=None, *, tenant=None, no_cache=false, retention=None,
            allocate_tokens=None, external_tokens=None, reuse=true
        ),
        text_signature = "($self, request_id, prompt, extra=None, *, tenant=None, no_cache=False, \
            retention=None, \
            allocate_tokens=None, external_tokens=0, reuse=True)"
    )]
    fn admit(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        prompt: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
        tenant: Option<Int>,
        no_cache: bool,
        retention: Option<&Bound<'_, PyAny>>,
        allocate_tokens: Option<Int>,
        external_tokens: Option<Int>,
        reuse: bool,
    ) -> PyResult<usize> {
        let part = part(py, allocate_tokens, external_tokens, reuse)?;
        let options = retention::options(py, part, tenant, no_cache, retention)?;
        let id = self::request_id(request_id)?;
        let cursor = self.manager.get().prompt(py, prompt, extra)?;
        let size = cursor.num_tokens() / cursor.hasher().block_size();
        self.plan(py, size, |manager, plan| Ok(manager.plan_admit_with(plan, id, cursor, &options)?))
    }

    #[pyo3(
        signature = (
            request_id, *, allocate_tokens=None, external_tokens=None, reuse=true
        ),
        text_signature = "($self, request_id, *, allocate_tokens=None, external_tokens=0, reuse=True)"
    )]
    fn resume(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        allocate_tokens: Option<Int>,
        external_tokens: Option<Int>,
        reuse: bool,
    ) -> PyResult<usize> {
        let (id, part) = (request_ref(request_id)?, part(py, allocate_tokens, external_tokens, reuse)?);
        self.plan(py, self.size_of(py, id)?, |manager, plan| manager.plan_resume_with(plan, id, part))
    }

    #[pyo3(
        signature = (
            request_id, token_ids, *, lookahead=None
        ),
        text_signature = "($self, request_id, token_ids, *, lookahead=0)"
    )]
    fn append(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        token_ids: &Bound<'_, PyAny>,
        lookahead: Option<Int>,
    ) -> PyResult<usize> {
        let (id, tokens) = (request_ref(request_id)?, tokens(token_ids)?);
        let lookahead = lookahead.map_or(Ok(0), |slots| count(py, "lookahead", slots))?;
        self.plan(py, tokens.len(), |manager, plan| manager.plan_append(plan, id, &tokens, lookahead))
    }

    #[pyo3(
        signature = (
            request_ids, token_ids, offsets=None, *, lookahead=None, covered=None
        ),
        text_signature = "($self, request_ids, token_ids, offsets=None, *, lookahead=0, covered=None)"
    )]
    fn append_ragged(
        &self,
        py: Python<'_>,
        request_ids: &Bound<'_, PyAny>,
        token_ids: &Bound<'_, PyAny>,
        offsets: Option<&Bound<'_, PyAny>>,
        lookahead: Option<Int>,
        covered: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let batch = Batch::new(request_ids, token_ids, offsets, lookahead, covered)?;
        let requests = batch.requests.refs()?;
        let rows = batch.rows(&requests);
        let size = requests.len() + batch.len();
        self.plan(py, size, |manager, plan| manager.plan_append_ragged(plan, &rows))
    }

    #[pyo3(signature = (request_id, *, after_step=None, until=None))]
    fn preempt(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        after_step: Option<Int>,
        until: Option<Int>,
    ) -> PyResult<usize> {
        let (id, until) = (request_ref(request_id)?, until_of(py, after_step, until)?);
        self.plan(py, self.size_of(py, id)?, |manager, plan| manager.plan_preempt(plan, id, until))
    }

    #[pyo3(signature = (request_id, *, after_step=None, until=None))]
    fn release(
        &self,
        py: Python<'_>,
        request_id: &Bound<'_, PyAny>,
        after_step: Option<Int>,
        until: Option<Int>,
    ) -> PyResult<usize> {
        let (id, until) = (request_ref(request_id)?, until_of(py, after_step, until)?);
        self.plan(py, self.size_of(py, id)?, |manager, plan| manager.plan_release(plan, id, until))
    }

    #[getter]
    fn available_blocks(&self, py: Python<'_>) -> PyResult<usize> {
        let (plan, work) = self.take(py)?;
        let available = plan.available_blocks();
        self.put(py, State::Open(plan, work));
        Ok(available)
    }

    fn commit<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let (mut plan, work) = self.take(py)?;
        let done = self.manager.get().enter(py, work, move |manager| (manager.commit_step(&mut plan), plan));
        let (result, plan) = self.unless_refused(py, done)?;
        self.put(py, if result.is_ok() { State::Over } else { State::Open(plan, work) });
        let outcomes = result.or_raise(py)?;
        let out = PyList::empty(py);
        for outcome in &outcomes {
            match outcome {
                StepOutcome::Admitted(admission) => out.append(PyAdmission::from(admission))?,
                StepOutcome::Appended(changes) => {
                    out.append(changed(py, changes, self.manager.get().grouped)?)?;
                }
                _ => out.append(py.None())?,
            }
        }
        Ok(out)
    }

    fn rollback(&self, py: Python<'_>) {
        enter(py, &self.state, |state| *state = State::Over);
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, pyo3::types::PyTuple>) {
        self.rollback(py);
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        enter(py, &self.state, |state| if let State::Open(plan, _) = state { plan.len() } else { 0 })
    }
}
