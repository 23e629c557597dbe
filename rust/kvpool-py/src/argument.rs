//! Converts arguments of calls from Python.
//!
//! The attributes of kvpool-py-macros call [`take`] for each argument, with its name. So every error of a
//! conversion is one of `kvpool.errors` and contains the name of the argument. The thread is also protected
//! ([`crate::python`]) before Python code of an argument runs. No conversion trusts the length that an object
//! reports. Lists and mappings are passed on as Python objects, and [`crate::gather`] reads their items.

use std::path::PathBuf;

use pyo3::PyTypeInfo;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::types::{PyBytes, PyString};

use crate::convert::{Int, Text, count, float, shown, text};
use crate::errors::{is_kvpool, raise};
use crate::python::prelude::*;
use crate::python::protect;

/// A Rust type to which an argument from Python can be converted.
#[diagnostic::on_unimplemented(
    message = "an argument cannot be a `{Self}`",
    note = "take a sequence or a mapping as `&Bound<'_, PyAny>` and read it with `crate::gather`"
)]
pub(crate) trait Argument<'a, 'py>: Sized {
    /// Returns the description of a valid argument that errors contain, such as "an int".
    fn expected(py: Python<'py>) -> String;

    fn convert(name: &str, object: &'a Bound<'py, PyAny>) -> PyResult<Self>;
}

/// Converts the argument called `name`. Errors about its type or value become those of `kvpool.errors`.
pub(crate) fn take<'a, 'py, T: Argument<'a, 'py>>(name: &str, object: &'a Bound<'py, PyAny>) -> PyResult<T> {
    protect();
    T::convert(name, object).map_err(|error| wrong(name, object, T::expected, error))
}

/// Like [`take`]. The argument is a number of blocks, tokens or bytes, which must not be negative.
pub(crate) fn take_count(name: &str, object: &Bound<'_, PyAny>) -> PyResult<usize> {
    count(object.py(), name, take::<Int>(name, object)?)
}

#[cold]
fn wrong<'py>(
    name: &str,
    object: &Bound<'py, PyAny>,
    expected: fn(Python<'py>) -> String,
    error: PyErr,
) -> PyErr {
    let py = object.py();
    if is_kvpool(py, &error) {
        return error;
    }
    let raised = if error.is_instance_of::<PyTypeError>(py) {
        let found = object.get_type().name().map_or_else(|_| "?".into(), |name| name.to_string());
        let value = object.repr().map_or_else(|_| "a value".into(), |repr| shown(repr.as_any()));
        raise(py, "ArgumentTypeError", format!("{name} is {value}, {}: must be {}", a(&found), expected(py)))
    } else if error.is_instance_of::<PyOverflowError>(py) || error.is_instance_of::<PyValueError>(py) {
        raise(py, "InvalidArgumentError", format!("{name} is {}: must be {}", shown(object), expected(py)))
    } else {
        return error;
    };
    // An error with a traceback was raised by Python code of the argument, so it becomes the cause.
    if error.traceback(py).is_some() {
        raised.set_cause(py, Some(error));
    }
    raised
}

fn a(name: &str) -> String {
    let article = if name.starts_with(['A', 'E', 'I', 'O', 'a', 'e', 'i', 'o']) { "an" } else { "a" };
    format!("{article} {name}")
}

/// Implements `Argument` for a type that has its own conversion from Python objects. The expression is the
/// text of [`Argument::expected`].
macro_rules! convert_itself {
    ($type:ty: $expected:expr) => {
        impl<'a, 'py> $crate::argument::Argument<'a, 'py> for $type {
            fn expected(_: pyo3::Python<'py>) -> String {
                $expected.into()
            }

            fn convert(_: &str, object: &'a pyo3::Bound<'py, pyo3::PyAny>) -> pyo3::PyResult<Self> {
                $crate::python::prelude::PyObjectMethods::extract::<$type>(object).map_err(Into::into)
            }
        }
    };
}

pub(crate) use convert_itself;

convert_itself!(bool: "a bool");
convert_itself!(Int: "an int");
convert_itself!((Int, Int): "a tuple of two ints");
convert_itself!(u32: format!("an int from 0 to {}", u32::MAX));
convert_itself!(u64: format!("an int from 0 to {}", u64::MAX));
convert_itself!(usize: format!("an int from 0 to {}", usize::MAX));
convert_itself!(isize: format!("an int from {} to {}", isize::MIN, isize::MAX));
convert_itself!(PathBuf: "a path");
convert_itself!((PathBuf, PathBuf): "a tuple of two paths");
convert_itself!((usize, Bound<'py, PyAny>): "a tuple of an int and a function");

impl<'a, 'py> Argument<'a, 'py> for i128 {
    fn expected(_: Python<'py>) -> String {
        "an int".into()
    }

    fn convert(_: &str, object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        object.extract::<Int>().map(Self::from)
    }
}

impl<'a, 'py> Argument<'a, 'py> for f64 {
    fn expected(_: Python<'py>) -> String {
        "a float".into()
    }

    fn convert(_: &str, object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        float(object)
    }
}

impl<'a, 'py> Argument<'a, 'py> for &'a str {
    fn expected(_: Python<'py>) -> String {
        "a str".into()
    }

    fn convert(name: &str, object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        text(object.cast::<PyString>()?, name)
    }
}

impl<'a, 'py> Argument<'a, 'py> for Text {
    fn expected(_: Python<'py>) -> String {
        "a str".into()
    }

    fn convert(name: &str, object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        Ok(Self(text(object.cast::<PyString>()?, name)?.to_owned()))
    }
}

impl<'a, 'py> Argument<'a, 'py> for &'a [u8] {
    fn expected(_: Python<'py>) -> String {
        "bytes".into()
    }

    fn convert(_: &str, object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        Ok(object.cast::<PyBytes>()?.as_bytes())
    }
}

impl<'a, 'py, T: Argument<'a, 'py>> Argument<'a, 'py> for Option<T> {
    fn expected(py: Python<'py>) -> String {
        format!("{} or None", T::expected(py))
    }

    fn convert(name: &str, object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        if object.is_none() { Ok(None) } else { T::convert(name, object).map(Some) }
    }
}

pub(crate) fn instance<T: PyTypeInfo>(py: Python<'_>) -> String {
    let name = T::type_object(py).name().map_or_else(|_| "?".into(), |name| name.to_string());
    a(&name)
}

impl<'a, 'py, T: PyTypeInfo> Argument<'a, 'py> for &'a Bound<'py, T> {
    fn expected(py: Python<'py>) -> String {
        instance::<T>(py)
    }

    fn convert(_: &str, object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        Ok(object.cast::<T>()?)
    }
}

impl<'a, 'py, T: PyTypeInfo> Argument<'a, 'py> for Bound<'py, T> {
    fn expected(py: Python<'py>) -> String {
        instance::<T>(py)
    }

    fn convert(_: &str, object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        Ok(object.cast::<T>()?.clone())
    }
}

impl<'a, 'py, T: PyTypeInfo> Argument<'a, 'py> for Py<T> {
    fn expected(py: Python<'py>) -> String {
        instance::<T>(py)
    }

    fn convert(_: &str, object: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        Ok(object.cast::<T>()?.clone().unbind())
    }
}

/// Implements `Argument` for a reference to the Rust value of a frozen class.
macro_rules! held {
    ($class:ty) => {
        impl<'a, 'py> $crate::argument::Argument<'a, 'py> for &'a $class {
            fn expected(py: pyo3::Python<'py>) -> String {
                $crate::argument::instance::<$class>(py)
            }

            fn convert(_: &str, object: &'a pyo3::Bound<'py, pyo3::PyAny>) -> pyo3::PyResult<Self> {
                Ok(object.cast::<$class>()?.get())
            }
        }
    };
}

pub(crate) use held;
