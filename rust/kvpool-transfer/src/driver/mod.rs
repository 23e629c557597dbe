//! The CUDA driver: found at run time, with every result checked.
//!
//! This module and `memory` are the only ones with unsafe code. `api` is the table of functions,
//! `objects` wraps what the driver creates, `context` is a device, and `enqueue` puts work on its
//! streams.

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

/// Returns the driver's version (1000 * major + 10 * minor).
///
/// # Errors
/// [`Unavailable`].
pub fn driver_version() -> Result<i32, Unavailable> {
    api::api().map(|api| api.version)
}
