//! `StoreStats`.

use kvpool_store::Stats;

use crate::python::prelude::*;

#[doc = doc!("StoreStats")]
#[pyclass(frozen, get_all, module = "kvpool._core.store", name = "StoreStats", eq)]
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PyStoreStats {
    #[doc = doc!("StoreStats.objects")]
    objects: u64,
    #[doc = doc!("StoreStats.bytes")]
    bytes: u64,
    #[doc = doc!("StoreStats.capacity_bytes")]
    capacity_bytes: u64,
    #[doc = doc!("StoreStats.in_flight")]
    in_flight: u64,
    #[doc = doc!("StoreStats.quarantined")]
    quarantined: u64,
    #[doc = doc!("StoreStats.restored")]
    restored: u64,
    #[doc = doc!("StoreStats.foreign")]
    foreign: u64,
    #[doc = doc!("StoreStats.loads")]
    loads: u64,
    #[doc = doc!("StoreStats.loaded_bytes")]
    loaded_bytes: u64,
    #[doc = doc!("StoreStats.misses")]
    misses: u64,
    #[doc = doc!("StoreStats.writes")]
    writes: u64,
    #[doc = doc!("StoreStats.written_bytes")]
    written_bytes: u64,
    #[doc = doc!("StoreStats.known")]
    known: u64,
    #[doc = doc!("StoreStats.not_admitted")]
    not_admitted: u64,
    #[doc = doc!("StoreStats.evicted")]
    evicted: u64,
    #[doc = doc!("StoreStats.removed")]
    removed: u64,
    #[doc = doc!("StoreStats.damaged")]
    damaged: u64,
    #[doc = doc!("StoreStats.lost")]
    lost: u64,
    #[doc = doc!("StoreStats.full")]
    full: u64,
    #[doc = doc!("StoreStats.failed")]
    failed: u64,
    #[doc = doc!("StoreStats.timed_out")]
    timed_out: u64,
    #[doc = doc!("StoreStats.busy")]
    busy: u64,
    #[doc = doc!("StoreStats.unavailable")]
    unavailable: u64,
    #[doc = doc!("StoreStats.known_absent")]
    known_absent: u64,
    #[doc = doc!("StoreStats.opened")]
    opened: u64,
    #[doc = doc!("StoreStats.last_error")]
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
