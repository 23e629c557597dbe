//! The steps of [`PyVllmGroups`]: a request that goes on, and one that comes.

use kvpool_journal::VllmCalls;
use kvpool_vllm::{Move, Step};
use pyo3::intern;
use pyo3::types::{PyBytes, PyList, PyTuple};

use super::block::{own, own_ids};
use super::group::{Asked, Coming, Group, Row};
use super::groups::{PyVllmGroups, attr, num_tokens};
use crate::errors::OrRaise;
use crate::python::prelude::*;

impl PyVllmGroups {
    /// A plain step; `None`, and nothing has changed, where vLLM's managers have to look.
    pub(super) fn go_on<'py>(
        &self,
        request: &Bound<'py, PyAny>,
        asked: &Asked,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = request.py();
        let id = request.getattr(intern!(py, "request_id"))?;
        let computed = attr(request, intern!(py, "num_computed_tokens"))?.min(self.max_model_len);
        let in_flight = attr(request, intern!(py, "num_in_flight_tokens"))?;
        let main = computed.saturating_add(asked.new);
        let tokens = num_tokens(request)?;
        let cached = if asked.caches { main.min(tokens) } else { 0 };
        let step = Step {
            settled: computed.saturating_sub(in_flight),
            slots: main.saturating_add(asked.lookahead).min(self.max_model_len),
        };
        let said = self.said(request)?;
        let mut rows = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            match group.growth(&self.shared, &id, said, step, (main, cached))? {
                Some(row) => rows.push(row),
                None => return Ok(None),
            }
        }
        if !rows.iter().any(Row::asks) {
            // Nothing is taken: what must stay free does, unless it is lacking already.
            let refused = (asked.reserved > 0 || self.watermark > 0) && !self.fits(request, 0, asked)?;
            let answer = if refused { py.None().into_bound(py) } else { self.empty.bind(py).clone() };
            return Ok(Some(answer));
        }
        self.grow(request, asked, &rows).map(Some)
    }

    /// Whether so many blocks may be taken.
    fn fits(&self, request: &Bound<'_, PyAny>, missing: usize, asked: &Asked) -> PyResult<bool> {
        let mut required = missing.saturating_add(asked.reserved);
        if asked.watermark && self.watermark > 0 {
            let status: i64 = request.getattr(intern!(request.py(), "status"))?.extract()?;
            let watermark = if self.waiting.contains(&status) { self.watermark } else { 0 };
            required = required.saturating_add(watermark);
        }
        Ok(required <= self.shared.lock().num_free())
    }

    /// Gives up what is dead, takes what is missing, caches what is full.
    fn grow<'py>(
        &self,
        request: &Bound<'py, PyAny>,
        asked: &Asked,
        rows: &[Row<'py>],
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = request.py();
        let id = request.getattr(intern!(py, "request_id"))?;
        for (group, row) in self.groups.iter().zip(rows) {
            let table = &row.caching.table;
            if let (Some(states), Some(work)) = (&group.states, row.state) {
                let (first, end) = work.retire;
                if first < end {
                    self.give_up(py, table, (first..end).rev(), false)?;
                    states.retired.bind(py).set_item(&id, end)?;
                }
                self.give_up(py, table, work.gives_up, false)?;
            }
            self.give_up(py, table, (0..row.growth.dead).rev(), true)?;
        }
        let missing = rows.iter().fold(0, |sum: usize, row| sum.saturating_add(row.growth.missing));
        if !self.fits(request, missing, asked)? {
            return Ok(py.None().into_bound(py));
        }
        let taken = rows.iter().map(|row| {
            let moves = row.state.and_then(|state| state.moves);
            (&row.caching.table, row.growth.missing, moves)
        });
        let answer = self.take(&id, taken)?;
        self.cache(request, rows.iter().map(|row| &row.caching))?;
        self.answer(py, answer)
    }

    /// What was taken, as vLLM passes it on.
    fn answer<'py>(&self, py: Python<'py>, taken: Vec<Bound<'py, PyList>>) -> PyResult<Bound<'py, PyAny>> {
        if taken.iter().all(PyListMethods::is_empty) {
            return Ok(self.empty.bind(py).clone());
        }
        self.blocks_class.bind(py).call1((PyTuple::new(py, taken)?,))
    }

    /// A request that comes, with its hit if it has one; `None`, and nothing has changed, where vLLM's managers have to look.
    pub(super) fn come<'py>(
        &self,
        request: &Bound<'py, PyAny>,
        hits: Option<&Bound<'py, PyAny>>,
        hit: usize,
        asked: &Asked,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = request.py();
        if attr(request, intern!(py, "num_computed_tokens"))? != 0 || hits.is_none() && hit > 0 {
            return Ok(None);
        }
        let id = request.getattr(intern!(py, "request_id"))?;
        let found = hits.map(|hits| hits.getattr(intern!(py, "blocks"))).transpose()?;
        let tokens = num_tokens(request)?;
        let hit = hit.min(self.max_model_len);
        let main = hit.saturating_add(asked.new);
        let cached = if asked.caches { main.min(tokens) } else { 0 };
        let come = Coming {
            hit,
            slots: main.saturating_add(asked.lookahead).min(self.max_model_len),
            main,
            whole: asked.whole.then(|| tokens.min(self.max_model_len)),
        };
        let mut arrived = Vec::with_capacity(self.groups.len());
        for (at, group) in self.groups.iter().enumerate() {
            let of_group = found.as_ref().map(|found| found.get_item(at)).transpose()?;
            let blocks = of_group.map_or(Ok(Vec::new()), |blocks| own_ids(&blocks, &self.shared))?;
            if self.waits_for_a_step(py, group, &blocks)? {
                return Ok(Some(py.None().into_bound(py)));
            }
            match group.arrival(&id, blocks, &come)? {
                Some(row) => arrived.push(row),
                None => return Ok(None),
            }
        }
        let taken: usize = {
            let pool = self.shared.lock();
            arrived.iter().map(|row| pool.num_evictable(&row.kept)).sum()
        };
        let whole = arrived.iter().fold(taken, |sum, row| sum.saturating_add(row.whole));
        let missing = arrived.iter().fold(taken, |sum, row| sum.saturating_add(row.missing));
        let unreserved = Asked { reserved: 0, ..*asked };
        if asked.whole && !self.fits(request, whole, &unreserved)? || !self.fits(request, missing, asked)? {
            return Ok(Some(py.None().into_bound(py)));
        }
        // What is hit is held before anything is allocated: no group's blocks can evict another's.
        let mut tables = Vec::with_capacity(arrived.len());
        for (group, row) in self.groups.iter().zip(&arrived) {
            let table = PyList::empty(py);
            if found.is_some() {
                let handles = self.core.get().handles(py, &row.kept)?;
                if let Some(pool) = &self.metered {
                    pool.bind(py).call_method1(intern!(py, "touch"), (&handles,))?;
                } else {
                    self.shared.with(|pool| pool.touch(&row.kept)).or_raise(py)?;
                }
                let nulls = self.core.get().handles(py, &vec![0; row.skipped])?;
                table.set_slice(0, 0, &nulls)?;
                table.set_slice(row.skipped, row.skipped, &handles)?;
                group.num_cached.bind(py).set_item(&id, table.len())?;
            }
            group.tables.bind(py).set_item(&id, &table)?;
            tables.push(table);
        }
        let moves = self.groups.iter().zip(&tables).map(|(group, table)| {
            group.states.as_ref().and_then(|states| states.rules.first_move(&group.spec, table.len(), main))
        });
        let taken =
            tables.iter().zip(&arrived).zip(moves).map(|((table, row), moves)| (table, row.missing, moves));
        let answer = self.take(&id, taken)?;
        let said = self.said(request)?;
        let mut caching = Vec::with_capacity(arrived.len());
        for (group, table) in self.groups.iter().zip(tables) {
            let known = group.num_cached.bind(py).get_item(&id)?.map_or(Ok(0), |known| known.extract())?;
            caching.push(group.caching(&self.shared, said, table, known, cached)?);
        }
        self.cache(request, caching.iter())?;
        self.answer(py, answer).map(Some)
    }

    /// Whether a hit ends with a state that is computed in this step of the engine: it can be gone on from in the next.
    fn waits_for_a_step(&self, py: Python<'_>, group: &Group, hits: &[u32]) -> PyResult<bool> {
        let (Some(this_step), Some(&last)) = (&group.this_step, hits.last()) else { return Ok(false) };
        let key = self.shared.lock().keys().hash_of(last).map(|(key, _)| key);
        key.map_or(Ok(false), |key| this_step.bind(py).contains(PyBytes::new(py, key.as_bytes())))
    }

    /// Takes the blocks that tables lack, group by group, and appends them. Of states that move, what vLLM notes of it is noted, too.
    fn take<'a, 'py: 'a>(
        &self,
        id: &Bound<'py, PyAny>,
        missing: impl Iterator<Item = (&'a Bound<'py, PyList>, usize, Option<Move>)>,
    ) -> PyResult<Vec<Bound<'py, PyList>>> {
        let py = id.py();
        let mut answer = Vec::with_capacity(self.groups.len());
        for (group, (table, missing, moves)) in self.groups.iter().zip(missing) {
            let before = table.len();
            if let (Some(states), Some(moves)) = (&group.states, moves) {
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
            if let Some(states) = &group.states {
                states.allocated.bind(py).add(id)?;
            }
            self.take_blocks(group, table, missing)?;
            answer.push(table.get_slice(before, table.len()));
        }
        Ok(answer)
    }

    /// Takes the next free blocks and appends them to a table.
    fn take_blocks(&self, group: &Group, table: &Bound<'_, PyList>, blocks: usize) -> PyResult<()> {
        if blocks == 0 {
            return Ok(());
        }
        let py = table.py();
        let end = table.len();
        if let Some(pool) = &self.metered {
            let new = pool.bind(py).call_method1(intern!(py, "get_new_blocks"), (blocks,))?;
            table.set_slice(end, end, &new)?;
        } else {
            let (mut new, mut removed) = (Vec::new(), Vec::new());
            let told = self.on_removed.is_some().then_some(&mut removed);
            self.shared.with(|pool| pool.allocate(blocks, &mut new, told).map(drop)).or_raise(py)?;
            let new = self.core.get().handles(py, &new)?;
            table.set_slice(end, end, &new)?;
            self.on_removed.as_ref().map_or(Ok(()), |listener| listener.removed(py, &removed))?;
        }
        if group.zeroed {
            let ids = own_ids(&table.get_slice(end, table.len()), &self.shared)?;
            let list = group.manager.bind(py).getattr(intern!(py, "new_block_ids"))?;
            list.call_method1(intern!(py, "extend"), (ids,))?;
        }
        Ok(())
    }

    /// Gives up blocks of a table that are there; with `first`, up to the first that is not.
    fn give_up(
        &self,
        py: Python<'_>,
        table: &Bound<'_, PyList>,
        positions: impl IntoIterator<Item = usize>,
        first: bool,
    ) -> PyResult<()> {
        let (mut ids, mut held) = (Vec::new(), Vec::new());
        for at in positions {
            match own(&table.get_item(at)?, &self.shared) {
                Some(block) if block.id != 0 => {
                    ids.push(block.id);
                    held.push(at);
                }
                _ if first => break,
                _ => {}
            }
        }
        if ids.is_empty() {
            return Ok(());
        }
        self.shared.with(|pool| pool.free(ids.iter().copied())).or_raise(py)?;
        let null = self.core.get().blocks.bind(py).get_item(0)?;
        held.into_iter().try_for_each(|at| table.set_item(at, &null))
    }
}
