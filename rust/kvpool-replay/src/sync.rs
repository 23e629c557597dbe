//! What the worker threads of a replay share is made of. The shuttle models of rust/kvpool-shuttle put
//! their own in this place.

pub(crate) use std::{sync::mpsc, thread};
