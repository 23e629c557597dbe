//! Tests journals of random runs: replays give identical results, a truncated journal is still
//! readable, and every other file is refused.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

mod bytes;
mod exports;
mod files;
mod forged;
#[cfg(unix)]
mod memory;
mod names;
#[path = "../../../kvpool/tests/numbers/mod.rs"]
mod numbers;
mod observers;
mod panics;
mod poison;
mod replays;
mod restarts;
mod shows;
mod shrinks;
mod vllm;
mod world;
mod writers;
