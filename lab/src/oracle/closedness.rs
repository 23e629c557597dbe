//! Checks that every cached block has a cached parent (prefix-closedness), as long as all holders hold
//! whole prefixes. Otherwise a lookup would miss the block.

use super::events::Follower;
use crate::Failure;
use crate::failure::holds;

pub(crate) fn check(follower: &Follower) -> Result<(), Failure> {
    let orphan = follower.orphan();
    holds("closedness", orphan.is_none(), || {
        format!("a block is cached, and the block before it, {orphan:?}, is not: no lookup reaches it")
    })
}
