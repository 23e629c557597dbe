//! Typed errors. Each names the offending value and the limit; whatever raised one has enqueued nothing.

use std::fmt;
use std::time::Duration;

use crate::words::Device;
use crate::words::Method;

/// A call of the CUDA driver that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaError {
    /// The driver's result code.
    pub code: i32,
    /// Its name, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// The function that returned it.
    pub call: &'static str,
}

impl CudaError {
    /// Whether the error outlives the call: the context is lost, and every later call fails.
    #[must_use]
    pub const fn is_sticky(&self) -> bool {
        matches!(self.code, 214 | 220 | 700 | 702 | 710 | 714..=719)
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.call, self.name, self.code)
    }
}

impl std::error::Error for CudaError {}

/// Why there is no CUDA driver to work with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The library cannot be loaded: a machine without a GPU, mostly.
    #[error("no CUDA driver: {library} cannot be loaded ({reason})")]
    NoLibrary {
        /// Its file name.
        library: String,
        /// What the loader says.
        reason: String,
    },
    /// The library lacks a function that is needed.
    #[error("the CUDA driver {library} lacks {symbol}: 12.0 (R525) is the oldest that works")]
    MissingSymbol {
        /// The library's file name.
        library: String,
        /// The function.
        symbol: &'static str,
    },
    /// The driver is too old.
    #[error(
        "the CUDA driver is of version {}.{}: 12.0 (R525) is the oldest that works",
        .version / 1000, .version % 1000 / 10
    )]
    TooOld {
        /// Its version, as the driver tells it: 1000 * major + 10 * minor.
        version: i32,
    },
    /// The driver is there and does not start; without a device, `CUDA_ERROR_NO_DEVICE`.
    #[error("the CUDA driver does not start: {0}")]
    Init(CudaError),
    /// No such device.
    #[error("there is no cuda:{ordinal}: the driver sees {devices} devices")]
    NoDevice {
        /// The device.
        ordinal: u32,
        /// Devices there are.
        devices: u32,
    },
}

/// Which end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// What is read.
    Source,
    /// What is written.
    Destination,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "source",
            Self::Destination => "destination",
        })
    }
}

/// Why a copy is refused, or how it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// A block that the store does not have.
    #[error(
        "pair {position} of the mapping: {end} block {block} is out of range: the store has {num_blocks} blocks, 0 to {}",
        .num_blocks - 1
    )]
    BlockIndex {
        /// Its place in the mapping.
        position: usize,
        /// Source or destination.
        end: End,
        /// The block.
        block: i64,
        /// Blocks of the store.
        num_blocks: u64,
    },
    /// A block that a store does not have, named alone.
    #[error("block {block} is out of range: the store has {num_blocks} blocks, 0 to {}", .num_blocks - 1)]
    Block {
        /// The block.
        block: i64,
        /// Blocks of the store.
        num_blocks: u64,
    },
    /// A device mapping held blocks that a store does not have; the kernel left them out.
    #[error("a device mapping held block ids out of range since the last poll: those pairs were not copied")]
    DeviceIndex,
    /// Two pairs write one block.
    #[error("pair {position} of the mapping writes block {block} again: each destination is named once")]
    DuplicateDestination {
        /// The second pair.
        position: usize,
        /// The block.
        block: u32,
    },
    /// What one pair reads, another writes.
    #[error(
        "pair {position} of the mapping reads block {block}, whose memory the same call writes: split it into rounds \
         (TransferPlan.rounds)"
    )]
    Overlap {
        /// The pair that reads.
        position: usize,
        /// The block that it reads.
        block: u32,
    },
    /// Memory that cannot be described as regions.
    #[error("this layout cannot be copied by blocks: {0}")]
    Layout(String),
    /// Two stores whose blocks differ.
    #[error("the stores differ: {0}")]
    LayoutMismatch(String),
    /// A number outside its range.
    #[error("{name} is {value}: {expected}")]
    Argument {
        /// Its name.
        name: &'static str,
        /// What was given.
        value: String,
        /// What is allowed.
        expected: String,
    },
    /// The store was closed.
    #[error("store {handle} is closed")]
    StoreClosed {
        /// Its handle.
        handle: i64,
    },
    /// No store has this handle.
    #[error("no store has the handle {handle}: it was dropped, or never made")]
    UnknownStore {
        /// The handle.
        handle: i64,
    },
    /// The engine was closed.
    #[error("the transfer engine is closed")]
    EngineClosed,
    /// The engine belongs to a process that was forked since.
    #[error(
        "the transfer engine was made by process {made_by}, this is process {this}: make one after a fork"
    )]
    Forked {
        /// Its maker.
        made_by: u32,
        /// This process.
        this: u32,
    },
    /// Stores that this engine does not serve.
    #[error("an engine of {engine} cannot copy from {src} to {dst}")]
    Devices {
        /// The engine's device.
        engine: Device,
        /// The source's.
        src: Device,
        /// The destination's.
        dst: Device,
    },
    /// A mapping on another device than the engine's.
    #[error("the mapping is on {mapping}, the engine copies for {engine}")]
    MappingDevice {
        /// The mapping's.
        mapping: Device,
        /// The engine's.
        engine: Device,
    },
    /// A method that cannot do this copy.
    #[error("method {method} cannot do this copy: {reason}")]
    Method {
        /// The method.
        method: Method,
        /// Why.
        reason: &'static str,
    },
    /// The stream is being captured into a graph.
    #[error("the stream is being captured into a CUDA graph: {0}")]
    Capturing(&'static str),
    /// Host memory cannot be page-locked.
    #[error("{bytes} bytes of host memory cannot be pinned: {reason}")]
    Pinning {
        /// How many.
        bytes: u64,
        /// Why.
        reason: String,
    },
    /// A file of calibrations that cannot be used.
    #[error("calibrations in {path}: {reason}")]
    Calibration {
        /// Its path.
        path: String,
        /// Why.
        reason: String,
    },
    /// Host memory cannot be had.
    #[error("{bytes} bytes of host memory cannot be had: {reason}")]
    HostMemory {
        /// How many.
        bytes: u64,
        /// Why.
        reason: String,
    },
    /// There is no driver.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The driver refused, or work that it had accepted failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The device's context was lost earlier.
    #[error("{device} takes no more work since an earlier failure: {cause}")]
    Poisoned {
        /// The device.
        device: Device,
        /// The failure.
        cause: CudaError,
    },
    /// A bug of this crate: its worker thread panicked.
    #[error("transfer {id} failed inside of kvpool: please report it")]
    Panicked {
        /// The transfer.
        id: u64,
    },
    /// It takes longer than the caller would wait. The transfer goes on.
    #[error("transfer {id} has not ended within {} s", .timeout.as_secs_f64())]
    Timeout {
        /// The transfer.
        id: u64,
        /// What was waited.
        timeout: Duration,
    },
}
