//! The answers that calls must give, written from the documentation of the subjects. No other module of
//! the laboratory knows calls by name.

mod answers;
pub(crate) mod caller;
pub mod manager;
pub mod pool;
pub mod reference;
pub mod retention;
pub mod vllm;
