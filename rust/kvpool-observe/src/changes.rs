//! `ChangeLog`: which contents came into the index of a pool and left it, and why, for whoever explains misses.
//!
//! Owns: the changes of the set of contents that a lookup can find, in order. Per content, as events are: a copy that goes while
//! another one stays is no change. What explains takes what is logged after each operation of its manager, so the log holds the
//! changes of one operation. It is shared by two observers, that of the pool and that of the manager, which are never told at once.
//!
//! Costs: 24 bytes per change, kept for the next.

use std::sync::{Arc, Mutex, PoisonError};

use kvpool::observe::{ClearCause, RemovalCause};
use kvpool::retention::EvictionCause;

/// Why a content left the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// An allocation needed its block.
    Evicted(EvictionCause),
    /// It was named.
    ById,
    /// Everything was forgotten.
    Reset,
    /// This epoch ended.
    Epoch(u64),
}

/// A change of the set of contents that a lookup can find. Contents are named by the keys of their hashes and their groups
/// ([`group_key`](crate::digest::group_key)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The first computed copy.
    Appeared { key: u64 },
    /// The last one is gone.
    Departed { key: u64, cause: Cause },
    /// All of them.
    Cleared { cause: Cause },
}

/// The log.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeLog {
    changes: Arc<Mutex<Vec<Change>>>,
}

impl ChangeLog {
    fn push(&self, change: Change) {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).push(change);
    }

    pub(crate) fn appeared(&self, key: u64) {
        self.push(Change::Appeared { key });
    }

    pub(crate) fn departed(&self, key: u64, cause: RemovalCause) {
        let cause = match cause {
            RemovalCause::Evicted(cause) => Cause::Evicted(cause),
            _ => Cause::ById,
        };
        self.push(Change::Departed { key, cause });
    }

    pub(crate) fn cleared(&self, cause: ClearCause) {
        let cause = match cause {
            ClearCause::Epoch(epoch) => Cause::Epoch(epoch),
            _ => Cause::Reset,
        };
        self.push(Change::Cleared { cause });
    }

    /// Exchanges the changes since the last call for an empty list.
    pub(crate) fn take(&self, changes: &mut Vec<Change>) {
        changes.clear();
        std::mem::swap(&mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner), changes);
    }
}
