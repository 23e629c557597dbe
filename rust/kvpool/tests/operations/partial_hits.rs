//! Tests hits that end inside a block. They are compared with the prefixes that requests have computed,
//! token by token.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use kvpool::groups::{GroupKind, GroupSpec, Groups};
use kvpool::{BlockId, CacheManager, ExtraKeys, ManagerConfig, MultimodalItem, Place, PoolError, Until};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};

const UNIT: usize = 2;

fn full(block_tokens: usize) -> GroupSpec {
    GroupSpec { partial_hits: true, ..GroupSpec::new(GroupKind::Full, block_tokens) }
}

fn manager(specs: Vec<GroupSpec>, num_blocks: usize) -> CacheManager {
    let groups = Some(Groups::new(specs, Some(UNIT)).unwrap());
    CacheManager::new(ManagerConfig { num_blocks, block_size: UNIT, groups, ..ManagerConfig::default() })
        .unwrap()
}

fn admit(manager: &mut CacheManager, id: i64, tokens: &[u32]) -> usize {
    let prompt = manager.prepare(tokens, ExtraKeys::default()).unwrap();
    manager.admit(id, prompt).unwrap().cached_tokens
}

/// Runs a request that computes its whole prompt and ends.
fn run(manager: &mut CacheManager, tokens: &[u32]) -> usize {
    let hit = admit(manager, -1, tokens);
    manager.take_plan().unwrap();
    manager.commit(-1, tokens.len()).unwrap();
    manager.release(-1, Until::Now).unwrap();
    manager.check_invariants().unwrap();
    hit
}

fn counting(n: usize) -> Vec<u32> {
    (0..n as u32).collect()
}

/// A hit ends inside a block if a conversation continues after its first turn, or if two prompts begin
/// to differ there.
#[test]
fn a_hit_ends_inside_the_block_that_was_left_unfinished_or_that_turns_off() {
    let mut manager = manager(vec![full(8)], 32);
    assert_eq!(run(&mut manager, &counting(21)), 0);
    // The hit contains all tokens but the last, rounded down to units. The last block of the first
    // request contains 5 tokens of this prompt.
    assert_eq!(run(&mut manager, &counting(21)), 20);
    assert_eq!(run(&mut manager, &counting(40)), 20);
    // The third block is full now. The next prompt differs from the middle of this block on.
    let mut other = counting(30);
    other[23] = 99;
    assert_eq!(run(&mut manager, &other), 22);
    other[0] = 99;
    assert_eq!(run(&mut manager, &other), 0);
}

/// After a truncation, the last block of a request may be registered although it is not full.
#[test]
fn a_truncated_request_ends_inside_a_registered_block() {
    let mut manager = manager(vec![full(8)], 32);
    admit(&mut manager, 1, &counting(16));
    manager.commit(1, 16).unwrap();
    manager.truncate(1, 12, Until::Now).unwrap();
    manager.release(1, Until::Now).unwrap();
    manager.check_invariants().unwrap();
    assert_eq!(admit(&mut manager, 2, &counting(17)), 16);
}

/// Another request holds the block in which the hit ends. The new request gets a copy of it, and
/// allocates one block less than it would without the hit.
#[test]
fn the_block_that_a_hit_ends_in_is_copied() {
    let mut manager = manager(vec![full(8)], 32);
    run(&mut manager, &counting(16));
    let cached = manager.pool().eviction_order();
    assert_eq!(admit(&mut manager, 1, &counting(13)), 12);
    let table = manager.block_table(1).unwrap().to_vec();
    assert_eq!(table.len(), 2);
    assert!(cached.contains(&table[0]) && !cached.contains(&table[1]));
    let plan = manager.take_plan().unwrap();
    let ends: Vec<(Place, Place)> = plan.transfers().iter().map(|copy| (copy.src, copy.dst)).collect();
    let source = cached.iter().copied().find(|&block| block != table[0]).unwrap();
    assert_eq!(ends, [(Place { tier: 0, block: source }, Place { tier: 0, block: table[1] })]);
    manager.check_invariants().unwrap();
}

/// Names inside a block are removed with the block. Otherwise a lookup of such a name would return a
/// block with other tokens.
#[test]
fn partial_content_of_a_block_is_dropped_with_it() {
    for forget in [
        |manager: &mut CacheManager| assert_eq!(manager.evict(usize::MAX).unwrap().len(), 3),
        |manager: &mut CacheManager| assert_eq!(manager.reset().unwrap(), 3),
        |manager: &mut CacheManager| assert_eq!(manager.bump_epoch().unwrap(), 1),
        |manager: &mut CacheManager| {
            let all: Vec<BlockId> = manager.pool().eviction_order();
            manager.drop_cached(&all).unwrap();
        },
        // Other contents evict every block.
        |manager: &mut CacheManager| {
            let other: Vec<u32> = (500..500 + 7 * 8).collect();
            assert_eq!(run(manager, &other), 0);
        },
    ] {
        let mut manager = manager(vec![full(8)], 8);
        run(&mut manager, &counting(21));
        forget(&mut manager);
        assert_eq!(run(&mut manager, &counting(21)), 0);
    }
}

/// The same digest inside blocks of two sizes means two contents.
#[test]
fn groups_do_not_share_partial_blocks() {
    let mut manager = manager(vec![full(8), full(4)], 64);
    run(&mut manager, &counting(15));
    let prompt = manager.prepare(&counting(15), ExtraKeys::default()).unwrap();
    let admission = manager.admit(1, prompt).unwrap();
    assert_eq!(admission.cached_tokens, 14);
    let plan = manager.take_plan().unwrap();
    assert_eq!(plan.len(), 2, "a block of each group");
    let second = &admission.other_tables[0];
    assert_eq!(second.len(), 4);
    let copied: Vec<BlockId> = plan.transfers().iter().map(|copy| copy.dst.block).collect();
    assert_eq!(copied, [*admission.block_ids.last().unwrap(), *second.last().unwrap()]);
}

/// An image that begins inside a block is part of the names of its units.
#[test]
fn another_image_inside_the_block_is_another_prefix() {
    let mut manager = manager(vec![full(8)], 32);
    let item = |name: u8| MultimodalItem { identifier: [name; 32].into(), offset: 5, length: 6 };
    let with = |manager: &CacheManager, name: u8| {
        let extra = ExtraKeys { multimodal: vec![item(name)], ..ExtraKeys::default() };
        manager.prepare(&counting(21), extra).unwrap()
    };
    let first = with(&manager, 1);
    manager.admit(1, first).unwrap();
    manager.commit(1, 21).unwrap();
    let (same, other) = (with(&manager, 1), with(&manager, 2));
    assert_eq!(manager.admit(2, same).unwrap().cached_tokens, 16);
    assert_eq!(manager.admit(3, other).unwrap().cached_tokens, 4);
}

#[test]
fn kinds_whose_hits_cannot_end_inside_a_block_refuse_it() {
    for spec in [
        GroupSpec { partial_hits: true, ..GroupSpec::new(GroupKind::Sliding { window: 9 }, 8) },
        GroupSpec { partial_hits: true, ..GroupSpec::new(GroupKind::State, 8) },
        GroupSpec { margin: 1, ..full(8) },
    ] {
        let refused = Groups::new(vec![spec], Some(UNIT)).unwrap_err();
        assert!(matches!(refused, PoolError::InvalidConfig { .. }), "{refused}");
        assert!(refused.to_string().contains("partial_hits"), "{refused}");
    }
}

proptest! {
    #![proptest_config(Config {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..Config::default()
    })]

    /// If nothing is evicted, a hit is as long as the longest prefix that any request has computed,
    /// rounded down to units. The boundaries of blocks have no effect.
    #[test]
    fn a_hit_is_the_longest_computed_prefix(
        size in prop_oneof![Just(4_usize), Just(6), Just(16)],
        prompts in prop::collection::vec((0_usize..40, 0_u32..3, 1_usize..50, any::<bool>()), 1..12),
    ) {
        let mut manager = manager(vec![full(size)], 400);
        let mut computed: Vec<Vec<u32>> = Vec::new();
        for (nth, (turn, way, tokens, ends)) in prompts.into_iter().enumerate() {
            let token = |at: usize| if at < turn { at as u32 } else { 100 * (way + 1) + at as u32 };
            let prompt: Vec<u32> = (0..tokens).map(token).collect();
            let shared = |known: &Vec<u32>| known.iter().zip(&prompt).take_while(|(a, b)| a == b).count();
            let longest = computed.iter().map(shared).max().unwrap_or(0).min(tokens - 1);
            let hit = admit(&mut manager, nth as i64, &prompt);
            prop_assert_eq!(hit, longest / UNIT * UNIT);
            manager.take_plan().unwrap();
            manager.commit(nth as i64, tokens).unwrap();
            // Only the full blocks of a running request are in the index, because the request continues
            // to write to the next block.
            let known = if ends { tokens } else { tokens / size * size };
            if ends {
                manager.release(nth as i64, Until::Now).unwrap();
            }
            manager.check_invariants().unwrap();
            computed.push(prompt[..known].to_vec());
        }
    }
}

/// After a swap out and in, hits can end inside a block as before.
#[test]
fn a_hit_ends_inside_a_block_that_a_swap_has_brought() {
    let groups = Some(Groups::new(vec![full(8)], Some(UNIT)).unwrap());
    let config =
        ManagerConfig { num_blocks: 9, block_size: UNIT, host_blocks: 9, groups, ..ManagerConfig::default() };
    let mut manager = CacheManager::new(config).unwrap();
    admit(&mut manager, 1, &counting(21));
    manager.commit(1, 21).unwrap();
    for way in [CacheManager::begin_swap_out, CacheManager::begin_swap_in] {
        let swap = way(&mut manager, &[1.into()]).unwrap();
        manager.take_plan().unwrap();
        manager.complete_swap(swap).unwrap();
        manager.check_invariants().unwrap();
        manager.evict(usize::MAX).unwrap();
    }
    assert_eq!(run(&mut manager, &counting(14)), 12);
    manager.release(1, Until::Now).unwrap();
    assert_eq!(run(&mut manager, &counting(21)), 20);
}
