//! The default sizes of observers depend on the number of hash units of a pool, not on the size of its
//! blocks.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

use kvpool::groups::{GroupKind, GroupSpec, Groups};
use kvpool::{CacheManager, ExtraKeys, ManagerConfig};
use kvpool_observe::{AdvisorConfig, ExplainConfig, ManagerWatch, ManagerWatchConfig};

/// The numbers of tokens of a hash unit and of a large block.
const UNIT: usize = 4;
const LARGE: usize = 128;
/// The number of large blocks in each pool, and the number of tokens of a prompt: two large blocks and
/// a remainder.
const BLOCKS: usize = 100;
const PROMPT: usize = 2 * LARGE + 1;

fn full() -> GroupSpec {
    GroupSpec::new(GroupKind::Full, LARGE)
}

fn watched(num_blocks: usize, specs: Option<Vec<GroupSpec>>, watch: &ManagerWatchConfig) -> CacheManager {
    let groups = specs.map(|specs| Groups::new(specs, Some(UNIT)).unwrap());
    let config = ManagerConfig { num_blocks: num_blocks + 1, block_size: UNIT, groups, ..Default::default() };
    CacheManager::new(config).unwrap().watched(watch).unwrap()
}

fn run(manager: &mut CacheManager, request: i64, prompt: u32) {
    let tokens: Vec<u32> = (prompt * 1000..).take(PROMPT).collect();
    manager.admit(request, manager.prepare(&tokens, ExtraKeys::default()).unwrap()).unwrap();
    manager.commit(request, PROMPT).unwrap();
    manager.release(request, None).unwrap();
}

#[test]
fn large_blocks_are_remembered_as_long_as_small_ones() {
    let sliding = GroupSpec::new(GroupKind::Sliding { window: LARGE }, LARGE);
    let small = (BLOCKS * LARGE / UNIT, None);
    let large = [
        vec![GroupSpec { partial_hits: true, ..full() }],
        vec![full()],
        vec![full(), full()],
        vec![full(), sliding],
        vec![sliding],
    ];
    for (blocks, specs) in large.map(|specs| (BLOCKS, Some(specs))).into_iter().chain([small]) {
        let explain = Some(ExplainConfig::default());
        let watch = ManagerWatchConfig { explain, ..Default::default() };
        let mut manager = watched(blocks, specs.clone(), &watch);
        (0..80).for_each(|prompt| run(&mut manager, i64::from(prompt), prompt));
        run(&mut manager, 100, 5);
        let explanation = manager.explain(100).unwrap();
        let ends = explanation.groups.iter().flat_map(|group| &group.ends);
        let reasons: Vec<_> = explanation.spans.iter().chain(ends).map(|span| span.reason.name()).collect();
        assert!(!reasons.contains(&"not-remembered"), "{specs:?}: {reasons:?}");
        assert!(reasons.contains(&"evicted"), "{specs:?}: {reasons:?}");
    }
}

/// Two pools that hold the same number of tokens get the same advice for the same traffic. The cache
/// sizes in the advice are in blocks of the pool.
#[test]
fn advice_is_the_same_for_large_and_small_blocks() {
    let advised = |blocks, specs| {
        let watch = ManagerWatchConfig { advisor: Some(AdvisorConfig::default()), ..Default::default() };
        let mut manager = watched(blocks, specs, &watch);
        (0..400).for_each(|turn| run(&mut manager, i64::from(turn), (turn * turn) % 70));
        manager.resize(2 * blocks + 1).unwrap();
        (0..400).for_each(|turn| run(&mut manager, i64::from(turn), (turn * turn) % 70));
        manager.advice().unwrap()
    };
    let per_block = LARGE / UNIT;
    let small = advised(BLOCKS * per_block, None);
    for specs in [vec![GroupSpec { partial_hits: true, ..full() }], vec![full()]] {
        let large = advised(BLOCKS, Some(specs));
        assert_eq!((large.capacity_blocks, small.capacity_blocks), (200, 6400));
        assert_eq!((large.rate, large.window), (small.rate, small.window));
        let blocks = |point: &kvpool_observe::advisor::CurvePoint| point.blocks;
        let sizes: Vec<_> = large.curve.iter().map(|point| blocks(point) * per_block as u64).collect();
        assert_eq!(sizes, small.curve.iter().map(blocks).collect::<Vec<_>>());
        let rates = |curve: &[kvpool_observe::advisor::CurvePoint]| -> Vec<_> {
            curve.iter().map(|point| point.block_hit_rate).collect()
        };
        assert_eq!(rates(&large.curve), rates(&small.curve));
        let policies = |advice: &kvpool_observe::advisor::Advice| -> Vec<_> {
            advice.policies.iter().map(|policy| (policy.policy, policy.block_hit_rate)).collect()
        };
        assert_eq!(policies(&large), policies(&small));
    }
}
