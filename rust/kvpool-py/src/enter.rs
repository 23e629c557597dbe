//! How calls enter locked Rust state.
//!
//! Every class is frozen and holds its state in a [`Locked`], so several Python threads may use one object. A short call takes
//! the lock while attached to the interpreter; if another thread holds it, or the call may be long, it detaches first, so
//! that nobody waits for a lock while holding the interpreter.
//!
//! *Steps* change the state; *looks* are readers beside them: statistics, probes, events. A look lets a step that waits go first.
//! So a step waits for at most one look of each thread that looks, the one that was under way, however often they come.
//!
//! No Python code ever runs while the lock is held, but for one kind: an eviction policy written in Python ([`crate::policy`]), its
//! methods, copies and destructors, and whatever a collection of garbage runs meanwhile. Whatever owns one is entered by
//! [`enter_guarded`] and [`look_guarded`]: they wait for the lock detached, and work attached, because the policy needs the
//! interpreter again and again. As long as the lock is held, its thread counts as *inside*: what comes back to the pool from there
//! gets an error where it would wait for itself for ever. An interrupt that the policy raised has nowhere to go in the core: it is
//! kept ([`raise_after`]), and raised by the call when it is done and the lock is free.
//!
//! Order of locks: the state's before `turn`, which is held for moments only, by threads that wait for nothing meanwhile. Whoever
//! waits for the state is detached and holds no other lock of this file. The shuttle models of rust/kvpool-shuttle run this file.

use std::cell::Cell;

use pyo3::prelude::*;

use crate::errors::raise;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError, thread_local};

thread_local! {
    /// This thread holds the lock of a pool with a policy written in Python, and Python code may run.
    static INSIDE: Cell<bool> = const { Cell::new(false) };

    /// What is to be raised when the call inside is done.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Raises an exception that is not the policy's own, such as an interrupt, when the call that this thread is inside of is done. Of
/// several the first.
pub(crate) fn raise_after(error: PyErr) {
    let first = RAISED.with(Cell::take).unwrap_or(error);
    RAISED.with(|raised| raised.set(Some(first)));
}

/// Runs a call on the state of a pool with a policy written in Python.
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

/// Blocks or tokens from which on a call counts as long.
pub(crate) const LONG: usize = 4096;

/// A panic in Rust would leave the state as it was at that moment: the pool's own invariants, and its poison, tell.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State that several threads use.
pub(crate) struct Locked<T: Send> {
    state: Mutex<T>,
    /// Steps that wait for the state.
    waiting: AtomicUsize,
    /// Looks wait here while steps do.
    turn: Mutex<()>,
    no_step_waits: Condvar,
}

/// What a call is for.
#[derive(Clone, Copy, PartialEq)]
enum Purpose {
    Step,
    Look,
}

/// A step that waits; no look goes in before it is dropped.
struct Waiting<'a, T: Send>(&'a Locked<T>);

impl<T: Send> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, Ordering::SeqCst) == 1 {
            // Who saw a step wait is asleep, or has not locked yet and will look again.
            drop(lock(&self.0.turn));
            self.0.no_step_waits.notify_all();
        }
    }
}

impl<T: Send> Locked<T> {
    pub(crate) fn new(state: T) -> Self {
        Self {
            state: Mutex::new(state),
            waiting: AtomicUsize::new(0),
            turn: Mutex::new(()),
            no_step_waits: Condvar::new(),
        }
    }

    fn announce(&self, purpose: Purpose) -> Option<Waiting<'_, T>> {
        (purpose == Purpose::Step).then(|| {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            Waiting(self)
        })
    }

    /// Waits for the state, detached.
    fn wait(&self, purpose: Purpose) -> MutexGuard<'_, T> {
        let _waiting = self.announce(purpose);
        lock(&self.state)
    }

    /// A look lets steps that wait go first. A policy's own look is within a step, which is over only after it.
    fn let_steps_go_first(&self, py: Python<'_>, purpose: Purpose) {
        if purpose == Purpose::Look && self.waiting.load(Ordering::SeqCst) > 0 && !is_inside() {
            py.detach(|| {
                let mut turn = lock(&self.turn);
                while self.waiting.load(Ordering::SeqCst) > 0 {
                    turn = self.no_step_waits.wait(turn).unwrap_or_else(PoisonError::into_inner);
                }
            });
        }
    }
}

fn pass<T: Send, R: Send>(
    py: Python<'_>,
    locked: &Locked<T>,
    purpose: Purpose,
    size: usize,
    call: impl FnOnce(&mut T) -> R + Send,
) -> R {
    locked.let_steps_go_first(py, purpose);
    if size >= LONG {
        return py.detach(|| call(&mut locked.wait(purpose)));
    }
    match locked.state.try_lock() {
        Ok(mut state) => call(&mut state),
        Err(TryLockError::Poisoned(state)) => call(&mut state.into_inner()),
        Err(TryLockError::WouldBlock) => py.detach(|| call(&mut locked.wait(purpose))),
    }
}

/// Runs a call, unlocks, and raises what was to be raised after it.
fn work_inside<T, R>(mut state: MutexGuard<'_, T>, call: impl FnOnce(&mut T) -> R) -> PyResult<R> {
    let result = inside(|| call(&mut state));
    drop(state);
    match RAISED.with(Cell::take) {
        Some(error) => Err(error),
        None => Ok(result),
    }
}

fn pass_guarded<T: Send, R: Send>(
    py: Python<'_>,
    locked: &Locked<T>,
    purpose: Purpose,
    call: impl FnOnce(&mut T) -> R + Send,
) -> PyResult<R> {
    locked.let_steps_go_first(py, purpose);
    let mut waiting = None;
    loop {
        match locked.state.try_lock() {
            Ok(state) => {
                drop(waiting);
                return work_inside(state, call);
            }
            Err(TryLockError::Poisoned(state)) => return work_inside(state.into_inner(), call),
            Err(TryLockError::WouldBlock) if is_inside() => {
                let message = "an eviction policy called into a pool that is busy, its own or another thread's: \
                               a policy must not call its pool";
                return Err(raise(py, "PolicyError", message));
            }
            // Waits for its turn detached, and tries again attached.
            Err(TryLockError::WouldBlock) => {
                waiting = waiting.or_else(|| locked.announce(purpose));
                py.detach(|| drop(lock(&locked.state)));
            }
        }
    }
}

/// Runs a short call on the locked state.
pub(crate) fn enter<T: Send, R: Send>(
    py: Python<'_>,
    locked: &Locked<T>,
    call: impl FnOnce(&mut T) -> R + Send,
) -> R {
    pass(py, locked, Purpose::Step, 0, call)
}

/// Runs a call of `size` blocks or tokens on the locked state, detached from the interpreter if that is long.
pub(crate) fn enter_sized<T: Send, R: Send>(
    py: Python<'_>,
    locked: &Locked<T>,
    size: usize,
    call: impl FnOnce(&mut T) -> R + Send,
) -> R {
    pass(py, locked, Purpose::Step, size, call)
}

/// Runs a call whose size only the locked state knows.
pub(crate) fn enter_measured<T: Send, R: Send>(
    py: Python<'_>,
    locked: &Locked<T>,
    size: impl FnOnce(&T) -> usize,
    call: impl FnOnce(&mut T) -> R + Send,
) -> R {
    if let Ok(mut state) = locked.state.try_lock()
        && size(&state) < LONG
    {
        return call(&mut state);
    }
    py.detach(|| call(&mut locked.wait(Purpose::Step)))
}

/// Runs a call on state that may have a policy written in Python: `guarded`, if it has one.
pub(crate) fn enter_guarded<T: Send, R: Send>(
    py: Python<'_>,
    locked: &Locked<T>,
    guarded: bool,
    size: usize,
    call: impl FnOnce(&mut T) -> R + Send,
) -> PyResult<R> {
    if guarded {
        return pass_guarded(py, locked, Purpose::Step, call);
    }
    Ok(pass(py, locked, Purpose::Step, size, call))
}

/// As [`enter_sized`], for those who only look: steps that wait go first.
pub(crate) fn look<T: Send, R: Send>(
    py: Python<'_>,
    locked: &Locked<T>,
    size: usize,
    call: impl FnOnce(&mut T) -> R + Send,
) -> R {
    pass(py, locked, Purpose::Look, size, call)
}

/// As [`enter_guarded`], for those who only look: steps that wait go first.
pub(crate) fn look_guarded<T: Send, R: Send>(
    py: Python<'_>,
    locked: &Locked<T>,
    guarded: bool,
    size: usize,
    call: impl FnOnce(&mut T) -> R + Send,
) -> PyResult<R> {
    if guarded {
        return pass_guarded(py, locked, Purpose::Look, call);
    }
    Ok(pass(py, locked, Purpose::Look, size, call))
}
