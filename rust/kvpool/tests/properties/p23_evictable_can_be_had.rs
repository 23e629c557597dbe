//! Property 23: if n blocks are evictable, n blocks can be allocated, with any policy and any hints.
//! Expired hints have no effect, and the number of pinned blocks is at most the budget.
//!
//! In vllm#55461, mooncake#2286 and mooncake#3028, blocks with hints were counted as evictable, but
//! were never evicted.
//!
//! An implementation fails this test if a pin forbids an eviction instead of delaying it.
//!
//! `evictors/exact.rs` tests expired and random hints.

use super::*;
use kvpool::retention::{Keep, Retention, RetentionConfig, TenantId, TenantLimits, Then, Ttl};

/// In vllm#55461, mooncake#2286 and #3028, blocks that were reported as evictable could not be evicted.
/// With every policy, and after random hits, shares, fences and removals, all available blocks can be
/// allocated, together or one by one.
#[test]
fn property_23_every_evictable_block_can_be_allocated() {
    for &eviction in kvpool_policies::ALL {
        for duplicates in [DuplicatePolicy::Keep, DuplicatePolicy::DropOnRelease] {
            for n in 1..=12 {
                for singly in [false, true] {
                    let config = PoolConfig {
                        num_blocks: 13,
                        block_size: B,
                        eviction,
                        duplicates,
                        ..Default::default()
                    };
                    let mut pool = BlockPool::new(config).unwrap();
                    let first = fill(&mut pool, &[1, 2, 3, 4, 5, 6]);
                    let copy = fill(&mut pool, &[1, 2, 3, 4]);
                    let other = fill(&mut pool, &[7, 8, 9, 10]);
                    pool.release(&[first[2], first[0], first[1]]).unwrap();
                    pool.release_after(&copy, 1).unwrap();
                    let hit = pool.match_and_acquire(&chain(&[1, 2]), 1).unwrap();
                    pool.release_table(&other).unwrap();
                    pool.complete_step(1).unwrap();
                    pool.drop_cached(&other[..1]).unwrap();
                    pool.release_table(&hit).unwrap();
                    assert_eq!(pool.num_available(), 12);
                    assert!(pool.stats().cached_free >= 4);
                    let got: BTreeSet<_> = if singly {
                        (0..n).flat_map(|_| pool.allocate(1).unwrap()).collect()
                    } else {
                        pool.allocate(n).unwrap().into_iter().collect()
                    };
                    assert_eq!(
                        (got.len(), pool.num_available()),
                        (n, 12 - n),
                        "{eviction:?}, {duplicates:?}"
                    );
                    pool.check_invariants().unwrap();
                }
            }
        }
    }
}

/// Tests vllm#55461 and mooncake#2286: every block has a pin hint that has not expired, and belongs to
/// a tenant below its floor. All blocks can still be allocated, and the number of pinned blocks never
/// exceeds the budget.
#[test]
fn property_23_hints_forbid_no_allocation_and_stay_within_their_budget() {
    for &eviction in kvpool_policies::ALL {
        for pin_budget in [0, 1, 4, 8] {
            for floor in 0..=8 - pin_budget {
                let tenants = vec![TenantLimits { tenant: TenantId(5), floor, ceiling: None }];
                let retention = Some(RetentionConfig { pin_budget, tenants });
                if eviction.build(9, retention.as_ref()).is_err() {
                    continue; // a policy without hints
                }
                let config =
                    PoolConfig { num_blocks: 9, block_size: B, eviction, retention, ..Default::default() };
                let mut pool = BlockPool::new(config).unwrap();
                let tables = [fill(&mut pool, &[1, 2, 3, 4, 5, 6]), fill(&mut pool, &[7, 8, 9, 10])];
                let mut accepted = 0;
                for table in &tables {
                    pool.assign_tenant(table, TenantId(5)).unwrap();
                    for retention in [Retention::PINNED, Retention::PINNED] {
                        let report = pool.retain(table, retention).unwrap();
                        assert_eq!(report.accepted + report.clipped + report.ignored, table.len());
                        accepted = accepted.max(report.accepted);
                        let pinned = pool.retention_stats().unwrap().pinned;
                        assert!(pinned <= pin_budget, "{eviction:?}: {pinned} pinned, {pin_budget} allowed");
                    }
                }
                assert!(accepted <= pin_budget.max(tables[0].len()));
                tables.iter().for_each(|table| pool.release_table(table).unwrap());
                assert_eq!(pool.num_available(), 8);
                for n in (1..=8).rev() {
                    let got = pool.allocate(n).unwrap();
                    assert_eq!(got.len(), n, "{eviction:?}, {pin_budget} pins, floor {floor}");
                    pool.release(&got).unwrap();
                }
                pool.check_invariants().unwrap();
            }
        }
    }
}

/// In mooncake#3028, expired hints still had an effect. After a hint ends, its block must be evicted as
/// if it had no hint, and its pin must be available for other blocks.
#[test]
fn property_23_an_expired_hint_has_no_effect() {
    for &eviction in kvpool_policies::ALL {
        for ttl in [Ttl::Absolute(10.0), Ttl::Idle(10.0)] {
            let retention = Some(RetentionConfig { pin_budget: 1, ..Default::default() });
            if eviction.build(9, retention.as_ref()).is_err() {
                continue;
            }
            let make = || {
                let retention = retention.clone();
                let config =
                    PoolConfig { num_blocks: 5, block_size: B, eviction, retention, ..Default::default() };
                let mut pool = BlockPool::new(config).unwrap();
                pool.advance_time(0.0).unwrap();
                let tables: Vec<_> =
                    [[1, 2], [3, 4], [5, 6], [7, 8]].map(|tokens| fill(&mut pool, &tokens)).into();
                (pool, tables)
            };
            let (mut pool, tables) = make();
            let (mut plain, _) = make();
            // In a second pool, the blocks get the same pin without an end, and a call ends it.
            // Afterwards both pools have to behave in the same way.
            let pinned = Retention { keep: Keep::Pinned, ttl: Some(ttl), then: Then::Normal };
            assert_eq!(pool.retain(&tables[0], pinned).unwrap().accepted, 1);
            plain.retain(&tables[0], Retention::PINNED).unwrap();
            for one in [&mut pool, &mut plain] {
                tables.iter().for_each(|table| one.release_table(table).unwrap());
                one.advance_time(9.0).unwrap();
            }
            assert_eq!(pool.eviction_order(), plain.eviction_order(), "{eviction:?}: as long as it holds");
            assert_eq!(pool.eviction_order().last(), tables[0].first(), "{eviction:?}: the pin is last");
            assert_eq!(pool.advance_time(11.0).unwrap(), 1);
            plain.advance_time(11.0).unwrap();
            plain.retain(&tables[0], Retention::NORMAL).unwrap();
            assert_eq!(
                pool.eviction_order(),
                plain.eviction_order(),
                "{eviction:?}: as if it had been taken back"
            );
            assert_eq!(pool.retention_stats().unwrap().pinned, 0);
            assert_eq!(pool.retain(&tables[1], Retention::PINNED).unwrap().accepted, 1, "its budget is free");
            assert_eq!(pool.allocate(4).unwrap().len(), 4);
            pool.check_invariants().unwrap();
        }
    }
}
