//! Errors. Each contains the offending value and the limit. A call that returns an error has enqueued
//! nothing.

use std::fmt;
use std::time::Duration;

use crate::words::Device;
use crate::words::Method;

/// A call of the CUDA driver that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaError {
    /// The driver's result code.
    pub code: i32,
    /// Name of the error, such as `CUDA_ERROR_OUT_OF_MEMORY`.
    pub name: String,
    /// Driver function that returned the code.
    pub call: &'static str,
}

impl CudaError {
    /// Whether the error is sticky: the context is lost, and every later call fails.
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

/// The reason why the CUDA driver or a device is unavailable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// The library cannot be loaded. Most often the machine has no GPU.
    #[error("no CUDA driver: {library} cannot be loaded ({reason})")]
    NoLibrary {
        /// File name of the library.
        library: String,
        /// Message of the loader.
        reason: String,
    },
    /// The library lacks a required function.
    #[error("the CUDA driver {library} lacks {symbol}: 12.0 (R525) is the oldest that works")]
    MissingSymbol {
        /// File name of the library.
        library: String,
        /// Name of the driver's missing function.
        symbol: &'static str,
    },
    /// The driver is too old.
    #[error(
        "the CUDA driver is of version {}.{}: 12.0 (R525) is the oldest that works",
        .version / 1000, .version % 1000 / 10
    )]
    TooOld {
        /// Version that the driver reports: `1000 * major + 10 * minor`.
        version: i32,
    },
    /// The driver exists but cannot be initialised. If there is no device, the code is
    /// `CUDA_ERROR_NO_DEVICE`.
    #[error("the CUDA driver does not start: {0}")]
    Init(CudaError),
    /// The driver has no device of this number.
    #[error("there is no cuda:{ordinal}: the driver sees {devices} devices")]
    NoDevice {
        /// Requested number of the device.
        ordinal: u32,
        /// Number of devices.
        devices: u32,
    },
}

/// One end of a copy: its source or its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The store that is read.
    Source,
    /// The store that is written.
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

/// The reason why the engine refuses a copy, or why a copy has failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// A pair contains the id of a block that the store does not have.
    #[error(
        "pair {position} of the mapping: {end} block {block} is out of range: the store has \
         {num_blocks} blocks, 0 to {}",
        .num_blocks - 1
    )]
    BlockIndex {
        /// Index of the pair in the mapping.
        position: usize,
        /// The side of the pair: source or destination.
        end: End,
        /// Id of the block.
        block: i64,
        /// Number of blocks in the store.
        num_blocks: u64,
    },
    /// The argument of a call is the id of a block that the store does not have.
    #[error("block {block} is out of range: the store has {num_blocks} blocks, 0 to {}", .num_blocks - 1)]
    Block {
        /// Id of the block.
        block: i64,
        /// Number of blocks in the store.
        num_blocks: u64,
    },
    /// A mapping on a device contained block ids out of range. The kernel skipped those pairs.
    #[error("a device mapping held block ids out of range since the last poll: those pairs were not copied")]
    DeviceIndex,
    /// Two pairs of a mapping write the same block.
    #[error("pair {position} of the mapping writes block {block} again: each destination is named once")]
    DuplicateDestination {
        /// Index of the second of the two pairs.
        position: usize,
        /// Id of the block.
        block: u32,
    },
    /// One pair of a mapping reads a block that another pair writes.
    #[error(
        "pair {position} of the mapping reads block {block}, whose memory the same call writes: split it \
         into rounds (TransferPlan.rounds)"
    )]
    Overlap {
        /// Index of the pair that reads.
        position: usize,
        /// The block that it reads.
        block: u32,
    },
    /// The memory cannot be described as regions.
    #[error("this layout cannot be copied by blocks: {0}")]
    Layout(String),
    /// The blocks of the two stores have different layouts.
    #[error("the stores differ: {0}")]
    LayoutMismatch(String),
    /// A value is out of range.
    #[error("{name} is {value}: {expected}")]
    Argument {
        /// Name of the refused argument.
        name: &'static str,
        /// Refused value of the argument.
        value: String,
        /// The allowed values.
        expected: String,
    },
    /// The store was closed.
    #[error("store {handle} is closed")]
    StoreClosed {
        /// Handle of the store.
        handle: i64,
    },
    /// No store has this handle.
    #[error("no store has the handle {handle}: it was dropped, or never created")]
    UnknownStore {
        /// The handle.
        handle: i64,
    },
    /// The engine was closed.
    #[error("the transfer engine is closed")]
    EngineClosed,
    /// The engine was made before a fork, by another process.
    #[error(
        "the transfer engine was made by process {made_by}, this is process {this}: make one after a fork"
    )]
    Forked {
        /// Id of the process that made the engine.
        made_by: u32,
        /// Id of this process.
        this: u32,
    },
    /// The engine does not support copies between the devices of the stores.
    #[error("an engine of {engine} cannot copy from {src} to {dst}")]
    Devices {
        /// The engine's device.
        engine: Device,
        /// Device of the source.
        src: Device,
        /// Device of the destination.
        dst: Device,
    },
    /// The mapping is on a different device from the engine.
    #[error("the mapping is on {mapping}, the engine copies for {engine}")]
    MappingDevice {
        /// Device of the mapping.
        mapping: Device,
        /// Device of the engine.
        engine: Device,
    },
    /// The method cannot do this copy.
    #[error("method {method} cannot do this copy: {reason}")]
    Method {
        /// The method.
        method: Method,
        /// The reason.
        reason: &'static str,
    },
    /// The stream is being captured into a graph.
    #[error("the stream is being captured into a CUDA graph: {0}")]
    Capturing(&'static str),
    /// The driver cannot page-lock the host memory.
    #[error("{bytes} bytes of host memory cannot be pinned: {reason}")]
    Pinning {
        /// Number of bytes.
        bytes: u64,
        /// The reason.
        reason: String,
    },
    /// A file with calibrations cannot be read or written, or has none for this card.
    #[error("calibrations in {path}: {reason}")]
    Calibration {
        /// Path of the file.
        path: String,
        /// The reason.
        reason: String,
    },
    /// Host memory cannot be allocated.
    #[error("{bytes} bytes of host memory are unavailable: {reason}")]
    HostMemory {
        /// Number of bytes.
        bytes: u64,
        /// The reason.
        reason: String,
    },
    /// There is no usable driver.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The driver refused a call, or work that it had accepted failed later.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// An earlier error has made the device's context unusable.
    #[error("{device} takes no more work since an earlier failure: {cause}")]
    Poisoned {
        /// The device.
        device: Device,
        /// The earlier failure.
        cause: CudaError,
    },
    /// A bug of this crate: the worker thread panicked.
    #[error("transfer {id} failed inside of kvpool: please report it")]
    Panicked {
        /// Number of the transfer.
        id: u64,
    },
    /// The transfer did not finish within the timeout. It continues to run.
    #[error("transfer {id} has not ended within {} s", .timeout.as_secs_f64())]
    Timeout {
        /// Number of the transfer.
        id: u64,
        /// The timeout of the call.
        timeout: Duration,
    },
}
