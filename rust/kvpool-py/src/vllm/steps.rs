//! The steps of [`PyVllmGroups`]: a request that goes on, and one that comes.

use kvpool_journal::ops::vllm as op;
use kvpool_vllm::{Key, Step};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

use super::block::{own, own_ids};
use super::group::{Asked, Caching, Coming, Row};
use super::groups::PyVllmGroups;
use super::pool::{digests, removed_keys};
use super::slots::{attr, num_tokens};
use crate::errors::OrRaise;

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
            cacheable: cached.saturating_sub(self.recomputed),
        };
        let mut rows = Vec::with_capacity(self.groups.len());
        for group in &self.groups {
            match group.growth(&self.shared, request, &id, step, main)? {
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
        self.grow(request, asked, &rows, cached).map(Some)
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
        cached: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = request.py();
        let id = request.getattr(intern!(py, "request_id"))?;
        for (group, row) in self.groups.iter().zip(rows) {
            if let (Some(states), Some(work)) = (&group.states, row.state) {
                let (first, end) = work.retire;
                if first < end {
                    self.give_up(py, &row.table, (first..end).rev(), false)?;
                    states.retired.bind(py).set_item(&id, end)?;
                }
                self.give_up(py, &row.table, work.gives_up, false)?;
            }
            self.give_up(py, &row.table, (0..row.growth.dead).rev(), true)?;
        }
        let missing = rows.iter().fold(0, |sum: usize, row| sum.saturating_add(row.growth.missing));
        if !self.fits(request, missing, asked)? {
            return Ok(py.None().into_bound(py));
        }
        for (group, row) in self.groups.iter().zip(rows).filter(|(_, row)| row.growth.missing > 0) {
            if let Some(states) = &group.states {
                states.last.bind(py).set_item(&id, row.table.len() - 1)?;
            }
        }
        let taken = rows.iter().map(|row| (&row.table, row.growth.missing));
        let answer = self.take(py, taken)?;
        let caching: Vec<_> = rows.iter().map(Row::caching).collect();
        self.cache_grown(request, &caching, cached)?;
        if missing == 0 {
            return Ok(self.empty.bind(py).clone());
        }
        self.blocks_class.bind(py).call1((PyTuple::new(py, answer)?,))
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
            whole: asked.whole.then(|| tokens.min(self.max_model_len)),
            cacheable: cached.saturating_sub(self.recomputed),
        };
        let mut arrived = Vec::with_capacity(self.groups.len());
        for (at, group) in self.groups.iter().enumerate() {
            let of_group = found.as_ref().map(|found| found.get_item(at)).transpose()?;
            let blocks = of_group.map_or(Ok(Vec::new()), |blocks| own_ids(&blocks, &self.shared))?;
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
                let held: Vec<_> = row.kept.iter().copied().filter(|&block| block != 0).collect();
                self.shared.apply(op::Touch { blocks: &held }).or_raise(py)?;
                let null = std::iter::repeat_n(0, row.skipped);
                let ids: Vec<_> = null.chain(row.kept.iter().copied()).collect();
                let handles = self.core.get().handles(py, &ids)?;
                table.set_slice(0, 0, &handles)?;
                group.num_cached.bind(py).set_item(&id, ids.len())?;
            }
            group.tables.bind(py).set_item(&id, &table)?;
            tables.push(table);
        }
        let answer = self.take(py, tables.iter().zip(&arrived).map(|(table, row)| (table, row.missing)))?;
        let mut caching = Vec::with_capacity(arrived.len());
        for ((group, row), table) in self.groups.iter().zip(&arrived).zip(tables) {
            let known = if found.is_some() { row.skipped + row.kept.len() } else { 0 };
            let caches = group.caches(&self.shared, request, &table, (known, row.full), come.cacheable)?;
            caching.push(Caching { table, known, full: row.full, caches });
        }
        self.cache_grown(request, &caching, cached)?;
        if answer.iter().all(PyListMethods::is_empty) {
            return Ok(Some(self.empty.bind(py).clone()));
        }
        self.blocks_class.bind(py).call1((PyTuple::new(py, answer)?,)).map(Some)
    }

    /// Takes the blocks that tables lack, group by group, and appends them.
    fn take<'a, 'py: 'a>(
        &self,
        py: Python<'py>,
        missing: impl Iterator<Item = (&'a Bound<'py, PyList>, usize)>,
    ) -> PyResult<Vec<Bound<'py, PyList>>> {
        let mut answer = Vec::with_capacity(self.groups.len());
        for (group, (table, missing)) in self.groups.iter().zip(missing) {
            let (mut new, mut removed) = (Vec::new(), Vec::new());
            if missing > 0 {
                let removed = self.on_removed.is_some().then_some(&mut removed);
                let asked = op::Allocate { blocks: missing, out: &mut new, removed };
                self.shared.with(|pool| pool.apply(asked).map(drop)).or_raise(py)?;
            }
            if let Some(manager) = group.zeroed.as_ref().filter(|_| !new.is_empty()) {
                let ids = manager.bind(py).getattr(intern!(py, "new_block_ids"))?;
                ids.call_method1(intern!(py, "extend"), (&new,))?;
            }
            let new = self.core.get().handles(py, &new)?;
            let end = table.len();
            if !new.is_empty() {
                table.set_slice(end, end, &new)?;
            }
            if let Some(tell) = self.on_removed.as_ref().filter(|_| !removed.is_empty()) {
                tell.call1(py, (removed_keys(py, &removed)?,))?;
            }
            answer.push(new);
        }
        Ok(answer)
    }

    /// Caches what is full after a step, with so many tokens.
    pub(super) fn cache_grown(
        &self,
        request: &Bound<'_, PyAny>,
        rows: &[Caching<'_>],
        cached: usize,
    ) -> PyResult<()> {
        if !rows.iter().any(|row| row.caches) {
            return Ok(());
        }
        match &self.on_cached {
            Some(cache) => cache.call1(request.py(), (request, cached)).map(drop),
            None => self.cache(request, rows, cached.saturating_sub(self.recomputed)),
        }
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
        self.shared.apply(op::Free { blocks: ids.iter().copied() }).or_raise(py)?;
        let null = self.core.get().blocks.bind(py).get_item(0)?;
        held.into_iter().try_for_each(|at| table.set_item(at, &null))
    }

    /// Caches what is full, group by group, or has vLLM's manager do it.
    fn cache(&self, request: &Bound<'_, PyAny>, rows: &[Caching<'_>], cacheable: usize) -> PyResult<()> {
        let py = request.py();
        let id = request.getattr(intern!(py, "request_id"))?;
        let hashes = request.getattr(intern!(py, "block_hashes"))?;
        for (group, row) in self.groups.iter().zip(rows).filter(|(_, row)| row.caches) {
            if let Some(manager) = &group.cached_by {
                let boundaries = PyDict::new(py);
                boundaries.set_item(intern!(py, "replay_boundaries"), PyTuple::empty(py))?;
                let cache = intern!(py, "cache_blocks");
                manager.bind(py).call_method(cache, (request, cacheable), Some(&boundaries))?;
                continue;
            }
            // Blocks that are not hashed yet are cached by a later call (vLLM 0.33).
            let full = row.full.min(hashes.len()? / group.scale);
            if full <= row.known {
                continue;
            }
            let ids = own_ids(&row.table.get_slice(row.known, full), &self.shared)?;
            let wanted = ids.iter().map(|&id| id != 0);
            let digests = digests(&hashes, row.known, group.scale, wanted)?;
            let key_of = |at: usize| Key::new(digests[at].as_ref()?.as_bytes(), group.number).ok();
            let asked = op::CacheFull {
                start: self.shared.start(&row.table, row.known)?,
                blocks: &ids,
                key_of,
                block_size: group.spec.block_tokens,
                removed: &mut Vec::new(),
                stored: None,
            };
            self.shared.apply(asked).or_raise(py)?;
            group.num_cached.bind(py).set_item(&id, full)?;
        }
        Ok(())
    }
}
