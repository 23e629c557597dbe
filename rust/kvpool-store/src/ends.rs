//! `Ends`: the channel by which workers report ended tasks, to a store that does not block and to
//! callers that wait.
//!
//! Owns: the channel, and an event file (`eventfd`). The file becomes readable when an end is reported,
//! and stays readable until the store has processed it. A scheduler polls the store; a thread or an
//! event loop waits for the file, without the store.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::error::{BackendError, StoreError};
use crate::header::Mismatch;

/// An ended task.
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
    /// Whether each object exists.
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

/// The worker's side of the channel.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    sender: Sender<Done>,
    event: Arc<OwnedFd>,
}

impl Ends {
    /// Reports an end; `false` if the store is gone.
    pub(crate) fn report(&self, done: Done) -> bool {
        let sent = self.sender.send(done).is_ok();
        // Fails only if the 64-bit counter of unread ends is full. The file is readable then anyway.
        let _ = rustix::io::write(&*self.event, &1_u64.to_ne_bytes());
        sent
    }
}

/// The store's side of the channel.
#[derive(Debug)]
pub(crate) struct Ended {
    receiver: Receiver<Done>,
    event: Arc<OwnedFd>,
}

impl Ended {
    pub(crate) fn take(&self) -> Option<Done> {
        self.receiver.try_recv().ok()
    }

    /// Makes the file unreadable until the next end is reported. Call this before ends are taken: an
    /// end that is reported meanwhile then makes the file readable again, even if it was already taken.
    pub(crate) fn clear_event(&self) {
        let _ = rustix::io::read(&*self.event, &mut [0; 8]); // fails if no end was reported
    }

    pub(crate) fn waiter(&self) -> Waiter {
        Waiter(Arc::clone(&self.event))
    }
}

/// Waits for the ends of a store that another thread calls.
#[derive(Clone, Debug)]
pub struct Waiter(Arc<OwnedFd>);

impl Waiter {
    /// Waits, at most for `at_most`, until a task has ended whose end
    /// [`Store::poll`](crate::Store::poll) has not processed. Returns early on a signal.
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
