//! The doorway to locked Rust state.
//!
//! Every class is frozen and holds its state behind a mutex, so several Python threads may use one object. A short call takes
//! the lock while attached to the interpreter; if another thread holds it, or the call may be long, it detaches first, so
//! that nobody waits for a lock while holding the interpreter.
//!
//! No Python code ever runs while the lock is held, but for one kind: the methods of an eviction policy written in Python
//! ([`crate::policy`]). Whatever owns one is entered by [`enter_guarded`]: it waits for the lock detached, and works attached,
//! because the policy needs the interpreter again and again; and a policy that calls back into its own pool gets an error where
//! it would wait for itself for ever.

use std::cell::Cell;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::prelude::*;

use crate::errors::raise;

thread_local! {
    /// A policy written in Python is being called in this thread, with the lock of its pool held.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a call of a policy written in Python.
pub(crate) fn inside_policy<R>(call: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            INSIDE.set(self.0);
        }
    }
    let _restore = Restore(INSIDE.replace(true));
    call()
}

/// Runs a call on state that may have a policy written in Python: `guarded`, if it has one.
pub(crate) fn enter_guarded<T: Send, R: Send>(
    py: Python<'_>,
    mutex: &Mutex<T>,
    guarded: bool,
    size: usize,
    call: impl FnOnce(&mut T) -> R + Send,
) -> PyResult<R> {
    if !guarded {
        return Ok(enter_sized(py, mutex, size, call));
    }
    loop {
        match mutex.try_lock() {
            Ok(mut state) => return Ok(call(&mut state)),
            Err(TryLockError::Poisoned(state)) => return Ok(call(&mut state.into_inner())),
            Err(TryLockError::WouldBlock) if INSIDE.get() => {
                let message = "an eviction policy called into a pool that is busy, its own or another thread's: \
                               a policy is told all that it needs";
                return Err(raise(py, "PolicyError", message));
            }
            // Waits for its turn detached, and tries again attached.
            Err(TryLockError::WouldBlock) => py.detach(|| drop(lock(mutex))),
        }
    }
}

/// Blocks or tokens from which on a call counts as long.
pub(crate) const LONG: usize = 4096;

/// A panic in Rust would leave the state as it was at that moment: the pool's own invariants, and its poison, tell.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a short call on the locked state.
pub(crate) fn enter<T: Send, R: Send>(
    py: Python<'_>,
    mutex: &Mutex<T>,
    call: impl FnOnce(&mut T) -> R + Send,
) -> R {
    match mutex.try_lock() {
        Ok(mut state) => call(&mut state),
        Err(TryLockError::Poisoned(state)) => call(&mut state.into_inner()),
        Err(TryLockError::WouldBlock) => py.detach(|| call(&mut lock(mutex))),
    }
}

/// Runs a call whose size only the locked state knows.
pub(crate) fn enter_measured<T: Send, R: Send>(
    py: Python<'_>,
    mutex: &Mutex<T>,
    size: impl FnOnce(&T) -> usize,
    call: impl FnOnce(&mut T) -> R + Send,
) -> R {
    if let Ok(mut state) = mutex.try_lock()
        && size(&state) < LONG
    {
        return call(&mut state);
    }
    py.detach(|| call(&mut lock(mutex)))
}

/// Runs a call of `size` blocks or tokens on the locked state, detached from the interpreter if that is long.
pub(crate) fn enter_sized<T: Send, R: Send>(
    py: Python<'_>,
    mutex: &Mutex<T>,
    size: usize,
    call: impl FnOnce(&mut T) -> R + Send,
) -> R {
    if size < LONG { enter(py, mutex, call) } else { py.detach(|| call(&mut lock(mutex))) }
}
