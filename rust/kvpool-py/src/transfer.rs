//! `BlockStore`, `TransferEngine`, `Transfer`, and copies by handle.
//!
//! Tensors are taken as they describe themselves (`data_ptr`, `shape`, `stride`, ...): torch is never imported here. Whoever makes a
//! store keeps the tensors alive in it; resizing a tensor's storage under a store is the one thing that Python code must not do.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvpool_transfer::{
    After, Array, Calibration, Device, EngineConfig, HostOptions, Method, Move, NumaNode, Options, RawPairs,
    Region, Store, StreamHandle, Transfer, TransferEngine, TransferError,
};
use pyo3::buffer::ElementType;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyInt, PyList, PyString, PyTuple};

use crate::convert::{Int, count, items, native, untyped};
use crate::errors::{OrRaise, ToPyErr, raise};
use crate::tiers::PyTransferPlan;

/// Bytes from which on a copy lets other threads run meanwhile.
const DETACH_BYTES: u64 = 64 << 10;

/// Blocks of one tier, wherever they lie.
#[pyclass(frozen, module = "kvpool._core", name = "BlockStore")]
pub(crate) struct PyBlockStore(Arc<Store>);

fn device(py: Python<'_>, name: &str) -> PyResult<Device> {
    name.parse::<Device>().or_raise(py)
}

/// A tensor's description of itself.
fn array(tensor: &Bound<'_, PyAny>) -> PyResult<Array> {
    let py = tensor.py();
    let describe = || {
        Ok(Array {
            address: tensor.call_method0(intern!(py, "data_ptr"))?.extract()?,
            shape: tensor.getattr(intern!(py, "shape"))?.extract()?,
            strides: tensor.call_method0(intern!(py, "stride"))?.extract()?,
            item_bytes: tensor.call_method0(intern!(py, "element_size"))?.extract()?,
        })
    };
    describe().map_err(|_: PyErr| {
        let found = tensor.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        raise(py, "MappingTypeError", format!("a store is made of torch tensors, not of a {found}"))
    })
}

/// The device of a tensor.
fn device_of(tensor: &Bound<'_, PyAny>) -> PyResult<Device> {
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

#[pymethods]
impl PyBlockStore {
    /// A store of tensors, which it keeps alive.
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
        let tensors: Vec<Bound<'_, PyAny>> = tensors.try_iter()?.collect::<PyResult<_>>()?;
        let dims: Vec<i64> = match block_dim {
            None => vec![0; tensors.len()],
            Some(one) if one.is_instance_of::<PyInt>() => vec![one.extract()?; tensors.len()],
            Some(each) => each.extract()?,
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
            let rank = array.shape.len() as i64;
            let dim = if dim < 0 { dim + rank } else { dim };
            let Ok(dim) = usize::try_from(dim) else {
                return refuse(
                    "LayoutError",
                    format!("tensor {index} of {rank} dimensions has none numbered {dim}"),
                );
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

    /// A store of memory by address, for whoever has no tensors.
    #[staticmethod]
    #[pyo3(signature = (regions, num_blocks, *, device="cpu", pinned=false, keep_alive=None))]
    fn from_regions(
        py: Python<'_>,
        regions: Vec<(Int, Int, Int)>,
        num_blocks: Int,
        device: &str,
        pinned: bool,
        keep_alive: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let number = |name, value| count(py, name, value).map(|value| value as u64);
        let region = |(base, stride, nbytes)| {
            let (base, stride) = (number("base", base)?, number("stride", stride)?);
            Ok(Region { base, stride, nbytes: number("nbytes", nbytes)? })
        };
        let regions = regions.into_iter().map(region).collect::<PyResult<_>>()?;
        let (blocks, device) = (number("num_blocks", num_blocks)?, self::device(py, device)?);
        let keep_alive = keep_alive.map(|object| Box::new(object) as Box<_>);
        // SAFETY: whoever names addresses vouches for them: the docstring says so.
        let store = unsafe { Store::new(regions, blocks, device, Vec::new(), pinned, keep_alive) };
        Ok(Self(store.or_raise(py)?))
    }

    /// A pool of host memory for blocks like those of another store, each in one piece.
    #[staticmethod]
    #[pyo3(
        signature = (num_blocks, like, *, pinned=None, numa_node=None, hugepages=false, registration_limit=64 << 30),
        text_signature = "(num_blocks, like, *, pinned='auto', numa_node=None, hugepages=False, registration_limit=68719476736)"
    )]
    fn host(
        py: Python<'_>,
        num_blocks: Int,
        like: &Self,
        pinned: Option<&Bound<'_, PyAny>>,
        numa_node: Option<&Bound<'_, PyAny>>,
        hugepages: bool,
        registration_limit: i128,
    ) -> PyResult<Self> {
        let refuse = |name: &str, value: &Bound<'_, PyAny>, expected: &str| {
            Err(raise(py, "InvalidArgumentError", format!("{name} is {}: {expected}", value.repr()?)))
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

    /// Blocks.
    #[getter]
    fn num_blocks(&self) -> u64 {
        self.0.num_blocks()
    }

    /// Bytes of a block over all regions.
    #[getter]
    fn bytes_per_block(&self) -> u64 {
        self.0.bytes_per_block()
    }

    /// Pieces of a block.
    #[getter]
    fn num_regions(&self) -> usize {
        self.0.regions().len()
    }

    /// Address of block 0, bytes from block to block, and bytes, of each piece of a block.
    #[getter]
    fn regions(&self) -> Vec<(u64, u64, u64)> {
        self.0.regions().iter().map(|region| (region.base, region.stride, region.nbytes)).collect()
    }

    /// Where its memory lives: cpu or cuda:N.
    #[getter]
    fn device(&self) -> String {
        self.0.device().to_string()
    }

    /// Whether its host memory is page-locked.
    #[getter]
    fn pinned(&self) -> bool {
        self.0.is_pinned()
    }

    /// Why a host pool is not page-locked although that was not forbidden, or None.
    #[getter]
    fn why_pageable(&self) -> Option<&str> {
        self.0.why_pageable()
    }

    /// The pages of a host pool: small, transparent or huge; None for memory of others.
    #[getter]
    fn pages(&self) -> Option<&'static str> {
        self.0.pages().map(kvpool_transfer::PageKind::name)
    }

    /// Whether each block is one contiguous piece of memory.
    #[getter]
    fn packed(&self) -> bool {
        self.0.is_packed()
    }

    /// Names the store in calls by handle.
    #[getter]
    fn handle(&self) -> i64 {
        self.0.handle()
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Refuses new work; the memory is given back when the last transfer has ended.
    fn close(&self) {
        self.0.close();
    }

    /// Returns the bytes of a block of a host store, piece by piece.
    fn read_block<'py>(&self, py: Python<'py>, block: i128) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &self.0.read_block(clamp(block)).or_raise(py)?))
    }

    /// Writes the bytes of a block of a host store, piece by piece.
    fn write_block(&self, py: Python<'_>, block: i128, data: &[u8]) -> PyResult<()> {
        self.0.write_block(clamp(block), data).or_raise(py)
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

/// A block id that is out of any range stays so.
fn clamp(block: i128) -> i64 {
    i64::try_from(block).unwrap_or(if block < 0 { i64::MIN } else { i64::MAX })
}

/// A mapping from Python.
enum Mapping {
    Pairs(Vec<(i64, i64)>),
    OnDevice { address: u64, n: u64 },
}

/// torch's int64: known once a tensor was seen.
static INT64: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

impl Mapping {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
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
                return Ok(Self::Pairs(
                    numbers.as_chunks::<2>().0.iter().map(|&[src, dst]| (src, dst)).collect(),
                ));
            }
        }
        let found = object.get_type().name()?;
        if object.is_instance_of::<PyString>() {
            return Err(wrong_type(py, &format!("a {found}")));
        }
        let rows = object.try_iter().map_err(|_| wrong_type(py, &format!("a {found}")))?;
        let pair = |row: PyResult<Bound<'_, PyAny>>| {
            let row = row?;
            let (src, dst): (Bound<'_, PyAny>, Bound<'_, PyAny>) =
                row.extract().map_err(|_| wrong_shape(py, "rows that are no pairs"))?;
            let id = |id: Bound<'_, PyAny>| {
                let name = id.get_type().name()?;
                match id.is_instance_of::<PyInt>() && !id.is_instance_of::<PyBool>() {
                    true => Ok(clamp(id.extract::<i128>().unwrap_or(i128::MAX))),
                    false => Err(wrong_type(py, &format!("of a {name}"))),
                }
            };
            Ok((id(src)?, id(dst)?))
        };
        Ok(Self::Pairs(rows.map(pair).collect::<PyResult<_>>()?))
    }

    fn of_tensor(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = tensor.py();
        let dtype = tensor.getattr(intern!(py, "dtype"))?;
        let int64 =
            INT64.get_or_try_init(py, || Ok::<_, PyErr>(py.import("torch")?.getattr("int64")?.unbind()))?;
        if !dtype.is(int64) {
            return Err(wrong_type(py, &format!("a tensor of {dtype}")));
        }
        let shape = tensor.getattr(intern!(py, "shape"))?;
        let Ok((rows, 2)) = shape.extract::<(usize, usize)>() else {
            return Err(wrong_shape(py, &shape.str()?.to_string()));
        };
        let address: u64 = tensor.call_method0(intern!(py, "data_ptr"))?.extract()?;
        let (row, column): (i64, i64) = tensor.call_method0(intern!(py, "stride"))?.extract()?;
        match device_of(tensor)? {
            Device::Cpu => {
                // SAFETY: these are the elements of a tensor that the caller holds, and no other thread runs Python meanwhile.
                let raw = unsafe { RawPairs::new(address, rows, row, column) };
                Ok(Self::Pairs(raw.iter().collect()))
            }
            Device::Cuda(_) if rows == 0 || (row, column) == (2, 1) => {
                Ok(Self::OnDevice { address, n: rows as u64 })
            }
            Device::Cuda(_) => Err(wrong_shape(py, "strides other than (2, 1): call contiguous() on it")),
        }
    }
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
        "a mapping is a list of pairs of ints, or an int64 array or tensor of shape [n, 2]; this is one {found}"
    );
    raise(py, "MappingTypeError", message)
}

/// torch's current stream on a device, by its handle.
fn current_stream(py: Python<'_>, device: Device) -> PyResult<StreamHandle> {
    let Device::Cuda(ordinal) = device else { return Ok(StreamHandle::from_raw(0)) };
    let raw: u64 = py
        .import(intern!(py, "kvpool.transfer.streams"))?
        .call_method1(intern!(py, "current_stream"), (ordinal,))?
        .extract()?;
    Ok(StreamHandle::from_raw(raw))
}

/// An argument whose default is torch's current stream.
enum Wanted<'py> {
    Current,
    Given(Bound<'py, PyAny>),
}

impl<'py> FromPyObject<'_, 'py> for Wanted<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let current = object.extract::<&str>().is_ok_and(|name| name == "current");
        Ok(if current { Self::Current } else { Self::Given(object.to_owned()) })
    }
}

/// A stream: torch's current one for "current", the legacy default one for None, a handle, or an object that has one.
fn stream(py: Python<'_>, wanted: &Wanted<'_>, device: Device) -> PyResult<StreamHandle> {
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

/// What a copy waits for.
fn after(py: Python<'_>, wanted: &Wanted<'_>, device: Device) -> PyResult<After> {
    if let Wanted::Given(object) = wanted {
        if object.is_none() {
            return Ok(After::Nothing);
        }
        if let Ok(transfer) = object.cast::<PyTransfer>() {
            return Ok(After::Transfer(transfer.get().0.clone()));
        }
        if let Ok(event) = object.getattr(intern!(py, "cuda_event")) {
            return Ok(After::Event(event.extract()?));
        }
    }
    let handle = stream(py, wanted, device)?;
    Ok(if device == Device::Cpu { After::Nothing } else { After::Stream(handle) })
}

/// A copy that was submitted.
#[pyclass(frozen, module = "kvpool._core", name = "Transfer")]
pub(crate) struct PyTransfer(Arc<Transfer>);

/// Longest sleep without a look at signals.
const SLICE: Duration = Duration::from_millis(50);

#[pymethods]
impl PyTransfer {
    /// Its number: an engine's transfers are numbered as they are submitted.
    #[getter]
    fn id(&self) -> u64 {
        self.0.id
    }

    /// Bytes that it copies.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.nbytes
    }

    /// How it copies them.
    #[getter]
    fn method(&self) -> &'static str {
        self.0.method.name()
    }

    /// Seconds that the copy took, or None before its end.
    #[getter]
    fn seconds(&self) -> Option<f64> {
        self.0.seconds()
    }

    /// The exception that it failed with, or None.
    #[getter]
    fn error(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.0.error().map(|error| error.to_py_err(py).into_value(py).into_any())
    }

    /// Says whether it has ended, successfully or not.
    fn done(&self) -> bool {
        self.0.is_done()
    }

    /// Waits until it has ended.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let limit = timeout.map(|seconds| duration(py, seconds)).transpose()?;
        let start = Instant::now();
        loop {
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            let slice = left.map_or(SLICE, |left| left.min(SLICE));
            let result = py.detach(|| self.0.wait(Some(slice)));
            match result {
                Err(TransferError::Timeout { id, .. }) => {
                    if let Some(timeout) = limit.filter(|&limit| start.elapsed() >= limit) {
                        return Err(TransferError::Timeout { id, timeout }).or_raise(py);
                    }
                    py.check_signals()?;
                }
                result => return result.or_raise(py),
            }
        }
    }

    /// Makes a stream wait until it has ended.
    #[pyo3(signature = (stream=Wanted::Current), text_signature = "($self, stream='current')")]
    #[expect(clippy::needless_pass_by_value, reason = "arguments are extracted by value")]
    fn wait_on(&self, py: Python<'_>, stream: Wanted<'_>) -> PyResult<()> {
        let handle = self::stream(py, &stream, self.0.device())?;
        py.detach(|| self.0.wait_on(handle)).or_raise(py)
    }

    fn __repr__(&self) -> String {
        let state = if self.0.is_done() { "ended" } else { "under way" };
        format!(
            "Transfer(id={}, nbytes={}, method={:?}, {state})",
            self.0.id,
            self.0.nbytes,
            self.0.method.name()
        )
    }
}

fn duration(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        raise(py, "InvalidArgumentError", format!("timeout is {seconds}: seconds, 0 or more, or None"))
    })
}

/// Copies blocks between the stores of one device and the host.
#[pyclass(frozen, module = "kvpool._core", name = "TransferEngine")]
pub(crate) struct PyTransferEngine(Arc<TransferEngine>);

fn method(py: Python<'_>, name: &str) -> PyResult<Method> {
    name.parse().or_raise(py)
}

#[pymethods]
impl PyTransferEngine {
    #[new]
    #[pyo3(signature = (device="cpu", *, threads=None, staging_bytes=33_554_432, calibration=None))]
    fn new(
        py: Python<'_>,
        device: &str,
        threads: Option<Int>,
        staging_bytes: i128,
        calibration: Option<PathBuf>,
    ) -> PyResult<Self> {
        let device = self::device(py, device)?;
        let staging_bytes = count(py, "staging_bytes", staging_bytes)? as u64;
        let mut config = EngineConfig { staging_bytes, ..EngineConfig::default() };
        if let Some(threads) = threads {
            config.threads = count(py, "threads", threads)?;
        }
        let engine = py.detach(|| TransferEngine::new(device, config)).or_raise(py)?;
        if let (Some(path), Some(card)) = (calibration, engine.card()) {
            engine.set_thresholds(Calibration::load(&path, &card).or_raise(py)?.thresholds);
        }
        Ok(Self(engine))
    }

    /// The device: cpu or cuda:N.
    #[getter]
    fn device(&self) -> String {
        self.0.device().to_string()
    }

    /// Transfers that have not ended.
    #[getter]
    fn in_flight(&self) -> usize {
        self.0.num_in_flight()
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.0.is_closed()
    }

    /// Name, bus address and driver version of the device, or None for the CPU.
    #[getter]
    fn card(&self) -> Option<(String, String, i32)> {
        self.0.card().map(|card| (card.name, card.pci, card.driver))
    }

    /// Starts a copy and returns at once.
    #[pyo3(
        signature = (src, dst, mapping, *, after=Wanted::Current, regions=None, method="auto"),
        text_signature = "($self, src, dst, mapping, *, after='current', regions=None, method='auto')"
    )]
    #[expect(clippy::too_many_arguments, reason = "keyword arguments")]
    #[expect(clippy::needless_pass_by_value, reason = "arguments are extracted by value")]
    fn submit(
        &self,
        py: Python<'_>,
        src: &PyBlockStore,
        dst: &PyBlockStore,
        mapping: &Bound<'_, PyAny>,
        after: Wanted<'_>,
        regions: Option<(Int, Int)>,
        method: &str,
    ) -> PyResult<PyTransfer> {
        let device = self.0.device();
        let after = self::after(py, &after, device)?;
        let regions = regions
            .map(|(first, end)| Ok::<_, PyErr>((count(py, "regions", first)?, count(py, "regions", end)?)))
            .transpose()?;
        let options = Options { after, regions, method: self::method(py, method)? };
        let Mapping::Pairs(pairs) = Mapping::of(mapping)? else {
            let message = "a mapping on a device is copied in the order of a stream: use copy";
            return Err(raise(py, "MappingTypeError", message));
        };
        let submit = || self.0.submit(&src.0, &dst.0, pairs.into_iter(), &options);
        Ok(PyTransfer(py.detach(submit).or_raise(py)?))
    }

    /// Copies in the order of a stream; done on return if both stores are on the CPU.
    #[pyo3(
        signature = (src, dst, mapping, *, stream=Wanted::Current, method="auto"),
        text_signature = "($self, src, dst, mapping, *, stream='current', method='auto')"
    )]
    #[expect(clippy::needless_pass_by_value, reason = "arguments are extracted by value")]
    fn copy(
        &self,
        py: Python<'_>,
        src: &PyBlockStore,
        dst: &PyBlockStore,
        mapping: &Bound<'_, PyAny>,
        stream: Wanted<'_>,
        method: &str,
    ) -> PyResult<()> {
        let method = self::method(py, method)?;
        let handle = self::stream(py, &stream, self.0.device())?;
        copy(py, &self.0, [&src.0, &dst.0], Mapping::of(mapping)?, handle, method)
    }

    /// Executes a plan: copies within a store in the order of a stream, the others as transfers.
    #[pyo3(
        signature = (plan, stores, *, stream=Wanted::Current, scratch=None),
        text_signature = "($self, plan, stores, *, stream='current', scratch=None)"
    )]
    #[expect(clippy::needless_pass_by_value, reason = "arguments are extracted by value")]
    fn execute(
        &self,
        py: Python<'_>,
        plan: &PyTransferPlan,
        stores: Vec<PyRef<'_, PyBlockStore>>,
        stream: Wanted<'_>,
        scratch: Option<Vec<Bound<'_, PyAny>>>,
    ) -> PyResult<Vec<PyTransfer>> {
        let rounds = plan.split(py, scratch)?;
        let place = |place: kvpool::Place| (place.tier, place.block.get());
        let moves = |round: &Vec<kvpool::Transfer>| {
            round.iter().map(|one| Move { src: place(one.src), dst: place(one.dst) }).collect()
        };
        let rounds: Vec<Vec<Move>> = rounds.iter().map(moves).collect();
        let stores: Vec<_> = stores.iter().map(|store| store.0.clone()).collect();
        let handle = self::stream(py, &stream, self.0.device())?;
        let transfers = py.detach(|| self.0.execute(&rounds, &stores, handle)).or_raise(py)?;
        Ok(transfers.into_iter().map(PyTransfer).collect())
    }

    /// Returns the transfers that ended since the last time, failed ones included.
    fn poll(&self, py: Python<'_>) -> PyResult<Vec<PyTransfer>> {
        let ended = py.detach(|| self.0.poll()).or_raise(py)?;
        Ok(ended.into_iter().map(PyTransfer).collect())
    }

    /// Measures the device, goes by what follows from now on, and returns it as JSON.
    #[pyo3(signature = (save=None))]
    fn calibrate<'py>(&self, py: Python<'py>, save: Option<PathBuf>) -> PyResult<Bound<'py, PyAny>> {
        let measured = py.detach(|| {
            let measured = self.0.calibrate()?;
            if let Some(path) = save {
                measured.save(&path)?;
            }
            Ok::<_, TransferError>(measured)
        });
        let text = serde_json::to_string(&measured.or_raise(py)?);
        let text = text.map_err(|error| raise(py, "KvpoolError", error.to_string()))?;
        py.import("json")?.call_method1("loads", (text,))
    }

    /// Refuses new work, waits for what is under way, and ends the worker thread.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!(
            "TransferEngine(device={:?}, in_flight={})",
            self.0.device().to_string(),
            self.0.num_in_flight()
        )
    }
}

/// A copy in the order of a stream, torch's current one unless another is named.
fn copy(
    py: Python<'_>,
    engine: &TransferEngine,
    [src, dst]: [&Arc<Store>; 2],
    mapping: Mapping,
    handle: StreamHandle,
    method: Method,
) -> PyResult<()> {
    let on_cpu = src.device() == Device::Cpu && dst.device() == Device::Cpu;
    match mapping {
        Mapping::OnDevice { address, n } => {
            if !matches!(method, Method::Auto | Method::Kernel) {
                let reason = "a mapping on a device takes the kernel";
                return Err(TransferError::Method { method, reason }).or_raise(py);
            }
            py.detach(|| engine.copy_mapped(src, dst, address, n, handle)).or_raise(py)
        }
        Mapping::Pairs(pairs) => {
            let short = on_cpu && pairs.len() as u64 * src.bytes_per_block() < DETACH_BYTES;
            let run = || engine.copy(src, dst, pairs.into_iter(), handle, method);
            if short { run() } else { py.detach(run) }.or_raise(py)
        }
    }
}

/// Copies blocks between two stores by handle, in the order of torch's current stream.
#[pyfunction]
#[pyo3(signature = (src, dst, mapping))]
pub(crate) fn copy_by_handle(py: Python<'_>, src: i64, dst: i64, mapping: &Bound<'_, PyAny>) -> PyResult<()> {
    let (src, dst) = (Store::by_handle(src).or_raise(py)?, Store::by_handle(dst).or_raise(py)?);
    let device = if src.device() == Device::Cpu { dst.device() } else { src.device() };
    let engine = TransferEngine::shared(device).or_raise(py)?;
    copy(py, &engine, [&src, &dst], Mapping::of(mapping)?, current_stream(py, device)?, Method::Auto)
}

/// Returns the version of the CUDA driver, 1000 * major + 10 * minor.
#[pyfunction]
pub(crate) fn cuda_driver_version(py: Python<'_>) -> PyResult<i32> {
    kvpool_transfer::driver_version().map_err(TransferError::from).or_raise(py)
}
