//! Reads streams and events from Python: torch's current stream, or a stream of the caller.

use kvpool_transfer::{Device, StreamHandle};
use pyo3::intern;

use crate::errors::raise;
use crate::python::prelude::*;

pub(super) fn current_stream(py: Python<'_>, device: Device) -> PyResult<StreamHandle> {
    let Device::Cuda(ordinal) = device else { return Ok(StreamHandle::from_raw(0)) };
    let raw: u64 = crate::python::import(py, intern!(py, "kvpool.transfer.streams"))?
        .call_method1(intern!(py, "current_stream"), (ordinal,))?
        .extract()?;
    Ok(StreamHandle::from_raw(raw))
}

/// An argument that is a stream, or `"current"` for torch's current stream, which is the default.
pub(crate) enum Wanted<'py> {
    Current,
    Given(Bound<'py, PyAny>),
}

impl crate::python::Single for Wanted<'_> {}

crate::argument::convert_itself!(Wanted<'py>: "a stream");

impl<'py> FromPyObject<'_, 'py> for Wanted<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let current = object.extract::<&str>().is_ok_and(|name| name == "current");
        Ok(if current { Self::Current } else { Self::Given(object.to_owned()) })
    }
}

/// Returns the handle of a stream. `wanted` is "current" for torch's current stream, None for the legacy
/// default stream, a handle, or an object that has a handle.
pub(super) fn stream(py: Python<'_>, wanted: &Wanted<'_>, device: Device) -> PyResult<StreamHandle> {
    let object = match wanted {
        Wanted::Current => return current_stream(py, device),
        Wanted::Given(object) if object.is_none() => return Ok(StreamHandle::from_raw(0)),
        Wanted::Given(object) => object,
    };
    let handle = object.getattr(intern!(py, "cuda_stream")).unwrap_or_else(|_| object.clone());
    handle.extract().map(StreamHandle::from_raw).map_err(|_| {
        let found = object.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        let message =
            format!("a stream is \"current\", None, a handle or a torch.cuda.Stream, not a {found}");
        raise(py, "MappingTypeError", message)
    })
}
