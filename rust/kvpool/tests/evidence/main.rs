//! Tests how a pool checks its own state: digests, the scrubber, and the behaviour of a pool whose
//! memory was corrupted.

#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

mod digest;
mod faults;
mod poison;
mod scrubs;
mod world;
