//! The answers that calls must have, written from the documentation of the subjects. No other module of the
//! laboratory names calls.

mod answers;
pub(crate) mod caller;
pub mod manager;
pub mod pool;
pub mod reference;
pub mod retention;
pub mod vllm;
