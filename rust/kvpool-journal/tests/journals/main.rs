//! Journals of random runs: they replay bit by bit, survive a cut at any byte, and say no to everything else.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking, as tests do")]

mod bytes;
mod replays;
mod world;
