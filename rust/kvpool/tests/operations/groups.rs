//! Tests the rules of groups: which blocks a hit needs, which blocks no later token reads, and which
//! blocks are kept. The results are compared with the tokens that the layers read, token by token.
//!
//! The brute-force search tries every length of a hit. For each, it checks whether every token that a
//! layer reads at the end of the hit is in a cached block. It does not use the functions under test.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kvpool::groups::{Blocks, Boundaries, Cached, GroupHit, GroupKind, GroupSpec, Groups, Keep, Tokens};
use kvpool::{
    BlockHasher, BlockId, BlockPool, ExtraKeys, HashCursor, HasherConfig, NULL_BLOCK, Name, PoolConfig,
    PoolError,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// A simulated cache, with the cached blocks as (group, position). It counts the lookups of each block.
#[derive(Clone, Debug, Default)]
struct Cache {
    blocks: BTreeSet<(usize, usize)>,
    asked: BTreeMap<(usize, usize), usize>,
}

fn id(group: usize, at: usize) -> BlockId {
    BlockId::new((1000 * group + at + 1) as u32)
}

impl Cached for Cache {
    fn find_run(&mut self, group: usize, first: Blocks, end: Blocks, out: &mut Vec<BlockId>) {
        for at in first.0..end.0 {
            *self.asked.entry((group, at)).or_default() += 1;
            if !self.blocks.contains(&(group, at)) {
                break;
            }
            out.push(id(group, at));
        }
    }
}

/// Returns whether the token at position `at` reads the token at position `earlier`, according to the
/// definition of the layer.
fn reads(spec: &GroupSpec, at: usize, earlier: usize) -> bool {
    match spec.kind {
        GroupKind::Full => true,
        GroupKind::Sliding { window } => at - earlier < window || earlier < spec.sink_tokens,
        GroupKind::Chunked { chunk } => at / chunk == earlier / chunk,
        GroupKind::State => earlier + 1 == at,
        _ => false,
    }
}

/// Whether a hit needs blocks of a group with this specification.
fn is_cached(spec: &GroupSpec) -> bool {
    spec.kind != GroupKind::Cross && spec.keep != Keep::Nothing
}

/// Returns the blocks of a group that a hit of this length needs: the blocks with a token that is read
/// at the end of the hit, and the margin.
fn needed(spec: &GroupSpec, length: usize) -> BTreeSet<usize> {
    if !is_cached(spec) {
        return BTreeSet::new();
    }
    let read = (0..length).filter(|&token| reads(spec, length, token)).map(|token| token / spec.block_tokens);
    let behind = if length > 0 { spec.margin } else { 0 };
    let margin = (0..behind).map(|more| length / spec.block_tokens + more);
    read.chain(margin).collect()
}

fn is_legal(groups: &Groups, cache: &Cache, limit: usize, length: usize) -> bool {
    groups.specs().iter().enumerate().all(|(group, spec)| {
        !is_cached(spec)
            || length.is_multiple_of(spec.block_tokens)
                && needed(spec, length)
                    .iter()
                    .all(|&at| cache.blocks.contains(&(group, at)) && (at + 1) * spec.block_tokens <= limit)
    })
}

/// Returns the length of the longest hit by brute force. 0 if no group caches anything.
fn brute_force(groups: &Groups, cache: &Cache, limit: usize) -> usize {
    if !groups.specs().iter().any(is_cached) {
        return 0;
    }
    (0..=limit).rev().find(|&length| is_legal(groups, cache, limit, length)).unwrap()
}

/// Finds the longest hit as vLLM does. Each group in turn shortens the hit to a length for which it has
/// all blocks, until no group shortens it any more.
fn fixed_point(groups: &Groups, cache: &Cache, limit: usize) -> usize {
    let caching = || groups.specs().iter().enumerate().filter(|(_, spec)| is_cached(spec));
    let mut length = if caching().next().is_some() { limit } else { 0 };
    loop {
        let before = length;
        for (group, spec) in caching() {
            let alone = Groups::new(vec![*spec], None).unwrap();
            let own = Cache {
                blocks: cache.blocks.iter().filter(|(of, _)| *of == group).map(|&(_, at)| (0, at)).collect(),
                ..Cache::default()
            };
            let can = |&length: &usize| {
                length.is_multiple_of(groups.alignment().0) && is_legal(&alone, &own, limit, length)
            };
            length = (0..=length).rev().find(can).unwrap();
        }
        if length == before {
            return length;
        }
    }
}

fn kind() -> impl Strategy<Value = GroupKind> {
    prop_oneof![
        3 => Just(GroupKind::Full),
        3 => (1_usize..20).prop_map(|window| GroupKind::Sliding { window }),
        2 => (1_usize..12).prop_map(|chunk| GroupKind::Chunked { chunk }),
        2 => Just(GroupKind::State),
        1 => Just(GroupKind::Cross),
    ]
}

fn spec() -> impl Strategy<Value = GroupSpec> {
    let keep = prop_oneof![
        3 => Just(Keep::All),
        3 => (1_usize..30).prop_map(Keep::Every),
        3 => Just(Keep::Junctions),
        1 => Just(Keep::Nothing),
    ];
    (
        kind(),
        prop_oneof![Just(1_usize), Just(2), Just(4), Just(3)],
        keep,
        prop_oneof![4 => Just(0_usize), 1 => Just(1)],
        prop_oneof![2 => Just(0_usize), 1 => 1_usize..10],
    )
        .prop_map(|(kind, block_tokens, keep, margin, sinks)| {
            let sink_tokens = if matches!(kind, GroupKind::Sliding { .. }) { sinks } else { 0 };
            GroupSpec { keep, margin, sink_tokens, ..GroupSpec::new(kind, block_tokens) }
        })
}

fn groups() -> impl Strategy<Value = Groups> {
    prop::collection::vec(spec(), 1..5).prop_map(|specs| Groups::new(specs, None).unwrap())
}

const LONGEST: usize = 60;

/// Draws the cached blocks of each group. Nearly all, most, or few blocks are cached.
fn cache() -> impl Strategy<Value = Vec<Vec<bool>>> {
    let row = |share| prop::collection::vec(prop::bool::weighted(share), LONGEST);
    prop::collection::vec(prop_oneof![4 => row(0.97), 2 => row(0.8), 1 => row(0.3)], 5)
}

fn of(rows: &[Vec<bool>], groups: &Groups) -> Cache {
    let blocks = (0..groups.specs().len())
        .flat_map(|group| (0..LONGEST).filter(move |&at| rows[group][at]).map(move |at| (group, at)));
    Cache { blocks: blocks.collect(), ..Cache::default() }
}

fn check_tables(groups: &Groups, hit: &GroupHit) {
    for (group, (spec, table)) in groups.specs().iter().zip(&hit.tables).enumerate() {
        let length = hit.tokens.0;
        let needed = needed(spec, length);
        let blocks = if is_cached(spec) { length / spec.block_tokens } else { 0 };
        let expected: Vec<_> =
            (0..blocks).map(|at| if needed.contains(&at) { id(group, at) } else { NULL_BLOCK }).collect();
        assert_eq!(*table, expected, "group {group}, {spec:?}, a hit of {length}");
    }
}

/// Compares the hits of random caches with the brute-force search, and with vLLM's search.
/// `make test-slow` draws 100,000 caches.
#[test]
fn the_longest_hit_is_that_of_every_length_tried() {
    let config =
        Config { cases: 25 * Config::default().cases, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&(groups(), cache(), 0..=LONGEST), |(groups, rows, limit)| {
            let mut cache = of(&rows, &groups);
            let hit = groups.longest_hit(Tokens(limit), &mut cache);
            let expected = brute_force(&groups, &cache, limit);
            prop_assert_eq!(hit.tokens.0, expected);
            prop_assert_eq!(fixed_point(&groups, &cache, limit), expected);
            check_tables(&groups, &hit);
            prop_assert!(cache.asked.values().all(|&times| times == 1), "a block is asked for once");
            Ok(())
        })
        .unwrap();
}

/// Repeats the test in a pool with the digests of a prompt. Each block is registered under the digest
/// of its last unit and its group.
#[test]
fn a_pool_finds_blocks_by_their_names() {
    let config = Config { cases: 1_000, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&(groups(), cache(), 0..=LONGEST), |(groups, rows, limit)| {
            let unit = groups.unit();
            let hasher = BlockHasher::new(HasherConfig { block_size: unit, ..Default::default() }).unwrap();
            let mut prompt = HashCursor::new(Arc::new(hasher), ExtraKeys::default()).unwrap();
            prompt.append(&(0..LONGEST as u32).collect::<Vec<_>>());
            let chain = prompt.chain();
            let mut cache = of(&rows, &groups);
            cache.blocks.retain(|&(group, at)| {
                let spec = groups.specs()[group];
                is_cached(&spec) && (at + 1) * spec.block_tokens <= chain.len() * unit
            });
            let settings =
                PoolConfig { num_blocks: 2 + cache.blocks.len(), block_size: unit, ..Default::default() };
            let mut pool = BlockPool::new(settings).unwrap();
            let mut at_home = BTreeMap::new();
            for &(group, at) in &cache.blocks {
                let block = pool.allocate(1).unwrap();
                let hash = chain.hashes()[groups.naming_unit(group, Blocks(at)).unwrap().0];
                pool.register_named(&block, &[hash], group as u16, |_, _| {}).unwrap();
                at_home.insert(block[0], id(group, at));
            }
            let limit = Tokens(limit.min(chain.len() * unit));
            let mut hit = pool.find_groups(&groups, chain, limit).unwrap();
            for block in hit.tables.iter_mut().flatten() {
                *block = at_home.get(block).copied().unwrap_or(NULL_BLOCK);
            }
            prop_assert_eq!(hit, groups.longest_hit(limit, &mut cache));
            Ok(())
        })
        .unwrap();
}

#[test]
fn no_later_token_reads_a_dead_block_and_one_reads_each_other() {
    for kind in [GroupKind::Full, GroupKind::State, GroupKind::Cross]
        .into_iter()
        .chain((1..15).map(|window| GroupKind::Sliding { window }))
        .chain((1..15).map(|chunk| GroupKind::Chunked { chunk }))
    {
        for block_tokens in 1..6 {
            let spec = GroupSpec::new(kind, block_tokens);
            for settled in 0..40 {
                let dead = spec.dead(Tokens(settled)).0;
                let is_read = |block: usize| {
                    let tokens = block * block_tokens..((block + 1) * block_tokens).min(settled);
                    (settled..80).any(|at| tokens.clone().any(|earlier| reads(&spec, at, earlier)))
                };
                assert!((0..dead).all(|block| !is_read(block)), "{spec:?}, {settled} settled");
                let is_live =
                    (dead + 1) * block_tokens > settled || is_read(dead) || kind == GroupKind::Cross;
                assert!(is_live, "{spec:?}, {settled} settled: block {dead} could go, too");
            }
        }
    }
}

/// Caches exactly the blocks that the rules keep. A hit can then end at each position at which hits are
/// expected. No kept block is unnecessary: each is needed by one of these hits.
#[test]
fn the_kept_blocks_are_those_that_hits_at_boundaries_need() {
    let config = Config { cases: 2_000, failure_persistence: None, ..Config::default() };
    let junction = prop::option::of(0..LONGEST);
    TestRunner::new(config)
        .run(&(groups(), 1..LONGEST, junction), |(groups, prompt, junction)| {
            let junction = junction.map(|at| groups.align(Tokens(at)));
            let boundaries = Boundaries { prompt: Tokens(prompt), junction };
            let all = (0..groups.specs().len()).flat_map(|group| (0..4 * LONGEST).map(move |at| (group, at)));
            let kept = all.filter(|&(group, at)| groups.kept(group, Blocks(at), boundaries));
            let kept = Cache { blocks: kept.collect(), ..Cache::default() };
            let replays = [prompt - 1, prompt].map(|limit| groups.longest_possible(Tokens(limit)).0);
            for length in replays.into_iter().chain(junction.map(|tokens| tokens.0)) {
                prop_assert!(is_legal(&groups, &kept, 4 * LONGEST, length), "no hit of {length}: {kept:?}");
            }
            for (group, spec) in groups.specs().iter().enumerate().filter(|(_, spec)| !spec.kind.is_full()) {
                let interval = match spec.keep {
                    Keep::All => continue,
                    Keep::Every(interval) => interval.next_multiple_of(groups.alignment().0),
                    _ => usize::MAX,
                };
                let multiples = (1..)
                    .map(|n| n * interval)
                    .take_while(|&end| interval < usize::MAX && end <= 20 * LONGEST);
                let ends = multiples.chain(replays).chain(junction.map(|tokens| tokens.0));
                // Every hit that is longer than the attention sinks needs all blocks of the sinks.
                let sinks = if is_cached(spec) { spec.sink_tokens.div_ceil(spec.block_tokens) } else { 0 };
                let wanted = ends.flat_map(|end| needed(spec, end)).chain(0..sinks);
                let wanted: BTreeSet<_> = wanted.filter(|&at| at < 4 * LONGEST).collect();
                let has = kept.blocks.iter().filter(|(of, _)| *of == group).map(|&(_, at)| at);
                prop_assert_eq!(has.collect::<BTreeSet<_>>(), wanted, "group {}, {:?}", group, spec);
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn a_group_without_anything_costs_one_question_per_stretch() {
    let window = GroupSpec::new(GroupKind::Sliding { window: 1024 }, 16);
    let groups = Groups::new(vec![GroupSpec::new(GroupKind::Full, 16), window], None).unwrap();
    let mut cache = Cache { blocks: (0..2048).map(|at| (0, at)).collect(), ..Cache::default() };
    let hit = groups.longest_hit(Tokens(32_768), &mut cache);
    assert_eq!((hit.tokens, hit.full_tokens), (Tokens::ZERO, Tokens(32_768)));
    let asked = cache.asked.keys().filter(|&&(group, _)| group == 1).count();
    assert!(asked <= 2048 / 64, "{asked} questions");
}

#[test]
fn groups_that_cannot_be_are_refused() {
    let full = |block_tokens| GroupSpec::new(GroupKind::Full, block_tokens);
    let of = |kind| GroupSpec::new(kind, 16);
    let mut every_none = full(16);
    every_none.keep = Keep::Every(0);
    let mut far = full(16);
    far.margin = usize::MAX;
    let uncached = GroupSpec { keep: Keep::Nothing, ..full(16) };
    for (specs, unit, message) in [
        (vec![], None, "groups is 0: must be from 1 to"),
        (vec![full(0)], None, "block_tokens is 0: must be from 1 to"),
        (vec![of(GroupKind::Sliding { window: 0 })], None, "window is 0: must be from 1 to"),
        (vec![of(GroupKind::Chunked { chunk: 0 })], None, "chunk is 0: must be from 1 to"),
        (vec![every_none], None, "keep is 0: must be from 1 to"),
        (vec![far], None, "margin is 18446744073709551615: must be at most 65536 blocks"),
        (
            vec![full(16), full(24)],
            Some(16),
            "unit is 16: must be at least 1 token, and a divisor of every block size: of 8",
        ),
        (vec![full(16)], Some(0), "unit is 0: must be"),
        (vec![uncached], Some(0), "unit is 0: must be"),
        (
            (0..9).map(|at| full((1 << 31) - 1 - 2 * at)).collect(),
            None,
            "groups is of these block sizes: must be a common multiple in range",
        ),
    ] {
        let error = Groups::new(specs, unit).unwrap_err();
        assert!(matches!(error, PoolError::InvalidConfig { .. }));
        assert!(error.to_string().starts_with(message), "{error}");
    }
    let most = usize::from(Name::MAX_GROUP) + 1;
    assert!(Groups::new(vec![full(16); most], None).is_ok());
    assert!(Groups::new(vec![full(16); most + 1], None).is_err());
    let units = Groups::new(vec![full(16), full(24)], None).unwrap();
    assert_eq!((units.unit(), units.alignment()), (8, Tokens(48)));
    assert_eq!(units.naming_unit(1, Blocks(1)).map(|unit| unit.0), Some(5));
    assert_eq!(units.naming_unit(2, Blocks(1)), None);
    assert_eq!(units.naming_unit(1, Blocks(usize::MAX)), None);
}

#[test]
fn a_number_of_one_unit_prints_as_such() {
    assert_eq!((Tokens(1).to_string(), Blocks(2).to_string()), ("1 token".into(), "2 blocks".into()));
}
