//! Payloads of cached blocks: ints and bytes.

use kvpool_observe::{Evicted, Payload};
use pyo3::types::{PyBool, PyBytes};

use crate::convert::{Int, count};
use crate::gather::{gather, or_wrong_item};
use crate::python::prelude::*;

/// An evicted payload in Python's form: the block, the hash that it had, and the payload.
pub(super) type Tuple<'py> = (u32, Bound<'py, PyBytes>, Bound<'py, PyAny>);

pub(super) fn list(object: &Bound<'_, PyAny>) -> PyResult<Vec<Payload>> {
    gather("payloads", object, |position, item| {
        or_wrong_item("payloads", position, &item, "an int or bytes", payload(&item))
    })
}

fn payload(item: &Bound<'_, PyAny>) -> PyResult<Payload> {
    let py = item.py();
    if let Ok(bytes) = item.cast::<PyBytes>() {
        return Ok(Payload::Bytes(bytes.as_bytes().into()));
    }
    item.cast::<PyBool>().map_or(Ok(()), |_| Err(pyo3::exceptions::PyTypeError::new_err("a bool")))?;
    Ok(Payload::Number(count(py, "a payload", item.extract::<Int>()?)? as u64))
}

pub(super) fn tuple(py: Python<'_>, gone: Evicted) -> PyResult<Tuple<'_>> {
    let Evicted { block, hash, algorithm, payload } = gone;
    let digest = algorithm.map_or(&hash.as_bytes()[..], |algorithm| hash.digest(algorithm));
    let payload = match payload {
        Payload::Number(number) => number.into_pyobject(py)?.into_any(),
        Payload::Bytes(bytes) => PyBytes::new(py, &bytes).into_any(),
    };
    Ok((block.get(), PyBytes::new(py, digest), payload))
}
