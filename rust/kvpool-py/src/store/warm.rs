//! Warm restarts, which the stub of `kvpool.store` and `kvpool_store::warm` describe.
//!
//! The image (a copy of the cached content's records) is made while the manager or pool is locked. It is
//! written to the file without the lock, detached from the interpreter. Slots are also checked detached.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use kvpool::{HashAlgorithm, PoolImage, Restored, SavedBlock};
use kvpool_store::warm::{self, Headers, SlotHeaders};
use kvpool_store::{Arena, ObjectKey};

use super::{PyArena, PyNamespace, keys};
use crate::convert::float;
use crate::errors::raise;
use crate::gather::{extract, gather};
use crate::manager::PyCacheManager;
use crate::pool::PyBlockPool;
use crate::python::prelude::*;

/// The manager or pool whose prefix index is saved or restored.
#[derive(FromPyObject)]
pub(crate) enum Subject<'py> {
    /// A manager. The index is that of its device.
    Manager(Bound<'py, PyCacheManager>),
    /// A pool.
    Pool(Bound<'py, PyBlockPool>),
}

impl crate::python::Single for Subject<'_> {}

crate::argument::convert_itself!(Subject<'py>: "a CacheManager or a BlockPool");

impl Subject<'_> {
    fn image(&self, py: Python<'_>) -> PyResult<PoolImage> {
        match self {
            Self::Manager(manager) => manager.get().saved_image(py),
            Self::Pool(pool) => pool.get().saved_image(py),
        }
    }

    fn restore(
        &self,
        py: Python<'_>,
        image: &PoolImage,
        elapsed: f64,
        agrees: impl FnMut(&SavedBlock) -> bool + Send,
    ) -> PyResult<Restored> {
        match self {
            Self::Manager(manager) => manager.get().restore_image(py, image, elapsed, agrees),
            Self::Pool(pool) => pool.get().restore_image(py, image, elapsed, agrees),
        }
    }
}

fn system(py: Python<'_>, error: &std::io::Error) -> PyErr {
    raise(py, "StoreError", error.to_string())
}

#[pyclass(frozen, module = "kvpool._core.store", name = "SlotHeaders")]
pub(crate) struct PySlotHeaders {
    headers: SlotHeaders,
    arena: Arc<Arena>,
}

#[pymethods]
impl PySlotHeaders {
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        arena: &Bound<'_, PyArena>,
        namespace: &Bound<'_, PyNamespace>,
    ) -> PyResult<Self> {
        let (arena, namespace) = (arena.get().0.clone(), namespace.get().0.digest());
        let headers = py.detach(|| SlotHeaders::open(&path, namespace, arena.slots()));
        Ok(Self { headers: headers.map_err(|error| system(py, &error))?, arena })
    }

    fn clear(&self, py: Python<'_>, slots: &Bound<'_, PyAny>) -> PyResult<()> {
        let slots = self.slots_of(py, slots)?;
        py.detach(|| self.headers.clear(&slots)).map_err(|error| system(py, &error))
    }

    #[pyo3(signature = (slots, keys, *, groups=None), text_signature = "($self, slots, keys, *, groups=0)")]
    fn seal(
        &self,
        py: Python<'_>,
        slots: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        groups: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (slots, keys) = (self.slots_of(py, slots)?, self::keys(keys, groups)?);
        super::same_length(py, "slots", slots.len(), keys.len())?;
        if let Some(position) = slots.iter().position(|&slot| slot == 0) {
            let message = format!(
                "slot {position} of the list is 0, the null block: its bytes are nobody's KV; leave null \
                    entries of a block table out"
            );
            return Err(raise(py, "InvalidArgumentError", message));
        }
        let sealed = py.detach(|| {
            slots.iter().zip(keys).try_for_each(|(&slot, key)| {
                let bytes = self.arena.read(slot).map_err(std::io::Error::other)?;
                self.headers.seal(slot, key, &bytes)
            })
        });
        sealed.map_err(|error| system(py, &error))
    }

    fn renew(&self, namespace: &Bound<'_, PyNamespace>) {
        self.headers.renew(namespace.get().0.digest());
    }

    fn __len__(&self) -> usize {
        self.headers.slots() as usize
    }
}

impl PySlotHeaders {
    fn slots_of(&self, py: Python<'_>, slots: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
        let most = self.headers.slots();
        let slots: Vec<u32> =
            gather("slots", slots, |position, item| extract("slots", position, &item, "an int"))?;
        match slots.iter().find(|&&slot| slot >= most) {
            Some(slot) => {
                Err(raise(py, "InvalidArgumentError", format!("slot {slot}: must be less than {most}")))
            }
            None => Ok(slots),
        }
    }

    /// Whether the record of a block's slot has the hash of the saved block. With `payloads`, the bytes of
    /// the slot are also compared with their checksum.
    fn agrees(&self, headers: &Headers, saved: &SavedBlock, payloads: bool) -> bool {
        let key = ObjectKey { hash: saved.hash, group: u32::from(saved.group) };
        let Ok(header) = headers.expect(saved.block.get(), key) else { return false };
        !payloads || self.arena.read(saved.block.get()).is_ok_and(|bytes| header.verify(&bytes).is_ok())
    }
}

#[pyclass(frozen, get_all, module = "kvpool._core.store", name = "WarmStart", eq)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyWarmStart {
    blocks: usize,
    refused: usize,
    lost: usize,
    age: f64,
    cold: Option<String>,
}

#[pymethods]
impl PyWarmStart {
    fn __repr__(&self) -> String {
        let Self { blocks, refused, lost, .. } = self;
        let cold = self.cold.as_ref().map_or_else(String::new, |cold| format!(", cold={cold:?}"));
        format!("WarmStart(blocks={blocks}, refused={refused}, lost={lost}{cold})")
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[pyfunction]
pub(crate) fn save_index(
    py: Python<'_>,
    subject: Subject<'_>,
    path: PathBuf,
    namespace: &Bound<'_, PyNamespace>,
) -> PyResult<usize> {
    let (image, namespace) = (subject.image(py)?, namespace.get().0.digest());
    let saved = py.detach(|| warm::save(&path, &image, namespace, now()));
    saved.map_err(|error| system(py, &error))?;
    Ok(image.blocks.len())
}

#[pyfunction]
#[pyo3(
    signature = (subject, path, namespace, *, slots=None, payloads=true, trusted=false, elapsed=None),
    text_signature = "(subject, path, namespace, *, slots=None, payloads=True, trusted=False, elapsed=None)"
)]
pub(crate) fn load_index(
    py: Python<'_>,
    subject: Subject<'_>,
    path: PathBuf,
    namespace: &Bound<'_, PyNamespace>,
    slots: Option<&Bound<'_, PySlotHeaders>>,
    payloads: bool,
    trusted: bool,
    elapsed: Option<&Bound<'_, PyAny>>,
) -> PyResult<PyWarmStart> {
    let namespace = &namespace.get().0;
    let digest = namespace.digest();
    let slots = slots.map(Bound::get);
    if slots.is_none() != trusted {
        let message = "give either slots or trusted=True: the bytes must be known to be those of the hashes";
        return Err(raise(py, "InvalidArgumentError", message));
    }
    if slots.is_some_and(|slots| slots.headers.namespace() != digest) {
        return Err(raise(py, "InvalidArgumentError", "slots are of another namespace"));
    }
    let elapsed = elapsed.map(float).transpose()?;
    let snapshot = match py.detach(|| warm::load(&path, digest)) {
        Ok(snapshot) => snapshot,
        Err(cold) => {
            let cold = Some(cold.to_string());
            return Ok(PyWarmStart { blocks: 0, refused: 0, lost: 0, age: 0.0, cold });
        }
    };
    if let (Subject::Pool(_), Some(saved)) = (&subject, snapshot.image.algorithm) {
        // A new pool has no hash algorithm until its first chain. So the snapshot's algorithm is compared
        // with that of the namespace. A manager itself compares it with its own.
        let known = HashAlgorithm::ALL.iter().find(|one| one.name() == namespace.hash_algorithm);
        if let Some(wanted) = known.filter(|&&wanted| wanted != saved) {
            let (saved, wanted) = (saved.name(), wanted.name());
            let message = format!("the snapshot's hashes are {saved}, the namespace's {wanted}");
            return Err(raise(py, "InvalidArgumentError", message));
        }
    }
    let headers = slots.map(|slots| py.detach(|| slots.headers.read())).transpose();
    let headers = headers.map_err(|error| system(py, &error))?;
    let age = now().saturating_sub(snapshot.saved_at) as f64 / 1000.0;
    let restored = subject.restore(py, &snapshot.image, elapsed.unwrap_or(age), |saved| {
        slots.zip(headers.as_ref()).is_none_or(|(slots, headers)| slots.agrees(headers, saved, payloads))
    })?;
    let Restored { blocks, refused } = restored;
    Ok(PyWarmStart { blocks, refused, lost: snapshot.lost, age, cold: None })
}
