//! Journals of kvpool.
mod contents;
mod error;
mod manager;
mod pool;
mod replay;
mod subject;
pub use error::ReplayError;
pub use manager::ManagerSubject;
pub use pool::PoolSubject;
pub use replay::{Difference, Options, Report, replay};
pub use subject::{Answer, Step, Subject};
