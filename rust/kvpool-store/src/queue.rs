//! `Queue`: what is to be moved, loads first, but for one in eight. Its lock is held for a push or a
//! pop, never while bytes move.
//!
//! Owns: tasks that no worker has begun. Those can be withdrawn, with the guards of their slots: only
//! what a worker has begun may still touch a slot. How many may wait is the store's to count.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::arena::{Reading, Writing};
use crate::header::TokenRange;
use crate::namespace::NamespaceDigest;
use crate::object::{ObjectKey, ObjectName, Place};

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
        replaces: Vec<ObjectName>,
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
    Probe {
        keys: Vec<ObjectKey>,
    },
    Clear {
        place: Option<Place>,
        names: Vec<ObjectName>,
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

/// A slot that a load will be copied to. Whoever takes it first has it: the worker, to copy, or the
/// store, whose deadline has passed.
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

/// Loads that go before something else, in a row.
const PASSED: u32 = 7;

#[derive(Debug, Default)]
struct Waiting {
    /// Loads and questions: a request waits for them.
    loads: VecDeque<Task>,
    others: VecDeque<Task>,
    /// Loads that went before the first of the others.
    passed: u32,
    /// Workers that wait for a task.
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
    /// What a thread that panicked held is as it left it: nothing panics under the lock.
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

    /// Waits for a task; `None` once the queue is closed.
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

    /// A task, if there are more than workers that wait for one: for a worker that has some already.
    pub(crate) fn take_if_more(&self) -> Option<Task> {
        let mut waiting = self.lock();
        let more = waiting.loads.len() + waiting.others.len() > waiting.idle;
        if more && !waiting.closed { waiting.next() } else { None }
    }

    /// Takes a task back that no worker has begun. O(tasks before it): those that passed their
    /// deadlines are in front.
    pub(crate) fn withdraw(&self, id: u64) -> Option<Task> {
        let mut waiting = self.lock();
        let Waiting { loads, others, .. } = &mut *waiting;
        [loads, others].into_iter().find_map(|tasks| {
            let at = tasks.iter().position(|task| task.id == id)?;
            tasks.remove(at)
        })
    }

    /// Ends the workers; tasks that wait are dropped.
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
    fn loads_go_first_and_nothing_waits_for_ever() {
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
