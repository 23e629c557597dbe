//! Tests KV events: compares a publisher with a model and with real managers, and its bytes with stored
//! test vectors.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "helpers of tests fail by panicking, as tests do"
)]

mod managers;
mod model;
mod publisher;
mod vectors;
