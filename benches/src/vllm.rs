//! Makes the calls that vLLM's scheduler makes to its block pool for one request. The digests are those
//! of the core's benches.

use kvpool::{BlockHash, HashChain, PoolError};
use kvpool_vllm::{Key, Pool, Start, VllmError};

use crate::{REQUEST_BLOCKS, chain};

fn key(hash: &BlockHash) -> Option<Key> {
    Key::new(hash.as_bytes(), 0).ok()
}

/// Looks up a chain and touches the blocks that are found, as a request with a hit does.
///
/// # Errors
/// There are no errors for the chains of the benches.
pub fn hit(pool: &mut Pool, chain: &HashChain, table: &mut Vec<u32>) -> Result<(), VllmError> {
    table.clear();
    pool.find_run(chain.hashes().iter().map(|hash| &hash.as_bytes()[..]), 0, table);
    pool.touch(table)
}

/// Allocates and caches a chain, as a cold request does.
///
/// # Errors
/// Like the pool's own methods.
pub fn store(pool: &mut Pool, chain: &HashChain, table: &mut Vec<u32>) -> Result<(), VllmError> {
    table.clear();
    pool.allocate(chain.len(), table, None)?;
    let key_of = |at: usize| key(&chain.hashes()[at]);
    pool.cache_full(Start::at(0), table, key_of, chain.block_size(), &mut Vec::new(), None)
}

/// Fills a pool with cached chains, and returns them, oldest first.
///
/// # Errors
/// Like the pool's own methods.
pub fn fill(pool: &mut Pool) -> Result<Vec<HashChain>, VllmError> {
    let mut table = Vec::new();
    let chains: Vec<_> = (0..(pool.num_blocks().saturating_sub(1) / REQUEST_BLOCKS) as u64)
        .map(|nth| chain(nth, REQUEST_BLOCKS))
        .collect::<Result<_, PoolError>>()?;
    for chain in &chains {
        store(pool, chain, &mut table)?;
        pool.free(table.iter().rev().copied())?;
    }
    Ok(chains)
}
