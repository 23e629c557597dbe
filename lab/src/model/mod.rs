//! The models of a pool, a manager and vLLM's pool: they compute the answers that calls must give. They
//! are written from the documentation of these three. No other module of the laboratory knows calls by
//! name.

mod answers;
pub(crate) mod caller;
pub mod manager;
pub mod pool;
pub mod reference;
pub mod retention;
pub mod vllm;
