//! What threads share is made of: the standard library's, or shuttle's, which rust/kvpool-shuttle
//! compiles this crate against to run the engine under every schedule.
//!
//! Statics stay with the standard library: shuttle's primitives belong to one execution.

#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, RwLock, atomic, mpsc},
    thread,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, RwLock, atomic, mpsc},
    thread,
};
