//! Threads and locks of this crate. They come from the standard library or, for tests, from the crate
//! `shuttle`. With `shuttle`, `rust/kvpool-shuttle` runs the engine under many thread schedules.
//!
//! Statics always use the standard library, because primitives of `shuttle` belong to one execution.

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
