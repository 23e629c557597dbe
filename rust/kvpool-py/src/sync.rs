//! What locks are made of. The shuttle models of rust/kvpool-shuttle put their own in this place.

pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, TryLockError, atomic};
pub(crate) use std::thread_local;
