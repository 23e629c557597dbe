//! Block tables with a mutable tail, one per KV-cache group: fork, copy-on-write, truncation, windows.
//!
//! A [`Sequence`] contains the tokens and the tables of one request of [`crate::CacheManager`].
//! [`Staged`] is an admission before its blocks are taken.
//!
//! Costs: O(1) per block touched. A fork is O(blocks + tokens), without recursion.

mod grouped;
mod staged;
mod table;
mod tables;

pub(crate) use grouped::Grouped;
pub use staged::Part;
pub(crate) use staged::{Room, Staged, StagedTable};
pub(crate) use table::GivenUp;
pub(crate) use table::Table;
pub use table::TableChange;
pub(crate) use tables::{Needs, Sequence};
