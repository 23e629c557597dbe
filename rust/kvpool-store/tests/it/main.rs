//! Builds all tests of stores as one program, which is linked only once.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first error")]

#[path = "../common/mod.rs"]
mod common;
mod disk;
mod header;
mod kill;
mod model;
mod redis;
mod redis_hostile;
mod renewals;
mod restart;
mod ring;
mod shared;
mod store;
mod warm;
mod warm_kills;
