//! Bindings of `Arena`, host memory that is divided into slots.

use std::ptr::NonNull;
use std::sync::Arc;

use kvpool_store::Arena;
use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::intern;
use pyo3::types::PyBytes;

use super::numbers::u32_of;
use crate::convert::Int;
use crate::errors::{OrRaise, raise};
use crate::python::prelude::*;

#[pyclass(frozen, module = "kvpool._core.store", name = "Arena")]
pub(crate) struct PyArena(pub(super) Arc<Arena>);

crate::argument::held!(PyArena);

#[pymethods]
impl PyArena {
    #[new]
    fn new(py: Python<'_>, slots: Int, slot_bytes: Int) -> PyResult<Self> {
        let (slots, slot_bytes) = (u32_of(py, "slots", slots)?, u32_of(py, "slot_bytes", slot_bytes)?);
        Ok(Self(Arena::new(slots, slot_bytes).or_raise(py)?))
    }

    #[staticmethod]
    fn over(py: Python<'_>, memory: &Bound<'_, PyAny>, slot_bytes: Int) -> PyResult<Self> {
        let slot_bytes = u32_of(py, "slot_bytes", slot_bytes)?;
        let wrong = |error: PyErr| {
            let buffer = error.is_instance_of::<PyTypeError>(py) || error.is_instance_of::<PyBufferError>(py);
            if !buffer {
                return error;
            }
            let message = format!("memory is no writable, contiguous buffer: {}", error.value(py));
            raise(py, "ArgumentTypeError", message)
        };
        let bytes = || {
            let view = crate::python::memory_view(memory)?;
            crate::python::buffer::<u8>(&view.call_method1(intern!(py, "cast"), ("B",))?)
        };
        let buffer = bytes().map_err(wrong)?;
        if buffer.readonly() {
            return Err(raise(py, "ArgumentTypeError", "memory is read-only: objects are loaded into it"));
        }
        let len = buffer.len_bytes();
        let slots = len / (slot_bytes as usize).max(1);
        if slots * slot_bytes as usize != len {
            let message = format!("memory of {len} bytes: must be whole slots of {slot_bytes}");
            return Err(raise(py, "InvalidArgumentError", message));
        }
        let slots = u32_of(py, "slots", Int::from(i64::try_from(slots).unwrap_or(i64::MAX)))?;
        let Some(begin) = NonNull::new(buffer.buf_ptr().cast::<u8>()) else {
            return Err(raise(py, "InvalidArgumentError", "memory has no address"));
        };
        // SAFETY: this is a contiguous, writable buffer of this number of bytes. It stays at its
        // address as long as it is exported, and the arena keeps the export. The docstring makes the
        // caller responsible for Python code that uses a slot of a running transfer.
        let arena = unsafe { Arena::over(begin, slots, slot_bytes, Box::new(buffer)) };
        Ok(Self(arena.or_raise(py)?))
    }

    getters! {
        slots: u32 = self.0.slots();
        slot_bytes: u32 = self.0.slot_bytes();
        stride: usize = self.0.stride();
        address: usize = self.0.memory().0.addr().get();
        is_paged: bool = self.0.is_paged();
    }

    fn write(&self, py: Python<'_>, slot: Int, payload: &[u8]) -> PyResult<()> {
        let mut guard = self.0.write(u32_of(py, "slot", slot)?).or_raise(py)?;
        let (len, most) = (payload.len(), guard.len());
        let Some(front) = guard.get_mut(..len) else {
            let message = format!("a payload of {len} bytes for a slot of {most}");
            return Err(raise(py, "InvalidArgumentError", message));
        };
        front.copy_from_slice(payload);
        Ok(())
    }

    #[pyo3(signature = (slot, length=None))]
    fn read<'py>(&self, py: Python<'py>, slot: Int, length: Option<Int>) -> PyResult<Bound<'py, PyBytes>> {
        let guard = self.0.read(u32_of(py, "slot", slot)?).or_raise(py)?;
        let most = guard.len();
        let len = match length {
            Some(length) => u32_of(py, "length", length)? as usize,
            None => most,
        };
        let Some(front) = guard.get(..len) else {
            let message = format!("length is {len}: a slot has {most} bytes");
            return Err(raise(py, "InvalidArgumentError", message));
        };
        Ok(PyBytes::new(py, front))
    }

    fn __len__(&self) -> usize {
        self.0.slots() as usize
    }

    fn __repr__(&self) -> String {
        let (slots, bytes, paged) = (self.0.slots(), self.0.slot_bytes(), self.0.is_paged());
        format!("Arena(slots={slots}, slot_bytes={bytes}, is_paged={})", if paged { "True" } else { "False" })
    }
}
