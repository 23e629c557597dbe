//! Converts numbers and times of settings to the types of the core.

use std::time::Duration;

use crate::convert::Int;
use crate::errors::raise;
use crate::python::prelude::*;

pub(super) fn u32_of(py: Python<'_>, name: &str, value: Int) -> PyResult<u32> {
    u32_from(py, name, i128::from(value))
}

pub(super) fn u32_from(py: Python<'_>, name: &str, value: i128) -> PyResult<u32> {
    u32::try_from(value).map_err(|_| {
        let limit = if value < 0 { "not be negative".into() } else { format!("be at most {}", u32::MAX) };
        raise(py, "InvalidArgumentError", format!("{name} is {value}: must {limit}"))
    })
}

pub(super) fn duration(py: Python<'_>, name: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        raise(py, "InvalidArgumentError", format!("{name} is {seconds} s: must be a time that can pass"))
    })
}
