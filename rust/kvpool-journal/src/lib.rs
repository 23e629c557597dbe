//! Journals of kvpool.
#![forbid(unsafe_code)]
mod contents;
mod error;
mod manager;
mod pool;
mod subject;
pub use error::ReplayError;
pub use manager::ManagerSubject;
pub use pool::PoolSubject;
pub use subject::{Answer, Step, Subject};
