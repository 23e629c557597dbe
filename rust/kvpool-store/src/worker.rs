//! Workers: the threads that wait for back ends, so that no caller does.
//!
//! Here every object is checked: a header is made for what is written, and compared, with the checksum of all bytes, for what is read.
//! What is not the object that was asked for leaves a slot of zeros. A back end that panics has failed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::arena::{Arena, Writing};
use crate::backend::{Backend, Object, ObjectMut, ObjectName, Page};
use crate::ends::{Done, End, Ends};
use crate::error::StoreError;
use crate::header::{HEADER_BYTES, Header, HeaderError, Mismatch};
use crate::namespace::NamespaceDigest;
use crate::queue::{Queue, Target, Task, Work};

/// Runs until the queue is closed. A task's guards are gone before its end is told.
pub(crate) fn run(queue: &Queue, backend: &Arc<dyn Backend>, ends: &Ends) {
    let mut own = Own { page: Page::zeroed(), pages: None };
    while let Some(task) = queue.take() {
        let Task { id, namespace, work } = task;
        let end = catch_unwind(AssertUnwindSafe(|| perform(backend.as_ref(), namespace, &mut own, work)))
            .unwrap_or_else(|_| End::Failed(format!("{} panicked", backend.name())));
        if !ends.tell(Done { id, end }) {
            return; // the store is gone
        }
    }
}

/// Memory of a worker's own.
struct Own {
    page: Box<Page>,
    /// For payloads that are staged: as large as the largest yet.
    pages: Option<Arc<Arena>>,
}

impl Own {
    /// Pages for a payload of `len` bytes.
    fn pages(&mut self, len: u32) -> Result<Writing, StoreError> {
        match self.pages.take().filter(|arena| arena.slot_bytes() >= len) {
            Some(arena) => self.pages.insert(arena),
            None => self.pages.insert(Arena::new(1, len)?),
        }
        .write(0)
    }
}

fn perform(backend: &dyn Backend, namespace: NamespaceDigest, own: &mut Own, work: Work) -> End {
    own.page.0.fill(0);
    match work {
        Work::Write { place, key, replaces, tokens, len, from, staged } => {
            let (direct, mut copy);
            let pages: &[u8] = if staged {
                copy = match own.pages(len) {
                    Ok(pages) => pages,
                    Err(error) => return End::Failed(error.to_string()),
                };
                copy[..len as usize].copy_from_slice(&from[..len as usize]);
                drop(from);
                copy.pages(len).unwrap_or_default()
            } else {
                direct = from;
                direct.pages(len).unwrap_or_default()
            };
            // Of the bytes that are written, also where an engine has taken its slot back and written to it.
            let Some(header) = Header::of(namespace, key, tokens, &pages[..len as usize]) else {
                return End::Full;
            };
            own.page.0[..HEADER_BYTES].copy_from_slice(&header.encode());
            let (name, object) = (ObjectName { namespace, key }, Object { header: &own.page, pages, len });
            backend.write(place, &name, &replaces, object).map_or_else(End::from, |()| End::Success)
        }
        Work::Read { place, key, len, into } => {
            let (mut target, lent) = match into {
                Target::Slot(slot) => (slot, None),
                Target::Staged(lent) => match own.pages(len) {
                    Ok(pages) => (pages, Some(lent)),
                    Err(error) => return End::Failed(error.to_string()),
                },
            };
            let pages = target.pages(len).unwrap_or_default();
            let name = ObjectName { namespace, key };
            let read = backend.read(place, &name, ObjectMut { header: &mut own.page, pages, len });
            let payload = &mut target[..len as usize];
            let end = match read {
                Ok(()) => check(&own.page, |header| {
                    header.expect(namespace, key, len)?;
                    header.verify(payload)
                }),
                Err(error) => error.into(),
            };
            if !matches!(end, End::Success) {
                payload.fill(0);
            }
            if place.is_none() && matches!(end, End::Damaged(_)) {
                drop(backend.clear(None, &[name])); // where it fails, the next load misses, too
            }
            if let Some(mut slot) = lent.and_then(|lent| lent.take()) {
                slot[..len as usize].copy_from_slice(payload);
            }
            end
        }
        Work::Probe { keys } => {
            let names: Vec<_> = keys.iter().map(|&key| ObjectName { namespace, key }).collect();
            backend.exist(&names).map_or_else(End::from, End::There)
        }
        Work::Clear { place, names } => {
            backend.clear(place, &names).map_or_else(End::from, |()| End::Success)
        }
    }
}

fn check(page: &Page, expect: impl Fn(&Header) -> Result<(), Mismatch>) -> End {
    match Header::decode(&page.0).map_err(Mismatch::from).and_then(|header| expect(&header)) {
        Ok(()) => End::Success,
        Err(Mismatch::Header(HeaderError::Absent)) => End::Absent,
        Err(mismatch) => End::Damaged(mismatch),
    }
}
