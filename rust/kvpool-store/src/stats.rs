//! `Stats`: what a store did and has, as plain numbers.

/// Counters since the store was opened, and what is so at the moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Objects that can be found.
    pub objects: u64,
    /// Bytes that they, and what is on its way or still to be cleared, take at most.
    pub bytes: u64,
    /// The bound on these bytes.
    pub capacity_bytes: u64,
    /// Objects on their way, those included whose deadline has passed.
    pub in_flight: u64,
    /// Of these, what a back end still has after its deadline: slots that stay taken.
    pub quarantined: u64,
    /// Objects that were there when the store was opened.
    pub restored: u64,
    /// Objects of another namespace, or format, or damaged, that were there then.
    pub foreign: u64,
    /// Objects loaded, and bytes of their payloads.
    pub loads: u64,
    /// See `loads`.
    pub loaded_bytes: u64,
    /// Loads that missed, whatever the reason.
    pub misses: u64,
    /// Objects written, and bytes of their payloads.
    pub writes: u64,
    /// See `writes`.
    pub written_bytes: u64,
    /// Offers of an object that was there, or on its way.
    pub known: u64,
    /// Offers that were not admitted.
    pub not_admitted: u64,
    /// Objects evicted for others.
    pub evicted: u64,
    /// Objects removed by a caller.
    pub removed: u64,
    /// Loads of an object that was another, or damaged.
    pub damaged: u64,
    /// Objects that a back end did not have, though it should.
    pub lost: u64,
    /// Writes that a back end had no room for.
    pub full: u64,
    /// Transfers that failed otherwise.
    pub failed: u64,
    /// Transfers whose deadline passed.
    pub timed_out: u64,
    /// Transfers refused because the queue was full.
    pub busy: u64,
    /// Transfers refused because the breaker was open.
    pub unavailable: u64,
    /// Loads not tried, since the object was known not to be there.
    pub known_absent: u64,
    /// How often the breaker opened.
    pub opened: u64,
    /// What the last failure or damage was.
    pub last_error: Option<String>,
}
