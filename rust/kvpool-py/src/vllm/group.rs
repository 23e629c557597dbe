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

/// vLLM's own objects of a group.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct Handles {
    pub(super) tables: Py<PyDict>,
    pub(super) num_cached: Py<PyDict>,
    /// vLLM's manager of the group.
    pub(super) manager: Py<PyAny>,
    /// Whether its list `new_block_ids` gets the ids of new blocks.
    pub(super) zeroed: bool,
    /// Whether `cached_tokens` includes this group.
    pub(super) counts: bool,
    /// Keys of states that were cached in this step of the engine. A request can continue from such a
    /// state in the next step.
    pub(super) this_step: Option<Py<PySet>>,
    pub(super) states: Option<StateHandles>,
}

/// The notes that vLLM's manager keeps for a group of aligned states.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct StateHandles {
    speculative: usize,
    junctions: bool,
    drops: bool,
    lookahead: Option<usize>,
    /// Requests whose running state has a block.
    pub(super) allocated: Py<PySet>,
    /// By request: the number of leading blocks that were released.
    pub(super) retired: Py<PyDict>,
    /// By request: the block of the previous state.
    pub(super) last: Py<PyDict>,
    /// By request: the state that is shared inside a block.
    partial: Py<PyDict>,
    /// By request: the states to be exported.
    checkpoints: Py<PyDict>,
    /// By request: the states that a connector may take at the end.
    tails: Py<PyDict>,
}

impl StateHandles {
    const fn by_request(&self) -> [&Py<PyDict>; 5] {
        [&self.retired, &self.last, &self.partial, &self.checkpoints, &self.tails]
    }

    /// Returns the notes of a request. Returns `None` if its state is shared, exported or absent.
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

/// A table in vLLM's form, and the pool of its blocks.
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

/// A request's table in one group, and the part of it that can be cached.
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

    /// Returns the table of a request, if it has one.
    pub(super) fn table<'py>(&self, id: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyList>>> {
        Ok(self.of.tables.bind(id.py()).get_item(id)?.map(Bound::cast_into::<PyList>).transpose()?)
    }

    /// Returns the number of cached blocks of a request: 0 before its first block is full, or without a
    /// cache.
    fn known(&self, id: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.of.num_cached.bind(id.py()).get_item(id)?.map_or(Ok(0), |known| known.extract())
    }

    /// Plans a step and the caching after it. Returns `None` if vLLM's manager has to do the step.
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

    /// Plans the admission of a request with a hit of `hits` blocks. Returns `None` if vLLM's manager
    /// has to admit it.
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

    /// Removes a request. Also removes its states from the list that connectors may take, because its blocks
    /// are about to be reused.
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
