//! Observers: notifications of what pools and managers do, and read access to their state.
//!
//! The crate `kvpool-observe` contains the observers that kvpool ships: events, state digests, the
//! scrubber, the advisor, and explanations of cache misses.

pub use crate::manager::observe::{Admitted, ManagerObserver, RequestView};
pub use crate::pool::observe::{
    BlockView, Blocks, ClearCause, Computed, ContentView, Lookup, NewContents, PoolObserver, RemovalCause,
    Removed,
};
