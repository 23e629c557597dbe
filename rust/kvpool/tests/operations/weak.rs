//! Tests lookups that acquire no blocks, the acquisition of their results later, and evictions of a
//! given number of blocks.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::collections::HashSet;
use std::sync::Arc;

use kvpool::hash::{Fingerprint, HashAlgorithm};
use kvpool::{
    BlockHash, BlockHasher, BlockId, BlockPool, BlockState, CacheManager, DuplicatePolicy, ExtraKeys,
    HashChain, HashCursor, HasherConfig, ManagerConfig, ManagerError, Match, PoolConfig, PoolError, Verify,
};

const BLOCK_SIZE: usize = 2;

fn chain_of(tokens: &[u32], epoch: u64) -> HashChain {
    let config = HasherConfig { block_size: BLOCK_SIZE, verify: Verify::Tokens, ..HasherConfig::default() };
    let extra = ExtraKeys { epoch, ..ExtraKeys::default() };
    let mut cursor = HashCursor::new(Arc::new(BlockHasher::new(config).unwrap()), extra).unwrap();
    cursor.append(tokens);
    cursor.chain().clone()
}

/// Returns a chain of three blocks.
fn chain() -> HashChain {
    chain_of(&[1, 2, 3, 4, 5, 6], 0)
}

fn pool_of(config: PoolConfig) -> BlockPool {
    BlockPool::new(PoolConfig { num_blocks: 7, block_size: BLOCK_SIZE, ..config }).unwrap()
}

/// Returns a pool in which the blocks of a chain are cached and held by the caller.
fn cached(config: PoolConfig, chain: &HashChain) -> (BlockPool, Vec<BlockId>) {
    let mut pool = pool_of(config);
    let table = put(&mut pool, chain);
    (pool, table)
}

fn put(pool: &mut BlockPool, chain: &HashChain) -> Vec<BlockId> {
    let table = pool.allocate(chain.len()).unwrap();
    pool.register(&table, chain, 0).unwrap();
    pool.mark_computed(&table).unwrap();
    table
}

fn found(pool: &BlockPool, chain: &HashChain) -> Match {
    pool.lookup(chain, 0, usize::MAX).unwrap()
}

/// Checks that acquiring the match fails with an error that contains the block at `position`, and
/// changes nothing.
fn stale(pool: &mut BlockPool, found: &Match, position: usize) {
    let look = |pool: &BlockPool| (pool.free_order(), pool.eviction_order(), pool.stats());
    let before = look(pool);
    let block = found.blocks()[position];
    assert_eq!(pool.acquire_match(found), Err(PoolError::StaleMatch { block, position }));
    assert_eq!(look(pool), before);
    pool.check_invariants().unwrap();
}

#[test]
fn a_match_is_stale_once_a_block_is_evicted() {
    let (mut pool, table) = cached(PoolConfig::default(), &chain());
    let found = found(&pool, &chain());
    pool.release_table(&table).unwrap();
    assert_eq!(pool.evict(1).unwrap(), table[2..]);
    stale(&mut pool, &found, 2);
}

#[test]
fn a_match_is_stale_once_a_block_is_dropped() {
    let (mut pool, table) = cached(PoolConfig::default(), &chain());
    let found = found(&pool, &chain());
    pool.drop_cached(&table[1..2]).unwrap();
    stale(&mut pool, &found, 1); // while it is held
    pool.release_table(&table).unwrap();
    stale(&mut pool, &found, 1);
}

/// After an epoch bump, a match is stale even if the digests do not contain the epoch and the same
/// block has the same content again.
#[test]
fn a_match_is_stale_in_the_next_epoch() {
    let digests = |epoch| {
        let hashes = (1..4).map(|byte| BlockHash::from_bytes([byte; 32])).collect();
        HashChain::from_digests(HashAlgorithm::VllmSha256, BLOCK_SIZE, epoch, hashes).unwrap()
    };
    let (mut pool, table) = cached(PoolConfig::default(), &digests(0));
    let old = found(&pool, &digests(0));
    pool.bump_epoch().unwrap();
    stale(&mut pool, &old, 0);
    pool.register(&table, &digests(1), 0).unwrap();
    pool.mark_computed(&table).unwrap();
    let new = found(&pool, &digests(1));
    assert_eq!((new.blocks(), new.hashes()), (old.blocks(), old.hashes()));
    stale(&mut pool, &old, 0);
    pool.acquire_match(&new).unwrap();
    assert!(matches!(pool.lookup(&digests(0), 0, 9), Err(PoolError::StaleEpoch { .. })));
}

#[test]
fn a_match_is_stale_once_a_block_has_another_content() {
    let (mut pool, table) = cached(PoolConfig::default(), &chain());
    let old = found(&pool, &chain());
    pool.release_table(&table).unwrap();
    pool.reset().unwrap();
    let again = put(&mut pool, &chain_of(&[1, 2, 7, 8, 9, 9], 0));
    assert_eq!(again, table);
    stale(&mut pool, &old, 1);
    // If the block has the same content again, the match is valid again.
    pool.drop_cached(&again).unwrap();
    pool.register(&again, &chain(), 0).unwrap();
    stale(&mut pool, &old, 0); // not computed
    pool.mark_computed(&again).unwrap();
    pool.acquire_match(&old).unwrap();
    assert_eq!(pool.ref_count(again[0]), Some(2));
}

#[test]
fn a_match_of_held_and_cached_free_blocks_is_acquired_as_a_whole() {
    let (mut pool, table) = cached(PoolConfig::default(), &chain());
    pool.release_table(&table[1..]).unwrap();
    let found = found(&pool, &chain());
    assert_eq!(found.blocks(), table);
    let before = pool.stats();
    pool.acquire_match(&found).unwrap();
    let counts: Vec<_> = table.iter().map(|&block| pool.ref_count(block).unwrap()).collect();
    assert_eq!(counts, [2, 1, 1]);
    let stats = pool.stats();
    assert_eq!((stats.hits - before.hits, stats.misses - before.misses), (3, 0));
    assert_eq!((stats.registered_active, stats.cached_free), (3, 0));
    // A match can acquire a block that only a fence holds. The new holder keeps it after the fence
    // ends.
    let ticket = pool.fence().unwrap();
    pool.release_until(&table[2..], ticket).unwrap();
    pool.acquire_match(&found).unwrap();
    pool.end_fence(ticket).unwrap();
    assert_eq!(pool.state(table[2]), Some(BlockState::Active));
    pool.check_invariants().unwrap();
}

#[test]
fn a_lookup_in_the_middle_asks_for_nothing_before() {
    let (mut pool, table) = cached(PoolConfig::default(), &chain());
    pool.drop_cached(&table[..1]).unwrap();
    assert!(found(&pool, &chain()).is_empty());
    let found = pool.lookup(&chain(), 1, usize::MAX).unwrap();
    assert_eq!((found.start(), found.blocks()), (1, &table[1..]));
    assert_eq!(found.hashes(), &chain().hashes()[1..]);
    let link = found.link().unwrap();
    assert_eq!((link.hash(), link.depth()), (chain().hashes()[2], 2));
    pool.acquire_match(&found).unwrap();
    assert_eq!(pool.lookup(&chain(), 1, 1).unwrap().blocks(), &table[1..2]);
    for start in [3, 4, usize::MAX] {
        assert!(pool.lookup(&chain(), start, usize::MAX).unwrap().is_empty());
    }
}

#[test]
fn a_lookup_ends_at_the_first_block_that_is_not_computed() {
    let mut pool = pool_of(PoolConfig::default());
    let table = pool.allocate(3).unwrap();
    pool.register(&table, &chain(), 0).unwrap();
    pool.mark_computed(&[table[0], table[2]]).unwrap();
    assert_eq!(found(&pool, &chain()).blocks(), &table[..1]);
    assert_eq!(pool.lookup(&chain(), 2, 9).unwrap().blocks(), &table[2..]);
}

/// The blocks of a refreshing lookup are evicted last, as if they had been acquired and released. A
/// plain lookup does not change the order.
#[test]
fn a_refreshed_match_is_evicted_after_blocks_used_earlier() {
    let other = chain_of(&[9, 9, 8, 8], 0);
    let (mut pool, table) = cached(PoolConfig::default(), &chain());
    let second = put(&mut pool, &other);
    pool.release_table(&table).unwrap();
    pool.release_table(&second).unwrap();
    let order = pool.eviction_order();
    assert_eq!(order[0], table[2]);
    let before = pool.stats();
    found(&pool, &chain());
    assert_eq!(pool.eviction_order(), order);
    let found = pool.lookup_refreshing(&chain(), 0, usize::MAX).unwrap();
    assert_eq!(found.blocks(), table);
    assert_eq!(pool.stats(), before);
    let expected: Vec<_> = second.iter().rev().chain(table.iter().rev()).copied().collect();
    assert_eq!(pool.eviction_order(), expected);
    pool.check_invariants().unwrap();
}

/// A refreshing lookup acquires and releases the blocks. With `DropOnRelease`, this drops copies, but
/// never the blocks that the lookup returns.
#[test]
fn a_refreshed_match_is_fresh_where_duplicates_are_dropped() {
    let config = PoolConfig { duplicates: DuplicatePolicy::DropOnRelease, ..PoolConfig::default() };
    let (mut pool, first) = cached(config, &chain());
    pool.release_table(&first).unwrap();
    let second = put(&mut pool, &chain());
    let found = pool.lookup_refreshing(&chain(), 0, usize::MAX).unwrap();
    assert_eq!(found.blocks(), second);
    pool.acquire_match(&found).unwrap();
    pool.check_invariants().unwrap();
}

#[test]
fn matches_are_equal_by_start_and_last_hash() {
    let (pool, table) = cached(PoolConfig::default(), &chain());
    let whole = found(&pool, &chain());
    let elsewhere = Match::new(&chain(), 0, &[BlockId::new(6), BlockId::new(5), BlockId::new(4)]).unwrap();
    let tail = pool.lookup(&chain(), 1, 9).unwrap();
    let short = pool.lookup(&chain(), 0, 2).unwrap();
    assert_eq!(whole, elsewhere);
    assert_eq!(HashSet::from([&whole, &elsewhere, &tail, &short]).len(), 3);
    let refused = Match::new(&chain(), 1, &table);
    assert_eq!(refused, Err(PoolError::ChainTooShort { start: 1, blocks: 3, chain: 3 }));
    assert!(Match::new(&chain(), usize::MAX, &table).is_err());
}

/// A match that a caller makes is checked like a match that a lookup returned.
#[test]
fn a_match_of_wrong_blocks_is_refused() {
    let (mut pool, table) = cached(PoolConfig::default(), &chain());
    let ids = |ids: [u32; 3]| ids.map(BlockId::new);
    for (blocks, position) in
        [(ids([0, 2, 3]), 0), (ids([1, 9, 3]), 1), (ids([1, u32::MAX, 3]), 1), (ids([1, 2, 2]), 2)]
    {
        stale(&mut pool, &Match::new(&chain(), 0, &blocks).unwrap(), position);
    }
    pool.acquire_match(&Match::new(&chain(), 0, &table).unwrap()).unwrap();
    let mut other = pool_of(PoolConfig::default());
    stale(&mut other, &found(&pool, &chain()), 0);
    other.acquire_match(&Match::new(&chain(), 2, &[]).unwrap()).unwrap();
}

/// If the pool verifies hits, a match of another content with the same digest is refused.
#[test]
fn a_match_is_verified_as_a_hit_is() {
    for verify in [Verify::Fingerprint, Verify::Tokens] {
        let (mut pool, table) = cached(PoolConfig { verify, ..PoolConfig::default() }, &chain());
        let collides = |fingerprints: Vec<Fingerprint>, tokens: &[u32]| {
            let (algorithm, hashes) = (HashAlgorithm::Sha256, chain().hashes().to_vec());
            HashChain::forged(algorithm, BLOCK_SIZE, 0, hashes, fingerprints, tokens.to_vec())
        };
        let of_tokens = collides(chain().fingerprints().to_vec(), &[1, 2, 3, 4, 5, 7]);
        let of_fingerprints = collides(vec![7; 3], chain().tokens());
        let found = Match::new(&of_fingerprints, 0, &table).unwrap();
        stale(&mut pool, &found, 0);
        let found = Match::new(&of_tokens, 0, &table).unwrap();
        if verify == Verify::Tokens {
            stale(&mut pool, &found, 2);
        } else {
            pool.acquire_match(&found).unwrap();
        }
        let bare = HashChain::from_digests(HashAlgorithm::Sha256, BLOCK_SIZE, 0, chain().hashes().to_vec());
        stale(&mut pool, &Match::new(&bare.unwrap(), 0, &table).unwrap(), 0);
    }
}

#[test]
fn a_manager_evicts_the_same_blocks_as_its_device_pool() {
    let config = ManagerConfig { num_blocks: 7, block_size: BLOCK_SIZE, ..ManagerConfig::default() };
    let mut manager = CacheManager::new(config).unwrap();
    let prompt = manager.prepare(&[1, 2, 3, 4, 5], ExtraKeys::default()).unwrap();
    let table = manager.admit("a", prompt).unwrap().block_ids;
    manager.commit("a", 4).unwrap();
    assert_eq!(manager.evict(9).unwrap(), []);
    manager.release("a", None).unwrap();
    let mut plan = manager.plan_step();
    assert_eq!(manager.evict(1).unwrap(), table[1..2]);
    assert_eq!(manager.commit_step(&mut plan), Err(ManagerError::StaleStep));
    assert_eq!(manager.evict(9).unwrap(), table[..1]);
    assert_eq!(manager.stats().pool.evicted, 2);
    manager.check_invariants().unwrap();
}

#[test]
fn evictions_by_count_go_in_order_and_free() {
    let (mut pool, table) = cached(PoolConfig::default(), &chain());
    assert_eq!(pool.evict(9).unwrap(), []);
    pool.release_table(&table).unwrap();
    assert_eq!(pool.evict(0).unwrap(), []);
    assert_eq!(pool.evict(2).unwrap(), [table[2], table[1]]);
    assert_eq!(pool.stats().evicted, 2);
    assert_eq!(pool.allocate(2).unwrap(), [table[2], table[1]]);
    assert_eq!(pool.evict(usize::MAX).unwrap(), table[..1]);
    assert_eq!(pool.stats().registered, 0);
    pool.check_invariants().unwrap();
}
