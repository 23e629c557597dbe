//! `DiskConfig`: the settings of a disk store.

use std::path::PathBuf;

/// The folder of a disk store, and the amount of disk space that it may use.
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
    /// Largest number of bytes that all objects take, including headers and padding.
    pub capacity_bytes: u64,
    /// Largest number of bytes in a payload. The place of an object takes this number, rounded up to 4
    /// KiB, plus 4 KiB for the header of the object.
    pub max_payload: u32,
    /// Number of bytes of the disk that must remain free, regardless of the capacity.
    pub free_floor: u64,
    /// Whether to bypass the page cache, if the file system supports it.
    pub direct: bool,
    /// Number of threads that read headers when the store opens.
    pub scanners: usize,
    /// Whether each worker uses `io_uring`, if it is available, to have several transfers in flight at
    /// once ([`DiskBackend::io`](super::DiskBackend::io)).
    pub io_uring: bool,
}

impl DiskConfig {
    /// Returns settings with default values for the other fields: 4 GiB remain free, direct I/O, 8
    /// scanners, `io_uring`.
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
