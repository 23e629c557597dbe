//! Lookups of [`super::groups`]: the hit of a request in all groups, as one call.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kvpool_vllm::{Family, Found, Index, Key, Lookup, Reads};
use pyo3::types::{PyList, PyTuple};

use super::block::Shared;
use super::group::{Group, reads};
use super::keys::digest;
use super::memo::Memo;
use super::pool::PyVllmPool;
use crate::errors::{OrRaise, raise};
use crate::gather::{extract, gather, gather_as, list_of};
use crate::python::prelude::*;

/// The lookups of several groups.
pub(super) struct Hits {
    lookup: Lookup,
    /// By family its groups, by position.
    members: Vec<Vec<usize>>,
    /// By group, those of full attention.
    memos: Mutex<Vec<Memo>>,
}

impl Hits {
    pub(super) fn new(
        py: Python<'_>,
        groups: &[Group],
        alignment: usize,
        families: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let wrong = |said: String| raise(py, "InvalidArgumentError", said);
        // Of each its groups, by position; whether the end of a hit is computed again; how many tokens behind a hit are looked up then.
        let families = gather("lookup", families, |position, family| {
            let each = "groups, whether they drop, and tokens";
            let (members, drops, margin): (Bound<'_, PyAny>, bool, usize) =
                extract("lookup", position, &family, each)?;
            Ok((gather_as::<usize>("lookup", &members, "an int")?, drops, margin))
        })?;
        let mut unit = 1;
        let mut of_kind = Vec::with_capacity(families.len());
        for (members, drops, margin) in &families {
            let known = groups.len();
            if let Some(member) = members.iter().find(|&&member| member >= known) {
                return Err(wrong(format!("families names group {member}: there are {known}")));
            }
            let Some(&first) = members.first() else {
                return Err(wrong("families has one without groups".to_owned()));
            };
            let Group { spec, scale, .. } = &groups[first];
            unit = spec.block_tokens / scale;
            let (reads, block_tokens) = (reads(spec.kind), spec.block_tokens);
            of_kind.push(Family { reads, block_tokens, drops: *drops, margin: *margin });
        }
        let lookup = Lookup::new(of_kind, unit, alignment).ok_or_else(|| {
            wrong(format!(
                "alignment is {alignment}: block sizes must be multiples of the tokens of a digest"
            ))
        })?;
        let members = families.into_iter().map(|(members, ..)| members).collect();
        Ok(Self { lookup, members, memos: Mutex::new(groups.iter().map(|_| Memo::default()).collect()) })
    }

    /// The blocks of the longest hit by group, its tokens, and how many more the group has that got furthest.
    pub(super) fn find<'py>(
        &self,
        core: &PyVllmPool,
        groups: &[Group],
        hashes: &Bound<'py, PyAny>,
        limit: usize,
    ) -> PyResult<(Bound<'py, PyTuple>, usize, usize)> {
        self.asking(core, groups, hashes, |ask, units| {
            let hit = self.lookup.find(limit, units, ask)?;
            Ok((ask.tables(&hit.found)?, hit.tokens, hit.longest.saturating_sub(hit.tokens)))
        })
    }

    /// The blocks that each group alone has, and how many tokens they hold.
    pub(super) fn find_each<'py>(
        &self,
        core: &PyVllmPool,
        groups: &[Group],
        hashes: &Bound<'py, PyAny>,
        limit: usize,
    ) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyTuple>)> {
        self.asking(core, groups, hashes, |ask, units| {
            let found = self.lookup.find_each(limit, units, ask)?;
            let mut tokens = vec![0; groups.len()];
            for (members, found) in self.members.iter().zip(&found) {
                members.iter().for_each(|&member| tokens[member] = found.tokens);
            }
            Ok((ask.tables(&found)?, PyTuple::new(hashes.py(), tokens)?))
        })
    }

    fn asking<'py, R>(
        &self,
        core: &PyVllmPool,
        groups: &[Group],
        hashes: &Bound<'py, PyAny>,
        call: impl FnOnce(&mut Ask<'_, 'py>, usize) -> PyResult<R>,
    ) -> PyResult<R> {
        let units = hashes.len()?;
        // Taken out, for nothing is to be locked while Python objects are looked at or made.
        let mut memos = std::mem::take(&mut *self.memos());
        memos.resize_with(groups.len(), Memo::default);
        let mut ask = Ask { hits: self, core, groups, hashes, memos };
        let answer = call(&mut ask, units);
        // Another thread's go without the lock: what they hold may be the last of its kind.
        let others = std::mem::replace(&mut *self.memos(), ask.memos);
        drop(others);
        answer
    }

    fn memos(&self) -> MutexGuard<'_, Vec<Memo>> {
        self.memos.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The questions of one lookup.
struct Ask<'a, 'py> {
    hits: &'a Hits,
    core: &'a PyVllmPool,
    groups: &'a [Group],
    hashes: &'a Bound<'py, PyAny>,
    memos: Vec<Memo>,
}

impl<'py> Ask<'_, 'py> {
    const fn shared(&self) -> &Arc<Shared> {
        &self.core.shared
    }

    /// The blocks under the digest of a unit, by group of a family; `None` if one has none.
    fn at(&self, family: usize, unit: usize) -> PyResult<Option<Vec<u32>>> {
        let digest = digest(self.hashes, unit, 1)?;
        let key = |&member: &usize| Key::new(digest.as_bytes(), self.groups[member].number);
        let keys: Result<Vec<_>, _> = self.hits.members[family].iter().map(key).collect();
        let keys = keys.or_raise(self.hashes.py())?;
        let pool = self.shared().lock();
        Ok(keys.iter().map(|key| pool.find(key)).collect())
    }

    /// The table of each group: empty for one that no family has.
    fn tables(&mut self, found: &[Found]) -> PyResult<Bound<'py, PyTuple>> {
        let py = self.hashes.py();
        let mut tables: Vec<_> = self.groups.iter().map(|_| PyList::empty(py)).collect();
        for (family, found) in found.iter().enumerate() {
            let scale = self.hits.lookup.scale(family);
            let is_full = self.hits.lookup.families()[family].reads == Reads::Full;
            let blocks = if is_full { 0..0 } else { found.first..found.end };
            let null = || list_of(py, "block_hashes", (0..found.first).map(|_| 0));
            let mut ids: Vec<Vec<u32>> =
                self.hits.members[family].iter().map(|_| null()).collect::<PyResult<_>>()?;
            for unit in blocks.map(|block| (block + 1) * scale - 1).chain(found.tail) {
                let each = self.at(family, unit)?.unwrap_or_default();
                ids.iter_mut().zip(each).for_each(|(ids, id)| ids.push(id));
            }
            for (&member, ids) in self.hits.members[family].iter().zip(&ids) {
                let handles = self.core.handles(py, ids)?;
                if is_full {
                    let table = self.memos[member].handles(py, self.core, found.end)?;
                    table.set_slice(found.end, found.end, &handles)?;
                    tables[member] = table;
                } else {
                    tables[member] = handles;
                }
            }
        }
        PyTuple::new(py, tables)
    }
}

impl Index for Ask<'_, '_> {
    type Error = PyErr;

    fn run(&mut self, family: usize, blocks: usize) -> PyResult<usize> {
        let (mut run, scale) = (blocks, self.hits.lookup.scale(family));
        for &member in &self.hits.members[family] {
            let number = self.groups[member].number;
            run = self.memos[member].run(&self.core.shared, self.hashes, (number, scale), run)?.min(run);
        }
        Ok(run)
    }

    fn has(&mut self, family: usize, unit: usize) -> PyResult<bool> {
        Ok(self.at(family, unit)?.is_some())
    }
}
