//! The calls that make `PrefixStore.save` one call from Python: find the blocks of a request that are to be
//! offered to a store, and offer them.

use std::sync::{Mutex, PoisonError};

use kvpool::{BlockHash, BlockId, HashAlgorithm, RequestState};
use kvpool_store::{
    JobId, ObjectKey, OfferedBlocks, Presence, Put, Store, StoreError, TokenRange, UnofferedBlock,
};
use pyo3::types::{PyBytes, PyList};

use super::{PyArena, PyStore, same_length};
use crate::errors::{OrRaise, raise};
use crate::gather::{extract, gather};
use crate::hashing::PyHashCursor;
use crate::manager::PyCacheManager;
use crate::python::prelude::*;
use crate::request::request_ref;

/// The smallest limit of remembered blocks. For a large pool, the limit is twice its number of blocks.
const REMEMBERED: usize = 1 << 16;

/// The number of blocks that are remembered for a manager.
fn most(num_blocks: usize) -> usize {
    REMEMBERED.max(num_blocks.saturating_mul(2))
}

/// The number of offered blocks, the job that writes them, and their slots.
type Saved = (usize, Option<u64>, Vec<u32>);

/// The state of a request, as far as `save` needs it.
enum Found {
    /// The blocks to be offered, with their ids on the device.
    Blocks { blocks: Vec<(UnofferedBlock, BlockId)>, algorithm: HashAlgorithm, block_size: usize },
    /// The request holds no blocks.
    Idle(RequestState),
    /// The manager is in another epoch than the store.
    Stale(u64),
}

/// Blocks that are marked as offered. When this is dropped, they count as lost, so that a later call
/// offers them again.
struct Unsaved<'a> {
    offered: &'a Mutex<OfferedBlocks>,
    names: Vec<BlockHash>,
}

impl Drop for Unsaved<'_> {
    fn drop(&mut self) {
        let mut offered = self.offered.lock().unwrap_or_else(PoisonError::into_inner);
        self.names.iter().for_each(|name| offered.lose(name));
    }
}

fn digests<'py>(
    py: Python<'py>,
    algorithm: HashAlgorithm,
    names: impl ExactSizeIterator<Item = BlockHash>,
) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, names.map(|name| PyBytes::new(py, name.digest(algorithm))))
}

/// Marks the computed blocks of a request as offered, and returns those that were not.
fn find(
    py: Python<'_>,
    manager: &PyCacheManager,
    request_id: &Bound<'_, PyAny>,
    epoch: u64,
    offered: &Mutex<OfferedBlocks>,
) -> PyResult<Found> {
    let id = request_ref(request_id)?;
    manager.run_on(py, id, |manager| {
        let pool = manager.pool();
        if pool.epoch() != epoch {
            return Ok(Found::Stale(pool.epoch()));
        }
        let info = manager.request(id)?;
        if info.state != RequestState::Running {
            return Ok(Found::Idle(info.state));
        }
        let (cursor, table) = (manager.cursor(id)?, manager.group_table(id, 0)?);
        let of_these_weights = cursor.epoch() == epoch;
        let (algorithm, block_size) = (cursor.chain().algorithm(), pool.block_size());
        let blocks = if of_these_weights { info.computed_tokens / block_size } else { 0 };
        let most = most(pool.num_blocks());
        let mut offered = offered.lock().unwrap_or_else(PoisonError::into_inner);
        let unoffered = offered.offer(cursor, blocks, most).into_iter();
        let blocks = unoffered.map(|block| (block, table[block.position])).collect();
        Ok(Found::Blocks { blocks, algorithm, block_size })
    })
}

#[pyfunction]
pub(crate) fn offer_blocks(
    py: Python<'_>,
    store: &Bound<'_, PyStore>,
    manager: &Bound<'_, PyCacheManager>,
    request_id: &Bound<'_, PyAny>,
    epoch: u64,
    block_bytes: u32,
    write: bool,
    choose: &Bound<'_, PyAny>,
) -> PyResult<Saved> {
    let (store, manager) = (store.get(), manager.get());
    let offered = store.call(py, |store, _| store.offered())?;
    let (blocks, algorithm, block_size) = match find(py, manager, request_id, epoch, &offered)? {
        Found::Blocks { blocks, algorithm, block_size } => (blocks, algorithm, block_size),
        Found::Idle(state) => {
            let (id, state) = (request_id.repr()?, state.name());
            let message = format!("request {id} is {state}: only running ones are saved");
            return Err(raise(py, "RequestStateError", message));
        }
        Found::Stale(found) => {
            // Blocks that are stored now have KV of the new weights, but a process with the earlier
            // weights could find them.
            let message =
                format!("the manager is in epoch {found}, the store in {epoch}: call renew, not bump_epoch");
            return Err(raise(py, "StaleEpochError", message));
        }
    };
    if blocks.is_empty() {
        return Ok((0, None, Vec::new()));
    }
    let names: Vec<_> = blocks.iter().map(|(block, _)| block.name).collect();
    let key = |&hash: &BlockHash| ObjectKey { hash, group: 0 };
    let mut unsaved = Unsaved { offered: &offered, names: names.clone() };
    let lacking = |store: &mut Store, now| -> Vec<bool> {
        let presence = names.iter().map(|name| store.contains(&key(name), now));
        presence.map(|presence| matches!(presence, Presence::Absent | Presence::Unknown)).collect()
    };
    let lacking = store.call(py, lacking)?;

    let positions: Vec<_> = blocks.iter().map(|(block, _)| block.position).collect();
    let ids: Vec<_> = blocks.iter().map(|(_, id)| id.get()).collect();
    let digests = digests(py, algorithm, names.iter().copied())?;
    let slots = choose.call1((positions, digests, ids, lacking.clone()))?;
    let slots: Vec<Option<u32>> =
        gather("slots", &slots, |position, item| extract("slots", position, &item, "an int or None"))?;
    same_length(py, "slots", slots.len(), blocks.len())?;

    let mut objects = Vec::new();
    let mut left_out = Vec::new();
    for (((block, _), slot), _) in blocks.iter().zip(slots).zip(lacking).filter(|&(_, lacking)| lacking) {
        let Some(slot) = slot else {
            left_out.push(block.name);
            continue;
        };
        let tokens = TokenRange { first: (block.position * block_size) as u64, count: block_size as u32 };
        objects.push(Put { key: key(&block.name), tokens, len: block_bytes, slot, admit: None });
    }
    let put = write && !objects.is_empty();
    let job = put.then(|| store.call(py, |store, now| store.put(&objects, now))?.or_raise(py)).transpose()?;
    unsaved.names = left_out;
    Ok((objects.len(), job.map(JobId::get), objects.iter().map(|object| object.slot).collect()))
}

#[pyfunction]
pub(crate) fn block_names<'py>(
    py: Python<'py>,
    store: &Bound<'py, PyStore>,
    cursor: &Bound<'py, PyHashCursor>,
    num_blocks: usize,
) -> PyResult<Bound<'py, PyList>> {
    let cursor = cursor.get().snapshot(py);
    let offered = store.get().call(py, |store, _| store.offered())?;
    let names = || {
        let mut offered = offered.lock().unwrap_or_else(PoisonError::into_inner);
        offered.names(&cursor, most(num_blocks))
    };
    digests(py, cursor.chain().algorithm(), py.detach(names).into_iter())
}

#[pyfunction]
pub(crate) fn busy_slots(
    py: Python<'_>,
    arena: &Bound<'_, PyArena>,
    slots: &Bound<'_, PyAny>,
) -> PyResult<Vec<u32>> {
    let arena = &arena.get().0;
    let mut slots: Vec<u32> =
        gather("slots", slots, |position, item| extract("slots", position, &item, "an int"))?;
    let mut unknown = Ok(());
    slots.retain(|&slot| match arena.write(slot) {
        Ok(_) => false,
        Err(StoreError::SlotBusy { .. }) => true,
        Err(error) => {
            unknown = Err(error);
            false
        }
    });
    unknown.or_raise(py)?;
    Ok(slots)
}
