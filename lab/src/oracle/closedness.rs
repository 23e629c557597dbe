//! Checks prefix-closedness: if all holders hold whole prefixes, no lookup misses a cached block
//! because its parent is no longer cached.

use super::events::Follower;
use crate::Failure;
use crate::failure::holds;

pub(crate) fn check(follower: &Follower) -> Result<(), Failure> {
    let orphan = follower.orphan();
    holds("closedness", orphan.is_none(), || {
        format!("a block is cached, and the block before it, {orphan:?}, is not: no lookup reaches it")
    })
}
