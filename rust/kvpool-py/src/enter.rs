//! Runs calls from Python on locked Rust state.
//!
//! Every class is frozen (a class without mutable fields) and keeps its state in a [`Locked`]. So several
//! Python threads may use one object. A short call takes the lock while its thread is attached to the
//! interpreter. If another thread holds the lock, or the call may be long, the thread first detaches from the
//! interpreter. So no thread waits for a lock while it holds the interpreter.
//!
//! Calls that have to wait form a queue, and a new call waits after them. So a call waits for at most
//! one call of each other thread, at any call rate. Neither a step of a scheduler nor a concurrent
//! reader starves.
//!
//! No Python code runs while the lock is held, with one exception: an eviction policy written in Python
//! ([`crate::policy`]). Its methods, copies and destructors run, and so does a garbage collection that
//! they trigger.
//!
//! A call enters state with such a policy through [`enter_guarded`]. The call waits for the lock detached and
//! works attached, because the policy needs the interpreter again and again. A thread that holds the lock of
//! such a pool is called *inside*. If the policy then calls its own pool, the call would wait for itself for
//! ever, so it raises an error instead. The core cannot return an interrupt that the policy raised.
//! [`raise_after`] stores the interrupt. The call raises it after its work is done and the lock is released.
//!
//! Order of locks: the state's lock comes before `queue`. `queue` is held only briefly, by threads that
//! wait for nothing meanwhile. A thread that waits for the state is detached and holds no other lock of
//! this file, with one exception. A pool call with a cursor locks the pool, then the cursor
//! ([`Locked::within`]). No call on a cursor takes another lock. The shuttle models of
//! rust/kvpool-shuttle run this file.

use std::cell::Cell;

use pyo3::prelude::*;

use crate::errors::raise;
use crate::python::protect;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError, thread_local};

thread_local! {
    /// Whether this thread holds the lock of a pool whose policy is written in Python. Python code then runs
    /// under the lock.
    static INSIDE: Cell<bool> = const { Cell::new(false) };

    /// The exception that is raised after the current call of this thread.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Raises an exception after the current call of this thread is done.
///
/// Use it for exceptions that are not failures of the policy, such as an interrupt. If there are several, the
/// first is raised.
pub(crate) fn raise_after(error: PyErr) {
    let first = RAISED.with(Cell::take).unwrap_or(error);
    RAISED.with(|raised| raised.set(Some(first)));
}

/// Runs a call with `INSIDE` set, which marks a pool with a policy written in Python.
fn inside<R>(call: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            INSIDE.with(|inside| inside.set(self.0));
        }
    }
    let _restore = Restore(INSIDE.with(|inside| inside.replace(true)));
    call()
}

fn is_inside() -> bool {
    INSIDE.with(Cell::get)
}

/// The number of blocks or tokens from which on a call counts as long.
pub(crate) const LONG: usize = 4096;

/// Locks a mutex, even if another thread panicked while it held the lock.
///
/// A panic leaves the state as it was at that moment. If the state is damaged, the pool detects a broken
/// invariant, and refuses further work.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State that several threads share, and the queue of the calls that wait for its lock.
pub(crate) struct Locked<T: Send> {
    state: Mutex<T>,
    /// Number of calls that have ever waited (`tickets`), and the ticket of the call that may take the lock
    /// next (`serving`). Both change only while `queue` is locked.
    tickets: AtomicUsize,
    serving: AtomicUsize,
    queue: Mutex<()>,
    served: Condvar,
}

/// The first place in the queue, which one call has. When it is dropped, the next call gets it.
struct Place<'a, T: Send>(&'a Locked<T>);

impl<T: Send> Drop for Place<'_, T> {
    fn drop(&mut self) {
        let Locked { serving, queue, served, .. } = self.0;
        let _queue = lock(queue);
        serving.store(serving.load(Ordering::SeqCst).wrapping_add(1), Ordering::SeqCst);
        served.notify_all();
    }
}

impl<T: Send> Locked<T> {
    pub(crate) fn new(state: T) -> Self {
        Self {
            state: Mutex::new(state),
            tickets: AtomicUsize::new(0),
            serving: AtomicUsize::new(0),
            queue: Mutex::new(()),
            served: Condvar::new(),
        }
    }

    /// Locks the state, if no thread holds the lock or waits for it.
    fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let serving = self.serving.load(Ordering::SeqCst);
        if serving != self.tickets.load(Ordering::SeqCst) { None } else { self.try_state() }
    }

    /// Locks the state, if no thread holds the lock.
    fn try_state(&self) -> Option<MutexGuard<'_, T>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(state)) => Some(state.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits until this call is the first of the queue. The thread must be detached from the interpreter.
    fn queue_up(&self) -> Place<'_, T> {
        let mut queue = lock(&self.queue);
        let ticket = self.tickets.fetch_add(1, Ordering::SeqCst);
        while self.serving.load(Ordering::SeqCst) != ticket {
            queue = self.served.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        Place(self)
    }

    /// Runs a call on the state from within a call on another state.
    ///
    /// This cannot deadlock, because a thread that holds this state never waits for another state.
    pub(crate) fn within<R>(&self, call: impl FnOnce(&mut T) -> R) -> R {
        call(&mut lock(&self.state))
    }

    /// Runs a call on the state for a thread that is detached from the interpreter.
    pub(crate) fn detached<R>(&self, call: impl FnOnce(&mut T) -> R) -> R {
        protect();
        call(&mut self.wait())
    }

    /// Waits in the queue, and locks the state. The thread must be detached from the interpreter.
    fn wait(&self) -> MutexGuard<'_, T> {
        let _first = self.queue_up();
        lock(&self.state)
    }
}

/// Runs a call inside a pool, releases its lock, and raises the exception that [`raise_after`] stored.
fn work_inside<T, R>(mut state: MutexGuard<'_, T>, call: impl FnOnce(&mut T) -> R) -> PyResult<R> {
    let result = inside(|| call(&mut state));
    drop(state);
    match RAISED.with(Cell::take) {
        Some(error) => Err(error),
        None => Ok(result),
    }
}

/// Locks the state and runs a short call on it.
pub(crate) fn enter<T: Send, R: Send>(
    py: Python<'_>,
    locked: &Locked<T>,
    call: impl FnOnce(&mut T) -> R + Send,
) -> R {
    enter_sized(py, locked, 0, call)
}

/// Locks the state and runs a call on it that processes `size` blocks or tokens. A long call runs without the
/// interpreter, so that other Python threads can run.
pub(crate) fn enter_sized<T: Send, R: Send>(
    py: Python<'_>,
    locked: &Locked<T>,
    size: usize,
    call: impl FnOnce(&mut T) -> R + Send,
) -> R {
    protect();
    if size < LONG
        && let Some(mut state) = locked.try_lock()
    {
        return call(&mut state);
    }
    py.detach(|| call(&mut locked.wait()))
}

/// Like [`enter_sized`]. The size of the call is computed from the locked state.
pub(crate) fn enter_measured<T: Send, R: Send>(
    py: Python<'_>,
    locked: &Locked<T>,
    size: impl FnOnce(&T) -> usize,
    call: impl FnOnce(&mut T) -> R + Send,
) -> R {
    protect();
    if let Some(mut state) = locked.try_lock()
        && size(&state) < LONG
    {
        return call(&mut state);
    }
    py.detach(|| call(&mut locked.wait()))
}

/// Locks a pool that has a policy written in Python, and runs a call on it.
pub(crate) fn enter_guarded<T: Send, R: Send>(
    py: Python<'_>,
    locked: &Locked<T>,
    call: impl FnOnce(&mut T) -> R + Send,
) -> PyResult<R> {
    protect();
    let mut first = None;
    loop {
        // If a policy calls another pool, this thread already holds the lock of the policy's pool. So it does
        // not wait in the queue.
        let state = if first.is_some() || is_inside() { locked.try_state() } else { locked.try_lock() };
        if let Some(state) = state {
            drop(first);
            return work_inside(state, call);
        }
        if is_inside() {
            let message = "an eviction policy called into a pool that is busy, its own or another thread's: \
                           a policy must not call its pool";
            return Err(raise(py, "PolicyError", message));
        }
        // Waits in the queue while detached from the interpreter, then attaches and tries to lock the state
        // again.
        first = Some(py.detach(|| {
            let first = first.unwrap_or_else(|| locked.queue_up());
            drop(lock(&locked.state));
            first
        }));
    }
}
