//! Disk: objects in the slots of one preallocated file, found again after any end of the process.
//!
//! | what | how |
//! |---|---|
//! | bound | the file has `capacity_bytes`, less if the disk would have less than `free_floor` left; it never grows |
//! | write | header and payload in one write; what is torn has a header whose checksum of the payload is another's |
//! | load | header and payload in one read, straight into the slot of the arena |
//! | start | all headers are read, by several threads; what is not an intact header is free |
//! | `kill -9` | loses what was being written, and what it replaced; no write waits for the disk's cache (`fsync`), and none has to |
//! | power loss | whatever order the disk wrote in, checksums find what does not fit together |
//! | two processes | the second is refused ([`StoreError::FolderInUse`]) |
//!
//! Memory and disk are in whole pages, so direct I/O keeps the page cache out of it where the file system can
//! ([`DiskBackend::is_direct`]).

mod inspect;
mod lock;
mod slab;

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

pub use self::inspect::Inspector;
use self::lock::Lock;
use self::slab::Slab;
use crate::backend::{Backend, Object, ObjectMut, ObjectName, Page, Place};
use crate::error::{BackendError, StoreError};
use crate::header::HEADER_BYTES;
use crate::namespace::{Namespace, NamespaceDigest};

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
}

impl DiskConfig {
    /// The defaults, but for what has none: 4 GiB stay free, direct I/O, 8 scanners.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>, capacity_bytes: u64, max_payload: u32) -> Self {
        let folder = folder.into();
        Self { folder, capacity_bytes, max_payload, free_floor: 4 << 30, direct: true, scanners: 8 }
    }
}

/// A folder of objects.
#[derive(Debug)]
pub struct DiskBackend {
    slab: Slab,
    folder: PathBuf,
    max_payload: u32,
    scanners: usize,
    /// Last: released once the file is closed.
    _lock: Lock,
}

impl DiskBackend {
    /// Opens a folder, or makes it, and takes its room on the disk. Waits for the disk.
    ///
    /// # Errors
    /// [`StoreError::InvalidConfig`]; [`StoreError::FolderInUse`]; [`StoreError::Backend`] if the disk has no room for one object above
    /// the floor, or fails.
    pub fn open(config: &DiskConfig) -> Result<Arc<Self>, StoreError> {
        for (field, value) in
            [("max_payload", u64::from(config.max_payload)), ("scanners", config.scanners as u64)]
        {
            if value == 0 {
                return Err(StoreError::InvalidConfig { field, value, expected: "at least 1" });
            }
        }
        fs::create_dir_all(&config.folder).map_err(BackendError::io("making the folder"))?;
        let lock = Lock::take(&config.folder)?;
        let slab = Slab::open(config)?;
        let DiskConfig { folder, max_payload, scanners, .. } = config.clone();
        Ok(Arc::new(Self { slab, folder, max_payload, scanners, _lock: lock }))
    }

    /// Whether reads and writes go round the page cache.
    #[must_use]
    pub const fn is_direct(&self) -> bool {
        self.slab.is_direct()
    }

    /// The headers of some places, those apart that were never written or were cleared.
    fn scan(&self, places: std::ops::Range<Place>) -> Vec<(Place, [u8; HEADER_BYTES])> {
        let mut page = Page::zeroed();
        let mut found = Vec::new();
        for place in places {
            page.0.fill(0);
            if self.slab.read_header(place, &mut page).is_err() {
                page.0.fill(u8::MAX); // no header, and not free of damage either
            }
            if let Some(&header) = page.0.first_chunk()
                && header != [0; HEADER_BYTES]
            {
                found.push((place, header));
            }
        }
        found
    }
}

impl Backend for DiskBackend {
    fn name(&self) -> &'static str {
        "disk"
    }

    fn places(&self) -> u32 {
        self.slab.places()
    }

    fn object_bytes(&self) -> u64 {
        self.slab.slot_bytes()
    }

    fn max_payload(&self) -> u32 {
        self.max_payload
    }

    fn restore(&self, _: NamespaceDigest, found: &mut dyn FnMut(Place, &[u8])) -> Result<(), BackendError> {
        let places = self.places();
        let each = (places as usize).div_ceil(self.scanners).max(1);
        thread::scope(|scope| {
            let scanners: Vec<_> = (0..places)
                .step_by(each)
                .map(|first| {
                    let end = places.min(first.saturating_add(each as u32)); // no more than there are places
                    scope.spawn(move || self.scan(first..end))
                })
                .collect();
            for scanner in scanners {
                let headers = scanner.join().map_err(|_| {
                    BackendError::io("reading headers")(std::io::Error::other("a scanner panicked"))
                })?;
                headers.iter().for_each(|(place, header)| found(*place, header));
            }
            Ok(())
        })
    }

    fn describe(&self, namespace: &Namespace) -> Result<(), BackendError> {
        let path = self.folder.join(format!("{}.json", namespace.digest()));
        fs::write(path, namespace.to_json()).map_err(BackendError::io("writing the text of the namespace"))
    }

    fn write(
        &self,
        place: Place,
        _: &ObjectName,
        _: &[ObjectName],
        object: Object<'_>,
    ) -> Result<(), BackendError> {
        self.slab.write(place, object.header, object.pages)
    }

    fn read(&self, place: Option<Place>, _: &ObjectName, into: ObjectMut<'_>) -> Result<(), BackendError> {
        self.slab.read(place.ok_or(BackendError::Absent)?, into.header, into.pages)
    }

    fn clear(&self, place: Option<Place>, _: &[ObjectName]) -> Result<(), BackendError> {
        place.map_or(Ok(()), |place| self.slab.write_header(place, &BLANK))
    }
}

/// No header.
static BLANK: Page = Page([0; crate::backend::PAGE]);
