//! Runs all observers of a pool under one generator of random calls: the contract of observers,
//! metrics, payloads, the advisor, events and digests, in any combination.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

mod advisor;
mod contract;
mod metrics;
mod payloads;
mod traffic;
