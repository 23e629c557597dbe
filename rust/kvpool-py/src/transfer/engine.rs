//! Bindings of `TransferEngine`, `Transfer`, and copies by handle.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvpool::shorten;
use kvpool_transfer::{
    After, Calibration, Device, EngineConfig, Method, Move, Options, Store, StreamHandle, Transfer,
    TransferEngine, TransferError,
};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::intern;
use pyo3::types::PyTuple;

use super::mapping::Mapping;
use super::store::{PyBlockStore, device};
use super::streams::{Wanted, current_stream, stream};
use crate::convert::{Int, count, shown};
use crate::errors::{OrRaise, ToPyErr, is_ours, raise};
use crate::gather::{extract, gather};
use crate::python::prelude::*;
use crate::tiers::PyTransferPlan;

/// A copy of this number of bytes or more runs without the interpreter, so that other Python threads can run.
const DETACH_BYTES: u64 = 64 << 10;

#[pyclass(frozen, module = "kvpool._core.transfer", name = "Transfer")]
pub(crate) struct PyTransfer(pub(super) Arc<Transfer>);

/// The longest time between two checks for signals while a call waits.
const SLICE: Duration = Duration::from_millis(50);

#[pymethods]
impl PyTransfer {
    getters! {
        id: u64 = self.0.id;
        nbytes: u64 = self.0.nbytes;
        method: &'static str = self.0.method.name();
        seconds: Option<f64> = self.0.seconds();
        error: Option<Py<PyAny>> = self.0.error().map(|error| error.to_py_err(py).into_value(py).into_any());
    }

    fn done(&self) -> bool {
        self.0.is_done()
    }

    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        wait_in_slices(py, timeout, |slice| self.0.wait(Some(slice)))
    }

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

/// Calls `wait` with short timeouts, without the interpreter, and checks for signals in between.
fn wait_in_slices(
    py: Python<'_>,
    timeout: Option<&Bound<'_, PyAny>>,
    wait: impl Fn(Duration) -> Result<(), TransferError> + Sync,
) -> PyResult<()> {
    let limit = timeout.map(duration).transpose()?;
    let start = Instant::now();
    loop {
        let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
        let slice = left.map_or(SLICE, |left| left.min(SLICE));
        match py.detach(|| wait(slice)) {
            Err(TransferError::Timeout { id, .. }) => {
                if let Some(timeout) = limit.filter(|&limit| start.elapsed() >= limit) {
                    return Err(TransferError::Timeout { id, timeout }).or_raise(py);
                }
                crate::python::check_signals(py)?;
            }
            result => return result.or_raise(py),
        }
    }
}

fn duration(seconds: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let refuse = || {
        let message = format!("timeout is {}: seconds, 0 or more, or None", shown(seconds));
        raise(seconds.py(), "InvalidArgumentError", message)
    };
    let number: f64 = crate::argument::take("timeout", seconds).map_err(|error: PyErr| {
        if error.is_instance_of::<PyTypeError>(seconds.py()) { error } else { refuse() }
    })?;
    Duration::try_from_secs_f64(number).map_err(|_| refuse())
}

/// Converts the argument `after`: the work after which a copy begins.
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

#[pyclass(frozen, module = "kvpool._core.transfer", name = "TransferEngine")]
pub(crate) struct PyTransferEngine(Arc<TransferEngine>);

fn method(py: Python<'_>, name: &str) -> PyResult<Method> {
    shorten(name).parse().or_raise(py)
}

#[pymethods]
impl PyTransferEngine {
    #[new]
    #[pyo3(
        signature = (device="cpu", *, threads=None, staging_bytes=Int::from(32 << 20), calibration=None),
        text_signature = "(device='cpu', *, threads=None, staging_bytes=33554432, calibration=None)"
    )]
    fn new(
        py: Python<'_>,
        device: &str,
        threads: Option<Int>,
        staging_bytes: Int,
        calibration: Option<PathBuf>,
    ) -> PyResult<Self> {
        let device = self::device(py, device)?;
        let staging_bytes = count(py, "staging_bytes", staging_bytes)? as u64;
        let mut config = EngineConfig { staging_bytes, ..EngineConfig::default() };
        if let Some(threads) = threads {
            config.threads = count(py, "threads", threads)?;
        }
        let engine = py.detach(|| TransferEngine::new(device, config)).or_raise(py)?;
        if let Some(path) = calibration {
            let Some(card) = engine.card() else {
                let message = "calibration is given for the cpu: it is of links to CUDA devices";
                return Err(raise(py, "InvalidArgumentError", message));
            };
            engine.set_thresholds(Calibration::load(&path, &card).or_raise(py)?.thresholds);
        }
        Ok(Self(engine))
    }

    getters! {
        device: String = self.0.device().to_string();
        in_flight: usize = self.0.num_in_flight();
        closed: bool = self.0.is_closed();
        card: Option<(String, String, i32)> = self.0.card().map(|card| (card.name, card.pci, card.driver));
    }

    #[pyo3(
        signature = (src, dst, mapping, *, after=Wanted::Current, regions=None, method="auto"),
        text_signature = "($self, src, dst, mapping, *, after='current', regions=None, method='auto')"
    )]
    #[expect(clippy::needless_pass_by_value, reason = "arguments are extracted by value")]
    fn submit(
        &self,
        py: Python<'_>,
        src: &PyBlockStore,
        dst: &PyBlockStore,
        mapping: &Bound<'_, PyAny>,
        after: Wanted<'_>,
        regions: Option<&Bound<'_, PyAny>>,
        method: &str,
    ) -> PyResult<PyTransfer> {
        let device = self.0.device();
        let after = self::after(py, &after, device)?;
        let pair = |regions: &Bound<'_, PyAny>| {
            let wrong = |error: PyErr| {
                if is_ours(py, &error) {
                    return error;
                }
                let message = format!("regions is {}: a pair of first and end", shown(regions));
                raise(py, "InvalidArgumentError", message)
            };
            let (first, end): (Int, Int) = regions.extract().map_err(wrong)?;
            Ok::<_, PyErr>((count(py, "regions", first)?, count(py, "regions", end)?))
        };
        let regions = regions.map(pair).transpose()?;
        let options = Options { after, regions, method: self::method(py, method)? };
        let Mapping::Pairs(pairs) = Mapping::of(mapping)? else {
            let message = "a mapping on a device is copied in the order of a stream: use copy";
            return Err(raise(py, "MappingTypeError", message));
        };
        let submit = || self.0.submit(&src.0, &dst.0, pairs.into_iter(), &options);
        Ok(PyTransfer(py.detach(submit).or_raise(py)?))
    }

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

    #[pyo3(
        signature = (plan, stores, *, stream=Wanted::Current, scratch=None),
        text_signature = "($self, plan, stores, *, stream='current', scratch=None)"
    )]
    #[expect(clippy::needless_pass_by_value, reason = "arguments are extracted by value")]
    fn execute(
        &self,
        py: Python<'_>,
        plan: &PyTransferPlan,
        stores: &Bound<'_, PyAny>,
        stream: Wanted<'_>,
        scratch: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<PyTransfer>> {
        let rounds = plan.split(py, scratch)?;
        let place = |place: kvpool::Place| (place.tier, place.block.get());
        let moves = |round: &Vec<kvpool::Transfer>| {
            round.iter().map(|one| Move { src: place(one.src), dst: place(one.dst) }).collect()
        };
        let rounds: Vec<Vec<Move>> = rounds.iter().map(moves).collect();
        let stores = gather("stores", stores, |position, item| {
            Ok(extract::<Bound<'_, PyBlockStore>>("stores", position, &item, "a BlockStore")?.get().0.clone())
        })?;
        let handle = self::stream(py, &stream, self.0.device())?;
        let transfers = py.detach(|| self.0.execute(&rounds, &stores, handle)).or_raise(py)?;
        Ok(transfers.into_iter().map(PyTransfer).collect())
    }

    fn poll(&self, py: Python<'_>) -> PyResult<Vec<PyTransfer>> {
        let ended = py.detach(|| self.0.poll()).or_raise(py)?;
        Ok(ended.into_iter().map(PyTransfer).collect())
    }

    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        wait_in_slices(py, timeout, |slice| self.0.wait_all(Some(slice)))
    }

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
        crate::python::import(py, "json")?.call_method1("loads", (text,))
    }

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

/// Copies blocks in the order of a stream. The mapping is either on the device, or a list of pairs.
fn copy(
    py: Python<'_>,
    engine: &TransferEngine,
    [src, dst]: [&Arc<Store>; 2],
    mapping: Mapping,
    handle: StreamHandle,
    method: Method,
) -> PyResult<()> {
    match mapping {
        Mapping::OnDevice(mapping) => {
            py.detach(|| engine.copy_mapped(src, dst, mapping, handle, method)).or_raise(py)
        }
        Mapping::Pairs(pairs) => {
            // The call may have to wait for the device, or for other work that uses a store.
            let waits = engine.device() != Device::Cpu || src.is_busy() || dst.is_busy();
            let short = !waits && pairs.len() as u64 * src.bytes_per_block() < DETACH_BYTES;
            let run = || engine.copy(src, dst, pairs.into_iter(), handle, method);
            if short { run() } else { py.detach(run) }.or_raise(py)
        }
    }
}

/// Returns the store with a handle. No store has a handle of more than 64 bits.
fn by_handle(handle: &Bound<'_, PyAny>) -> PyResult<Arc<Store>> {
    let py = handle.py();
    match handle.extract() {
        Ok(number) => Store::by_handle(number).or_raise(py),
        Err(error) if error.is_instance_of::<PyOverflowError>(py) => {
            Err(raise(py, "ClosedError", format!("no store has the handle {}", shown(handle))))
        }
        Err(error) => Err(error),
    }
}

#[pyfunction]
#[pyo3(signature = (src, dst, mapping))]
pub(crate) fn copy_by_handle(
    py: Python<'_>,
    src: &Bound<'_, PyAny>,
    dst: &Bound<'_, PyAny>,
    mapping: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let (src, dst) = (by_handle(src)?, by_handle(dst)?);
    let device = if src.device() == Device::Cpu { dst.device() } else { src.device() };
    let engine = TransferEngine::shared(device).or_raise(py)?;
    copy(py, &engine, [&src, &dst], Mapping::of(mapping)?, current_stream(py, device)?, Method::Auto)
}

#[pyfunction]
pub(crate) fn cuda_driver_version(py: Python<'_>) -> PyResult<i32> {
    kvpool_transfer::driver_version().map_err(TransferError::from).or_raise(py)
}
