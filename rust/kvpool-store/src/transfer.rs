//! `Transfer`: an object on its way between a slot and a back end, with all memory that this takes.
//!
//! Owns: what is checked. A header is made for what is written, and compared, with the checksum of all
//! bytes, for what is read. What is not the object that was asked for leaves a slot of zeros. How the
//! bytes move is the back end's: one call for each transfer, or a [`Lane`](crate::Lane) for several at
//! once.

use std::sync::Arc;

use crate::arena::{Reading, Writing};
use crate::ends::End;
use crate::error::{BackendError, StoreError};
use crate::header::{HEADER_BYTES, Header, HeaderError, Mismatch};
use crate::namespace::NamespaceDigest;
use crate::object::{Object, ObjectMut, ObjectName, Page, Place};
use crate::queue::{Lent, Target, Work};
use crate::staging::Staging;

/// An object that is being moved. Made by a store, for a [`Lane`](crate::Lane) to move.
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
        /// The slot that a copy goes to, if `into` is not it.
        lent: Option<Lent>,
    },
    Write {
        from: Source,
        replaces: Vec<ObjectName>,
    },
}

/// What is moved: from a place, or a name where none is known; to a place, where those of some names may be.
pub(crate) enum Moving<'a> {
    Read(Option<Place>, &'a ObjectName, ObjectMut<'a>),
    Write(Place, &'a ObjectName, &'a [ObjectName], Object<'a>),
}

#[derive(Debug)]
enum Source {
    Slot(Reading),
    Copy(Writing),
}

/// Memory of a worker: for payloads that are staged, all workers', and for headers, its own.
#[derive(Debug)]
pub(crate) struct Memory {
    staging: Option<Arc<Staging>>,
    pages: Vec<Box<Page>>,
}

impl Memory {
    /// Without `staging` none can be staged.
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
    /// What a task moves.
    ///
    /// # Errors
    /// How the task has ended, if nothing can be moved for it; the work, if it is none that moves an object.
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
                // Of the bytes that are written, also where an engine has taken its slot back and
                // written to it.
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
                let (into, lent) = match into {
                    Target::Slot(slot) => (slot, None),
                    Target::Staged(lent) => (memory.payload()?, Some(lent)),
                };
                let (name, page) = (ObjectName { namespace, key }, memory.page());
                Ok(Self { id, name, place, len, page, way: Way::Read { into, lent } })
            }
            other @ (Work::Probe { .. } | Work::Clear { .. }) => Err(Refused::Other(other)),
        }
    }

    /// What a back end is to move.
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

    /// It has been moved, or not: checks it, and lets go of its memory. Returns how the task has ended.
    pub(crate) fn end(mut self, moved: Result<(), BackendError>, memory: &mut Memory) -> End {
        let end = match &mut self.way {
            Way::Write { .. } => moved.map_or_else(End::from, |()| End::Success),
            Way::Read { into, lent } => {
                let ObjectName { namespace, key } = self.name;
                let payload = &mut into[..self.len as usize];
                // Nobody else has the slot until this has ended: what is wrong in it is gone before.
                let mut slot = lent.take().and_then(|lent| lent.take());
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

    /// The task that this is.
    pub(crate) const fn id(&self) -> u64 {
        self.id
    }

    /// What the object is found by where its place is not known.
    pub(crate) const fn name(&self) -> ObjectName {
        self.name
    }

    /// Bytes of its payload.
    pub(crate) const fn bytes(&self) -> u64 {
        self.len as u64
    }

    /// Where the object is, or goes.
    #[must_use]
    pub const fn place(&self) -> Option<Place> {
        self.place
    }

    /// Whether it is written.
    #[must_use]
    pub const fn is_write(&self) -> bool {
        matches!(self.way, Way::Write { .. })
    }

    /// The header's page, and the payload's pages. Of one that is written nothing may be written there.
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

/// A task that is no transfer.
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
