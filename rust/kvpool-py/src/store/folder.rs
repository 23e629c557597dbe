//! Bindings of `StoreFolder`, which reads the objects of a folder without a store.

use std::collections::BTreeMap;
use std::path::PathBuf;

use kvpool_store::disk::Inspector;
use kvpool_store::{Header, NamespaceDigest, StoreError};

use super::namespace::PyNamespace;
use super::numbers::u32_of;
use crate::convert::{Int, Text};
use crate::errors::{OrRaise, raise};
use crate::python::prelude::*;

/// An object of a folder in Python's form: its place (slot of the file), namespace, group, payload bytes, and
/// a description of its damage, if any.
type Found = (u32, Option<String>, u32, u32, Option<String>);

#[pyclass(frozen, module = "kvpool._core.store", name = "StoreFolder")]
pub(crate) struct PyStoreFolder(Inspector);

#[pymethods]
impl PyStoreFolder {
    #[new]
    #[pyo3(signature = (folder, *, exclusive=false))]
    fn new(py: Python<'_>, folder: PathBuf, exclusive: bool) -> PyResult<Self> {
        let open = if exclusive { Inspector::exclusive } else { Inspector::look };
        Ok(Self(py.detach(|| open(&folder)).or_raise(py)?))
    }

    getters! {
        places: u32 = self.0.places();
        object_bytes: u64 = self.0.object_bytes();
        io: String = super::backends::io_found();
    }

    #[pyo3(signature = (first, count, *, verify=false))]
    fn objects(&self, py: Python<'_>, first: Int, count: Int, verify: bool) -> PyResult<Vec<Found>> {
        let (first, count) = (u32_of(py, "first", first)?, u32_of(py, "count", count)?);
        let places = first..first.saturating_add(count).min(self.0.places());
        let object = |place| {
            let header: Result<Option<Header>, String> = if verify {
                self.0.verify(place)?.map_err(|error| error.to_string())
            } else {
                self.0.header(place)?.map_err(|error| error.to_string())
            };
            Ok::<Option<Found>, StoreError>(match header {
                Ok(None) => None,
                Ok(Some(header)) => {
                    Some((place, Some(header.namespace.to_string()), header.key.group, header.len, None))
                }
                Err(problem) => Some((place, None, 0, 0, Some(problem))),
            })
        };
        py.detach(|| places.filter_map(|place| object(place).transpose()).collect::<Result<_, _>>())
            .or_raise(py)
    }

    fn namespaces(&self, py: Python<'_>) -> PyResult<BTreeMap<String, Option<PyNamespace>>> {
        let found = py.detach(|| self.0.namespaces()).map_err(StoreError::from).or_raise(py)?;
        Ok(found.into_iter().map(|(digest, text)| (digest.to_string(), text.map(PyNamespace))).collect())
    }

    fn clear(&self, py: Python<'_>, places: &Bound<'_, PyAny>) -> PyResult<()> {
        let places = crate::convert::blocks(places)?;
        let last = self.0.places();
        if let Some(wrong) = places.iter().find(|place| place.get() >= last) {
            let message = format!("place {} is outside this folder: it has {last}", wrong.get());
            return Err(raise(py, "InvalidArgumentError", message));
        }
        py.detach(|| places.iter().try_for_each(|place| self.0.clear(place.get()))).or_raise(py)
    }

    fn forget(&self, py: Python<'_>, digest: Text) -> PyResult<()> {
        let digest: NamespaceDigest =
            digest.0.parse().map_err(|error| raise(py, "InvalidArgumentError", format!("{error}")))?;
        self.0.forget(digest).or_raise(py)
    }
}
