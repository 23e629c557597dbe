//! The laboratory draws random calls, models them, runs them, and compares the results. A run that
//! fails is shrunk, and written as a journal and as a test.
//!
//! It contains every check of random calls. Other modules know a call only by the kinds of its
//! arguments ([`kvpool_journal::calls::Slot`]). Only [`model`] knows calls by name. Bytes determine the
//! choices, so a fuzzer can drive the laboratory as well as a random generator.
//!
//! A subject is added with a [`world::World`], which defines its settings, how its arguments are drawn,
//! its model, and its oracles. [`world::pool`] is the world of a [`kvpool::BlockPool`],
//! [`world::manager`] that of a [`kvpool::CacheManager`], and [`world::vllm`] that of a
//! [`kvpool_vllm::Pool`].
#![forbid(unsafe_code)]

pub mod bytes;
pub mod draw;
pub mod failure;
pub mod model;
pub mod oracle;
pub mod run;
pub mod world;

pub use failure::Failure;
