//! Bindings of `VllmPool`, which keeps the state of `kvpool.integrations.vllm.BlockPool`.
//!
//! A call takes and returns whole lists of blocks. If the caller asks for the changes (evicted keys,
//! newly stored keys), the call returns them as data. The Python class makes events of them.

use std::sync::Arc;

use kvpool_journal::{Journaled, VllmCalls, VllmConfig};
use kvpool_vllm::{Key, Pool, Removed, VllmError, WindowSearch};
use pyo3::types::{PyBytes, PyList, PyTuple, PyWeakrefReference};

use super::block::{PyVllmBlock, Shared, own, own_ids};
use super::feed::{PyVllmFeed, Run};
use super::keys::{digest, digests, removed_keys};
use crate::convert::{Int, count};
use crate::ended;
use crate::errors::{OrRaise, ToPyErr, raise};
use crate::gather::{drain, gather_as, push};
use crate::journal::{PyJournal, PyJournalStats};
use crate::python::prelude::*;
use crate::retention::{self, PyHintReport, PyRetention, PyRetentionStats, eviction_named};

impl ToPyErr for VllmError {
    fn to_py_err(&self, py: Python<'_>) -> PyErr {
        let class = match self {
            Self::NotHeld { .. } | Self::UnknownBlock { .. } | Self::AlreadyCached { .. } => {
                "InvalidBlockError"
            }
            Self::Pool(error) => return error.to_py_err(py),
            // The other errors are, for example, too few blocks, or a key that is too long.
            _ => "InvalidArgumentError",
        };
        raise(py, class, self.to_string())
    }
}

#[pyclass(frozen, module = "kvpool._core.vllm", name = "VllmPool")]
pub(crate) struct PyVllmPool {
    pub(crate) shared: Arc<Shared>,
    /// The Python objects of all blocks, in the order of their ids.
    pub(crate) blocks: Py<PyList>,
}

impl PyVllmPool {
    pub(crate) fn handles<'py>(&self, py: Python<'py>, ids: &[u32]) -> PyResult<Bound<'py, PyList>> {
        let blocks = self.blocks.bind(py);
        let found: Vec<_> = ids.iter().map(|&id| blocks.get_item(id as usize)).collect::<PyResult<_>>()?;
        PyList::new(py, found)
    }
}

/// Consecutive blocks of a request's table, from position `first` on. `hashes` has `scale` digests per block.
pub(super) struct TableRun<'a, 'py> {
    pub(super) blocks: &'a Bound<'py, PyAny>,
    pub(super) hashes: &'a Bound<'py, PyAny>,
    pub(super) first: usize,
    pub(super) block_size: usize,
    pub(super) group: u32,
    pub(super) scale: usize,
}

/// The result of caching a run: the removed keys, and for each block whether its key is new.
pub(super) struct Cached {
    removed: Vec<Removed>,
    stored: Vec<Option<bool>>,
}

impl PyVllmPool {
    /// Caches the blocks of a run for which `kept` is true. If there is a feed, it records the blocks as
    /// blocks of the given request.
    pub(super) fn cache_run<'py>(
        &self,
        py: Python<'py>,
        feed: Option<(&PyVllmFeed, &Bound<'py, PyAny>)>,
        &TableRun { blocks, hashes, first, block_size, group, scale }: &TableRun<'_, 'py>,
        ids: &[u32],
        kept: impl Fn(usize) -> bool,
        observed: bool,
    ) -> PyResult<Cached> {
        let start = self.shared.start(blocks, first)?;
        let wanted = ids.iter().enumerate().map(|(i, &id)| id != 0 && kept(i));
        let digests = digests(hashes, first, scale, wanted)?;
        let key_of = |i: usize| Key::new(digests[i].as_ref()?.as_bytes(), group).ok();
        let fed = match feed {
            Some((feed, request)) => {
                feed.read(&Run { request, hashes, scale, first, digests: &digests, block_size, group })?
            }
            None => None,
        };
        let (mut removed, mut stored) = (Vec::new(), Vec::new());
        let new = (observed || feed.is_some()).then_some(&mut stored);
        self.shared
            .with(|pool| pool.cache_full(start, ids, key_of, block_size, &mut removed, new))
            .or_raise(py)?;
        if let Some((feed, _)) = feed {
            feed.removed(&removed);
            feed.stored(fed, &stored);
        }
        Ok(Cached { removed, stored })
    }
}

fn groups(groups: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    gather_as("groups", groups, "an int")
}

fn keys(py: Python<'_>, digest: &[u8], groups: &[u32]) -> PyResult<Vec<Key>> {
    groups.iter().map(|&group| Key::new(digest, group).or_raise(py)).collect()
}

#[pymethods]
impl PyVllmPool {
    #[new]
    #[pyo3(signature = (num_blocks, caching, policy="lru", journal=None, retention=None))]
    fn new(
        py: Python<'_>,
        num_blocks: Int,
        caching: bool,
        policy: &str,
        journal: Option<&Bound<'_, PyJournal>>,
        retention: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let num_blocks = count(py, "num_blocks", num_blocks)?;
        let policy = eviction_named(py, policy)?;
        let retention = retention::config(retention)?;
        let pool = match journal {
            None => Pool::with_retention(num_blocks, caching, policy, retention).or_raise(py)?.into(),
            Some(journal) => {
                let config = VllmConfig { num_blocks, caching, policy, retention };
                journal.get().record(py, |journal| Journaled::with_journal(config, journal))?
            }
        };
        let shared = Shared::new(pool);
        let handles = (0..num_blocks as u32)
            .map(|id| Bound::new(py, PyVllmBlock::new(py, id, shared.clone())?))
            .collect::<PyResult<Vec<_>>>()?;
        Ok(Self { blocks: PyList::new(py, handles)?.unbind(), shared })
    }

    fn retain(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        retention: &Bound<'_, PyRetention>,
    ) -> PyResult<PyHintReport> {
        let blocks: Vec<u32> = gather_as("block_ids", block_ids, "an int")?;
        let retention = retention.get().0;
        Ok(self.shared.with(|pool| pool.retain(&blocks, retention)).or_raise(py)?.into())
    }

    fn assign_tenant(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>, tenant: Int) -> PyResult<()> {
        let blocks: Vec<u32> = gather_as("block_ids", block_ids, "an int")?;
        let tenant = retention::tenant(py, tenant)?;
        self.shared.with(|pool| pool.assign_tenant(&blocks, tenant)).or_raise(py)
    }

    #[pyo3(signature = (block_ids, finish_reason=None, output_tokens=None))]
    fn signal(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        finish_reason: Option<&str>,
        output_tokens: Option<Int>,
    ) -> PyResult<()> {
        let blocks: Vec<u32> = gather_as("block_ids", block_ids, "an int")?;
        let signal = ended::signal(py, finish_reason, output_tokens)?;
        self.shared.with(|pool| pool.signal(&blocks, signal)).or_raise(py)
    }

    getters! {
        wants_signals: bool = self.shared.lock().wants_signals();
        blocks: Py<PyList> = self.blocks.clone_ref(py);
        num_free: usize = self.shared.lock().num_free();
        keeps_history: bool = self.shared.lock().keeps_history();
    }

    fn advance_time(&self, py: Python<'_>, now: f64) -> PyResult<usize> {
        self.shared.with(|pool| pool.advance_time(now)).or_raise(py)
    }

    fn retention_stats(&self) -> Option<PyRetentionStats> {
        self.shared.lock().retention_stats().map(Into::into)
    }

    fn journal_stats(&self) -> Option<PyJournalStats> {
        self.shared.lock().journal().map(Into::into)
    }

    fn journal_image<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let image = self.shared.lock().journal_image();
        image.map(|image| PyBytes::new(py, &image))
    }

    fn bind(&self, py: Python<'_>, owner: &Bound<'_, PyAny>) -> PyResult<()> {
        let reference = PyWeakrefReference::new(owner)?.unbind();
        // If the pool already has an owner, `set` changes nothing.
        let _ = self.shared.owner.set(py, reference);
        Ok(())
    }

    fn set_num_free(&self, py: Python<'_>, count: Int) -> PyResult<()> {
        let count = crate::convert::count(py, "num_free_blocks", count)?;
        self.shared.with(|pool| pool.unrecorded(|pool| pool.set_num_free(count))).or_raise(py)
    }

    fn owns(&self, block: &Bound<'_, PyAny>) -> bool {
        own(block, &self.shared).is_some()
    }

    #[pyo3(signature = (n, observed=false, feed=None))]
    fn allocate<'py>(
        &self,
        py: Python<'py>,
        n: Int,
        observed: bool,
        feed: Option<&Bound<'_, PyVllmFeed>>,
    ) -> PyResult<(Bound<'py, PyList>, Option<Bound<'py, PyList>>)> {
        let blocks = count(py, "n", n)?;
        let (mut ids, mut removed) = (Vec::new(), Vec::new());
        let changes = (observed || feed.is_some()).then_some(&mut removed);
        self.shared.with(|pool| pool.allocate(blocks, &mut ids, changes)).or_raise(py)?;
        if let Some(feed) = feed {
            feed.get().removed(&removed);
        }
        let removed = if observed { Some(removed_keys(py, &removed)?) } else { None };
        Ok((self.handles(py, &ids)?, removed))
    }

    fn claim<'py>(&self, py: Python<'py>, blocks: &Bound<'_, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let (ids, mut removed) = (own_ids(blocks, &self.shared)?, Vec::new());
        self.shared.with(|pool| pool.claim(&ids, Some(&mut removed))).or_raise(py)?;
        removed_keys(py, &removed)
    }

    fn touch(&self, py: Python<'_>, blocks: &Bound<'_, PyAny>) -> PyResult<()> {
        let ids = own_ids(blocks, &self.shared)?;
        self.shared.with(|pool| pool.touch(&ids)).or_raise(py)
    }

    fn free<'py>(&self, py: Python<'py>, blocks: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyList>>> {
        let mut others = Vec::new();
        let ids = drain("blocks", blocks.try_iter()?, |_, block| {
            let id = own(&block, &self.shared).map(|own| own.id);
            if id.is_none() {
                push(py, "blocks", &mut others, block)?;
            }
            Ok(id)
        })?;
        let blocks = ids.into_iter().flatten();
        self.shared.with(|pool| pool.free(blocks)).or_raise(py)?;
        if others.is_empty() { Ok(None) } else { PyList::new(py, others).map(Some) }
    }

    fn unpin(&self, py: Python<'_>, blocks: &Bound<'_, PyAny>) -> PyResult<()> {
        let ids = own_ids(blocks, &self.shared)?;
        self.shared.with(|pool| pool.unpin(&ids)).or_raise(py)
    }

    fn find<'py>(
        &self,
        py: Python<'py>,
        digest: &[u8],
        groups: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let keys = keys(py, digest, &self::groups(groups)?)?;
        let found = self.shared.lock().find_all(&keys);
        found.map(|ids| self.handles(py, &ids)).transpose()
    }

    #[pyo3(signature = (hashes, max_blocks, groups, scale=1))]
    fn find_run<'py>(
        &self,
        py: Python<'py>,
        hashes: &Bound<'py, PyAny>,
        max_blocks: usize,
        groups: &Bound<'py, PyAny>,
        scale: usize,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let groups = self::groups(groups)?;
        let max_blocks = max_blocks.min(hashes.len()? / scale.max(1));
        let mut found = vec![Vec::new(); groups.len()];
        for at in 0..max_blocks {
            let keys = keys(py, digest(hashes, at, scale)?.as_bytes(), &groups)?;
            let ids = self.shared.lock().find_all(&keys);
            let Some(ids) = ids else { break };
            found.iter_mut().zip(ids).for_each(|(found, id)| found.push(id));
        }
        self.tables(py, &found)
    }

    #[pyo3(signature = (hashes, max_blocks, groups, need, block_size, alignment, shift, scale=1))]
    fn find_window<'py>(
        &self,
        py: Python<'py>,
        hashes: &Bound<'py, PyAny>,
        max_blocks: usize,
        groups: &Bound<'py, PyAny>,
        need: usize,
        block_size: usize,
        alignment: usize,
        shift: usize,
        scale: usize,
    ) -> PyResult<(Bound<'py, PyTuple>, bool)> {
        let groups = self::groups(groups)?;
        let mut all = Vec::new();
        for at in 0..max_blocks {
            for key in keys(py, digest(hashes, at, scale)?.as_bytes(), &groups)? {
                push(py, "hashes", &mut all, key)?;
            }
        }
        let search = WindowSearch { need, block_size, alignment, shift };
        let (found, is_whole) = self.shared.lock().find_window(&all, groups.len(), search);
        Ok((self.tables(py, &found)?, is_whole))
    }

    #[pyo3(signature = (blocks, hashes, first, end, block_size, group, mask=None, scale=1, observed=false,
        feed=None, request=None))]
    fn cache_full<'py>(
        &self,
        py: Python<'py>,
        blocks: &Bound<'py, PyAny>,
        hashes: &Bound<'py, PyAny>,
        first: usize,
        end: usize,
        block_size: usize,
        group: u32,
        mask: Option<&Bound<'py, PyAny>>,
        scale: usize,
        observed: bool,
        feed: Option<&Bound<'py, PyVllmFeed>>,
        request: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<(Bound<'py, PyList>, Bound<'py, PyList>)>> {
        let run = TableRun { blocks, hashes, first, block_size, group, scale };
        let mask: Option<Vec<bool>> = mask.map(|mask| gather_as("mask", mask, "a bool")).transpose()?;
        let mut ids = Vec::new();
        for at in first..end {
            let block = match blocks.cast::<PyList>() {
                Ok(list) => list.get_item(at)?,
                Err(_) => blocks.get_item(at)?,
            };
            match own(&block, &self.shared) {
                Some(own) => push(py, "blocks", &mut ids, own.id)?,
                None => return Ok(None),
            }
        }
        let kept = |i: usize| mask.as_ref().is_none_or(|mask| mask.get(i) == Some(&true));
        if let (Some(feed), Some(request)) = (feed, request) {
            self.cache_run(py, Some((feed.get(), request)), &run, &ids, kept, false)?;
            return Ok(Some((PyList::empty(py), PyList::empty(py))));
        }
        let Cached { removed, stored } = self.cache_run(py, None, &run, &ids, kept, observed)?;
        Ok(Some((removed_keys(py, &removed)?, PyList::new(py, stored)?)))
    }

    #[pyo3(signature = (key, block, num_tokens=None, depth=0, parent=None))]
    fn insert_hash(
        &self,
        py: Python<'_>,
        key: &[u8],
        block: u32,
        num_tokens: Option<u32>,
        depth: u32,
        parent: Option<&[u8]>,
    ) -> PyResult<bool> {
        let key = Key::from_bytes(key).or_raise(py)?;
        let parent = parent.map(Key::from_bytes).transpose().or_raise(py)?;
        let parent = parent.as_ref();
        Ok(self.shared.with(|pool| pool.insert_hash(key, block, num_tokens, depth, parent)))
    }

    fn chain_group(&self, group: u32) {
        self.shared.with(|pool| pool.chain_group(group));
    }

    fn remove_hashes<'py>(&self, py: Python<'py>, block: u32) -> PyResult<Bound<'py, PyList>> {
        let removed = self.shared.with(|pool| pool.remove_hashes(block));
        removed_keys(py, &removed)
    }

    fn move_hashes(&self, py: Python<'_>, from_block: u32, to_block: u32) -> PyResult<()> {
        let (from, to) = (from_block, to_block);
        self.shared.with(|pool| pool.move_hashes(from, to)).or_raise(py)
    }

    fn evict<'py>(&self, py: Python<'py>, block: u32, reuse_first: bool) -> PyResult<Bound<'py, PyList>> {
        let removed = self.shared.with(|pool| pool.evict(block, reuse_first)).or_raise(py)?;
        removed_keys(py, &removed)
    }

    fn reset(&self) -> bool {
        self.shared.with(VllmCalls::reset)
    }

    fn peek<'py>(&self, py: Python<'py>, n: Int) -> PyResult<Bound<'py, PyList>> {
        let n = count(py, "n", n)?;
        let ids = self.shared.lock().peek(n);
        self.handles(py, &ids)
    }

    fn queue_pop<'py>(&self, py: Python<'py>, n: Int) -> PyResult<Bound<'py, PyList>> {
        let blocks = count(py, "n", n)?;
        let ids = self.shared.with(|pool| pool.pop_from_queue(blocks)).0;
        self.handles(py, &ids)
    }

    fn queue_remove(&self, block: u32) -> bool {
        self.shared.with(|pool| pool.remove_from_queue(block))
    }

    fn queue_push(&self, blocks: &Bound<'_, PyAny>, front: bool) -> PyResult<()> {
        let ids = own_ids(blocks, &self.shared)?;
        self.shared.with(|pool| pool.push_to_queue(&ids, front));
        Ok(())
    }

    fn order(&self) -> Vec<u32> {
        self.shared.lock().order().collect()
    }

    fn copies(&self, key: &[u8]) -> Vec<u32> {
        // If the key is too long, no block can have it.
        Key::from_bytes(key).map_or_else(|_| Vec::new(), |key| self.shared.lock().keys().copies(&key))
    }

    fn was_shared(&self, key: &[u8]) -> bool {
        Key::from_bytes(key).is_ok_and(|key| self.shared.lock().keys().was_shared(&key))
    }

    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let keys: Vec<Key> = self.shared.lock().keys().iter().collect();
        PyList::new(py, keys.iter().map(|key| PyBytes::new(py, key.as_bytes())))
    }

    fn num_keys(&self) -> usize {
        self.shared.lock().keys().len()
    }

    fn index_insert(&self, py: Python<'_>, key: &[u8], block: u32) -> PyResult<()> {
        let key = Key::from_bytes(key).or_raise(py)?;
        self.shared.with(|pool| pool.insert_in_index(key, block)).or_raise(py)
    }

    fn index_remove(&self, key: &[u8], block: u32) -> bool {
        Key::from_bytes(key).is_ok_and(|key| self.shared.with(|pool| pool.remove_from_index(key, block)))
    }

    fn index_clear(&self) {
        self.shared.with(VllmCalls::clear_index);
    }

    fn further_keys<'py>(&self, py: Python<'py>, block: u32) -> PyResult<Bound<'py, PyList>> {
        let keys = self.shared.lock().keys().further_keys(block).to_vec();
        PyList::new(py, keys.iter().map(|key| PyBytes::new(py, key.as_bytes())))
    }

    fn blocks_with_further_keys(&self) -> Vec<u32> {
        let mut blocks: Vec<u32> = self.shared.lock().keys().blocks_with_further_keys().collect();
        blocks.sort_unstable();
        blocks
    }

    fn num_evictable(&self, blocks: &Bound<'_, PyAny>) -> PyResult<usize> {
        let ids = own_ids(blocks, &self.shared)?;
        Ok(self.shared.lock().num_evictable(&ids))
    }

    fn check_invariants(&self, py: Python<'_>) -> PyResult<()> {
        let checked = self.shared.lock().check_invariants();
        checked.or_raise(py)
    }
}

impl PyVllmPool {
    fn tables<'py>(&self, py: Python<'py>, ids: &[Vec<u32>]) -> PyResult<Bound<'py, PyTuple>> {
        let tables = ids.iter().map(|ids| self.handles(py, ids)).collect::<PyResult<Vec<_>>>()?;
        PyTuple::new(py, tables)
    }
}
