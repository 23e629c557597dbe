//! One KV-cache group of [`super::groups`]: its table and counts in vLLM's dictionaries, and what a step asks of it.

use std::sync::Arc;

use kvpool::groups::{GroupKind, GroupSpec};
use kvpool_vllm::{Arrival, Finals, Growth, Reads, Retention, Step};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::types::{PyDict, PyList, PySet};

use super::block::{Shared, is_null};
use super::caching::{Caching, Said};
use super::states::{StateWork, States, StatesConfig};
use crate::errors::raise;
use crate::python::prelude::*;

/// What a call of `allocate_slots` asks for.
pub(super) struct Asked {
    pub(super) new: usize,
    pub(super) lookahead: usize,
    pub(super) caches: bool,
    /// Whether all of its tokens must find room, not only those of this call.
    pub(super) whole: bool,
    pub(super) reserved: usize,
    /// Whether the watermark is for requests that wait.
    pub(super) watermark: bool,
}

/// One group, as Python says it: see `VllmGroups` in the stub.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct GroupConfig<'py> {
    kind: String,
    block_size: usize,
    reads: usize,
    retained: usize,
    more_slots: usize,
    most: Option<usize>,
    group: u32,
    scale: usize,
    cached: bool,
    counts: bool,
    tables: Bound<'py, PyDict>,
    num_cached: Bound<'py, PyDict>,
    zeroed: bool,
    manager: Bound<'py, PyAny>,
    ends: Option<usize>,
    alignment: usize,
    drops: bool,
    prompt_tail: Option<usize>,
    this_step: Option<Bound<'py, PySet>>,
    states: Option<StatesConfig<'py>>,
}

impl crate::python::Single for GroupConfig<'_> {}

pub(super) struct Group {
    pub(super) spec: GroupSpec,
    /// Tokens before those that are read which are kept all the same.
    pub(super) retained: usize,
    /// Slots beyond those of the step.
    pub(super) more_slots: usize,
    /// Blocks that a whole request takes at most: it gives some up on the way.
    pub(super) most: Option<usize>,
    pub(super) number: u32,
    /// Digests per block.
    pub(super) scale: usize,
    /// Whether its full blocks are cached.
    pub(super) cached: bool,
    /// Whether what it has cached counts where vLLM asks how much of a request is.
    pub(super) counts: bool,
    pub(super) tables: Py<PyDict>,
    pub(super) num_cached: Py<PyDict>,
    /// vLLM's manager of the group.
    pub(super) manager: Py<PyAny>,
    /// Whether its list `new_block_ids` gets the ids of new blocks.
    pub(super) zeroed: bool,
    /// How much of it is cached, and which blocks of that.
    pub(super) finals: Finals,
    pub(super) retention: Retention,
    /// It caches the block in which the prompt, less so many tokens, ends with a digest.
    pub(super) prompt_tail: Option<usize>,
    /// Keys of states that were cached in this step of the engine: nobody can go on from them before the next.
    pub(super) this_step: Option<Py<PySet>>,
    pub(super) states: Option<States>,
}

impl Group {
    pub(super) fn new(py: Python<'_>, recomputed: usize, config: GroupConfig<'_>) -> PyResult<Self> {
        let kind = match config.kind.as_str() {
            "full" => GroupKind::Full,
            "sliding" => GroupKind::Sliding { window: config.reads },
            "chunked" => GroupKind::Chunked { chunk: config.reads },
            "state" => GroupKind::State,
            other => {
                let said = format!("kind is {other:?}: must be full, sliding, chunked or state");
                return Err(raise(py, "InvalidArgumentError", said));
            }
        };
        for (name, value) in [("block_size", config.block_size), ("scale", config.scale)] {
            if value == 0 {
                return Err(raise(py, "InvalidArgumentError", format!("{name} is 0: must be at least 1")));
            }
        }
        if !config.block_size.is_multiple_of(config.scale) {
            let said =
                format!("block_size is {}: must be a multiple of scale, {}", config.block_size, config.scale);
            return Err(raise(py, "InvalidArgumentError", said));
        }
        for (name, value) in [("alignment", config.alignment), ("ends", config.ends.unwrap_or(1))] {
            if value == 0 {
                return Err(raise(py, "InvalidArgumentError", format!("{name} is 0: must be at least 1")));
            }
        }
        let (block_tokens, drops) = (config.block_size, config.drops);
        Ok(Self {
            spec: GroupSpec::new(kind, block_tokens),
            retained: config.retained,
            more_slots: config.more_slots,
            most: config.most,
            number: config.group,
            scale: config.scale,
            cached: config.cached,
            counts: config.counts,
            tables: config.tables.unbind(),
            num_cached: config.num_cached.unbind(),
            manager: config.manager.unbind(),
            zeroed: config.zeroed,
            finals: Finals { alignment: config.ends, recomputed, drops, block_tokens },
            retention: Retention { reads: reads(kind), block_tokens, alignment: config.alignment, drops },
            prompt_tail: config.prompt_tail,
            this_step: config.this_step.map(Bound::unbind),
            states: config.states.map(States::new),
        })
    }

    /// What a step asks of this group, where the request runs; `None` where vLLM's manager has to look.
    pub(super) fn growth<'py>(
        &self,
        shared: &Arc<Shared>,
        id: &Bound<'py, PyAny>,
        said: Said,
        step: Step,
        (main, cached): (usize, usize),
    ) -> PyResult<Option<Row<'py>>> {
        let py = id.py();
        let Some(table) = self.tables.bind(py).get_item(id)? else { return Ok(None) };
        let table = table.cast_into::<PyList>()?;
        if table.is_empty() {
            return Ok(None); // it does not run yet
        }
        // It has none before its first block is full, or without a cache.
        let known = self.num_cached.bind(py).get_item(id)?.map_or(Ok(0), |known| known.extract())?;
        let slots = step.slots.saturating_add(self.more_slots);
        let mut growth = Growth::of(&self.spec, Step { slots, ..step }, table.len(), self.retained);
        let mut state = None;
        if let Some(states) = &self.states {
            let Some(work) = states.work(shared, &self.spec, id, &table, growth.dead, step, main)? else {
                return Ok(None);
            };
            (growth.dead, growth.missing) = (0, usize::from(work.moves.is_some()));
            state = Some(work);
        } else if growth.dead > 0 && is_null(&table.get_item(growth.dead - 1)?, shared) {
            growth.dead = 0;
        }
        let caching = self.caching(shared, said, table, known, cached)?;
        Ok(Some(Row { growth, caching, state }))
    }

    /// What can be cached of a request whose KV is final up to so many tokens.
    pub(super) fn cacheable<'py>(
        &self,
        shared: &Arc<Shared>,
        id: &Bound<'py, PyAny>,
        said: Said,
        tokens: usize,
    ) -> PyResult<Caching<'py>> {
        let py = id.py();
        let known = self.num_cached.bind(py).get_item(id)?.map_or(Ok(0), |known| known.extract())?;
        let table = match self.tables.bind(py).get_item(id)? {
            Some(table) => table.cast_into::<PyList>()?,
            None => PyList::empty(py),
        };
        self.caching(shared, said, table, known, tokens)
    }

    /// What a request that comes asks of this group, with its hits; `None` where vLLM's manager has to look.
    pub(super) fn arrival(
        &self,
        id: &Bound<'_, PyAny>,
        hits: Vec<u32>,
        come: &Coming,
    ) -> PyResult<Option<Arrived>> {
        let py = id.py();
        let table = self.tables.bind(py).get_item(id)?;
        let has_blocks = table.map_or(Ok(false), |table| table.len().map(|len| len > 0))?;
        let inside_a_block = !hits.is_empty() && !come.hit.is_multiple_of(self.spec.block_tokens);
        if has_blocks || self.num_cached.bind(py).contains(id)? || inside_a_block {
            return Ok(None);
        }
        let of = |tokens: usize, main: usize, most| match &self.states {
            Some(states) => states.rules.arrival(&self.spec, come.hit, main, hits.len()),
            None => {
                let slots = tokens.saturating_add(self.more_slots);
                Arrival::of(&self.spec, come.hit, slots, hits.len(), self.retained, most)
            }
        };
        let Arrival { skipped, missing } = of(come.slots, come.main, usize::MAX);
        let most = self.most.unwrap_or(usize::MAX);
        let whole = come.whole.map(|tokens| of(tokens, tokens, most).missing);
        let kept = hits.get(skipped..).unwrap_or(&[]).to_vec();
        Ok(Some(Arrived { skipped, missing, whole: whole.unwrap_or(0), kept }))
    }

    /// Tokens of a digest.
    pub(super) const fn unit(&self) -> usize {
        self.spec.block_tokens / self.scale
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.tables)?;
        visit.call(&self.num_cached)?;
        visit.call(&self.manager)?;
        visit.call(&self.this_step)?;
        self.states.as_ref().map_or(Ok(()), |states| states.traverse(visit))
    }
}

/// A request that comes, in tokens.
pub(super) struct Coming {
    /// Of its hit.
    pub(super) hit: usize,
    /// That need slots.
    pub(super) slots: usize,
    /// That are computed after this step, without drafts.
    pub(super) main: usize,
    /// Of all, if all must find room.
    pub(super) whole: Option<usize>,
}

/// What it asks of a group.
pub(super) struct Arrived {
    pub(super) skipped: usize,
    pub(super) missing: usize,
    /// Blocks that all of its tokens lack.
    pub(super) whole: usize,
    /// The blocks of its hit that are read.
    pub(super) kept: Vec<u32>,
}

/// A group of a running request, and what a step asks of it.
pub(super) struct Row<'py> {
    pub(super) growth: Growth,
    /// What is to be cached of it.
    pub(super) caching: Caching<'py>,
    /// Of a group of aligned states.
    pub(super) state: Option<StateWork>,
}

impl Row<'_> {
    pub(super) fn asks(&self) -> bool {
        let Growth { dead, missing, .. } = self.growth;
        self.caching.asks() || dead > 0 || missing > 0 || self.state.is_some_and(|state| state.asks())
    }
}

/// What tokens of a kind read.
pub(super) const fn reads(kind: GroupKind) -> Reads {
    match kind {
        GroupKind::Sliding { window } => Reads::Window(window),
        GroupKind::Chunked { chunk } => Reads::Chunk(chunk),
        GroupKind::State => Reads::State,
        _ => Reads::Full,
    }
}
