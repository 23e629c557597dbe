//! The parts of the pool as separate classes: `FreeBlockList`, `BlockAllocator`, `PrefixIndex`, `LruEvictor`.

use kvpool::{
    BlockAllocator, BlockId, Candidate, Evictor, FreeBlockList, Inserted, LruEvictor, PoolError, PrefixIndex,
};

use crate::convert::{Int, block, blocks, count, ids};
use crate::enter::{Locked, enter};
use crate::errors::{OrRaise, raise};
use crate::gather::{extract, gather};
use crate::hashing::{ChainArg, named};
use crate::python::prelude::*;

/// Locks a part, and runs an operation on it. Raises an error of the operation as a Python exception.
macro_rules! on {
    ($py:expr, $part:expr, $call:expr) => {
        enter($py, &$part.0, $call).or_raise($py)
    };
}

#[pyclass(frozen, module = "kvpool._core.parts", name = "FreeBlockList")]
pub(crate) struct PyFreeBlockList(Locked<FreeBlockList>);

#[pymethods]
impl PyFreeBlockList {
    #[new]
    fn new(py: Python<'_>, num_blocks: Int) -> PyResult<Self> {
        let list = FreeBlockList::new(count(py, "num_blocks", num_blocks)?).or_raise(py)?;
        Ok(Self(Locked::new(list)))
    }

    fn pop_front_n(&self, py: Python<'_>, n: Int) -> PyResult<Vec<u32>> {
        let n = count(py, "n", n)?;
        Ok(ids(&on!(py, self, |list| list.pop_front_n(n))?))
    }

    fn push_front(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<()> {
        let id = block(block_id)?;
        on!(py, self, |list| list.push_front(id))
    }

    fn push_back(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<()> {
        let id = block(block_id)?;
        on!(py, self, |list| list.push_back(id))
    }

    fn push_front_n(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let run = blocks(block_ids)?;
        on!(py, self, |list| list.push_front_n(&run))
    }

    fn remove(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<()> {
        let id = block(block_id)?;
        on!(py, self, |list| list.remove(id))
    }

    fn order(&self, py: Python<'_>) -> Vec<u32> {
        enter(py, &self.0, |list| list.iter().map(BlockId::get).collect())
    }

    fn check_invariants(&self, py: Python<'_>) -> PyResult<()> {
        on!(py, self, |list| list.check_invariants())
    }

    fn __contains__(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<bool> {
        let id = block(block_id)?;
        Ok(enter(py, &self.0, |list| list.contains(id)))
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        enter(py, &self.0, |list| list.len())
    }
}

#[pyclass(frozen, module = "kvpool._core.parts", name = "BlockAllocator")]
pub(crate) struct PyBlockAllocator(Locked<BlockAllocator>);

#[pymethods]
impl PyBlockAllocator {
    #[new]
    fn new(py: Python<'_>, num_blocks: Int) -> PyResult<Self> {
        let allocator = BlockAllocator::new(count(py, "num_blocks", num_blocks)?).or_raise(py)?;
        Ok(Self(Locked::new(allocator)))
    }

    getters! {
        num_blocks: usize = enter(py, &self.0, |allocator| allocator.num_blocks());
        num_free: usize = enter(py, &self.0, |allocator| allocator.num_free());
        num_held: usize = enter(py, &self.0, |allocator| allocator.num_held());
    }

    fn allocate(&self, py: Python<'_>, n: Int) -> PyResult<Vec<u32>> {
        let n = count(py, "n", n)?;
        Ok(ids(&on!(py, self, |allocator| allocator.allocate(n))?))
    }

    fn acquire(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let held = blocks(block_ids)?;
        on!(py, self, |allocator| allocator.acquire(&held))
    }

    fn release(&self, py: Python<'_>, block_ids: &Bound<'_, PyAny>) -> PyResult<()> {
        let held = blocks(block_ids)?;
        on!(py, self, |allocator| allocator.release(&held))
    }

    fn ref_count(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<u32> {
        let id = block(block_id)?;
        let (count, last) =
            enter(py, &self.0, |allocator| (allocator.ref_count(id), allocator.num_blocks() - 1));
        count.ok_or_else(|| unknown_block(py, id, last))
    }

    fn free_order(&self, py: Python<'_>) -> Vec<u32> {
        enter(py, &self.0, |allocator| allocator.free_order().map(BlockId::get).collect())
    }

    fn check_invariants(&self, py: Python<'_>) -> PyResult<()> {
        on!(py, self, |allocator| allocator.check_invariants())
    }
}

pub(crate) fn unknown_block(py: Python<'_>, block: BlockId, last: usize) -> PyErr {
    use crate::errors::ToPyErr;
    PoolError::UnknownBlock { block: block.get().into(), last: last as u32 }.to_py_err(py)
}

#[pyclass(frozen, module = "kvpool._core.parts", name = "PrefixIndex")]
pub(crate) struct PyPrefixIndex(Locked<PrefixIndex>);

#[pymethods]
impl PyPrefixIndex {
    #[new]
    #[pyo3(signature = (num_blocks, block_size=16, *, verify="none"))]
    fn new(py: Python<'_>, num_blocks: Int, block_size: i128, verify: &str) -> PyResult<Self> {
        let (num_blocks, block_size) =
            (count(py, "num_blocks", num_blocks)?, count(py, "block_size", block_size)?);
        let index = PrefixIndex::new(num_blocks, block_size, named(py, verify)?).or_raise(py)?;
        Ok(Self(Locked::new(index)))
    }

    fn insert(
        &self,
        py: Python<'_>,
        block_id: &Bound<'_, PyAny>,
        chain: ChainArg<'_>,
        position: Int,
    ) -> PyResult<bool> {
        let (id, position) = (block(block_id)?, count(py, "position", position)?);
        let inserted = on!(py, self, |index| chain.with(|chain| index.insert(id, chain, position)))?;
        Ok(inserted == Inserted::Registered)
    }

    fn mark_computed(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<()> {
        let id = block(block_id)?;
        on!(py, self, |index| index.mark_computed(id))
    }

    fn find(&self, py: Python<'_>, chain: ChainArg<'_>, position: Int) -> PyResult<Option<u32>> {
        let position = count(py, "position", position)?;
        let found = on!(py, self, |index| chain
            .with(|chain| { index.check_chain(chain).map(|()| index.find(chain, position)) }))?;
        Ok(found.map(BlockId::get))
    }

    fn remove(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<bool> {
        let id = block(block_id)?;
        Ok(enter(py, &self.0, |index| index.remove(id)))
    }

    fn clear(&self, py: Python<'_>) {
        enter(py, &self.0, PrefixIndex::clear);
    }

    fn copies(&self, py: Python<'_>, chain: ChainArg<'_>, position: Int) -> PyResult<Vec<u32>> {
        let position = count(py, "position", position)?;
        let Some(hash) = chain.with(|chain| chain.hashes().get(position).copied()) else {
            return Ok(Vec::new());
        };
        Ok(ids(&enter(py, &self.0, |index| index.copies(&hash))))
    }

    getters! {
        num_registered: usize = enter(py, &self.0, |index| index.num_registered());
        num_hashes: usize = enter(py, &self.0, |index| index.num_hashes());
    }

    fn check_invariants(&self, py: Python<'_>) -> PyResult<()> {
        on!(py, self, |index| index.check_invariants())
    }

    fn __contains__(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<bool> {
        let id = block(block_id)?;
        Ok(enter(py, &self.0, |index| index.contains(id)))
    }
}

#[pyclass(frozen, module = "kvpool._core.parts", name = "LruEvictor")]
pub(crate) struct PyLruEvictor(Locked<LruEvictor>, usize);

#[pymethods]
impl PyLruEvictor {
    #[new]
    fn new(py: Python<'_>, num_blocks: Int) -> PyResult<Self> {
        let num_blocks = count(py, "num_blocks", num_blocks)?;
        // The list accepts any number, but the limits of the pool also apply to its parts.
        if !(2..=kvpool::MAX_BLOCKS).contains(&num_blocks) {
            let message = format!("num_blocks is {num_blocks}: must be from 2 to {}", kvpool::MAX_BLOCKS);
            return Err(raise(py, "InvalidArgumentError", message));
        }
        Ok(Self(Locked::new(LruEvictor::new(num_blocks).or_raise(py)?), num_blocks))
    }

    fn insert(&self, py: Python<'_>, candidates: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut staged = gather("candidates", candidates, |position, item| {
            let (id, depth): (Bound<'_, PyAny>, Int) =
                extract("candidates", position, &item, "a pair of block id and depth")?;
            let (block, depth) = (block(&id)?, count(py, "depth", depth)?);
            if block.is_null() || block.index() >= self.1 {
                return Err(unknown_block(py, block, self.1 - 1));
            }
            let depth = u32::try_from(depth).unwrap_or(u32::MAX);
            Ok(Candidate { block, depth })
        })?;
        enter(py, &self.0, |evictor| evictor.insert(&mut staged));
        Ok(())
    }

    fn remove(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<bool> {
        let id = block(block_id)?;
        Ok(enter(py, &self.0, |evictor| evictor.remove(id)))
    }

    fn evict(&self, py: Python<'_>) -> Option<u32> {
        enter(py, &self.0, LruEvictor::evict).map(BlockId::get)
    }

    fn order(&self, py: Python<'_>) -> Vec<u32> {
        ids(&enter(py, &self.0, |evictor| evictor.order()))
    }

    fn check_invariants(&self, py: Python<'_>) -> PyResult<()> {
        on!(py, self, |evictor| evictor.check_invariants())
    }

    fn __contains__(&self, py: Python<'_>, block_id: &Bound<'_, PyAny>) -> PyResult<bool> {
        let id = block(block_id)?;
        Ok(enter(py, &self.0, |evictor| evictor.contains(id)))
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        enter(py, &self.0, |evictor| evictor.len())
    }
}
