//! Bindings of `TieredPool`, `Swap` and `TransferPlan`.

use std::sync::Arc;

use kvpool::{
    BlockId, BlockPool, Place, PoolConfig, PoolError, SwapId, TierError, Tiers, Transfer, TransferPlan, runs,
};
use kvpool_observe::{TierWatch, WatchConfig};
use pyo3::exceptions::PyValueError;
use pyo3::types::{PyDict, PyTuple};

use crate::convert::{Int, block, blocks, count, shown};
use crate::enter::{LONG, Locked, enter, enter_measured, enter_sized};
use crate::errors::{OrRaise, raise};
use crate::gather::{extract, gather};
use crate::hashing::named;
use crate::pool::{PyBlockPool, Scrubbers};
use crate::python::prelude::*;
use crate::retention::eviction_named;

/// A block of a tier in Python's form: the numbers of the tier and of the block.
type PlaceTuple = (usize, u32);

type TransferTuple = (PlaceTuple, PlaceTuple);

fn place_tuple(place: Place) -> PlaceTuple {
    (place.tier, place.block.get())
}

fn transfer_tuple(transfer: &Transfer) -> TransferTuple {
    (place_tuple(transfer.src), place_tuple(transfer.dst))
}

fn place(item: &Bound<'_, PyAny>) -> PyResult<Place> {
    let (tier, id): (Int, Bound<'_, PyAny>) = item.extract().map_err(|error: PyErr| {
        let message = format!("{} is no block of a tier: a pair of tier and block", shown(item));
        let py = item.py();
        let value = error.is_instance_of::<PyValueError>(py);
        let class = if value { "InvalidArgumentError" } else { "ArgumentTypeError" };
        raise(py, class, message)
    })?;
    Ok(Place { tier: count(item.py(), "tier", tier)?, block: block(&id)? })
}

pub(crate) fn swap_id(py: Python<'_>, swap: Int) -> PyResult<SwapId> {
    Ok(SwapId::from_number(count(py, "swap", swap)? as u64))
}

/// Makes the pools of the tiers, one per entry in the list of numbers of blocks. All have the settings of
/// `each`.
fn tiers(
    py: Python<'_>,
    num_blocks: &Bound<'_, PyAny>,
    each: &PoolConfig,
    event_capacity: i128,
) -> PyResult<Tiers> {
    let event_capacity = count(py, "event_capacity", event_capacity)?;
    let watch = WatchConfig { event_capacity, ..WatchConfig::default() };
    let configs = gather("num_blocks", num_blocks, |position, item| {
        let blocks: Int = extract("num_blocks", position, &item, "an int")?;
        Ok(PoolConfig { num_blocks: count(py, "num_blocks", blocks)?, ..each.clone() })
    })?;
    py.detach(|| {
        let mut tiers = Tiers::new(configs)?;
        (0..tiers.len()).try_for_each(|tier| tiers.watch_tier(tier, &watch))?;
        Ok::<_, TierError>(tiers)
    })
    .or_raise(py)
}

#[pyclass(frozen, module = "kvpool._core.tiers", name = "TieredPool")]
pub(crate) struct PyTieredPool(Arc<Locked<Tiers>>, Scrubbers);

#[pymethods]
impl PyTieredPool {
    #[new]
    #[pyo3(signature = (
        num_blocks, block_size=16, *, verify="none", duplicates="keep", eviction="lru", event_capacity=0
    ))]
    fn new(
        py: Python<'_>,
        num_blocks: &Bound<'_, PyAny>,
        block_size: i128,
        verify: &str,
        duplicates: &str,
        eviction: &str,
        event_capacity: i128,
    ) -> PyResult<Self> {
        let each = PoolConfig {
            num_blocks: 0,
            block_size: count(py, "block_size", block_size)?,
            verify: named(py, verify)?,
            duplicates: named(py, duplicates)?,
            eviction: eviction_named(py, eviction)?,
            ..PoolConfig::default()
        };
        Ok(Self(Arc::new(Locked::new(tiers(py, num_blocks, &each, event_capacity)?)), Arc::default()))
    }

    #[getter]
    fn pools<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let tiers = enter(py, &self.0, |tiers| tiers.len());
        let pools: Vec<_> =
            (0..tiers).map(|tier| PyBlockPool::new(self.0.clone(), self.1.clone(), tier)).collect();
        PyTuple::new(py, pools)
    }

    #[pyo3(signature = (block_id, *, tier=0, fences=true))]
    fn copy_on_write(
        &self,
        py: Python<'_>,
        block_id: &Bound<'_, PyAny>,
        tier: i128,
        fences: bool,
    ) -> PyResult<u32> {
        let (id, tier) = (block(block_id)?, count(py, "tier", tier)?);
        let copy = |tiers: &mut Tiers| {
            let last = tiers.pool(tier)?.num_blocks() as u32 - 1;
            if id.is_null() {
                return Err(PoolError::NullBlock { operation: "written to" }.into());
            }
            if id.get() > last {
                return Err(PoolError::UnknownBlock { block: id.get().into(), last }.into());
            }
            if fences { tiers.copy_on_write(tier, id) } else { tiers.copy_if_shared(tier, id) }
        };
        Ok(enter(py, &self.0, copy).or_raise(py)?.get())
    }

    fn pending_copies(&self, py: Python<'_>) -> Vec<TransferTuple> {
        enter(py, &self.0, |tiers| tiers.pending_copies().map(|copy| transfer_tuple(&copy)).collect())
    }

    fn take_plan(&self, py: Python<'_>) -> PyResult<PyTransferPlan> {
        Ok(PyTransferPlan(enter_measured(py, &self.0, Tiers::num_planned, Tiers::take_plan).or_raise(py)?))
    }

    #[pyo3(signature = (block_ids, *, src, dst))]
    fn begin_swap(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        src: Int,
        dst: Int,
    ) -> PyResult<PySwap> {
        let (moved, src, dst) = (blocks(block_ids)?, count(py, "src", src)?, count(py, "dst", dst)?);
        let begin = |tiers: &mut Tiers| {
            let id = tiers.begin_swap(&moved, src, dst)?;
            Ok::<_, TierError>((id, tiers.swap_mapping(id)?))
        };
        let (id, mapping) = enter_sized(py, &self.0, moved.len(), begin).or_raise(py)?;
        Ok(PySwap { tiers: self.0.clone(), id, mapping })
    }

    #[pyo3(signature = (block_ids, *, src, dst, reserve=0))]
    fn fit_swap(
        &self,
        py: Python<'_>,
        block_ids: &Bound<'_, PyAny>,
        src: Int,
        dst: Int,
        reserve: i128,
    ) -> PyResult<&'static str> {
        let (moved, src, dst) = (blocks(block_ids)?, count(py, "src", src)?, count(py, "dst", dst)?);
        let reserve = count(py, "reserve", reserve)?;
        let fit = enter_sized(py, &self.0, moved.len(), |tiers| tiers.fit_swap(&moved, src, dst, reserve));
        Ok(fit.or_raise(py)?.name())
    }

    fn check_invariants(&self, py: Python<'_>) -> PyResult<()> {
        enter_sized(py, &self.0, LONG, |tiers| tiers.check_invariants()).or_raise(py)
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        enter(py, &self.0, |tiers| tiers.len())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let usable: Vec<_> = enter(py, &self.0, |tiers| {
            (0..tiers.len()).map(|tier| tiers.pool(tier).map_or(0, BlockPool::num_usable)).collect()
        });
        format!("TieredPool(usable={usable:?})")
    }
}

#[pyclass(frozen, module = "kvpool._core.tiers", name = "Swap")]
pub(crate) struct PySwap {
    tiers: Arc<Locked<Tiers>>,
    id: SwapId,
    mapping: Vec<(BlockId, BlockId, bool)>,
}

#[pymethods]
impl PySwap {
    #[getter]
    fn mapping<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let out = PyDict::new(py);
        self.mapping.iter().try_for_each(|(src, dst, _)| out.set_item(src.get(), dst.get()))?;
        Ok(out)
    }

    #[getter]
    fn copies(&self) -> Vec<(u32, u32)> {
        let copied = self.mapping.iter().filter(|(_, _, copied)| *copied);
        copied.map(|(src, dst, _)| (src.get(), dst.get())).collect()
    }

    fn complete<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let id = self.id;
        enter_sized(py, &self.tiers, self.mapping.len(), |tiers| tiers.complete_swap(id)).or_raise(py)?;
        self.mapping(py)
    }

    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let id = self.id;
        enter_sized(py, &self.tiers, self.mapping.len(), |tiers| tiers.abort_swap(id)).or_raise(py)
    }

    fn __len__(&self) -> usize {
        self.mapping.len()
    }

    fn __repr__(&self) -> String {
        format!("Swap(id={}, blocks={})", self.id.get(), self.mapping.len())
    }
}

#[pyclass(frozen, module = "kvpool._core.tiers", name = "TransferPlan", eq)]
#[derive(PartialEq)]
pub(crate) struct PyTransferPlan(pub(crate) TransferPlan);

crate::argument::held!(PyTransferPlan);

#[pymethods]
impl PyTransferPlan {
    #[new]
    fn new(py: Python<'_>, transfers: &Bound<'_, PyAny>) -> PyResult<Self> {
        let transfers = gather("transfers", transfers, |position, item| {
            let (src, dst): (Bound<'_, PyAny>, Bound<'_, PyAny>) =
                extract("transfers", position, &item, "a pair of source and destination")?;
            Ok(Transfer { src: place(&src)?, dst: place(&dst)? })
        })?;
        Ok(Self(TransferPlan::new(transfers).or_raise(py)?))
    }

    #[getter]
    fn transfers(&self) -> Vec<TransferTuple> {
        self.0.transfers().iter().map(transfer_tuple).collect()
    }

    #[pyo3(signature = (scratch=None))]
    fn rounds(
        &self,
        py: Python<'_>,
        scratch: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Vec<TransferTuple>>> {
        let rounds = self.split(py, scratch)?;
        Ok(rounds.iter().map(|round| round.iter().map(transfer_tuple).collect()).collect())
    }

    #[pyo3(signature = (scratch=None))]
    fn runs(
        &self,
        py: Python<'_>,
        scratch: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Vec<(PlaceTuple, PlaceTuple, usize)>>> {
        let rounds = self.split(py, scratch)?;
        let merged = |round: &Vec<Transfer>| {
            runs(round).iter().map(|run| (place_tuple(run.src), place_tuple(run.dst), run.len)).collect()
        };
        Ok(rounds.iter().map(merged).collect())
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        format!("TransferPlan(transfers={})", self.0.len())
    }
}

impl PyTransferPlan {
    pub(crate) fn split(
        &self,
        py: Python<'_>,
        scratch: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Vec<Transfer>>> {
        let places = |scratch| gather("scratch", scratch, |_, item| place(&item));
        let scratch = scratch.map_or_else(|| Ok(Vec::new()), places)?;
        py.detach(|| self.0.rounds(&scratch)).or_raise(py)
    }
}
