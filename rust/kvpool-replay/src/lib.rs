//! Request traces for kvpool: read them, generate them, replay them.
//!
//! | module | contents |
//! |---|---|
//! | [`trace`] | a trace in memory, and how it is written |
//! | [`reader`] | reads a trace from a file, a folder or a stream, plain or gzip |
//! | [`formats`] | six formats: how each is detected, read and written |
//! | [`labels`] | sessions, kinds and think times of requests |
//! | [`stats`] | statistics of a trace, and the highest possible hit rate |
//! | [`validate`] | the checks that make a trace consistent |
//! | [`generate`] | a deterministic generator of chats and agent sessions |
//! | [`expand`] | synthetic tokens for block ids |
//! | [`replay`] | replays a trace through the real pool and manager, and reports the result |
//! | [`sizing`] | hit rates at all capacities, the optimum, the value of hints, the best size in GiB |
#![forbid(unsafe_code)]

mod blocks;
pub mod error;
pub mod expand;
mod format;
pub mod formats;
pub mod generate;
mod id_hash;
pub mod labels;
mod loader;
mod options;
pub mod reader;
pub mod replay;
mod request;
pub mod sizing;
mod source;
pub mod stats;
mod sync;
pub mod trace;
pub mod validate;

/// Compiles the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
