//! Workers: the threads that wait for back ends, so that no caller does.
//!
//! Here every object is checked: a header is made for what is written, and compared, with the checksum of all bytes, for what is read.
//! What is not the object that was asked for leaves a slot of zeros. A back end that panics has failed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use crate::backend::{Backend, Object, ObjectMut, Page};
use crate::error::BackendError;
use crate::header::{HEADER_BYTES, Header, HeaderError, Mismatch};
use crate::namespace::NamespaceDigest;
use crate::queue::{Queue, Work};

/// How a task ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) id: u64,
    pub(crate) end: End,
}

#[derive(Debug)]
pub(crate) enum End {
    Success,
    Absent,
    Full,
    Failed(String),
    Damaged(Mismatch),
}

impl From<BackendError> for End {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Absent => Self::Absent,
            BackendError::Full => Self::Full,
            error @ BackendError::Io { .. } => Self::Failed(error.to_string()),
        }
    }
}

/// Runs until the queue is closed. A task's guards are gone before its end is told.
pub(crate) fn run(
    queue: &Queue,
    backend: &Arc<dyn Backend>,
    namespace: NamespaceDigest,
    done: &Sender<Done>,
) {
    let mut page = Page::zeroed();
    while let Some(task) = queue.take() {
        let id = task.id;
        let end =
            catch_unwind(AssertUnwindSafe(|| perform(backend.as_ref(), namespace, &mut page, task.work)))
                .unwrap_or_else(|_| End::Failed(format!("{} panicked", backend.name())));
        if done.send(Done { id, end }).is_err() {
            return; // the store is gone
        }
    }
}

fn perform(backend: &dyn Backend, namespace: NamespaceDigest, page: &mut Page, work: Work) -> End {
    match work {
        Work::Write { place, key, replaces, tokens, len, from } => {
            let Some(header) = Header::of(namespace, key, tokens, &from[..len as usize]) else {
                return End::Full;
            };
            page.0.fill(0);
            page.0[..HEADER_BYTES].copy_from_slice(&header.encode());
            let object = Object { header: page, pages: from.pages(len), len };
            backend.write(place, &key, &replaces, object).map_or_else(End::from, |()| End::Success)
        }
        Work::Read { place, key, len, mut into } => {
            page.0.fill(0);
            let pages = into.pages(len);
            let read = backend.read(place, &key, ObjectMut { header: page, pages, len });
            let end = match read {
                Ok(()) => check(page, |header| {
                    header.expect(namespace, key, len)?;
                    header.verify(&pages[..len as usize])
                }),
                Err(error) => error.into(),
            };
            if !matches!(end, End::Success) {
                into.pages(len).fill(0);
            }
            end
        }
        Work::Clear { place, keys } => backend.clear(place, &keys).map_or_else(End::from, |()| End::Success),
    }
}

fn check(page: &Page, expect: impl Fn(&Header) -> Result<(), Mismatch>) -> End {
    match Header::decode(&page.0).map_err(Mismatch::from).and_then(|header| expect(&header)) {
        Ok(()) => End::Success,
        Err(Mismatch::Header(HeaderError::Absent)) => End::Absent,
        Err(mismatch) => End::Damaged(mismatch),
    }
}
