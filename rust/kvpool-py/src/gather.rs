//! Conversion of Python sequences, without trust in the lengths that they report.
//!
//! This module has the only functions of the bindings that make a list of a caller's items. They reserve
//! memory as items arrive, and raise an exception if memory runs out. An object may report a wrong length, or
//! have an endless iterator. A buffer may report a terabyte of items that are all the same number. None of
//! these can abort the process. Ctrl-C interrupts the conversion.

use std::mem;

use pyo3::exceptions::{PyMemoryError, PyTypeError};
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyFrozenSet, PyIterator, PySet, PyString};

use crate::errors::{is_ours, raise};
use crate::python::Single;
use crate::python::prelude::*;

/// Number of items between two checks for signals, such as Ctrl-C.
const SIGNALS: usize = 1 << 16;

/// Returns the error for a list of `items` or more items for which there is no memory.
pub(crate) fn no_room(py: Python<'_>, what: &str, items: usize) -> PyErr {
    let message =
        format!("{what}: {items} items and more do not fit the memory that is left; name fewer at once");
    raise(py, "TooLargeError", message)
}

pub(crate) fn with_room<T>(py: Python<'_>, what: &str, items: usize) -> PyResult<Vec<T>> {
    let mut list = Vec::new();
    match list.try_reserve_exact(items) {
        Ok(()) => Ok(list),
        Err(_) => Err(no_room(py, what, items)),
    }
}

/// Collects a Rust iterator whose length is known into a list.
pub(crate) fn list_of<T>(
    py: Python<'_>,
    what: &str,
    items: impl ExactSizeIterator<Item = T>,
) -> PyResult<Vec<T>> {
    let mut list = with_room(py, what, items.len())?;
    list.extend(items);
    Ok(list)
}

/// Converts each item of a Python iterator with `item`, and returns a list of the results.
pub(crate) fn drain<'py, T>(
    what: &str,
    items: Bound<'py, PyIterator>,
    mut item: impl FnMut(usize, Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let py = items.py();
    let mut list: Vec<T> = Vec::new();
    for (position, next) in items.enumerate() {
        // If memory runs out, an allocation of the interpreter may fail before the reservation of this
        // function does. The error of the caller is the same in both cases.
        let next = match next {
            Err(error) if error.is_instance_of::<PyMemoryError>(py) => {
                drop(list);
                return Err(no_room(py, what, position));
            }
            next => next?,
        };
        let converted = item(position, next)?;
        push(py, what, &mut list, converted)?;
        if position % SIGNALS == SIGNALS - 1 {
            crate::python::check_signals(py)?;
        }
    }
    Ok(list)
}

/// Appends an item. If there is no memory, drops the list and returns an error, because the exception needs
/// memory, too.
pub(crate) fn push<T>(py: Python<'_>, what: &str, list: &mut Vec<T>, item: T) -> PyResult<()> {
    if list.len() == list.capacity() && list.try_reserve(1).is_err() {
        let items = list.len();
        drop(mem::take(list));
        return Err(no_room(py, what, items));
    }
    list.push(item);
    Ok(())
}

/// Converts each item of a sequence, or of another ordered iterable, with `item`.
pub(crate) fn gather<'py, T>(
    what: &str,
    object: &Bound<'py, PyAny>,
    item: impl FnMut(usize, Bound<'py, PyAny>) -> PyResult<T>,
) -> PyResult<Vec<T>> {
    let unordered = object.is_instance_of::<PySet>()
        || object.is_instance_of::<PyFrozenSet>()
        || object.is_instance_of::<PyDict>();
    let text = object.is_instance_of::<PyString>()
        || object.is_instance_of::<PyBytes>()
        || object.is_instance_of::<PyByteArray>();
    match object.try_iter() {
        Ok(items) if !unordered && !text => drain(what, items, item),
        Err(error) if !error.is_instance_of::<PyTypeError>(object.py()) => Err(error),
        _ => {
            let found = object.get_type().name()?;
            Err(raise(object.py(), "ArgumentTypeError", format!("{what} is a {found}: must be a sequence")))
        }
    }
}

/// Like [`gather`], for items whose Rust type has a conversion. The error for an invalid item contains its
/// position.
pub(crate) fn gather_as<'py, T>(what: &str, object: &Bound<'py, PyAny>, each: &str) -> PyResult<Vec<T>>
where
    T: for<'a> FromPyObject<'a, 'py> + Single,
{
    gather(what, object, |position, item| extract(what, position, &item, each))
}

/// Converts an item of a sequence. `each` is the description of a valid item that errors contain.
pub(crate) fn extract<'py, T>(
    what: &str,
    position: usize,
    item: &Bound<'py, PyAny>,
    each: &str,
) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py> + Single,
{
    or_wrong_item(what, position, item, each, item.extract().map_err(Into::into))
}

pub(crate) fn or_wrong_item<T>(
    what: &str,
    position: usize,
    item: &Bound<'_, PyAny>,
    each: &str,
    converted: PyResult<T>,
) -> PyResult<T> {
    let py = item.py();
    converted.map_err(|error| {
        if is_ours(py, &error) {
            return error; // it names a value already
        }
        let found = item.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        let message = format!("item {position} of {what} is a {found}: must be {each}");
        raise(py, "ArgumentTypeError", message)
    })
}
