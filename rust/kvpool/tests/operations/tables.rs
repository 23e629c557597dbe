//! Tests operations on whole tables of computed blocks: registering them, replacing them by cached
//! blocks, adopting them from an engine's own allocator, and returning them to it.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::sync::Arc;

use kvpool::hash::HashAlgorithm;
use kvpool::observe::{Computed, PoolObserver, Removed};
use kvpool::{
    BlockHash, BlockHasher, BlockId, BlockPool, BlockState, ExtraKeys, HashChain, HashCursor, HasherConfig,
    PoolConfig, PoolError, PoolStats, Verify,
};

const BLOCK_SIZE: usize = 2;

fn chain_of(tokens: &[u32]) -> HashChain {
    let config = HasherConfig { block_size: BLOCK_SIZE, verify: Verify::Tokens, ..HasherConfig::default() };
    let mut cursor =
        HashCursor::new(Arc::new(BlockHasher::new(config).unwrap()), ExtraKeys::default()).unwrap();
    cursor.append(tokens);
    cursor.chain().clone()
}

/// Returns a chain of four blocks.
fn chain() -> HashChain {
    chain_of(&[1, 2, 3, 4, 5, 6, 7, 8])
}

fn pool_of(verify: Verify) -> BlockPool {
    let config = PoolConfig { num_blocks: 16, block_size: BLOCK_SIZE, verify, ..PoolConfig::default() };
    BlockPool::new(config).unwrap()
}

fn pool() -> BlockPool {
    pool_of(Verify::None)
}

fn ids<const N: usize>(ids: [u32; N]) -> [BlockId; N] {
    ids.map(BlockId::new)
}

fn counts(pool: &BlockPool, blocks: &[BlockId]) -> Vec<u32> {
    blocks.iter().map(|&block| pool.ref_count(block).unwrap()).collect()
}

type Look = (Vec<BlockId>, Vec<BlockId>, PoolStats, Vec<Option<BlockHash>>, Vec<u32>);

fn look(pool: &BlockPool) -> Look {
    let all: Vec<_> = (1..pool.num_blocks() as u32).map(BlockId::new).collect();
    let hashes = all.iter().map(|&block| pool.hash_of(block)).collect();
    (pool.free_order(), pool.eviction_order(), pool.stats(), hashes, counts(pool, &all))
}

/// Checks that the call fails with this error and changes nothing.
fn refused<T: std::fmt::Debug + PartialEq>(
    pool: &mut BlockPool,
    call: impl FnOnce(&mut BlockPool) -> Result<T, PoolError>,
    error: &PoolError,
) {
    let before = look(pool);
    assert_eq!(call(pool), Err(error.clone()));
    assert_eq!(look(pool), before);
    pool.check_invariants().unwrap();
}

#[test]
fn duplicates_are_replaced_by_cached_blocks() {
    let mut pool = pool();
    let first = pool.allocate(4).unwrap();
    // At first, contents 0 and 2 are cached. A request holds the block of content 0. The block of
    // content 2 is cached-free.
    assert_eq!(pool.register_table(&first[..1], &chain(), 0).unwrap(), []);
    assert_eq!(pool.register_table(&first[2..3], &chain(), 2).unwrap(), []);
    pool.release(&first[2..3]).unwrap();
    let mut second = pool.allocate(4).unwrap();
    let given_up = [second[0], second[2]];
    let changes = pool.register_table(&second, &chain(), 0).unwrap();
    assert_eq!(changes, [(0, first[0]), (2, first[2])]);
    changes.iter().for_each(|&(at, block)| second[at] = block);
    assert_eq!(counts(&pool, &second), [2, 1, 1, 1]);
    assert_eq!(given_up.map(|block| pool.state(block)), [Some(BlockState::Free); 2]);
    assert_eq!(pool.free_order()[..2], given_up);
    assert_eq!(pool.lookup(&chain(), 0, 9).unwrap().blocks(), second);
    // A second call with the same table, or with a part of it, changes nothing.
    assert_eq!(pool.register_table(&second, &chain(), 0).unwrap(), []);
    assert_eq!(pool.register_table(&second[1..3], &chain(), 1).unwrap(), []);
    pool.check_invariants().unwrap();
}

/// A registered block that is not computed is not yet cached. So a second block with its content is not
/// replaced, and both are computed.
#[test]
fn a_block_that_another_holder_computes_replaces_no_duplicate() {
    let mut pool = pool();
    let (first, second) = (pool.allocate(1).unwrap(), pool.allocate(1).unwrap());
    pool.register(&first, &chain(), 0).unwrap();
    assert_eq!(pool.register_table(&second, &chain(), 0).unwrap(), []);
    assert_eq!(pool.lookup(&chain(), 0, 9).unwrap().blocks(), second);
    // The first block is replaced, because a block with the same content was computed before it.
    assert_eq!(pool.register_table(&first, &chain(), 0).unwrap(), [(0, second[0])]);
    assert_eq!(counts(&pool, &[first[0], second[0]]), [0, 2]);
    // Blocks that the caller has already registered are only marked as computed.
    let third = pool.allocate(2).unwrap();
    pool.register(&third, &chain(), 2).unwrap();
    assert_eq!(pool.register_table(&third, &chain(), 2).unwrap(), []);
    assert!(third.iter().all(|&block| pool.is_computed(block)));
    pool.check_invariants().unwrap();
}

#[test]
fn a_refused_table_changes_nothing() {
    let mut pool = pool();
    let table = pool.allocate(3).unwrap();
    let [a, b, c] = [table[0], table[1], table[2]];
    pool.register_table(&[a], &chain(), 0).unwrap();
    let other = chain_of(&[9, 9, 8, 8]);
    let twice = PoolError::AlreadyRegistered { block: b };
    refused(&mut pool, |pool| pool.register_table(&[a, b, b], &chain(), 0), &twice);
    let another = PoolError::AlreadyRegistered { block: a };
    refused(&mut pool, |pool| pool.register_table(&[b, a], &other, 0), &another);
    let free = BlockId::new(9);
    let not_held = PoolError::NotHeld { block: free, held: 0, operation: "register it", position: 2 };
    refused(&mut pool, |pool| pool.register_table(&[a, b, free], &chain(), 0), &not_held);
    let short = PoolError::ChainTooShort { start: 2, blocks: 3, chain: 4 };
    refused(&mut pool, |pool| pool.register_table(&[a, b, c], &chain(), 2), &short);
    let unknown = PoolError::UnknownBlock { block: 99, last: 15 };
    refused(&mut pool, |pool| pool.register_table(&[a, BlockId::new(99)], &chain(), 0), &unknown);
    let null = PoolError::NullBlock { operation: "registered" };
    refused(&mut pool, |pool| pool.register_table(&ids([0]), &chain(), 0), &null);
    // A fence is the only holder of the block, so the call has no reference to take over.
    pool.release_after(&[c], 3).unwrap();
    let fenced = PoolError::NotHeld { block: c, held: 1, operation: "register it", position: 0 };
    refused(&mut pool, |pool| pool.register_table(&[c], &chain(), 0), &fenced);
    pool.bump_epoch().unwrap();
    let stale = PoolError::StaleEpoch { chain: 0, pool: 1 };
    refused(&mut pool, |pool| pool.register_table(&[b], &chain(), 0), &stale);
}

/// Returns a chain in which one block has the hash of another content.
fn forged(hashes: &[BlockHash], tokens: &[u32]) -> HashChain {
    let fingerprints =
        tokens.chunks(BLOCK_SIZE).map(|block| block.iter().map(|&token| u128::from(token)).sum());
    let fingerprints = fingerprints.collect();
    HashChain::forged(HashAlgorithm::Xxh3, BLOCK_SIZE, 0, hashes.to_vec(), fingerprints, tokens.to_vec())
}

#[test]
fn a_collision_stops_a_table() {
    let hash = |byte: u8| BlockHash::from_bytes([byte; 32]);
    let mut pool = pool_of(Verify::Tokens);
    let cached = pool.allocate(2).unwrap();
    pool.register_table(&cached, &forged(&[hash(1), hash(2)], &[1, 1, 2, 2]), 0).unwrap();
    let hashes = [hash(1), hash(3), hash(2), hash(4)];
    let colliding = forged(&hashes, &[1, 1, 3, 3, 9, 9, 4, 4]);
    let table = pool.allocate(4).unwrap();
    assert_eq!(pool.register_table(&table, &colliding, 0).unwrap(), [(0, cached[0])]);
    assert_eq!(counts(&pool, &table), [0, 1, 1, 1]);
    let registered: Vec<_> = table.iter().map(|&block| pool.is_computed(block)).collect();
    assert_eq!((registered, pool.stats().collisions), (vec![false, true, false, false], 1));
    // A hash collision also stops an adoption. The later blocks remain free.
    let mine = ids([12, 13, 14, 15]);
    assert_eq!(pool.adopt(&mine, &colliding, 0).unwrap(), [(0, cached[0]), (1, table[1])]);
    assert_eq!((counts(&pool, &mine), pool.stats().collisions), (vec![0; 4], 2));
    // Two blocks in one call have the same hash and different tokens, which is a collision too.
    let twice = forged(&[hash(5), hash(6), hash(6), hash(1)], &[5, 5, 6, 6, 7, 7, 1, 1]);
    assert_eq!(pool.adopt(&mine, &twice, 0).unwrap(), []);
    assert_eq!((counts(&pool, &mine), pool.stats().collisions), (vec![1, 1, 0, 0], 3));
    pool.check_invariants().unwrap();
}

#[test]
fn an_adopted_block_can_be_released_found_and_reused() {
    let mut pool = pool();
    let mine = ids([11, 4, 9, 7]);
    assert_eq!(pool.adopt(&mine, &chain(), 0).unwrap(), []);
    assert_eq!((counts(&pool, &mine), pool.stats().registered_active), (vec![1; 4], 4));
    pool.release_table(&mine).unwrap();
    let found = pool.lookup(&chain(), 0, 9).unwrap();
    assert_eq!(found.blocks(), mine);
    pool.acquire_match(&found).unwrap();
    pool.release_table(found.blocks()).unwrap();
    assert_eq!(pool.evict(9).unwrap(), ids([7, 9, 4, 11]));
    assert_eq!((pool.stats().free, pool.stats().allocated), (15, 0));
    assert_eq!(pool.adopt(&ids([7, 9]), &chain(), 2).unwrap(), []);
    pool.check_invariants().unwrap();
}

#[test]
fn the_engine_keeps_an_id_whose_content_is_already_cached() {
    let mut pool = pool();
    pool.adopt(&ids([1, 2]), &chain(), 0).unwrap();
    pool.release(&ids([2])).unwrap();
    let changes = pool.adopt(&ids([3, 4, 5]), &chain(), 0).unwrap();
    assert_eq!(changes, [(0, BlockId::new(1)), (1, BlockId::new(2))]);
    assert_eq!(counts(&pool, &ids([1, 2, 3, 4, 5])), [2, 1, 0, 0, 1]);
    let states = ids([3, 4]).map(|block| pool.state(block));
    assert_eq!(states, [Some(BlockState::Free); 2]);
    pool.check_invariants().unwrap();
}

#[test]
fn an_id_that_is_not_free_is_not_adopted() {
    let mut pool = pool();
    let table = pool.allocate(3).unwrap();
    pool.register_table(&table[..1], &chain(), 0).unwrap();
    pool.release(&table[..1]).unwrap();
    pool.release_after(&table[2..], 1).unwrap();
    let wrong = |block, state| PoolError::WrongState { block, state, operation: "adopt it" };
    for (block, state) in [(table[0], "cached-free"), (table[1], "active"), (table[2], "fenced")] {
        let blocks = [BlockId::new(9), block];
        refused(&mut pool, |pool| pool.adopt(&blocks, &chain(), 0), &wrong(block, state));
    }
    let nine = BlockId::new(9);
    refused(&mut pool, |pool| pool.adopt(&[nine, nine], &chain(), 0), &wrong(nine, "named twice"));
    let unknown = PoolError::UnknownBlock { block: 16, last: 15 };
    refused(&mut pool, |pool| pool.adopt(&ids([9, 16]), &chain(), 0), &unknown);
    let short = PoolError::ChainTooShort { start: 4, blocks: 1, chain: 4 };
    refused(&mut pool, |pool| pool.adopt(&[nine], &chain(), 4), &short);
}

#[test]
fn an_id_is_disowned_by_its_only_holder() {
    let mut pool = pool();
    pool.adopt(&ids([1, 2, 3]), &chain(), 0).unwrap();
    pool.acquire(&ids([2])).unwrap();
    let (block, operation) = (BlockId::new(2), "disown it");
    let shared = PoolError::WrongState { block, state: "held by others, too", operation };
    refused(&mut pool, |pool| pool.disown(&ids([1, 2])), &shared);
    let free = PoolError::NotHeld { block: BlockId::new(5), held: 0, operation, position: 1 };
    refused(&mut pool, |pool| pool.disown(&ids([1, 5])), &free);
    let before = look(&pool);
    assert!(matches!(pool.disown(&ids([1, 1])), Err(PoolError::NotHeld { position: 1, .. })));
    assert_eq!(look(&pool), before);
    pool.release_after(&ids([3]), 9).unwrap();
    let fenced = PoolError::WrongState { block: BlockId::new(3), state: "fenced", operation };
    refused(&mut pool, |pool| pool.disown(&ids([3])), &fenced);
    pool.release(&ids([2])).unwrap();
    pool.disown(&ids([1, 2])).unwrap();
    assert_eq!(ids([1, 2]).map(|block| pool.state(block)), [Some(BlockState::Free); 2]);
    assert_eq!((pool.stats().registered, pool.free_order()[..2].to_vec()), (1, ids([1, 2]).to_vec()));
    pool.check_invariants().unwrap();
}

#[derive(Debug, Default)]
struct Told(Vec<(u32, bool)>);

impl PoolObserver for Told {
    fn computed(&mut self, computed: &Computed) {
        self.0.push((computed.block.get(), true));
    }

    fn removed(&mut self, removed: &Removed) {
        self.0.push((removed.block.get(), false));
    }
}

#[test]
fn an_observer_is_notified_of_adoptions_evictions_and_disownments() {
    let mut pool = pool();
    pool.observe(Box::new(Told::default())).unwrap();
    pool.adopt(&ids([1, 2, 3]), &chain(), 0).unwrap();
    pool.adopt(&ids([4]), &chain(), 0).unwrap();
    pool.release_table(&ids([1, 2, 3])).unwrap();
    pool.evict(1).unwrap();
    pool.disown(&ids([1])).unwrap();
    let told = &pool.observer::<Told>().unwrap().0;
    assert_eq!(told[..], [(1, true), (2, true), (3, true), (3, false), (1, false)]);
}

/// Allocates a table, registers its blocks under a chain, and marks them computed.
fn store(pool: &mut BlockPool, chain: &HashChain) -> Vec<BlockId> {
    let table = pool.allocate(chain.len()).unwrap();
    pool.register(&table, chain, 0).unwrap();
    pool.mark_computed(&table).unwrap();
    table
}

/// The pool releases the blocks of a chain in one pass. If it then refuses another block of the same
/// call, it undoes this pass.
#[test]
fn a_release_that_is_refused_at_any_position_changes_nothing() {
    let mut pool = pool();
    let table = store(&mut pool, &chain());
    let (tail, free) = (pool.allocate(1).unwrap()[0], pool.next_free().unwrap());
    let [first, _, third, last] = table[..] else { panic!("four blocks") };
    let error = |block, held, position| PoolError::NotHeld { block, held, operation: "release it", position };
    let cases: [(&[BlockId], PoolError); 4] = [
        (&[last, third, third, first], error(third, 1, 2)),
        (&[last, third, free, first], error(free, 0, 2)),
        (&[tail, free, last, third], error(free, 0, 1)),
        (&[tail, last, third, tail], error(tail, 1, 3)),
    ];
    for (blocks, error) in cases {
        refused(&mut pool, |pool| pool.release(blocks), &error);
        refused(&mut pool, |pool| pool.release_in_order(blocks), &error);
        let table: Vec<_> = blocks.iter().rev().copied().collect();
        refused(&mut pool, |pool| pool.release_table(&table), &error);
        pool.check_invariants().unwrap();
    }
    pool.release_table(&[&table[..], &[tail]].concat()).unwrap();
    assert_eq!(pool.eviction_order(), table.iter().rev().copied().collect::<Vec<_>>());
    assert_eq!(pool.next_free(), Some(tail));
}

#[test]
fn a_release_of_two_chains_evicts_the_deepest_blocks_first() {
    let mut pool = pool();
    let one = store(&mut pool, &chain());
    let other = store(&mut pool, &chain_of(&[11, 12, 13, 14, 15, 16, 17, 18]));
    pool.release(&[one[1], other[2]]).unwrap();
    assert_eq!(pool.eviction_order(), [other[2], one[1]]);
    pool.release(&[one[3], other[3], other[0], one[2], other[1], one[0]]).unwrap();
    let rest = [one[3], other[3], one[2], other[1], other[0], one[0]];
    assert_eq!(pool.eviction_order(), [&[other[2], one[1]][..], &rest].concat());
    pool.check_invariants().unwrap();
}

#[test]
fn a_released_table_keeps_the_blocks_that_another_table_shares() {
    let mut pool = pool();
    let table = store(&mut pool, &chain());
    let fenced = pool.allocate(1).unwrap();
    pool.release_after(&fenced, 1).unwrap();
    pool.acquire(&table[..2]).unwrap();
    pool.release_table(&table).unwrap();
    assert_eq!(pool.eviction_order(), [table[3], table[2]]);
    assert_eq!(counts(&pool, &table), [1, 1, 0, 0]);
    pool.release_table(&table[..2]).unwrap();
    assert_eq!(pool.eviction_order(), table.iter().rev().copied().collect::<Vec<_>>());
    pool.check_invariants().unwrap();
}
