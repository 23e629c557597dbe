//! `VllmSlots`: the calls that vLLM's scheduler makes of its KV-cache manager for every request at every step, for one
//! group of full attention: lookup, `allocate_slots`, `cache_blocks`, `free`.
//!
//! It keeps no state of requests. Their tables are vLLM's own lists, in vLLM's own dictionaries; a call that is anything
//! but ordinary goes to vLLM's method, before anything has changed, and finds everything where it belongs. vLLM's objects
//! and this one refer to each other: `__traverse__` lets the collector see it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvpool_journal::VllmCalls;
use kvpool_vllm::{Demand, Key, Removed, Slots};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};

use super::block::{Shared, own, own_ids};
use super::feed::{Listener, Run};
use super::keys::digests;
use super::memo::Memo;
use super::pool::PyVllmPool;
use crate::errors::OrRaise;
use crate::gather::gather_as;
use crate::python::prelude::*;

#[doc = doc!("VllmSlots")]
#[pyclass(frozen, module = "kvpool._core.vllm", name = "VllmSlots")]
pub(crate) struct PyVllmSlots {
    core: Py<PyVllmPool>,
    shared: Arc<Shared>,
    slots: Slots,
    group: u32,
    caching: bool,
    /// Whether the last block of a hit is dropped, as speculation with EAGLE needs.
    drop_last: bool,
    /// Tokens at the end that a later step may compute again.
    recomputed: usize,
    watermark: usize,
    /// The values of `RequestStatus` that the watermark is for.
    waiting: Vec<i64>,
    /// `req_to_blocks` and `num_cached_block` of vLLM's manager of the group.
    tables: Py<PyDict>,
    num_cached: Py<PyDict>,
    /// `KVCacheBlocks`, and its empty one.
    blocks_class: Py<PyAny>,
    empty: Py<PyAny>,
    /// The pool's `emit_removed` and `cache_full_blocks`, if anybody listens; or the feed of a publisher.
    on_removed: Option<Listener>,
    on_cached: Option<Listener>,
    /// `allocate_slots` of vLLM's manager, for what is out of the ordinary.
    fallback: Py<PyAny>,
    memo: Mutex<Memo>,
}

pub(super) fn attr<'py>(request: &Bound<'py, PyAny>, name: &Bound<'py, PyString>) -> PyResult<usize> {
    request.getattr(name)?.extract()
}

/// How many tokens a request has: the length of the list that vLLM's `num_tokens` takes it of.
pub(super) fn num_tokens(request: &Bound<'_, PyAny>) -> PyResult<usize> {
    let tokens = request.getattr(intern!(request.py(), "_all_token_ids"))?;
    match tokens.cast::<PyList>() {
        Ok(list) => Ok(list.len()),
        Err(_) => tokens.len(),
    }
}

/// The most tokens that a block of a table is cached for.
pub(super) fn cached_tokens(table: &Bound<'_, PyAny>, shared: &Arc<Shared>) -> PyResult<u32> {
    let ids = own_ids(table, shared)?;
    let pool = shared.lock();
    let tokens = ids.iter().filter_map(|&block| pool.keys().hash_of(block).and_then(|(_, tokens)| tokens));
    Ok(tokens.max().unwrap_or(0))
}

#[pymethods]
impl PyVllmSlots {
    #[new]
    #[pyo3(signature = (core, *, block_size, max_model_len, group, caching, drop_last, recomputed, watermark, waiting,
        tables, num_cached, blocks_class, empty, fallback, on_removed=None, on_cached=None))]
    #[expect(clippy::too_many_arguments, reason = "the configuration of one manager, by name")]
    fn new(
        py: Python<'_>,
        core: Py<PyVllmPool>,
        block_size: usize,
        max_model_len: usize,
        group: u32,
        caching: bool,
        drop_last: bool,
        recomputed: usize,
        watermark: usize,
        waiting: &Bound<'_, PyAny>,
        tables: Py<PyDict>,
        num_cached: Py<PyDict>,
        blocks_class: Py<PyAny>,
        empty: Py<PyAny>,
        fallback: Py<PyAny>,
        on_removed: Option<Py<PyAny>>,
        on_cached: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        if block_size == 0 {
            return Err(crate::errors::raise(
                py,
                "InvalidArgumentError",
                "block_size is 0: must be at least 1",
            ));
        }
        let shared = core.get().shared.clone();
        shared.with(|pool| pool.chain_group(group));
        Ok(Self {
            shared,
            core,
            slots: Slots { block_size, max_model_len },
            group,
            caching,
            drop_last,
            recomputed,
            watermark,
            waiting: gather_as("waiting", waiting, "an int")?,
            tables,
            num_cached,
            blocks_class,
            empty,
            on_removed: Listener::of(py, on_removed),
            on_cached: Listener::of(py, on_cached),
            fallback,
            memo: Mutex::default(),
        })
    }

    #[doc = doc!("VllmSlots.lookup")]
    fn lookup<'py>(
        &self,
        py: Python<'py>,
        hashes: &Bound<'py, PyAny>,
        max_length: usize,
    ) -> PyResult<(Bound<'py, PyAny>, usize)> {
        // Taken out, for nothing is to be locked while Python objects are looked at or made.
        let mut memo = std::mem::take(&mut *self.memo());
        let found = self.find(py, &mut memo, hashes, max_length);
        // Another thread's goes without the lock: what it holds may be the last of its kind.
        let other = std::mem::replace(&mut *self.memo(), memo);
        drop(other);
        found
    }

    #[doc = doc!("VllmSlots.allocate_slots")]
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
        let id = request.getattr(intern!(py, "request_id"))?;
        let table = self.tables.bind(py).get_item(&id)?.map(Bound::cast_into::<PyList>).transpose()?;
        let running = self.num_cached.bind(py).get_item(&id)?;
        let hits = self.hits(py, new_computed_blocks)?;
        let held = table.as_ref().map_or(0, PyListMethods::len);
        let hits_of_a_running_request = hits.is_some() && (running.is_some() || held > 0);
        let nothing_to_do = num_new_tokens == 0 && num_new_computed_tokens == 0;
        // The shared last block would have to be copied.
        let hit_inside_a_block =
            hits.is_some() && !num_new_computed_tokens.is_multiple_of(self.slots.block_size);
        let from_elsewhere = num_external_computed_tokens > 0 || num_encoder_tokens > 0;
        if from_elsewhere || nothing_to_do || hits_of_a_running_request || hit_inside_a_block {
            return self.fallback.bind(py).call1((
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
            ));
        }
        let demand = Demand {
            computed: attr(request, intern!(py, "num_computed_tokens"))? + num_new_computed_tokens,
            new: num_new_tokens,
            lookahead: num_lookahead_tokens,
            num_tokens: num_tokens(request)?,
            table: held,
            watermark: self.watermark_for(request, has_scheduled_reqs)?,
            reserved: reserved_blocks,
            whole: full_sequence_must_fit,
            ..Demand::default()
        };
        let (mut new, mut removed) = (Vec::new(), Vec::new());
        let fits = {
            let hits = hits.as_deref().unwrap_or_default();
            let removed = self.on_removed.is_some().then_some(&mut removed);
            self.shared
                .with(|pool| pool.take_slots(self.slots, demand, hits, &mut new, removed))
                .or_raise(py)?
        };
        if !fits {
            return Ok(py.None().into_bound(py));
        }
        let blocks = self.core.get().handles(py, &new)?;
        let table = self.extend(py, &id, table, hits.as_deref(), &blocks)?;
        self.tell_removed(py, &removed)?;
        if !delay_cache_blocks && self.caching {
            let known = match (&hits, running) {
                (Some(hits), _) => hits.len(),
                (None, Some(known)) => known.extract()?,
                (None, None) => 0,
            };
            let full = self.slots.full_blocks(&demand, self.recomputed);
            self.cache_up_to(py, request, &id, &table, (known, full), &new)?;
        }
        self.result(py, blocks)
    }

    #[doc = doc!("VllmSlots.cache_blocks")]
    fn cache_blocks<'py>(
        &self,
        py: Python<'py>,
        request: &Bound<'py, PyAny>,
        num_computed_tokens: isize,
    ) -> PyResult<()> {
        if !self.caching {
            return Ok(());
        }
        let id = request.getattr(intern!(py, "request_id"))?;
        let known = self.num_cached.bind(py).get_item(&id)?.map_or(Ok(0), |known| known.extract())?;
        let cacheable = usize::try_from(num_computed_tokens).unwrap_or(0).saturating_sub(self.recomputed);
        let full = cacheable / self.slots.block_size;
        if known >= full {
            return Ok(());
        }
        let table = self.tables.bind(py).get_item(&id)?.map(Bound::cast_into::<PyList>).transpose()?;
        let table = table.unwrap_or_else(|| PyList::empty(py));
        self.cache_up_to(py, request, &id, &table, (known, full), &[])
    }

    #[doc = doc!("VllmSlots.free")]
    fn free<'py>(&self, py: Python<'py>, id: &Bound<'py, PyAny>) -> PyResult<bool> {
        let (tables, cached) = (self.tables.bind(py), self.num_cached.bind(py));
        if let Some(table) = tables.get_item(id)? {
            let mut ids = Vec::new();
            for block in table.cast::<PyList>()?.iter() {
                match own(&block, &self.shared) {
                    Some(own) => ids.push(own.id),
                    None => return Ok(false),
                }
            }
            self.shared.with(|pool| pool.free(ids.into_iter().rev())).or_raise(py)?;
            tables.del_item(id)?;
        }
        if cached.contains(id)? {
            cached.del_item(id)?;
        }
        Ok(true)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.core)?;
        visit.call(&self.tables)?;
        visit.call(&self.num_cached)?;
        visit.call(&self.blocks_class)?;
        visit.call(&self.empty)?;
        visit.call(&self.fallback)?;
        self.on_removed.iter().chain(&self.on_cached).try_for_each(|listener| listener.traverse(&visit))
    }

    #[doc = doc!("VllmSlots.cached_tokens")]
    fn cached_tokens<'py>(&self, py: Python<'py>, id: &Bound<'py, PyAny>) -> PyResult<u32> {
        let Some(table) = self.tables.bind(py).get_item(id)? else { return Ok(0) };
        cached_tokens(&table, &self.shared)
    }
}

impl PyVllmSlots {
    fn memo(&self) -> MutexGuard<'_, Memo> {
        self.memo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find<'py>(
        &self,
        py: Python<'py>,
        memo: &mut Memo,
        hashes: &Bound<'py, PyAny>,
        max_length: usize,
    ) -> PyResult<(Bound<'py, PyAny>, usize)> {
        let most = max_length / self.slots.block_size;
        let run = memo.run(&self.shared, hashes, (self.group, 1), most)?;
        let hits = run.saturating_sub(usize::from(self.drop_last));
        let handles = memo.handles(py, self.core.get(), hits)?;
        Ok((self.result(py, handles)?, hits * self.slots.block_size))
    }

    /// The blocks of a hit; `None` where vLLM passes none, or its empty result.
    fn hits(&self, py: Python<'_>, blocks: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Vec<u32>>> {
        match blocks {
            None => Ok(None),
            Some(blocks) if blocks.is(self.empty.bind(py)) => Ok(None),
            Some(blocks) => {
                let groups = blocks.getattr(intern!(py, "blocks"))?;
                own_ids(&groups.get_item(0)?, &self.shared).map(Some)
            }
        }
    }

    fn watermark_for(&self, request: &Bound<'_, PyAny>, has_scheduled_reqs: bool) -> PyResult<usize> {
        if self.watermark == 0 || !has_scheduled_reqs {
            return Ok(0);
        }
        let status: i64 = request.getattr(intern!(request.py(), "status"))?.extract()?;
        Ok(if self.waiting.contains(&status) { self.watermark } else { 0 })
    }

    /// Puts what was taken into the request's table.
    fn extend<'py>(
        &self,
        py: Python<'py>,
        id: &Bound<'py, PyAny>,
        table: Option<Bound<'py, PyList>>,
        hits: Option<&[u32]>,
        new: &Bound<'py, PyList>,
    ) -> PyResult<Bound<'py, PyList>> {
        let append = |table: &Bound<'py, PyList>, blocks: &Bound<'py, PyList>| {
            let end = table.len();
            table.set_slice(end, end, blocks)
        };
        let table = match table {
            Some(table) => table,
            None => {
                let table = PyList::empty(py);
                self.tables.bind(py).set_item(id, &table)?;
                table
            }
        };
        if let Some(hits) = hits {
            append(&table, &self.core.get().handles(py, hits)?)?;
            self.num_cached.bind(py).set_item(id, hits.len())?;
        }
        if !new.is_empty() {
            append(&table, new)?;
        }
        Ok(table)
    }

    fn tell_removed(&self, py: Python<'_>, removed: &[Removed]) -> PyResult<()> {
        self.on_removed.as_ref().map_or(Ok(()), |listener| listener.removed(py, removed))
    }

    /// Caches the blocks `known..full` of a table, whose last ones are `fresh`.
    fn cache_up_to<'py>(
        &self,
        py: Python<'py>,
        request: &Bound<'py, PyAny>,
        id: &Bound<'py, PyAny>,
        table: &Bound<'py, PyList>,
        (known, full): (usize, usize),
        fresh: &[u32],
    ) -> PyResult<()> {
        // Blocks that are not hashed yet are cached by a later call (vLLM 0.33).
        let hashes = request.getattr(intern!(py, "block_hashes"))?;
        let full = full.min(hashes.len()?);
        if known >= full {
            return Ok(());
        }
        if let Some(cache) = self.on_cached.as_ref().and_then(Listener::python) {
            cache.bind(py).call1((request, table, known, full, self.slots.block_size, self.group))?;
        } else {
            let ids = self.ids(table, known, full, fresh)?;
            let digests = digests(&hashes, known, 1, ids.iter().map(|&id| id != 0))?;
            let key_of = |i: usize| Key::new(digests[i].as_ref()?.as_bytes(), self.group).ok();
            let start = self.shared.start(table, known)?;
            let (mut removed, mut new) = (Vec::new(), Vec::new());
            let feed = self.on_cached.as_ref().and_then(Listener::feed).map(Py::get);
            let (block_size, group, hashes) = (self.slots.block_size, self.group, &hashes);
            let run = Run { request, hashes, scale: 1, first: known, digests: &digests, block_size, group };
            let told = feed.map(|feed| feed.read(&run)).transpose()?.flatten();
            let stored = feed.is_some().then_some(&mut new);
            self.shared
                .with(|pool| pool.cache_full(start, &ids, key_of, block_size, &mut removed, stored))
                .or_raise(py)?;
            if let Some(feed) = feed {
                feed.removed(&removed);
                feed.stored(told, &new);
            }
        }
        self.num_cached.bind(py).set_item(id, full)
    }

    /// The ids of the blocks `first..end` of a table, whose last ones are `fresh`: those need not be looked at.
    fn ids(&self, table: &Bound<'_, PyList>, first: usize, end: usize, fresh: &[u32]) -> PyResult<Vec<u32>> {
        let fresh_from = table.len().saturating_sub(fresh.len());
        let mut ids = Vec::new();
        if first < fresh_from {
            ids = own_ids(&table.get_slice(first, end.min(fresh_from)), &self.shared)?;
        }
        let known = first + ids.len();
        ids.extend(fresh.iter().skip(known.saturating_sub(fresh_from)).take(end.saturating_sub(known)));
        Ok(ids)
    }

    fn result<'py>(&self, py: Python<'py>, blocks: Bound<'py, PyList>) -> PyResult<Bound<'py, PyAny>> {
        if blocks.is_empty() {
            return Ok(self.empty.bind(py).clone());
        }
        self.blocks_class.bind(py).call1((PyTuple::new(py, [blocks])?,))
    }
}
