//! Reads the digests of a request as keys, and converts removed keys for vLLM.

use kvpool_vllm::{Key, Removed};
use pyo3::types::{PyBytes, PyList};

use crate::convert::read_item;
use crate::errors::OrRaise;
use crate::gather::with_room;
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

/// Returns the key of block `at` in a group. See [`digest`].
pub(super) fn key(hashes: &Bound<'_, PyAny>, at: usize, scale: usize, group: u32) -> PyResult<Key> {
    let py = hashes.py();
    if let Ok(list) = hashes.cast::<PyList>() {
        // SAFETY: the closure only copies bytes.
        let key = unsafe {
            read_item(list, (at + 1) * scale - 1, |digest| {
                Some(Key::new(digest.cast::<PyBytes>().ok()?.as_bytes(), group))
            })
        };
        if let Some(Some(key)) = key {
            return key.or_raise(py);
        }
    }
    Key::new(digest(hashes, at, scale)?.as_bytes(), group).or_raise(py)
}

/// Returns an entry per block from block `first` on: its key if `wanted` is true for it, otherwise `None`.
pub(super) fn keys(
    hashes: &Bound<'_, PyAny>,
    first: usize,
    scale: usize,
    group: u32,
    wanted: impl ExactSizeIterator<Item = bool>,
) -> PyResult<Vec<Option<Key>>> {
    let mut keys = with_room(hashes.py(), "hashes", wanted.len())?;
    for (i, wanted) in wanted.enumerate() {
        keys.push(if wanted { Some(key(hashes, first + i, scale, group)?) } else { None });
    }
    Ok(keys)
}
