//! Oracles are conditions that must be true after each call. The model ([`crate::model`]) computes the
//! answers that calls must give, and each file here checks one property of the state.

pub mod books;
pub mod bytes;
pub mod closedness;
pub mod counters;
pub mod digest;
pub mod events;
pub mod explained;
pub mod hits;
pub mod keys;
pub mod layers;
pub mod memory;
pub mod plans;
pub mod queue;
pub mod reads;
pub mod requests;
pub mod scrubs;
