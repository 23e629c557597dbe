//! Names that the classes had in an earlier version.

use pyo3::exceptions::PyAttributeError;
use pyo3::types::PyString;

use crate::python::prelude::*;

/// Returns what an attribute that the class does not have is called now, or raises `AttributeError`.
///
/// The table of names is in `kvpool._removed`. Names that begin with an underscore are in no table, and
/// Python looks some of them up while it ends.
pub(crate) fn renamed<'py>(
    object: &Bound<'py, PyAny>,
    name: &Bound<'py, PyString>,
) -> PyResult<Bound<'py, PyAny>> {
    if name.to_str().is_ok_and(|name| !name.starts_with('_')) {
        let table = crate::python::import(object.py(), "kvpool._removed")?;
        return table.getattr("renamed")?.call1((object, name));
    }
    let class = object.get_type().name()?;
    Err(PyAttributeError::new_err(format!("'{class}' object has no attribute {}", name.repr()?)))
}
