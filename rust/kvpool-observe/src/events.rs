//! Events: what became matchable, and what no longer is.
//!
//! Per *content*, not per block: `Stored` when the first computed copy of a content appears, `Removed`
//! when the last one goes (vLLM #55092 reported a removal while another copy was resident). A content
//! is a hash and a KV-cache group: the same hash in two groups is two contents. Replaying the events
//! into a set gives exactly the matchable contents, at every moment.
//!
//! Bounded: a log that nobody drains drops everything it holds, counts it and says so; it never blocks
//! and never grows.

use kvpool::BlockId;
use kvpool::PoolError;
use kvpool::{BlockHash, HashAlgorithm};

/// One change of the set of matchable hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockEvent {
    /// The first computed copy of a content.
    Stored {
        /// Its hash.
        hash: BlockHash,
        /// Its KV-cache group: 0 where there is one.
        group: u16,
        /// The hash of the block before it in its chain; `None` for the first block, and in groups that
        /// need none before what they keep: all but full attention.
        parent: Option<BlockHash>,
        /// Its position in its chain; in groups other than full attention it may be 0.
        depth: u32,
        /// The copy.
        block: BlockId,
    },
    /// The last computed copy is gone.
    Removed {
        /// Its hash.
        hash: BlockHash,
        /// Its KV-cache group.
        group: u16,
        /// The copy that was.
        block: BlockId,
    },
    /// Everything was forgotten: a reset, or the start of this epoch.
    Cleared {
        /// The epoch that the pool is in now.
        epoch: u64,
    },
}

/// What [`PoolWatch::take_events`](crate::PoolWatch::take_events) hands out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventBatch {
    /// Events in order.
    pub events: Vec<BlockEvent>,
    /// Events lost since the last call, before those in `events`, because nobody drained the log: a
    /// consumer must take a snapshot.
    pub dropped: u64,
    /// From which event on digests are of which algorithm: one entry, unless the pool was emptied
    /// meanwhile and filled with digests of another.
    algorithms: Vec<(usize, HashAlgorithm)>,
}

impl EventBatch {
    /// The algorithm of the digests of event `at`, which says how long they are; `None` if no event up
    /// to there has any.
    #[must_use]
    pub fn algorithm_of(&self, at: usize) -> Option<HashAlgorithm> {
        let begun = self.algorithms.iter().rev().find(|(from, _)| *from <= at);
        begun.map(|&(_, algorithm)| algorithm)
    }
}

/// More events than any consumer can be behind.
const MAX_CAPACITY: usize = 1 << 32;

/// A bounded log; capacity 0 records nothing.
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
