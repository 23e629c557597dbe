//! What vLLM's manager of a group of aligned recurrent states keeps of requests, and what a step of [`super::groups`] asks of that. Where
//! states go is [`kvpool_vllm::States`]'.

use std::sync::Arc;

use kvpool::groups::GroupSpec;
use kvpool_vllm::{Move, Step};
use pyo3::intern;
use pyo3::types::{PyDict, PyList, PySet};

use super::block::{Shared, is_null, own};
use crate::python::prelude::*;

/// As Python says it: see `VllmGroups` in the stub.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct StatesConfig<'py> {
    speculative: usize,
    allocated: Bound<'py, PySet>,
    retired: Bound<'py, PyDict>,
    last: Bound<'py, PyDict>,
    partial: Bound<'py, PyDict>,
    checkpoints: Bound<'py, PyDict>,
    tails: Bound<'py, PyDict>,
    junctions: bool,
    drops: bool,
    lookahead: Option<usize>,
}

impl crate::python::Single for StatesConfig<'_> {}

/// What vLLM's manager of a group of aligned states keeps of requests.
pub(super) struct States {
    /// What it is like.
    pub(super) rules: kvpool_vllm::States,
    /// Requests whose running state has a block.
    pub(super) allocated: Py<PySet>,
    /// By request: leading blocks that were given up; the block of the state before; states that are shared inside a block; states
    /// that are about to be exported; states that a connector may take when the request ends.
    pub(super) retired: Py<PyDict>,
    pub(super) last: Py<PyDict>,
    pub(super) partial: Py<PyDict>,
    pub(super) checkpoints: Py<PyDict>,
    pub(super) tails: Py<PyDict>,
    /// Whether the state at a junction is cached, too.
    pub(super) junctions: bool,
}

/// What a step asks of a group of aligned states.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StateWork {
    /// Blocks `retire.0..retire.1` of the table are behind the state for good.
    pub(super) retire: (usize, usize),
    /// The block of the state before is there, and no longer needed.
    pub(super) gives_up: Option<usize>,
    /// The state moves on to a block of its own.
    pub(super) moves: Option<Move>,
}

impl StateWork {
    pub(super) const fn asks(&self) -> bool {
        self.retire.0 < self.retire.1 || self.gives_up.is_some() || self.moves.is_some()
    }
}

impl States {
    pub(super) fn new(config: StatesConfig<'_>) -> Self {
        Self {
            rules: kvpool_vllm::States {
                speculative: config.speculative,
                drops: config.drops,
                lookahead: config.lookahead,
            },
            allocated: config.allocated.unbind(),
            retired: config.retired.unbind(),
            last: config.last.unbind(),
            partial: config.partial.unbind(),
            checkpoints: config.checkpoints.unbind(),
            tails: config.tails.unbind(),
            junctions: config.junctions,
        }
    }

    /// What a step asks; `None` of a state that is shared, exported or not there yet.
    #[expect(clippy::too_many_arguments, reason = "what vLLM's manager looks at")]
    pub(super) fn work(
        &self,
        shared: &Arc<Shared>,
        spec: &GroupSpec,
        id: &Bound<'_, PyAny>,
        table: &Bound<'_, PyList>,
        dead: usize,
        step: Step,
        main: usize,
    ) -> PyResult<Option<StateWork>> {
        let py = id.py();
        if !self.allocated.bind(py).contains(id)?
            || self.partial.bind(py).contains(id)?
            || self.checkpoints.bind(py).contains(id)?
        {
            return Ok(None);
        }
        let number = |of: &Py<PyDict>| -> PyResult<Option<usize>> {
            of.bind(py).get_item(id)?.map(|number| number.extract()).transpose()
        };
        let Ok(moves) = self.rules.next_move(spec, table.len(), main) else { return Ok(None) };
        if let Some(moves) = moves
            && !are_writable(shared, table, moves.drafts)?
        {
            return Ok(None);
        }
        let retire = (number(&self.retired)?.unwrap_or(0), dead);
        let mut gives_up = number(&self.last)?.filter(|&last| self.rules.is_past(spec, last, step.settled));
        if let Some(last) = gives_up
            && is_null(&table.get_item(last)?, shared)
        {
            gives_up = None;
        }
        Ok(Some(StateWork { retire, gives_up, moves }))
    }

    /// Forgets a request.
    pub(super) fn forget(&self, id: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = id.py();
        self.allocated.bind(py).discard(id)?;
        for of in [&self.retired, &self.last, &self.partial, &self.checkpoints, &self.tails] {
            if of.bind(py).contains(id)? {
                of.bind(py).del_item(id)?;
            }
        }
        Ok(())
    }

    pub(super) fn traverse(&self, visit: &pyo3::gc::PyVisit<'_>) -> Result<(), pyo3::gc::PyTraverseError> {
        visit.call(&self.allocated)?;
        for of in [&self.retired, &self.last, &self.partial, &self.checkpoints, &self.tails] {
            visit.call(of)?;
        }
        Ok(())
    }
}

/// Whether nobody else has the blocks of drafts, and nothing leads to them.
fn are_writable(
    shared: &Arc<Shared>,
    table: &Bound<'_, PyList>,
    (first, end): (usize, usize),
) -> PyResult<bool> {
    for at in first..end {
        let block = table.get_item(at)?;
        let Some(block) = own(&block, shared) else { return Ok(false) };
        let pool = shared.lock();
        if block.id == 0 || pool.ref_count(block.id) != 1 || pool.keys().hash_of(block.id).is_some() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Drops what a request offers to connectors from vLLM's list of it: its blocks are about to be reused.
pub(super) fn withdraw_offers(manager: &Bound<'_, PyAny>, id: &Bound<'_, PyAny>) -> PyResult<()> {
    let py = id.py();
    let name = intern!(py, "_pending_boundary_state_offloads");
    let offers = manager.getattr(name)?.cast_into::<PyList>()?;
    if offers.is_empty() {
        return Ok(());
    }
    let left = PyList::empty(py);
    for offer in offers.iter() {
        if !offer.get_item(0)?.eq(id)? {
            left.append(offer)?;
        }
    }
    manager.setattr(name, left)
}
