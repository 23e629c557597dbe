//! Copies KV-cache blocks between stores: device, host, and within each.
//!
//! The core plans which blocks' bytes are copied to which blocks; this crate copies them. A [`Store`]
//! describes where the pieces of each block lie. A [`TransferEngine`] copies blocks between two stores
//! by the fastest method: a CUDA kernel, the copy engine in batches, both in turns, or the processor.
//! The result does not depend on the method: ids are checked before anything is enqueued, a mapping is
//! one simultaneous assignment, and stores live until the last copy has ended.
//!
//! Nothing links to CUDA. The driver is found at run time. Without a driver, everything on the CPU
//! works the same.
//!
//! Unsafe code is confined to `driver` (calls of the driver), `memory` (copies by address), and the
//! places that vouch for addresses.
//!
//! ```
//! use kvpool_transfer::{Device, EngineConfig, Options, Region, Store, TransferEngine};
//! // Two blocks of 8 bytes in each of two vectors.
//! let (mut from, mut to) = (vec![1_u8; 16], vec![0_u8; 16]);
//! from[8..].fill(2);
//! let region = |bytes: &mut Vec<u8>| Region { base: bytes.as_mut_ptr() as u64, stride: 8, nbytes: 8 };
//! // SAFETY: the vectors outlive the stores, and are not touched meanwhile.
//! let [src, dst] = unsafe {
//!     [&mut from, &mut to].map(|bytes| Store::new(vec![region(bytes)], 2, Device::Cpu, vec![], false, None))
//! };
//! let (src, dst) = (src?, dst?);
//! let engine = TransferEngine::new(Device::Cpu, EngineConfig::default())?;
//! let transfer = engine.submit(&src, &dst, [(1, 0)].into_iter(), &Options::default())?;
//! transfer.wait(None)?;
//! assert_eq!(dst.read_block(0)?, [2; 8]);
//! # Ok::<(), kvpool_transfer::TransferError>(())
//! ```

#![deny(unsafe_code)]

mod cpu;
mod driver;
mod engine;
mod error;
mod mapping;
mod memory;
mod planner;
mod region;
mod runs;
mod store;
mod sync;
mod words;

pub use driver::{StreamHandle, driver_version};
pub use engine::{
    After, Calibration, Card, EngineConfig, Measurement, Move, Options, Transfer, TransferEngine,
};
pub use error::{CudaError, End, TransferError, Unavailable};
pub use memory::{PageKind, RawPairs};
pub use planner::{Direction, Question, Threshold, Thresholds};
pub use region::{Array, Region};
pub use runs::{Run, cut, runs, singles};
pub use store::{HostOptions, NumaNode, Store};
pub use words::{Device, DeviceMapping, Method, Pair};
