//! `DiskConfig`: the settings of a disk.

use std::path::PathBuf;

/// Folder of a disk store, and its share of the disk.
///
/// ```
/// use kvpool_store::disk::DiskConfig;
/// // At most 1 GiB for payloads of at most 64 KiB, through the page cache.
/// let config = DiskConfig { direct: false, ..DiskConfig::new("/var/cache/kvpool", 1 << 30, 64 << 10) };
/// assert_eq!(config.free_floor, 4 << 30);
/// ```
#[derive(Clone, Debug)]
pub struct DiskConfig {
    /// Path of the folder. It is created if it does not exist.
    pub folder: PathBuf,
    /// Largest number of bytes of the objects, headers and padding included.
    pub capacity_bytes: u64,
    /// Largest number of bytes of a payload. A slot takes this, rounded up to 4 KiB, plus 4 KiB for its
    /// header.
    pub max_payload: u32,
    /// Bytes of the disk that stay free, regardless of the capacity.
    pub free_floor: u64,
    /// Whether to bypass the page cache, where that is possible.
    pub direct: bool,
    /// Number of threads that read headers at the start.
    pub scanners: usize,
    /// Whether a worker has several transfers in flight at once by `io_uring`, where that is possible
    /// ([`DiskBackend::io`](super::DiskBackend::io)).
    pub io_uring: bool,
}

impl DiskConfig {
    /// Settings with the defaults for the other fields: 4 GiB stay free, direct I/O, 8 scanners,
    /// `io_uring`.
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
