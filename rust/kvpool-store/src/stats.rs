//! `Stats`: counters and sizes of a store.

/// Counters since the store was opened, and its current sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Number of objects that a load can find now.
    pub objects: u64,
    /// Upper bound of the bytes in use now: by objects that can be found, by objects that are being
    /// written, and by removed objects whose bytes were not cleared yet.
    pub bytes: u64,
    /// Capacity of the store: the limit of `bytes`.
    pub capacity_bytes: u64,
    /// Number of objects that are being moved, including those whose deadline has passed.
    pub in_flight: u64,
    /// Number of objects in flight whose deadline has passed while a back end still uses their memory.
    /// Their slots remain in use.
    pub quarantined: u64,
    /// Number of objects that existed when the store was opened.
    pub restored: u64,
    /// Number of objects found at the start that this store cannot use: they belong to another
    /// namespace or format, or are damaged.
    pub foreign: u64,
    /// Number of loaded objects.
    pub loads: u64,
    /// Bytes of the payloads of the loaded objects.
    pub loaded_bytes: u64,
    /// Number of requested objects that were not loaded, for any reason.
    pub misses: u64,
    /// Number of written objects.
    pub writes: u64,
    /// Bytes of the payloads of the written objects.
    pub written_bytes: u64,
    /// Number of offers of objects that the store already had, or that were in flight.
    pub known: u64,
    /// Number of offers that the store did not write, because the rule of admission refused them.
    pub not_admitted: u64,
    /// Number of objects that were evicted to make room for other objects.
    pub evicted: u64,
    /// Number of objects removed by a caller.
    pub removed: u64,
    /// Number of loads that returned another object, or damaged bytes.
    pub damaged: u64,
    /// Number of objects that this store had written, and that the back end no longer had.
    pub lost: u64,
    /// Number of writes for which a back end had no room.
    pub full: u64,
    /// Number of transfers that failed because of an error of the back end.
    pub failed: u64,
    /// Number of transfers whose deadline passed.
    pub timed_out: u64,
    /// Number of transfers that the store refused because its queue was full.
    pub busy: u64,
    /// Number of transfers that the store refused because the circuit breaker was open.
    pub unavailable: u64,
    /// Number of loads that were not sent to the back end, because the store knew that the object did
    /// not exist.
    pub known_absent: u64,
    /// Number of times that the circuit breaker opened after failures of the back end.
    pub opened: u64,
    /// Message of the last failure or damage.
    pub last_error: Option<String>,
}
