//! Tests for earlier faults: refused calls that changed the state, and calls that did only a part of
//! their work.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::sync::Arc;

use kvpool::groups::{GroupKind, GroupSpec, Groups};
use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, Then, Ttl};
use kvpool::{
    AdmitOptions, BlockHash, BlockHasher, BlockId, BlockPool, CacheManager, ChainLink, ExtraKeys,
    HashAlgorithm, HashChain, HashCursor, HasherConfig, ManagerConfig, PoolConfig, PoolError, PrefixIndex,
    RequestRef, RetentionRange, Until, Verify,
};
use kvpool_observe::{PoolWatch, WatchConfig};

const BLOCK_SIZE: usize = 4;

fn chain(algorithm: HashAlgorithm) -> HashChain {
    let verify = Verify::Fingerprint;
    let config = HasherConfig { algorithm, block_size: BLOCK_SIZE, verify, ..HasherConfig::default() };
    let hasher = Arc::new(BlockHasher::new(config).unwrap());
    let mut cursor = HashCursor::new(hasher, ExtraKeys::default()).unwrap();
    cursor.append(&[1, 2, 3, 4, 5, 6, 7, 8]);
    cursor.chain().clone()
}

fn config() -> PoolConfig {
    PoolConfig { num_blocks: 8, block_size: BLOCK_SIZE, ..PoolConfig::default() }
}

/// Returns a pool that records events.
fn pool_of(config: PoolConfig) -> BlockPool {
    let events = WatchConfig { event_capacity: 100, ..WatchConfig::default() };
    BlockPool::new(config).unwrap().watched(&events).unwrap()
}

fn pool() -> BlockPool {
    pool_of(config())
}

/// In an earlier version, the pool kept the algorithm of a chain that it had refused.
#[test]
fn a_refused_registration_leaves_no_algorithm() {
    let mut pool = pool();
    let table = pool.allocate(2).unwrap();
    let twice = [table[0], table[0]];
    let refused = pool.register(&twice, &chain(HashAlgorithm::Sha256), 0);
    assert_eq!(refused, Err(PoolError::AlreadyRegistered { block: table[0] }));
    assert_eq!(pool.algorithm(), None);
    assert_eq!(pool.register(&table, &chain(HashAlgorithm::Blake3), 0).unwrap().blocks, 2);
    assert_eq!(pool.algorithm(), Some(HashAlgorithm::Blake3));
    pool.check_invariants().unwrap();
}

/// Digests of two algorithms cannot be compared, so an index has one algorithm. An empty index has no
/// algorithm, in whatever way its blocks were removed.
#[test]
fn an_empty_index_has_no_algorithm() {
    let (first, second) = (chain(HashAlgorithm::Sha256), chain(HashAlgorithm::Blake3));
    type Empty = fn(&mut BlockPool, &[BlockId]);
    let ways: [(&str, Empty); 3] = [
        ("reset", |pool, table| {
            pool.release_table(table).unwrap();
            pool.reset().unwrap();
        }),
        ("drop_cached", |pool, table| assert_eq!(pool.drop_cached(table).unwrap(), 2)),
        ("release", |pool, table| pool.release_table(table).unwrap()), // registered and never computed
    ];
    for (name, empty) in ways {
        let mut pool = pool();
        let table = pool.allocate(2).unwrap();
        pool.register(&table, &first, 0).unwrap();
        let other = pool.allocate(2).unwrap();
        let mismatch =
            PoolError::AlgorithmMismatch { chain: HashAlgorithm::Blake3, pool: HashAlgorithm::Sha256 };
        assert_eq!(pool.register(&other, &second, 0), Err(mismatch.clone()), "{name}");
        pool.release(&other).unwrap();
        empty(&mut pool, &table);
        assert_eq!(pool.algorithm(), None, "{name}");
        let table = pool.allocate(2).unwrap();
        pool.register(&table, &second, 0).unwrap();
        assert_eq!(pool.algorithm(), Some(HashAlgorithm::Blake3), "{name}");
        pool.check_invariants().unwrap();
    }
    let mut index = PrefixIndex::new(8, BLOCK_SIZE, Verify::None).unwrap();
    index.insert(BlockId::new(1), &first, 0).unwrap();
    index.clear();
    assert_eq!(index.algorithm(), None);
    index.insert(BlockId::new(1), &second, 0).unwrap();
    index.check_invariants().unwrap();
}

/// In an earlier version, a position that was too large for the index overwrote neighbouring bits.
#[test]
fn a_registration_that_is_too_deep_is_refused() {
    let mut pool = pool();
    let table = pool.allocate(1).unwrap();
    let chain = chain(HashAlgorithm::Sha256);
    for start in [1 << 28, usize::MAX] {
        let refused = pool.register(&table, &chain, start).unwrap_err().to_string();
        let message = format!(
            "block {start} of a hash chain is too deep: an index notes positions up to {}",
            (1 << 28) - 1
        );
        assert_eq!(refused, message);
    }
    let link = |depth| {
        let hash = BlockHash::from_bytes([1; 32]);
        ChainLink::forged(HashAlgorithm::Sha256, 0, hash, None, None, depth, Box::new([1, 2, 3, 4]))
    };
    let too_deep = PoolError::TooDeep { position: 1 << 28, most: (1 << 28) - 1 };
    assert_eq!(pool.register_link(table[0], &link(1 << 28)), Err(too_deep));
    assert!(!pool.is_registered(table[0]) && pool.algorithm().is_none());
    assert_eq!(pool.register_link(table[0], &link((1 << 28) - 1)), Ok(table[0]));
    pool.check_invariants().unwrap();
}

/// In an earlier version, `now + ttl` could become infinite, and the pool refused that time to live.
/// The preceding requests of the batch were already committed at that time.
#[test]
fn a_time_to_live_that_overflows_fails_no_commit() {
    let retention = Some(RetentionConfig::default());
    let eviction = kvpool_policies::LRU;
    let config = ManagerConfig {
        num_blocks: 16,
        block_size: BLOCK_SIZE,
        eviction,
        retention,
        ..ManagerConfig::default()
    };
    let mut manager = CacheManager::new(config).unwrap();
    manager.advance_time(1e308).unwrap();
    let retention = Retention {
        keep: Keep::Priority(Priority::MAX),
        ttl: Some(Ttl::Absolute(1.7e308)),
        then: Then::Demote,
    };
    let hints = AdmitOptions {
        ranges: vec![RetentionRange { start: 0, end: None, retention }],
        ..AdmitOptions::default()
    };
    for (id, first) in [(1, 0), (2, 100)] {
        let tokens: Vec<u32> = (first..first + 8).collect();
        let prompt = manager.prepare(&tokens, ExtraKeys::default()).unwrap();
        manager.admit_with(id, prompt, &hints).unwrap();
    }
    let both = [RequestRef::Int(1), RequestRef::Int(2)];
    assert_eq!(manager.commit_batch(&both, &[8, 8]), Ok(4));
    let stats = |manager: &CacheManager| manager.retention_stats().unwrap();
    assert_eq!((stats(&manager).above_normal, stats(&manager).with_ttl), (4, 4));
    manager.advance_time(1.7e308).unwrap();
    manager.release(1, None).unwrap();
    assert_eq!(manager.retain(2, &hints.ranges).unwrap().accepted, 2);
    assert_eq!(stats(&manager).with_ttl, 4);
    // The pool accepts a time to live that would end after the largest `f64`. It ends at the largest
    // `f64`.
    assert_eq!(manager.advance_time(f64::MAX).unwrap(), 4);
    manager.check_invariants().unwrap();
}

/// In an earlier version, two forks both reported that they had registered the blocks that they share.
#[test]
fn a_commit_counts_each_block_once() {
    let config = ManagerConfig { num_blocks: 16, block_size: BLOCK_SIZE, ..ManagerConfig::default() };
    let mut manager = CacheManager::new(config).unwrap();
    let prompt = manager.prepare(&[1, 2, 3, 4, 5, 6, 7, 8, 9], ExtraKeys::default()).unwrap();
    manager.admit(1, prompt).unwrap();
    manager.fork(1, 2).unwrap();
    manager.fork(1, 3).unwrap();
    assert_eq!(manager.commit(1, 8), Ok(2));
    assert_eq!(manager.commit_batch(&[RequestRef::Int(2), RequestRef::Int(3)], &[8, 9]), Ok(0));
    // After a truncation, the request registers one block again. Blocks that are already registered are
    // not counted.
    manager.truncate(3, 6, None).unwrap();
    manager.append_tokens(3, &[70, 80], 0).unwrap();
    assert_eq!(manager.commit(3, 8), Ok(1));
    assert_eq!(manager.pool().stats().registered, 3);
    manager.check_invariants().unwrap();
}

/// A batch of events may contain a reset, after which prompts use another hash algorithm. So its
/// digests can have two lengths.
#[test]
fn events_know_the_algorithm_of_their_digests() {
    let config = PoolConfig { verify: Verify::Fingerprint, ..config() };
    let mut pool = pool_of(config);
    for algorithm in [HashAlgorithm::Sha256, HashAlgorithm::Xxh3] {
        let table = pool.allocate(2).unwrap();
        pool.register(&table, &chain(algorithm), 0).unwrap();
        pool.mark_computed(&table).unwrap();
        pool.release(&table).unwrap();
        pool.drop_cached(&table[..1]).unwrap();
        pool.reset().unwrap();
    }
    let batch = pool.take_events();
    let algorithms: Vec<_> = (0..batch.events.len()).map(|at| batch.algorithm_of(at)).collect();
    let [sha, xxh] = [HashAlgorithm::Sha256, HashAlgorithm::Xxh3].map(Some);
    assert_eq!(algorithms, [sha, sha, sha, sha, xxh, xxh, xxh, xxh]); // stored twice, removed, cleared
    assert_eq!(pool.take_events().algorithm_of(0), None);
}

/// A plan contains more copies of one block than a 16-bit number can count. In an earlier version, the
/// number of pins had 16 bits. The last pins were refused after their references were taken, and these
/// references were lost.
#[test]
fn any_number_of_copies_of_one_block_may_wait_in_a_plan() {
    let copies = usize::from(u16::MAX) + 2;
    let groups = Groups::new(vec![GroupSpec::new(GroupKind::State, 16)], None).unwrap();
    let config = ManagerConfig { num_blocks: copies + 8, groups: Some(groups), ..ManagerConfig::default() };
    let mut manager = CacheManager::new(config).unwrap();
    let prompt = manager.prepare(&[7; 5], ExtraKeys::default()).unwrap();
    manager.admit(0, prompt).unwrap();
    let children: Vec<i64> = (1..=copies as i64).collect();
    for &child in &children {
        manager.fork(0, child).unwrap();
    }
    manager.check_invariants().unwrap();
    assert_eq!(manager.tiers().num_planned(), copies);
    let plan = manager.take_plan().unwrap();
    assert_eq!(plan.len(), copies);
    children.iter().chain([&0]).for_each(|&request| manager.release(request, Until::Now).unwrap());
    manager.check_invariants().unwrap();
    assert_eq!(manager.pool().num_available(), manager.pool().num_usable());
}

/// A fork with a recurrent state takes a block. In an earlier version, a batch that had no block for
/// its last fork had already evicted blocks for the earlier forks.
#[test]
fn a_batch_of_forks_that_lacks_a_state_evicts_nothing() {
    let groups = vec![GroupSpec::new(GroupKind::Full, 16), GroupSpec::new(GroupKind::State, 16)];
    let groups = Some(Groups::new(groups, None).unwrap());
    let mut manager =
        CacheManager::new(ManagerConfig { num_blocks: 6, groups, ..ManagerConfig::default() }).unwrap();
    let first = manager.prepare(&[1; 17], ExtraKeys::default()).unwrap();
    manager.admit(0, first).unwrap();
    manager.commit(0, 17).unwrap();
    manager.release(0, Until::Now).unwrap();
    let prompt = manager.prepare(&[2; 17], ExtraKeys::default()).unwrap();
    manager.admit(1, prompt).unwrap();
    let seen = |manager: &CacheManager| {
        let pool = manager.pool();
        (pool.eviction_order(), pool.num_available(), manager.tiers().num_planned(), pool.stats())
    };
    let before = seen(&manager);
    assert!(before.1 < 3 && !before.0.is_empty(), "{before:?}");
    let refused = manager.fork_batch(&[1.into(); 3], &[2.into(), 3.into(), 4.into()]).unwrap_err();
    assert!(refused.to_string().contains('3'), "{refused}");
    assert_eq!(seen(&manager), before);
    assert!(!manager.contains(2));
    manager.check_invariants().unwrap();
}
