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
mod show;
mod shrink;
mod simpler;
mod source;
mod subject;
mod templates;
mod vllm;
mod words;
pub use bisect::{Divergence, bisect, compare};
pub use error::ReplayError;
pub use export::{Language, export};
pub use manager::ManagerSubject;
pub use pool::PoolSubject;
pub use replay::{Difference, Options, Report, replay};
pub use show::{Line, Summary, show};
pub use shrink::{Goal, Shrunk, shrink};
pub use subject::{Answer, Step, Subject};
pub use vllm::VllmSubject;
pub use words::Words;
