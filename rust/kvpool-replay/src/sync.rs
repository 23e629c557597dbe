//! The synchronization types of a replay's worker threads. The shuttle models of rust/kvpool-shuttle
//! replace them with their own.

pub(crate) use std::{sync::mpsc, thread};
