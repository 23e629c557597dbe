//! Reads and changes the tables and counts of one KV-cache group, which are in vLLM's dictionaries.
//! [`kvpool_vllm::Group`] decides how they change.

use std::sync::Arc;

use kvpool_vllm::{Arrived, Caching, Change, Noted, Prompt, States, Step, Table};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::types::{PyDict, PyList, PySet};

use super::block::{Shared, own};
use crate::errors::OrRaise;
use crate::python::prelude::*;

/// The settings of a group. The stub of `VllmGroups` describes them.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct Settings {
    kind: String,
    block_size: usize,
    reads: usize,
    retained: usize,
    more_slots: usize,
    most: Option<usize>,
    group: u32,
    scale: usize,
    cached: bool,
    ends: Option<usize>,
    alignment: usize,
    drops: bool,
    prompt_tail: Option<usize>,
}

/// The Python objects that vLLM has for a group, such as the tables of its requests.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct Handles {
    pub(super) tables: Py<PyDict>,
    pub(super) num_cached: Py<PyDict>,
    pub(super) manager: Py<PyAny>,
    /// Whether the ids of new blocks are added to `new_block_ids` of the manager.
    pub(super) zeroed: bool,
    /// Whether `cached_tokens` includes this group.
    pub(super) counts: bool,
    /// Keys of the recurrent states that were cached in this step of the engine. The states are not computed
    /// yet, so requests can hit them only in the next step.
    pub(super) this_step: Option<Py<PySet>>,
    pub(super) states: Option<StateHandles>,
}

/// Records of vLLM's manager for a group of aligned recurrent states.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct StateHandles {
    speculative: usize,
    junctions: bool,
    drops: bool,
    lookahead: Option<usize>,
    /// The ids of requests whose current state has a block.
    pub(super) allocated: Py<PySet>,
    /// For each request, the number of leading blocks of its table that were released.
    pub(super) retired: Py<PyDict>,
    /// For each request, the position in its table of the previous state.
    pub(super) last: Py<PyDict>,
    /// For each request whose hit ended inside a block, the state that it shares there.
    partial: Py<PyDict>,
    /// For each request, its states that are to be exported.
    checkpoints: Py<PyDict>,
    /// For each request, the states that a connector may take when it ends.
    tails: Py<PyDict>,
}

impl StateHandles {
    const fn by_request(&self) -> [&Py<PyDict>; 5] {
        [&self.retired, &self.last, &self.partial, &self.checkpoints, &self.tails]
    }

    /// Returns the numbers that vLLM's manager has recorded for a request. Returns `None` if the request has
    /// no state, or if its state is shared or exported.
    fn noted(&self, id: &Bound<'_, PyAny>) -> PyResult<Option<Noted>> {
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
        Ok(Some(Noted { retired: number(&self.retired)?.unwrap_or(0), last: number(&self.last)? }))
    }
}

impl crate::python::Single for Settings {}
impl crate::python::Single for Handles {}

/// A block table as vLLM's list of blocks, and the pool of these blocks.
pub(super) struct Blocks<'a, 'py>(pub(super) &'a Bound<'py, PyList>, pub(super) &'a Arc<Shared>);

impl Table for Blocks<'_, '_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn block(&self, at: usize) -> Option<u32> {
        own(&self.0.get_item(at).ok()?, self.1).map(|block| block.id)
    }

    fn look<R>(&self, look: impl FnOnce(&kvpool_vllm::Pool) -> R) -> R {
        look(&self.1.lock())
    }
}

/// The table of a request in one group, and the part of the table that can be cached now.
pub(super) struct Cacheable<'py> {
    pub(super) table: Bound<'py, PyList>,
    pub(super) caching: Caching,
}

pub(super) struct Group {
    pub(super) rules: kvpool_vllm::Group,
    pub(super) of: Handles,
}

impl Group {
    pub(super) fn new(py: Python<'_>, recomputed: usize, config: &Bound<'_, PyAny>) -> PyResult<Self> {
        let settings: Settings = config.extract()?;
        let of: Handles = config.extract()?;
        let rules =
            kvpool_vllm::Group::new(&settings.kind, settings.reads, settings.block_size, settings.scale)
                .and_then(|rules| {
                    rules.caching_to(settings.alignment, settings.ends, recomputed, settings.drops)
                })
                .or_raise(py)?;
        let states = of.states.as_ref().map(|states| States {
            speculative: states.speculative,
            drops: states.drops,
            lookahead: states.lookahead,
            junctions: states.junctions,
        });
        let rules = kvpool_vllm::Group {
            number: settings.group,
            retained: settings.retained,
            more_slots: settings.more_slots,
            most: settings.most,
            is_cached: settings.cached,
            prompt_tail: settings.prompt_tail,
            states,
            ..rules
        };
        Ok(Self { rules, of })
    }

    pub(super) fn table<'py>(&self, id: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyList>>> {
        Ok(self.of.tables.bind(id.py()).get_item(id)?.map(Bound::cast_into::<PyList>).transpose()?)
    }

    /// Returns vLLM's number of cached blocks of a request. 0 if vLLM has no entry for it.
    pub(super) fn known(&self, id: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.of.num_cached.bind(id.py()).get_item(id)?.map_or(Ok(0), |known| known.extract())
    }

    /// Plans the changes of a request's table in one step, and which blocks are cached afterwards. Returns
    /// `None` if vLLM's own manager has to do the step.
    pub(super) fn step<'py>(
        &self,
        shared: &Arc<Shared>,
        id: &Bound<'py, PyAny>,
        prompt: &Prompt,
        step: &Step,
    ) -> PyResult<Option<(Change, Cacheable<'py>)>> {
        let Some(table) = self.table(id)? else { return Ok(None) };
        let noted = self.of.states.as_ref().map_or(Ok(None), |states| states.noted(id))?;
        let Some(change) = self.rules.step(&Blocks(&table, shared), step, noted) else { return Ok(None) };
        Ok(Some((change, self.cacheable(shared, id, table, prompt, step.cached)?)))
    }

    /// Finds the part of a table that can be cached once the KV of `tokens` tokens is computed.
    pub(super) fn cacheable<'py>(
        &self,
        shared: &Arc<Shared>,
        id: &Bound<'py, PyAny>,
        table: Bound<'py, PyList>,
        prompt: &Prompt,
        tokens: usize,
    ) -> PyResult<Cacheable<'py>> {
        let caching = self.rules.caching(prompt, &Blocks(&table, shared), self.known(id)?, tokens);
        Ok(Cacheable { table, caching })
    }

    /// Plans the admission of a request with a hit of `hits` blocks. Returns `None` if the request runs
    /// already, or if vLLM's own manager has to admit it.
    pub(super) fn arrival(
        &self,
        id: &Bound<'_, PyAny>,
        step: &Step,
        hits: usize,
    ) -> PyResult<Option<Arrived>> {
        let runs = self.table(id)?.is_some_and(|table| !table.is_empty())
            || self.of.num_cached.bind(id.py()).contains(id)?;
        Ok(if runs { None } else { self.rules.arrival(step, hits) })
    }

    /// Removes a request from vLLM's records. Also removes its states from the list of states that connectors
    /// may take, because its blocks are about to be reused.
    pub(super) fn forget(&self, id: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = id.py();
        let states = self.of.states.as_ref();
        let of_states = states.into_iter().flat_map(StateHandles::by_request);
        for of in [&self.of.tables, &self.of.num_cached].into_iter().chain(of_states) {
            if of.bind(py).contains(id)? {
                of.bind(py).del_item(id)?;
            }
        }
        let Some(states) = states else { return Ok(()) };
        states.allocated.bind(py).discard(id)?;
        let offers = self.offers(py)?;
        if offers.is_empty() {
            return Ok(());
        }
        let left = PyList::empty(py);
        for offer in offers.iter() {
            if !offer.get_item(0)?.eq(id)? {
                left.append(offer)?;
            }
        }
        self.of.manager.bind(py).setattr(intern!(py, "_pending_boundary_state_offloads"), left)
    }

    /// Returns vLLM's list of states that connectors may take.
    pub(super) fn offers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let offers = self.of.manager.bind(py).getattr(intern!(py, "_pending_boundary_state_offloads"))?;
        Ok(offers.cast_into()?)
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.of.tables)?;
        visit.call(&self.of.num_cached)?;
        visit.call(&self.of.manager)?;
        visit.call(&self.of.this_step)?;
        let Some(states) = &self.of.states else { return Ok(()) };
        visit.call(&states.allocated)?;
        states.by_request().into_iter().try_for_each(|of| visit.call(of))
    }
}
