//! `StoreStats`.

use kvpool_store::Stats;

use crate::python::prelude::*;

#[pyclass(frozen, get_all, module = "kvpool._core.store", name = "StoreStats", eq)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PyStoreStats {
    objects: u64,
    bytes: u64,
    capacity_bytes: u64,
    in_flight: u64,
    quarantined: u64,
    restored: u64,
    foreign: u64,
    loads: u64,
    loaded_bytes: u64,
    misses: u64,
    writes: u64,
    written_bytes: u64,
    known: u64,
    not_admitted: u64,
    evicted: u64,
    removed: u64,
    damaged: u64,
    lost: u64,
    full: u64,
    failed: u64,
    timed_out: u64,
    busy: u64,
    unavailable: u64,
    known_absent: u64,
    opened: u64,
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
