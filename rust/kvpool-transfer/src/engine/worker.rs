//! The worker thread of an engine: copies that the processor makes, one after the other.
//!
//! Started with the first job, joined when the engine is closed. A panic would be a bug, and is the failure of that
//! transfer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::transfer::Transfer;
use crate::error::TransferError;

/// One transfer's work.
struct Job {
    transfer: Arc<Transfer>,
    work: Box<dyn FnOnce() -> Result<(), TransferError> + Send>,
}

/// A thread with a queue.
#[derive(Default)]
pub(super) struct Worker {
    running: Mutex<Option<(Sender<Job>, JoinHandle<()>)>>,
    pending: Arc<AtomicUsize>,
}

impl Worker {
    /// Whether jobs wait or run.
    pub(super) fn is_busy(&self) -> bool {
        self.pending.load(Ordering::Acquire) > 0
    }

    /// Queues a transfer's work.
    ///
    /// # Errors
    /// [`TransferError::HostMemory`] if no thread can be started.
    pub(super) fn queue(
        &self,
        transfer: Arc<Transfer>,
        work: impl FnOnce() -> Result<(), TransferError> + Send + 'static,
    ) -> Result<(), TransferError> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &*running {
            Some((sender, _)) => sender.clone(),
            None => {
                let (sender, jobs) = channel::<Job>();
                let pending = self.pending.clone();
                let run = move || {
                    for Job { transfer, work } in jobs {
                        let start = Instant::now();
                        let outcome = catch_unwind(AssertUnwindSafe(work));
                        let error = match outcome {
                            Ok(result) => result.err(),
                            Err(_) => Some(TransferError::Panicked { id: transfer.id }),
                        };
                        pending.fetch_sub(1, Ordering::AcqRel);
                        transfer.finish(start.elapsed().as_secs_f64(), error);
                    }
                };
                let thread = thread::Builder::new().name("kvpool-transfer".into()).spawn(run);
                let thread = thread.map_err(|error| TransferError::HostMemory {
                    bytes: 0,
                    reason: format!("no thread can be started: {error}"),
                })?;
                *running = Some((sender.clone(), thread));
                sender
            }
        };
        self.pending.fetch_add(1, Ordering::AcqRel);
        // The receiver lives as long as the sender that is kept.
        let _ = sender.send(Job { transfer, work: Box::new(work) });
        Ok(())
    }

    /// Ends the thread after the jobs that it has.
    pub(super) fn join(&self) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((sender, thread)) = running {
            drop(sender);
            // The last reference to an engine may be the worker's own: a thread cannot join itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
