//! Reads mappings from Python: lists of pairs, buffers, and tensors on the CPU or on a device.

use kvpool_transfer::{Device, DeviceMapping, RawPairs};
use pyo3::buffer::ElementType;
use pyo3::intern;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyList, PyString};

use super::store::{block_id, device_of};
use crate::convert::{items, native, untyped};
use crate::errors::raise;
use crate::gather::{drain, list_of, with_room};
use crate::python::prelude::*;

/// The argument `mapping`: pairs of block numbers in host memory, or a tensor on a device.
pub(super) enum Mapping {
    Pairs(Vec<(i64, i64)>),
    OnDevice(DeviceMapping),
}

/// The object `torch.int64`, which is read when the first tensor is converted.
static INT64: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

impl Mapping {
    pub(super) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        if object.cast_exact::<PyList>().is_err() {
            if object.hasattr(intern!(py, "data_ptr"))? {
                return Self::of_tensor(object);
            }
            if let Some(buffer) = untyped(object) {
                let shape = buffer.shape();
                if shape.len() != 2 || shape[1] != 2 {
                    return Err(wrong_shape(py, &format!("{shape:?}")));
                }
                if !matches!(native(buffer.format()), Some(ElementType::SignedInteger { bytes: 8 })) {
                    return Err(wrong_type(py, &format!("a buffer of format {:?}", buffer.format())));
                }
                let numbers = items(&buffer, object, i64::from_ne_bytes)?;
                let pairs = numbers.as_chunks::<2>().0.iter().map(|&[src, dst]| (src, dst));
                return list_of(py, "a mapping", pairs).map(Self::Pairs);
            }
        }
        let found = object.get_type().name()?;
        if object.is_instance_of::<PyString>() {
            return Err(wrong_type(py, &format!("a {found}")));
        }
        let rows = object.try_iter().map_err(|_| wrong_type(py, &format!("a {found}")))?;
        let pair = |_, row: Bound<'_, PyAny>| {
            // At most three items of a row are read, which is enough to see that it is no pair.
            let ends = row.try_iter().map_err(|_| wrong_shape(py, "rows that are no pairs"))?;
            let ends = ends.take(3).collect::<PyResult<Vec<_>>>()?;
            let [src, dst] = ends.as_slice() else {
                let found = if ends.len() > 2 { "more than two".into() } else { ends.len().to_string() };
                return Err(wrong_shape(py, &format!("rows that are no pairs: one of {found} numbers")));
            };
            Ok((block_id(src)?, block_id(dst)?))
        };
        drain("a mapping", rows, pair).map(Self::Pairs)
    }

    fn of_tensor(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = tensor.py();
        let dtype = tensor.getattr(intern!(py, "dtype"))?;
        if !is_int64(&dtype)? {
            return Err(wrong_type(py, &format!("a tensor of {dtype}")));
        }
        let shape = tensor.getattr(intern!(py, "shape"))?;
        let Ok((rows, 2)) = shape.extract::<(usize, usize)>() else {
            return Err(wrong_shape(py, &shape.str()?.to_string()));
        };
        let place = || -> PyResult<_> {
            let (row, column): (i64, i64) = tensor.call_method0(intern!(py, "stride"))?.extract()?;
            let address: u64 = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
            Ok((device_of(tensor)?, address, row, column))
        };
        // This fails for sparse tensors, which have no strides, and for tensors on the device `meta`, which
        // have no memory.
        let (device, address, row, column) = place()
            .map_err(|error| wrong_type(py, &format!("a tensor without memory of its own ({error})")))?;
        match device {
            Device::Cpu => {
                // SAFETY: these are the elements of a tensor that the caller holds. A resize of the
                // tensor in another thread breaks a rule of docs/threads.md, as it would with any
                // operation of torch on the tensor.
                let raw = unsafe { RawPairs::new(address, rows, row, column) };
                let mut pairs = with_room(py, "a mapping", rows)?;
                pairs.extend(raw.iter());
                Ok(Self::Pairs(pairs))
            }
            Device::Cuda(_) if rows == 0 || (row, column) == (2, 1) => {
                Ok(Self::OnDevice(DeviceMapping { device, address, rows: rows as u64 }))
            }
            Device::Cuda(_) => Err(wrong_shape(py, "strides other than (2, 1): call contiguous() on it")),
        }
    }
}

/// Whether a dtype is int64. Compares its identity with that of `torch.int64`, which takes nanoseconds. For
/// tensors of another library, compares the name.
fn is_int64(dtype: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = dtype.py();
    if let Ok(int64) = INT64.get_or_try_init(py, || {
        Ok::<_, PyErr>(crate::python::import(py, "torch")?.getattr("int64")?.unbind())
    }) && dtype.is(int64)
    {
        return Ok(true);
    }
    let name = dtype.str()?;
    Ok(matches!(name.to_str()?, "torch.int64" | "int64"))
}

fn wrong_shape(py: Python<'_>, found: &str) -> PyErr {
    raise(
        py,
        "MappingError",
        format!("a mapping has the shape [n, 2], source and destination blocks; this one has {found}"),
    )
}

fn wrong_type(py: Python<'_>, found: &str) -> PyErr {
    let message = format!(
        "a mapping is a list of pairs of ints, or an int64 array or tensor of shape [n, 2]; this is one \
            {found}"
    );
    raise(py, "MappingTypeError", message)
}
