//! Journals of kvpool: record every call that changes a pool or a manager, and replay the calls with
//! identical results.
//!
//! - [`Journaled`] wraps a [`kvpool::BlockPool`], a [`kvpool::CacheManager`] or a
//!   [`kvpool_vllm::Pool`], and records its calls. The calls that change it are the methods of
//!   [`PoolCalls`], [`ManagerCalls`] and [`VllmCalls`]. Pools and managers do not depend on the
//!   journal. [`calls`] declares each call once.
//! - [`replay`] runs a journal again, and compares every answer and every digest of the state.
//! - [`bisect`] finds the first operation whose answer differs or that breaks an invariant. [`compare`]
//!   finds the first difference between two journals.
//! - [`shrink`] removes the operations that are not needed for a failure. [`export`] turns operations
//!   into a test.
//! - [`show`] returns the content of a journal as text. [`observe`] provides the pool or manager during
//!   a replay.
//! - [`replay_restarting`] checks that a warm restart changes no answer.
//!
//! A [`Journal`] writes records, and a [`JournalReader`] reads them.
#![forbid(unsafe_code)]
mod bisect;
pub mod calls;
mod contents;
mod error;
mod export;
mod format;
mod journaled;
mod manager;
mod minimize;
mod numbers;
mod observe;
mod observers;
mod pool;
mod record;
mod replay;
mod requests;
mod restarts;
mod show;
mod shrink;
mod subject;
mod value;
mod vllm;
pub use bisect::{Divergence, bisect, compare};
pub use calls::{ManagerCall, ManagerCalls, PoolCall, PoolCalls, VllmCall, VllmCalls, VllmIds, Words};
pub use error::ReplayError;
pub use export::{EXPORT_LIMIT, Language, export};
pub(crate) use format::SteadyAppend;
pub use format::{
    AppendRecord, ChainRecord, Check, ComputedRecord, ContentKey, CoveredRecord, EndedRecord, Entry, Filled,
    Flush, ForksRecord, IdRecord, Ids, Journal, JournalConfig, JournalError, JournalFile, JournalHeader,
    JournalReader, JournalSource, Keys, Kind, LinkRecord, LoadedRecord, MAGIC, MAGIC_OF_GROUPS, MatchRecord,
    Name, OptionsRecord, Outcome, Packed, PartRecord, PlanRecord, Planned, PromptRecord, QUEUE_BYTES,
    RangeRecord, Records, RetentionRecord, Rows, SignalRecord, StartRecord, Tail, TurnRecord, UntilRecord,
    create_file,
};
pub use journaled::{Journaled, Recordable, Recording, VllmConfig};
pub use manager::ManagerSubject;
pub use minimize::minimize;
pub use observe::observe;
pub use observers::{Observed, Observers};
pub use pool::PoolSubject;
pub use record::record;
pub use replay::{Difference, Options, Report, replay};
pub use restarts::{RestartDifference, RestartReport, replay_restarting};
pub use show::{Line, Summary, show};
pub use shrink::{Goal, Shrunk, shrink};
pub use subject::{Step, Subject};
pub use value::{Answer, Value};
pub use vllm::VllmSubject;

/// Lets `cargo test` run the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
