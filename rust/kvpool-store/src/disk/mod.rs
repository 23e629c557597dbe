//! Disk: stores objects in the slots of one preallocated file. The objects survive the process, even if
//! it is killed.
//!
//! - **Bound**: the file has `capacity_bytes`, or less if the disk would otherwise have less than
//!   `free_floor` bytes left ([`DiskBackend::shortage`]). It never grows.
//! - **Write**: one system call writes the header and the payload of an object. After a partial write,
//!   the checksum in the header does not match the payload.
//! - **Load**: one system call reads the header, and the payload directly into the slot of the arena.
//! - **Threads**: each worker has several transfers in flight with [`io_uring`](Io), if that is
//!   available at run time. Otherwise each worker has one transfer in flight.
//! - **Start**: the store reads a file with copies of all headers. Where a copy is unknown, several
//!   threads read the header at the place itself. A place without an intact header is free.
//! - **`kill -9`** loses the objects that were being written, and the objects that they replaced. No
//!   write waits until the disk has stored the bytes (`fsync`), and correctness does not depend on it.
//! - **Power loss**: the disk may have stored writes in any order. The checksums detect every object
//!   that is incomplete or mixed with another.
//! - **Two processes**: the second process gets an error ([`StoreError::FolderInUse`]).
//!
//! Memory and disk use whole pages. Therefore direct I/O bypasses the page cache if the file system
//! supports it ([`DiskBackend::is_direct`]).

mod config;
mod copy;
mod inspect;
mod lock;
#[cfg(feature = "io-uring")]
mod ring;
mod slab;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

pub use self::config::DiskConfig;
use self::copy::{Bytes, HeaderCopy, SAMPLED_ENTRIES};
pub use self::inspect::Inspector;
use self::lock::Lock;
use self::slab::{Slab, file_name};
use crate::backend::Backend;
#[cfg(feature = "io-uring")]
use crate::backend::Lane;
use crate::error::{BackendError, StoreError};
use crate::generation::{self, Generation};
use crate::header::HEADER_BYTES;
use crate::namespace::{Namespace, NamespaceDigest};
use crate::object::{Object, ObjectMut, ObjectName, Page, Place};
use crate::private::{self, Access};

/// How bytes are moved between memory and a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Io {
    /// `io_uring`: each worker has several transfers in flight at once.
    Uring,
    /// Blocking system calls: each worker has one transfer in flight.
    Threads {
        /// The reason why `io_uring` is not used.
        why: String,
    },
}

impl Io {
    /// Returns `Uring` if this machine supports it, else `Threads` with the reason.
    #[must_use]
    pub fn found() -> Self {
        #[cfg(feature = "io-uring")]
        let why = match ring::try_one() {
            Ok(()) => return Self::Uring,
            Err(error) => error.to_string(),
        };
        #[cfg(not(feature = "io-uring"))]
        let why = "built without it".into();
        Self::Threads { why }
    }
}

impl fmt::Display for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uring => f.write_str("io_uring"),
            Self::Threads { why } => write!(f, "threads (no io_uring: {why})"),
        }
    }
}

/// A back end that stores objects in a folder of the local disk.
#[derive(Debug)]
pub struct DiskBackend {
    slab: Slab,
    copy: HeaderCopy,
    folder: PathBuf,
    max_payload: u32,
    scanners: usize,
    io: Io,
    /// The lock of the folder. It must be the last field, because fields are dropped in order: the file is
    /// closed before the lock is released.
    _lock: Lock,
}

impl DiskBackend {
    /// Opens a folder, or creates it, and allocates its disk space. Waits for the disk.
    ///
    /// # Errors
    /// [`StoreError::InvalidConfig`]; [`StoreError::FolderInUse`]; [`StoreError::NoRoom`] if one object
    /// would leave less than the floor free; [`StoreError::Backend`] if the disk fails.
    pub fn open(config: &DiskConfig) -> Result<Arc<Self>, StoreError> {
        for (field, value) in
            [("max_payload", u64::from(config.max_payload)), ("scanners", config.scanners as u64)]
        {
            if value == 0 {
                return Err(StoreError::InvalidConfig {
                    field,
                    value: value.to_string(),
                    expected: "at least 1",
                });
            }
        }
        private::make_folder(&config.folder, Access::Owner).map_err(BackendError::io("making the folder"))?;
        let lock = Lock::take(&config.folder)?;
        // This process holds the lock, so no other process writes here.
        generation::remove_abandoned(&config.folder, Duration::ZERO)
            .map_err(BackendError::io("reading the folder"))?;
        let slab = Slab::open(config)?;
        let path = config.folder.join(file_name(slab.slot_bytes(), "headers"));
        let copy = HeaderCopy::open(&path, slab.file(), slab.slot_bytes(), slab.places());
        let copy = copy.map_err(BackendError::io("opening the copy of the headers"))?;
        let io = if config.io_uring { Io::found() } else { Io::Threads { why: "switched off".into() } };
        let DiskConfig { folder, max_payload, scanners, .. } = config.clone();
        Ok(Arc::new(Self { slab, copy, folder, max_payload, scanners, io, _lock: lock }))
    }

    /// Whether reads and writes bypass the page cache of the kernel (direct I/O).
    #[must_use]
    pub const fn is_direct(&self) -> bool {
        self.slab.is_direct()
    }

    /// Returns a message if the store has less disk space than its capacity. It names the folder, the
    /// requested bytes, the free bytes, and the bytes taken.
    #[must_use]
    pub fn shortage(&self) -> Option<&str> {
        self.slab.shortage()
    }

    /// How this back end moves bytes between memory and the disk.
    #[must_use]
    pub const fn io(&self) -> &Io {
        &self.io
    }

    /// Marks the copy of a place's header as unknown, before the place is written. If this fails, the
    /// caller must not write the place, because the copy would then be wrong.
    fn forget(&self, place: Place) -> Result<(), BackendError> {
        self.copy.forget(place).map_err(BackendError::io("writing the copy of the headers"))
    }

    /// Stores a copy of a place's header, after the place was written. If this fails, the next start
    /// reads the header from the place.
    fn note(&self, place: Place, page: &Page) {
        page.0.first_chunk().into_iter().for_each(|header| drop(self.copy.note(place, header)));
    }

    /// Reads a sample of places. Returns whether their headers match the copies in the file of header
    /// copies.
    fn believes_copy(&self) -> bool {
        let step = (self.places() / SAMPLED_ENTRIES).max(1);
        let mut page = Page::zeroed();
        (0..self.places()).step_by(step as usize).all(|place| {
            let known = self.copy.read(place, 1).ok().and_then(|known| known[0]);
            known.is_none_or(|known| self.header(place, &mut page) == Some(known))
        })
    }

    /// Reads the first bytes of a place: its header. Returns `None` if they cannot be read.
    fn header(&self, place: Place, page: &mut Page) -> Option<Bytes> {
        page.0.fill(0);
        self.slab.read_header(place, page).ok()?;
        page.0.first_chunk().copied()
    }

    /// Reads the headers of places with several threads. Each header is one read.
    fn scan(&self, places: &[Place]) -> Result<Vec<(Place, Option<Bytes>)>, BackendError> {
        let each = places.len().div_ceil(self.scanners).max(1);
        let scan = |places: &[Place]| {
            let mut page = Page::zeroed();
            places.iter().map(|&place| (place, self.header(place, &mut page))).collect::<Vec<_>>()
        };
        thread::scope(|scope| {
            let scanners: Vec<_> =
                places.chunks(each).map(|places| scope.spawn(move || scan(places))).collect();
            let headers =
                scanners.into_iter().map(thread::ScopedJoinHandle::join).collect::<Result<Vec<_>, _>>();
            let headers = headers.map_err(|_| std::io::Error::other("a scanner panicked"));
            Ok(headers.map_err(BackendError::io("reading headers"))?.concat())
        })
    }
}

/// Number of places whose headers are read and reported to the store together.
const AT_ONCE: u32 = 8192;
/// Stands for the header of a place that cannot be read. These bytes are neither a header nor the mark
/// of a free place.
const UNREADABLE: Bytes = [u8::MAX; HEADER_BYTES];
const FREE: Bytes = [0; HEADER_BYTES];

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
        let believed = !self.slab.is_fresh() && self.believes_copy();
        for first in (0..self.places()).step_by(AT_ONCE as usize) {
            let count = AT_ONCE.min(self.places() - first) as usize;
            let mut known = vec![self.slab.is_fresh().then_some(FREE); count];
            if believed {
                known = self.copy.read(first, count).unwrap_or(known);
            }
            let unknown: Vec<_> =
                (first..).zip(&known).filter(|(_, known)| known.is_none()).map(|(place, _)| place).collect();
            for (place, header) in self.scan(&unknown)? {
                known[(place - first) as usize] = header;
            }
            // If storing the copies fails, or a place could not be read, the next start reads those
            // places again.
            if unknown.len() == count || self.slab.is_fresh() {
                drop(self.copy.note_all(first, &known));
            } else {
                for place in unknown {
                    known[(place - first) as usize]
                        .iter()
                        .for_each(|known| drop(self.copy.note(place, known)));
                }
            }
            for (place, header) in (first..).zip(known) {
                match header {
                    Some(FREE) => {}
                    header => found(place, &header.unwrap_or(UNREADABLE)),
                }
            }
        }
        Ok(())
    }

    fn generation(&self, of: NamespaceDigest) -> Result<Option<Generation>, BackendError> {
        generation::read_record(&self.folder, of)
    }

    fn record_generation(
        &self,
        of: NamespaceDigest,
        generation: Generation,
        replaces: bool,
    ) -> Result<(), BackendError> {
        generation::write_record(&self.folder, of, generation, replaces, Access::Owner)
    }

    fn describe(&self, namespace: &Namespace) -> Result<(), BackendError> {
        let path = self.folder.join(format!("{}.json", namespace.digest()));
        private::replace(&path, namespace.to_json().as_bytes(), Access::Owner)
            .map_err(BackendError::io("writing the text of the namespace"))
    }

    fn write(
        &self,
        place: Place,
        _: &ObjectName,
        _: &[ObjectName],
        object: Object<'_>,
    ) -> Result<(), BackendError> {
        self.forget(place)?;
        self.slab.write(place, object.header, object.pages)?;
        self.note(place, object.header);
        Ok(())
    }

    #[cfg(feature = "io-uring")]
    fn lane(&self) -> Option<Box<dyn Lane + '_>> {
        // If io_uring is unavailable, the worker makes one call at a time.
        (self.io == Io::Uring).then(|| self.ring()).flatten()
    }

    fn read(&self, place: Option<Place>, _: &ObjectName, into: ObjectMut<'_>) -> Result<(), BackendError> {
        self.slab.read(place.ok_or(BackendError::Absent)?, into.header, into.pages)
    }

    fn clear(&self, place: Option<Place>, _: &[ObjectName]) -> Result<(), BackendError> {
        let Some(place) = place else { return Ok(()) };
        self.forget(place)?;
        self.slab.write_header(place, &BLANK)?;
        self.note(place, &BLANK);
        Ok(())
    }
}

/// Content of the header page of a free place.
static BLANK: Page = Page([0; crate::object::PAGE]);
