//! Tests the advisor of a pool and of a manager: which calls count as references, windows, tenants,
//! epochs, resizes, and random sequences of calls. Tests of `kvpool-replay` compare its estimates with
//! exact curves.

use kvpool::hash::ChainLink;
use kvpool::retention::{RetentionConfig, TenantId};
use kvpool::{
    AdmitOptions, BlockHash, BlockHasher, BlockPool, CacheManager, DuplicatePolicy, ExtraKeys, HashAlgorithm,
    HashChain, HasherConfig, ManagerConfig, PoolConfig, PoolError,
};
use kvpool_observe::advisor::{Bound, SampledStack};
use kvpool_observe::{Advice, AdvisorConfig, ManagerWatch, ManagerWatchConfig, PoolWatch, WatchConfig};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

use super::traffic::{Traffic, chain, operations};

/// Returns the settings of a watch with this advisor and no other observer.
fn advised(advisor: AdvisorConfig) -> WatchConfig {
    WatchConfig { advisor: Some(advisor), ..WatchConfig::default() }
}

fn pool(capacity: usize, advisor: AdvisorConfig) -> BlockPool {
    let config = PoolConfig { num_blocks: capacity + 1, block_size: 1, ..PoolConfig::default() };
    BlockPool::new(config).unwrap().watched(&advised(advisor)).unwrap()
}

fn serve(pool: &mut BlockPool, chain: &HashChain, tenant: u32) {
    let mut table = pool.match_and_acquire_for(chain, usize::MAX, TenantId(tenant)).unwrap();
    let hits = table.len();
    let missing = (chain.len() - hits).min(pool.num_available());
    pool.allocate_into(missing, &mut table).unwrap();
    pool.register(&table[hits..], chain, hits).unwrap();
    pool.mark_computed(&table[hits..]).unwrap();
    pool.release_table(&table).unwrap();
}

fn at(advice: &Advice, blocks: u64) -> f64 {
    advice.curve.iter().find(|point| point.blocks == blocks).unwrap().block_hit_rate
}

fn manager(num_blocks: usize) -> CacheManager {
    let config = ManagerConfig { num_blocks, block_size: 1, ..ManagerConfig::default() };
    watched(config)
}

/// Returns a manager with an advisor that has the default settings.
fn watched(config: ManagerConfig) -> CacheManager {
    let advisor = Some(AdvisorConfig::default());
    let watch = ManagerWatchConfig { advisor, ..ManagerWatchConfig::default() };
    CacheManager::new(config).unwrap().watched(&watch).unwrap()
}

#[test]
fn a_refused_request_that_is_retried_counts_once() {
    let mut manager = manager(11);
    let prompt = |manager: &CacheManager, first: u32| {
        manager.prepare(&(first..first + 6).collect::<Vec<_>>(), ExtraKeys::default()).unwrap()
    };
    manager.admit("a", prompt(&manager, 0)).unwrap();
    // The last token is always computed, so at most five blocks can be hits.
    assert_eq!(manager.pool().advice().unwrap().seen, 5);
    let mut cursor = prompt(&manager, 100);
    for _ in 0..20 {
        cursor = *manager.admit("b", cursor).unwrap_err().cursor;
        manager.probe(&cursor).unwrap();
        let mut plan = manager.plan_step();
        assert!(manager.plan_admit(&mut plan, "b", cursor.clone()).is_err());
        manager.plan_release(&mut plan, "a", None).unwrap();
        manager.plan_admit(&mut plan, "b", cursor.clone()).unwrap(); // the plan is then dropped
    }
    let advice = manager.pool().advice().unwrap();
    assert_eq!((advice.seen, advice.references, advice.sampled_references), (5, 5, 5));
    manager.release("a", None).unwrap();
    manager.admit("b", cursor).unwrap();
    assert_eq!(manager.pool().advice().unwrap().seen, 10);
    manager.preempt("b", None).unwrap();
    manager.resume("b").unwrap();
    // A resumption looks up the prompt again and counts it again, as the pool's own counters do.
    let stats = manager.stats().pool;
    assert_eq!((manager.pool().advice().unwrap().seen, stats.hits + stats.misses), (15, 15));
}

#[test]
fn requests_count_for_their_tenants() {
    let retention = Some(RetentionConfig::default());
    let eviction = kvpool_policies::LRU;
    let config =
        ManagerConfig { num_blocks: 101, block_size: 1, eviction, retention, ..ManagerConfig::default() };
    let mut manager = watched(config);
    let hints = |tenant| AdmitOptions { tenant: Some(TenantId(tenant)), ..AdmitOptions::default() };
    let prompt = |manager: &CacheManager, tokens| {
        manager.prepare(&(0..tokens).collect::<Vec<_>>(), ExtraKeys::default()).unwrap()
    };
    let cursor = prompt(&manager, 11);
    manager.admit_with("a", cursor, &hints(4)).unwrap();
    manager.preempt("a", None).unwrap();
    manager.resume("a").unwrap();
    manager.preempt("a", None).unwrap();
    let mut plan = manager.plan_step();
    manager.plan_resume(&mut plan, "a").unwrap();
    let cursor = prompt(&manager, 8);
    manager.plan_admit_with(&mut plan, "b", cursor, &hints(9)).unwrap();
    manager.commit_step(&mut plan).unwrap();
    let cursor = prompt(&manager, 3);
    manager.admit("c", cursor).unwrap();
    let advice = manager.pool().advice().unwrap();
    let counted: Vec<_> = advice.tenants.iter().map(|tenant| (tenant.tenant.0, tenant.references)).collect();
    assert_eq!((counted, advice.references), (vec![(4, 30), (9, 7)], 39));
}

/// In a chat, each turn hits the answer of the previous turn, which no lookup has requested before. If
/// the advisor ignored registered blocks, it would treat the answer as new.
#[test]
fn registered_answers_count_as_references() {
    let mut manager = manager(401);
    let mut tokens: Vec<u32> = (0..20).collect();
    for turn in 0..8_u32 {
        let cursor = manager.prepare(&tokens, ExtraKeys::default()).unwrap();
        manager.admit("chat", cursor).unwrap();
        for token in 0..20 {
            let token = 1000 * (turn + 1) + token;
            manager.append(&["chat".into()], &[token], kvpool::Computed::AllButLast).unwrap();
            tokens.push(token);
        }
        manager.release("chat", None).unwrap();
    }
    let advice = manager.pool().advice().unwrap();
    assert!(advice.hit_rate > 0.95, "{}", advice.hit_rate);
    assert_eq!(at(&advice, 400), advice.hit_rate);
    for ghost in &advice.policies {
        assert_eq!(ghost.block_hit_rate, advice.hit_rate, "{}", ghost.policy.name());
    }
    manager.pool().check_invariants().unwrap();
}

#[test]
fn single_blocks_are_references() {
    let hasher = BlockHasher::new(HasherConfig { block_size: 1, ..HasherConfig::default() }).unwrap();
    let mut links: Vec<ChainLink> = Vec::new();
    for token in 0..6 {
        let link = ChainLink::new(&hasher, links.last(), &[token], &ExtraKeys::default()).unwrap();
        links.push(link);
    }
    let mut pool = pool(16, AdvisorConfig::default());
    for _ in 0..3 {
        let mut table = Vec::new();
        for link in &links {
            let block = match pool.acquire_registered(link).unwrap() {
                Some(shared) => shared,
                None => {
                    let own = pool.allocate(1).unwrap()[0];
                    let block = pool.register_link(own, link).unwrap(); // looks the block up once more
                    pool.mark_computed(&[block]).unwrap();
                    block
                }
            };
            table.push(block);
        }
        pool.release_table(&table).unwrap();
    }
    let (advice, stats) = (pool.advice().unwrap(), pool.stats());
    assert_eq!((advice.seen, stats.hits, stats.misses), (24, 12, 12));
    assert_eq!(advice.hit_rate, 0.5);
    // A call of `promote` makes two lookups. If the first one had stored the block in the simulated
    // cache, the second one would count as a hit.
    assert_eq!((at(&advice, 16), advice.policies[0].block_hit_rate), (0.75, 0.75));
    pool.check_invariants().unwrap();
}

/// In the simulated caches, as in the pool, a block whose parent is not cached is not a hit.
#[test]
fn a_block_after_a_gap_is_not_a_hit() {
    let hasher = BlockHasher::new(HasherConfig { block_size: 1, ..HasherConfig::default() }).unwrap();
    let first = ChainLink::new(&hasher, None, &[0], &ExtraKeys::default()).unwrap();
    let second = ChainLink::new(&hasher, Some(&first), &[1], &ExtraKeys::default()).unwrap();
    let mut pool = pool(16, AdvisorConfig::default());
    let block = pool.allocate(1).unwrap()[0];
    pool.register_link(block, &second).unwrap();
    pool.mark_computed(&[block]).unwrap();
    pool.release(&[block]).unwrap();
    serve(&mut pool, &chain(0, 6, 0), 0);
    let advice = pool.advice().unwrap();
    assert_eq!((advice.references, advice.hit_rate), (7, 0.0));
    assert!(advice.policies.iter().all(|ghost| ghost.block_hit_rate == 0.0));
    pool.check_invariants().unwrap();
}

#[test]
fn a_new_epoch_and_a_reset_empty_the_estimators_too() {
    for by_epoch in [true, false] {
        let mut pool = pool(16, AdvisorConfig::default());
        let mut epoch = 0;
        for round in 0..4 {
            if round % 2 == 0 && round > 0 {
                epoch = if by_epoch { pool.bump_epoch().unwrap() } else { pool.reset().map(|_| 0).unwrap() };
            }
            serve(&mut pool, &chain(1, 8, epoch), 3);
        }
        let advice = pool.advice().unwrap();
        assert_eq!((advice.references, advice.hit_rate), (32, 0.5));
        assert_eq!(at(&advice, 128), 0.5);
        assert!(advice.policies.iter().all(|ghost| ghost.block_hit_rate == 0.5));
        assert_eq!(advice.tenants[0].alone.last().unwrap().block_hit_rate, 0.5);
        pool.check_invariants().unwrap();
    }
}

#[test]
fn counts_are_halved_at_the_end_of_each_window() {
    let mut pool = pool(4, AdvisorConfig { window: Some(80), ..AdvisorConfig::default() });
    let prompt = chain(1, 8, 0); // never hits except in the first four blocks
    (0..10).for_each(|_| serve(&mut pool, &prompt, 0));
    assert_eq!(pool.advice().unwrap().references, 80);
    serve(&mut pool, &prompt, 0);
    let advice = pool.advice().unwrap();
    assert_eq!((advice.references, advice.seen, advice.window), (48, 88, 80));
    assert_eq!(advice.tenants[0].references, 48);
    // Hits of the old window are halved like references. The previous window has 9 * 4 hits, which
    // count half, and 40 references. The new one has 4 hits and 8 references.
    assert_eq!(advice.hit_rate, (18.0 + 4.0) / 48.0);
    assert_eq!((at(&advice, 4), advice.policies[0].block_hit_rate), (advice.hit_rate, advice.hit_rate));
    (0..400).for_each(|_| serve(&mut pool, &prompt, 0));
    let advice = pool.advice().unwrap();
    assert!((80..=160).contains(&advice.references), "{}", advice.references);
    assert!((at(&advice, 8) - 1.0).abs() < 1e-9 && (advice.hit_rate - 0.5).abs() < 1e-9);
}

#[test]
fn a_resize_is_followed() {
    let config =
        AdvisorConfig { max_sampled_blocks: 512, window: Some(u64::MAX), ..AdvisorConfig::default() };
    let mut pool = pool(64, config);
    assert_eq!((pool.advice().unwrap().rate, pool.advice().unwrap().capacity_blocks), (1.0, 64));
    let loops: Vec<_> = (0..30).map(|nth| chain(nth, 20, 0)).collect(); // 600 blocks, in turn
    (0..10).for_each(|_| loops.iter().for_each(|chain| serve(&mut pool, chain, 1)));
    let small = pool.advice().unwrap();
    assert_eq!((small.hit_rate, small.policies[0].references), (0.0, 6_000));
    let before = small.memory_bytes;
    pool.resize(641).unwrap();
    let resized = pool.advice().unwrap();
    assert_eq!((resized.rate, resized.capacity_blocks, resized.policies[0].references), (0.1, 640, 0));
    assert!(resized.memory_bytes <= before + 64);
    assert_eq!(resized.references, 6_000); // the counts stay
    (0..10).for_each(|_| loops.iter().for_each(|chain| serve(&mut pool, chain, 1)));
    let advice = pool.advice().unwrap();
    pool.check_invariants().unwrap();
    assert_eq!(advice.policies[0].references, 6_000);
    // In nine of the last ten rounds, all blocks hit. The first of the ten rounds hits the 64 blocks
    // that the small pool still has. Earlier rounds do not hit.
    assert_eq!(advice.hit_rate, f64::from(9 * 600 + 64) / 12_000.0);
    let ghost = advice.policies[0].block_hit_rate;
    assert!((ghost - 0.9).abs() < 0.05, "{ghost}");
    // The pool refuses the resize, and its advice does not change.
    assert!(pool.resize(3).is_err());
    assert_eq!(pool.advice().unwrap(), advice);
    // If the pool grows and the sampling rate is unchanged, the simulated caches keep their size, but
    // are emptied.
    pool.resize(700).unwrap();
    assert!(pool.advice().unwrap().rate < 0.1);
}

#[test]
fn more_tenants_than_places() {
    let config = AdvisorConfig { max_tenants: 2, window: Some(100), ..AdvisorConfig::default() };
    let mut pool = pool(64, config);
    let prompt = chain(1, 10, 0);
    serve(&mut pool, &prompt, 1);
    serve(&mut pool, &prompt, 2);
    serve(&mut pool, &prompt, 2);
    (0..7).for_each(|_| serve(&mut pool, &prompt, 3));
    let advice = pool.advice().unwrap();
    let known =
        |advice: &Advice| advice.tenants.iter().map(|t| (t.tenant.0, t.references)).collect::<Vec<_>>();
    assert_eq!((known(&advice), advice.untracked_references), (vec![(1, 10), (2, 20)], 70));
    // At the end of the window, the tenant with the fewest references loses its separate counts, and
    // the next new tenant is counted instead.
    serve(&mut pool, &prompt, 3);
    let advice = pool.advice().unwrap();
    assert_eq!((known(&advice), advice.untracked_references), (vec![(2, 10), (3, 10)], 35));
    assert_eq!(advice.tenants[1].hit_rate, 1.0);
    // Without the other tenants, this tenant would have no hits, because it requests the content for
    // the first time.
    assert_eq!(advice.tenants[1].alone.last().unwrap().block_hit_rate, 0.0);
    // With `max_tenants: 0`, no tenant is counted separately.
    let config = AdvisorConfig { max_tenants: 0, ..AdvisorConfig::default() };
    let mut pool = BlockPool::new(PoolConfig { block_size: 1, ..PoolConfig::default() })
        .unwrap()
        .watched(&advised(config))
        .unwrap();
    serve(&mut pool, &prompt, 1);
    let advice = pool.advice().unwrap();
    assert_eq!((advice.tenants.len(), advice.untracked_references, advice.references), (0, 10, 10));
}

#[test]
fn a_prompt_that_is_larger_than_everything() {
    let config = AdvisorConfig { max_sampled_blocks: 64, ..AdvisorConfig::default() };
    let mut pool = pool(8, config);
    let prompt = chain(1, 500, 0);
    (0..3).for_each(|_| serve(&mut pool, &prompt, 1));
    let advice = pool.advice().unwrap();
    pool.check_invariants().unwrap();
    assert_eq!((advice.sampled_references, advice.rate), (1_500, 1.0));
    // As in the pool, the first blocks of the prompt stay cached, and are hit in two of three rounds.
    for blocks in [1, 8, 64] {
        assert!((at(&advice, blocks) - blocks as f64 * 2.0 / 1_500.0).abs() < 1e-12);
    }
    assert_eq!(advice.policies[0].block_hit_rate, 16.0 / 1_500.0);
}

#[test]
fn settings_out_of_range_are_named() {
    let default = AdvisorConfig::default;
    let bad = [
        ("max_sampled_blocks", AdvisorConfig { max_sampled_blocks: 63, ..default() }),
        ("max_sampled_blocks", AdvisorConfig { max_sampled_blocks: 1 << 25, ..default() }),
        ("sample_every", AdvisorConfig { sample_every: 0, ..default() }),
        ("max_tenants", AdvisorConfig { max_tenants: 1025, ..default() }),
        ("window", AdvisorConfig { window: Some(0), ..default() }),
        ("policies", AdvisorConfig { policies: vec![kvpool_policies::LAST_ACCESS], ..default() }),
        (
            "policies",
            AdvisorConfig { policies: vec![kvpool_policies::LRU, kvpool_policies::LRU], ..default() },
        ),
    ];
    for (name, config) in bad {
        let pool = BlockPool::new(PoolConfig::default()).unwrap();
        let error = pool.watched(&advised(config)).unwrap_err();
        assert!(matches!(error, PoolError::InvalidConfig { field, .. } if field == name), "{error}");
    }
    let of_the_core = AdvisorConfig { policies: vec![kvpool::EvictionPolicy::LRU], ..default() };
    assert_eq!(of_the_core.check(), Ok(()));
    for (rate, bound) in
        [(0.0, Bound::None), (1.5, Bound::None), (f64::NAN, Bound::None), (1.0, Bound::Depth(0))]
    {
        assert!(matches!(SampledStack::new(rate, 0, bound), Err(PoolError::InvalidConfig { .. })));
    }
    let pool = BlockPool::new(PoolConfig::default()).unwrap();
    assert!(pool.advice().is_none());
}

/// A stack of all keys, implemented as a plain list.
struct PlainStack {
    most: usize,
    keys: Vec<u64>, // the last used key first
}

impl PlainStack {
    fn lookup(&mut self, keys: &[u64]) -> Vec<Option<u64>> {
        let distance =
            |key: &u64| self.keys.iter().position(|known| known == key).map(|above| above as u64 + 1);
        let found = keys.iter().map(distance).collect();
        self.keys.retain(|key| !keys.contains(key));
        self.keys.splice(0..0, keys.iter().copied());
        self.keys.truncate(self.most);
        found
    }
}

/// Returns the keys of a prefix, given as `(chain, branch, length)`. A few chains have branches.
fn prefix((trunk, branch, length): (u64, u64, u64)) -> Vec<u64> {
    let key = |depth| if depth < 4 { trunk * 100 + depth } else { trunk * 100 + branch * 10 + depth };
    (0..length).map(|depth| key(depth).wrapping_mul(0x9e37_79b9_97f4_a7c1)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    })]

    /// At a sampling rate of 1, the estimator's stack equals a plain list, up to its maximum depth.
    #[test]
    fn a_stack_of_everything_is_a_list(
        lookups in vec((0..6_u64, 1..4_u64, 1..10_u64), 1..120),
        most in 3..60_usize,
    ) {
        let mut stack = SampledStack::new(1.0, 9, Bound::Depth(most)).unwrap();
        let mut plain = PlainStack { most, keys: Vec::new() };
        for lookup in lookups {
            let keys = prefix(lookup);
            let expected = plain.lookup(&keys);
            stack.begin();
            let mut found: Vec<_> = keys.iter().rev().map(|&key| stack.touch(key).unwrap()).collect();
            found.reverse();
            prop_assert!(found.iter().all(|touch| touch.weight == 1.0));
            let found: Vec<_> = found.iter().map(|touch| touch.distance).collect();
            // If this lookup itself pushes a key beyond the maximum depth, the key may be found at its
            // depth, or not at all.
            for (found, expected) in found.iter().zip(&expected) {
                prop_assert!(found == expected || found.is_none()
                    && expected.is_some_and(|at| at as usize + 9 > most));
            }
            let order: Vec<_> = stack.keys().collect();
            prop_assert!(order.iter().rev().eq(&plain.keys), "{:?} {:?}", order, plain.keys);
        }
    }

    /// With random calls, the invariants hold, every rate is between 0 and 1, and larger caches never
    /// have lower rates. The references are those that the pool counts, and equal calls give equal
    /// advice.
    #[test]
    fn histories(
        operations in operations(150),
        num_blocks in 2..60_usize,
        max_sampled_blocks in 64..300_usize,
        sample_every in 1..4_u32,
        window in 1..400_u64,
    ) {
        let policies: Vec<_> =
            kvpool_policies::ALL.iter().copied()
                .filter(|&policy| policy != kvpool_policies::LAST_ACCESS).collect();
        let window = Some(window);
        let config =
            AdvisorConfig { max_sampled_blocks, sample_every, window, policies, max_tenants: 2, seed: 1 };
        let run = || {
            let mut traffic = Traffic::sized(num_blocks, kvpool_policies::LRU, DuplicatePolicy::Keep);
            traffic.pool.watch(&advised(config.clone())).unwrap();
            operations.iter().for_each(|operation| traffic.run(operation, &mut ()));
            traffic.pool
        };
        let pool = run();
        pool.check_invariants().unwrap();
        let (advice, stats) = (pool.advice().unwrap(), pool.stats());
        prop_assert_eq!(advice.seen, stats.hits + stats.misses);
        prop_assert!(advice.references <= advice.seen && advice.sampled_references <= advice.references);
        let rises = |curve: &[kvpool_observe::advisor::CurvePoint]| {
            curve.iter().all(|point| (0.0..=1.0).contains(&point.block_hit_rate))
                && curve.windows(2).all(|pair| pair[0].blocks <= pair[1].blocks)
                && curve.windows(2).all(|pair| pair[0].block_hit_rate <= pair[1].block_hit_rate)
        };
        prop_assert!(rises(&advice.curve));
        prop_assert!(advice.tenants.len() <= 2);
        prop_assert!(advice.tenants.iter().all(|tenant| rises(&tenant.curve) && rises(&tenant.alone)));
        prop_assert!(advice.policies.iter().all(|ghost| (0.0..=1.0).contains(&ghost.block_hit_rate)));
        prop_assert_eq!(run().advice().unwrap(), advice);
    }
}

/// Digests from other sources may begin with any bytes. If these bytes are distributed unevenly, only
/// the size of the sample changes.
#[test]
fn keys_that_are_not_spread() {
    let digests = |first: u64| {
        let digest = |at: u64| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&(first + at).to_le_bytes());
            BlockHash::from_bytes(bytes)
        };
        HashChain::from_digests(HashAlgorithm::Sha256, 1, 0, (0..50).map(digest).collect()).unwrap()
    };
    let mut pool = pool(10_000, AdvisorConfig { max_sampled_blocks: 8_000, ..AdvisorConfig::default() });
    (0..2).for_each(|_| (0..100).for_each(|nth| serve(&mut pool, &digests(nth * 50), 0)));
    let advice = pool.advice().unwrap();
    assert!((800..=1200).contains(&advice.sampled_references), "{}", advice.sampled_references);
    assert!((at(&advice, 10_000) - 0.5).abs() < 0.03 && at(&advice, 2_500) < 0.03);
}
