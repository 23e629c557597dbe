//! Request traces for kvpool: read them, generate them, replay them.
//!
//! | module | owns |
//! |---|---|
//! | [`trace`] | a trace in memory, and how it is written |
//! | [`reader`] | from a file, a folder or a stream, plain or gzip, to a trace |
//! | [`formats`] | six formats: how each is told, read and written |
//! | [`labels`] | what a trace knows of its requests besides tokens and blocks |
//! | [`stats`] | what is in a trace, and the most that a cache could hit |
//! | [`validate`] | what makes a trace consistent |
//! | [`generate`] | a deterministic generator of chats and agent sessions |
//! | [`expand`] | block ids -> made-up tokens |
//! | [`replay`] | a trace through the shipped pool and manager, and what came of it |
//! | [`sizing`] | hits at every capacity at once, the optimum, the value of hints, the knee in GiB |
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

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
