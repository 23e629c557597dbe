//! Checks that a scrubber that runs between the calls finds nothing.

use kvpool::BlockPool;
use kvpool_observe::Scrubber;

use crate::Failure;

pub(crate) fn check(scrubber: &mut Scrubber, pool: &mut BlockPool) -> Result<(), Failure> {
    scrubber.scrub(pool, 2).map(drop).map_err(|error| Failure::new("scrub", error.to_string()))
}
