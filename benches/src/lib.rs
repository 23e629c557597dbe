//! Shared code of the benches: chains without the cost of hashing, and timing without the cost of
//! cleaning up.

pub mod requests;
pub mod vllm;

use std::time::{Duration, Instant};

use kvpool::{BlockHash, BlockId, BlockPool, HashAlgorithm, HashChain, PoolConfig, PoolError};

/// Blocks of one request in the benches of the pool: a prompt of 8,192 tokens at 16 tokens per block.
/// The published figures of similar projects use this size.
pub const REQUEST_BLOCKS: usize = 512;

/// Returns chain number `nth`. Its digests are distinct and uniformly distributed, as if prompts had
/// been hashed.
///
/// # Errors
/// There are no errors for the arguments that the benches use.
pub fn chain(nth: u64, blocks: usize) -> Result<HashChain, PoolError> {
    let mut random = Random::new(nth);
    let mut digest = || {
        let mut bytes = [0; 32];
        for eight in bytes.chunks_exact_mut(8) {
            eight.copy_from_slice(&random.word().to_le_bytes());
        }
        BlockHash::from_bytes(bytes)
    };
    let digests = (0..blocks).map(|_| digest()).collect();
    Ok(HashChain::from_digests(HashAlgorithm::Sha256, 16, 0, digests)?)
}

/// A generator of uniform random numbers (`SplitMix64`). In 2^64 calls, it returns each 64-bit number
/// once.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

    /// Creates the generator for a seed. It mixes the seed first. Otherwise the sequences of two
    /// consecutive seeds would be shifted copies of each other.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Self::mix(seed.wrapping_add(Self::STEP)))
    }

    fn mix(state: u64) -> u64 {
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns the next random number, which can be any 64-bit number.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(Self::STEP);
        Self::mix(self.0)
    }

    /// Returns a number below `bound`, which must be at least 1 and much less than 2^64.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound as u64) as usize
    }
}

/// Creates a pool of `num_blocks` blocks.
///
/// # Errors
/// Like [`BlockPool::new`].
pub fn pool(num_blocks: usize) -> Result<BlockPool, PoolError> {
    BlockPool::new(PoolConfig { num_blocks, ..PoolConfig::default() })
}

/// Allocates and registers a chain and marks it as computed, as a cold request does.
///
/// # Errors
/// Like the pool's own methods.
pub fn store(pool: &mut BlockPool, chain: &HashChain, table: &mut Vec<BlockId>) -> Result<(), PoolError> {
    table.clear();
    pool.allocate_into(chain.len(), table)?;
    pool.register(table, chain, 0)?;
    pool.mark_computed(table)
}

/// Fills a pool with cached chains, and returns them, oldest first.
///
/// # Errors
/// Like the pool's own methods.
pub fn fill(pool: &mut BlockPool) -> Result<Vec<HashChain>, PoolError> {
    let mut table = Vec::new();
    let chains: Vec<_> = (0..(pool.num_usable() / REQUEST_BLOCKS) as u64)
        .map(|nth| chain(nth, REQUEST_BLOCKS))
        .collect::<Result<_, _>>()?;
    for chain in &chains {
        store(pool, chain, &mut table)?;
        pool.release_table(&table)?;
    }
    Ok(chains)
}

/// Returns the time of `n` runs of `timed`. `after` runs after each one and is not timed.
///
/// # Errors
/// The first error of either.
pub fn time<S, E>(
    n: u64,
    state: &mut S,
    mut timed: impl FnMut(&mut S) -> Result<(), E>,
    mut after: impl FnMut(&mut S) -> Result<(), E>,
) -> Result<Duration, E> {
    let mut total = Duration::ZERO;
    for _ in 0..n {
        let start = Instant::now();
        timed(state)?;
        total += start.elapsed();
        after(state)?;
    }
    Ok(total)
}
