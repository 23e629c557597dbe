//! The clock that a caller sets with `clock.observe`. It works with and without metrics.

use std::sync::{Mutex, PoisonError};

use kvpool::PoolError;

use crate::errors::OrRaise;
use crate::python::prelude::*;

/// The latest time that a call has set.
#[derive(Default)]
pub(crate) struct Clock(Mutex<Option<f64>>);

impl Clock {
    /// Checks a time from Python, passes it to `observe`, and stores it if `observe` succeeds.
    pub(crate) fn observe(
        &self,
        py: Python<'_>,
        now: f64,
        observe: impl FnOnce() -> PyResult<()>,
    ) -> PyResult<()> {
        let before = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !now.is_finite() {
            return Err(PoolError::config("now", now, "a number of seconds")).or_raise(py);
        }
        if let Some(before) = before.filter(|&before| now < before) {
            let (now, before) = (now.to_string().into(), before.to_string().into());
            return Err(PoolError::TimeBackwards { now, before }).or_raise(py);
        }
        observe()?;
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = Some(latest.map_or(now, |latest| latest.max(now)));
        Ok(())
    }
}
