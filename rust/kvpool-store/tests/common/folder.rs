//! Temporary folders, and stores that use them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use kvpool_store::disk::{DiskBackend, DiskConfig};
use kvpool_store::{Arena, Store, StoreConfig};

use super::{LEN, namespace};

/// A folder that is removed when its owner is dropped.
#[derive(Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        Self::in_folder(env!("CARGO_TARGET_TMPDIR"))
    }

    pub(crate) fn in_folder(parent: impl AsRef<Path>) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.as_ref().join(format!("kvpool-store-{}-{nth}", std::process::id()));
        drop(std::fs::remove_dir_all(&path)); // a killed process may have left it
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of the file that contains the objects.
    pub(crate) fn slab(&self) -> PathBuf {
        self.0.join(format!("objects-{SLOT}.slab"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Returns the path of the file with the copies of the headers.
pub(crate) fn copy_of(folder: &Folder) -> PathBuf {
    folder.path().join(format!("objects-{SLOT}.headers"))
}

/// Reads the entry of each place from the file of header copies. `disk/copy.rs` describes the format.
pub(crate) fn copied(folder: &Folder) -> Vec<Option<[u8; 112]>> {
    let bytes = std::fs::read(copy_of(folder)).unwrap();
    let entries = (1..).zip(bytes[4096..].chunks_exact(128));
    entries
        .map(|(seed, entry)| {
            let (header, rest) = entry.split_first_chunk::<112>().unwrap();
            let seal = xxhash_rust::xxh3::xxh3_64_with_seed(header, seed);
            (rest[..8] == seal.to_le_bytes()).then_some(*header)
        })
        .collect()
}

/// Number of bytes in a place: one page for the header, and the pages of a payload.
pub(crate) const SLOT: u64 = 3 * 4096;

/// Returns settings for a disk with `places` places. It uses the page cache, which makes the tests
/// faster and does not affect the results.
pub(crate) fn config(folder: &Path, places: u64) -> DiskConfig {
    DiskConfig { free_floor: 0, direct: false, ..DiskConfig::new(folder, places * SLOT, LEN) }
}

pub(crate) fn open(config: &DiskConfig, how: StoreConfig) -> (Store, Arc<Arena>) {
    let arena = Arena::new(2, LEN).unwrap();
    let disk = DiskBackend::open(config).unwrap();
    (Store::open(disk, arena.clone(), &namespace(1), how).unwrap(), arena)
}
