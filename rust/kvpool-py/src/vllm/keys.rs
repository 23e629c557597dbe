//! Reads the digests of a request, and converts removed keys for vLLM.

use kvpool_vllm::{Key, Removed};
use pyo3::types::{PyBytes, PyList};

use crate::errors::OrRaise;
use crate::gather::push;
use crate::python::prelude::*;

/// Returns removed keys as pairs of key and bool, which is true if no block has this key any more.
pub(super) fn removed_keys<'py>(py: Python<'py>, removed: &[Removed]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(
        py,
        removed.iter().map(|removed| (PyBytes::new(py, removed.key.as_bytes()), removed.last_copy)),
    )
}

/// Returns the digest of block `at`. A block has `scale` entries in the request's hashes, and its
/// digest is the last of them.
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

/// Returns an entry per block from block `first` on: its digest if `wanted` is true for it, otherwise `None`.
/// Checks that each digest is short enough for a key.
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
