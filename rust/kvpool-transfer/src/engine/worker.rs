//! The worker thread of an engine: copies that the processor makes, one after the other.
//!
//! Started with the first job, joined when the engine is closed. A panic would be a bug, and is the
//! failure of that transfer.
//!
//! A fork leaves the thread behind. Its handle is nobody's in the child then: to drop it would detach
//! the thread of the child's that has the same address by now, which nobody could join any more, and
//! the queue's lock may be held for ever.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::transfer::Transfer;
use crate::error::TransferError;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::mpsc::{Sender, channel};
use crate::sync::thread::{self, JoinHandle};

/// One transfer's work.
struct Job {
    transfer: Arc<Transfer>,
    work: Box<dyn FnOnce() -> Result<(), TransferError> + Send>,
}

impl Job {
    fn run(self, pending: &AtomicUsize) {
        let start = Instant::now();
        let error = match catch_unwind(AssertUnwindSafe(self.work)) {
            Ok(result) => result.err(),
            Err(_) => Some(TransferError::Panicked { id: self.transfer.id }),
        };
        // In this order: as long as the end is not known, what comes next comes here, too.
        self.transfer.finish(start.elapsed().as_secs_f64(), error);
        pending.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The thread, if there is one.
#[derive(Default)]
enum Thread {
    /// Nothing was queued yet.
    #[default]
    None,
    Running(Sender<Job>, JoinHandle<()>),
    /// No more work is taken.
    Closed,
}

/// A thread with a queue.
pub(super) struct Worker {
    /// In which it was made: no other one has its thread.
    process: u32,
    thread: Mutex<Thread>,
    pending: Arc<AtomicUsize>,
}

impl Drop for Worker {
    /// In a child of its process there is nothing to detach, and nobody to take what was queued.
    fn drop(&mut self) {
        if self.process != process::id() {
            mem::forget(mem::take(self.thread.get_mut().unwrap_or_else(PoisonError::into_inner)));
        }
    }
}

impl Worker {
    /// Of this process, without a thread yet.
    pub(super) fn new() -> Self {
        Self { process: process::id(), thread: Mutex::default(), pending: Arc::default() }
    }

    /// Whether jobs wait or run.
    pub(super) fn is_busy(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }

    /// Queues a transfer's work.
    ///
    /// # Errors
    /// [`TransferError::EngineClosed`], [`TransferError::HostMemory`] if no thread can be started.
    pub(super) fn queue(
        &self,
        transfer: Arc<Transfer>,
        work: impl FnOnce() -> Result<(), TransferError> + Send + 'static,
    ) -> Result<(), TransferError> {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*thread, Thread::None) {
            let (sender, jobs) = channel::<Job>();
            let pending = self.pending.clone();
            let run = move || jobs.into_iter().for_each(|job| job.run(&pending));
            let started = thread::Builder::new().name("kvpool-transfer".into()).spawn(run);
            let refuse = |error| TransferError::HostMemory {
                bytes: 0,
                reason: format!("no thread can be started: {error}"),
            };
            *thread = Thread::Running(sender, started.map_err(refuse)?);
        }
        let Thread::Running(sender, _) = &*thread else { return Err(TransferError::EngineClosed) };
        self.pending.fetch_add(1, Ordering::AcqRel);
        // The receiver lives as long as the sender that is kept.
        let _ = sender.send(Job { transfer, work: Box::new(work) });
        Ok(())
    }

    /// Takes no more work, and ends the thread after the jobs that it has. In the process that made it alone.
    pub(super) fn join(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let former = mem::replace(&mut *thread, Thread::Closed);
        drop(thread);
        if let Thread::Running(sender, handle) = former {
            drop(sender);
            // The last reference to an engine may be the worker's own: a thread cannot join itself.
            if handle.thread().id() != thread::current().id() {
                let _ = handle.join();
            }
        }
    }
}
