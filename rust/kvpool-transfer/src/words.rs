//! Types that all modules share: devices, methods, pairs of blocks, and mappings on a device.

use std::fmt;

/// The device that memory belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// The memory of this process.
    Cpu,
    /// The CUDA device with this number.
    Cuda(u32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// The method by which the engine copies blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// The planner chooses the method.
    Auto,
    /// A kernel on the device, which can also access page-locked host memory.
    Kernel,
    /// The copy engine, with one call for many descriptors.
    Batch,
    /// Whole blocks are gathered in a buffer on the device. If the host memory is pageable, a
    /// page-locked buffer is also used.
    Staged,
    /// The copy engine, with one call per piece.
    Memcpy,
    /// The processor copies the bytes.
    Cpu,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 6] = [Self::Auto, Self::Kernel, Self::Batch, Self::Staged, Self::Memcpy, Self::Cpu];

    /// Returns the name of the method.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kernel => "kernel",
            Self::Batch => "batch",
            Self::Staged => "staged",
            Self::Memcpy => "memcpy",
            Self::Cpu => "cpu",
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The source block and the destination block of one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Block of the source store.
    pub src: u32,
    /// Block of the destination store.
    pub dst: u32,
}

/// A mapping in the memory of a device: rows of two 64-bit block ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMapping {
    /// Device of the mapping.
    pub device: Device,
    /// The address of the mapping's first row.
    pub address: u64,
    /// Number of rows.
    pub rows: u64,
}
