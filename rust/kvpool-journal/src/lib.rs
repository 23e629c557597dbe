//! Journals of kvpool.
#![forbid(unsafe_code)]
mod bisect;
mod contents;
mod error;
mod export;
mod manager;
mod pool;
mod record;
mod replay;
mod shrink;
mod simpler;
mod source;
mod subject;
mod templates;
mod vllm;
pub use bisect::{Divergence, bisect, compare};
pub use error::ReplayError;
pub use export::{Language, export};
pub use manager::ManagerSubject;
pub use pool::PoolSubject;
pub use replay::{Difference, Options, Report, replay};
pub use shrink::{Goal, Shrunk, minimize, shrink};
pub use subject::{Answer, Step, Subject};
pub use vllm::VllmSubject;
