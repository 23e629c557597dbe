//! `Memo`: the last lookup of a group of full attention, for a request at the head of vLLM's queue asks again at every step.

use std::ops::Range;
use std::sync::Arc;

use kvpool_vllm::{Key, LastHit};
use pyo3::types::{PyBytesMethods, PyList};

use super::block::Shared;
use super::keys::{digest, digests};
use super::pool::PyVllmPool;
use crate::errors::OrRaise;
use crate::python::prelude::*;

/// Digests that are read from Python at once, behind the first: few, and then more.
const STRETCHES: [usize; 2] = [16, 256];

/// The blocks of the last hit, and their objects.
#[derive(Default)]
pub(super) struct Memo {
    hit: LastHit,
    handles: Option<Py<PyList>>,
}

impl Memo {
    /// How many of a request's first `blocks` blocks are cached in a group, from the first on.
    pub(super) fn run(
        &mut self,
        shared: &Arc<Shared>,
        hashes: &Bound<'_, PyAny>,
        (group, scale): (u32, usize),
        blocks: usize,
    ) -> PyResult<usize> {
        let py = hashes.py();
        let blocks = blocks.min(hashes.len()? / scale);
        let removals = shared.lock().removals();
        let key_of = |at| Key::new(digest(hashes, at, scale)?.as_bytes(), group).or_raise(py);
        let find = |positions: Range<usize>, out: &mut Vec<u32>| {
            let Range { start: mut first, end } = positions;
            // Most that miss do so at once.
            if first < end {
                let key = key_of(first)?;
                let Some(block) = shared.lock().find(&key) else { return Ok(()) };
                out.push(block);
                first += 1;
            }
            for stretch in STRETCHES.into_iter().chain(std::iter::repeat(STRETCHES[1])) {
                if first >= end {
                    break;
                }
                let until = end.min(first + stretch);
                let digests = digests(hashes, first, scale, (first..until).map(|_| true))?;
                let known = out.len();
                let each = digests.iter().flatten().map(PyBytesMethods::as_bytes);
                shared.lock().find_run(each, group, out);
                if out.len() - known < until - first {
                    break;
                }
                first = until;
            }
            Ok(())
        };
        if self.hit.resume(removals, blocks, key_of, find)? {
            self.handles = None;
        }
        Ok(self.hit.blocks().len())
    }

    /// The objects of the first blocks of the last hit, in a list of their own: whoever gets a list may change it.
    pub(super) fn handles<'py>(
        &mut self,
        py: Python<'py>,
        core: &PyVllmPool,
        blocks: usize,
    ) -> PyResult<Bound<'py, PyList>> {
        let handles = match &self.handles {
            Some(handles) => handles.bind(py),
            None => self.handles.insert(core.handles(py, self.hit.blocks())?.unbind()).bind(py),
        };
        Ok(handles.get_slice(0, blocks))
    }
}
