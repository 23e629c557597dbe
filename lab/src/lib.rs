//! The laboratory draws random calls, models them, runs them, and compares. A run that fails is shrunk, and
//! written as a journal and as a test.
//!
//! Owns: everything that is checked of random calls. A call is known by the kinds of its arguments
//! ([`kvpool_journal::calls::Slot`]); only [`model`] knows calls by name. Bytes decide what is drawn, so a
//! fuzzer can drive it as well as a random generator.
//!
//! A subject joins with a [`world::World`]: its settings, how its arguments are drawn, its model, and which
//! oracles check it. [`world::pool`] is that of a [`kvpool::BlockPool`], [`world::manager`] that of a
//! [`kvpool::CacheManager`], [`world::vllm`] that of a [`kvpool_vllm::Pool`].
#![forbid(unsafe_code)]

pub mod bytes;
pub mod draw;
pub mod failure;
pub mod model;
pub mod oracle;
pub mod run;
pub mod world;

pub use failure::Failure;
