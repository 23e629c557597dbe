//! Oracles: what must hold after each call. The model ([`crate::model`]) says what a call answers; each file here
//! holds one thing that is true of every state.

pub mod books;
pub mod bytes;
pub mod closedness;
pub mod digest;
pub mod events;
pub mod keys;
pub mod queue;
pub mod reads;
pub mod scrubs;
