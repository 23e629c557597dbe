//! One KV-cache group of [`super::groups`]: its table and counts in vLLM's dictionaries, and what a step asks of it.

use std::sync::Arc;

use kvpool::groups::{GroupKind, GroupSpec, Tokens};
use kvpool_vllm::{Arrival, Growth, Step};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySet};

use super::block::{Shared, own};
use super::slots::attr;
use crate::errors::raise;

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
    tables: Bound<'py, PyDict>,
    num_cached: Bound<'py, PyDict>,
    zeroed: Option<Bound<'py, PyAny>>,
    cached_by: Option<Bound<'py, PyAny>>,
    prompt_tail: Option<usize>,
    states: Option<StatesConfig<'py>>,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct StatesConfig<'py> {
    speculative: usize,
    allocated: Bound<'py, PySet>,
    retired: Bound<'py, PyDict>,
    last: Bound<'py, PyDict>,
    partial: Bound<'py, PyDict>,
    checkpoints: Bound<'py, PyDict>,
}

/// What vLLM's manager of a group of aligned states keeps of requests.
pub(super) struct States {
    /// Blocks behind the running state.
    pub(super) speculative: usize,
    /// Requests whose running state has a block.
    pub(super) allocated: Py<PySet>,
    /// By request: leading blocks that were given up; the block of the state before; states that are shared inside a block; states
    /// that are about to be exported.
    pub(super) retired: Py<PyDict>,
    pub(super) last: Py<PyDict>,
    pub(super) partial: Py<PyDict>,
    pub(super) checkpoints: Py<PyDict>,
}

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
    pub(super) tables: Py<PyDict>,
    pub(super) num_cached: Py<PyDict>,
    /// vLLM's manager of the group, if its `new_block_ids` are to be zeroed.
    pub(super) zeroed: Option<Py<PyAny>>,
    /// vLLM's manager of the group, if that caches its blocks: it caches more than those that are full.
    pub(super) cached_by: Option<Py<PyAny>>,
    /// It caches the block in which the prompt, less so many tokens, ends with a digest.
    prompt_tail: Option<usize>,
    pub(super) states: Option<States>,
}

impl Group {
    pub(super) fn new(py: Python<'_>, config: GroupConfig<'_>) -> PyResult<Self> {
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
        let states = config.states.map(|states| States {
            speculative: states.speculative,
            allocated: states.allocated.unbind(),
            retired: states.retired.unbind(),
            last: states.last.unbind(),
            partial: states.partial.unbind(),
            checkpoints: states.checkpoints.unbind(),
        });
        Ok(Self {
            spec: GroupSpec::new(kind, config.block_size),
            retained: config.retained,
            more_slots: config.more_slots,
            most: config.most,
            number: config.group,
            scale: config.scale,
            cached: config.cached,
            tables: config.tables.unbind(),
            num_cached: config.num_cached.unbind(),
            zeroed: config.zeroed.map(Bound::unbind),
            cached_by: config.cached_by.map(Bound::unbind),
            prompt_tail: config.prompt_tail,
            states,
        })
    }

    /// What a step asks of this group, where the request runs; `None` where vLLM's manager has to look.
    pub(super) fn growth<'py>(
        &self,
        shared: &Arc<Shared>,
        request: &Bound<'py, PyAny>,
        id: &Bound<'py, PyAny>,
        step: Step,
        main: usize,
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
        growth.full = if self.cached { growth.full } else { 0 };
        let caches = self.caches(shared, request, &table, (known, growth.full), step.cacheable)?;
        let mut state = None;
        if let Some(states) = &self.states {
            let Some(work) = states.work(shared, &self.spec, id, &table, growth.dead, step, main)? else {
                return Ok(None);
            };
            (growth.dead, growth.missing) = (0, usize::from(work.crosses));
            state = Some(work);
        } else if growth.dead > 0 && is_null(&table.get_item(growth.dead - 1)?, shared) {
            growth.dead = 0;
        }
        Ok(Some(Row { table, known, growth, caches, state }))
    }

    /// Whether something of a table is to be cached, of which `known` blocks are and `full` ones can be.
    pub(super) fn caches(
        &self,
        shared: &Arc<Shared>,
        request: &Bound<'_, PyAny>,
        table: &Bound<'_, PyList>,
        (known, full): (usize, usize),
        cacheable: usize,
    ) -> PyResult<bool> {
        if full > known || !self.cached || cacheable == 0 {
            return Ok(full > known);
        }
        if self.states.is_some() {
            return Ok(cacheable.is_multiple_of(self.unit()));
        }
        let Some(less) = self.prompt_tail else { return Ok(false) };
        let prompt = attr(request, intern!(request.py(), "num_prompt_tokens"))?.saturating_sub(less);
        let end = prompt - prompt % self.unit();
        if end > cacheable || end.is_multiple_of(self.spec.block_tokens) {
            return Ok(false);
        }
        let at = self.spec.full_blocks(Tokens(end)).0;
        if at >= table.len() {
            return Ok(true); // this step takes it
        }
        let Some(id) = own(&table.get_item(at)?, shared).map(|block| block.id) else { return Ok(true) };
        let hash = shared.lock().keys().hash_of(id);
        Ok(hash.and_then(|(_, tokens)| tokens).is_none_or(|tokens| (tokens as usize) < end))
    }

    /// What can be cached of a request whose KV is final up to so many tokens.
    pub(super) fn cacheable<'py>(
        &self,
        shared: &Arc<Shared>,
        request: &Bound<'py, PyAny>,
        id: &Bound<'py, PyAny>,
        tokens: usize,
    ) -> PyResult<Caching<'py>> {
        let py = id.py();
        let known = self.num_cached.bind(py).get_item(id)?.map_or(Ok(0), |known| known.extract())?;
        let full = if self.cached { self.spec.full_blocks(Tokens(tokens)).0 } else { 0 };
        let table = match self.tables.bind(py).get_item(id)? {
            Some(table) => table.cast_into::<PyList>()?,
            None => PyList::empty(py),
        };
        let caches = self.caches(shared, request, &table, (known, full), tokens)?;
        Ok(Caching { table, known, full, caches })
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
        if self.states.is_some() || has_blocks || self.num_cached.bind(py).contains(id)? || inside_a_block {
            return Ok(None);
        }
        let of = |tokens: usize, most| {
            let slots = tokens.saturating_add(self.more_slots);
            Arrival::of(&self.spec, come.hit, slots, hits.len(), self.retained, most)
        };
        let Arrival { skipped, missing } = of(come.slots, usize::MAX);
        let whole = come.whole.map(|tokens| of(tokens, self.most.unwrap_or(usize::MAX)).missing);
        let full = if self.cached { self.spec.full_blocks(Tokens(come.cacheable)).0 } else { 0 };
        let kept = hits.get(skipped..).unwrap_or(&[]).to_vec();
        Ok(Some(Arrived { skipped, missing, whole: whole.unwrap_or(0), full, kept }))
    }

    /// Tokens of a digest.
    const fn unit(&self) -> usize {
        self.spec.block_tokens / self.scale
    }
}

/// What a step asks of a group of aligned states.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StateWork {
    /// Blocks `retire.0..retire.1` of the table are behind the state for good.
    pub(super) retire: (usize, usize),
    /// The block of the state before is there, and no longer needed.
    pub(super) gives_up: Option<usize>,
    /// The state moves on to a block of its own.
    pub(super) crosses: bool,
}

impl StateWork {
    const fn asks(&self) -> bool {
        self.retire.0 < self.retire.1 || self.gives_up.is_some() || self.crosses
    }
}

impl States {
    /// What a step asks; `None` of a state that is shared, exported or not there yet, and of speculative ones that move.
    #[expect(clippy::too_many_arguments, reason = "what vLLM's manager looks at")]
    fn work(
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
        let required = main.div_ceil(spec.block_tokens).saturating_add(self.speculative);
        let crosses = required > table.len();
        if crosses && (self.speculative > 0 || required > table.len() + 1)
            || !self.allocated.bind(py).contains(id)?
            || self.partial.bind(py).contains(id)?
            || self.checkpoints.bind(py).contains(id)?
        {
            return Ok(None);
        }
        let number = |of: &Py<PyDict>| -> PyResult<Option<usize>> {
            of.bind(py).get_item(id)?.map(|number| number.extract()).transpose()
        };
        let retire = (number(&self.retired)?.unwrap_or(0), dead);
        let mut gives_up = number(&self.last)?
            .filter(|&last| last < step.settled.div_ceil(spec.block_tokens).saturating_sub(1));
        if let Some(last) = gives_up
            && is_null(&table.get_item(last)?, shared)
        {
            gives_up = None;
        }
        Ok(Some(StateWork { retire, gives_up, crosses }))
    }
}

/// A table, its blocks that are cached, and those that can be.
pub(super) struct Caching<'py> {
    pub(super) table: Bound<'py, PyList>,
    pub(super) known: usize,
    pub(super) full: usize,
    /// Whether there is something to cache.
    pub(super) caches: bool,
}

/// A request that comes, in tokens.
pub(super) struct Coming {
    /// Of its hit.
    pub(super) hit: usize,
    /// That need slots.
    pub(super) slots: usize,
    /// Of all, if all must find room.
    pub(super) whole: Option<usize>,
    /// Whose KV is final after this step.
    pub(super) cacheable: usize,
}

/// What it asks of a group.
pub(super) struct Arrived {
    pub(super) skipped: usize,
    pub(super) missing: usize,
    /// Blocks that all of its tokens lack.
    pub(super) whole: usize,
    pub(super) full: usize,
    /// The blocks of its hit that are read.
    pub(super) kept: Vec<u32>,
}

/// A group of a running request, and what a step asks of it.
pub(super) struct Row<'py> {
    pub(super) table: Bound<'py, PyList>,
    pub(super) known: usize,
    pub(super) growth: Growth,
    /// Whether there is something to cache.
    caches: bool,
    /// Of a group of aligned states.
    pub(super) state: Option<StateWork>,
}

impl<'py> Row<'py> {
    /// What is to be cached of it.
    pub(super) fn caching(&self) -> Caching<'py> {
        let Growth { full, .. } = self.growth;
        Caching { table: self.table.clone(), known: self.known, full, caches: self.caches }
    }

    pub(super) fn asks(&self) -> bool {
        let Growth { dead, missing, .. } = self.growth;
        self.caches || dead > 0 || missing > 0 || self.state.is_some_and(|state| state.asks())
    }
}

fn is_null(block: &Bound<'_, PyAny>, shared: &Arc<Shared>) -> bool {
    own(block, shared).is_some_and(|block| block.id == 0)
}
