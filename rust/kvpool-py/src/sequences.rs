//! `Sequences`: block tables by handle.

use std::sync::Arc;

use kvpool::{
    BlockHasher, HashCursor, PoolConfig, SequenceError, SequenceId, Sequences, SwapId, TableChange,
};
use kvpool_observe::TierWatch;
use pyo3::types::PyDict;

use crate::convert::{IdsOut, Int, count, ids, tokens, until_of};
use crate::enter::{LONG, Locked, enter, enter_measured, enter_sized};
use crate::errors::OrRaise;
use crate::gather::{extract, gather};
use crate::hashing::{self, PyBlockHasher, PyExtraKeys, named};
use crate::python::prelude::*;
use crate::retention::eviction_named;
use crate::stats::{Events, PyPoolStats, events};
use crate::tiers::{PyTransferPlan, tiers};

/// Positions of a block table that changed: index and block.
pub(crate) fn changed(changes: &[TableChange]) -> Vec<(usize, u32)> {
    changes.iter().map(|change| (change.index, change.block.get())).collect()
}

fn handle(py: Python<'_>, handle: Int) -> PyResult<SequenceId> {
    Ok(SequenceId::from_bits(count(py, "sequence", handle)? as u64))
}

/// The handles of a group.
fn handles(sequences: &Bound<'_, PyAny>) -> PyResult<Vec<SequenceId>> {
    gather("sequences", sequences, |position, item| {
        handle(item.py(), extract("sequences", position, &item, "a handle, an int")?)
    })
}

pub(crate) fn swap_id(py: Python<'_>, swap: Int) -> PyResult<SwapId> {
    Ok(SwapId::from_number(count(py, "swap", swap)? as u64))
}

#[doc = doc!("Sequences")]
#[pyclass(frozen, module = "kvpool._core.sequences", name = "Sequences")]
pub(crate) struct PySequences {
    inner: Locked<Sequences>,
    hasher: Arc<BlockHasher>,
}

impl PySequences {
    fn run<R: Send>(
        &self,
        py: Python<'_>,
        size: usize,
        call: impl FnOnce(&mut Sequences) -> Result<R, SequenceError> + Send,
    ) -> PyResult<R> {
        enter_sized(py, &self.inner, size, call).or_raise(py)
    }

    /// Runs an operation on one sequence, which is long if the sequence is.
    fn run_on<R: Send>(
        &self,
        py: Python<'_>,
        id: SequenceId,
        call: impl FnOnce(&mut Sequences) -> Result<R, SequenceError> + Send,
    ) -> PyResult<R> {
        let blocks = |sequences: &Sequences| sequences.info(id).map_or(0, |info| info.blocks);
        enter_measured(py, &self.inner, blocks, call).or_raise(py)
    }

    fn prompt(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
    ) -> PyResult<HashCursor> {
        hashing::prompt(py, &self.hasher, prompt, extra, || {
            Ok(enter(py, &self.inner, |sequences| sequences.epoch()))
        })
    }
}

#[pymethods]
impl PySequences {
    #[new]
    #[pyo3(signature = (num_blocks, hasher, *, duplicates="keep", eviction="lru", event_capacity=0))]
    fn new(
        py: Python<'_>,
        num_blocks: &Bound<'_, PyAny>,
        hasher: &Bound<'_, PyBlockHasher>,
        duplicates: &str,
        eviction: &str,
        event_capacity: i128,
    ) -> PyResult<Self> {
        let hasher = hasher.get().0.clone();
        let each = PoolConfig {
            num_blocks: 0,
            block_size: hasher.block_size(),
            verify: hasher.verify(),
            duplicates: named(py, duplicates)?,
            eviction: eviction_named(py, eviction)?,
            ..PoolConfig::default()
        };
        let tiers = tiers(py, num_blocks, &each, event_capacity)?;
        let inner = Locked::new(Sequences::new(tiers, hasher.clone()).or_raise(py)?);
        Ok(Self { inner, hasher })
    }

    #[doc = doc!("Sequences.admit")]
    #[pyo3(signature = (prompt, extra=None, *, tier=0))]
    fn admit(
        &self,
        py: Python<'_>,
        prompt: &Bound<'_, PyAny>,
        extra: Option<&Bound<'_, PyExtraKeys>>,
        tier: i128,
    ) -> PyResult<u64> {
        let (cursor, tier) = (self.prompt(py, prompt, extra)?, count(py, "tier", tier)?);
        let blocks = cursor.num_tokens() / self.hasher.block_size();
        Ok(self.run(py, blocks, |sequences| sequences.admit(cursor, tier))?.to_bits())
    }

    #[doc = doc!("Sequences.fit")]
    #[pyo3(signature = (num_tokens, *, tier=0, reserve=0))]
    fn fit(&self, py: Python<'_>, num_tokens: Int, tier: i128, reserve: i128) -> PyResult<&'static str> {
        let (tokens, tier) = (count(py, "num_tokens", num_tokens)?, count(py, "tier", tier)?);
        let reserve = count(py, "reserve", reserve)?;
        Ok(self.run(py, 0, |sequences| sequences.fit(tokens, tier, reserve))?.name())
    }

    #[doc = doc!("Sequences.append")]
    #[pyo3(signature = (sequence, token_ids, *, lookahead=0))]
    fn append(
        &self,
        py: Python<'_>,
        sequence: Int,
        token_ids: &Bound<'_, PyAny>,
        lookahead: i128,
    ) -> PyResult<Vec<(usize, u32)>> {
        let (id, tokens) = (handle(py, sequence)?, tokens(token_ids)?);
        let lookahead = count(py, "lookahead", lookahead)?;
        let size = tokens.len().saturating_add(lookahead / self.hasher.block_size());
        Ok(changed(&self.run(py, size, |sequences| sequences.append(id, &tokens, lookahead))?))
    }

    #[doc = doc!("Sequences.commit")]
    #[pyo3(signature = (sequence, computed_tokens, *, dedupe=false))]
    fn commit(
        &self,
        py: Python<'_>,
        sequence: Int,
        computed_tokens: Int,
        dedupe: bool,
    ) -> PyResult<Vec<(usize, u32)>> {
        let (id, computed) = (handle(py, sequence)?, count(py, "computed_tokens", computed_tokens)?);
        let commit = |sequences: &mut Sequences| match dedupe {
            true => sequences.commit_deduped(id, computed),
            false => sequences.commit(id, computed).map(|()| Vec::new()),
        };
        Ok(changed(&self.run_on(py, id, commit)?))
    }

    #[doc = doc!("Sequences.truncate")]
    fn truncate(&self, py: Python<'_>, sequence: Int, num_tokens: Int) -> PyResult<()> {
        let (id, kept) = (handle(py, sequence)?, count(py, "num_tokens", num_tokens)?);
        self.run_on(py, id, |sequences| sequences.truncate(id, kept))
    }

    #[doc = doc!("Sequences.trim_window")]
    fn trim_window(&self, py: Python<'_>, sequence: Int, window: Int) -> PyResult<usize> {
        let (id, window) = (handle(py, sequence)?, count(py, "window", window)?);
        self.run_on(py, id, |sequences| sequences.trim_window(id, window))
    }

    #[doc = doc!("Sequences.fork")]
    fn fork(&self, py: Python<'_>, sequence: Int) -> PyResult<u64> {
        let id = handle(py, sequence)?;
        Ok(self.run_on(py, id, |sequences| sequences.fork(id))?.to_bits())
    }

    #[doc = doc!("Sequences.free")]
    #[pyo3(signature = (sequence, *, after_step=None))]
    fn free(&self, py: Python<'_>, sequence: Int, after_step: Option<Int>) -> PyResult<()> {
        let (id, after) = (handle(py, sequence)?, until_of(py, after_step, None)?);
        self.run_on(py, id, |sequences| sequences.free(id, after))
    }

    #[doc = doc!("Sequences.block_ids")]
    #[pyo3(signature = (sequence, *, out=None))]
    fn block_ids<'py>(
        &self,
        py: Python<'py>,
        sequence: Int,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let id = handle(py, sequence)?;
        let table = self.run_on(py, id, |sequences| sequences.block_table(id).map(<[_]>::to_vec))?;
        match out {
            None => Ok(ids(&table).into_pyobject(py)?.into_any()),
            Some(out) => Ok(IdsOut::of(out, table.len())?.write(&table)?.into_pyobject(py)?.into_any()),
        }
    }

    #[doc = doc!("Sequences.info")]
    fn info<'py>(&self, py: Python<'py>, sequence: Int) -> PyResult<Bound<'py, PyDict>> {
        let id = handle(py, sequence)?;
        let info = self.run(py, 0, |sequences| sequences.info(id))?;
        let out = PyDict::new(py);
        out.set_item("tokens", info.tokens)?;
        out.set_item("computed_tokens", info.computed_tokens)?;
        out.set_item("blocks", info.blocks)?;
        out.set_item("registered_blocks", info.registered_blocks)?;
        out.set_item("trimmed_blocks", info.trimmed_blocks)?;
        out.set_item("tier", info.tier)?;
        out.set_item("swap", info.swap.map(SwapId::get))?;
        Ok(out)
    }

    #[doc = doc!("Sequences.take_plan")]
    fn take_plan(&self, py: Python<'_>) -> PyResult<PyTransferPlan> {
        let planned = |sequences: &Sequences| sequences.tiers().num_planned();
        let taken = enter_measured(py, &self.inner, planned, Sequences::take_plan);
        Ok(PyTransferPlan(taken.or_raise(py)?))
    }

    #[doc = doc!("Sequences.begin_swap")]
    fn begin_swap(&self, py: Python<'_>, sequences: &Bound<'_, PyAny>, to: Int) -> PyResult<u64> {
        let group = handles(sequences)?;
        let to = count(py, "to", to)?;
        Ok(self.run(py, LONG, |sequences| sequences.begin_swap(&group, to))?.get())
    }

    #[doc = doc!("Sequences.fit_swap")]
    #[pyo3(signature = (sequences, to, *, reserve=0))]
    fn fit_swap(
        &self,
        py: Python<'_>,
        sequences: &Bound<'_, PyAny>,
        to: Int,
        reserve: i128,
    ) -> PyResult<&'static str> {
        let group = handles(sequences)?;
        let (to, reserve) = (count(py, "to", to)?, count(py, "reserve", reserve)?);
        Ok(self.run(py, LONG, |sequences| sequences.fit_swap(&group, to, reserve))?.name())
    }

    #[doc = doc!("Sequences.complete_swap")]
    fn complete_swap<'py>(&self, py: Python<'py>, swap: Int) -> PyResult<Bound<'py, PyDict>> {
        let id = swap_id(py, swap)?;
        let pairs = self.run(py, LONG, |sequences| sequences.complete_swap(id))?;
        let out = PyDict::new(py);
        pairs.iter().try_for_each(|(src, dst)| out.set_item(src.get(), dst.get()))?;
        Ok(out)
    }

    #[doc = doc!("Sequences.abort_swap")]
    fn abort_swap(&self, py: Python<'_>, swap: Int) -> PyResult<()> {
        let id = swap_id(py, swap)?;
        self.run(py, LONG, |sequences| sequences.abort_swap(id))
    }

    #[doc = doc!("Sequences.complete_step")]
    fn complete_step(&self, py: Python<'_>, step: Int) -> PyResult<usize> {
        let step = count(py, "step", step)? as u64;
        self.run(py, LONG, |sequences| sequences.complete_step(step))
    }

    #[doc = doc!("Sequences.bump_epoch")]
    fn bump_epoch(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, LONG, Sequences::bump_epoch)
    }

    #[doc = doc!("Sequences.reset")]
    fn reset(&self, py: Python<'_>) -> PyResult<usize> {
        self.run(py, LONG, Sequences::reset)
    }

    #[doc = doc!("Sequences.stats")]
    #[pyo3(signature = (*, tier=0))]
    fn stats(&self, py: Python<'_>, tier: i128) -> PyResult<PyPoolStats> {
        let tier = count(py, "tier", tier)?;
        let stats = |sequences: &mut Sequences| Ok::<_, SequenceError>(sequences.tiers().pool(tier)?.stats());
        Ok(enter(py, &self.inner, stats).or_raise(py)?.into())
    }

    #[doc = doc!("Sequences.take_events")]
    #[pyo3(signature = (*, tier=0))]
    fn take_events<'py>(&self, py: Python<'py>, tier: i128) -> PyResult<Events<'py>> {
        let tier = count(py, "tier", tier)?;
        let batch = enter(py, &self.inner, |sequences| sequences.take_events(tier)).or_raise(py)?;
        events(py, &batch)
    }

    #[doc = doc!("Sequences.check_invariants")]
    fn check_invariants(&self, py: Python<'_>) -> PyResult<()> {
        enter_sized(py, &self.inner, LONG, |sequences| sequences.check_invariants()).or_raise(py)
    }

    fn __contains__(&self, py: Python<'_>, sequence: Int) -> PyResult<bool> {
        let id = handle(py, sequence)?;
        Ok(enter(py, &self.inner, |sequences| sequences.info(id).is_ok()))
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        enter(py, &self.inner, |sequences| sequences.len())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        format!("Sequences(len={})", self.__len__(py))
    }
}
