//! Lookups for [`super::groups`]: returns the hits of [`kvpool_vllm::Hits`] as lists of blocks. vLLM
//! looks up the request at the head of its queue at every step, so each group keeps the list of its
//! last hit.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvpool_vllm::{Digests, GroupFound, Hits, Key, LastHit, Pool};
use pyo3::types::{PyBytesMethods, PyList, PyTuple};

use super::block::Shared;
use super::keys::{digest, digests};
use super::pool::PyVllmPool;
use crate::errors::OrRaise;
use crate::gather::list_of;
use crate::python::prelude::*;

/// The last hit of each group. `lists` has the Python list of its blocks, with the number
/// [`LastHit::changes`] at which the list was made.
#[derive(Default)]
struct Last {
    hits: Vec<LastHit>,
    lists: Vec<Option<(u64, Py<PyList>)>>,
}

/// Looks up requests in several KV-cache groups. A lookup can reuse the last hit of each group.
pub(super) struct Lookups {
    pub(super) hits: Hits,
    last: Mutex<Last>,
}

/// The digests of a request, which are read from vLLM's list.
pub(super) struct Hashes<'a, 'py> {
    hashes: &'a Bound<'py, PyAny>,
    len: usize,
    shared: &'a Arc<Shared>,
}

impl Digests for Hashes<'_, '_> {
    type Error = PyErr;

    fn len(&self) -> usize {
        self.len
    }

    fn key(&self, unit: usize, group: u32) -> PyResult<Key> {
        Key::new(digest(self.hashes, unit, 1)?.as_bytes(), group).or_raise(self.hashes.py())
    }

    fn find_run(&self, blocks: Range<usize>, scale: usize, group: u32, out: &mut Vec<u32>) -> PyResult<()> {
        let digests = digests(self.hashes, blocks.start, scale, blocks.map(|_| true))?;
        let each = digests.iter().flatten().map(PyBytesMethods::as_bytes);
        self.shared.lock().find_run(each, group, out);
        Ok(())
    }

    fn look<R>(&self, look: impl FnOnce(&Pool) -> R) -> R {
        look(&self.shared.lock())
    }
}

impl Lookups {
    pub(super) fn new(hits: Hits) -> Self {
        Self { hits, last: Mutex::default() }
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `find`, which looks up a request and may reuse the last hits. Returns one list of blocks per
    /// group, and the second result of `find`.
    pub(super) fn ask<'py, R>(
        &self,
        core: &PyVllmPool,
        groups: usize,
        hashes: &Bound<'py, PyAny>,
        find: impl FnOnce(&Hashes<'_, 'py>, &mut [LastHit]) -> PyResult<(Vec<GroupFound>, R)>,
    ) -> PyResult<(Bound<'py, PyTuple>, R)> {
        let asked = Hashes { hashes, len: hashes.len()?, shared: &core.shared };
        // The last hits are moved out of the lock, so that no lock is held while Python objects are read or
        // made.
        let mut last = std::mem::take(&mut *self.last());
        last.hits.resize_with(groups, LastHit::default);
        last.lists.resize_with(groups, || None);
        let answer = find(&asked, &mut last.hits)
            .and_then(|(found, more)| Ok((last.tables(hashes.py(), core, &found)?, more)));
        // Another thread may have stored its last hits meanwhile. They are dropped after the lock is
        // released, because they may hold the last reference to a Python object.
        let others = std::mem::replace(&mut *self.last(), last);
        drop(others);
        answer
    }
}

impl Last {
    fn tables<'py>(
        &mut self,
        py: Python<'py>,
        core: &PyVllmPool,
        found: &[GroupFound],
    ) -> PyResult<Bound<'py, PyTuple>> {
        let mut tables = Vec::with_capacity(found.len());
        for (at, found) in found.iter().enumerate() {
            let mut ids = list_of(py, "block_hashes", (0..found.nulls).map(|_| 0))?;
            ids.extend(&found.blocks);
            let mut table = core.handles(py, &ids)?;
            if found.known > 0 {
                let (hit, list) = (&self.hits[at], &mut self.lists[at]);
                let list = match list {
                    Some((changes, list)) if *changes == hit.changes() => list,
                    list => &mut list.insert((hit.changes(), core.handles(py, hit.blocks())?.unbind())).1,
                };
                // The list is copied, because the caller may change the list that it gets.
                let whole = list.bind(py).get_slice(0, found.known);
                whole.set_slice(found.known, found.known, &table)?;
                table = whole;
            }
            tables.push(table);
        }
        PyTuple::new(py, tables)
    }
}
