//! Implements the block tables of a request, one per KV-cache group: growth, fork, copy-on-write,
//! truncation and windows. The last block of a table can be written to.
//!
//! A [`Sequence`] contains the tokens and the tables of one request of [`crate::CacheManager`].
//! [`Staged`] is an admission whose blocks are not yet taken.
//!
//! Costs: O(1) for each block that a call uses. A fork is O(blocks + tokens), without recursion.

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
