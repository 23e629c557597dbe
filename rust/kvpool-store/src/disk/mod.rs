//! Disk: objects in the slots of one preallocated file, found again after any end of the process.
//!
//! | what | how |
//! |---|---|
//! | bound | the file has `capacity_bytes`, less if the disk would have less than `free_floor` left ([`DiskBackend::shortage`]); it never grows |
//! | write | header and payload in one write; what is torn has a header whose checksum of the payload is another's |
//! | load | header and payload in one read, straight into the slot of the arena |
//! | threads | each worker has several transfers on their way by [`io_uring`](Io), found at run time, or one |
//! | start | a copy of all headers is read, and the headers of places that it does not know, by several threads; what is not an intact header is free |
//! | `kill -9` | loses what was being written, and what it replaced; no write waits for the disk's cache (`fsync`), and none has to |
//! | power loss | whatever order the disk wrote in, checksums find what does not fit together |
//! | two processes | the second is refused ([`StoreError::FolderInUse`]) |
//!
//! Memory and disk are in whole pages, so direct I/O keeps the page cache out of it where the file system can
//! ([`DiskBackend::is_direct`]).

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
use self::copy::{Bytes, HeaderCopy, LOOKED_AT};
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

/// How bytes move between memory and a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Io {
    /// Each worker has several transfers on their way at once.
    Uring,
    /// Each worker has one.
    Threads {
        /// Why it is not `io_uring`.
        why: String,
    },
}

impl Io {
    /// What this machine has.
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

/// As people read it.
impl fmt::Display for Io {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uring => f.write_str("io_uring"),
            Self::Threads { why } => write!(f, "threads (no io_uring: {why})"),
        }
    }
}

/// A folder of objects.
#[derive(Debug)]
pub struct DiskBackend {
    slab: Slab,
    copy: HeaderCopy,
    folder: PathBuf,
    max_payload: u32,
    scanners: usize,
    io: Io,
    /// Last: released once the file is closed.
    _lock: Lock,
}

impl DiskBackend {
    /// Opens a folder, or makes it, and takes its room on the disk. Waits for the disk.
    ///
    /// # Errors
    /// [`StoreError::InvalidConfig`]; [`StoreError::FolderInUse`]; [`StoreError::NoRoom`] if the disk has no
    /// room for one object above the floor; [`StoreError::Backend`] if it fails.
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
        // Nobody else writes here.
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

    /// Whether reads and writes go round the page cache.
    #[must_use]
    pub const fn is_direct(&self) -> bool {
        self.slab.is_direct()
    }

    /// Why it has less room than its capacity, if the disk has no more: folder, bytes wanted, free and taken.
    #[must_use]
    pub fn shortage(&self) -> Option<&str> {
        self.slab.shortage()
    }

    /// How bytes move.
    #[must_use]
    pub const fn io(&self) -> &Io {
        &self.io
    }

    /// Before a place is written. Where this fails, nothing may be written: the copy would be wrong.
    fn forget(&self, place: Place) -> Result<(), BackendError> {
        self.copy.forget(place).map_err(BackendError::io("writing the copy of the headers"))
    }

    /// Once a place is written. What the copy does not take is looked at again at the next start.
    fn note(&self, place: Place, page: &Page) {
        page.0.first_chunk().into_iter().for_each(|header| drop(self.copy.note(place, header)));
    }

    /// Whether the copy of the headers is as the places say, wherever one looks.
    fn believes_copy(&self) -> bool {
        let step = (self.places() / LOOKED_AT).max(1);
        let mut page = Page::zeroed();
        (0..self.places()).step_by(step as usize).all(|place| {
            let known = self.copy.read(place, 1).ok().and_then(|known| known[0]);
            known.is_none_or(|known| self.header(place, &mut page) == Some(known))
        })
    }

    /// The first bytes of a place; `None` if they cannot be read.
    fn header(&self, place: Place, page: &mut Page) -> Option<Bytes> {
        page.0.fill(0);
        self.slab.read_header(place, page).ok()?;
        page.0.first_chunk().copied()
    }

    /// The first bytes of some places, by several threads, each page on its own.
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

/// Places whose headers are read and told at once.
const AT_ONCE: u32 = 8192;
/// Where no header could be read: none, and not free either.
const UNREADABLE: Bytes = [u8::MAX; HEADER_BYTES];
/// Where there is no header.
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
            // What cannot be noted, or read, is looked at again at the next start.
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
        // Where it cannot be had for this worker, it has one call after the other.
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

/// No header.
static BLANK: Page = Page([0; crate::object::PAGE]);
