//! Defines observers, which receive notifications of pools and managers and can read their state.
//!
//! The crate `kvpool-observe` contains the observers that are part of kvpool: events, state digests,
//! the scrubber, the advisor, and explanations of cache misses.

pub use crate::manager::observe::{Admitted, ManagerObserver, RequestView};
pub use crate::pool::observe::{
    BlockView, Blocks, ClearCause, Computed, ContentView, Lookup, NewContents, PoolObserver, RemovalCause,
    Removed,
};
