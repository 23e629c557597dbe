//! `Ends`: how workers tell that tasks have ended, to a store that does not wait and to callers that do.
//!
//! Owns: the channel, and an event file (`eventfd`) that is readable from the moment on when an end was
//! told until the store has taken it in. A scheduler polls the store; a thread or an event loop waits
//! for the file, without the store.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::error::{BackendError, StoreError};
use crate::header::Mismatch;

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
    /// Which objects are there.
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

/// Of a worker.
#[derive(Clone, Debug)]
pub(crate) struct Ends {
    sender: Sender<Done>,
    event: Arc<OwnedFd>,
}

impl Ends {
    /// Tells an end; `false` if there is nobody any more.
    pub(crate) fn tell(&self, done: Done) -> bool {
        let told = self.sender.send(done).is_ok();
        // Fails only where as many ends are told already as a counter of 64 bits holds: then the file
        // is readable anyway.
        let _ = rustix::io::write(&*self.event, &1_u64.to_ne_bytes());
        told
    }
}

/// Of the store.
#[derive(Debug)]
pub(crate) struct Ended {
    receiver: Receiver<Done>,
    event: Arc<OwnedFd>,
}

impl Ended {
    pub(crate) fn take(&self) -> Option<Done> {
        self.receiver.try_recv().ok()
    }

    /// The file is not readable until another end is told. Before ends are taken: what is told
    /// meanwhile is seen later, or twice.
    pub(crate) fn quiet(&self) {
        let _ = rustix::io::read(&*self.event, &mut [0; 8]); // fails if nothing was told
    }

    pub(crate) fn waiter(&self) -> Waiter {
        Waiter(Arc::clone(&self.event))
    }
}

/// What it takes to wait for a store that another thread calls.
#[derive(Clone, Debug)]
pub struct Waiter(Arc<OwnedFd>);

impl Waiter {
    /// Waits until something has ended that [`Store::poll`](crate::Store::poll) has not taken in, at
    /// most for `at_most`. Returns early on a signal.
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
