//! Caches the blocks of a request that [`kvpool_vllm::Group`] chooses, one group after the other, in vLLM's
//! order. [`super::groups`] calls this module.
//!
//! If a prompt ends inside a block, vLLM's own method gives that block a key of its own, once. Events are
//! also made in Python, because they are Python objects.

use kvpool_vllm::{Prompt, Table, Tail};
use pyo3::intern;
use pyo3::types::{PyBytes, PyDict, PyList};

use super::block::own_ids;
use super::feed::Listener;
use super::group::{Blocks, Cacheable, Group};
use super::groups::{PyVllmGroups, attr};
use super::pool::TableRun;
use crate::python::prelude::*;

impl PyVllmGroups {
    /// Reads the attributes of a vLLM request that determine which blocks are cached, except those that no
    /// group needs.
    pub(super) fn prompt(&self, request: &Bound<'_, PyAny>) -> PyResult<Prompt> {
        let py = request.py();
        let mut prompt = Prompt::default();
        if self.looks_at_prompts {
            prompt.tokens = attr(request, intern!(py, "num_prompt_tokens"))?;
            prompt.digests = request.getattr(intern!(py, "block_hashes"))?.len()?;
        }
        if self.looks_at_junctions {
            prompt.junction = attr(request, intern!(py, "shared_prefix_boundary"))?;
            prompt.computed = attr(request, intern!(py, "num_computed_tokens"))?;
        }
        Ok(prompt)
    }

    /// Whether a request may have full blocks that are not cached, after the KV of `tokens` tokens is
    /// computed.
    pub(super) fn completes(&self, id: &Bound<'_, PyAny>, tokens: usize) -> PyResult<bool> {
        for group in &self.groups {
            if group.rules.completes(group.known(id)?, tokens) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Caches the blocks of a request that `rows` selects, one row per group. Updates the numbers of cached
    /// blocks in vLLM's dictionaries.
    pub(super) fn cache<'a, 'py: 'a>(
        &self,
        request: &Bound<'py, PyAny>,
        id: &Bound<'py, PyAny>,
        rows: impl Iterator<Item = &'a Cacheable<'py>> + Clone,
    ) -> PyResult<()> {
        if !rows.clone().any(|row| row.caching.asks()) {
            return Ok(());
        }
        let py = request.py();
        let hashes = request.getattr(intern!(py, "block_hashes"))?;
        let digests = hashes.len()?;
        let (mut interval, mut prompt) = (py.None().into_bound(py), Prompt::default());
        if self.leaves_out {
            interval = self.coordinator.bind(py).getattr(intern!(py, "retention_interval"))?;
            prompt.interval = interval.extract()?;
            prompt.tokens = attr(request, intern!(py, "num_prompt_tokens"))?;
            prompt.junction = attr(request, intern!(py, "shared_prefix_boundary"))?;
        }
        for (group, row) in self.groups.iter().zip(rows).filter(|(_, row)| row.caching.asks()) {
            let known = row.caching.known;
            let full = row.caching.full.min(digests / group.rules.scale);
            if full > known {
                let kept = group.rules.kept(known..full, &self.retains, &prompt);
                self.cache_blocks_of(request, group, row, &hashes, &kept)?;
                group.of.num_cached.bind(py).set_item(id, full)?;
            }
            if row.caching.tail {
                self.cache_tail(request, group, row, &interval)?;
            }
            self.note_states(id, group, row, full)?;
        }
        Ok(())
    }

    /// Caches the blocks of one group for which `kept` is true. Its first entry is for the first block after
    /// those that are cached already.
    fn cache_blocks_of(
        &self,
        request: &Bound<'_, PyAny>,
        group: &Group,
        row: &Cacheable<'_>,
        hashes: &Bound<'_, PyAny>,
        kept: &[bool],
    ) -> PyResult<()> {
        let py = request.py();
        let (first, scale, number) = (row.caching.known, group.rules.scale, group.rules.number);
        let (end, block_size) = (first + kept.len(), group.rules.spec.block_tokens);
        if let Some(cache) = self.on_cached.as_ref().and_then(Listener::python) {
            let mask = PyList::new(py, kept)?;
            let mask = (!kept.iter().all(|&kept| kept)).then_some(mask);
            cache.bind(py).call1((request, &row.table, first, end, block_size, number, mask))?;
        } else if kept.contains(&true) {
            let feed = self.on_cached.as_ref().and_then(Listener::feed);
            let ids = own_ids(&row.table.get_slice(first, end), &self.shared)?;
            let run = TableRun { blocks: &row.table, hashes, first, block_size, group: number, scale };
            let feed = feed.map(|feed| (feed.get(), request));
            self.core.get().cache_run(py, feed, &run, &ids, |at| kept[at], false)?;
        }
        Ok(())
    }

    /// Adds the recurrent states that were cached to two records of vLLM's manager: the set of keys that this
    /// step cached, and the list of states that connectors may take.
    fn note_states(
        &self,
        id: &Bound<'_, PyAny>,
        group: &Group,
        row: &Cacheable<'_>,
        full: usize,
    ) -> PyResult<()> {
        let py = id.py();
        let Some(this_step) = &group.of.this_step else { return Ok(()) };
        for at in row.caching.known..full {
            let Some((key, tokens)) = Blocks(&row.table, &self.shared).hash(at) else { continue };
            this_step.bind(py).add(PyBytes::new(py, key.as_bytes()))?;
            if group.of.states.is_some() {
                let block = row.table.get_item(at)?;
                group.offers(py)?.append((id, group.rules.number, block, tokens))?;
            }
        }
        Ok(())
    }

    /// Caches the block in which the prompt ends, under a key of its own.
    fn cache_tail(
        &self,
        request: &Bound<'_, PyAny>,
        group: &Group,
        row: &Cacheable<'_>,
        interval: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (py, finals) = (request.py(), row.caching.finals);
        let this_step = group.of.this_step.as_ref().map(|keys| keys.bind(py));
        match (group.rules.tail(&Blocks(&row.table, &self.shared), finals), this_step) {
            (Tail::Absent, _) => Ok(()),
            // From vLLM 0.33 on, a state that is cached already is not recorded again.
            (Tail::Cached(_), _) if self.retains.by_series_33 => Ok(()),
            (Tail::Cached(key), Some(this_step)) => this_step.add(PyBytes::new(py, key.as_bytes())),
            (_, this_step) => {
                let manager = group.of.manager.bind(py);
                let cache = intern!(py, "_cache_partial_tail_block");
                let Some(this_step) = this_step.filter(|_| group.of.states.is_some()) else {
                    manager.call_method1(cache, (request, finals))?;
                    return Ok(());
                };
                let named = PyDict::new(py);
                named.set_item(intern!(py, "retention_interval"), interval)?;
                let key = manager.call_method(cache, (request, finals), Some(&named))?;
                if key.is_none() { Ok(()) } else { this_step.add(key) }
            }
        }
    }
}
