//! `ChangeLog`: which contents entered and left the index of a pool, and why. The explainer of misses
//! reads it.
//!
//! The log contains the changes of the set of contents that a lookup can find, in order. A change
//! concerns a content, not a block: when one of several copies is removed, nothing is logged. The
//! explainer empties the log after each operation of its manager, so the log contains the changes of
//! one operation. Two observers share the log: one observes the pool, and one the manager. They are
//! never notified at the same time.
//!
//! Costs: 24 bytes per change. The memory is reused.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use kvpool::observe::{ClearCause, RemovalCause};
use kvpool::retention::EvictionCause;
use kvpool::{CacheTime, Outlook};

/// The fields of an [`Outlook`] (a policy's estimate of a block's further use) that differ between
/// blocks. The explainer stores them for each remembered content. The other parts are equal for all
/// outlooks of a pool, so they are stored once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CompactOutlook {
    class: u16,
    kept_per_hit: Option<CacheTime>,
}

impl CompactOutlook {
    /// Returns the complete outlook. The fields that are equal for all outlooks of a pool come from
    /// `template`, any other outlook of the same pool.
    pub(crate) const fn outlook(self, template: Outlook) -> Outlook {
        let mut outlook = template;
        (outlook.class, outlook.kept_per_hit) = (self.class, self.kept_per_hit);
        outlook
    }
}

// A `Cause` takes at most 16 bytes, because the log stores one per change.
const _: () = assert!(size_of::<Cause>() <= 16);

/// The reason why a content was removed from the pool's index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cause {
    /// The block was evicted for an allocation. Contains the policy's outlook for the block, if the
    /// policy has one.
    Evicted(EvictionCause, Option<CompactOutlook>),
    /// The caller dropped the content by its block id.
    ById,
    /// The pool was reset.
    Reset,
    /// The epoch with this number ended, so its contents are no longer valid.
    Epoch(u64),
}

/// A change of the set of contents that a lookup can find. A content is identified by the key of its
/// hash and its group ([`group_key`](crate::digest::group_key)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Change {
    /// The first computed copy of the content was registered.
    Appeared { key: u64 },
    /// The last computed copy of the content was removed.
    Departed { key: u64, cause: Cause },
    /// All contents were removed.
    Cleared { cause: Cause },
}

/// The log of changes since the explainer read it last.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChangeLog {
    changes: Arc<Mutex<Vec<Change>>>,
    /// The first outlook that was logged. All later outlooks of the pool have the same values in the
    /// fields that do not depend on the block, so these are stored only here.
    template: Arc<OnceLock<Outlook>>,
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
                    self.template.get_or_init(|| outlook);
                    CompactOutlook { class: outlook.class, kept_per_hit: outlook.kept_per_hit }
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

    pub(crate) fn template(&self) -> Option<Outlook> {
        self.template.get().copied()
    }

    /// Moves the changes since the last call into `changes`, which is cleared first.
    pub(crate) fn take(&self, changes: &mut Vec<Change>) {
        changes.clear();
        std::mem::swap(&mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner), changes);
    }
}
