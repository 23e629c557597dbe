//! The worker thread of an engine. It does the processor's copies, one after the other.
//!
//! The first job starts the thread, and closing the engine joins it. If a job panics, which would be a
//! bug, its transfer fails.
//!
//! A child of a `fork` does not have the thread, and must not drop the handle of the thread. The drop
//! would detach a thread. In the child, another thread may have the same address by now, and could then
//! never be joined. The lock of the queue may also be held for ever.

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
        // Finish the transfer before `pending` decreases. Otherwise a later job could run elsewhere
        // before this one is visibly finished.
        self.transfer.finish(start.elapsed().as_secs_f64(), error);
        pending.fetch_sub(1, Ordering::AcqRel);
    }
}

/// State of the worker's thread.
#[derive(Default)]
enum Thread {
    /// No job was queued yet.
    #[default]
    None,
    Running(Sender<Job>, JoinHandle<()>),
    /// The worker was closed, and accepts no more jobs.
    Closed,
}

/// A thread that executes the jobs of a queue.
pub(super) struct Worker {
    /// Id of the process that made the worker. No other process has the thread.
    process: u32,
    thread: Mutex<Thread>,
    pending: Arc<AtomicUsize>,
}

impl Drop for Worker {
    /// In a child process, leaks the thread's handle and the queue instead of dropping them.
    fn drop(&mut self) {
        if self.process != process::id() {
            mem::forget(mem::take(self.thread.get_mut().unwrap_or_else(PoisonError::into_inner)));
        }
    }
}

impl Worker {
    /// Creates a worker for this process. The first job starts its thread.
    pub(super) fn new() -> Self {
        Self { process: process::id(), thread: Mutex::default(), pending: Arc::default() }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }

    /// Queues the work of a transfer.
    ///
    /// # Errors
    /// [`TransferError::EngineClosed`]; [`TransferError::HostMemory`] if no thread can be started.
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
        // The thread keeps the receiver as long as this sender exists, so sending cannot fail.
        let _ = sender.send(Job { transfer, work: Box::new(work) });
        Ok(())
    }

    /// Accepts no more work, and joins the thread after its queued jobs. Call this only in the process
    /// that made the worker.
    pub(super) fn join(&self) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let former = mem::replace(&mut *thread, Thread::Closed);
        drop(thread);
        if let Thread::Running(sender, handle) = former {
            drop(sender);
            // The worker thread may drop the last reference to an engine, and a thread cannot join
            // itself.
            if handle.thread().id() != thread::current().id() {
                let _ = handle.join();
            }
        }
    }
}
