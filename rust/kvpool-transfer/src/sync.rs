//! The threads and locks of this crate, from the standard library or from shuttle. With shuttle,
//! `rust/kvpool-shuttle` runs the engine under every schedule.
//!
//! Statics stay with the standard library, because shuttle's primitives belong to one execution.

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
