//! Events: report which contents a lookup can find from now on, and which contents it can no longer
//! find.
//!
//! Events are per *content*, not per block. `Stored` is emitted when the first computed copy of a
//! content appears, and `Removed` when the last one is removed. (vLLM #55092 reported a removal while
//! another copy was resident.) A content is identified by its hash and its KV-cache group, so the same
//! hash in two groups is two contents. A consumer that applies the events to a set has, at every
//! moment, exactly the contents that a lookup can find.
//!
//! The log is bounded. If no consumer drains it in time, it drops all its events and counts them in
//! `dropped`. It never blocks and never grows beyond its capacity.

use kvpool::BlockId;
use kvpool::PoolError;
use kvpool::{BlockHash, HashAlgorithm};

/// One change of the set of contents that a lookup can find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockEvent {
    /// The first computed copy of a content was registered.
    Stored {
        /// Its hash.
        hash: BlockHash,
        /// The KV-cache group of the content; 0 if there is only one group.
        group: u16,
        /// The hash of the block before this one in the hash chain. `None` for the first block. Also
        /// `None` in all groups other than full attention, because a hit in such a group does not need
        /// the earlier blocks.
        parent: Option<BlockHash>,
        /// The position of the block in its hash chain. It may be 0 in KV-cache groups other than full
        /// attention.
        depth: u32,
        /// The block that holds this computed copy.
        block: BlockId,
    },
    /// The last computed copy of a content was removed.
    Removed {
        /// Its hash.
        hash: BlockHash,
        /// Its KV-cache group.
        group: u16,
        /// The block that held the removed copy.
        block: BlockId,
    },
    /// All contents were removed, by a reset or by the start of this epoch.
    Cleared {
        /// The epoch of the pool from now on.
        epoch: u64,
    },
}

/// The events that [`PoolWatch::take_events`](crate::PoolWatch::take_events) returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventBatch {
    /// Events in order.
    pub events: Vec<BlockEvent>,
    /// The number of events since the last call that were lost because the log was full. They preceded
    /// the events in `events`. If the number is not 0, the consumer must take a snapshot.
    pub dropped: u64,
    /// The hash algorithms of the digests, each with the index of the first event that it applies to.
    /// There is more than one entry only if the pool was emptied and then filled with digests of
    /// another algorithm.
    algorithms: Vec<(usize, HashAlgorithm)>,
}

impl EventBatch {
    /// Returns the algorithm of the digests of event `at`, which determines their length. `None` if no
    /// event up to this one has a digest.
    #[must_use]
    pub fn algorithm_of(&self, at: usize) -> Option<HashAlgorithm> {
        let begun = self.algorithms.iter().rev().find(|(from, _)| *from <= at);
        begun.map(|&(_, algorithm)| algorithm)
    }
}

/// The largest number of events that a log can be configured to hold.
const MAX_CAPACITY: usize = 1 << 32;

/// A bounded log of events. A log with capacity 0 records nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventLog {
    capacity: usize,
    batch: EventBatch,
}

impl EventLog {
    pub(crate) fn new(capacity: usize) -> Result<Self, PoolError> {
        if capacity > MAX_CAPACITY {
            return Err(PoolError::config(
                "event_capacity",
                capacity,
                format!("at most {MAX_CAPACITY} events"),
            ));
        }
        Ok(Self { capacity, batch: EventBatch::default() })
    }

    pub(crate) const fn is_enabled(&self) -> bool {
        self.capacity > 0
    }

    /// Adds an event, with the algorithm of its digests if it has any.
    pub(crate) fn push(&mut self, event: BlockEvent, algorithm: Option<HashAlgorithm>) {
        if !self.is_enabled() {
            return;
        }
        if self.batch.events.len() >= self.capacity {
            self.batch.dropped += self.batch.events.len() as u64;
            self.batch.events.clear();
            self.batch.algorithms.clear();
        }
        if let Some(algorithm) = algorithm
            && self.batch.algorithms.last().is_none_or(|&(_, last)| last != algorithm)
        {
            self.batch.algorithms.push((self.batch.events.len(), algorithm));
        }
        self.batch.events.push(event);
    }

    pub(crate) fn take(&mut self) -> EventBatch {
        std::mem::take(&mut self.batch)
    }
}
