//! `Transfer`: an object on its way between a slot and a back end, with all memory that the transfer
//! needs.
//!
//! Owns: the checks. Before a write, it makes the header of the object. After a read, it compares the
//! header and the checksum of all bytes. If they differ, it fills the slot with zeros. The back end
//! moves the bytes, with one call for each transfer or with a [`Lane`](crate::Lane) for several
//! transfers at once.

use std::sync::Arc;

use crate::arena::{Reading, Writing};
use crate::ends::End;
use crate::error::{BackendError, StoreError};
use crate::header::{HEADER_BYTES, Header, HeaderError, Mismatch};
use crate::namespace::NamespaceDigest;
use crate::object::{Object, ObjectMut, ObjectName, Page, Place};
use crate::queue::{StagedSlot, Target, Work};
use crate::staging::Staging;

/// An object that is being moved. A store creates it, and a [`Lane`](crate::Lane) moves it.
#[derive(Debug)]
pub struct Transfer {
    id: u64,
    name: ObjectName,
    place: Option<Place>,
    len: u32,
    page: Box<Page>,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Read {
        into: Writing,
        /// If `into` is staging memory, the slot into which the payload is copied after the read.
        staged_slot: Option<StagedSlot>,
    },
    Write {
        from: Source,
        replaces: Vec<ObjectName>,
    },
}

/// Arguments of [`Backend::read`](crate::Backend::read) or [`Backend::write`](crate::Backend::write). A
/// read has the name of the object, and its place if it is known. A write has the place, and the names
/// of the objects that may be at this place.
pub(crate) enum Moving<'a> {
    Read(Option<Place>, &'a ObjectName, ObjectMut<'a>),
    Write(Place, &'a ObjectName, &'a [ObjectName], Object<'a>),
}

#[derive(Debug)]
enum Source {
    Slot(Reading),
    Copy(Writing),
}

/// The memory that a worker needs for its transfers: the staging memory, which all workers share, and
/// the worker's own pages for headers.
#[derive(Debug)]
pub(crate) struct Memory {
    staging: Option<Arc<Staging>>,
    pages: Vec<Box<Page>>,
}

impl Memory {
    /// Creates the memory. If `staging` is `None`, a transfer that needs staging memory fails.
    pub(crate) const fn new(staging: Option<Arc<Staging>>) -> Self {
        Self { staging, pages: Vec::new() }
    }

    fn payload(&self) -> Result<Writing, Refused> {
        let none = || Refused::Ended(End::Failed("there is no memory to stage in".into()));
        Ok(self.staging.as_ref().ok_or_else(none)?.take()?)
    }

    fn page(&mut self) -> Box<Page> {
        let mut page = self.pages.pop().unwrap_or_else(Page::zeroed);
        page.0.fill(0);
        page
    }
}

impl Transfer {
    /// Prepares the transfer of a task.
    ///
    /// # Errors
    /// `Ended` with the result of the task, if the transfer cannot be prepared. `Other` with the work,
    /// if the task moves no object.
    pub(crate) fn begin(
        id: u64,
        namespace: NamespaceDigest,
        work: Work,
        memory: &mut Memory,
    ) -> Result<Self, Refused> {
        match work {
            Work::Write { place, key, replaces, tokens, len, from, staged } => {
                let from = if staged {
                    let mut copy = memory.payload()?;
                    copy[..len as usize].copy_from_slice(&from[..len as usize]);
                    drop(from);
                    Source::Copy(copy)
                } else {
                    Source::Slot(from)
                };
                // Compute the header from the bytes that are actually written, because the engine may
                // have reused its slot and written to it.
                let payload = &from.pages(len)[..len as usize];
                let Some(header) = Header::of(namespace, key, tokens, payload) else {
                    return Err(Refused::Ended(End::Full));
                };
                let mut page = memory.page();
                page.0[..HEADER_BYTES].copy_from_slice(&header.encode());
                let way = Way::Write { from, replaces };
                Ok(Self { id, name: ObjectName { namespace, key }, place: Some(place), len, page, way })
            }
            Work::Read { place, key, len, into } => {
                let (into, staged_slot) = match into {
                    Target::Slot(slot) => (slot, None),
                    Target::Staged(staged_slot) => (memory.payload()?, Some(staged_slot)),
                };
                let (name, page) = (ObjectName { namespace, key }, memory.page());
                Ok(Self { id, name, place, len, page, way: Way::Read { into, staged_slot } })
            }
            other @ (Work::Probe { .. } | Work::Clear { .. }) => Err(Refused::Other(other)),
        }
    }

    /// Returns the arguments for the call of the back end that moves the object.
    pub(crate) fn moving(&mut self) -> Moving<'_> {
        let Self { name, place, len, page, way, .. } = self;
        match way {
            Way::Read { into, .. } => {
                let pages = into.pages(*len).unwrap_or_default();
                Moving::Read(*place, name, ObjectMut { header: page, pages, len: *len })
            }
            Way::Write { from, replaces } => {
                let object = Object { header: page, pages: from.pages(*len), len: *len };
                Moving::Write(place.unwrap_or(Place::MAX), name, replaces, object)
            }
        }
    }

    /// Checks the moved object, and releases its memory. Returns the result of the task.
    pub(crate) fn end(mut self, moved: Result<(), BackendError>, memory: &mut Memory) -> End {
        let end = match &mut self.way {
            Way::Write { .. } => moved.map_or_else(End::from, |()| End::Success),
            Way::Read { into, staged_slot } => {
                let ObjectName { namespace, key } = self.name;
                let payload = &mut into[..self.len as usize];
                // Take the guard of the slot here, so that no other code can use the slot before wrong
                // bytes are overwritten.
                let mut slot = staged_slot.take().and_then(|staged_slot| staged_slot.take());
                let end = match moved {
                    Ok(()) => check(&self.page, |header| {
                        header.expect(namespace, key, self.len)?;
                        match &mut slot {
                            Some(slot) => header.copy_verified(payload, slot),
                            None => header.verify(payload),
                        }
                    }),
                    Err(error) => error.into(),
                };
                if !matches!(end, End::Success) {
                    payload.fill(0);
                    if let Some(slot) = &mut slot {
                        slot[..payload.len()].fill(0);
                    }
                }
                end
            }
        };
        memory.pages.push(self.page);
        end
    }

    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    pub(crate) const fn name(&self) -> ObjectName {
        self.name
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.len as u64
    }

    /// Returns the place of the object, if it is known.
    #[must_use]
    pub const fn place(&self) -> Option<Place> {
        self.place
    }

    /// Returns whether this transfer is a write.
    #[must_use]
    pub const fn is_write(&self) -> bool {
        matches!(self.way, Way::Write { .. })
    }

    /// Returns the page of the header, and the pages of the payload. If the transfer is a write, the
    /// caller must only read these pages.
    #[cfg(feature = "io-uring")]
    pub(crate) fn memory(&mut self) -> (&mut Box<Page>, *mut u8, usize) {
        let (begin, len) = match &mut self.way {
            Way::Read { into, .. } => {
                let pages = into.pages(self.len).unwrap_or_default();
                (pages.as_mut_ptr(), pages.len())
            }
            Way::Write { from, .. } => {
                let pages = from.pages(self.len);
                (pages.as_ptr().cast_mut(), pages.len())
            }
        };
        (&mut self.page, begin, len)
    }
}

impl Source {
    fn pages(&self, len: u32) -> &[u8] {
        match self {
            Self::Slot(slot) => slot.pages(len).unwrap_or_default(),
            Self::Copy(copy) => copy.shared_pages(len).unwrap_or_default(),
        }
    }
}

/// Why a task does not become a transfer: it has already ended, or it moves no object.
#[derive(Debug)]
pub(crate) enum Refused {
    Ended(End),
    Other(Work),
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::Ended(End::Failed(error.to_string()))
    }
}

fn check(page: &Page, expect: impl FnOnce(&Header) -> Result<(), Mismatch>) -> End {
    match Header::decode(&page.0).map_err(Mismatch::from).and_then(|header| expect(&header)) {
        Ok(()) => End::Success,
        Err(Mismatch::Header(HeaderError::Absent)) => End::Absent,
        Err(mismatch) => End::Damaged(mismatch),
    }
}
