//! KV events: a publisher against a model, beside real managers, and its bytes against vectors.

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
