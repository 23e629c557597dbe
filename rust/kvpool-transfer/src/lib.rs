//! Copies KV-cache blocks between stores: between a device and the host, and within each of them.
//!
//! The core plans which blocks are copied to which blocks; this crate copies their bytes. A [`Store`]
//! describes where the pieces of each block are in memory. A [`TransferEngine`] copies blocks between
//! two stores with the fastest method: a CUDA kernel, the copy engine with batched calls, a combination
//! of the two, or the processor. The result does not depend on the method. Ids are checked before
//! anything is enqueued, a mapping is one simultaneous assignment, and stores live until the last copy
//! has finished.
//!
//! Nothing links to CUDA. The driver is looked up at run time. Without a driver, everything on the CPU
//! still works.
//!
//! Only a few places contain unsafe code: `driver` (calls of the driver), `memory` (copies by address),
//! and the places that guarantee that addresses are valid.
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
