//! Observers: who is told what pools and managers do, and what can be looked at in them.
//!
//! The crate `kvpool-observe` has those that kvpool ships: events, state digests, the scrubber, the
//! advisor, and what explains misses.

pub use crate::manager::observe::{Admitted, ManagerObserver, RequestView};
pub use crate::pool::observe::{
    BlockView, Blocks, ClearCause, Computed, ContentView, Lookup, NewContents, PoolObserver, RemovalCause,
    Removed,
};
