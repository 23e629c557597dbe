//! Bindings of `Store`, which the stub of `kvpool.store` describes.

mod arena;
mod backends;
mod custom;
mod folder;
mod namespace;
mod numbers;
mod offers;
mod server;
mod stats;
mod warm;

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use kvpool::BlockHash;
use kvpool_store::{
    Admit, BreakerConfig, Completion, Get, ObjectKey, Put, Store, StoreConfig, StoreError, TokenRange,
    Waiter, Why,
};
use pyo3::PyVisit;
use pyo3::exceptions::PyRuntimeWarning;
use pyo3::gc::PyTraverseError;
use pyo3::types::{PyBytes, PyInt};

pub(crate) use self::arena::PyArena;
use self::backends::{AnyBackend, How};
pub(crate) use self::backends::{PyDisk, PyRedis, PySharedFolder};
pub(crate) use self::custom::PyCustom;
pub(crate) use self::folder::PyStoreFolder;
pub(crate) use self::namespace::PyNamespace;
use self::numbers::{duration, u32_of};
pub(crate) use self::offers::{block_names, busy_slots, offer_blocks};
pub(crate) use self::server::{PyStoreServer, check_object};
pub(crate) use self::stats::PyStoreStats;
pub(crate) use self::warm::{PySlotHeaders, PyWarmStart, load_index, save_index};
use crate::convert::{Int, count};
use crate::enter::{Locked, enter};
use crate::errors::{OrRaise, raise};
use crate::gather::{extract, gather, or_wrong_item};
use crate::process::OfProcess;
use crate::python::prelude::*;
use crate::retention::eviction_named;

/// The time between two checks for signals while a call waits.
const LOOK: Duration = Duration::from_millis(50);

/// An ended job in Python's form: its number, and the outcome of each of its objects.
type Ended = (u64, Vec<&'static str>);

fn admit(py: Python<'_>, name: &str) -> PyResult<Admit> {
    match name {
        "second_touch" => Ok(Admit::SecondTouch),
        "always" => Ok(Admit::Always),
        "never" => Ok(Admit::Never),
        _ => {
            let name = kvpool::shorten(name);
            let message = format!("admission {name:?} is unknown: second_touch, always, never");
            Err(raise(py, "InvalidArgumentError", message))
        }
    }
}

/// Converts an argument that is one number for all objects, or a sequence with one number per object.
fn each(
    py: Python<'_>,
    name: &str,
    given: Option<&Bound<'_, PyAny>>,
    default: u32,
    len: usize,
) -> PyResult<Vec<u32>> {
    let Some(given) = given else { return Ok(vec![default; len]) };
    if given.is_instance_of::<PyInt>() {
        return Ok(vec![u32_of(py, name, given.extract()?)?; len]);
    }
    let numbers =
        gather(name, given, |position, item| u32_of(py, name, extract(name, position, &item, "an int")?))?;
    same_length(py, name, numbers.len(), len)?;
    Ok(numbers)
}

fn same_length(py: Python<'_>, name: &str, found: usize, keys: usize) -> PyResult<()> {
    if found == keys {
        return Ok(());
    }
    Err(raise(py, "InvalidArgumentError", format!("{name} has {found} items for {keys} keys")))
}

fn keys(keys: &Bound<'_, PyAny>, groups: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<ObjectKey>> {
    let py = keys.py();
    let hashes = gather("keys", keys, |position, item| {
        let digest: Bound<'_, PyBytes> = extract("keys", position, &item, "bytes")?;
        let digest = digest.as_bytes();
        let mut hash = [0; 32];
        match hash.get_mut(..digest.len()) {
            Some(front) if !digest.is_empty() => front.copy_from_slice(digest),
            _ => {
                let message = format!("key {position} has {} bytes: a digest has 1 to 32", digest.len());
                return Err(raise(py, "InvalidArgumentError", message));
            }
        }
        Ok(BlockHash::from_bytes(hash))
    })?;
    let groups = each(py, "groups", groups, 0, hashes.len())?;
    Ok(hashes.into_iter().zip(groups).map(|(hash, group)| ObjectKey { hash, group }).collect())
}

#[pyclass(frozen, module = "kvpool._core.store", name = "Store")]
pub(crate) struct PyStore {
    open: OfProcess<Open>,
    opened: Instant,
    slot_bytes: u32,
    how: How,
}

struct Open {
    /// The store. It is `None` after `close`.
    store: Locked<Option<Store>>,
    waiter: Waiter,
}

impl PyStore {
    fn open(&self, py: Python<'_>) -> PyResult<&Open> {
        self.open.get(py, "the store")
    }

    /// Locks the store and runs a call on it. The call gets the time since the store was opened.
    fn call<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut Store, Duration) -> R + Send,
    ) -> PyResult<R> {
        let opened = self.opened;
        let done = enter(py, &self.open(py)?.store, |store| {
            store.as_mut().map(|store| call(store, opened.elapsed()))
        });
        done.ok_or_else(|| raise(py, "ClosedError", "the store is closed"))
    }

    fn poll_once(&self, py: Python<'_>) -> PyResult<(Vec<Ended>, bool)> {
        let (out, idle) = self.call(py, |store, now| {
            let mut out = Vec::new();
            store.poll(now, &mut out);
            (out, store.is_idle())
        })?;
        Ok((out.into_iter().map(ended).collect(), idle))
    }
}

fn ended(completion: Completion) -> Ended {
    let word = |object: Result<(), Why>| object.map_or_else(Why::name, |()| "ok");
    (completion.job.get(), completion.objects.into_iter().map(word).collect())
}

#[pymethods]
impl PyStore {
    #[new]
    #[pyo3(signature = (
        backend, arena, namespace, *, eviction="lru", admission="second_touch", remembered_offers=65536,
        workers=4, queue=1024,
        deadline=2.0, breaker_failures=8, breaker_pause=5.0, believed_for=10.0, staged=false, tell_gone=false
    ))]
    fn new(
        py: Python<'_>,
        backend: AnyBackend<'_>,
        arena: &PyArena,
        namespace: &PyNamespace,
        eviction: &str,
        admission: &str,
        remembered_offers: i128,
        workers: i128,
        queue: i128,
        deadline: f64,
        breaker_failures: i128,
        breaker_pause: f64,
        believed_for: f64,
        staged: bool,
        tell_gone: bool,
    ) -> PyResult<Self> {
        let failures = count(py, "breaker_failures", breaker_failures)?;
        let config = StoreConfig {
            eviction: eviction_named(py, eviction)?,
            admission: admit(py, admission)?,
            remembered_offers: count(py, "remembered_offers", remembered_offers)?,
            workers: count(py, "workers", workers)?,
            queue: count(py, "queue", queue)?,
            deadline: duration(py, "deadline", deadline)?,
            breaker: BreakerConfig {
                failures: u32::try_from(failures).unwrap_or(u32::MAX),
                pause: duration(py, "breaker_pause", breaker_pause)?,
            },
            believed_for: duration(py, "believed_for", believed_for)?,
            staged,
            tell_gone,
        };
        let slot_bytes = arena.0.slot_bytes();
        let opener = backend.opener(py, slot_bytes);
        let open = || {
            let (backend, how) = opener.open()?;
            Ok::<_, StoreError>((Store::open(backend, arena.0.clone(), &namespace.0, config)?, how))
        };
        let (store, how) = py.detach(open).or_raise(py)?;
        if let Some(shortage) = how.shortage.as_ref().and_then(|text| CString::new(text.as_str()).ok()) {
            PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &shortage, 1)?;
        }
        let waiter = store.waiter();
        let open = OfProcess::new(Open { store: Locked::new(Some(store)), waiter });
        Ok(Self { open, opened: Instant::now(), slot_bytes, how })
    }

    #[pyo3(signature = (keys, slots, *, groups=None, lengths=None, tokens=None, admit=None))]
    fn put(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        slots: &Bound<'_, PyAny>,
        groups: Option<&Bound<'_, PyAny>>,
        lengths: Option<&Bound<'_, PyAny>>,
        tokens: Option<&Bound<'_, PyAny>>,
        admit: Option<&str>,
    ) -> PyResult<u64> {
        let keys = self::keys(keys, groups)?;
        let slots = each(py, "slots", Some(slots), 0, keys.len())?;
        let lengths = each(py, "lengths", lengths, self.slot_bytes, keys.len())?;
        let admit = admit.map(|name| self::admit(py, name)).transpose()?;
        let range = |(first, tokens): (Int, Int)| {
            Ok(TokenRange { first: count(py, "tokens", first)? as u64, count: u32_of(py, "tokens", tokens)? })
        };
        let tokens = match tokens {
            None => vec![TokenRange::default(); keys.len()],
            Some(tokens) => gather("tokens", tokens, |position, item| {
                let each = "a tuple (first, count)";
                or_wrong_item("tokens", position, &item, each, item.extract().and_then(range))
            })?,
        };
        same_length(py, "tokens", tokens.len(), keys.len())?;
        let objects: Vec<_> = keys
            .into_iter()
            .zip(tokens)
            .zip(lengths)
            .zip(slots)
            .map(|(((key, tokens), len), slot)| Put { key, tokens, len, slot, admit })
            .collect();
        Ok(self.call(py, |store, now| store.put(&objects, now))?.or_raise(py)?.get())
    }

    #[pyo3(signature = (keys, slots, *, groups=None, lengths=None))]
    fn get(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        slots: &Bound<'_, PyAny>,
        groups: Option<&Bound<'_, PyAny>>,
        lengths: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let keys = self::keys(keys, groups)?;
        let slots = each(py, "slots", Some(slots), 0, keys.len())?;
        let lengths = each(py, "lengths", lengths, self.slot_bytes, keys.len())?;
        let objects: Vec<_> = keys
            .into_iter()
            .zip(lengths)
            .zip(slots)
            .map(|((key, len), slot)| Get { key, len, slot })
            .collect();
        Ok(self.call(py, |store, now| store.get(&objects, now))?.or_raise(py)?.get())
    }

    #[pyo3(signature = (keys, *, groups=None))]
    fn contains(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        groups: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<&'static str>> {
        let keys = self::keys(keys, groups)?;
        self.call(py, |store, now| keys.iter().map(|key| store.contains(key, now).name()).collect())
    }

    #[pyo3(signature = (keys, *, groups=None))]
    fn probe(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        groups: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let keys = self::keys(keys, groups)?;
        Ok(self.call(py, |store, now| store.probe(&keys, now))?.get())
    }

    #[pyo3(signature = (keys, *, groups=None))]
    fn remove(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        groups: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<usize> {
        let keys = self::keys(keys, groups)?;
        self.call(py, |store, now| store.remove(&keys, now))
    }

    #[pyo3(signature = (keys, *, groups=None))]
    fn touch(
        &self,
        py: Python<'_>,
        keys: &Bound<'_, PyAny>,
        groups: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let keys = self::keys(keys, groups)?;
        self.call(py, |store, _| store.touch(&keys))
    }

    fn renew(&self, py: Python<'_>, namespace: &PyNamespace) -> PyResult<()> {
        self.call(py, |store, now| store.renew(&namespace.0, now))?.or_raise(py)
    }

    #[getter]
    fn namespace(&self, py: Python<'_>) -> PyResult<PyNamespace> {
        Ok(PyNamespace(self.call(py, |store, _| store.namespace().clone())?))
    }

    fn take_gone<'py>(&self, py: Python<'py>) -> PyResult<Vec<(Bound<'py, PyBytes>, u32)>> {
        let gone = self.call(py, |store, _| store.take_gone())?;
        Ok(gone.iter().map(|key| (PyBytes::new(py, key.hash.as_bytes()), key.group)).collect())
    }

    fn poll(&self, py: Python<'_>) -> PyResult<Vec<Ended>> {
        Ok(self.poll_once(py)?.0)
    }

    #[pyo3(signature = (timeout=1.0))]
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<Ended>> {
        let end = Instant::now().checked_add(duration(py, "timeout", timeout)?);
        loop {
            let (out, idle) = self.poll_once(py)?;
            let left = end.map_or(LOOK, |end| end.saturating_duration_since(Instant::now()));
            if !out.is_empty() || idle || left.is_zero() {
                return Ok(out);
            }
            let waiter = &self.open(py)?.waiter;
            py.detach(|| waiter.wait(left.min(LOOK)));
            crate::python::check_signals(py)?;
        }
    }

    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.open(py)?.waiter.as_fd().as_raw_fd())
    }

    getters! {
        is_direct: bool = self.how.is_direct;
        io: &str = &self.how.io;
    }

    fn stats(&self, py: Python<'_>) -> PyResult<PyStoreStats> {
        self.call(py, |store, _| store.stats().into())
    }

    #[pyo3(signature = (timeout=10.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let end = Instant::now().checked_add(duration(py, "timeout", timeout)?);
        let open = self.open(py)?;
        let taken = loop {
            let opened = self.opened;
            let ended = enter(py, &open.store, |store| {
                let idle = match store {
                    None => return Some((None, true)),
                    Some(store) => {
                        store.poll(opened.elapsed(), &mut Vec::new());
                        store.is_idle()
                    }
                };
                let late = end.is_some_and(|end| end <= Instant::now());
                (idle || late).then(|| (store.take(), idle))
            });
            if let Some(ended) = ended {
                break ended;
            }
            py.detach(|| open.waiter.wait(LOOK));
            crate::python::check_signals(py)?;
        };
        if let (Some(store), idle) = taken {
            // If all workers are idle, `close` ends them at once. Otherwise the store is dropped, which does
            // not wait for a worker whose back end does not return.
            py.detach(|| if idle { store.close() } else { drop(store) });
        }
        Ok(())
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py, 10.0)
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.how.object.as_ref().map_or(Ok(()), |backend| visit.call(backend.as_ref()))
    }

    /// Called by the garbage collector. Closes the store without waiting. Its workers end after their current
    /// transfers, and then release the back end.
    fn __clear__(&self, py: Python<'_>) {
        if let Ok(open) = self.open(py) {
            drop(enter(py, &open.store, Option::take));
        }
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let Ok(open) = self.open(py) else { return "Store(of another process)".into() };
        match enter(py, &open.store, |store| store.as_ref().map(Store::stats)) {
            Some(stats) => format!(
                "Store(objects={}, bytes={}, capacity_bytes={})",
                stats.objects, stats.bytes, stats.capacity_bytes
            ),
            None => "Store(closed)".into(),
        }
    }
}
