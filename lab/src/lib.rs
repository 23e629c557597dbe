//! The laboratory draws random calls, computes the answers that a model expects, runs the calls, and
//! compares the results. If a run fails, the laboratory shrinks it and writes it as a journal and as a
//! test.
//!
//! This crate contains all checks by random calls. Only the module [`model`] knows calls by name. The
//! other modules know a call only by the kinds of its arguments ([`kvpool_journal::calls::Slot`]). A
//! sequence of bytes determines all choices, so both a fuzzer and a random generator can drive the
//! laboratory.
//!
//! To add a subject, implement [`world::World`]. It defines the subject's settings, how its arguments
//! are drawn, its model, and its oracles (checks of the state). The worlds are [`world::pool`] for
//! [`kvpool::BlockPool`], [`world::manager`] for [`kvpool::CacheManager`], and [`world::vllm`] for
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
