//! Objects that belong to one process, because they have threads.
//!
//! A fork copies the memory of a process and only one of its threads. In the child, the threads of the object
//! do not exist, its locks may remain held for ever, and its files are shared with the parent. So the child
//! must neither use nor drop the object.

use crate::errors::raise;
use crate::python::prelude::*;

/// An object that only the process that made it may use and drop. In a forked child, calls are refused, and
/// the child's copy is leaked.
pub(crate) struct OfProcess<T> {
    made_by: u32,
    /// The object. It is `None` only while this struct is dropped.
    value: Option<T>,
}

impl<T> OfProcess<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { made_by: std::process::id(), value: Some(value) }
    }

    /// Returns the object, or an error in a forked child. The error calls the object `what`.
    pub(crate) fn get(&self, py: Python<'_>, what: &str) -> PyResult<&T> {
        let (made_by, this) = (self.made_by, std::process::id());
        if let Some(value) = self.value.as_ref().filter(|_| this == made_by) {
            return Ok(value);
        }
        let message =
            format!("{what} was made by process {made_by}, this is process {this}: make one after a fork");
        Err(raise(py, "ClosedError", message))
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if std::process::id() != self.made_by {
            std::mem::forget(self.value.take());
        }
    }
}
