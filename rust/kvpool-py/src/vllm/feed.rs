//! `VllmFeed`: what a publisher of KV events is told of one of vLLM's pools, without an object of Python's per block.
//!
//! vLLM's pool names its contents by itself, so it is no observer that knows of them but the calls that cache and evict: they put what
//! came and went into this log, tokens read from the request's own list. A publisher takes it away in its own thread.
//!
//! Owns: the log. Bounded: one that nobody takes for too long is dropped, and what is there by then is not told before it is cached
//! anew. Whatever may run Python's code or fail is read before the pool caches anything ([`PyVllmFeed::read`]); what it then says of
//! that goes into the log without any of it ([`PyVllmFeed::stored`]): an error leaves nothing cached that is not told. The log's lock
//! is taken behind the pool's or alone.
//!
//! Costs: 100 bytes and the tokens per stored block until it is taken; some 30 ns per block of 16 tokens, most of them the look at a list of ints.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvpool::BlockHash;
use kvpool_observe::FeedBatch;
use kvpool_observe::publish::{Digest, Extra, Group, GroupName, Keys, Label};
use kvpool_vllm::{Key, Removed};
use pyo3::PyVisit;
use pyo3::gc::PyTraverseError;
use pyo3::intern;
use pyo3::types::{PyBytes, PyList, PyString};

use super::keys::{digest, removed_keys};
use crate::convert::{Int, count, exact_ints, tokens};
use crate::errors::{OrRaise, raise};
use crate::gather::{gather, gather_as};
use crate::python::prelude::*;

/// What is said of blocks beside their tokens: their digests, their groups.
pub(crate) type Said = Vec<(Digest, u16, Keys)>;

#[derive(Default)]
struct Log {
    batch: FeedBatch,
    keys: Said,
    groups: Option<Vec<Group>>,
}

#[doc = doc!("VllmFeed")]
#[pyclass(frozen, module = "kvpool._core.vllm", name = "VllmFeed")]
pub(crate) struct PyVllmFeed {
    log: Mutex<Log>,
    capacity: usize,
    /// Says what some blocks of a request were hashed with beside tokens.
    describe: Py<PyAny>,
}

/// A run of blocks that a call caches.
pub(super) struct Run<'a, 'py> {
    pub(super) request: &'a Bound<'py, PyAny>,
    /// The request's hashes, and how many of them a block has.
    pub(super) hashes: &'a Bound<'py, PyAny>,
    pub(super) scale: usize,
    /// The position of the first block, and the digests of those that are to be cached.
    pub(super) first: usize,
    pub(super) digests: &'a [Option<Bound<'py, PyBytes>>],
    pub(super) block_size: usize,
    pub(super) group: u32,
}

/// What can be told of a run, once it is known which of its keys are new.
pub(super) struct Told {
    first: usize,
    group: u16,
    block_size: usize,
    /// Bytes of a digest.
    len: usize,
    /// By block: its place in the run, its hash, that of the block before it.
    links: Vec<(usize, BlockHash, Option<BlockHash>)>,
    /// Tokens of the whole run.
    tokens: Vec<u32>,
    /// Of each of the links; none at all if they are hashed with tokens alone.
    keys: Vec<Keys>,
}

/// A digest as the core has it; `None` for one that is longer.
fn padded(digest: &[u8]) -> Option<BlockHash> {
    let mut bytes = [0; 32];
    bytes.get_mut(..digest.len())?.copy_from_slice(digest);
    Some(BlockHash::from_bytes(bytes))
}

/// Whether a request's blocks are hashed with tokens alone, and it belongs to no session.
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

/// Extra keys of a block as an event has them.
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

    /// The log with room for so many changes more; what is there goes if there is none.
    fn with_room(&self, changes: usize) -> MutexGuard<'_, Log> {
        let mut log = self.lock();
        if log.batch.events.len() + changes > self.capacity {
            log.batch.cleared();
            log.keys.clear();
        }
        log
    }

    /// What the keys that were removed led to.
    pub(super) fn removed(&self, removed: &[Removed]) {
        if removed.is_empty() {
            return;
        }
        let mut log = self.with_room(removed.len());
        for Removed { key, .. } in removed.iter().filter(|removed| removed.last_copy) {
            Self::remove(&mut log, key);
        }
    }

    fn remove(log: &mut Log, key: &Key) {
        if let (Some(hash), Ok(group)) = (padded(key.digest()), u16::try_from(key.group())) {
            log.batch.removed(hash, group);
        }
    }

    /// All that may be told of a run; `None` of one of which nothing can. Runs Python's code.
    pub(super) fn read(&self, run: &Run<'_, '_>) -> PyResult<Option<Told>> {
        let &Run { request, hashes, scale, first, digests, block_size, group } = run;
        let Ok(group) = u16::try_from(group) else { return Ok(None) };
        let py = request.py();
        let mut links = Vec::with_capacity(digests.len());
        let mut len = 0;
        for (at, own) in digests.iter().enumerate() {
            let Some(own) = own else { continue };
            let before = match (at.checked_sub(1).and_then(|at| digests.get(at)), first + at) {
                (_, 0) => None,
                (Some(Some(before)), _) => Some(before.clone()),
                (_, position) => Some(digest(hashes, position - 1, scale)?),
            };
            let parent = before.as_ref().and_then(|before| padded(before.as_bytes()));
            if let Some(hash) = padded(own.as_bytes()) {
                len = own.as_bytes().len();
                links.push((at, hash, parent));
            }
        }
        if links.is_empty() {
            return Ok(None);
        }
        let (start, end) = (first * block_size, (first + digests.len()) * block_size);
        let ids = request.getattr(intern!(py, "_all_token_ids"))?;
        let read = ids.cast::<PyList>().ok().and_then(|list| exact_ints(list, start, end));
        let tokens = match read {
            Some(read) => read,
            None => tokens(&ids.get_item(pyo3::types::PySlice::new(py, start as isize, end as isize, 1))?)?,
        };
        let keys = if is_plain(request)? { Vec::new() } else { self.keys(run, &links)? };
        Ok(Some(Told { first, group, block_size, len, links, tokens, keys }))
    }

    /// The blocks of a run whose keys are new: for each whether it is, `None` if it was left out.
    pub(super) fn stored(&self, told: Option<Told>, new: &[Option<bool>]) {
        let Some(Told { first, group, block_size, len, links, tokens, keys }) = told else { return };
        let is_new = |at: usize| new.get(at) == Some(&Some(true));
        let count = links.iter().filter(|&&(at, ..)| is_new(at)).count();
        if count == 0 {
            return;
        }
        let mut log = self.with_room(count);
        log.batch.digest_len = len;
        for &(at, hash, parent) in links.iter().filter(|&&(at, ..)| is_new(at)) {
            let some = tokens.get(at * block_size..(at + 1) * block_size);
            log.batch.stored(hash, group, parent, (first + at) as u32, some);
        }
        let said = links.iter().zip(keys).filter(|((at, ..), _)| is_new(*at));
        log.keys.extend(said.map(|(&(_, hash, _), keys)| (Digest::new(hash, len), group, keys)));
    }

    /// What the blocks of a run were hashed with beside tokens.
    fn keys(
        &self,
        run: &Run<'_, '_>,
        links: &[(usize, BlockHash, Option<BlockHash>)],
    ) -> PyResult<Vec<Keys>> {
        let py = run.request.py();
        let range = |&(at, ..): &(usize, _, _)| {
            let position = run.first + at;
            (position * run.block_size, (position + 1) * run.block_size)
        };
        let ranges: Vec<_> = links.iter().map(range).collect();
        let said = self.describe.bind(py).call1((run.request, ranges))?;
        let (lora_id, lora_name, salt, session, extras) = said.extract::<(
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

    /// The groups that there are, once somebody has said so.
    pub(crate) fn groups(&self) -> Option<Vec<Group>> {
        self.lock().groups.clone()
    }

    /// Exchanges spent ones for what came and went since the last call, and what is said of it.
    pub(crate) fn take(&self, batch: &mut FeedBatch, keys: &mut Said) {
        batch.renew();
        keys.clear();
        let mut log = self.lock();
        std::mem::swap(&mut log.batch, batch);
        std::mem::swap(&mut log.keys, keys);
    }
}

#[pymethods]
impl PyVllmFeed {
    #[new]
    #[pyo3(signature = (describe, capacity))]
    fn new(py: Python<'_>, describe: Py<PyAny>, capacity: Int) -> PyResult<Self> {
        Ok(Self { log: Mutex::default(), capacity: count(py, "capacity", capacity)?.max(1), describe })
    }

    #[doc = doc!("VllmFeed.set_groups")]
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

    #[doc = doc!("VllmFeed.removed")]
    #[pyo3(name = "removed")]
    fn py_removed(&self, py: Python<'_>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        let keys: Vec<(Bound<'_, PyBytes>, bool)> = gather_as("keys", keys, "a tuple (key, last_copy)")?;
        for (key, last_copy) in keys {
            if last_copy {
                let key = Key::from_bytes(key.as_bytes()).or_raise(py)?;
                Self::remove(&mut self.with_room(1), &key);
            }
        }
        Ok(())
    }

    #[doc = doc!("VllmFeed.stored")]
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
        let told =
            self.read(&Run { request, hashes, scale: 1, first, digests: &digests, block_size, group })?;
        self.stored(told, &new);
        Ok(())
    }

    #[doc = doc!("VllmFeed.cleared")]
    fn cleared(&self) {
        let mut log = self.lock();
        log.batch.cleared();
        log.keys.clear();
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.describe)
    }
}

/// Who is told of what a call removes and caches.
pub(super) enum Listener {
    /// A method of the Python pool.
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

    /// Tells of keys that were removed.
    pub(super) fn removed(&self, py: Python<'_>, removed: &[Removed]) -> PyResult<()> {
        match self {
            _ if removed.is_empty() => {}
            Self::Feed(feed) => feed.get().removed(removed),
            Self::Python(tell) => {
                tell.bind(py).call1((removed_keys(py, removed)?,))?;
            }
        }
        Ok(())
    }

    /// The Python method, if that is who listens.
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
