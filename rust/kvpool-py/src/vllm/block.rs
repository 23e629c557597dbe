//! Bindings of `VllmBlock`, the Python object of one block of a `VllmPool`.
//!
//! A `VllmBlock` has the attributes of vLLM's `KVCacheBlock`. Each attribute is read from the pool when it is
//! accessed. A pool keeps one object per block as long as it exists, so that `is` and `==` agree. Like vLLM's
//! blocks, it can't be hashed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvpool_journal::{Journaled, VllmCalls};
use kvpool_vllm::{Key, Pool, Start};
use pyo3::exceptions::PyAssertionError;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyInt, PyList, PyTuple, PyWeakrefMethods, PyWeakrefReference};

use crate::errors::{OrRaise, raise};
use crate::gather::drain;
use crate::python::prelude::*;

/// The state that all blocks of a pool share.
pub(crate) struct Shared {
    pool: Mutex<Journaled<Pool>>,
    /// The Python object that vLLM uses as the pool. The reference is weak, so that a block does not
    /// keep it alive.
    pub(crate) owner: PyOnceLock<Py<PyWeakrefReference>>,
}

impl Shared {
    pub(crate) fn new(pool: Journaled<Pool>) -> Arc<Self> {
        Arc::new(Self { pool: Mutex::new(pool), owner: PyOnceLock::new() })
    }

    /// Locks the pool. While the lock is held, do not run Python code and do not make Python objects,
    /// because a garbage collection could call back into the pool.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Journaled<Pool>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the pool, calls a function on it, and releases the lock. The caller can then turn an error into
    /// a Python object.
    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut Journaled<Pool>) -> R) -> R {
        call(&mut self.lock())
    }
}

impl Shared {
    /// Returns the start of the blocks of a table from position `first` on. If the pool keeps a history, the
    /// start contains the block before them, too.
    pub(crate) fn start(self: &Arc<Self>, table: &Bound<'_, PyAny>, first: usize) -> PyResult<Start> {
        if first == 0 || !self.lock().keeps_history() {
            return Ok(Start::at(first));
        }
        let before = own(&table.get_item(first - 1)?, self).map(|block| block.id);
        Ok(Start { first, before })
    }
}

#[pyclass(frozen, module = "kvpool._core.vllm", name = "VllmBlock")]
pub(crate) struct PyVllmBlock {
    #[pyo3(get)]
    block_id: Py<PyInt>,
    pub(crate) id: u32,
    pub(crate) shared: Arc<Shared>,
}

impl PyVllmBlock {
    pub(crate) fn new(py: Python<'_>, id: u32, shared: Arc<Shared>) -> PyResult<Self> {
        Ok(Self { block_id: id.into_pyobject(py)?.unbind(), id, shared })
    }

    fn set_key(&self, py: Python<'_>, key: Option<&[u8]>, num_tokens: Option<u32>) -> PyResult<()> {
        let key = key.map(Key::from_bytes).transpose().or_raise(py)?;
        match key {
            Some(key) => self.shared.with(|pool| pool.set_hash(self.id, key, num_tokens)),
            None => self.shared.with(|pool| pool.reset_hash(self.id)),
        }
        Ok(())
    }

    /// Returns the block before (`step` is -1) or after (`step` is 1) this one in the queue of free blocks.
    /// At an end of the queue, returns the sentinel object of vLLM's queue. Returns `None` for a block in
    /// use. O(free blocks).
    fn neighbour<'py>(&self, py: Python<'py>, step: isize) -> PyResult<Option<Bound<'py, PyAny>>> {
        let order: Vec<u32> = self.shared.lock().order().collect();
        let Some(at) = order.iter().position(|&block| block == self.id) else { return Ok(None) };
        let Some(owner) = self.pool(py) else { return Ok(None) };
        let at = at.checked_add_signed(step).and_then(|at| order.get(at));
        match at {
            Some(&id) => owner.getattr("blocks")?.get_item(id).map(Some),
            None => {
                let end = if step < 0 { "fake_free_list_head" } else { "fake_free_list_tail" };
                owner.getattr("free_block_queue")?.getattr(end).map(Some)
            }
        }
    }
}

#[pymethods]
impl PyVllmBlock {
    getters! {
        ref_cnt: i32 = self.shared.lock().ref_count(self.id);
        is_null: bool = self.id == 0;
    }

    #[setter]
    fn set_ref_cnt(&self, count: i32) {
        self.shared.with(|pool| pool.set_ref_count(self.id, count));
    }

    #[getter]
    fn pool<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        self.shared.owner.get(py).and_then(|owner| owner.bind(py).upgrade())
    }

    #[getter]
    fn block_hash<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        let key = self.shared.lock().keys().hash_of(self.id).map(|(key, _)| key);
        key.map(|key| PyBytes::new(py, key.as_bytes()))
    }

    #[getter(_block_hash)]
    fn private_block_hash<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.block_hash(py)
    }

    #[setter(_block_hash)]
    fn set_private_block_hash(&self, py: Python<'_>, key: Option<&[u8]>) -> PyResult<()> {
        let num_tokens = self.block_hash_num_tokens();
        self.set_key(py, key, num_tokens)
    }

    #[getter]
    fn block_hash_num_tokens(&self) -> Option<u32> {
        self.shared.lock().keys().hash_of(self.id).and_then(|(_, num_tokens)| num_tokens)
    }

    #[getter(_block_hash_num_tokens)]
    fn private_block_hash_num_tokens(&self) -> Option<u32> {
        self.block_hash_num_tokens()
    }

    #[getter]
    fn prev_free_block<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.neighbour(py, -1)
    }

    #[getter]
    fn next_free_block<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.neighbour(py, 1)
    }

    #[pyo3(signature = (block_hash, num_tokens=None))]
    fn set_block_hash(&self, py: Python<'_>, block_hash: &[u8], num_tokens: Option<u32>) -> PyResult<()> {
        if self.shared.lock().keys().hash_of(self.id).is_some() {
            let message = "The block already has a hash. This should not happen.";
            return Err(PyAssertionError::new_err(message));
        }
        self.set_key(py, Some(block_hash), num_tokens)
    }

    fn reset_hash(&self) {
        self.shared.with(|pool| pool.reset_hash(self.id));
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        other.cast::<Self>().is_ok_and(|other| {
            let other = other.get();
            other.id == self.id && Arc::ptr_eq(&other.shared, &self.shared)
        })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let hash = self
            .block_hash(py)
            .map_or_else(|| Ok("None".into()), |hash| hash.repr().map(|text| text.to_string()));
        Ok(format!("VllmBlock(block_id={}, ref_cnt={}, block_hash={})", self.id, self.ref_cnt(), hash?))
    }
}

/// Returns `object` as a block, if it is a block of this pool.
#[inline]
pub(crate) fn own<'a>(object: &'a Bound<'_, PyAny>, shared: &Arc<Shared>) -> Option<&'a PyVllmBlock> {
    let block = object.cast::<PyVllmBlock>().ok()?.get();
    Arc::ptr_eq(&block.shared, shared).then_some(block)
}

/// Returns the ids of blocks. Raises if a block is not of this pool.
pub(crate) fn own_ids(blocks: &Bound<'_, PyAny>, shared: &Arc<Shared>) -> PyResult<Vec<u32>> {
    let id = |block: &Bound<'_, PyAny>| match own(block, shared) {
        Some(own) => Ok(own.id),
        None => {
            let message = format!("{} is not a block of this pool", block.repr()?);
            Err(raise(block.py(), "ArgumentTypeError", message))
        }
    };
    if let Ok(list) = blocks.cast::<PyList>() {
        return list.iter().map(|block| id(&block)).collect();
    }
    drain("blocks", blocks.try_iter()?, |_, block| id(&block))
}

#[pyfunction]
#[pyo3(name = "vllm_block_ids")]
pub(crate) fn block_ids<'py>(groups: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyTuple>> {
    let py = groups.py();
    let mut out = Vec::with_capacity(groups.len());
    for group in groups.iter() {
        let ids = PyList::empty(py);
        if let Ok(list) = group.cast::<PyList>() {
            for block in list.iter() {
                append_id(&ids, &block)?;
            }
        } else {
            for block in group.try_iter()? {
                append_id(&ids, &block?)?;
            }
        }
        out.push(ids);
    }
    PyTuple::new(py, out)
}

fn append_id(ids: &Bound<'_, PyList>, block: &Bound<'_, PyAny>) -> PyResult<()> {
    match block.cast::<PyVllmBlock>() {
        Ok(own) => ids.append(&own.get().block_id),
        Err(_) => ids.append(block.getattr("block_id")?),
    }
}
