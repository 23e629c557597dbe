//! The CUDA driver, which is loaded at run time. Every result of a call is checked.
//!
//! `api` is the table of functions, `objects` wraps the objects that the driver creates, `context`
//! represents a device, and `enqueue` puts work on its streams.

#![expect(unsafe_code, reason = "calls the CUDA driver; a comment at each call states why it is sound")]

mod api;
mod context;
mod enqueue;
mod objects;

pub(crate) use context::Context;
pub use context::StreamHandle;
pub(crate) use enqueue::{Blocks, Grid, Side};
pub(crate) use objects::{DeviceMemory, Event, PinnedMemory, Registration, Stream, Table};

use crate::error::Unavailable;

/// Returns the driver's version: `1000 * major + 10 * minor`.
///
/// # Errors
/// [`Unavailable`] if the driver cannot be loaded or initialised.
pub fn driver_version() -> Result<i32, Unavailable> {
    api::api().map(|api| api.version)
}
