//! What a call of [`super::groups`] caches: group by group, in vLLM's order, the blocks that are full, final and worth it.
//!
//! A prompt that ends inside a block makes a key of its own there, once: that is vLLM's method. So are events, in Python: they are
//! Python objects in any case.

use std::sync::Arc;

use kvpool::groups::Tokens;
use kvpool_vllm::{Key, boundaries};
use pyo3::intern;
use pyo3::types::{PyBytes, PyDict, PyList};

use super::block::{Shared, is_null, own, own_ids};
use super::feed::{Listener, Run};
use super::group::Group;
use super::groups::{PyVllmGroups, attr};
use super::keys::digests;
use crate::errors::OrRaise;
use crate::python::prelude::*;

/// What a request says of its prompt.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Said {
    /// Its tokens.
    pub(super) prompt: usize,
    /// Where it turned off from an earlier request; 0 if it did not.
    pub(super) junction: usize,
    /// Its tokens that are computed already.
    pub(super) computed: usize,
    /// Its digests.
    pub(super) units: usize,
}

/// A table, and what of it can be cached.
pub(super) struct Caching<'py> {
    pub(super) table: Bound<'py, PyList>,
    /// Blocks that are cached.
    known: usize,
    /// Tokens that are final.
    finals: usize,
    /// Blocks that those fill.
    full: usize,
    /// Whether the end of the prompt lies inside a block that is to be cached for it.
    tail: bool,
}

impl Caching<'_> {
    pub(super) const fn asks(&self) -> bool {
        self.full > self.known || self.tail
    }
}

impl Group {
    /// What of a table of which `known` blocks are cached can be, with so many tokens computed.
    pub(super) fn caching<'py>(
        &self,
        shared: &Arc<Shared>,
        said: Said,
        table: Bound<'py, PyList>,
        known: usize,
        tokens: usize,
    ) -> PyResult<Caching<'py>> {
        let finals = if self.cached { self.finals.of(tokens) } else { 0 };
        let full = self.spec.full_blocks(Tokens(finals)).0;
        let tail = finals > 0 && self.has_tail(shared, said, &table, (known, full), finals)?;
        Ok(Caching { table, known, finals, full, tail })
    }

    /// Whether a prompt ends inside a block that is to be cached for that.
    fn has_tail(
        &self,
        shared: &Arc<Shared>,
        said: Said,
        table: &Bound<'_, PyList>,
        (known, full): (usize, usize),
        finals: usize,
    ) -> PyResult<bool> {
        let unit = self.unit();
        if let Some(states) = &self.states {
            let is_junction = states.junctions
                && finals == said.junction
                && said.computed < finals
                && finals <= said.prompt;
            return Ok(finals.is_multiple_of(unit)
                && (finals == states.rules.tail(said.prompt, unit) || is_junction));
        }
        let Some(less) = self.prompt_tail else { return Ok(false) };
        let end = (said.prompt.saturating_sub(less) / unit).min(said.units) * unit;
        if end == 0 || end > finals || end.is_multiple_of(self.spec.block_tokens) {
            return Ok(false);
        }
        let at = self.spec.full_blocks(Tokens(end)).0;
        if at >= table.len() || (known..full).contains(&at) {
            return Ok(true); // this step takes it, or gives it the key of all its tokens
        }
        let Some(id) = own(&table.get_item(at)?, shared).map(|block| block.id) else { return Ok(true) };
        let hash = shared.lock().keys().hash_of(id);
        Ok(hash.and_then(|(_, tokens)| tokens).is_none_or(|tokens| (tokens as usize) < end))
    }
}

impl PyVllmGroups {
    /// What a request says that decides whether something is to be cached: nothing where no group looks at its prompt.
    pub(super) fn said(&self, request: &Bound<'_, PyAny>) -> PyResult<Said> {
        let py = request.py();
        let mut said = Said::default();
        if self.looks_at_prompts {
            said.prompt = attr(request, intern!(py, "num_prompt_tokens"))?;
            said.units = request.getattr(intern!(py, "block_hashes"))?.len()?;
        }
        if self.groups.iter().filter_map(|group| group.states.as_ref()).any(|states| states.junctions) {
            said.junction = attr(request, intern!(py, "shared_prefix_boundary"))?;
            said.computed = attr(request, intern!(py, "num_computed_tokens"))?;
        }
        Ok(said)
    }

    /// Caches what is to be.
    pub(super) fn cache<'a, 'py: 'a>(
        &self,
        request: &Bound<'py, PyAny>,
        rows: impl Iterator<Item = &'a Caching<'py>> + Clone,
    ) -> PyResult<()> {
        if !rows.clone().any(Caching::asks) {
            return Ok(());
        }
        let py = request.py();
        let id = request.getattr(intern!(py, "request_id"))?;
        let hashes = request.getattr(intern!(py, "block_hashes"))?;
        let units = hashes.len()?;
        let (mut interval, mut every) = (py.None().into_bound(py), None);
        let (mut prompt, mut junction) = (0, 0);
        // Full attention keeps every block.
        if self.leaves_out {
            interval = self.coordinator.bind(py).getattr(intern!(py, "retention_interval"))?;
            every = interval.extract::<Option<usize>>()?;
            prompt = attr(request, intern!(py, "num_prompt_tokens"))?;
            junction = attr(request, intern!(py, "shared_prefix_boundary"))?;
        }
        for (group, row) in self.groups.iter().zip(rows).filter(|(_, row)| row.asks()) {
            let full = row.full.min(units / group.scale);
            if full > row.known {
                let before = (self.by_series_33 && group.finals.drops).then_some(group.spec.block_tokens);
                let boundaries = boundaries(prompt, self.scheduler_block, self.drops, junction, before);
                let kept = |at| group.retention.keeps(at, every, &boundaries);
                let kept: Vec<_> = (row.known..full).map(kept).collect();
                self.cache_blocks_of(request, group, row, &hashes, &kept)?;
                group.num_cached.bind(py).set_item(&id, full)?;
            }
            if row.tail {
                self.cache_tail(request, group, row, &interval)?;
            }
            self.note_states(&id, group, row, full)?;
        }
        Ok(())
    }

    /// Caches the blocks from the first that is not cached on that are kept.
    fn cache_blocks_of(
        &self,
        request: &Bound<'_, PyAny>,
        group: &Group,
        row: &Caching<'_>,
        hashes: &Bound<'_, PyAny>,
        kept: &[bool],
    ) -> PyResult<()> {
        let py = request.py();
        let end = row.known + kept.len();
        if let Some(cache) = self.on_cached.as_ref().and_then(Listener::python) {
            let mask = PyList::new(py, kept)?;
            let mask = (!kept.iter().all(|&kept| kept)).then_some(mask);
            let (size, number) = (group.spec.block_tokens, group.number);
            cache.bind(py).call1((request, &row.table, row.known, end, size, number, mask))?;
            return Ok(());
        }
        if !kept.contains(&true) {
            return Ok(());
        }
        let ids = own_ids(&row.table.get_slice(row.known, end), &self.shared)?;
        let wanted = ids.iter().zip(kept).map(|(&id, &kept)| kept && id != 0);
        let digests = digests(hashes, row.known, group.scale, wanted)?;
        let key_of = |at: usize| Key::new(digests[at].as_ref()?.as_bytes(), group.number).ok();
        let (mut removed, mut new) = (Vec::new(), Vec::new());
        let feed = self.on_cached.as_ref().and_then(Listener::feed).map(Py::get);
        let (scale, first, block_size) = (group.scale, row.known, group.spec.block_tokens);
        let group = group.number;
        let run = Run { request, hashes, scale, first, digests: &digests, block_size, group };
        let told = feed.map(|feed| feed.read(&run)).transpose()?.flatten();
        let start = self.shared.start(&row.table, row.known)?;
        let stored = feed.is_some().then_some(&mut new);
        self.shared
            .with(|pool| pool.cache_full(start, &ids, key_of, block_size, &mut removed, stored))
            .or_raise(py)?;
        if let Some(feed) = feed {
            feed.removed(&removed);
            feed.stored(told, &new);
        }
        Ok(())
    }

    /// Tells vLLM's manager of the states that have become blocks of the cache, for this step and for connectors.
    fn note_states(
        &self,
        id: &Bound<'_, PyAny>,
        group: &Group,
        row: &Caching<'_>,
        full: usize,
    ) -> PyResult<()> {
        let py = id.py();
        let Some(this_step) = &group.this_step else { return Ok(()) };
        for at in row.known..full {
            let block = row.table.get_item(at)?;
            let Some((key, tokens)) = own(&block, &self.shared)
                .filter(|block| block.id != 0)
                .and_then(|block| self.shared.lock().keys().hash_of(block.id))
            else {
                continue;
            };
            this_step.bind(py).add(PyBytes::new(py, key.as_bytes()))?;
            if group.states.is_some() {
                let offers =
                    group.manager.bind(py).getattr(intern!(py, "_pending_boundary_state_offloads"))?;
                offers.cast_into::<PyList>()?.append((id, group.number, block, tokens))?;
            }
        }
        Ok(())
    }

    /// Caches the block in which the prompt ends.
    fn cache_tail(
        &self,
        request: &Bound<'_, PyAny>,
        group: &Group,
        row: &Caching<'_>,
        interval: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let py = request.py();
        let manager = group.manager.bind(py);
        let cache = intern!(py, "_cache_partial_tail_block");
        let Some(this_step) = group.this_step.as_ref().filter(|_| group.states.is_some()) else {
            manager.call_method1(cache, (request, row.finals))?;
            return Ok(());
        };
        let this_step = this_step.bind(py);
        if row.finals.is_multiple_of(group.spec.block_tokens) {
            // It ends with a block: most often one that is cached already.
            let at = row.finals / group.spec.block_tokens - 1;
            if at >= row.table.len() || is_null(&row.table.get_item(at)?, &self.shared) {
                return Ok(());
            }
            let hash = own(&row.table.get_item(at)?, &self.shared)
                .and_then(|block| self.shared.lock().keys().hash_of(block.id));
            if let Some((key, Some(tokens))) = hash
                && tokens as usize == row.finals
            {
                if !self.by_series_33 {
                    this_step.add(PyBytes::new(py, key.as_bytes()))?;
                }
                return Ok(());
            }
        }
        let named = PyDict::new(py);
        named.set_item(intern!(py, "retention_interval"), interval)?;
        let key = manager.call_method(cache, (request, row.finals), Some(&named))?;
        if key.is_none() { Ok(()) } else { this_step.add(key) }
    }
}
