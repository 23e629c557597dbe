//! Request ids from Python: a str, an int, or an object with `__index__`, such as numpy's integers.

use kvpool::{RequestId, RequestRef};
use pyo3::buffer::ElementType;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::intern;
use pyo3::types::{PyBool, PyBytes, PyInt, PyList, PyString};

use crate::convert::{has_items, items, native, shown, text, untyped};
use crate::errors::raise;
use crate::gather::{drain, list_of};
use crate::python::prelude::*;

/// Returns a request id that is borrowed from a Python str or int.
pub(crate) fn request_ref<'a>(id: &'a Bound<'_, PyAny>) -> PyResult<RequestRef<'a>> {
    let py = id.py();
    // An exact str is tested first, because that is one comparison. The test for a subclass is a call.
    if let Ok(name) = id.cast_exact::<PyString>().or_else(|_| id.cast::<PyString>()) {
        return text(name, "a request id").map(RequestRef::Str);
    }
    let refused = |error: Option<PyErr>| match error {
        Some(error) if !error.is_instance_of::<PyTypeError>(py) => error,
        _ => {
            let found = id.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
            raise(py, "ArgumentTypeError", format!("a request id is a str or an int, not a {found}"))
        }
    };
    if id.is_instance_of::<PyBool>() {
        return Err(refused(None));
    }
    match id.extract::<i64>() {
        Ok(number) => Ok(RequestRef::Int(number)),
        Err(error) if error.is_instance_of::<PyOverflowError>(py) => {
            id.extract::<u64>().map(RequestRef::from).map_err(|_| {
                let limits = format!("{} to {}", i64::MIN, u64::MAX);
                let message =
                    format!("request id {} is out of range: must be from {limits}, or a str", shown(id));
                raise(py, "InvalidArgumentError", message)
            })
        }
        Err(error) => Err(refused(Some(error))),
    }
}

/// Returns the id if it is an exact str, as most ids of a batch are. The attribute inlines the function to
/// save a call, although the bindings are optimized for size.
#[inline(always)]
fn exact_name<'a>(id: &'a Bound<'_, PyAny>) -> Option<RequestRef<'a>> {
    id.cast_exact::<PyString>().ok()?.to_str().ok().map(RequestRef::Str)
}

pub(crate) fn is_one(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    match is_exact(object) {
        Some(one) => Ok(one),
        None => Ok(is_subclass(object) || !has_items(object)?),
    }
}

/// Whether an argument is the id of a request, and not the tokens of a prompt.
pub(crate) fn is_request(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    match is_exact(object) {
        Some(one) => Ok(one),
        None => {
            let index = intern!(object.py(), "__index__");
            Ok(is_subclass(object) || (object.hasattr(index)? && !has_items(object)?))
        }
    }
}

/// Returns true for an exact str or int, false for an exact list, and `None` for other types. The function
/// only compares types, and calls no Python code.
#[inline(always)]
fn is_exact(object: &Bound<'_, PyAny>) -> Option<bool> {
    if object.cast_exact::<PyString>().is_ok() || object.cast_exact::<PyInt>().is_ok() {
        return Some(true);
    }
    object.cast_exact::<PyList>().is_ok().then_some(false)
}

fn is_subclass(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyString>() || object.is_instance_of::<PyInt>()
}

pub(crate) fn request_id(id: &Bound<'_, PyAny>) -> PyResult<RequestId> {
    Ok(request_ref(id)?.to_owned())
}

pub(crate) enum RequestIds<'py> {
    /// The items of a sequence of str and int, from which the ids are borrowed.
    Items(Vec<Bound<'py, PyAny>>),
    /// The ids of an int64 buffer. There is no Python object per request.
    Numbers(Vec<i64>),
}

impl<'py> RequestIds<'py> {
    pub(crate) fn new(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(list) = object.cast_exact::<PyList>() {
            return list_of(object.py(), "request_ids", list.iter()).map(Self::Items);
        }
        let wrong = |found: &str| {
            let message = format!(
                "request_ids is {found}: must be a list of str and int, or a one-dimensional buffer of int64"
            );
            raise(object.py(), "ArgumentTypeError", message)
        };
        if object.is_instance_of::<PyString>() || object.is_instance_of::<PyBytes>() {
            return Err(wrong(&format!("a {}", object.get_type().name()?)));
        }
        if let Some(buffer) = untyped(object) {
            return match native(buffer.format()) {
                _ if buffer.dimensions() != 1 => {
                    Err(wrong(&format!("a buffer of {} dimensions", buffer.dimensions())))
                }
                Some(ElementType::SignedInteger { bytes: 8 }) => {
                    Ok(Self::Numbers(items(&buffer, object, i64::from_ne_bytes)?))
                }
                _ => Err(wrong(&format!("a buffer of format {:?}", buffer.format()))),
            };
        }
        match object.try_iter() {
            Err(_) => Err(wrong(&format!("a {}", object.get_type().name()?))),
            Ok(items) => Ok(Self::Items(drain("request_ids", items, |_, item| Ok(item))?)),
        }
    }

    pub(crate) fn refs(&self) -> PyResult<Vec<RequestRef<'_>>> {
        match self {
            Self::Items(items) => {
                let mut refs = Vec::with_capacity(items.len());
                for item in items {
                    refs.push(if let Some(name) = exact_name(item) { name } else { request_ref(item)? });
                }
                Ok(refs)
            }
            Self::Numbers(numbers) => Ok(numbers.iter().map(|&number| RequestRef::Int(number)).collect()),
        }
    }
}
