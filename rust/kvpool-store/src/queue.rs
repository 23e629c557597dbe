//! `Queue`: what is to be moved, in order. Its lock is held for a push or a pop, never while bytes move.
//!
//! Owns: tasks that no worker has begun. Those can be withdrawn, with the guards of their slots: only what a worker has begun may still
//! touch a slot. How many may wait is the store's to count.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::arena::{Reading, Writing};
use crate::backend::Place;
use crate::header::{ObjectKey, TokenRange};
use crate::namespace::NamespaceDigest;

/// One object to move.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: u64,
    /// Whose objects are moved.
    pub(crate) namespace: NamespaceDigest,
    pub(crate) work: Work,
}

#[derive(Debug)]
pub(crate) enum Work {
    Write {
        place: Place,
        key: ObjectKey,
        replaces: Vec<ObjectKey>,
        tokens: TokenRange,
        len: u32,
        from: Reading,
        /// Whether the slot is let go before the back end has its bytes.
        staged: bool,
    },
    Read {
        place: Option<Place>,
        key: ObjectKey,
        len: u32,
        into: Target,
    },
    Clear {
        place: Place,
        keys: Vec<ObjectKey>,
    },
}

/// Where a load goes.
#[derive(Debug)]
pub(crate) enum Target {
    /// Straight into its slot, which is the load's until that has ended.
    Slot(Writing),
    /// Into memory of the worker, and from there into the slot.
    Staged(Lent),
}

/// A slot that a load will be copied to. Whoever takes it first has it: the worker, to copy, or the store, whose deadline has passed.
#[derive(Clone, Debug)]
pub(crate) struct Lent(Arc<Mutex<Option<Writing>>>);

impl Lent {
    pub(crate) fn new(slot: Writing) -> Self {
        Self(Arc::new(Mutex::new(Some(slot))))
    }

    pub(crate) fn take(&self) -> Option<Writing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[derive(Debug, Default)]
struct Waiting {
    tasks: VecDeque<Task>,
    closed: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<Waiting>,
    filled: Condvar,
}

impl Queue {
    /// What a thread that panicked held is as it left it: nothing panics under the lock.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, task: Task) {
        self.lock().tasks.push_back(task);
        self.filled.notify_one();
    }

    /// Waits for a task; `None` once the queue is closed.
    pub(crate) fn take(&self) -> Option<Task> {
        let mut waiting = self.lock();
        loop {
            if waiting.closed {
                return None;
            }
            if let Some(task) = waiting.tasks.pop_front() {
                return Some(task);
            }
            waiting = self.filled.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes a task back that no worker has begun. O(tasks before it): those that passed their deadlines are in front.
    pub(crate) fn withdraw(&self, id: u64) -> Option<Task> {
        let mut waiting = self.lock();
        let at = waiting.tasks.iter().position(|task| task.id == id)?;
        waiting.tasks.remove(at)
    }

    /// Ends the workers; tasks that wait are dropped.
    pub(crate) fn close(&self) {
        let mut waiting = self.lock();
        waiting.closed = true;
        let dropped = std::mem::take(&mut waiting.tasks);
        drop(waiting);
        drop(dropped);
        self.filled.notify_all();
    }
}
