//! Workers: threads that wait for back ends, so that no caller has to wait.
//!
//! A worker moves one object at a time, or several at once if the back end has [lanes](Lane). A busy
//! worker takes a further object only if no other worker is idle. If a back end panics, the task fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::backend::{Backend, Lane, perform};
use crate::ends::{Done, End, Ends};
use crate::error::BackendError;
use crate::namespace::NamespaceDigest;
use crate::object::ObjectName;
use crate::queue::{Queue, Task, Work};
use crate::transfer::{Memory, Refused, Transfer};

/// Runs a worker until the queue is closed. Releases the slot of a task before it reports the end of
/// the task.
pub(crate) fn run(queue: &Queue, backend: &Arc<dyn Backend>, ends: &Ends, memory: Memory, share: u64) {
    let mut worker = Worker { backend: backend.as_ref(), ends, memory, share };
    if let Some(mut lane) = backend.lane() {
        worker.run_in_lane(queue, lane.as_mut());
    }
    worker.one_by_one(queue);
}

/// The reason to stop a worker: the store no longer exists, or the lane is broken.
struct WorkerStop;

struct Worker<'a> {
    backend: &'a dyn Backend,
    ends: &'a Ends,
    memory: Memory,
    /// Number of bytes in flight at which this worker takes no more transfers.
    share: u64,
}

impl Worker<'_> {
    fn one_by_one(&mut self, queue: &Queue) {
        while let Some(task) = queue.take() {
            let outcome = self.begin(task).and_then(|transfer| match transfer {
                Some(mut transfer) => {
                    let id = transfer.id();
                    let end = self.caught(|worker| {
                        let moved = perform(&mut transfer, worker.backend);
                        worker.check(transfer, moved)
                    });
                    self.report(id, end)
                }
                None => Ok(()),
            });
            if outcome.is_err() {
                return;
            }
        }
    }

    /// Starts transfers in the lane, several at a time, until the queue is closed. Returns early if the
    /// lane breaks. The lane waits for its transfers when it is dropped.
    fn run_in_lane(&mut self, queue: &Queue, lane: &mut dyn Lane) {
        let (mut moving, mut bytes) = (0, 0);
        loop {
            while moving == 0 || (moving < lane.room() && bytes < self.share) {
                let task = if moving == 0 { queue.take() } else { queue.take_if_more() };
                let Some(task) = task else { break };
                match self.begin(task) {
                    Ok(Some(transfer)) => {
                        (moving, bytes) = (moving + 1, bytes + transfer.bytes());
                        lane.start(transfer);
                    }
                    Ok(None) => {}
                    Err(WorkerStop) => return,
                }
            }
            if moving == 0 {
                return; // the queue is closed
            }
            let Some((transfer, moved)) = lane.next() else { return };
            (moving, bytes) = (moving - 1, bytes - transfer.bytes());
            if self.end(transfer, moved).is_err() {
                return;
            }
        }
    }

    /// Prepares the transfer of a task. Returns `None` if the task has already ended, and reports its
    /// result in that case.
    fn begin(&mut self, task: Task) -> Result<Option<Transfer>, WorkerStop> {
        let Task { id, namespace, work } = task;
        let mut begun = Ok(None);
        let end = self.caught(|worker| match Transfer::begin(id, namespace, work, &mut worker.memory) {
            Ok(transfer) => {
                begun = Ok(Some(transfer));
                End::Success
            }
            Err(Refused::Ended(end)) => end,
            Err(Refused::Other(work)) => worker.ask(namespace, work),
        });
        match begun {
            Ok(None) => self.report(id, end).map(|()| None),
            begun => begun,
        }
    }

    fn end(&mut self, transfer: Transfer, moved: Result<(), BackendError>) -> Result<(), WorkerStop> {
        let id = transfer.id();
        let end = self.caught(|worker| worker.check(transfer, moved));
        self.report(id, end)
    }

    /// Checks a finished transfer, and returns its result. A damaged object without a known place is
    /// removed here, because later code does not know its name.
    fn check(&mut self, transfer: Transfer, moved: Result<(), BackendError>) -> End {
        let (name, place) = (transfer.name(), transfer.place());
        let end = transfer.end(moved, &mut self.memory);
        if place.is_none() && matches!(end, End::Damaged(_)) {
            drop(self.backend.clear(None, &[name])); // if this fails, the next load also misses
        }
        end
    }

    fn ask(&self, namespace: NamespaceDigest, work: Work) -> End {
        match work {
            Work::Probe { keys } => {
                let names: Vec<_> = keys.iter().map(|&key| ObjectName { namespace, key }).collect();
                self.backend.exist(&names).map_or_else(End::from, End::There)
            }
            Work::Clear { place, names } => {
                self.backend.clear(place, &names).map_or_else(End::from, |()| End::Success)
            }
            Work::Read { .. } | Work::Write { .. } => End::Failed("a transfer is no question".into()),
        }
    }

    fn caught(&mut self, work: impl FnOnce(&mut Self) -> End) -> End {
        let name = self.backend.name();
        catch_unwind(AssertUnwindSafe(|| work(self)))
            .unwrap_or_else(|_| End::Failed(format!("{name} panicked")))
    }

    fn report(&self, id: u64, end: End) -> Result<(), WorkerStop> {
        if self.ends.report(Done { id, end }) { Ok(()) } else { Err(WorkerStop) }
    }
}
