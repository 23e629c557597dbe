//! Contains one test for each rule of the order of eviction in `kvpool::retention`. If the order of
//! blocks of normal priority matters, the test uses LRU. Otherwise it tests every policy.

use super::*;
use kvpool::retention::{HintReport, RetentionStats};
use kvpool::{BlockPool, Candidate, Content, PoolConfig, PoolError};

fn pool_of(
    eviction: EvictionPolicy,
    usable: usize,
    pin_budget: usize,
    tenants: &[TenantLimits],
) -> BlockPool {
    let retention = Some(RetentionConfig { pin_budget, tenants: tenants.to_vec() });
    let num_blocks = usable + 1;
    let mut pool = BlockPool::new(PoolConfig {
        num_blocks,
        block_size: BLOCK_SIZE,
        eviction,
        retention,
        ..Default::default()
    })
    .unwrap();
    pool.advance_time(0.0).unwrap();
    pool
}

fn lru(usable: usize, pin_budget: usize) -> BlockPool {
    pool_of(kvpool_policies::LRU, usable, pin_budget, &[])
}

/// Computes a prompt, whose blocks remain in use. Returns its block table.
fn take(pool: &mut BlockPool, path: &[u8]) -> Vec<BlockId> {
    let chain = chain(pool.epoch(), path);
    let mut table = pool.match_and_acquire(&chain, usize::MAX).unwrap();
    let new = pool.allocate(path.len() - table.len()).unwrap();
    pool.register(&new, &chain, table.len()).unwrap();
    pool.mark_computed(&new).unwrap();
    table.extend(new);
    table
}

/// Computes and releases a prompt. Returns its block table.
fn serve(pool: &mut BlockPool, path: &[u8]) -> Vec<BlockId> {
    let table = take(pool, path);
    pool.release_table(&table).unwrap();
    pool.check_invariants().unwrap();
    table
}

/// Computes and releases `n` prompts of one block each. Returns their blocks.
fn singles(pool: &mut BlockPool, n: u8) -> Vec<BlockId> {
    (0..n).map(|first| serve(pool, &[first])[0]).collect()
}

fn order(pool: &BlockPool) -> Vec<usize> {
    pool.check_invariants().unwrap();
    indices(&pool.eviction_order())
}

fn priority(priority: u8) -> Retention {
    Retention::of(Keep::Priority(Priority::new(priority).unwrap()))
}

fn report(accepted: usize, clipped: usize, ignored: usize) -> HintReport {
    HintReport { accepted, clipped, ignored }
}

fn limits(tenant: u32, floor: usize, ceiling: Option<usize>) -> TenantLimits {
    TenantLimits { tenant: TenantId(tenant), floor, ceiling }
}

#[test]
fn the_whole_order_first_to_last() {
    let tenants = [limits(1, 0, Some(1)), limits(2, 2, None)];
    let mut pool = pool_of(kvpool_policies::LRU, 12, 1, &tenants);
    let b = singles(&mut pool, 9);
    pool.retain(&b[..1], Retention::PINNED).unwrap();
    pool.assign_tenant(&b[1..2], TenantId(2)).unwrap();
    pool.retain(&b[2..3], priority(36)).unwrap();
    pool.retain(&b[4..5], priority(34)).unwrap();
    pool.retain(&b[5..6], priority(0)).unwrap();
    pool.assign_tenant(&b[6..8], TenantId(1)).unwrap();
    pool.retain(&b[8..9], Retention::END_OF_LIFE).unwrap();
    // The expected order is: the demoted block, the block above the ceiling, then low, below normal,
    // normal and above normal priority, the block below the floor, the pinned block.
    assert_eq!(order(&pool), indices(&[b[8], b[6], b[5], b[4], b[3], b[7], b[2], b[1], b[0]]));
}

#[test]
fn with_equal_priority_the_least_recently_released_is_evicted_first() {
    let mut pool = lru(6, 0);
    let b = singles(&mut pool, 4);
    for at in [3, 1] {
        pool.retain(&b[at..=at], priority(80)).unwrap();
    }
    assert_eq!(order(&pool), indices(&[b[0], b[2], b[3], b[1]]));
    serve(&mut pool, &[3]);
    assert_eq!(order(&pool), indices(&[b[0], b[2], b[1], b[3]]));
    pool.retain(&[b[1]], priority(79)).unwrap();
    assert_eq!(order(&pool), indices(&[b[0], b[2], b[1], b[3]]));
    pool.retain(&[b[3]], priority(78)).unwrap();
    assert_eq!(order(&pool), indices(&[b[0], b[2], b[3], b[1]]));
}

#[test]
fn the_last_hint_wins() {
    let mut pool = lru(6, 1);
    let b = singles(&mut pool, 2);
    for (hint, first) in [
        (priority(100), 1),
        (priority(10), 0),
        (Retention::PINNED, 1),
        (Retention::END_OF_LIFE, 0),
        (priority(36), 1),
        (Retention { ttl: Some(Ttl::Absolute(1.0)), ..priority(90) }, 1),
        (priority(34), 0), // also ends the time to live
    ] {
        assert_eq!(pool.retain(&b[..1], hint).unwrap(), report(1, 0, 0));
        assert_eq!(order(&pool)[0], b[first].index(), "{hint:?}");
    }
    assert_eq!(pool.advance_time(10.0).unwrap(), 0);
    assert_eq!(order(&pool)[0], b[0].index());
    pool.retain(&b[..1], Retention::NORMAL).unwrap();
    assert_eq!(
        order(&pool),
        indices(&[b[1], b[0]]),
        "a block that is moved goes to the back of where it goes"
    );
    assert_eq!(pool.retention_stats().unwrap(), RetentionStats::default());
}

#[test]
fn a_hit_ends_a_demotion_and_nothing_else() {
    for &eviction in kvpool_policies::ALL.iter().filter(|&&policy| policy != kvpool_policies::LAST_ACCESS) {
        let mut pool = pool_of(eviction, 6, 0, &[]);
        let b = singles(&mut pool, 3);
        let all = pool.retention_stats().unwrap();
        pool.retain(&b[1..2], Retention::END_OF_LIFE).unwrap();
        pool.retain(&b[2..3], priority(0)).unwrap();
        assert_eq!(order(&pool), indices(&[b[1], b[2], b[0]]), "{eviction:?}");
        serve(&mut pool, &[1]);
        serve(&mut pool, &[2]);
        assert_eq!(order(&pool)[0], b[2].index(), "{eviction:?}: a low priority stays");
        let stats = pool.retention_stats().unwrap();
        assert_eq!((stats.demoted, stats.below_normal, all.demoted), (0, 1, 0));
    }
}

/// In an earlier version, a block that had been chosen for eviction and waited for its child was hit,
/// but was still treated as chosen. After its release it was the next victim of a FIFO queue instead of
/// the last.
#[test]
fn a_hit_ends_the_demotion_of_a_block_that_waited_for_its_child() {
    let mut pool = pool_of(kvpool_policies::S3_FIFO, 4, 0, &[]);
    let chain = serve(&mut pool, &[0, 0]);
    let other = serve(&mut pool, &[1])[0];
    pool.retain(&chain[..1], Retention::END_OF_LIFE).unwrap();
    // This allocation takes the last free block and the child. The policy first chose the parent, which
    // had to wait for the child.
    let more = pool.allocate(2).unwrap();
    assert_eq!(more[1], chain[1]);
    pool.release(&more).unwrap();
    serve(&mut pool, &[2, 2]);
    pool.retain(&chain[..1], Retention::NORMAL).unwrap();
    assert_eq!(order(&pool)[0], other.index());

    let mut pool = pool_of(kvpool_policies::S3_FIFO, 6, 1, &[]);
    let chain = serve(&mut pool, &[0, 0]);
    let other = serve(&mut pool, &[1])[0];
    pool.retain(&chain[..1], Retention::END_OF_LIFE).unwrap();
    pool.retain(&chain[1..], Retention::PINNED).unwrap();
    let third = serve(&mut pool, &[2])[0];
    let victim = pool.allocate(3).unwrap()[2]; // asks for the demoted block, which waits for its pinned child
    assert_eq!(victim, other);
    take(&mut pool, &[0]);
    pool.retain(&chain[1..], Retention::NORMAL).unwrap();
    pool.release(&chain[..1]).unwrap();
    assert_eq!(order(&pool)[0], third.index(), "the chain is newer: it was as good as admitted by the hit");
}

#[test]
fn an_end_of_life_has_no_effect_while_others_hold_the_block() {
    let mut pool = lru(6, 0);
    let (mine, yours) = (take(&mut pool, &[0, 1]), take(&mut pool, &[0, 2]));
    assert_eq!(mine[0], yours[0]);
    assert_eq!(pool.retain(&mine, Retention::END_OF_LIFE).unwrap(), report(1, 0, 1));
    pool.release_table(&mine).unwrap();
    assert_eq!(pool.retain(&yours, Retention::END_OF_LIFE).unwrap(), report(2, 0, 0));
    // After the last holder has released them, the blocks are demoted. Lookups find them until an
    // allocation needs them.
    pool.release_table(&yours).unwrap();
    assert_eq!(pool.retention_stats().unwrap().demoted, 3);
    assert_eq!(pool.probe(&chain(0, &[0, 2]), 9).unwrap().cached_blocks, 2);
}

#[test]
fn pins_beyond_the_budget_are_clipped_to_the_highest_priority() {
    let mut pool = lru(6, 2);
    let b = singles(&mut pool, 5);
    assert_eq!(pool.retain(&b[..3], Retention::PINNED).unwrap(), report(2, 1, 0));
    assert_eq!(pool.retain(&b[..2], Retention::PINNED).unwrap(), report(2, 0, 0), "pinned already");
    assert_eq!(order(&pool), indices(&[b[3], b[4], b[2], b[0], b[1]]));
    let stats = pool.retention_stats().unwrap();
    assert_eq!((stats.pinned, stats.above_normal), (2, 1));
    // When a pinned block gets another hint, a further block can be pinned. The pin hint that was
    // refused earlier has to be given again.
    pool.retain(&b[..1], Retention::NORMAL).unwrap();
    assert_eq!(order(&pool), indices(&[b[3], b[4], b[0], b[2], b[1]]));
    assert_eq!(pool.retain(&b[2..5], Retention::PINNED).unwrap(), report(1, 2, 0));
    assert_eq!(pool.retention_stats().unwrap().pinned, 2);
    // Pinned blocks are evicted if no other block is left, because hints are advisory.
    assert_eq!(pool.allocate(6).unwrap().len(), 6);
    assert_eq!(pool.retention_stats().unwrap(), RetentionStats::default());
}

/// In an earlier version, an idle time to live ran while the block was in use. If a request ran longer
/// than the time to live, the hints about its own blocks ended.
#[test]
fn a_block_in_use_keeps_its_retention_however_long_it_is_used() {
    for then in [Then::Normal, Then::Demote] {
        let mut pool = lru(6, 0);
        let kept = Retention { ttl: Some(Ttl::Idle(10.0)), then, ..priority(80) };
        let gauges = |pool: &BlockPool| {
            let stats = pool.retention_stats().unwrap();
            (stats.above_normal, stats.with_ttl, stats.expired)
        };
        // The hint is for a block that is in use, and has never been released.
        let table = take(&mut pool, &[0]);
        pool.retain(&table, kept).unwrap();
        assert_eq!(gauges(&pool), (1, 0, 0), "it does not run yet");
        assert_eq!(pool.advance_time(1000.0).unwrap(), 0);
        pool.release_table(&table).unwrap();
        assert_eq!(gauges(&pool), (1, 1, 0));
        // A hit stops the idle time. When the last of its holders releases the block, the time starts
        // again.
        pool.advance_time(1009.0).unwrap();
        let (first, second) = (take(&mut pool, &[0]), take(&mut pool, &[0]));
        assert_eq!(pool.advance_time(2000.0).unwrap(), 0);
        pool.release_table(&first).unwrap();
        assert_eq!(gauges(&pool), (1, 0, 0), "one still holds it");
        assert_eq!(pool.advance_time(3000.0).unwrap(), 0);
        // A step that may still write the block counts as a use.
        pool.release_after(&second, 7).unwrap();
        assert_eq!(pool.advance_time(4000.0).unwrap(), 0);
        pool.complete_step(7).unwrap();
        assert_eq!(pool.advance_time(4009.9).unwrap(), 0);
        assert_eq!(gauges(&pool), (1, 1, 0));
        assert_eq!(pool.advance_time(4010.0).unwrap(), 1);
        assert_eq!(gauges(&pool), (0, 0, 1));
        assert_eq!(pool.retention_stats().unwrap().demoted, usize::from(then == Then::Demote));
    }
}

/// A hint with an idle time to live is given to a block in use. Its priority has an effect at once, but
/// its time starts at the release. Until then, another hint can replace it.
#[test]
fn an_idle_time_to_live_of_a_block_in_use_is_the_last_hint() {
    let mut pool = lru(6, 0);
    let table = take(&mut pool, &[0]);
    pool.retain(&table, Retention { ttl: Some(Ttl::Absolute(5.0)), ..priority(90) }).unwrap();
    pool.retain(&table, Retention { ttl: Some(Ttl::Idle(5.0)), ..priority(80) }).unwrap();
    assert_eq!(pool.advance_time(100.0).unwrap(), 0, "it took the absolute one back");
    pool.retain(&table, priority(70)).unwrap();
    pool.release_table(&table).unwrap();
    assert_eq!(pool.advance_time(200.0).unwrap(), 0, "and was taken back itself");
    assert_eq!(pool.retention_stats().unwrap().with_ttl, 0);
}

#[test]
fn only_an_idle_time_to_live_restarts_with_each_use() {
    for (ttl, kept) in [(Ttl::Idle(10.0), true), (Ttl::Absolute(10.0), false)] {
        for then in [Then::Normal, Then::Demote] {
            let mut pool = lru(6, 0);
            let b = singles(&mut pool, 2);
            pool.retain(&b[..1], Retention { ttl: Some(ttl), then, ..priority(80) }).unwrap();
            pool.advance_time(6.0).unwrap();
            let table = take(&mut pool, &[0]); // in use from time 6 on
            pool.advance_time(9.0).unwrap();
            pool.release_table(&table).unwrap(); // in use until time 9
            assert_eq!(pool.advance_time(10.0).unwrap(), usize::from(!kept), "{ttl:?}");
            let stats = pool.retention_stats().unwrap();
            assert_eq!(stats.above_normal, usize::from(kept));
            assert_eq!(stats.demoted, usize::from(!kept && then == Then::Demote));
            assert_eq!(pool.advance_time(18.9).unwrap(), 0);
            assert_eq!(pool.advance_time(19.0).unwrap(), usize::from(kept), "9 and 10 are 19");
            let first = if then == Then::Demote { b[0] } else { b[1] };
            assert_eq!(order(&pool)[0], first.index(), "{ttl:?} {then:?}");
            let stats = pool.retention_stats().unwrap();
            assert_eq!((stats.with_ttl, stats.expired, stats.above_normal), (0, 1, 0));
            assert_eq!(pool.probe(&chain(0, &[0]), 1).unwrap().cached_blocks, 1, "expired is not evicted");
        }
    }
}

#[test]
fn a_hit_comes_too_late_for_a_time_to_live_that_has_run_out() {
    let mut pool = lru(6, 0);
    let b = singles(&mut pool, 1);
    pool.retain(&b, Retention { ttl: Some(Ttl::Idle(10.0)), ..priority(80) }).unwrap();
    assert_eq!(pool.advance_time(10.0).unwrap(), 1);
    serve(&mut pool, &[0]);
    let stats = pool.retention_stats().unwrap();
    assert_eq!((stats.above_normal, stats.with_ttl), (0, 0), "a use does not bring it back");
}

#[test]
fn times_are_numbers_that_do_not_run_backwards() {
    let mut pool = lru(6, 0);
    let b = singles(&mut pool, 1);
    for seconds in [f64::NAN, f64::INFINITY, -1.0] {
        let hint = Retention { ttl: Some(Ttl::Idle(seconds)), ..priority(80) };
        assert!(matches!(pool.retain(&b, hint), Err(PoolError::InvalidConfig { field: "ttl", .. })));
    }
    pool.advance_time(5.0).unwrap();
    assert!(matches!(pool.advance_time(4.9), Err(PoolError::TimeBackwards { .. })));
    assert!(pool.advance_time(f64::NAN).is_err());
    assert_eq!(pool.advance_time(5.0).unwrap(), 0);
    // A clock may start at a negative time.
    let retention = Some(RetentionConfig::default());
    let mut pool =
        BlockPool::new(PoolConfig { eviction: kvpool_policies::LRU, retention, ..Default::default() })
            .unwrap();
    pool.advance_time(-10.0).unwrap();
    let table = pool.allocate(2).unwrap();
    pool.register(&table, &chain_of_16(), 0).unwrap();
    pool.retain(&table[..1], Retention { ttl: Some(Ttl::Absolute(4.0)), ..priority(80) }).unwrap();
    pool.retain(&table[1..], Retention { ttl: Some(Ttl::Absolute(10.0)), ..priority(80) }).unwrap();
    assert_eq!(pool.advance_time(-6.0).unwrap(), 1);
    assert_eq!(pool.advance_time(-0.5).unwrap(), 0);
    assert_eq!(pool.advance_time(-0.0).unwrap(), 1);
}

fn chain_of_16() -> HashChain {
    let digests = [1, 2].map(|byte| kvpool::BlockHash::from_bytes([byte; 32])).to_vec();
    HashChain::from_digests(kvpool::HashAlgorithm::Sha256, 16, 0, digests).unwrap()
}

#[test]
fn retention_ends_with_the_content() {
    for how in ["evicted", "dropped by id", "a new epoch", "never computed"] {
        let mut pool = pool_of(kvpool_policies::LRU, 3, 3, &[limits(1, 0, Some(1))]);
        let b = singles(&mut pool, 3);
        pool.retain(&b, Retention { ttl: Some(Ttl::Idle(5.0)), then: Then::Demote, ..Retention::PINNED })
            .unwrap();
        pool.assign_tenant(&b, TenantId(1)).unwrap();
        assert_eq!(pool.tenant_blocks(TenantId(1)).unwrap(), 3);
        match how {
            "evicted" => {
                let all = pool.allocate(3).unwrap();
                pool.release(&all).unwrap();
            }
            "dropped by id" => assert_eq!(pool.drop_cached(&b).unwrap(), 3),
            "a new epoch" => assert_eq!(pool.bump_epoch().unwrap(), 1),
            _ => {
                pool.reset().unwrap();
                let table = pool.allocate(3).unwrap();
                pool.register(&table, &chain(0, &[5, 6, 7]), 0).unwrap();
                pool.retain(&table, Retention::PINNED).unwrap();
                pool.assign_tenant(&table, TenantId(1)).unwrap();
                pool.release_table(&table).unwrap();
            }
        }
        assert_eq!(pool.tenant_blocks(TenantId(1)).unwrap(), 0, "{how}");
        assert_eq!(pool.retention_stats().unwrap(), RetentionStats::default(), "{how}");
        // The contents of the blocks were removed, so the earlier hints have no effect on new contents.
        let b = singles(&mut pool, 3);
        assert_eq!(order(&pool), indices(&b), "{how}");
        assert_eq!(pool.advance_time(100.0).unwrap(), 0, "{how}");
        assert_eq!(pool.retain(&[b[0]], Retention::PINNED).unwrap(), report(1, 0, 0), "{how}");
    }
}

#[test]
fn hints_on_uncached_content_are_ignored() {
    let mut pool = lru(6, 6);
    let table = pool.allocate(2).unwrap();
    assert_eq!(pool.retain(&table, Retention::PINNED).unwrap(), report(0, 0, 2));
    pool.register(&table, &chain(0, &[0, 0]), 0).unwrap();
    assert_eq!(pool.retain(&table, Retention::PINNED).unwrap(), report(2, 0, 0));
    assert_eq!(pool.retain(&[id(6)], Retention::PINNED).unwrap(), report(0, 0, 1));
    assert!(pool.retain(&[id(7)], Retention::PINNED).is_err());
}

#[test]
fn a_parent_waits_for_its_pinned_child() {
    for &eviction in kvpool_policies::ALL.iter().filter(|&&policy| policy != kvpool_policies::LAST_ACCESS) {
        let mut pool = pool_of(eviction, 8, 1, &[]);
        let parent = serve(&mut pool, &[0, 0, 0]);
        let other = serve(&mut pool, &[1])[0];
        pool.retain(&parent[..2], Retention::END_OF_LIFE).unwrap();
        pool.retain(&parent[2..], Retention::PINNED).unwrap();
        // Only the other block can be evicted before the pinned block. Then the whole chain is evicted,
        // the deepest block first.
        assert_eq!(order(&pool), indices(&[other, parent[2], parent[1], parent[0]]), "{eviction:?}");
        assert_eq!(pool.allocate(5).unwrap()[4], other);
        pool.check_invariants().unwrap();
        // The block that waited for its child remains the next victim of its rank.
        pool.retain(&parent[2..], Retention::NORMAL).unwrap();
        assert_eq!(order(&pool), indices(&[parent[2], parent[1], parent[0]]), "{eviction:?}");
    }
}

/// If two blocks wait for their children, the block that stops waiting last is the next victim. An
/// earlier model wrongly returned each block to the position of its release; the first chain was
/// released first.
#[test]
fn the_block_that_stopped_waiting_last_is_evicted_next() {
    let mut pool = lru(5, 0);
    let [first, second] = [0, 1].map(|at| serve(&mut pool, &[at, at]));
    for tail in [&first[1..], &second[1..]] {
        pool.retain(tail, priority(100)).unwrap();
    }
    // This allocation takes the last free block. Then the policy chooses the first blocks of both
    // chains, which have to wait for the blocks after them.
    let more = pool.allocate(2).unwrap();
    assert_eq!(more[1], first[1]);
    assert_eq!(order(&pool), indices(&[first[0], second[1], second[0]]));
    pool.retain(&second[1..], Retention::END_OF_LIFE).unwrap();
    assert_eq!(order(&pool), indices(&[second[1], second[0], first[0]]));
}

#[test]
fn what_waited_for_its_child_is_the_next_of_its_kind() {
    let ceiling = [limits(1, 0, Some(0))];
    for by_tenant in [false, true] {
        let mut pool = pool_of(kvpool_policies::LRU, 5, 2, if by_tenant { &ceiling } else { &[] });
        let chain = serve(&mut pool, &[0, 0]);
        let say = |pool: &mut BlockPool, blocks: &[BlockId]| {
            if by_tenant {
                pool.assign_tenant(blocks, TenantId(1)).unwrap();
            } else {
                pool.retain(blocks, priority(80)).unwrap();
            }
        };
        let second = serve(&mut pool, &[1]);
        say(&mut pool, &chain[..1]);
        say(&mut pool, &second);
        pool.retain(&chain[1..], Retention::PINNED).unwrap();
        let more = pool.allocate(3).unwrap(); // asks for the first block, which waits for its pinned child
        assert_eq!(more[2], second[0]);
        pool.release(&more).unwrap();
        let third = serve(&mut pool, &[2]);
        say(&mut pool, &third);
        pool.retain(&chain[1..], Retention::END_OF_LIFE).unwrap();
        assert_eq!(order(&pool), indices(&[chain[1], chain[0], third[0]]), "by tenant: {by_tenant}");
    }
}

/// A block that waits for its child is assigned to a tenant. It is the tenant's next victim as soon as
/// it may be evicted. A hint moves the block to the end of its new list like any other block, and it no
/// longer counts as waiting.
#[test]
fn a_tenant_is_assigned_to_a_block_that_waits_for_its_child() {
    for moved in [false, true] {
        let mut pool = pool_of(kvpool_policies::LRU, 6, 1, &[limits(1, 0, Some(0))]);
        let chain = serve(&mut pool, &[0, 0]);
        pool.retain(&chain[1..], Retention::PINNED).unwrap();
        let first = serve(&mut pool, &[1]);
        let others = [serve(&mut pool, &[2]), serve(&mut pool, &[3])].concat();
        let more = pool.allocate(2).unwrap(); // asks for the first block, which waits for its pinned child
        assert_eq!(more[1], first[0]);
        pool.assign_tenant(&others, TenantId(1)).unwrap();
        if moved {
            pool.retain(&chain[..1], priority(80)).unwrap();
        }
        pool.assign_tenant(&chain[..1], TenantId(1)).unwrap();
        assert_eq!(pool.tenant_blocks(TenantId(1)).unwrap(), 3);
        assert_eq!(order(&pool), indices(&[others[0], others[1], chain[1], chain[0]]));
        // The child of the block is removed, so the block no longer has to wait.
        pool.drop_cached(&chain[1..]).unwrap();
        let expected =
            if moved { [others[0], others[1], chain[0]] } else { [chain[0], others[0], others[1]] };
        assert_eq!(order(&pool), indices(&expected), "moved: {moved}");
    }
}

/// In one eviction, the policy is not asked for the same block twice, for any order of blocks.
#[test]
fn an_eviction_parks_a_chain_once() {
    let pops = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let asked = || pops.swap(0, std::sync::atomic::Ordering::Relaxed);
    const LENGTH: usize = 100;
    let policy = strict::Strict::counting(S3Fifo::new(LENGTH + 1).unwrap(), Arc::clone(&pops));
    let mut evictor = Closed::new(policy, LENGTH + 1, None).unwrap();
    for block in 1..=LENGTH {
        let content = Content { key: block as u64, depth: block as u32 };
        evictor.registered(id(block), content, (block > 1).then(|| id(block - 1)));
        evictor.insert(&mut [Candidate { block: id(block), depth: block as u32 }]);
    }
    assert_eq!(evictor.evict(), Some(id(LENGTH)));
    assert_eq!(asked(), LENGTH, "the whole chain waits, and its end goes");
    for last in (1..LENGTH).rev() {
        assert_eq!(evictor.evict(), Some(id(last)));
        assert_eq!(asked(), 1, "what waited is next");
    }
}

#[test]
fn a_tenant_above_its_ceiling_gives_its_own_least_recently_released_first() {
    let mut pool = pool_of(kvpool_policies::LRU, 8, 1, &[limits(1, 0, Some(2))]);
    let b = singles(&mut pool, 6);
    pool.retain(&b[2..3], Retention::PINNED).unwrap();
    pool.retain(&b[3..4], priority(100)).unwrap();
    // Blocks 2 to 5 are assigned to the tenant in one call. Their order of eviction is still that of
    // their release.
    pool.assign_tenant(&b[2..6], TenantId(1)).unwrap();
    assert_eq!(pool.tenant_blocks(TenantId(1)).unwrap(), 4);
    // The tenant has two blocks above its ceiling. Its blocks that are not pinned are evicted first,
    // with any priority, then the other blocks in the order of LRU.
    assert_eq!(order(&pool), indices(&[b[3], b[4], b[0], b[1], b[5], b[2]]));
    serve(&mut pool, &[3]);
    assert_eq!(order(&pool), indices(&[b[4], b[5], b[0], b[1], b[3], b[2]]));
}

#[test]
fn a_tenant_at_its_floor_is_spared_while_other_blocks_are_evictable() {
    let mut pool = pool_of(kvpool_policies::LRU, 8, 1, &[limits(1, 2, None)]);
    let b = singles(&mut pool, 6);
    pool.assign_tenant(&b[..3], TenantId(1)).unwrap();
    pool.retain(&b[4..5], priority(100)).unwrap();
    pool.retain(&b[5..6], Retention::PINNED).unwrap();
    // The tenant has three blocks, one of them above its floor. The least recently released of them is
    // evicted first. Then all other blocks are evicted, the pinned blocks last.
    assert_eq!(order(&pool), indices(&[b[0], b[3], b[4], b[1], b[2], b[5]]));
    // A floor does not protect blocks for which the tenant has hinted an end of life.
    pool.retain(&b[1..2], Retention::END_OF_LIFE).unwrap();
    assert_eq!(order(&pool)[0], b[1].index());
}

#[test]
fn blocks_spared_for_a_floor_are_evictable_when_the_tenant_has_more() {
    for &eviction in kvpool_policies::ALL.iter().filter(|&&policy| policy != kvpool_policies::LAST_ACCESS) {
        let mut pool = pool_of(eviction, 6, 0, &[limits(1, 2, None)]);
        let mine: Vec<_> = [0_u8, 1].iter().map(|&first| serve(&mut pool, &[first])[0]).collect();
        pool.assign_tenant(&mine, TenantId(1)).unwrap();
        let others = take(&mut pool, &[7, 7, 7]);
        serve(&mut pool, &[8]);
        let more = pool.allocate(1).unwrap(); // sets both blocks of the tenant aside, and takes the other one
        assert!(!mine.contains(&more[0]), "{eviction:?}");
        pool.release(&more).unwrap();
        let third = take(&mut pool, &[2]);
        pool.assign_tenant(&third, TenantId(1)).unwrap();
        // The tenant now has three blocks, one of them in use. One of its blocks is evicted before
        // blocks of other tenants.
        pool.retain(&others, priority(100)).unwrap();
        pool.release_table(&others).unwrap();
        let victim = pool.allocate(1).unwrap()[0];
        assert!(mine.contains(&victim), "{eviction:?}: {victim:?}");
        let victim = pool.allocate(1).unwrap()[0];
        assert_eq!(victim, others[2], "{eviction:?}: back at the floor");
        pool.check_invariants().unwrap();
    }
}

/// The block that the floor protected is in use again, so the floor has to protect another block.
#[test]
fn a_floor_spares_at_most_its_number_of_blocks() {
    let mut pool = pool_of(kvpool_policies::LRU, 7, 0, &[limits(1, 2, None)]);
    let mine = singles(&mut pool, 2);
    pool.assign_tenant(&mine, TenantId(1)).unwrap();
    serve(&mut pool, &[8]);
    take(&mut pool, &[7, 7, 7, 7]);
    pool.allocate(1).unwrap(); // sets both blocks aside
    let b = pool.eviction_order();
    assert_eq!(indices(&b), indices(&mine));
    pool.resize(10).unwrap();
    let third = take(&mut pool, &[2]);
    pool.assign_tenant(&third, TenantId(1)).unwrap();
    take(&mut pool, &[0]);
    // The tenant has three blocks, two of them in use. A floor of two does not protect the third block.
    serve(&mut pool, &[9]);
    let victims = order(&pool);
    assert_eq!(victims[0], mine[1].index(), "{victims:?}");
}

/// Policies such as S3-FIFO keep blocks in use in their order. A floor only protects blocks that are
/// not in use. A block in use that was the next victim is not counted among the protected blocks.
#[test]
fn a_block_in_use_is_never_set_aside_for_a_floor() {
    for &eviction in kvpool_policies::ALL.iter().filter(|&&policy| policy != kvpool_policies::LAST_ACCESS) {
        let mut pool = pool_of(eviction, 4, 0, &[limits(1, 2, None)]);
        let b = singles(&mut pool, 3);
        pool.assign_tenant(&b[..2], TenantId(1)).unwrap();
        let held = take(&mut pool, &[0]); // it remains in its queue
        let fourth = take(&mut pool, &[9]);
        let victim = pool.allocate(1).unwrap()[0];
        assert_eq!(victim, b[2], "{eviction:?}: the only one that no floor protects");
        pool.assign_tenant(&fourth, TenantId(1)).unwrap();
        pool.release(&[victim]).unwrap();
        serve(&mut pool, &[8]);
        // The tenant has three blocks, two of them in use, and one above the floor. This block was
        // protected before, but now it is evicted before any block of another tenant.
        pool.retain(&[victim], priority(100)).unwrap();
        assert_eq!(order(&pool), indices(&[b[1], victim]), "{eviction:?}");
        pool.release_table(&held).unwrap();
        pool.release_table(&fourth).unwrap();
        pool.check_invariants().unwrap();
        assert_eq!(pool.allocate(4).unwrap().len(), 4);
    }
}

#[test]
fn the_first_tenant_of_a_block_stays() {
    let mut pool = pool_of(kvpool_policies::LRU, 8, 0, &[limits(1, 0, Some(0)), limits(2, 1, None)]);
    let b = singles(&mut pool, 2);
    pool.assign_tenant(&b[..1], TenantId(5)).unwrap(); // a tenant without limits: no effect
    pool.assign_tenant(&b[..1], TenantId(2)).unwrap();
    pool.assign_tenant(&b[..1], TenantId(1)).unwrap();
    let counts = [1, 2, 5].map(|tenant| pool.tenant_blocks(TenantId(tenant)).unwrap());
    assert_eq!((counts, order(&pool)), ([0, 1, 0], indices(&[b[1], b[0]])));
}

#[test]
fn a_pool_without_retention_refuses_hints_by_name() {
    for &eviction in kvpool_policies::ALL {
        let mut pool = BlockPool::new(PoolConfig { num_blocks: 4, eviction, ..Default::default() }).unwrap();
        assert!(matches!(pool.retain(&[id(1)], Retention::PINNED), Err(PoolError::NoRetention { .. })));
        assert!(matches!(pool.assign_tenant(&[id(1)], TenantId(1)), Err(PoolError::NoRetention { .. })));
        if eviction == kvpool_policies::HAZARD {
            assert_eq!(pool.advance_time(7.0), Ok(0), "ages are measured on this clock");
            assert!(matches!(pool.advance_time(6.0), Err(PoolError::TimeBackwards { .. })));
            assert!(matches!(pool.advance_time(f64::NAN), Err(PoolError::InvalidConfig { .. })));
        } else {
            assert!(matches!(pool.advance_time(0.0), Err(PoolError::NoRetention { .. })));
        }
        assert_eq!(pool.retention_stats(), None);
    }
}

/// An access time belongs to a content. In an earlier version, a block that was released without being
/// computed kept its access time, and its next content was evicted as if it had been used at that time.
#[test]
fn an_uncomputed_block_loses_its_access_time_with_its_content() {
    let eviction = kvpool_policies::LAST_ACCESS;
    let config = PoolConfig { num_blocks: 4, block_size: BLOCK_SIZE, eviction, ..Default::default() };
    let mut pool = BlockPool::new(config).unwrap();
    let first = chain(0, &[0, 0, 0]);
    let blocks = pool.allocate(3).unwrap();
    pool.register(&blocks, &first, 0).unwrap();
    pool.mark_accessed(&blocks, 9.0).unwrap();
    pool.release_table(&blocks).unwrap(); // never computed
    let blocks = pool.allocate(3).unwrap();
    for (&block, nth) in blocks.iter().zip([1_u8, 2, 3]) {
        pool.register(&[block], &chain(0, &[nth]), 0).unwrap();
        pool.mark_computed(&[block]).unwrap();
        pool.mark_accessed(&[block], f64::from(4 - nth)).unwrap();
    }
    pool.release_table(&blocks).unwrap();
    let by_time = indices(&[blocks[2], blocks[1], blocks[0]]);
    assert_eq!(order(&pool), by_time, "the block accessed the longest ago goes first");
}

/// The queues of S3-FIFO contain blocks in use, too. In an earlier version, if an eviction found no
/// victim, it visited all blocks in the queues, and each of them lost one of its counted hits. The
/// simulated caches of the advisor made such evictions.
#[test]
fn an_eviction_with_nothing_to_take_ages_nothing() {
    for kind in Kind::all() {
        let mut evictor = kind.build(5, &RetentionConfig::default());
        for block in 1..4 {
            if evictor.wants_history() {
                let parent = (block > 1).then(|| id(block - 1));
                evictor.registered(id(block), Content { key: block as u64, depth: block as u32 }, parent);
            }
        }
        let mut all: Vec<_> = (1..4).rev().map(|n| Candidate { block: id(n), depth: n as u32 }).collect();
        evictor.insert(&mut all);
        for block in 1..4 {
            assert!(evictor.hit(id(block)), "{kind:?}");
        }
        let before = format!("{evictor:?}");
        assert_eq!((evictor.evict(), evictor.len()), (None, 0), "{kind:?}");
        assert_eq!(format!("{evictor:?}"), before, "{kind:?}");
    }
}

/// Two blocks are set aside because of a floor. The block that was released first was set aside second.
/// When the tenant exceeds its ceiling, this block has to be evicted. The policy has already chosen it
/// before, and is not asked for it again.
#[test]
fn what_a_floor_has_set_aside_the_policy_is_not_asked_for_again() {
    let retention = RetentionConfig { pin_budget: 0, tenants: vec![limits(7, 2, Some(2))] };
    let config = PoolConfig { num_blocks: 5, block_size: BLOCK_SIZE, ..Default::default() };
    let mut pool = BlockPool::with_evictor(config, Kind::StrictS3Fifo.build(5, &retention)).unwrap();
    let b = singles(&mut pool, 3);
    pool.assign_tenant(&b[..2], TenantId(7)).unwrap();
    serve(&mut pool, &[0]);
    let held = take(&mut pool, &[3]);
    assert!(take(&mut pool, &[4]).contains(&b[2]), "the two before it were set aside");
    pool.assign_tenant(&held, TenantId(7)).unwrap();
    assert_eq!(pool.allocate(1).unwrap(), [b[1]], "the tenant's least recently released");
    assert_eq!(order(&pool), indices(&b[..1]));
}
