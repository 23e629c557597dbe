//! `VllmGroups`: the calls that vLLM's scheduler makes of its KV-cache manager for every request at every step, for any KV-cache
//! groups: `allocate_slots`, `cache_blocks`, `free`.
//!
//! As [`super::slots`], it keeps no state of requests: tables and counts are vLLM's own, group by group. A step that asks nothing of
//! any group, which is most of them, ends after a look at each table. A call that is out of the ordinary goes to vLLM's own method,
//! before anything has changed: tokens of a connector or an encoder, a hit inside a block, an admission with recurrent states, a
//! state that is shared or exported.

use std::sync::Arc;

use kvpool_journal::ops::vllm as op;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::block::{Shared, own};
use super::group::{Asked, Group, GroupConfig};
use super::pool::PyVllmPool;
use crate::errors::OrRaise;
use crate::gather::{gather, gather_as};

/// The calls that vLLM's scheduler makes for every request and step, for any KV-cache groups.
#[pyclass(frozen, module = "kvpool._core.vllm", name = "VllmGroups")]
pub(crate) struct PyVllmGroups {
    pub(super) core: Py<PyVllmPool>,
    pub(super) shared: Arc<Shared>,
    pub(super) groups: Vec<Group>,
    pub(super) max_model_len: usize,
    /// Tokens at the end that a later step may compute again.
    pub(super) recomputed: usize,
    pub(super) watermark: usize,
    pub(super) waiting: Vec<i64>,
    /// `KVCacheBlocks`, and its empty one.
    pub(super) blocks_class: Py<PyAny>,
    pub(super) empty: Py<PyAny>,
    pub(super) on_removed: Option<Py<PyAny>>,
    /// Called instead of caching, with the request and how many tokens it has computed.
    pub(super) on_cached: Option<Py<PyAny>>,
    /// `allocate_slots` of vLLM's manager, for what is out of the ordinary.
    pub(super) fallback: Py<PyAny>,
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
        groups: &Bound<'_, PyAny>,
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
        let group = |_, group: Bound<'_, PyAny>| Group::new(py, group.extract::<GroupConfig<'_>>()?);
        let groups = gather("groups", groups, group)?;
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
            waiting: gather_as("waiting", waiting, "an int")?,
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
        if num_new_tokens > 0 && num_external_computed_tokens == 0 && num_encoder_tokens == 0 {
            let asked = Asked {
                new: num_new_tokens,
                lookahead: num_lookahead_tokens,
                caches: !delay_cache_blocks,
                whole: full_sequence_must_fit,
                reserved: reserved_blocks,
                watermark: has_scheduled_reqs,
            };
            let hits = new_computed_blocks.filter(|blocks| !blocks.is(self.empty.bind(py)));
            let answer = match hits {
                None if num_new_computed_tokens == 0 && !asked.whole => self.go_on(request, &asked)?,
                _ => None,
            };
            if let Some(answer) = answer {
                return Ok(answer);
            }
            if let Some(answer) = self.come(request, hits, num_new_computed_tokens, &asked)? {
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

    /// Caches the blocks of a request that are full with so many tokens.
    fn cache_blocks<'py>(
        &self,
        py: Python<'py>,
        request: &Bound<'py, PyAny>,
        num_computed_tokens: isize,
    ) -> PyResult<()> {
        let id = request.getattr(intern!(py, "request_id"))?;
        let computed = usize::try_from(num_computed_tokens).unwrap_or(0);
        let cacheable = computed.saturating_sub(self.recomputed);
        let mut rows = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            rows.push(group.cacheable(&self.shared, request, &id, cacheable)?);
        }
        self.cache_grown(request, &rows, computed)
    }

    /// Frees the blocks of a request, group by group, the last first; False, and nothing done, where that is vLLM's.
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
            visit.call(&group.cached_by)?;
            if let Some(states) = &group.states {
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
