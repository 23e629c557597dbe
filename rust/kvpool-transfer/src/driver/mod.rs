//! The CUDA driver: found at run time, every result checked.
//!
//! Beside `memory`, the only module with unsafe code. `api` is the table of functions, `objects` what
//! the driver hands out, `context` a device, `enqueue` what its streams are given to do.

#![expect(unsafe_code, reason = "calls the CUDA driver; each call says why it is sound")]

mod api;
mod context;
mod enqueue;
mod objects;

pub(crate) use context::Context;
pub use context::StreamHandle;
pub(crate) use enqueue::{Blocks, Grid, Side};
pub(crate) use objects::{DeviceMemory, Event, PinnedMemory, Registration, Stream, Table};

use crate::error::Unavailable;

/// The driver's version (1000 * major + 10 * minor), if there is one that works.
///
/// # Errors
/// [`Unavailable`].
pub fn driver_version() -> Result<i32, Unavailable> {
    api::api().map(|api| api.version)
}
