//! `Stats`: counters and sizes of a store.

/// Counters since the store was opened, and its present sizes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Number of objects that can be found.
    pub objects: u64,
    /// Upper bound of the bytes that these objects, those in flight, and those still to be cleared take
    /// now.
    pub bytes: u64,
    /// The bound on these bytes.
    pub capacity_bytes: u64,
    /// Number of objects in flight, including those whose deadline has passed.
    pub in_flight: u64,
    /// Number of these whose deadline has passed while a back end still has them. Their slots stay
    /// taken.
    pub quarantined: u64,
    /// Number of objects that existed when the store was opened.
    pub restored: u64,
    /// Number of objects at that time that belonged to another namespace or format, or were damaged.
    pub foreign: u64,
    /// Number of loaded objects.
    pub loads: u64,
    /// Bytes of the payloads of the loaded objects.
    pub loaded_bytes: u64,
    /// Number of loads that missed, for any reason.
    pub misses: u64,
    /// Number of written objects.
    pub writes: u64,
    /// Bytes of the payloads of the written objects.
    pub written_bytes: u64,
    /// Number of offers of an object that existed or was in flight.
    pub known: u64,
    /// Number of offers that were not admitted.
    pub not_admitted: u64,
    /// Number of objects evicted for others.
    pub evicted: u64,
    /// Number of objects removed by a caller.
    pub removed: u64,
    /// Number of loads that found another object, or a damaged one.
    pub damaged: u64,
    /// Number of objects that a back end no longer had.
    pub lost: u64,
    /// Number of writes that a back end had no room for.
    pub full: u64,
    /// Number of transfers that failed for other reasons.
    pub failed: u64,
    /// Number of transfers whose deadline passed.
    pub timed_out: u64,
    /// Number of transfers refused because the queue was full.
    pub busy: u64,
    /// Number of transfers refused because the breaker was open.
    pub unavailable: u64,
    /// Number of loads that were not sent, because the object was known not to exist.
    pub known_absent: u64,
    /// Number of times that the breaker opened.
    pub opened: u64,
    /// Message of the last failure or damage.
    pub last_error: Option<String>,
}
