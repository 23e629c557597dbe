//! The doorway to locked Rust state.
//!
//! Every class is frozen and holds its state behind a mutex, so several Python threads may use one object. A short call takes
//! the lock while attached to the interpreter; if another thread holds it, or the call may be long, it detaches first, so
//! that nobody waits for a lock while holding the interpreter. No Python code ever runs while the lock is held.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::prelude::*;

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
