//! `VllmGroups`: `allocate_slots` and `free` of running requests, for models with several KV-cache groups.
//!
//! As [`super::slots`], it keeps no state of requests: tables and counts are vLLM's own, group by group. A step that asks nothing of
//! any group, which is most of them, ends after a look at each table. What full attention, windows and chunks ask is done here; a
//! recurrent state that is shared, exported or speculated on, and every call that is not a plain step of a running request, is vLLM's own method,
//! before anything has changed.

use std::sync::Arc;

use kvpool::groups::{GroupKind, GroupSpec};
use kvpool_journal::ops::vllm as op;
use kvpool_vllm::{Growth, Key, Step};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PySet, PyString, PyTuple};

use super::block::{Shared, own, own_ids};
use super::pool::{PyVllmPool, digests, removed_keys};
use crate::errors::{OrRaise, raise};

/// One group, as Python says it: see `VllmGroups` in the stub.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct GroupConfig<'py> {
    kind: String,
    block_size: usize,
    reads: usize,
    retained: usize,
    more_slots: usize,
    group: u32,
    scale: usize,
    cached: bool,
    tables: Bound<'py, PyDict>,
    num_cached: Bound<'py, PyDict>,
    zeroed: Option<Bound<'py, PyAny>>,
    states: Option<StatesConfig<'py>>,
}

#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct StatesConfig<'py> {
    manager: Bound<'py, PyAny>,
    speculative: usize,
    allocated: Bound<'py, PySet>,
    retired: Bound<'py, PyDict>,
    last: Bound<'py, PyDict>,
    partial: Bound<'py, PyDict>,
    checkpoints: Bound<'py, PyDict>,
}

/// vLLM's manager of a group of aligned states, and what it keeps of requests.
struct States {
    manager: Py<PyAny>,
    /// Blocks behind the running state.
    speculative: usize,
    /// Requests whose running state has a block.
    allocated: Py<PySet>,
    /// By request: leading blocks that were given up; the block of the state before; states that are shared inside a block; states
    /// that are about to be exported.
    retired: Py<PyDict>,
    last: Py<PyDict>,
    partial: Py<PyDict>,
    checkpoints: Py<PyDict>,
}

struct Group {
    spec: GroupSpec,
    /// Tokens before those that are read which are kept all the same.
    retained: usize,
    /// Slots beyond those of the step.
    more_slots: usize,
    number: u32,
    /// Digests per block.
    scale: usize,
    /// Whether its full blocks are cached.
    cached: bool,
    tables: Py<PyDict>,
    num_cached: Py<PyDict>,
    /// vLLM's manager of the group, if its `new_block_ids` are to be zeroed.
    zeroed: Option<Py<PyAny>>,
    states: Option<States>,
}

impl Group {
    fn new(py: Python<'_>, config: GroupConfig<'_>) -> PyResult<Self> {
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
        let states = config.states.map(|states| States {
            manager: states.manager.unbind(),
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
            number: config.group,
            scale: config.scale,
            cached: config.cached,
            tables: config.tables.unbind(),
            num_cached: config.num_cached.unbind(),
            zeroed: config.zeroed.map(Bound::unbind),
            states,
        })
    }

    /// What a step asks of this group, where the request runs; `None` where vLLM's manager has to look.
    fn growth<'py>(
        &self,
        shared: &Arc<Shared>,
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
        let cached_now = self.cached && step.cacheable > 0;
        if let Some(states) = &self.states {
            let Some(mut work) = states.work(shared, &self.spec, id, &table, growth.dead, step, main)? else {
                return Ok(None);
            };
            let is_full = growth.full > known || step.cacheable.is_multiple_of(self.unit());
            work.caches = cached_now && is_full;
            growth = Growth { missing: usize::from(work.crosses), ..Growth::default() };
            return Ok(Some(Row { table, known, growth, state: Some(work) }));
        }
        growth.full = if cached_now { growth.full } else { 0 };
        if growth.dead > 0 && is_null(&table.get_item(growth.dead - 1)?, shared) {
            growth.dead = 0;
        }
        Ok(Some(Row { table, known, growth, state: None }))
    }

    /// Tokens of a digest.
    const fn unit(&self) -> usize {
        self.spec.block_tokens / self.scale
    }
}

/// What a step asks of a group of aligned states.
#[derive(Clone, Copy, Debug, Default)]
struct StateWork {
    /// Blocks `retire.0..retire.1` of the table are behind the state for good.
    retire: (usize, usize),
    /// The block of the state before is there, and no longer needed.
    gives_up: Option<usize>,
    /// The state moves on to a block of its own.
    crosses: bool,
    /// Something of it is cached.
    caches: bool,
}

impl StateWork {
    const fn asks(&self) -> bool {
        self.retire.0 < self.retire.1 || self.gives_up.is_some() || self.crosses || self.caches
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
        let required = main.div_ceil(spec.block_tokens) + self.speculative;
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
        let mut gives_up =
            number(&self.last)?.filter(|&last| last + 1 < step.settled.div_ceil(spec.block_tokens));
        if let Some(last) = gives_up
            && is_null(&table.get_item(last)?, shared)
        {
            gives_up = None;
        }
        Ok(Some(StateWork { retire, gives_up, crosses, caches: false }))
    }
}

/// A group of a running request, and what a step asks of it.
struct Row<'py> {
    table: Bound<'py, PyList>,
    known: usize,
    growth: Growth,
    /// Of a group of aligned states.
    state: Option<StateWork>,
}

impl Row<'_> {
    fn asks(&self) -> bool {
        self.state.is_some_and(|state| state.asks())
            || self.growth.dead > 0
            || self.growth.missing > 0
            || self.growth.full > self.known
    }
}

fn is_null(block: &Bound<'_, PyAny>, shared: &Arc<Shared>) -> bool {
    own(block, shared).is_some_and(|block| block.id == 0)
}

fn attr<'py>(request: &Bound<'py, PyAny>, name: &Bound<'py, PyString>) -> PyResult<usize> {
    request.getattr(name)?.extract()
}

/// The calls that vLLM's scheduler makes for every running request and step, for several groups.
#[pyclass(frozen, module = "kvpool._core.vllm", name = "VllmGroups")]
pub(crate) struct PyVllmGroups {
    core: Py<PyVllmPool>,
    shared: Arc<Shared>,
    groups: Vec<Group>,
    max_model_len: usize,
    /// Tokens at the end that a later step may compute again.
    recomputed: usize,
    watermark: usize,
    waiting: Vec<i64>,
    /// `KVCacheBlocks`, and its empty one.
    blocks_class: Py<PyAny>,
    empty: Py<PyAny>,
    on_removed: Option<Py<PyAny>>,
    /// Called instead of caching, with the request and how many tokens it has computed.
    on_cached: Option<Py<PyAny>>,
    /// `allocate_slots` of vLLM's manager, for what is out of the ordinary.
    fallback: Py<PyAny>,
}

#[pymethods]
impl PyVllmGroups {
    #[new]
    #[pyo3(signature = (core, groups, *, max_model_len, recomputed, watermark, waiting, blocks_class, empty, fallback,
        on_removed=None, on_cached=None))]
    #[expect(clippy::too_many_arguments, reason = "the configuration of one manager, by name")]
    fn new(
        py: Python<'_>,
        core: Py<PyVllmPool>,
        groups: Vec<GroupConfig<'_>>,
        max_model_len: usize,
        recomputed: usize,
        watermark: usize,
        waiting: &Bound<'_, PyAny>,
        blocks_class: Py<PyAny>,
        empty: Py<PyAny>,
        fallback: Py<PyAny>,
        on_removed: Option<Py<PyAny>>,
        on_cached: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let groups: Vec<_> =
            groups.into_iter().map(|group| Group::new(py, group)).collect::<PyResult<_>>()?;
        let shared = core.get().shared.clone();
        for group in groups.iter().filter(|group| group.spec.kind.is_full()) {
            shared.apply(op::ChainGroup { group: group.number });
        }
        Ok(Self {
            core,
            shared,
            groups,
            max_model_len,
            recomputed,
            watermark,
            waiting: crate::gather::gather_as("waiting", waiting, "an int")?,
            blocks_class,
            empty,
            on_removed,
            on_cached,
            fallback,
        })
    }

    /// Takes the blocks that a request needs next and caches those that are full; None if too few are free.
    #[pyo3(signature = (request, num_new_tokens, num_new_computed_tokens=0, new_computed_blocks=None,
        num_lookahead_tokens=0, num_external_computed_tokens=0, delay_cache_blocks=false, num_encoder_tokens=0,
        full_sequence_must_fit=false, reserved_blocks=0, has_scheduled_reqs=true, skip_zeroing_group_ids=None))]
    #[expect(clippy::too_many_arguments, reason = "the arguments of vLLM's call")]
    fn allocate_slots<'py>(
        &self,
        py: Python<'py>,
        request: &Bound<'py, PyAny>,
        num_new_tokens: usize,
        num_new_computed_tokens: usize,
        new_computed_blocks: Option<&Bound<'py, PyAny>>,
        num_lookahead_tokens: usize,
        num_external_computed_tokens: usize,
        delay_cache_blocks: bool,
        num_encoder_tokens: usize,
        full_sequence_must_fit: bool,
        reserved_blocks: usize,
        has_scheduled_reqs: bool,
        skip_zeroing_group_ids: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let is_plain = num_new_tokens > 0
            && num_new_computed_tokens == 0
            && num_external_computed_tokens == 0
            && num_encoder_tokens == 0
            && !full_sequence_must_fit
            && new_computed_blocks.is_none_or(|blocks| blocks.is(self.empty.bind(py)));
        if is_plain {
            let asked = Asked {
                new: num_new_tokens,
                lookahead: num_lookahead_tokens,
                caches: !delay_cache_blocks,
                reserved: reserved_blocks,
                watermark: has_scheduled_reqs,
            };
            if let Some(answer) = self.go_on(request, asked)? {
                return Ok(answer);
            }
        }
        self.fallback.bind(py).call1((
            request,
            num_new_tokens,
            num_new_computed_tokens,
            new_computed_blocks,
            num_lookahead_tokens,
            num_external_computed_tokens,
            delay_cache_blocks,
            num_encoder_tokens,
            full_sequence_must_fit,
            reserved_blocks,
            has_scheduled_reqs,
            skip_zeroing_group_ids.unwrap_or_else(|| PyTuple::empty(py).into_any()),
        ))
    }

    /// Frees the blocks of a request, group by group, the last first; False, and nothing done, where that is vLLM's to do.
    fn free<'py>(&self, py: Python<'py>, id: &Bound<'py, PyAny>) -> PyResult<bool> {
        let mut tables = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            if group.states.is_some() {
                return Ok(false);
            }
            let Some(table) = group.tables.bind(py).get_item(id)? else {
                tables.push(Vec::new());
                continue;
            };
            let mut ids = Vec::new();
            for block in table.cast::<PyList>()?.iter() {
                match own(&block, &self.shared) {
                    Some(own) => ids.push(own.id),
                    None => return Ok(false),
                }
            }
            tables.push(ids);
        }
        for (group, ids) in self.groups.iter().zip(tables) {
            self.shared.apply(op::Free { blocks: ids.into_iter().rev() }).or_raise(py)?;
            for of in [&group.tables, &group.num_cached] {
                if of.bind(py).contains(id)? {
                    of.bind(py).del_item(id)?;
                }
            }
        }
        Ok(true)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.core)?;
        for group in &self.groups {
            visit.call(&group.tables)?;
            visit.call(&group.num_cached)?;
            visit.call(&group.zeroed)?;
            if let Some(states) = &group.states {
                visit.call(&states.manager)?;
                visit.call(&states.allocated)?;
                for of in [&states.retired, &states.last, &states.partial, &states.checkpoints] {
                    visit.call(of)?;
                }
            }
        }
        visit.call(&self.blocks_class)?;
        visit.call(&self.empty)?;
        visit.call(&self.fallback)?;
        visit.call(&self.on_removed)?;
        visit.call(&self.on_cached)
    }
}

/// A plain step of a running request.
struct Asked {
    new: usize,
    lookahead: usize,
    caches: bool,
    reserved: usize,
    /// Whether the watermark is for requests that wait.
    watermark: bool,
}

impl PyVllmGroups {
    /// A plain step; `None`, and nothing has changed, where vLLM's managers have to look.
    fn go_on<'py>(&self, request: &Bound<'py, PyAny>, asked: Asked) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = request.py();
        let id = request.getattr(intern!(py, "request_id"))?;
        let computed = attr(request, intern!(py, "num_computed_tokens"))?.min(self.max_model_len);
        let in_flight = attr(request, intern!(py, "num_in_flight_tokens"))?;
        let main = computed.saturating_add(asked.new);
        let tokens = super::slots::num_tokens(request)?;
        let cached = if asked.caches { main.min(tokens) } else { 0 };
        let step = Step {
            settled: computed.saturating_sub(in_flight),
            slots: main.saturating_add(asked.lookahead).min(self.max_model_len),
            cacheable: cached.saturating_sub(self.recomputed),
        };
        let mut rows = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            match group.growth(&self.shared, &id, step, main)? {
                Some(row) => rows.push(row),
                None => return Ok(None),
            }
        }
        if !rows.iter().any(Row::asks) {
            // Nothing is taken: what must stay free does, unless it is lacking already.
            let refused = (asked.reserved > 0 || self.watermark > 0) && !self.fits(request, 0, &asked)?;
            let answer = if refused { py.None().into_bound(py) } else { self.empty.bind(py).clone() };
            return Ok(Some(answer));
        }
        self.grow(request, &asked, &rows, cached).map(Some)
    }

    /// Whether so many blocks may be taken.
    fn fits(&self, request: &Bound<'_, PyAny>, missing: usize, asked: &Asked) -> PyResult<bool> {
        let mut required = missing.saturating_add(asked.reserved);
        if asked.watermark && self.watermark > 0 {
            let status: i64 = request.getattr(intern!(request.py(), "status"))?.extract()?;
            required += if self.waiting.contains(&status) { self.watermark } else { 0 };
        }
        Ok(required <= self.shared.lock().num_free())
    }

    /// Gives up what is dead, takes what is missing, caches what is full.
    fn grow<'py>(
        &self,
        request: &Bound<'py, PyAny>,
        asked: &Asked,
        rows: &[Row<'py>],
        cached: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = request.py();
        let id = request.getattr(intern!(py, "request_id"))?;
        for (group, row) in self.groups.iter().zip(rows) {
            if let (Some(states), Some(work)) = (&group.states, row.state) {
                let (first, end) = work.retire;
                if first < end {
                    self.give_up(py, &row.table, (first..end).rev(), false)?;
                    states.retired.bind(py).set_item(&id, end)?;
                }
                self.give_up(py, &row.table, work.gives_up, false)?;
            }
            self.give_up(py, &row.table, (0..row.growth.dead).rev(), true)?;
        }
        let missing = rows.iter().map(|row| row.growth.missing).sum();
        if !self.fits(request, missing, asked)? {
            return Ok(py.None().into_bound(py));
        }
        let mut answer = Vec::with_capacity(rows.len());
        for (group, row) in self.groups.iter().zip(rows) {
            let (mut new, mut removed) = (Vec::new(), Vec::new());
            if let Some(states) = group.states.as_ref().filter(|_| row.growth.missing > 0) {
                states.last.bind(py).set_item(&id, row.table.len() - 1)?;
            }
            if row.growth.missing > 0 {
                let removed = self.on_removed.is_some().then_some(&mut removed);
                let asked = op::Allocate { blocks: row.growth.missing, out: &mut new, removed };
                self.shared.with(|pool| pool.apply(asked).map(drop)).or_raise(py)?;
            }
            if let Some(manager) = group.zeroed.as_ref().filter(|_| !new.is_empty()) {
                manager
                    .bind(py)
                    .getattr(intern!(py, "new_block_ids"))?
                    .call_method1(intern!(py, "extend"), (&new,))?;
            }
            let new = self.core.get().handles(py, &new)?;
            let end = row.table.len();
            if !new.is_empty() {
                row.table.set_slice(end, end, &new)?;
            }
            if let Some(tell) = self.on_removed.as_ref().filter(|_| !removed.is_empty()) {
                tell.call1(py, (removed_keys(py, &removed)?,))?;
            }
            answer.push(new);
        }
        let caches =
            |row: &Row<'_>| row.growth.full > row.known || row.state.is_some_and(|state| state.caches);
        if rows.iter().any(caches) {
            match &self.on_cached {
                Some(cache) => drop(cache.call1(py, (request, cached))?),
                None => self.cache(request, rows, cached.saturating_sub(self.recomputed))?,
            }
        }
        if missing == 0 {
            return Ok(self.empty.bind(py).clone());
        }
        self.blocks_class.bind(py).call1((PyTuple::new(py, answer)?,))
    }

    /// Gives up blocks of a table that are there; with `first`, up to the first that is not.
    fn give_up(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyList>,
        positions: impl IntoIterator<Item = usize>,
        first: bool,
    ) -> PyResult<()> {
        let (mut ids, mut held) = (Vec::new(), Vec::new());
        for at in positions {
            match own(&table.get_item(at)?, &self.shared) {
                Some(block) if block.id != 0 => {
                    ids.push(block.id);
                    held.push(at);
                }
                _ if first => break,
                _ => {}
            }
        }
        if ids.is_empty() {
            return Ok(());
        }
        self.shared.apply(op::Free { blocks: ids.iter().copied() }).or_raise(py)?;
        let null = self.core.get().blocks.bind(py).get_item(0)?;
        held.into_iter().try_for_each(|at| table.set_item(at, &null))
    }

    /// Caches what is full, group by group; of states, what vLLM's manager says.
    fn cache(&self, request: &Bound<'_, PyAny>, rows: &[Row<'_>], cacheable: usize) -> PyResult<()> {
        let py = request.py();
        let id = request.getattr(intern!(py, "request_id"))?;
        let hashes = request.getattr(intern!(py, "block_hashes"))?;
        for (group, row) in self.groups.iter().zip(rows) {
            if let (Some(states), Some(work)) = (&group.states, row.state) {
                if work.caches {
                    let boundaries = PyDict::new(py);
                    boundaries.set_item(intern!(py, "replay_boundaries"), PyTuple::empty(py))?;
                    let cache = intern!(py, "cache_blocks");
                    states.manager.bind(py).call_method(cache, (request, cacheable), Some(&boundaries))?;
                }
                continue;
            }
            // Blocks that are not hashed yet are cached by a later call (vLLM 0.33).
            let full = row.growth.full.min(hashes.len()? / group.scale);
            if full <= row.known {
                continue;
            }
            let ids = own_ids(&row.table.get_slice(row.known, full), &self.shared)?;
            let wanted = ids.iter().map(|&id| id != 0);
            let digests = digests(&hashes, row.known, group.scale, wanted)?;
            let key_of = |at: usize| Key::new(digests[at].as_ref()?.as_bytes(), group.number).ok();
            let asked = op::CacheFull {
                start: self.shared.start(&row.table, row.known)?,
                blocks: &ids,
                key_of,
                block_size: group.spec.block_tokens,
                removed: &mut Vec::new(),
                stored: None,
            };
            self.shared.apply(asked).or_raise(py)?;
            group.num_cached.bind(py).set_item(&id, full)?;
        }
        Ok(())
    }
}
