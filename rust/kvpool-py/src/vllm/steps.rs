//! The calls of [`PyVllmGroups`] that run a step of a request or admit a request.

use kvpool_journal::VllmCalls;
use kvpool_vllm::{Call, Change, Move, Room, Step};
use pyo3::intern;
use pyo3::types::{PyBytes, PyList, PyTuple};

use super::block::own_ids;
use super::group::{Cacheable, Group};
use super::groups::{PyVllmGroups, attr, num_tokens};
use crate::errors::OrRaise;
use crate::python::prelude::*;

impl PyVllmGroups {
    /// Allocates the blocks of a running request for a step, and caches its full blocks. If vLLM's managers
    /// have to do the step, changes nothing and returns `None`.
    pub(super) fn continue_request<'py>(
        &self,
        request: &Bound<'py, PyAny>,
        call: &Call,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = request.py();
        let id = request.getattr(intern!(py, "request_id"))?;
        let computed = attr(request, intern!(py, "num_computed_tokens"))?;
        if self.is_plain && self.stays_inside(&id, &call.step(computed, 0, usize::MAX, self.max_model_len))? {
            return self.without_blocks(request, call).map(Some);
        }
        let in_flight = attr(request, intern!(py, "num_in_flight_tokens"))?;
        let step = call.step(computed, in_flight, num_tokens(request)?, self.max_model_len);
        let prompt = self.prompt(request)?;
        let mut rows: Vec<(Change, Cacheable<'_>)> = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            match group.step(&self.shared, &id, &prompt, &step)? {
                Some(row) => rows.push(row),
                None => return Ok(None),
            }
        }
        if rows.iter().all(|(change, row)| change.is_empty() && !row.caching.asks()) {
            return self.without_blocks(request, call).map(Some);
        }
        // Blocks that no later token reads are freed first, even if the new blocks do not fit.
        for (group, (change, row)) in self.groups.iter().zip(&rows) {
            self.free_positions(&row.table, &change.dead)?;
            if let (Some(states), Some(retired)) = (&group.of.states, change.retired) {
                states.retired.bind(py).set_item(&id, retired)?;
            }
            self.free_positions(&row.table, change.before.as_slice())?;
        }
        let missing = rows.iter().fold(0, |sum: usize, (change, _)| sum.saturating_add(change.missing));
        if !self.fits(request, missing, call)? {
            return Ok(Some(py.None().into_bound(py)));
        }
        let taken = rows.iter().map(|(change, row)| (&row.table, change.missing, change.moves));
        let answer = self.take(&id, taken)?;
        self.cache(request, &id, rows.iter().map(|(_, row)| row))?;
        self.answer(py, answer).map(Some)
    }

    /// Whether a step of a running request stays inside the last block of each table, and completes no block.
    fn stays_inside(&self, id: &Bound<'_, PyAny>, step: &Step) -> PyResult<bool> {
        for group in &self.groups {
            let blocks = group.table(id)?.map_or(0, |table| table.len());
            if !group.rules.has_slots(blocks, step.slots) {
                return Ok(false);
            }
        }
        Ok(!self.completes(id, step.cached)?)
    }

    /// Returns the answer for a step that needs no block. The step is refused only if the reserved blocks
    /// and the watermark already exceed the free blocks.
    fn without_blocks<'py>(&self, request: &Bound<'py, PyAny>, call: &Call) -> PyResult<Bound<'py, PyAny>> {
        let py = request.py();
        let refused = (call.reserved > 0 || self.watermark > 0) && !self.fits(request, 0, call)?;
        Ok(if refused { py.None().into_bound(py) } else { self.empty.bind(py).clone() })
    }

    /// Whether the pool has this number of free blocks for a request, in addition to the reserved blocks and
    /// the watermark.
    fn fits(&self, request: &Bound<'_, PyAny>, blocks: usize, call: &Call) -> PyResult<bool> {
        let mut room = Room { reserved: call.reserved, watermark: 0 };
        if call.watermark && self.watermark > 0 {
            let status: i64 = request.getattr(intern!(request.py(), "status"))?.extract()?;
            room.watermark = if self.waiting.contains(&status) { self.watermark } else { 0 };
        }
        Ok(room.fits(blocks, self.shared.lock().num_free()))
    }

    /// Returns the allocated blocks of each group as vLLM's `KVCacheBlocks`.
    fn answer<'py>(&self, py: Python<'py>, taken: Vec<Bound<'py, PyList>>) -> PyResult<Bound<'py, PyAny>> {
        if taken.iter().all(PyListMethods::is_empty) {
            return Ok(self.empty.bind(py).clone());
        }
        self.blocks_class.bind(py).call1((PyTuple::new(py, taken)?,))
    }

    /// Admits a request, with its hit if there is one. If vLLM's managers have to admit it, changes nothing
    /// and returns `None`.
    pub(super) fn admit<'py>(
        &self,
        request: &Bound<'py, PyAny>,
        hits: Option<&Bound<'py, PyAny>>,
        hit: usize,
        call: &Call,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = request.py();
        if attr(request, intern!(py, "num_computed_tokens"))? != 0 || hits.is_none() && hit > 0 {
            return Ok(None);
        }
        let id = request.getattr(intern!(py, "request_id"))?;
        let found = hits.map(|hits| hits.getattr(intern!(py, "blocks"))).transpose()?;
        let step = call.step(hit, 0, num_tokens(request)?, self.max_model_len);
        let mut arrived = Vec::with_capacity(self.groups.len());
        for (at, group) in self.groups.iter().enumerate() {
            let of_group = found.as_ref().map(|found| found.get_item(at)).transpose()?;
            let mut blocks = of_group.map_or(Ok(Vec::new()), |blocks| own_ids(&blocks, &self.shared))?;
            if self.waits_for_a_step(py, group, &blocks)? {
                return Ok(Some(py.None().into_bound(py)));
            }
            let Some(row) = group.arrival(&id, &step, blocks.len())? else { return Ok(None) };
            blocks.drain(..row.skipped.min(blocks.len()));
            arrived.push((row, blocks));
        }
        let taken: usize = {
            let pool = self.shared.lock();
            arrived.iter().map(|(_, kept)| pool.num_evictable(kept)).sum()
        };
        let whole = arrived.iter().fold(taken, |sum, (row, _)| sum.saturating_add(row.whole));
        let missing = arrived.iter().fold(taken, |sum, (row, _)| sum.saturating_add(row.missing));
        let unreserved = Call { reserved: 0, ..*call };
        if call.whole && !self.fits(request, whole, &unreserved)? || !self.fits(request, missing, call)? {
            return Ok(Some(py.None().into_bound(py)));
        }
        // All hits are acquired before anything is allocated. The new blocks of one group cannot evict
        // the hit of another.
        let mut tables = Vec::with_capacity(arrived.len());
        for (group, (row, kept)) in self.groups.iter().zip(&arrived) {
            let mut ids = vec![0; if found.is_some() { row.skipped } else { 0 }];
            ids.extend(kept);
            let table = self.core.get().handles(py, &ids)?;
            if found.is_some() {
                if let Some(pool) = &self.metered {
                    let handles = table.get_slice(row.skipped, table.len());
                    pool.bind(py).call_method1(intern!(py, "touch"), (handles,))?;
                } else {
                    self.shared.with(|pool| pool.touch(kept)).or_raise(py)?;
                }
                group.of.num_cached.bind(py).set_item(&id, table.len())?;
            }
            group.of.tables.bind(py).set_item(&id, &table)?;
            tables.push(table);
        }
        let rows = self.groups.iter().zip(&tables).zip(&arrived);
        let taken = rows.map(|((group, table), (row, _))| {
            (table, row.missing, group.rules.first_move(&step, table.len()))
        });
        let answer = self.take(&id, taken)?;
        let prompt = self.prompt(request)?;
        let rows = self.groups.iter().zip(tables);
        let rows = rows.map(|(group, table)| group.cacheable(&self.shared, &id, table, &prompt, step.cached));
        let rows = rows.collect::<PyResult<Vec<_>>>()?;
        self.cache(request, &id, rows.iter())?;
        self.answer(py, answer).map(Some)
    }

    /// Whether a hit ends with a recurrent state that the engine's current step computes. The request then
    /// has to wait for the next step.
    fn waits_for_a_step(&self, py: Python<'_>, group: &Group, hits: &[u32]) -> PyResult<bool> {
        let (Some(this_step), Some(&last)) = (&group.of.this_step, hits.last()) else { return Ok(false) };
        let key = self.shared.lock().keys().hash_of(last).map(|(key, _)| key);
        key.map_or(Ok(false), |key| this_step.bind(py).contains(PyBytes::new(py, key.as_bytes())))
    }

    /// Allocates the missing blocks of a request's tables, one group after the other, and appends them. If a
    /// state moves to another block, updates the records of vLLM's manager.
    fn take<'a, 'py: 'a>(
        &self,
        id: &Bound<'py, PyAny>,
        missing: impl Iterator<Item = (&'a Bound<'py, PyList>, usize, Option<Move>)>,
    ) -> PyResult<Vec<Bound<'py, PyList>>> {
        let py = id.py();
        let mut answer = Vec::with_capacity(self.groups.len());
        for (group, (table, missing, moves)) in self.groups.iter().zip(missing) {
            let before = table.len();
            let mut moved = false;
            if let Some(states) = &group.of.states {
                if let Some(moves) = moves {
                    moved = true;
                    if let Some(from) = moves.from {
                        states.last.bind(py).set_item(id, from)?;
                    }
                    let null = self.core.get().blocks.bind(py).get_item(0)?;
                    (0..moves.nulls).try_for_each(|_| table.append(&null))?;
                    for at in moves.drafts.0..moves.drafts.1 {
                        table.append(table.get_item(at)?)?;
                        table.set_item(at, &null)?;
                    }
                }
                states.allocated.bind(py).add(id)?;
            }
            let new = self.take_blocks(group, table, missing)?;
            answer.push(if moved { table.get_slice(before, table.len()) } else { new });
        }
        Ok(answer)
    }

    /// Allocates blocks, appends them to a table, and returns them as another list.
    fn take_blocks<'py>(
        &self,
        group: &Group,
        table: &Bound<'py, PyList>,
        blocks: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let (py, end) = (table.py(), table.len());
        if blocks == 0 {
            return Ok(PyList::empty(py));
        }
        let taken = if let Some(pool) = &self.metered {
            let new = pool.bind(py).call_method1(intern!(py, "get_new_blocks"), (blocks,))?;
            table.set_slice(end, end, &new)?;
            table.get_slice(end, table.len())
        } else {
            let (mut new, mut removed) = (Vec::new(), Vec::new());
            let changes = self.on_removed.is_some().then_some(&mut removed);
            self.shared.with(|pool| pool.allocate(blocks, &mut new, changes).map(drop)).or_raise(py)?;
            let new = self.core.get().handles(py, &new)?;
            table.set_slice(end, end, &new)?;
            self.on_removed.as_ref().map_or(Ok(()), |listener| listener.removed(py, &removed))?;
            new
        };
        if group.of.zeroed {
            let ids = own_ids(&taken, &self.shared)?;
            let list = group.of.manager.bind(py).getattr(intern!(py, "new_block_ids"))?;
            list.call_method1(intern!(py, "extend"), (ids,))?;
        }
        Ok(taken)
    }

    /// Frees blocks of a table in the given order, and writes the null block to their positions.
    fn free_positions(&self, table: &Bound<'_, PyList>, blocks: &[(usize, u32)]) -> PyResult<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        let py = table.py();
        self.shared.with(|pool| pool.free(blocks.iter().map(|&(_, block)| block))).or_raise(py)?;
        let null = self.core.get().blocks.bind(py).get_item(0)?;
        blocks.iter().try_for_each(|&(at, _)| table.set_item(at, &null))
    }
}
