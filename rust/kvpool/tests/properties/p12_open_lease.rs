//! Property 12: a block with an open lease is never evicted, with any policy and any hints. Lookups can
//! still hit it. A lease is a reference, a fence, the source of a planned copy, or the source or
//! destination of a swap.
//!
//! In trtllm#12542 and sglang#31427, a block was evicted while it was being copied, or could not be hit
//! during that time.
//!
//! An implementation fails this test if a block can be evicted as soon as no request holds it, or if a
//! block is removed from the index during a transfer.
//!
//! `evictors/leases.rs` and the laboratory test all kinds of leases with random holders and every
//! policy.

use super::*;
use kvpool::retention::{Retention, RetentionConfig};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Lease {
    Held,
    HeldTwice,
    Fence,
    FenceOfAHit,
    SourceOfACopy,
    SourceOfASwap,
    DestinationOfASwap,
    SourceOfASwapThatIsTakenBack,
}

const LEASES: [Lease; 8] = [
    Lease::Held,
    Lease::HeldTwice,
    Lease::Fence,
    Lease::FenceOfAHit,
    Lease::SourceOfACopy,
    Lease::SourceOfASwap,
    Lease::DestinationOfASwap,
    Lease::SourceOfASwapThatIsTakenBack,
];

const STEP: u64 = 4;

/// Opens a lease on the oldest blocks of the device's cache. Returns the tier of the leased blocks and
/// their ids there.
fn open(lease: Lease, tiers: &mut Tiers, table: &[BlockId]) -> (usize, Vec<BlockId>, Option<SwapId>) {
    let pool = tiers.pool_mut(0).unwrap();
    match lease {
        Lease::Held => {}
        Lease::HeldTwice => pool.acquire(table).unwrap(),
        Lease::Fence => pool.release_after(table, STEP).unwrap(),
        Lease::FenceOfAHit => {
            pool.release_table(table).unwrap();
            assert_eq!(pool.match_and_acquire(&chain(&[1, 2, 3, 4]), 2).unwrap(), table);
            pool.release_after(table, STEP).unwrap();
        }
        Lease::SourceOfACopy => {
            for &block in table {
                assert_ne!(tiers.copy_on_write(0, block).unwrap(), block);
            }
        }
        Lease::SourceOfASwap | Lease::SourceOfASwapThatIsTakenBack => {
            return (0, table.to_vec(), Some(tiers.begin_swap(table, 0, 1).unwrap()));
        }
        Lease::DestinationOfASwap => {
            let swap = tiers.begin_swap(table, 0, 1).unwrap();
            let mapping = tiers.swap_mapping(swap).unwrap();
            return (1, mapping.iter().map(|&(_, destination, _)| destination).collect(), Some(swap));
        }
    }
    (0, table.to_vec(), None)
}

/// Ends the lease.
fn close(lease: Lease, tiers: &mut Tiers, table: &[BlockId], swap: Option<SwapId>) {
    match lease {
        Lease::Held => tiers.pool_mut(0).unwrap().release_table(table).unwrap(),
        Lease::HeldTwice => {
            let twice = [table, table].concat();
            tiers.pool_mut(0).unwrap().release_table(&twice).unwrap();
        }
        Lease::Fence | Lease::FenceOfAHit => {
            assert_eq!(tiers.pool_mut(0).unwrap().complete_step(STEP).unwrap(), 2);
        }
        Lease::SourceOfACopy => assert_eq!(tiers.take_plan().unwrap().len(), 2),
        Lease::SourceOfASwap | Lease::DestinationOfASwap => {
            assert_eq!(tiers.take_plan().unwrap().len(), 2);
            let moved = tiers.complete_swap(swap.unwrap()).unwrap();
            let there: Vec<_> = moved.iter().map(|&(_, destination)| destination).collect();
            tiers.pool_mut(1).unwrap().release_table(&there).unwrap();
        }
        Lease::SourceOfASwapThatIsTakenBack => {
            tiers.abort_swap(swap.unwrap()).unwrap();
            tiers.pool_mut(0).unwrap().release_table(table).unwrap();
        }
    }
}

/// Tests trtllm#12542 and sglang#31427 with every policy, with and without hints that make the leased
/// blocks the first victims.
#[test]
fn property_12_a_leased_block_is_not_evicted_and_can_be_hit() {
    for &eviction in kvpool_policies::ALL {
        for retention in [None, Some(RetentionConfig::default())] {
            if eviction.build(8, retention.as_ref()).is_err() {
                continue; // a policy without hints
            }
            for lease in LEASES {
                under(eviction, retention.as_ref(), lease);
            }
        }
    }
}

fn under(eviction: EvictionPolicy, retention: Option<&RetentionConfig>, lease: Lease) {
    let what = format!("{eviction:?}, {lease:?}, hints: {}", retention.is_some());
    let hints = retention.is_some();
    let tier = || PoolConfig {
        num_blocks: 9,
        block_size: B,
        eviction,
        retention: retention.cloned(),
        ..Default::default()
    };
    let mut tiers = Tiers::new(vec![tier(), tier()]).unwrap();
    // The leased blocks are the oldest and the least used blocks. According to the hints, they will not
    // be used again.
    let pool = tiers.pool_mut(0).unwrap();
    let table = fill(pool, &[1, 2, 3, 4]);
    if hints {
        pool.retain(&table, Retention::END_OF_LIFE).unwrap();
    }
    if eviction == kvpool_policies::LAST_ACCESS {
        pool.mark_accessed(&table, 0.0).unwrap();
    }
    let (tier, leased, swap) = open(lease, &mut tiers, &table);
    let is_destination = lease == Lease::DestinationOfASwap;

    let pool = tiers.pool_mut(tier).unwrap();
    for round in 0..3 {
        // Other requests fill the cache, hit cached blocks, and allocate all available blocks.
        for first in [50, 60] {
            let room = pool.num_available() / 2;
            let other = cache(pool, &(first..first + (B * room) as u32).collect::<Vec<_>>());
            assert!(other.iter().all(|block| !leased.contains(block)), "{what}: a victim in round {round}");
        }
        let all = pool.allocate(pool.num_available()).unwrap();
        assert!(!all.is_empty() && all.iter().all(|block| !leased.contains(block)), "{what}: {all:?}");
        assert!(pool.allocate(1).is_err(), "{what}");
        // A hit, and its release, do not end the lease.
        let hit = pool.match_and_acquire(&chain(&[1, 2, 3, 4]), 2).unwrap();
        if is_destination {
            assert!(hit.is_empty(), "{what}: its KV is not there yet");
        } else {
            assert_eq!(hit, leased, "{what}: the hit fails");
        }
        pool.release_table(&hit).unwrap();
        assert!(pool.allocate(1).is_err(), "{what}: a hit that ended took the lease along");
        pool.release(&all).unwrap();
        pool.check_invariants().unwrap();
    }

    // After the lease ends, the blocks can be allocated like all other blocks.
    let before = tiers.pool(tier).unwrap().num_available();
    close(lease, &mut tiers, &table, swap);
    tiers.check_invariants().unwrap();
    let pool = tiers.pool_mut(tier).unwrap();
    assert_eq!(pool.num_available(), before + 2, "{what}");
    let all = pool.allocate(before + 2).unwrap();
    assert!(leased.iter().all(|block| all.contains(block)), "{what}");
}

/// Removing the content of a leased block by id only removes its entry in the index. The block keeps
/// its lease.
#[test]
fn property_12_an_eviction_by_id_leaves_the_lease_open() {
    for lease in LEASES {
        let tier = || PoolConfig { num_blocks: 9, block_size: B, ..Default::default() };
        let mut tiers = Tiers::new(vec![tier(), tier()]).unwrap();
        let table = fill(tiers.pool_mut(0).unwrap(), &[1, 2, 3, 4]);
        let (tier, leased, swap) = open(lease, &mut tiers, &table);
        let pool = tiers.pool_mut(tier).unwrap();
        pool.drop_cached(&leased).unwrap();
        assert!(pool.match_and_acquire(&chain(&[1, 2, 3, 4]), 2).unwrap().is_empty());
        let all = pool.allocate(pool.num_available()).unwrap();
        assert!(all.iter().all(|block| !leased.contains(block)), "{lease:?}: {all:?}");
        tiers.check_invariants().unwrap();
        close(lease, &mut tiers, &table, swap);
        tiers.check_invariants().unwrap();
    }
}
