//! `Ends`: the channel through which workers report finished tasks. A store reads it without blocking,
//! and other callers can wait for it.
//!
//! Owns: the channel, and an event file (`eventfd`). The file becomes readable when a worker reports a
//! finished task, and remains readable until the store has processed the report. A scheduler polls the
//! store, which does not block. A thread or an event loop that has no access to the store can wait for
//! the file.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::error::{BackendError, StoreError};
use crate::header::Mismatch;

/// A finished task.
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
    /// For each key of a probe, whether the object exists.
    There(Vec<bool>),
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

/// The sending end of the channel, which each worker has.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    sender: Sender<Done>,
    event: Arc<OwnedFd>,
}

impl Ends {
    /// Reports a finished task. Returns false if the store no longer exists.
    pub(crate) fn report(&self, done: Done) -> bool {
        let sent = self.sender.send(done).is_ok();
        // The write to the event file fails only if its 64-bit counter is full. The file is readable in that
        // case, too.
        let _ = rustix::io::write(&*self.event, &1_u64.to_ne_bytes());
        sent
    }
}

/// The receiving end of the channel, which the store has.
#[derive(Debug)]
pub(crate) struct Ended {
    receiver: Receiver<Done>,
    event: Arc<OwnedFd>,
}

impl Ended {
    pub(crate) fn take(&self) -> Option<Done> {
        self.receiver.try_recv().ok()
    }

    /// Makes the event file unreadable until the next report. Call this before taking reports from the
    /// channel. A report that arrives in between makes the file readable again, even if the report was
    /// already taken.
    pub(crate) fn clear_event(&self) {
        let _ = rustix::io::read(&*self.event, &mut [0; 8]); // fails if no end was reported
    }

    pub(crate) fn waiter(&self) -> Waiter {
        Waiter(Arc::clone(&self.event))
    }
}

/// Lets a thread wait for finished tasks of a store that another thread calls.
#[derive(Clone, Debug)]
pub struct Waiter(Arc<OwnedFd>);

impl Waiter {
    /// Waits until a worker has finished a task that [`Store::poll`](crate::Store::poll) has not
    /// processed yet, but at most for `at_most`. Returns early on a signal.
    pub fn wait(&self, at_most: Duration) {
        let timeout = Timespec::try_from(at_most).ok();
        let _ = poll(&mut [PollFd::new(&*self.0, PollFlags::IN)], timeout.as_ref());
    }
}

impl AsFd for Waiter {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

pub(crate) fn ends() -> Result<(Ends, Ended), StoreError> {
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| StoreError::Worker(error.into()))?;
    let (event, (sender, receiver)) = (Arc::new(event), channel());
    Ok((Ends { sender, event: Arc::clone(&event) }, Ended { receiver, event }))
}
