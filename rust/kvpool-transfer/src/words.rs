//! The words that every part uses: where memory lives, how bytes are moved, one block's copy, and a
//! mapping on a device.

use std::fmt;

/// Where memory lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    /// In this process.
    Cpu,
    /// On a CUDA device, by its number.
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

/// How bytes are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// The planner's choice.
    Auto,
    /// A kernel on the device, which reaches page-locked host memory, too.
    Kernel,
    /// The copy engine, one call for many descriptors.
    Batch,
    /// Through whole blocks in a buffer on the device, and page-locked memory if the host's is pageable.
    Staged,
    /// The copy engine, one call per piece.
    Memcpy,
    /// The processor.
    Cpu,
}

impl Method {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Auto, Self::Kernel, Self::Batch, Self::Staged, Self::Memcpy, Self::Cpu];

    /// Its name.
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

/// One block's copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Block of the source store.
    pub src: u32,
    /// Block of the destination store.
    pub dst: u32,
}

/// A mapping in the memory of a device: rows of two 64-bit ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMapping {
    /// Where it is.
    pub device: Device,
    /// The address of the first row.
    pub address: u64,
    /// How many.
    pub rows: u64,
}
