//! Tests that no policy allocates memory after its pool is created, neither in an eviction nor in the
//! calls before and after it, with and without retention.
//!
//! This is a separate test binary, because it counts the allocations of a thread. `policies_memory`
//! tests the policies without a pool, and also checks their size.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

#[path = "common/counting.rs"]
mod counting;

use kvpool::retention::{Keep, Priority, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};
use kvpool::{BlockHash, BlockPool, EvictionPolicy, HashAlgorithm, HashChain, PoolConfig};

const USABLE: usize = 600;
const REQUEST: usize = 6;

/// Returns the chain of prompt `nth`. Every eighth prompt shares its first half.
fn chain(nth: u64) -> HashChain {
    let digest = |at: usize| {
        let named = if at < REQUEST / 2 { nth % 8 } else { nth + 8 };
        let mut bytes = [at as u8; 32];
        bytes[..8].copy_from_slice(&named.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        BlockHash::from_bytes(bytes)
    };
    HashChain::from_digests(HashAlgorithm::Sha256, 16, 0, (0..REQUEST).map(digest).collect()).unwrap()
}

/// Serves many requests in a pool. Returns how often three kinds of calls allocated memory. Lookups are
/// not counted, because a lookup returns a new list.
fn allocations(eviction: EvictionPolicy, retention: Option<RetentionConfig>) -> [usize; 3] {
    let hints = retention.is_some();
    let mut pool =
        BlockPool::new(PoolConfig { num_blocks: USABLE + 1, eviction, retention, ..Default::default() })
            .unwrap();
    let mut table = Vec::with_capacity(2 * REQUEST);
    let (mut evicting, mut registering, mut rest) = (0, 0, 0);
    for nth in 0..1000 {
        let chain = chain(nth);
        table.clear();
        table.extend(pool.match_and_acquire(&chain, usize::MAX).unwrap());
        let hits = table.len();
        // After 300 requests, the pool is full, and its own lists are as large as a request needs.
        // Allocations are counted from then on.
        let steady = nth > 300;
        let before = counting::counts().0;
        pool.allocate_into(REQUEST - hits, &mut table).unwrap();
        evicting += if steady { counting::counts().0 - before } else { 0 };
        let before = counting::counts().0;
        pool.register(&table[hits..], &chain, hits).unwrap();
        registering += if steady { counting::counts().0 - before } else { 0 };
        let before = counting::counts().0;
        pool.mark_computed(&table[hits..]).unwrap();
        if hints {
            let priority = Priority::new((nth % 101) as u8).unwrap();
            let keep = [Keep::Pinned, Keep::Demoted, Keep::Priority(priority)][nth as usize % 3];
            let ttl = [None, Some(Ttl::Idle(9.0)), Some(Ttl::Absolute(20.0))][nth as usize % 7 % 3];
            pool.advance_time(nth as f64).unwrap();
            pool.retain(&table, Retention { keep, ttl, then: Then::Demote }).unwrap();
            pool.assign_tenant(&table, TenantId(nth as u32 % 3)).unwrap();
        }
        table.reverse();
        pool.release(&table).unwrap();
        rest += if steady { counting::counts().0 - before } else { 0 };
    }
    assert!(pool.stats().evicted > 1000, "{eviction:?} was not put under pressure");
    pool.check_invariants().unwrap();
    [evicting, registering, rest]
}

#[test]
fn no_policy_allocates_when_it_evicts() {
    let limits = |tenant, floor, ceiling| TenantLimits { tenant: TenantId(tenant), floor, ceiling };
    let tenants = vec![limits(0, 100, Some(250)), limits(1, 50, None)];
    let retention = RetentionConfig { pin_budget: 100, tenants };
    for &policy in kvpool_policies::ALL {
        for retention in [None, Some(retention.clone())] {
            // `last-accessed` stores access times in a tree, and allocates its nodes. So a release may
            // allocate, but an eviction must not.
            let tree = policy == kvpool_policies::LAST_ACCESS;
            if tree && retention.is_some() {
                continue;
            }
            let hints = retention.is_some();
            let [evicting, registering, rest] = allocations(policy, retention);
            assert_eq!((evicting, if tree { 0 } else { rest }), (0, 0), "{policy:?}, hints {hints}");
            // The hash table of the index may grow once, when it has no empty slot left.
            assert!(registering <= 1, "{policy:?}, hints {hints}: {registering} when registering");
        }
    }
}

/// Returns a chain with the digests `from..from + len`. Each digest is used only once.
fn digests(from: u64, len: usize) -> HashChain {
    let digest = |nth: u64| {
        let mixed = (from + nth).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut bytes = [0; 32];
        for (word, eight) in bytes.chunks_exact_mut(8).enumerate() {
            let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9 + word as u64);
            eight.copy_from_slice(&mixed.to_le_bytes());
        }
        BlockHash::from_bytes(bytes)
    };
    HashChain::from_digests(HashAlgorithm::Sha256, 16, 0, (0..len as u64).map(digest).collect()).unwrap()
}

/// In an earlier version, the size of the hash table was a power of two, with room for exactly the
/// blocks of this pool. After removals had filled it with tombstones (marks for deleted entries), a
/// registration rebuilt it. The first fence of a pool also cleared an array as large as the pool.
#[test]
fn a_full_pool_under_churn_allocates_nothing() {
    const BLOCKS: usize = 917_505;
    const REQUEST: usize = 512;
    let mut pool = BlockPool::new(PoolConfig { num_blocks: BLOCKS, ..PoolConfig::default() }).unwrap();
    let mut table = Vec::with_capacity(REQUEST);
    let mut nth = 0;
    let mut serve = |pool: &mut BlockPool, fenced: Option<u64>| {
        let chain = digests(nth, REQUEST);
        nth += REQUEST as u64;
        table.clear();
        let before = counting::counts().0;
        pool.allocate_into(REQUEST, &mut table).unwrap();
        pool.register(&table, &chain, 0).unwrap();
        pool.mark_computed(&table).unwrap();
        if let Some(step) = fenced {
            pool.release_after(&table, step).unwrap();
            pool.complete_step(step).unwrap();
        } else {
            pool.release_table(&table).unwrap();
        }
        counting::counts().0 - before
    };
    // The pool's lists for a call grow with the number of blocks in the call, not with the size of the
    // pool.
    let before = counting::counts().1;
    serve(&mut pool, None);
    serve(&mut pool, Some(0));
    assert!(counting::counts().1 - before < 64 * 1024);
    while pool.stats().free >= REQUEST {
        assert_eq!(serve(&mut pool, None), 0);
    }
    assert!(pool.stats().registered > BLOCKS - REQUEST);
    for step in 1..1500 {
        assert_eq!(serve(&mut pool, (step % 5 == 0).then_some(step)), 0);
    }
    assert_eq!(pool.stats().evicted / 1000, 767);
}
