//! Bindings of `StoreServer` and `check_object`, which read the objects of a server without a store.

use std::collections::BTreeMap;

use kvpool_store::redis::{Inspector, Seen};
use kvpool_store::{Header, Mismatch, NamespaceDigest, ObjectName, StoreError};

use super::backends::PyRedis;
use super::namespace::PyNamespace;
use crate::convert::{Int, Text, count};
use crate::errors::{OrRaise, raise};
use crate::gather::gather_as;
use crate::python::prelude::*;

/// An object of a server in Python's form: its name, namespace, group, payload bytes, and a description of
/// its damage, if any.
type Found = (String, Option<String>, u32, u32, Option<String>);

fn found(name: &ObjectName, header: Result<Header, Mismatch>) -> Found {
    match header {
        Ok(header) => {
            (name.to_string(), Some(header.namespace.to_string()), header.key.group, header.len, None)
        }
        Err(wrong) => (name.to_string(), None, 0, 0, Some(wrong.to_string())),
    }
}

fn parsed<T: std::str::FromStr>(py: Python<'_>, text: &str) -> PyResult<T>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error: T::Err| raise(py, "InvalidArgumentError", error.to_string()))
}

#[pyclass(frozen, module = "kvpool._core.store", name = "StoreServer")]
pub(crate) struct PyStoreServer(Inspector);

type Scanned = (u64, Vec<Found>, BTreeMap<String, Option<PyNamespace>>, u64);

#[pymethods]
impl PyStoreServer {
    #[new]
    fn new(py: Python<'_>, server: &PyRedis) -> PyResult<Self> {
        let config = server.config.clone();
        Ok(Self(py.detach(|| Inspector::open(config)).or_raise(py)?))
    }

    fn keys(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.0.keys()).map_err(StoreError::from).or_raise(py)
    }

    #[pyo3(
        signature = (
            cursor=Int::from(0), *, verify=false
        ),
        text_signature = "($self, cursor=0, *, verify=False)"
    )]
    fn scan(&self, py: Python<'_>, cursor: Int, verify: bool) -> PyResult<Scanned> {
        let cursor = count(py, "cursor", cursor)? as u64;
        let page = py.detach(|| self.0.scan(cursor, verify)).map_err(StoreError::from).or_raise(py)?;
        let objects = page.objects.into_iter().map(|Seen { name, header }| found(&name, header)).collect();
        let texts = page.namespaces.into_iter();
        let texts = texts.map(|(digest, text)| (digest.to_string(), text.map(PyNamespace))).collect();
        Ok((page.next, objects, texts, page.others))
    }

    fn remove(&self, py: Python<'_>, names: &Bound<'_, PyAny>) -> PyResult<()> {
        let names: Vec<Text> = gather_as("names", names, "a str")?;
        let names = names.iter().map(|name| parsed(py, &name.0)).collect::<PyResult<Vec<ObjectName>>>()?;
        py.detach(|| self.0.remove(&names)).map_err(StoreError::from).or_raise(py)
    }

    fn forget(&self, py: Python<'_>, digest: Text) -> PyResult<()> {
        let digest: NamespaceDigest = parsed(py, &digest.0)?;
        py.detach(|| self.0.forget(digest)).map_err(StoreError::from).or_raise(py)
    }
}

#[pyfunction]
#[pyo3(signature = (name, front, length, payload=None))]
pub(crate) fn check_object(
    py: Python<'_>,
    name: Text,
    front: &[u8],
    length: Int,
    payload: Option<&[u8]>,
) -> PyResult<Option<Found>> {
    let Ok(name) = name.0.parse::<ObjectName>() else { return Ok(None) };
    let mut header = Header::seen(front, &name, count(py, "length", length)? as u64);
    if let (Ok(intact), Some(payload)) = (&header, payload) {
        let intact = *intact;
        header = py.detach(|| intact.verify(payload)).map(|()| intact);
    }
    Ok(Some(found(&name, header)))
}
