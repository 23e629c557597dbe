//! The digests of a request, and the keys that a pool removed, as vLLM writes them.

use kvpool_vllm::{Key, Removed};
use pyo3::types::{PyBytes, PyList};

use crate::errors::OrRaise;
use crate::gather::push;
use crate::python::prelude::*;

/// Keys that were removed, as vLLM writes them, each with whether it leads nowhere now.
pub(super) fn removed_keys<'py>(py: Python<'py>, removed: &[Removed]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(
        py,
        removed.iter().map(|removed| (PyBytes::new(py, removed.key.as_bytes()), removed.last_copy)),
    )
}

/// The digest of the block `at` in a request's hashes, which may be finer than its blocks by `scale`.
pub(super) fn digest<'py>(
    hashes: &Bound<'py, PyAny>,
    at: usize,
    scale: usize,
) -> PyResult<Bound<'py, PyBytes>> {
    let at = (at + 1) * scale - 1;
    let digest = match hashes.cast::<PyList>() {
        Ok(list) => list.get_item(at)?,
        Err(_) => hashes.get_item(at)?,
    };
    Ok(digest.cast_into::<PyBytes>()?)
}

/// The digests of blocks `first..` of a request, one per block that is wanted, and none for the others.
/// Each makes a key.
pub(super) fn digests<'py>(
    hashes: &Bound<'py, PyAny>,
    first: usize,
    scale: usize,
    wanted: impl Iterator<Item = bool>,
) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
    let py = hashes.py();
    let checked = |at| -> PyResult<_> {
        let digest = digest(hashes, at, scale)?;
        Key::check_digest(digest.as_bytes()).or_raise(py)?;
        Ok(digest)
    };
    let mut digests = Vec::new();
    for (i, wanted) in wanted.enumerate() {
        push(py, "hashes", &mut digests, wanted.then(|| checked(first + i)).transpose()?)?;
    }
    Ok(digests)
}
