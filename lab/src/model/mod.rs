//! What each call must answer, written from the documentation of the subjects. The only place of the laboratory that
//! names calls.

pub mod pool;
pub mod retention;
pub mod vllm;
