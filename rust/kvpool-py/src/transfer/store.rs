//! Bindings of `BlockStore`, which describes blocks in tensors, at addresses, or in host memory.

use std::sync::Arc;

use kvpool::shorten;
use kvpool_transfer::{Array, Device, HostOptions, NumaNode, Region, Store};
use pyo3::intern;
use pyo3::types::{PyBool, PyBytes, PyInt, PyTuple};

use crate::convert::{Int, count, shown};
use crate::errors::{OrRaise, is_ours, raise};
use crate::gather::{drain, gather, gather_as};
use crate::python::prelude::*;

#[pyclass(frozen, module = "kvpool._core.transfer", name = "BlockStore")]
pub(crate) struct PyBlockStore(pub(super) Arc<Store>);

crate::argument::held!(PyBlockStore);

pub(super) fn device(py: Python<'_>, name: &str) -> PyResult<Device> {
    shorten(name).parse::<Device>().or_raise(py)
}

fn array(tensor: &Bound<'_, PyAny>) -> PyResult<Array> {
    let py = tensor.py();
    let describe = || {
        Ok(Array {
            address: tensor.call_method0(intern!(py, "data_ptr"))?.extract()?,
            shape: gather_as("shape", &tensor.getattr(intern!(py, "shape"))?, "an int")?,
            strides: gather_as("strides", &tensor.call_method0(intern!(py, "stride"))?, "an int")?,
            item_bytes: tensor.call_method0(intern!(py, "element_size"))?.extract()?,
        })
    };
    describe().map_err(|_: PyErr| {
        let found = tensor.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        raise(py, "MappingTypeError", format!("a store is made of torch tensors, not of a {found}"))
    })
}

pub(super) fn device_of(tensor: &Bound<'_, PyAny>) -> PyResult<Device> {
    let py = tensor.py();
    if tensor.getattr(intern!(py, "is_cpu"))?.is_truthy()? {
        return Ok(Device::Cpu);
    }
    let at = tensor.getattr(intern!(py, "device"))?;
    let kind: String = at.getattr(intern!(py, "type"))?.extract()?;
    match kind.as_str() {
        "cuda" => {
            let index: Option<u32> = at.getattr(intern!(py, "index"))?.extract()?;
            Ok(Device::Cuda(index.unwrap_or(0)))
        }
        other => Err(raise(py, "LayoutError", format!("a tensor is on {other}: stores are on cpu or cuda"))),
    }
}

/// Returns a block id. An id of more than 64 bits is out of range for every store.
pub(super) fn block_id(id: &Bound<'_, PyAny>) -> PyResult<i64> {
    let py = id.py();
    let int = id.is_instance_of::<PyInt>() || id.hasattr(intern!(py, "__index__"))?;
    if !int || id.is_instance_of::<PyBool>() {
        let found = id.get_type().name()?;
        return Err(raise(py, "MappingTypeError", format!("a block is an int, not a {found}")));
    }
    id.extract().map_err(|_| {
        let message = format!("block {} is out of range: a store has at most {} blocks", shown(id), i32::MAX);
        raise(py, "BlockIndexError", message)
    })
}

#[pymethods]
impl PyBlockStore {
    #[staticmethod]
    #[pyo3(
        signature = (tensors, *, block_dim=None, keep_alive=true),
        text_signature = "(tensors, *, block_dim=0, keep_alive=True)"
    )]
    fn from_tensors(
        py: Python<'_>,
        tensors: &Bound<'_, PyAny>,
        block_dim: Option<&Bound<'_, PyAny>>,
        keep_alive: bool,
    ) -> PyResult<Self> {
        if tensors.hasattr(intern!(py, "data_ptr"))? {
            // A single tensor is refused, because iterating over it would return its rows.
            return Err(raise(
                py,
                "MappingTypeError",
                "tensors is one tensor: a store is made of a list of them",
            ));
        }
        let tensors = drain("tensors", tensors.try_iter()?, |_, tensor| Ok(tensor))?;
        let dims: Vec<Int> = match block_dim {
            None => vec![Int::from(0); tensors.len()],
            Some(one) if one.is_instance_of::<PyInt>() => vec![one.extract()?; tensors.len()],
            Some(each) => gather_as("block_dim", each, "an int")?,
        };
        let refuse = |class, message: String| Err(raise(py, class, message));
        if dims.len() != tensors.len() {
            let message = format!("{} block dimensions for {} tensors", dims.len(), tensors.len());
            return refuse("InvalidArgumentError", message);
        }
        let (mut regions, mut kinds) = (Vec::new(), Vec::new());
        let mut common: Option<(Device, u64)> = None;
        let mut pinned = true;
        for (index, (tensor, dim)) in tensors.iter().zip(dims).enumerate() {
            let array = array(tensor)?;
            let (rank, given) = (array.shape.len() as i128, i128::from(dim));
            let dim = if given < 0 { given + rank } else { given };
            let Ok(dim) = usize::try_from(dim) else {
                let message = format!("tensor {index} of {rank} dimensions has none numbered {given}");
                return refuse("LayoutError", message);
            };
            let (pieces, blocks) = array
                .regions(dim)
                .map_err(|error| raise(py, "LayoutError", format!("tensor {index}: {error}")))?;
            let at = device_of(tensor)?;
            match common {
                None => common = Some((at, blocks)),
                Some((device, _)) if device != at => {
                    return refuse("LayoutError", format!("tensor 0 is on {device}, tensor {index} on {at}"));
                }
                Some((_, first)) if first != blocks => {
                    return refuse(
                        "LayoutError",
                        format!("tensor 0 has {first} blocks, tensor {index} has {blocks}"),
                    );
                }
                Some(_) => {}
            }
            let kind: Arc<str> = tensor.getattr(intern!(py, "dtype"))?.str()?.to_str()?.into();
            kinds.extend(pieces.iter().map(|_| kind.clone()));
            regions.extend(pieces);
            pinned = pinned
                && at == Device::Cpu
                && tensor.call_method0(intern!(py, "is_pinned"))?.extract::<bool>()?;
        }
        let Some((device, blocks)) = common else {
            return refuse("LayoutError", "a store is made of at least one tensor".into());
        };
        let owner: Option<Box<dyn std::any::Any + Send + Sync>> = if keep_alive {
            let tensors: Py<PyAny> = PyTuple::new(py, &tensors)?.into_any().unbind();
            Some(Box::new(tensors))
        } else {
            None
        };
        // SAFETY: the regions are the tensors' own elements, and the store, or the caller, keeps the tensors.
        let store = unsafe { Store::new(regions, blocks, device, kinds, pinned, owner) };
        Ok(Self(store.or_raise(py)?))
    }

    #[staticmethod]
    #[pyo3(signature = (regions, num_blocks, *, device="cpu", pinned=false, keep_alive=None))]
    fn from_regions(
        py: Python<'_>,
        regions: &Bound<'_, PyAny>,
        num_blocks: Int,
        device: &str,
        pinned: bool,
        keep_alive: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let number = |name, value| count(py, name, value).map(|value| value as u64);
        let region = |(base, stride, nbytes): (Int, Int, Int)| {
            let (base, stride) = (number("base", base)?, number("stride", stride)?);
            Ok(Region { base, stride, nbytes: number("nbytes", nbytes)? })
        };
        let row = |_, row: Bound<'_, PyAny>| {
            let wrong = |error: PyErr| {
                if is_ours(py, &error) {
                    return error;
                }
                let message =
                    format!("regions has {}: each is an address, a stride and a length", shown(&row));
                raise(py, "InvalidArgumentError", message)
            };
            region(row.extract().map_err(wrong)?)
        };
        let regions = gather("regions", regions, row)?;
        let (blocks, device) = (number("num_blocks", num_blocks)?, self::device(py, device)?);
        let keep_alive = keep_alive.map(|object| Box::new(object) as Box<_>);
        // SAFETY: by the docstring, the caller guarantees that the addresses are valid.
        let store = unsafe { Store::new(regions, blocks, device, Vec::new(), pinned, keep_alive) };
        Ok(Self(store.or_raise(py)?))
    }

    #[staticmethod]
    #[pyo3(
        signature = (num_blocks, like, *, pinned=None, numa_node=None, hugepages=false,
        registration_limit=Int::from(64 << 30)),
        text_signature = "(num_blocks, like, *, pinned='auto', numa_node=None, hugepages=False, \
            registration_limit=68719476736)"
    )]
    fn host(
        py: Python<'_>,
        num_blocks: Int,
        like: &Self,
        pinned: Option<&Bound<'_, PyAny>>,
        numa_node: Option<&Bound<'_, PyAny>>,
        hugepages: bool,
        registration_limit: Int,
    ) -> PyResult<Self> {
        let refuse = |name: &str, value: &Bound<'_, PyAny>, expected: &str| {
            let found = shown(value.repr()?.as_any());
            Err(raise(py, "InvalidArgumentError", format!("{name} is {found}: {expected}")))
        };
        let text =
            |value: &Bound<'_, PyAny>, expected| value.extract::<&str>().is_ok_and(|text| text == expected);
        let pinned = match pinned {
            None => None,
            Some(value) if text(value, "auto") => None,
            Some(value) => match value.cast::<PyBool>() {
                Ok(flag) => Some(flag.is_true()),
                Err(_) => return refuse("pinned", value, "True, False or \"auto\""),
            },
        };
        let numa_node = match numa_node {
            None => NumaNode::Any,
            Some(value) if text(value, "auto") => NumaNode::Near,
            Some(value) => match value.extract() {
                Ok(node) => NumaNode::Node(node),
                Err(_) => return refuse("numa_node", value, "a node's number, \"auto\" or None"),
            },
        };
        let registration_limit = count(py, "registration_limit", registration_limit)? as u64;
        let options = HostOptions { pinned, numa_node, hugepages, registration_limit };
        let blocks = count(py, "num_blocks", num_blocks)? as u64;
        Ok(Self(py.detach(|| Store::host(blocks, &like.0, &options)).or_raise(py)?))
    }

    getters! {
        num_blocks: u64 = self.0.num_blocks();
        bytes_per_block: u64 = self.0.bytes_per_block();
        num_regions: usize = self.0.regions().len();
        device: String = self.0.device().to_string();
        pinned: bool = self.0.is_pinned();
        why_pageable: Option<&str> = self.0.why_pageable();
        pages: Option<&'static str> = self.0.pages().map(kvpool_transfer::PageKind::name);
        packed: bool = self.0.is_packed();
        handle: i64 = self.0.handle();
        closed: bool = self.0.is_closed();
    }

    #[getter]
    fn regions(&self) -> Vec<(u64, u64, u64)> {
        self.0.regions().iter().map(|region| (region.base, region.stride, region.nbytes)).collect()
    }

    fn close(&self) {
        self.0.close();
    }

    fn read_block<'py>(&self, py: Python<'py>, block: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        let block = block_id(block)?;
        Ok(PyBytes::new(py, &py.detach(|| self.0.read_block(block)).or_raise(py)?))
    }

    fn write_block(&self, py: Python<'_>, block: &Bound<'_, PyAny>, data: &[u8]) -> PyResult<()> {
        let block = block_id(block)?;
        py.detach(|| self.0.write_block(block, data)).or_raise(py)
    }

    fn __repr__(&self) -> String {
        let store = &self.0;
        format!(
            "BlockStore(device={:?}, num_blocks={}, bytes_per_block={}, num_regions={})",
            store.device().to_string(),
            store.num_blocks(),
            store.bytes_per_block(),
            store.regions().len()
        )
    }
}
