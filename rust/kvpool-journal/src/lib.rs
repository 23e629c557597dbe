//! Journals of kvpool.
mod contents;
mod error;
mod manager;
mod pool;
mod replay;
mod show;
mod subject;
mod words;
pub use error::ReplayError;
pub use manager::ManagerSubject;
pub use pool::PoolSubject;
pub use replay::{Difference, Options, Report, replay};
pub use show::{Line, Summary, show};
pub use subject::{Answer, Step, Subject};
