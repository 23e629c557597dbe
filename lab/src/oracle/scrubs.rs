//! Checks that a scrubber finds no inconsistency. The scrubber checks a part of the pool between calls.

use kvpool::BlockPool;
use kvpool_observe::Scrubber;

use crate::Failure;

pub(crate) fn check(scrubber: &mut Scrubber, pool: &mut BlockPool) -> Result<(), Failure> {
    scrubber.scrub(pool, 2).map(drop).map_err(|error| Failure::new("scrub", error.to_string()))
}
