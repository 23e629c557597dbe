//! What the pool can prove of itself: digests of its state, the scrubber, and what becomes of a pool
//! whose memory was changed behind its back.

#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

mod digest;
mod faults;
mod poison;
mod scrubs;
mod world;
