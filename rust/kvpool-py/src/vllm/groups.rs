//! `VllmGroups`: the calls that vLLM's scheduler makes to its KV-cache manager for every request at
//! every step, for any KV-cache groups: lookups, `allocate_slots`, `cache_blocks`, `free`.
//!
//! The object keeps no state of requests: the tables and counts of each group are vLLM's own. Most steps
//! change no group, and only check the length of each table.
//!
//! Unusual calls are passed to vLLM's own method before anything has changed. They are calls with tokens of a
//! connector or an encoder, with a hit inside a block, or with a state that is shared or exported.
//!
//! vLLM's objects and this one refer to each other. `__traverse__` shows these references to Python's
//! garbage collector.

use std::sync::Arc;

use kvpool_journal::VllmCalls;
use kvpool_vllm::{Call, Hits, Retains};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::types::{PyList, PyString, PyTuple};

use super::block::{Shared, own, own_ids};
use super::feed::Listener;
use super::group::Group;
use super::hits::Lookups;
use super::pool::PyVllmPool;
use crate::errors::{OrRaise, raise};
use crate::gather::{extract, gather, gather_as};
use crate::python::prelude::*;

#[pyclass(frozen, module = "kvpool._core.vllm", name = "VllmGroups")]
pub(crate) struct PyVllmGroups {
    pub(super) core: Py<PyVllmPool>,
    pub(super) shared: Arc<Shared>,
    pub(super) groups: Vec<Group>,
    pub(super) max_model_len: usize,
    pub(super) watermark: usize,
    pub(super) waiting: Vec<i64>,
    /// Makes the result of a call from lists of blocks: vLLM's class `KVCacheBlocks`. `empty` is its instance
    /// without blocks.
    pub(super) blocks_class: Py<PyAny>,
    pub(super) empty: Py<PyAny>,
    /// The receivers of removed and of cached keys. Each is a method of the Python pool if the pool makes
    /// events (`_notify_removed`, `cache_full_blocks`), or the feed of a publisher.
    pub(super) on_removed: Option<Listener>,
    pub(super) on_cached: Option<Listener>,
    /// The Python pool if it has a collector of metrics, which gets a report of every block. Otherwise
    /// `None`.
    pub(super) metered: Option<Py<PyAny>>,
    /// vLLM's coordinator. Its `retention_interval` can change, and determines which windows and states
    /// are kept.
    pub(super) coordinator: Py<PyAny>,
    pub(super) retains: Retains,
    /// `allocate_slots` of vLLM's manager, which handles the unusual calls.
    pub(super) fallback: Py<PyAny>,
    /// Whether some group leaves blocks uncached that no hit is expected to need.
    pub(super) leaves_out: bool,
    /// Whether a step changes a group only if it needs or completes a block: all groups are
    /// [plain](kvpool_vllm::Group::is_plain).
    pub(super) is_plain: bool,
    /// Whether some group caches the block in which a prompt ends.
    pub(super) looks_at_prompts: bool,
    /// Whether some group caches the recurrent state at a junction, which is a token at which a prompt
    /// diverges from an earlier one.
    pub(super) looks_at_junctions: bool,
    lookups: Option<Lookups>,
}

pub(super) fn attr<'py>(request: &Bound<'py, PyAny>, name: &Bound<'py, PyString>) -> PyResult<usize> {
    request.getattr(name)?.extract()
}

/// Returns the number of tokens of a request. Like vLLM's `num_tokens`, this is the length of
/// `_all_token_ids`.
pub(super) fn num_tokens(request: &Bound<'_, PyAny>) -> PyResult<usize> {
    let tokens = request.getattr(intern!(request.py(), "_all_token_ids"))?;
    match tokens.cast::<PyList>() {
        Ok(list) => Ok(list.len()),
        Err(_) => tokens.len(),
    }
}

#[pymethods]
impl PyVllmGroups {
    #[new]
    #[pyo3(signature = (core, groups, *, max_model_len, recomputed, watermark, waiting, blocks_class, empty,
        fallback, coordinator, scheduler_block, drops=false, by_series_33=false, lookup=None, on_removed=None,
        on_cached=None, metered=None))]
    fn new(
        py: Python<'_>,
        core: Py<PyVllmPool>,
        groups: &Bound<'_, PyAny>,
        max_model_len: usize,
        recomputed: usize,
        watermark: usize,
        waiting: &Bound<'_, PyAny>,
        blocks_class: Py<PyAny>,
        empty: Py<PyAny>,
        fallback: Py<PyAny>,
        coordinator: Py<PyAny>,
        scheduler_block: usize,
        drops: bool,
        by_series_33: bool,
        lookup: Option<(usize, Bound<'_, PyAny>)>,
        on_removed: Option<Py<PyAny>>,
        on_cached: Option<Py<PyAny>>,
        metered: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        if scheduler_block == 0 {
            let message = "scheduler_block is 0: must be at least 1";
            return Err(raise(py, "InvalidArgumentError", message));
        }
        let group = |_, group: Bound<'_, PyAny>| Group::new(py, recomputed, &group);
        let groups = gather("groups", groups, group)?;
        let lookups = match lookup {
            None => None,
            Some((alignment, families)) => {
                let families = gather("lookup", &families, |position, family| {
                    let each = "groups, whether they drop, and tokens";
                    let (members, drops, margin): (Bound<'_, PyAny>, bool, usize) =
                        extract("lookup", position, &family, each)?;
                    Ok((gather_as("lookup", &members, "an int")?, drops, margin))
                })?;
                let rules: Vec<_> = groups.iter().map(|group| group.rules.clone()).collect();
                Some(Lookups::new(Hits::new(&rules, alignment, families).or_raise(py)?))
            }
        };
        let shared = core.get().shared.clone();
        for group in groups.iter().filter(|group| group.rules.spec.kind.is_full()) {
            shared.with(|pool| pool.chain_group(group.rules.number));
        }
        let any = |of: fn(&kvpool_vllm::Group) -> bool| groups.iter().any(|group| of(&group.rules));
        Ok(Self {
            core,
            shared,
            leaves_out: any(|group| !group.spec.kind.is_full()),
            is_plain: groups.iter().all(|group| group.rules.is_plain()),
            looks_at_prompts: any(kvpool_vllm::Group::looks_at_prompts),
            looks_at_junctions: any(|group| group.states.is_some_and(|states| states.junctions)),
            groups,
            max_model_len,
            watermark,
            waiting: gather_as("waiting", waiting, "an int")?,
            blocks_class,
            empty,
            on_removed: Listener::of(py, on_removed),
            on_cached: Listener::of(py, on_cached),
            metered,
            coordinator,
            retains: Retains { scheduler_block, drops, by_series_33 },
            fallback,
            lookups,
        })
    }

    fn find_longest_cache_hit<'py>(
        &self,
        py: Python<'py>,
        block_hashes: &Bound<'py, PyAny>,
        max_cache_hit_length: usize,
    ) -> PyResult<(Bound<'py, PyTuple>, usize, usize)> {
        let (lookups, limit) = (self.lookups(py)?, max_cache_hit_length);
        let (tables, (tokens, more)) =
            lookups.ask(self.core.get(), self.groups.len(), block_hashes, |hashes, last| {
                let (found, tokens, more) = lookups.hits.find(hashes, last, limit)?;
                Ok((found, (tokens, more)))
            })?;
        Ok((tables, tokens, more))
    }

    fn find_longest_cache_hit_per_group<'py>(
        &self,
        py: Python<'py>,
        block_hashes: &Bound<'py, PyAny>,
        max_cache_hit_length: usize,
    ) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyTuple>)> {
        let (lookups, limit) = (self.lookups(py)?, max_cache_hit_length);
        let (tables, tokens) =
            lookups.ask(self.core.get(), self.groups.len(), block_hashes, |hashes, last| {
                let found = lookups.hits.find_each(hashes, last, limit)?;
                let tokens = PyTuple::new(py, found.iter().map(|found| found.tokens))?;
                Ok((found, tokens))
            })?;
        Ok((tables, tokens))
    }

    #[pyo3(signature = (request, num_new_tokens, num_new_computed_tokens=0, new_computed_blocks=None,
        num_lookahead_tokens=0, num_external_computed_tokens=0, delay_cache_blocks=false,
        num_encoder_tokens=0,
        full_sequence_must_fit=false, reserved_blocks=0, has_scheduled_reqs=true,
        skip_zeroing_group_ids=None))]
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
        if num_new_tokens > 0 && num_external_computed_tokens == 0 && num_encoder_tokens == 0 {
            let call = Call {
                new: num_new_tokens,
                lookahead: num_lookahead_tokens,
                caches: !delay_cache_blocks,
                whole: full_sequence_must_fit,
                reserved: reserved_blocks,
                watermark: has_scheduled_reqs,
            };
            let hits = new_computed_blocks.filter(|blocks| !blocks.is(self.empty.bind(py)));
            let answer = match hits {
                None if num_new_computed_tokens == 0 && !call.whole => {
                    self.continue_request(request, &call)?
                }
                _ => None,
            };
            if let Some(answer) = answer {
                return Ok(answer);
            }
            if let Some(answer) = self.admit(request, hits, num_new_computed_tokens, &call)? {
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

    fn cache_blocks<'py>(
        &self,
        py: Python<'py>,
        request: &Bound<'py, PyAny>,
        num_computed_tokens: isize,
    ) -> PyResult<()> {
        let id = request.getattr(intern!(py, "request_id"))?;
        let computed = usize::try_from(num_computed_tokens).unwrap_or(0);
        if self.is_plain && !self.completes(&id, computed)? {
            return Ok(());
        }
        let prompt = self.prompt(request)?;
        let mut rows = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            let table = group.table(&id)?.unwrap_or_else(|| PyList::empty(py));
            rows.push(group.cacheable(&self.shared, &id, table, &prompt, computed)?);
        }
        self.cache(request, &id, rows.iter())
    }

    fn free<'py>(&self, py: Python<'py>, id: &Bound<'py, PyAny>) -> PyResult<bool> {
        let mut tables = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            let mut ids = Vec::new();
            for block in group.table(id)?.iter().flatten() {
                match own(&block, &self.shared) {
                    Some(own) => ids.push(own.id),
                    None => return Ok(false),
                }
            }
            tables.push(ids);
        }
        for (group, ids) in self.groups.iter().zip(tables) {
            self.shared.with(|pool| pool.free(ids.into_iter().rev())).or_raise(py)?;
            group.forget(id)?;
        }
        Ok(true)
    }

    fn cached_tokens<'py>(&self, py: Python<'py>, id: &Bound<'py, PyAny>) -> PyResult<u32> {
        let mut least = None;
        for group in self.groups.iter().filter(|group| group.of.counts) {
            let Some(table) = group.of.tables.bind(py).get_item(id)? else { return Ok(0) };
            let ids = own_ids(&table, &self.shared)?;
            let pool = self.shared.lock();
            let tokens = ids.iter().filter_map(|&block| pool.keys().hash_of(block)?.1).max().unwrap_or(0);
            least = Some(least.map_or(tokens, |least: u32| least.min(tokens)));
        }
        Ok(least.unwrap_or(0))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.core)?;
        self.groups.iter().try_for_each(|group| group.traverse(&visit))?;
        visit.call(&self.blocks_class)?;
        visit.call(&self.empty)?;
        visit.call(&self.fallback)?;
        self.on_removed.iter().chain(&self.on_cached).try_for_each(|listener| listener.traverse(&visit))?;
        visit.call(&self.metered)?;
        visit.call(&self.coordinator)
    }
}

impl PyVllmGroups {
    fn lookups(&self, py: Python<'_>) -> PyResult<&Lookups> {
        self.lookups
            .as_ref()
            .ok_or_else(|| raise(py, "InvalidArgumentError", "lookup is None: these groups have none"))
    }
}
