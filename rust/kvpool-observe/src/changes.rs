//! `ChangeLog`: which contents came into the index of a pool and left it, and why, for whoever explains
//! misses.
//!
//! Owns: the changes of the set of contents that a lookup can find, in order. Per content, as events
//! are: a copy that goes while another one stays is no change. What explains takes what is logged after
//! each operation of its manager, so the log holds the changes of one operation. It is shared by two
//! observers, that of the pool and that of the manager, which are never told at once.
//!
//! Costs: 24 bytes per change, kept for the next.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use kvpool::observe::{ClearCause, RemovalCause};
use kvpool::retention::EvictionCause;
use kvpool::{Kept, Outlook};

/// An [`Outlook`] without its words, which all of a pool have in common: there is one per content that
/// is remembered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Glance {
    class: u16,
    kept_per_hit: Option<Kept>,
}

impl Glance {
    /// What was glanced at; `like` is any other of the pool.
    pub(crate) const fn outlook(self, like: Outlook) -> Outlook {
        let mut outlook = like;
        (outlook.class, outlook.kept_per_hit) = (self.class, self.kept_per_hit);
        outlook
    }
}

// No larger than with an epoch.
const _: () = assert!(size_of::<Cause>() <= 16);

/// Why a content left the index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cause {
    /// An allocation needed its block; what the policy thought of it, if it said so.
    Evicted(EvictionCause, Option<Glance>),
    /// It was named.
    ById,
    /// Everything was forgotten.
    Reset,
    /// This epoch ended.
    Epoch(u64),
}

/// A change of the set of contents that a lookup can find. Contents are named by the keys of their
/// hashes and their groups ([`group_key`](crate::digest::group_key)).
#[derive(Clone, Copy, Debug, PartialEq)]
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
    /// The first outlook that was told: it has the words of all.
    like: Arc<OnceLock<Outlook>>,
}

impl ChangeLog {
    fn push(&self, change: Change) {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).push(change);
    }

    pub(crate) fn appeared(&self, key: u64) {
        self.push(Change::Appeared { key });
    }

    pub(crate) fn departed(&self, key: u64, cause: RemovalCause, outlook: Option<Outlook>) {
        let cause = match cause {
            RemovalCause::Evicted(cause) => Cause::Evicted(
                cause,
                outlook.map(|outlook| {
                    self.like.get_or_init(|| outlook);
                    Glance { class: outlook.class, kept_per_hit: outlook.kept_per_hit }
                }),
            ),
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

    /// Any outlook that was told.
    pub(crate) fn like(&self) -> Option<Outlook> {
        self.like.get().copied()
    }

    /// Exchanges the changes since the last call for an empty list.
    pub(crate) fn take(&self, changes: &mut Vec<Change>) {
        changes.clear();
        std::mem::swap(&mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner), changes);
    }
}
