//! Workers: the threads that wait for back ends, so that no caller does.
//!
//! A worker moves one object after the other, or, where the back end has [lanes](Lane), several at
//! once. It takes more than one only when no other worker is free to. A back end that panics has
//! failed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::backend::{Backend, Lane, perform};
use crate::ends::{Done, End, Ends};
use crate::error::BackendError;
use crate::namespace::NamespaceDigest;
use crate::object::ObjectName;
use crate::queue::{Queue, Task, Work};
use crate::transfer::{Memory, Refused, Transfer};

/// Runs until the queue is closed. A task's guards are gone before its end is told.
pub(crate) fn run(queue: &Queue, backend: &Arc<dyn Backend>, ends: &Ends, memory: Memory, share: u64) {
    let mut worker = Worker { backend: backend.as_ref(), ends, memory, share };
    if let Some(mut lane) = backend.lane() {
        worker.several(queue, lane.as_mut());
    }
    worker.one_by_one(queue);
}

/// The store is gone, or the lane is of no use any more.
struct Over;

struct Worker<'a> {
    backend: &'a dyn Backend,
    ends: &'a Ends,
    memory: Memory,
    /// Bytes on their way from which on it takes no more.
    share: u64,
}

impl Worker<'_> {
    fn one_by_one(&mut self, queue: &Queue) {
        while let Some(task) = queue.take() {
            let told = self.begin(task).and_then(|transfer| match transfer {
                Some(mut transfer) => {
                    let id = transfer.id();
                    let end = self.caught(|worker| {
                        let moved = perform(&mut transfer, worker.backend);
                        worker.check(transfer, moved)
                    });
                    self.tell(id, end)
                }
                None => Ok(()),
            });
            if told.is_err() {
                return;
            }
        }
    }

    /// Keeps a lane filled. What is on its way when the store is gone is waited for by the lane.
    fn several(&mut self, queue: &Queue, lane: &mut dyn Lane) {
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
                    Err(Over) => return,
                }
            }
            if moving == 0 {
                return; // closed
            }
            let Some((transfer, moved)) = lane.next() else { return };
            (moving, bytes) = (moving - 1, bytes - transfer.bytes());
            if self.end(transfer, moved).is_err() {
                return;
            }
        }
    }

    /// What is to be moved for a task; nothing if it has ended.
    fn begin(&mut self, task: Task) -> Result<Option<Transfer>, Over> {
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
            Ok(None) => self.tell(id, end).map(|()| None),
            begun => begun,
        }
    }

    fn end(&mut self, transfer: Transfer, moved: Result<(), BackendError>) -> Result<(), Over> {
        let id = transfer.id();
        let end = self.caught(|worker| worker.check(transfer, moved));
        self.tell(id, end)
    }

    /// How a transfer has ended. What is damaged where no place is known goes now: nothing else knows
    /// its name.
    fn check(&mut self, transfer: Transfer, moved: Result<(), BackendError>) -> End {
        let (name, place) = (transfer.name(), transfer.place());
        let end = transfer.end(moved, &mut self.memory);
        if place.is_none() && matches!(end, End::Damaged(_)) {
            drop(self.backend.clear(None, &[name])); // where it fails, the next load misses, too
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

    fn tell(&self, id: u64, end: End) -> Result<(), Over> {
        if self.ends.tell(Done { id, end }) { Ok(()) } else { Err(Over) }
    }
}
