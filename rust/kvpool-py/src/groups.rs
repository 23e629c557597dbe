//! Bindings of `GroupSpec`, a KV-cache group of a hybrid model.

use kvpool::groups::{GroupKind, GroupSpec, Groups, Keep};
use kvpool::{GroupFit, NewBlock, TableChange};
use pyo3::types::PyString;

use crate::convert::{Int, count};
use crate::errors::{OrRaise, raise};
use crate::gather::{extract, gather};
use crate::python::prelude::*;

#[pyclass(frozen, module = "kvpool._core.groups", name = "GroupSpec", eq, hash)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PyGroupSpec(pub(crate) GroupSpec);

const KINDS: &str = "'full', 'sliding', 'chunked', 'state' or 'cross'";

/// Returns the argument `name`, a size of a group. Refuses it unless the group's kind `takes` it, and
/// requires it in that case.
fn size_of(py: Python<'_>, name: &str, kind: &str, takes: bool, given: Option<Int>) -> PyResult<usize> {
    match given {
        Some(size) if takes => count(py, name, size),
        None if !takes => Ok(0),
        Some(_) => Err(raise(py, "InvalidArgumentError", format!("{name} is not for the kind {kind:?}"))),
        None => Err(raise(py, "InvalidArgumentError", format!("the kind {kind:?} needs {name}: tokens"))),
    }
}

/// Returns the kind of group called `kind`. Its window or chunk has `span` tokens.
pub(crate) fn named(py: Python<'_>, kind: &str, span: usize) -> PyResult<GroupKind> {
    let unknown = || {
        let message = format!("kind is {:?}: must be {KINDS}", kvpool::shorten(kind));
        raise(py, "InvalidArgumentError", message)
    };
    GroupKind::named(kind, span).ok_or_else(unknown)
}

/// Converts the selection of blocks that remain cached, from a name or a number of tokens.
pub(crate) fn keep(keep: &Bound<'_, PyAny>) -> PyResult<Keep> {
    let py = keep.py();
    let wrong = |found: String| {
        raise(
            py,
            "InvalidArgumentError",
            format!("keep is {found}: must be 'all', 'junctions', 'none', or a number of tokens"),
        )
    };
    if let Ok(name) = keep.cast::<PyString>() {
        return match name.to_string_lossy().as_ref() {
            "all" => Ok(Keep::All),
            "junctions" => Ok(Keep::Junctions),
            "none" => Ok(Keep::Nothing),
            other => Err(wrong(format!("{:?}", kvpool::shorten(other)))),
        };
    }
    Ok(Keep::Every(count(py, "keep", crate::argument::take::<i128>("keep", keep)?)?))
}

#[pymethods]
impl PyGroupSpec {
    #[new]
    #[pyo3(signature = (kind, block_size=16, *, window=None, chunk=None, sink=0, keep=None, margin=0,
    partial_hits=false),
           text_signature = "(kind, block_size=16, *, window=None, chunk=None, sink=0, keep='all', margin=0, \
               partial_hits=False)")]
    fn new(
        py: Python<'_>,
        kind: &str,
        block_size: i128,
        window: Option<Int>,
        chunk: Option<Int>,
        sink: i128,
        keep: Option<&Bound<'_, PyAny>>,
        margin: i128,
        partial_hits: bool,
    ) -> PyResult<Self> {
        let window = size_of(py, "window", kind, kind == "sliding", window)?;
        let chunk = size_of(py, "chunk", kind, kind == "chunked", chunk)?;
        let kind = named(py, kind, window.max(chunk))?;
        let keep = keep.map_or(Ok(Keep::All), self::keep)?;
        let margin = count(py, "margin", margin)?;
        let block_tokens = count(py, "block_size", block_size)?;
        let sink_tokens = count(py, "sink", sink)?;
        let spec =
            GroupSpec { keep, margin, partial_hits, sink_tokens, ..GroupSpec::new(kind, block_tokens) };
        Groups::new(vec![spec], None).or_raise(py)?;
        Ok(Self(spec))
    }

    getters! {
        kind: &'static str = self.0.kind.name();
        block_size: usize = self.0.block_tokens;
        sink: usize = self.0.sink_tokens;
        margin: usize = self.0.margin;
        partial_hits: bool = self.0.partial_hits;
    }

    #[getter]
    const fn window(&self) -> Option<usize> {
        if let GroupKind::Sliding { window } = self.0.kind { Some(window) } else { None }
    }

    #[getter]
    const fn chunk(&self) -> Option<usize> {
        if let GroupKind::Chunked { chunk } = self.0.kind { Some(chunk) } else { None }
    }

    #[getter]
    fn keep<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self.0.keep {
            Keep::Every(tokens) => tokens.into_pyobject(py)?.into_any(),
            Keep::Junctions => "junctions".into_pyobject(py)?.into_any(),
            Keep::Nothing => "none".into_pyobject(py)?.into_any(),
            _ => "all".into_pyobject(py)?.into_any(),
        })
    }

    fn __repr__(&self) -> String {
        let mut text = format!("GroupSpec({:?}, {}", self.kind(), self.block_size());
        let sizes = [("window", self.window()), ("chunk", self.chunk())];
        text.extend(sizes.iter().filter_map(|(name, size)| Some(format!(", {name}={}", (*size)?))));
        if self.0.sink_tokens > 0 {
            text.push_str(&format!(", sink={}", self.0.sink_tokens));
        }
        match self.0.keep {
            Keep::Every(tokens) => text.push_str(&format!(", keep={tokens}")),
            Keep::Junctions => text.push_str(", keep='junctions'"),
            Keep::Nothing => text.push_str(", keep='none'"),
            _ => {}
        }
        if self.0.margin > 0 {
            text.push_str(&format!(", margin={}", self.0.margin));
        }
        if self.0.partial_hits {
            text.push_str(", partial_hits=True");
        }
        text.replace('"', "'") + ")"
    }
}

/// Converts the argument `groups` of a manager, which hashes prompts in units of `block_size` tokens.
pub(crate) fn groups(specs: &Bound<'_, PyAny>, block_size: usize) -> PyResult<Groups> {
    let py = specs.py();
    let specs = gather("groups", specs, |position, item| {
        let spec: PyRef<'_, PyGroupSpec> = extract("groups", position, &item, "GroupSpec")?;
        Ok(spec.0)
    })?;
    Groups::new(specs, Some(block_size)).or_raise(py)
}

#[pyclass(frozen, get_all, module = "kvpool._core.groups", name = "GroupFit", eq)]
#[of(GroupFit)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct PyGroupFit {
    reach_tokens: usize,
    new_blocks: usize,
}

#[pymethods]
impl PyGroupFit {
    repr! { reach_tokens, new_blocks }
}

/// Returns the changes of a block table as tuples of position and block, plus the group if there are several.
pub(crate) fn changed<'py>(
    py: Python<'py>,
    changes: &[TableChange],
    grouped: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let with = |change: &TableChange| (change.index, change.block.get(), change.group);
    if grouped {
        return changes.iter().map(with).collect::<Vec<_>>().into_pyobject(py);
    }
    changes.iter().map(with).map(|(index, block, _)| (index, block)).collect::<Vec<_>>().into_pyobject(py)
}

/// Returns the changes of a batch as tuples of row, position and block, plus the group if there are several.
pub(crate) fn added<'py>(
    py: Python<'py>,
    changes: &[NewBlock],
    grouped: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let with = |change: &NewBlock| (change.row, change.index, change.block.get(), change.group);
    if grouped {
        return changes.iter().map(with).collect::<Vec<_>>().into_pyobject(py);
    }
    let without = |(row, index, block, _)| (row, index, block);
    changes.iter().map(with).map(without).collect::<Vec<_>>().into_pyobject(py)
}
