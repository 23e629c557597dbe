//! `Queue`: tasks for the workers. Loads and probes (questions whether objects exist) are taken before
//! writes and clearings, because requests wait for them. To prevent starvation, every eighth task is a
//! write or a clearing, if one is waiting. The lock is held only for a push or a pop, never while bytes
//! move.
//!
//! Owns: the tasks that no worker has begun. The store can withdraw such a task and release its slot,
//! because no worker touches the slot yet. The store limits the number of tasks.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::arena::{Reading, Writing};
use crate::header::TokenRange;
use crate::namespace::NamespaceDigest;
use crate::object::{ObjectKey, ObjectName, Place};

#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: u64,
    pub(crate) namespace: NamespaceDigest,
    pub(crate) work: Work,
}

#[derive(Debug)]
pub(crate) enum Work {
    Write {
        place: Place,
        key: ObjectKey,
        replaces: Vec<ObjectName>,
        tokens: TokenRange,
        len: u32,
        from: Reading,
        /// Whether the worker first copies the payload to staging memory, so that the slot is released
        /// before the back end has stored the bytes.
        staged: bool,
    },
    Read {
        place: Option<Place>,
        key: ObjectKey,
        len: u32,
        into: Target,
    },
    Probe {
        keys: Vec<ObjectKey>,
    },
    Clear {
        place: Option<Place>,
        names: Vec<ObjectName>,
    },
}

/// The memory into which an object is loaded.
#[derive(Debug)]
pub(crate) enum Target {
    /// The slot itself. The load holds the guard of the slot until it has finished.
    Slot(Writing),
    /// Staging memory. After the load, the worker copies the payload from it into the slot.
    Staged(StagedSlot),
}

/// The guard of the slot into which the payload of a staged load will be copied. It is taken only once:
/// by the worker for the copy, or by the store when the deadline has passed.
#[derive(Clone, Debug)]
pub(crate) struct StagedSlot(Arc<Mutex<Option<Writing>>>);

impl StagedSlot {
    pub(crate) fn new(slot: Writing) -> Self {
        Self(Arc::new(Mutex::new(Some(slot))))
    }

    pub(crate) fn take(&self) -> Option<Writing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Largest number of loads and probes in a row that are taken while a write or a clearing waits.
const PASSED: u32 = 7;

#[derive(Debug, Default)]
struct Waiting {
    /// Loads and probes, which precede the other tasks because requests wait for them.
    loads: VecDeque<Task>,
    others: VecDeque<Task>,
    /// Number of loads and probes that were taken since the last write or clearing.
    passed: u32,
    /// Number of workers that wait for a task.
    idle: usize,
    closed: bool,
}

impl Waiting {
    fn next(&mut self) -> Option<Task> {
        if (self.others.is_empty() || self.passed < PASSED)
            && let Some(load) = self.loads.pop_front()
        {
            self.passed += 1;
            return Some(load);
        }
        self.passed = 0;
        self.others.pop_front().or_else(|| self.loads.pop_front())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    filled: Condvar,
}

impl Queue {
    /// Locks the queue. Ignores poisoning: no code panics while it holds the lock, so the state is
    /// consistent.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, task: Task) {
        let mut waiting = self.lock();
        let awaited = matches!(task.work, Work::Read { .. } | Work::Probe { .. });
        let tasks = if awaited { &mut waiting.loads } else { &mut waiting.others };
        tasks.push_back(task);
        drop(waiting);
        self.filled.notify_one();
    }

    /// Waits for a task and returns it. Returns `None` after the queue was closed.
    pub(crate) fn take(&self) -> Option<Task> {
        let mut waiting = self.lock();
        loop {
            if waiting.closed {
                return None;
            }
            if let Some(task) = waiting.next() {
                return Some(task);
            }
            waiting.idle += 1;
            waiting = self.filled.wait(waiting).unwrap_or_else(PoisonError::into_inner);
            waiting.idle -= 1;
        }
    }

    /// Returns a task if more tasks are waiting than workers are idle. A worker that already has
    /// transfers in flight calls this to take another one.
    pub(crate) fn take_if_more(&self) -> Option<Task> {
        let mut waiting = self.lock();
        let more = waiting.loads.len() + waiting.others.len() > waiting.idle;
        if more && !waiting.closed { waiting.next() } else { None }
    }

    /// Removes and returns a task that no worker has begun, for example after its deadline. O(tasks
    /// before it): those with a passed deadline are at the front of the queue.
    pub(crate) fn withdraw(&self, id: u64) -> Option<Task> {
        let mut waiting = self.lock();
        let Waiting { loads, others, .. } = &mut *waiting;
        [loads, others].into_iter().find_map(|tasks| {
            let at = tasks.iter().position(|task| task.id == id)?;
            tasks.remove(at)
        })
    }

    /// Drops the waiting tasks. Workers stop at their next `take`.
    pub(crate) fn close(&self) {
        let mut waiting = self.lock();
        waiting.closed = true;
        let dropped = (std::mem::take(&mut waiting.loads), std::mem::take(&mut waiting.others));
        drop(waiting);
        drop(dropped);
        self.filled.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;

    #[test]
    fn loads_precede_but_no_task_starves() {
        let (queue, arena) = (Queue::default(), Arena::new(20, 1).unwrap());
        let namespace = NamespaceDigest::from_bytes([0; 32]);
        let key = ObjectKey { hash: kvpool::BlockHash::from_bytes([0; 32]), group: 0 };
        let clear = |id| queue.push(Task { id, namespace, work: Work::Clear { place: None, names: vec![] } });
        let load = |id: u64| {
            let into = Target::Slot(arena.write(id as u32).unwrap());
            queue.push(Task { id, namespace, work: Work::Read { place: None, key, len: 1, into } });
        };
        (100..103).for_each(clear);
        (0..20).for_each(load);
        assert_eq!(queue.withdraw(101).map(|task| task.id), Some(101));
        assert_eq!(queue.withdraw(19).map(|task| task.id), Some(19));
        assert!(queue.withdraw(19).is_none());
        let order: Vec<_> = (0..21).map(|_| queue.take().unwrap().id).collect();
        let expected: Vec<_> = (0..7).chain([100]).chain(7..14).chain([102]).chain(14..19).collect();
        assert_eq!(order, expected);
    }
}
