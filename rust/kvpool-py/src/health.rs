//! `Health`, which stores the failure after which a policy written in Python is no longer used.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::errors::raise;
use crate::python::prelude::*;

/// Why a policy is no longer used: the called method and its exception.
#[derive(Debug, Default)]
pub(crate) struct Health(Mutex<Option<(&'static str, PyErr)>>);

impl Health {
    fn lock(&self) -> MutexGuard<'_, Option<(&'static str, PyErr)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Raises the failure that ended the policy, if there is one.
    pub(crate) fn check(&self, py: Python<'_>) -> PyResult<()> {
        let failure = self.lock().as_ref().map(|(method, error)| (*method, error.clone_ref(py)));
        let Some((method, cause)) = failure else { return Ok(()) };
        let error = raise(py, "PolicyError", describe(py, method, &cause));
        error.set_cause(py, Some(cause));
        Err(error)
    }

    /// Stores a failure of the policy, unless one is stored already. A later failure is dropped after the
    /// lock is released, because its destructor may run Python code.
    pub(crate) fn note(&self, method: &'static str, error: PyErr) {
        let mut kept = self.lock();
        let later = if kept.is_none() { kept.replace((method, error)) } else { Some((method, error)) };
        drop(kept);
        drop(later);
    }
}

pub(crate) fn describe(py: Python<'_>, method: &str, error: &PyErr) -> String {
    let shown = error.value(py).str().map_or_else(|_| "?".into(), |text| text.to_string());
    let class = error.get_type(py).name().map_or_else(|_| "?".into(), |name| name.to_string());
    format!("the eviction policy is used no more, and LRU instead: {method}() gave {class}: {shown}")
}
