//! Departures: which contents came into the index and left it, and why, for whoever explains misses.
//!
//! Owns: the log of changes of the set of contents that a lookup can find, in order, with what made a content leave. Per
//! content, as events are: a copy that goes while another one stays is no departure. Only the manager asks for it
//! ([`crate::CacheManager::explain`]), and takes what is logged after each of its operations, so the log holds the changes of
//! one operation; a pool by itself logs nothing.
//!
//! Costs: nothing without a log; 24 bytes per change with one, kept for the next.

use super::BlockPool;
use crate::block::BlockId;
use crate::events::BlockEvent;
use crate::hash::BlockHash;
use crate::prefix_index::Index;
use crate::retention::EvictionCause;

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

/// A change of the set of contents that a lookup can find. Contents are named by the keys of their hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The first computed copy.
    Appeared { key: u64 },
    /// The last one is gone.
    Departed { key: u64, cause: Cause },
    /// All of them.
    Cleared { cause: Cause },
}

/// The log, and why the content that leaves next does.
#[derive(Debug)]
pub(super) struct Departures {
    changes: Vec<Change>,
    cause: Cause,
}

impl BlockPool {
    /// Logs changes from now on.
    pub(crate) fn log_departures(&mut self) {
        self.departures = Some(Box::new(Departures { changes: Vec::new(), cause: Cause::ById }));
    }

    /// Exchanges the changes since the last call for an empty list.
    pub(crate) fn take_departures(&mut self, changes: &mut Vec<Change>) {
        changes.clear();
        if let Some(log) = &mut self.departures {
            std::mem::swap(&mut log.changes, changes);
        }
    }

    /// The name of the policy that chooses victims.
    pub(crate) fn policy_name(&self) -> &'static str {
        self.order.name()
    }

    /// The content that leaves next is evicted, for this reason.
    pub(super) fn note_evicted(&mut self, cause: EvictionCause) {
        if let Some(log) = &mut self.departures {
            log.cause = Cause::Evicted(cause);
        }
    }

    /// A block is out of the index, and with it the last computed copy of the content with this hash, if one is named.
    pub(super) fn note_unregistered(&mut self, vanished: Option<BlockHash>) {
        if let Some(log) = &mut self.departures {
            let cause = std::mem::replace(&mut log.cause, Cause::ById);
            log.changes.extend(vanished.map(|hash| Change::Departed { key: hash.key(), cause }));
        }
    }

    /// All contents are gone.
    pub(super) fn note_cleared(&mut self, cause: Cause) {
        if let Some(log) = &mut self.departures {
            log.changes.push(Change::Cleared { cause });
        }
    }

    /// The first computed copy of a content is `block`.
    #[inline(never)]
    pub(super) fn note_appeared(&mut self, block: BlockId) {
        let (Some(hash), Some(depth)) =
            (Index::hash_of(&self.records, block), Index::depth_of(&self.records, block))
        else {
            return;
        };
        if let Some(log) = &mut self.departures {
            log.changes.push(Change::Appeared { key: hash.key() });
        }
        let parent = self.index.parent_of(&self.records, block);
        self.events.push(BlockEvent::Stored { hash, parent, depth, block }, self.index.algorithm());
    }
}
