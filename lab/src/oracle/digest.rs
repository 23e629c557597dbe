//! Checks that the pool's digest, which each operation updates, equals a digest computed from the whole
//! state.

use kvpool::BlockPool;
use kvpool_observe::PoolWatch;

use crate::Failure;
use crate::failure::same;

pub(crate) fn check(pool: &mut BlockPool) -> Result<(), Failure> {
    let digest = pool.state_digest();
    same("digest", &digest, &Some(pool.state_digest_from_scratch()))
}
