//! Bindings of `StoreStats`.

use kvpool_store::Stats;

use crate::python::prelude::*;

#[pyclass(frozen, get_all, module = "kvpool._core.store", name = "StoreStats", eq)]
#[of(Stats)]
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
