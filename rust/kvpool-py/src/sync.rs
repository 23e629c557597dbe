//! The lock types that the bindings use. The shuttle models of rust/kvpool-shuttle replace this module.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError, atomic};
pub(crate) use std::thread_local;
