//! Bindings of `VllmFeed`, which collects the changes of one of vLLM's pools for a publisher of KV events,
//! without a Python object per block.
//!
//! [`FeedLog`] is the log. This module reads the tokens and keys of a run from Python objects. Reading
//! can run Python code or fail, so [`PyVllmFeed::read`] runs before the pool caches anything.
//! [`PyVllmFeed::stored`] then adds the cached blocks to the log, and cannot fail. The lock of the log
//! is taken alone, or after the lock of the pool.
//!
//! Cost: each stored block takes 100 bytes and the space of its tokens until a publisher takes the batch.
//! Recording a block of 16 tokens takes about 30 ns, mostly for reading a list of ints.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvpool_observe::FeedBatch;
use kvpool_observe::publish::{Extra, Group, GroupName, Keys, Label};
use kvpool_vllm::{FeedKeys, FeedLog, FeedRun, Key, Link, Removed};
use pyo3::PyVisit;
use pyo3::gc::PyTraverseError;
use pyo3::intern;
use pyo3::types::{PyBytes, PyBytesMethods, PyList, PyString};

use super::keys::{digest, removed_keys};
use crate::convert::{Int, count, exact_ints, tokens};
use crate::errors::{OrRaise, raise};
use crate::gather::{gather, gather_as};
use crate::python::prelude::*;

struct Log {
    changes: FeedLog,
    groups: Option<Vec<Group>>,
}

#[pyclass(frozen, module = "kvpool._core.vllm", name = "VllmFeed")]
pub(crate) struct PyVllmFeed {
    log: Mutex<Log>,
    /// The argument `describe`: a function that returns the extra keys with which blocks of a request were
    /// hashed.
    describe: Py<PyAny>,
}

/// Consecutive blocks of a request, some of which a call caches.
pub(super) struct Run<'a, 'py> {
    pub(super) request: &'a Bound<'py, PyAny>,
    /// The hashes of the request. Each block has `scale` of them, and the last of these is its digest.
    pub(super) hashes: &'a Bound<'py, PyAny>,
    pub(super) scale: usize,
    /// The position of the first block in the table. `digests` has an entry per block: its digest, or `None`
    /// for a block that is not cached.
    pub(super) first: usize,
    pub(super) digests: &'a [Option<Bound<'py, PyBytes>>],
    pub(super) block_size: usize,
    pub(super) group: u32,
}

/// Whether the blocks of a request were hashed without extra keys, and the request has no session.
fn is_plain(request: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = request.py();
    let names = [
        intern!(py, "lora_request"),
        intern!(py, "cache_salt"),
        intern!(py, "mm_features"),
        intern!(py, "session_id"),
    ];
    for name in names {
        let value = request.getattr(name)?;
        if !value.is_none() && value.is_truthy()? {
            return Ok(false);
        }
    }
    Ok(request.getattr(intern!(py, "prompt_embeds"))?.is_none())
}

/// Converts the extra keys of a block, as vLLM has them, to those of events.
fn extra(keys: &Bound<'_, PyAny>) -> PyResult<Option<Arc<[Extra]>>> {
    if keys.is_none() {
        return Ok(None);
    }
    let mut found = Vec::new();
    for key in keys.try_iter()? {
        let key = key?;
        found.push(if let Ok(text) = key.cast::<PyString>() {
            Extra::Text(text.to_cow()?.into_owned())
        } else if let Ok(bytes) = key.cast::<PyBytes>() {
            Extra::Bytes(bytes.as_bytes().to_vec())
        } else if let Ok((name, offset)) = key.extract::<(String, i64)>() {
            Extra::Item(name, offset)
        } else {
            Extra::Text(key.str()?.to_cow()?.into_owned())
        });
    }
    Ok(Some(found.into()))
}

impl PyVllmFeed {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records in the log which of the removed keys no longer have a block.
    pub(super) fn removed(&self, removed: &[Removed]) {
        if !removed.is_empty() {
            self.lock().changes.removed(removed);
        }
    }

    /// Reads the tokens and keys of a run from Python objects. Returns `None` if the log cannot record any of
    /// its blocks. The call may run Python code.
    pub(super) fn read(&self, run: &Run<'_, '_>) -> PyResult<Option<FeedRun>> {
        let &Run { request, hashes, scale, first, digests, block_size, group } = run;
        let Ok(group) = u16::try_from(group) else { return Ok(None) };
        let py = request.py();
        let mut fed = FeedRun { first, group, block_size, ..FeedRun::default() };
        for (at, own) in digests.iter().enumerate() {
            let Some(own) = own else { continue };
            let before = match (at.checked_sub(1).and_then(|at| digests.get(at)), first + at) {
                (_, 0) => None,
                (Some(Some(before)), _) => Some(before.clone()),
                (_, position) => Some(digest(hashes, position - 1, scale)?),
            };
            fed.link(at, own.as_bytes(), before.as_ref().map(PyBytesMethods::as_bytes));
        }
        if fed.links.is_empty() {
            return Ok(None);
        }
        let (start, end) = (first * block_size, (first + digests.len()) * block_size);
        let ids = request.getattr(intern!(py, "_all_token_ids"))?;
        let read = ids.cast::<PyList>().ok().and_then(|list| exact_ints(list, start, end));
        let tokens = match read {
            Some(read) => read,
            None => tokens(&ids.get_item(pyo3::types::PySlice::new(py, start as isize, end as isize, 1))?)?,
        };
        let keys = if is_plain(request)? { Vec::new() } else { self.keys(run, &fed.links)? };
        Ok(Some(FeedRun { tokens, keys, ..fed }))
    }

    /// Records in the log the blocks of a run whose keys are new. `new` has an entry per block: whether its
    /// key is new, or `None` if the block was not cached.
    pub(super) fn stored(&self, run: Option<FeedRun>, new: &[Option<bool>]) {
        if let Some(run) = run {
            self.lock().changes.stored(run, new);
        }
    }

    /// Calls `describe` for the extra keys of the blocks of a run, and converts them.
    fn keys(&self, run: &Run<'_, '_>, links: &[Link]) -> PyResult<Vec<Keys>> {
        let py = run.request.py();
        let range = |&(at, ..): &Link| {
            let position = run.first + at;
            (position * run.block_size, (position + 1) * run.block_size)
        };
        let ranges: Vec<_> = links.iter().map(range).collect();
        let description = self.describe.bind(py).call1((run.request, ranges))?;
        let (lora_id, lora_name, salt, session, extras) = description.extract::<(
            Option<i64>,
            Option<String>,
            Option<String>,
            Option<String>,
            Option<Bound<'_, PyAny>>,
        )>()?;
        let label = Arc::new(Label { lora_id, lora_name, salt, session, ..Label::default() });
        let extras =
            extras.map_or(Ok(Vec::new()), |extras| gather("extra keys", &extras, |_, keys| Ok(keys)))?;
        let keys = (0..links.len()).map(|at| {
            let extra = extras.get(at).map_or(Ok(None), extra)?;
            Ok(Keys { label: Arc::clone(&label), extra })
        });
        keys.collect()
    }

    /// Returns the KV-cache groups, or `None` before `set_groups`.
    pub(crate) fn groups(&self) -> Option<Vec<Group>> {
        self.lock().groups.clone()
    }

    /// Takes the changes since the last call, and the extra keys of new contents. The log gets the caller's
    /// used buffers in exchange.
    pub(crate) fn take(&self, batch: &mut FeedBatch, keys: &mut FeedKeys) {
        self.lock().changes.take(batch, keys);
    }
}

#[pymethods]
impl PyVllmFeed {
    #[new]
    #[pyo3(signature = (describe, capacity))]
    fn new(py: Python<'_>, describe: Py<PyAny>, capacity: Int) -> PyResult<Self> {
        let changes = FeedLog::new(count(py, "capacity", capacity)?);
        Ok(Self { log: Mutex::new(Log { changes, groups: None }), describe })
    }

    fn set_groups(&self, py: Python<'_>, groups: &Bound<'_, PyAny>) -> PyResult<()> {
        let each = "a tuple (block_tokens, kind, window, chained)";
        let groups: Vec<(usize, Bound<'_, PyString>, Option<u32>, bool)> = gather_as("groups", groups, each)?;
        let groups: Vec<_> = (0..=u16::MAX)
            .zip(groups)
            .map(|(index, (block_tokens, kind, window, chained))| {
                let name = GroupName { index: Some(index), kind: Some(kind.to_string().into()), window };
                Group { name, block_tokens, chained }
            })
            .collect();
        if groups.is_empty() {
            return Err(raise(py, "InvalidArgumentError", "groups is empty: at least one KV-cache group"));
        }
        self.lock().groups = Some(groups);
        Ok(())
    }

    #[pyo3(name = "removed")]
    fn py_removed(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let keys: Vec<(Bound<'_, PyBytes>, bool)> = gather_as("keys", keys, "a tuple (key, last_copy)")?;
        for (key, last_copy) in keys {
            if last_copy {
                let key = Key::from_bytes(key.as_bytes()).or_raise(py)?;
                self.lock().changes.removed_key(&key);
            }
        }
        Ok(())
    }

    #[pyo3(name = "stored", signature = (request, hashes, first, block_size, group, new))]
    fn py_stored<'py>(
        &self,
        request: &Bound<'py, PyAny>,
        hashes: &Bound<'py, PyAny>,
        first: usize,
        block_size: usize,
        group: u32,
        new: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let new: Vec<Option<bool>> = gather_as("new", new, "a bool or None")?;
        let digests: Vec<_> = (first..first + new.len())
            .zip(&new)
            .map(|(at, new)| new.map(|_| digest(hashes, at, 1)).transpose())
            .collect::<PyResult<_>>()?;
        let run =
            self.read(&Run { request, hashes, scale: 1, first, digests: &digests, block_size, group })?;
        self.stored(run, &new);
        Ok(())
    }

    fn cleared(&self) {
        self.lock().changes.cleared();
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.describe)
    }
}

/// A receiver of the keys that a call removes, or of those that it caches.
pub(super) enum Listener {
    Python(Py<PyAny>),
    Feed(Py<PyVllmFeed>),
}

impl Listener {
    pub(super) fn of(py: Python<'_>, listener: Option<Py<PyAny>>) -> Option<Self> {
        listener.map(|listener| match listener.bind(py).cast::<PyVllmFeed>() {
            Ok(feed) => Self::Feed(feed.clone().unbind()),
            Err(_) => Self::Python(listener),
        })
    }

    pub(super) fn removed(&self, py: Python<'_>, removed: &[Removed]) -> PyResult<()> {
        match self {
            _ if removed.is_empty() => {}
            Self::Feed(feed) => feed.get().removed(removed),
            Self::Python(method) => {
                method.bind(py).call1((removed_keys(py, removed)?,))?;
            }
        }
        Ok(())
    }

    pub(super) const fn python(&self) -> Option<&Py<PyAny>> {
        match self {
            Self::Python(method) => Some(method),
            Self::Feed(_) => None,
        }
    }

    pub(super) const fn feed(&self) -> Option<&Py<PyVllmFeed>> {
        match self {
            Self::Python(_) => None,
            Self::Feed(feed) => Some(feed),
        }
    }

    pub(super) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        match self {
            Self::Python(method) => visit.call(method),
            Self::Feed(feed) => visit.call(feed),
        }
    }
}
