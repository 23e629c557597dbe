//! `StoreStats`.

use kvpool_store::Stats;

use crate::python::prelude::*;

/// What a store did and has.
#[pyclass(frozen, get_all, module = "kvpool._core.store", name = "StoreStats", eq)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PyStoreStats {
    /// Objects that can be found.
    objects: u64,
    /// Bytes that they, and what is on its way or still to be cleared, take at most.
    bytes: u64,
    /// The bound on these bytes.
    capacity_bytes: u64,
    /// Objects on their way, those included whose deadline has passed.
    in_flight: u64,
    /// Of these, what a back end still has after its deadline: slots that stay taken.
    quarantined: u64,
    /// Objects that were there when the store was opened.
    restored: u64,
    /// Objects of another namespace, or format, or damaged, that were there then.
    foreign: u64,
    /// Objects loaded.
    loads: u64,
    /// Bytes of their payloads.
    loaded_bytes: u64,
    /// Loads that missed, whatever the reason.
    misses: u64,
    /// Objects written.
    writes: u64,
    /// Bytes of their payloads.
    written_bytes: u64,
    /// Offers of an object that was there, or on its way.
    known: u64,
    /// Offers that were not admitted.
    not_admitted: u64,
    /// Objects evicted for others.
    evicted: u64,
    /// Objects removed by a caller.
    removed: u64,
    /// Loads of an object that was another, or damaged.
    damaged: u64,
    /// Objects that a back end did not have, though it should.
    lost: u64,
    /// Writes that a back end had no room for.
    full: u64,
    /// Transfers that failed otherwise.
    failed: u64,
    /// Transfers whose deadline passed.
    timed_out: u64,
    /// Transfers refused because the queue was full.
    busy: u64,
    /// Transfers refused because the breaker was open.
    unavailable: u64,
    /// Loads not tried, since the object was known not to be there.
    known_absent: u64,
    /// How often the breaker opened.
    opened: u64,
    /// What the last failure or damage was.
    last_error: Option<String>,
}

impl From<Stats> for PyStoreStats {
    fn from(stats: Stats) -> Self {
        Self {
            objects: stats.objects,
            bytes: stats.bytes,
            capacity_bytes: stats.capacity_bytes,
            in_flight: stats.in_flight,
            quarantined: stats.quarantined,
            restored: stats.restored,
            foreign: stats.foreign,
            loads: stats.loads,
            loaded_bytes: stats.loaded_bytes,
            misses: stats.misses,
            writes: stats.writes,
            written_bytes: stats.written_bytes,
            known: stats.known,
            not_admitted: stats.not_admitted,
            evicted: stats.evicted,
            removed: stats.removed,
            damaged: stats.damaged,
            lost: stats.lost,
            full: stats.full,
            failed: stats.failed,
            timed_out: stats.timed_out,
            busy: stats.busy,
            unavailable: stats.unavailable,
            known_absent: stats.known_absent,
            opened: stats.opened,
            last_error: stats.last_error,
        }
    }
}
