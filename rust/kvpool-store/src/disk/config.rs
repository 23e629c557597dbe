//! `DiskConfig`: the settings of a disk.

use std::path::PathBuf;

/// Where objects are kept on a disk, and how much of it.
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// The folder; made if there is none.
    pub folder: PathBuf,
    /// Bytes that the objects may take, headers and padding included.
    pub capacity_bytes: u64,
    /// The longest payload. A slot has room for it, rounded up to 4 KiB, and 4 KiB for its header.
    pub max_payload: u32,
    /// Bytes of the disk that stay free, whatever the capacity.
    pub free_floor: u64,
    /// Whether to go round the page cache where that is possible.
    pub direct: bool,
    /// Threads that read headers at the start.
    pub scanners: usize,
    /// Whether a worker has several transfers on their way at once, by `io_uring`, where that is
    /// possible ([`DiskBackend::io`](super::DiskBackend::io)).
    pub io_uring: bool,
}

impl DiskConfig {
    /// The defaults, but for what has none: 4 GiB stay free, direct I/O, 8 scanners, `io_uring`.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>, capacity_bytes: u64, max_payload: u32) -> Self {
        let folder = folder.into();
        Self {
            folder,
            capacity_bytes,
            max_payload,
            free_floor: 4 << 30,
            direct: true,
            scanners: 8,
            io_uring: true,
        }
    }
}
