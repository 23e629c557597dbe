//! Bindings of `Custom`, a back end written in Python, such as those for S3 and Mooncake.
//!
//! Each worker calls the back end on its own thread. The back end gets the addresses of payloads, which are
//! valid until its call returns. So it can pass them to a transfer engine without a copy. Loaded bytes are
//! checked like those of any back end. An exception of the back end is a failed transfer.

use std::fmt;
use std::io;
use std::sync::Arc;

use kvpool::BlockHash;
use kvpool_store::{
    Backend, BackendError, Generation, HEADER_BYTES, Header, Namespace, NamespaceDigest, Object, ObjectKey,
    ObjectMut, ObjectName, Page, Place, TokenRange, places,
};
use pyo3::PyVisit;
use pyo3::exceptions::PyOSError;
use pyo3::gc::PyTraverseError;
use pyo3::types::PyBytes;

use super::numbers::u32_of;
use crate::convert::{Int, count};
use crate::gather::gather_as;
use crate::python::prelude::*;

#[pyclass(frozen, module = "kvpool._core.store", name = "Custom")]
pub(crate) struct PyCustom {
    backend: Py<PyAny>,
    capacity_bytes: u64,
    max_payload: Option<u32>,
}

#[pymethods]
impl PyCustom {
    #[new]
    #[pyo3(signature = (backend, capacity_bytes, *, max_payload=None))]
    fn new(
        py: Python<'_>,
        backend: Py<PyAny>,
        capacity_bytes: Int,
        max_payload: Option<Int>,
    ) -> PyResult<Self> {
        Ok(Self {
            backend,
            capacity_bytes: count(py, "capacity_bytes", capacity_bytes)? as u64,
            max_payload: max_payload.map(|bytes| u32_of(py, "max_payload", bytes)).transpose()?,
        })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Custom({}, {})", self.backend.bind(py).repr()?, self.capacity_bytes))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.backend)
    }
}

impl PyCustom {
    pub(super) fn of(&self, py: Python<'_>, slot_bytes: u32) -> Custom {
        let max_payload = self.max_payload.unwrap_or(slot_bytes);
        let places = places(self.capacity_bytes, object_bytes(max_payload));
        Custom { backend: Arc::new(self.backend.clone_ref(py)), places, max_payload }
    }
}

pub(super) struct Custom {
    /// The Python object of the back end. A store and its workers share this one reference, which the store's
    /// `__traverse__` shows to the garbage collector.
    pub(super) backend: Arc<Py<PyAny>>,
    places: u32,
    max_payload: u32,
}

impl fmt::Debug for Custom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custom").field("places", &self.places).finish_non_exhaustive()
    }
}

fn object_bytes(max_payload: u32) -> u64 {
    HEADER_BYTES as u64 + u64::from(max_payload)
}

impl Custom {
    fn call<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, BackendError> {
        let attached = crate::python::try_attach(|py| {
            call(self.backend.bind(py)).map_err(|error| {
                let errno = error.is_instance_of::<PyOSError>(py).then(|| error.value(py).getattr("errno"));
                let errno = errno.and_then(|number| number.ok()?.extract().ok());
                let kind =
                    errno.map_or(io::ErrorKind::Other, |errno| io::Error::from_raw_os_error(errno).kind());
                BackendError::io(operation)(io::Error::new(kind, error.to_string()))
            })
        });
        let ended = || BackendError::Io { operation, error: io::Error::other("the interpreter has ended") };
        attached.unwrap_or_else(|| Err(ended()))
    }

    fn write_named(&self, name: &str, object: Object<'_>) -> Result<(), BackendError> {
        self.call("writing an object", |backend| {
            let header = PyBytes::new(backend.py(), &object.header.0[..HEADER_BYTES]);
            let address = object.pages.as_ptr().expose_provenance();
            backend.call_method1("write", (name, header, address, object.len))?;
            Ok(())
        })
    }

    /// Reads the object with this name. Returns whether it exists.
    fn read_named(&self, name: &str, into: ObjectMut<'_>) -> Result<bool, BackendError> {
        self.call("reading an object", |backend| {
            let address = into.pages.as_mut_ptr().expose_provenance();
            let answer = backend.call_method1("read", (name, address, into.len))?;
            if answer.is_none() {
                return Ok(false);
            }
            let header = answer.cast::<PyBytes>()?.as_bytes();
            let len = header.len().min(HEADER_BYTES);
            into.header.0[..len].copy_from_slice(&header[..len]);
            Ok(true)
        })
    }
}

/// The key in the header of a record that contains the generation of a namespace. No object has this key.
const RECORD: ObjectKey = ObjectKey { hash: BlockHash::from_bytes([0; 32]), group: u32::MAX };

/// Returns the name for the record of a namespace's generation. No object has such a name.
fn record_name(of: NamespaceDigest) -> String {
    format!("{of}/0")
}

fn texts(names: &[ObjectName]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

impl Backend for Custom {
    fn name(&self) -> &'static str {
        "custom"
    }

    fn places(&self) -> u32 {
        self.places
    }

    fn object_bytes(&self) -> u64 {
        object_bytes(self.max_payload)
    }

    fn max_payload(&self) -> u32 {
        self.max_payload
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn restore(&self, _: NamespaceDigest, _: &mut dyn FnMut(Place, &[u8])) -> Result<(), BackendError> {
        Ok(())
    }

    /// Reads the generation from its record, which is stored under a name that no object has.
    fn generation(&self, of: NamespaceDigest) -> Result<Option<Generation>, BackendError> {
        let (mut header, mut page) = (Page::zeroed(), Page::zeroed());
        let len = Generation::TEXT_BYTES as u32;
        let found =
            self.read_named(&record_name(of), ObjectMut { header: &mut header, pages: &mut page.0, len })?;
        let record = &page.0[..Generation::TEXT_BYTES];
        let intact = |header: Header| {
            header.expect(of, RECORD, len)?;
            header.verify(record)
        };
        let is_intact = found && Header::decode(&header.0).is_ok_and(|header| intact(header).is_ok());
        Ok(is_intact.then(|| Generation::of_record(record)).flatten())
    }

    /// Writes the record of a generation. A back end that cannot keep an existing record overwrites it. The
    /// store reads the generation before and after this call.
    fn record_generation(
        &self,
        of: NamespaceDigest,
        generation: Generation,
        replaces: bool,
    ) -> Result<(), BackendError> {
        let (name, mut header, mut page) = (record_name(of), Page::zeroed(), Page::zeroed());
        let record = generation.to_string();
        page.0[..record.len()].copy_from_slice(record.as_bytes());
        let failed =
            || BackendError::Io { operation: "writing a generation", error: io::Error::other("too long") };
        let front = Header::of(of, RECORD, TokenRange::default(), record.as_bytes()).ok_or_else(failed)?;
        header.0[..HEADER_BYTES].copy_from_slice(&front.encode());
        if replaces {
            // Some back ends do not overwrite an existing name, so the old record is removed first.
            self.call("removing a generation", |backend| {
                backend.call_method1("remove", (vec![name.as_str()],)).map(drop)
            })?;
        }
        self.write_named(&name, Object { header: &header, pages: &page.0, len: record.len() as u32 })
    }

    /// Calls the method `describe` of the back end, if it has one.
    fn describe(&self, namespace: &Namespace) -> Result<(), BackendError> {
        self.call("writing the text of the namespace", |backend| {
            if backend.hasattr("describe")? {
                backend.call_method1("describe", (namespace.digest().to_string(), namespace.to_json()))?;
            }
            Ok(())
        })
    }

    fn write(
        &self,
        _: Place,
        name: &ObjectName,
        replaces: &[ObjectName],
        object: Object<'_>,
    ) -> Result<(), BackendError> {
        self.clear(None, replaces)?;
        self.write_named(&name.to_string(), object)
    }

    fn read(&self, _: Option<Place>, name: &ObjectName, into: ObjectMut<'_>) -> Result<(), BackendError> {
        if self.read_named(&name.to_string(), into)? { Ok(()) } else { Err(BackendError::Absent) }
    }

    fn exist(&self, names: &[ObjectName]) -> Result<Vec<bool>, BackendError> {
        self.call("asking for objects", |backend| {
            gather_as("exist()'s answer", &backend.call_method1("exist", (texts(names),))?, "a bool")
        })
    }

    fn clear(&self, _: Option<Place>, names: &[ObjectName]) -> Result<(), BackendError> {
        if names.is_empty() {
            return Ok(());
        }
        self.call("removing objects", |backend| backend.call_method1("remove", (texts(names),)).map(|_| ()))
    }
}
